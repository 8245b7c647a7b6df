"""Ranks of waiting heads under the policies that keep them: what ``policies`` defines, in arrays.

A head's rank is reckoned once (``lowest_queue``) and kept until something that it depends on changes. Where the clock
or the service of decoders moves it (DYNAMIC), what does not move is kept.
"""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import compiled
from fairreplay.sandbox.compiled.service import Int32s, owner_of, served, service
from fairreplay.sandbox.engine import FLOOR_SCALE, Int64s
from fairreplay.sandbox.policies.deadlines import LOG_BITS, LOG_TABLE

LOGS = np.array(LOG_TABLE, np.int64)


@compiled
def rank_now(e: Int64s, queues: Int64s, queue: int) -> int:
    """The rank of a head, of which ``refresh_head`` has kept what does not change while it waits."""
    policy = e[at.POLICY]
    rank = queues[queue + at.RANK]
    if policy == at.WFQ_EDF:
        deadline = queues[queue + at.DEADLINE]
        return at.BEFORE_ALL + deadline if deadline - e[at.CLOCK] < e[at.SLACK] else rank
    if policy == at.QOSERVE:
        return rank if e[at.CLOCK] > queues[queue + at.DEADLINE] else at.BEFORE_ALL + rank
    if policy == at.QUANTILE:
        return rank + ((e[at.GAMMA] * log2_of(service(e, queues, queue))) >> LOG_BITS)
    return rank


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


@compiled
def lowest_queue(
    e: Int64s,
    queues: Int64s,
    active: Int64s,
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
    if e[at.ACTIVE] == 1 and e[at.FIRST_TYPE] < 0:
        return active[0]
    total = 0
    if e[at.FIRST_TYPE] >= 0:
        for number in range(e[at.FIRST_TYPE], e[at.ENTRIES]):
            total += served(e, queues, number * at.QUEUE)
    best = np.int64(-1)
    above = 0
    least = np.int64(0)
    moves = e[at.DYNAMIC] != 0
    for place in range(e[at.ACTIVE]):
        queue = active[place] & at.INDEX
        if queues[queue + at.FRESH] == 0:
            _refresh_head(e, queues, way, kept, arrival, prompt, request_weight, weights, queue)
        is_above = 0
        if e[at.FIRST_TYPE] >= 0:
            kind = queues[queue + at.OF_TYPE] & at.INDEX
            if served(e, queues, kind) >= queues[kind + at.CAP_OF]:
                continue
            is_above = 0 if served(e, queues, kind) * FLOOR_SCALE < queues[kind + at.RANK] * total else 1
        rank = rank_now(e, queues, queue) if moves else queues[queue + at.RANK]
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


@compiled
def begin(e: Int64s, queues: Int64s, misses: Int64s) -> None:
    """The policy starts anew, with empty queues."""
    e[at.VIRTUAL] = at.NONE if e[at.POLICY] == at.DRR or e[at.POLICY] == at.ROUND_ROBIN else 0
    for number in range(e[at.ENTRIES]):
        queues[number * at.QUEUE + at.SINCE] = at.NONE
        if e[at.POLICY] == at.QUANTILE:
            set_target(e, queues, number * at.QUEUE)
    if e[at.POLICY] == at.QUANTILE:
        for place in range(e[at.TENANTS] * e[at.HISTORY]):
            misses[place] = 0


@compiled
def _refresh_head(
    e: Int64s,
    queues: Int64s,
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
    request = queues[queue + at.HEAD] & at.INDEX
    is_back = way[request * at.WAY + at.PLACE] == at.BACK
    rank = np.int64(0)
    queues[queue + at.FRESH] = 1
    if policy == at.WFQ or policy == at.WFQ_EDF:
        rank = queues[owner + at.SERVICE]
        if is_back and kept[request * at.KEPT + at.KEPT_TAG] != at.NONE:
            rank = kept[request * at.KEPT + at.KEPT_TAG]
        queues[queue + at.DEADLINE] = arrival[request] + queues[queue + at.TARGET]
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
        rank = arrival[request] + queues[owner + at.TARGET]
    elif policy == at.QOSERVE:
        deadline = arrival[request] + queues[queue + at.TARGET]
        rank = deadline + e[at.ALPHA] * prompt[request]
        queues[queue + at.DEADLINE] = at.FOREVER if is_back else deadline - e[at.PREFILL_PS] * prompt[request]
    queues[queue + at.RANK] = rank


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
    return max(1, prompt[request] - cached) * _inverse_weight(e, queues, weights, request_weight, queue, request)


@compiled
def _inverse_weight(
    e: Int64s, queues: Int64s, weights: Int64s, request_weight: Int64s, queue: int, request: int
) -> int:
    """As ``service.inverse_weight``; ``weights`` is the table row by row."""
    if e[at.OWN_WEIGHTS] and request_weight[request] != 0:
        return request_weight[request]
    return weights[e[at.WEIGHTS] * e[at.TENANTS] + queues[queue + at.TENANT]]


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
    for place in range(e[at.ACTIVE]):
        queue = active[place] & at.INDEX
        if owner == at.NONE or owner_of(queues, queue) == owner:
            queues[queue + at.FRESH] = 0


@compiled
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
        inverse = _inverse_weight(e, queues, weights, request_weight, queue, request)
        kept[request * at.KEPT + at.KEPT_TAG] = tag
        kept[request * at.KEPT + at.KEPT_EXPECTED] = expected
        kept[request * at.KEPT + at.KEPT_INVERSE] = inverse
        units = e[at.PROMPT_COST] * prompt[request] + e[at.OUTPUT_COST] * expected
        queues[owner + at.SERVICE] = tag + units * inverse
    else:
        return
    forget_ranks(e, queues, active, owner)


@compiled
def hear_finish(
    e: Int64s, queues: Int64s, active: Int64s, kept: Int64s, queue: int, request: int, outputs: int
) -> None:
    """The policy sees ``request`` done: ``wfq`` corrects what it expected of it."""
    if e[at.POLICY] == at.QUANTILE:
        return
    owner = owner_of(queues, queue)
    if outputs > 0:
        queues[owner + at.FINISHED_COUNT] += 1
        queues[owner + at.OUTPUT_SUM] += outputs
    if kept[request * at.KEPT + at.KEPT_TAG] == at.NONE:
        return
    wrong = outputs - kept[request * at.KEPT + at.KEPT_EXPECTED]
    queues[owner + at.SERVICE] += wrong * e[at.OUTPUT_COST] * kept[request * at.KEPT + at.KEPT_INVERSE]
    forget_ranks(e, queues, active, owner)


@compiled
def hear_first_token(e: Int64s, queues: Int64s, active: Int64s, misses: Int64s, queue: int, ttft_ps: int) -> None:
    """The policy sees a first token: ``quantile`` notes which targets it missed."""
    if e[at.POLICY] != at.QUANTILE:
        return
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
