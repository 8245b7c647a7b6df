"""Ranks of waiting heads under the policies that keep them: what ``policies`` defines, in arrays.

A head's rank is reckoned once and kept in ``ranks`` until something that it depends on changes; then its queue is
listed as stale. Where the clock moves a rank, the second half of ``ranks`` says when: a deadline (``wfq+edf``), the
last instant at which the head is not lost (``qoserve``). Under ``quantile`` it is the rank before service is added.
Behind both halves stand the least numbers of groups, so that the lowest rank is found without a look at all.
"""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.estimating import estimated, estimated_prompt, true_units
from fairreplay.sandbox.compiled.jit import apart, compiled, inlined, prefetch, trailing_zeros, unsigned, vector
from fairreplay.sandbox.compiled.service import (
    inverse_weight,
    mark_stale,
    owner_of,
    served_in_all,
    service,
    standing,
)
from fairreplay.sandbox.engine import Int32s, Int64s
from fairreplay.sandbox.extras import MICRO
from fairreplay.sandbox.policies.deadlines import LOG_BITS, LOG_TABLE

LOGS = np.array(LOG_TABLE, np.int64)


@compiled
def _rank_now(e: Int64s, queues: Int64s, ranks: Int64s, queue: int) -> int:
    """The rank of a head at this pass."""
    policy = e[at.POLICY]
    number = queue // at.QUEUE
    rank = ranks[number]
    other = ranks[e[at.STALE_AT] + number]
    if policy == at.WFQ_EDF:
        return at.BEFORE_ALL + other if other - e[at.CLOCK] < e[at.SLACK] else rank
    if policy == at.QUANTILE:
        return _with_service(e, queues, queue, other)
    return rank


@compiled
def _with_service(e: Int64s, queues: Int64s, queue: int, rank: int) -> int:
    """``quantile``: the rank of a head, and what the service of its tenant adds to it."""
    if e[at.GAMMA] == 0:
        return rank
    return rank + ((e[at.GAMMA] * log2_of(service(e, queues, queue))) >> LOG_BITS)


@compiled
def log2_of(number: int) -> int:
    """As ``deadlines.log2_scaled``."""
    number += 1
    power = 0
    for step in (32, 16, 8, 4, 2, 1):
        if number >> (power + step) > 0:
            power += step
    shifted = number >> (power - 8) if power > 8 else number << (8 - power)
    return (power << LOG_BITS) + LOGS[shifted - 256]


@apart
def lowest_queue(
    e: Int64s,
    queues: Int64s,
    active: Int64s,
    ranks: Int64s,
    way: Int32s,
    kept: Int64s,
    arrival: Int64s,
    prompt: Int64s,
    request_weight: Int64s,
    weights: Int64s,
) -> int:
    """The queue whose head goes next: the lowest rank, types below their floor before the others.

    NONE: the types of all heads are barred.
    """
    for place in range(e[at.STALE_AT], e[at.STALE_AT] + e[at.STALE]):
        _refresh_head(e, queues, ranks, way, kept, arrival, prompt, request_weight, weights, active[place] & at.INDEX)
    e[at.STALE] = 0
    if e[at.POLICY] == at.QOSERVE:
        _give_up(e, queues, ranks)
    if e[at.FIRST_TYPE] >= 0 or e[at.GATED]:
        return _lowest_queue_above_floors(e, queues, active, ranks)
    others = e[at.STALE_AT]
    if e[at.POLICY] == at.WFQ_EDF:
        soonest = _first_of_least(e, queues, ranks, others)
        if ranks[others + soonest // at.QUEUE] - e[at.CLOCK] < e[at.SLACK]:
            return soonest
    best = _first_of_least(e, queues, ranks, np.int64(0))
    if e[at.POLICY] == at.QUANTILE and e[at.GAMMA] != 0:
        # service only grows, so a rank reckoned earlier is a lower bound
        number = best // at.QUEUE
        rank = _with_service(e, queues, best, ranks[others + number])
        while rank > ranks[number]:
            _keep(e, ranks, np.int64(0), number, rank)
            best = _first_of_least(e, queues, ranks, np.int64(0))
            number = best // at.QUEUE
            rank = _with_service(e, queues, best, ranks[others + number])
    elif e[at.POLICY] == at.VTC_OF_MANY:  # likewise
        rank = service(e, queues, best)
        while rank > ranks[best // at.QUEUE]:
            _keep(e, ranks, np.int64(0), best // at.QUEUE, rank)
            best = _first_of_least(e, queues, ranks, np.int64(0))
            rank = service(e, queues, best)
    return best


@inlined
def _groups(e: Int64s, first: int) -> int:
    """Where ``ranks`` keeps the least numbers of the groups of the half that begins at ``first``."""
    half = e[at.STALE_AT]
    return 2 * half if first == 0 else 2 * half + ((half + at.GROUP - 1) >> at.GROUP_BITS)


@inlined
def _least_between(ranks: Int64s, begin: int, end: int) -> int:
    least = np.int64(at.FOREVER)
    for place in range(unsigned(begin), unsigned(end)):
        least = min(least, ranks[place])
    return least


@inlined
def _keep(e: Int64s, ranks: Int64s, first: int, place: int, number: int) -> None:
    """Write a number of the half of ``ranks`` that begins at ``first``, and the least of its group.

    A half of a single group is looked through as a whole, and its least number not kept.
    """
    before = ranks[first + place]
    ranks[first + place] = number
    half = e[at.STALE_AT]
    if half <= at.GROUP:
        return
    group = _groups(e, first) + (place >> at.GROUP_BITS)
    if number <= ranks[group]:
        ranks[group] = number
    elif before == ranks[group]:
        begin = (place >> at.GROUP_BITS) << at.GROUP_BITS
        ranks[group] = _least_between(ranks, first + begin, first + min(begin + at.GROUP, half))


@inlined
def _least(e: Int64s, ranks: Int64s, first: int) -> int:
    """The least number of the half of ``ranks`` that begins at ``first``."""
    half = e[at.STALE_AT]
    if half <= at.GROUP:
        return _least_between(ranks, first, first + half)
    begin = _groups(e, first)
    return _least_between(ranks, begin, begin + ((half + at.GROUP - 1) >> at.GROUP_BITS))


@compiled
def _first_of_least(e: Int64s, queues: Int64s, ranks: Int64s, first: int) -> int:
    """The queue with the least number of the half that begins at ``first``."""
    half = e[at.STALE_AT]
    least = _least(e, ranks, first)
    if half <= at.GROUP:
        return _first_with(e, queues, ranks, first, np.int64(0), half, least, np.int64(-1))
    best = np.int64(-1)
    begin = _groups(e, first)
    for index in range((half + at.GROUP - 1) >> at.GROUP_BITS):
        if ranks[begin + index] == least:
            end = min((index + 1) * at.GROUP, half)
            best = _first_with(e, queues, ranks, first, index * at.GROUP, end, least, best)
    return best


@inlined
def _first_with(
    e: Int64s, queues: Int64s, ranks: Int64s, first: int, begin: int, end: int, number: int, best: int
) -> int:
    """Among those from ``begin`` on with this number, and ``best`` unless that is NONE: the queue that goes first."""
    with_it = np.int64(0)
    for place in range(end - begin):
        with_it |= np.int64(ranks[unsigned(first + begin + place)] == number) << place
    while with_it != 0:
        queue = (begin + trailing_zeros(with_it)) * at.QUEUE
        if best < 0 or _goes_before(e, queues, queue, best):
            best = queue
        with_it &= with_it - 1
    return best


@compiled
def _give_up(e: Int64s, queues: Int64s, ranks: Int64s) -> None:
    """Under ``qoserve``: heads that cannot be on time any more go behind the others, for good."""
    others = e[at.STALE_AT]
    while _least(e, ranks, others) < e[at.CLOCK]:
        number = _first_of_least(e, queues, ranks, others) // at.QUEUE
        _keep(e, ranks, np.int64(0), number, ranks[number] - at.BEFORE_ALL)
        _keep(e, ranks, others, number, np.int64(at.FOREVER))


@compiled
def _lowest_queue_above_floors(e: Int64s, queues: Int64s, active: Int64s, ranks: Int64s) -> int:
    total = served_in_all(e, queues)
    best = np.int64(-1)
    above = 0
    least = np.int64(0)
    for place in range(e[at.ACTIVE]):
        queue = active[place] & at.INDEX
        is_above = standing(e, queues, queue, total)
        if is_above < 0:
            continue
        rank = _rank_now(e, queues, ranks, queue)
        better = best < 0 or is_above < above
        if not better and is_above == above:
            better = rank < least or (rank == least and _goes_before(e, queues, queue, best))
        if better:
            best = queue
            above = is_above
            least = rank
    return best


@compiled
def _goes_before(e: Int64s, queues: Int64s, queue: int, other: int) -> bool:
    """Between heads of equal rank: by tenant where the policy says so, then by (arrival, order in the source)."""
    if e[at.BY_NAME] and queues[queue + at.TENANT] != queues[other + at.TENANT]:
        return queues[queue + at.TENANT] < queues[other + at.TENANT]
    return queues[queue + at.HEAD] < queues[other + at.HEAD]


@apart
def begin(e: Int64s, queues: Int64s, ranks: Int64s, misses: Int64s) -> None:
    """The policy starts anew, with empty queues."""
    e[at.STALE] = 0
    half = e[at.STALE_AT]
    for place in range(2 * half + 2 * ((half + at.GROUP - 1) // at.GROUP)):
        ranks[place] = at.FOREVER
    e[at.VIRTUAL] = at.NONE if e[at.POLICY] == at.DRR or e[at.POLICY] == at.ROUND_ROBIN else 0
    for number in range(e[at.ENTRIES]):
        queues[number * at.QUEUE + at.SINCE] = at.NONE
        queues[number * at.QUEUE + at.FRESH] = 1
        is_type = e[at.FIRST_TYPE] >= 0 and number >= e[at.FIRST_TYPE]
        if e[at.POLICY] == at.QUANTILE and not is_type:
            set_target(e, queues, number * at.QUEUE)
    if e[at.POLICY] == at.QUANTILE:
        for place in range(e[at.TENANTS] * e[at.HISTORY]):
            misses[place] = 0


@compiled
def _refresh_head(
    e: Int64s,
    queues: Int64s,
    ranks: Int64s,
    way: Int32s,
    kept: Int64s,
    arrival: Int64s,
    prompt: Int64s,
    request_weight: Int64s,
    weights: Int64s,
    queue: int,
) -> None:
    policy = e[at.POLICY]
    owner = owner_of(queues, queue)
    number = queue // at.QUEUE
    queues[queue + at.FRESH] = 1
    rank = np.int64(at.FOREVER)
    other = np.int64(at.FOREVER)
    if queues[queue + at.HEAD] < 0:
        _keep(e, ranks, np.int64(0), number, rank)
        if e[at.BOTH_HALVES]:
            _keep(e, ranks, e[at.STALE_AT], number, other)
        return
    request = queues[queue + at.HEAD] & at.INDEX
    is_back = way[request * at.WAY + at.PLACE] == at.BACK
    follower = way[request * at.WAY + at.FOLLOWER]
    if follower >= 0:  # what its own look will need, in no cache by now
        prefetch(way, follower * at.WAY)
        prefetch(arrival, follower)
        prefetch(prompt, follower)
    rank = np.int64(0)
    if policy == at.WFQ or policy == at.WFQ_EDF:
        rank = queues[owner + at.SERVICE]
        if is_back and kept[request * at.KEPT + at.KEPT_TAG] != at.NONE:
            rank = kept[request * at.KEPT + at.KEPT_TAG]
        if policy == at.WFQ_EDF:
            other = arrival[request] + queues[queue + at.TARGET]
        prefetch(kept, request * at.KEPT + at.KEPT_TAG)
    elif policy == at.DRR:
        rank = np.int64(-1)
        if not is_back:
            price = price_of(e, queues, prompt, request_weight, weights, queue, request, queues[queue + at.CACHED_NOW])
            rank = served_at(e, queues, owner, visits_for(e, queues, owner, price))
    elif policy == at.ROUND_ROBIN:
        rank = np.int64(-1) if is_back else served_at(e, queues, owner, np.int64(1))
    elif policy == at.EDF:
        rank = arrival[request] + queues[queue + at.TARGET]
    elif policy == at.QUANTILE:
        other = arrival[request] + queues[owner + at.TARGET]
        rank = _with_service(e, queues, queue, other)
    elif policy == at.VTC_OF_MANY:
        rank = service(e, queues, queue)
    elif policy == at.SJF_OF_MANY:
        rank = prompt[request]
    elif policy == at.LEAST_COST:
        rank = estimated_prompt(e, request) if at.ESTIMATES and e[at.ESTIMATING] else vector(e, at.TO_COST)[request]
    elif policy == at.QOSERVE:
        deadline = arrival[request] + queues[queue + at.TARGET]
        later_ps, takes_ps = e[at.ALPHA] * prompt[request], e[at.PREFILL_PS] * prompt[request]
        if at.ESTIMATES and e[at.ESTIMATING]:
            later_ps, takes_ps = estimated(e, request, later_ps), estimated(e, request, takes_ps)
        rank = at.BEFORE_ALL + deadline + later_ps
        other = np.int64(at.FOREVER) if is_back else deadline - takes_ps
    _keep(e, ranks, np.int64(0), number, rank)
    if e[at.BOTH_HALVES]:
        _keep(e, ranks, e[at.STALE_AT], number, other)


@compiled
def price_of(
    e: Int64s,
    queues: Int64s,
    prompt: Int64s,
    request_weight: Int64s,
    weights: Int64s,
    queue: int,
    request: int,
    cached: int,
) -> int:
    """What ``drr`` takes for a request."""
    return max(1, prompt[request] - cached) * inverse_weight(e, queues, weights, request_weight, queue, request)


@compiled
def visits_for(e: Int64s, queues: Int64s, owner: int, price: int) -> int:
    """How many more visits of the ring make the tenant's deficit reach ``price``."""
    missing = price - queues[owner + at.SERVICE]
    return 0 if missing <= 0 else (missing + e[at.QUANTUM] - 1) // e[at.QUANTUM]


@compiled
def served_at(e: Int64s, queues: Int64s, owner: int, visits: int) -> int:
    """The visit of the ring at which the tenant has been visited so many times more."""
    since = queues[owner + at.SINCE]
    if visits == 0:
        return since
    count = e[at.TENANTS]
    distance = (queues[owner + at.TENANT] - since - 1) % count
    if distance < 0:
        distance += count
    return since + 1 + distance + (visits - 1) * count


@compiled
def forget_ranks(e: Int64s, queues: Int64s, active: Int64s, owner: int) -> None:
    """What ranks the heads of this tenant (NONE: of all) has changed."""
    if owner != at.NONE and not e[at.APART]:
        mark_stale(e, queues, active, owner)
        return
    for place in range(e[at.ACTIVE]):
        queue = active[place] & at.INDEX
        if owner == at.NONE or owner_of(queues, queue) == owner:
            mark_stale(e, queues, active, queue)


@apart
def take_turn(
    e: Int64s,
    queues: Int64s,
    active: Int64s,
    kept: Int64s,
    arrival: Int64s,
    prompt: Int64s,
    cut: Int64s,
    request_weight: Int64s,
    weights: Int64s,
    queue: int,
    request: int,
    cached: int,
) -> None:
    """The policy sees the head of ``queue`` go to its first batch."""
    policy = e[at.POLICY]
    owner = owner_of(queues, queue)
    if policy == at.DRR:
        price = price_of(e, queues, prompt, request_weight, weights, queue, request, cached)
        visits = visits_for(e, queues, owner, price)
        visit = served_at(e, queues, owner, visits)
        queues[owner + at.SERVICE] += visits * e[at.QUANTUM] - price
        queues[owner + at.SINCE] = visit
        e[at.VIRTUAL] = max(e[at.VIRTUAL], visit)
    elif policy == at.ROUND_ROBIN:
        visit = served_at(e, queues, owner, np.int64(1))
        queues[owner + at.SINCE] = visit
        e[at.VIRTUAL] = max(e[at.VIRTUAL], visit)
    elif policy == at.WFQ or policy == at.WFQ_EDF:
        tag = queues[owner + at.SERVICE]
        in_turn = policy == at.WFQ or arrival[request] + queues[queue + at.TARGET] - e[at.CLOCK] >= e[at.SLACK]
        if in_turn:
            e[at.VIRTUAL] = max(e[at.VIRTUAL], tag)
        expected = np.int64(0)
        if cut[request] > 0:
            expected = e[at.PREDICTED]
            if queues[owner + at.FINISHED_COUNT] > 0:
                expected = queues[owner + at.OUTPUT_SUM] // queues[owner + at.FINISHED_COUNT]
        inverse = inverse_weight(e, queues, weights, request_weight, queue, request)
        kept[request * at.KEPT + at.KEPT_TAG] = tag
        kept[request * at.KEPT + at.KEPT_EXPECTED] = expected
        kept[request * at.KEPT + at.KEPT_INVERSE] = inverse
        tokens = prompt[request]
        if e[at.BY_COST]:
            tokens = vector(e, at.TO_COST)[request] // MICRO
        units = e[at.PROMPT_COST] * tokens + e[at.OUTPUT_COST] * expected
        if at.ESTIMATES and e[at.ESTIMATING]:
            units = estimated(e, request, units)
            kept[request * at.KEPT + at.KEPT_EXPECTED] = units
        queues[owner + at.SERVICE] = tag + units * inverse
    else:
        return
    forget_ranks(e, queues, active, owner)


@compiled
def hear_finish(
    e: Int64s, queues: Int64s, active: Int64s, kept: Int64s, queue: int, request: int, outputs: int
) -> None:
    """The policy sees ``request`` done: ``wfq`` corrects what it expected of it."""
    owner = owner_of(queues, queue)
    if outputs > 0:
        queues[owner + at.FINISHED_COUNT] += 1
        queues[owner + at.OUTPUT_SUM] += outputs
    if kept[request * at.KEPT + at.KEPT_TAG] == at.NONE:
        return
    wrong = (outputs - kept[request * at.KEPT + at.KEPT_EXPECTED]) * e[at.OUTPUT_COST]
    if at.ESTIMATES and e[at.ESTIMATING]:
        wrong = true_units(e, request, outputs) - kept[request * at.KEPT + at.KEPT_EXPECTED]
    queues[owner + at.SERVICE] += wrong * kept[request * at.KEPT + at.KEPT_INVERSE]
    forget_ranks(e, queues, active, owner)


@apart
def hear_first_token(e: Int64s, queues: Int64s, active: Int64s, misses: Int64s, queue: int, ttft_ps: int) -> None:
    """The policy sees a first token: ``quantile`` notes which targets it missed."""
    owner = owner_of(queues, queue)
    oldest = queues[owner + at.OLDEST]
    place = queues[owner + at.TENANT] * e[at.HISTORY] + oldest
    before = misses[place]
    now = np.int64(0)
    for q in range(3):
        missed = 1 if ttft_ps > queues[owner + at.TARGET_50 + q] else 0
        now |= missed << q
        queues[owner + at.MISSED_50 + q] += missed - ((before >> q) & 1)
    misses[place] = now
    queues[owner + at.OLDEST] = 0 if oldest + 1 == e[at.HISTORY] else oldest + 1
    target = queues[owner + at.TARGET]
    set_target(e, queues, owner)
    if queues[owner + at.TARGET] != target:
        forget_ranks(e, queues, active, owner)


@compiled
def set_target(e: Int64s, queues: Int64s, owner: int) -> None:
    """The TTFT target that counts now for a tenant under ``quantile``."""
    target = np.int64(at.FOREVER)
    for q in range(3):
        if queues[owner + at.MISSED_50 + q] >= e[at.ALLOWED_50 + q]:
            target = min(target, queues[owner + at.TARGET_50 + q])
    queues[owner + at.TARGET] = queues[owner + at.TARGET_50 + e[at.WIDEST]] if target == at.FOREVER else target
