"""The waiting queues, as ``queues.WaitingQueues`` and the policies define them, in arrays.

Requests whose order the policy cannot tell apart share a queue, sorted by request index: all of them under ``fcfs``,
those of a priority, of a tenant (``vtc``) or of a place in the type order, and for ``sjf`` those of one (tenant, type,
priority), because there the prompt of each queue's head decides.
"""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import call_rank, compiled, inlined, prefetch
from fairreplay.sandbox.compiled.service import (
    ask,
    inverse_weight,
    mark_stale,
    owner_of,
    queue_of,
    served,
    served_in_all,
    service,
    standing,
    tell,
)
from fairreplay.sandbox.engine import Int32s, Int64s


@inlined
def rerank(e: Int64s, queues: Int64s, active: Int64s, queue: int, prompt: Int64s) -> None:
    """The queue has a new head."""
    if e[at.POLICY] == at.SJF:
        queues[queue + at.RANK] = prompt[queues[queue + at.HEAD]]
    elif e[at.POLICY] >= at.KEEPS_RANKS:
        mark_stale(e, queues, active, queue)


@inlined
def push(
    e: Int64s, queues: Int64s, active: Int64s, queue_rows: Int64s, way: Int32s, prompt: Int64s, request: int
) -> None:
    """``request`` joins its queue at the place that its index gives it, mostly at the end."""
    queue = queue_of(e, queue_rows, request)
    place = request * at.WAY
    e[at.WAITING] += 1
    tail = queues[queue + at.TAIL]
    if queues[queue + at.HEAD] >= 0 and request > tail:
        way[tail * at.WAY + at.FOLLOWER] = request
        queues[queue + at.TAIL] = request
        way[place + at.FOLLOWER] = at.NONE
    else:
        _push_before(e, queues, active, way, prompt, queue, request)


@compiled
def _push_before(
    e: Int64s, queues: Int64s, active: Int64s, way: Int32s, prompt: Int64s, queue: int, request: int
) -> None:
    """Into an empty queue, or before others."""
    place = request * at.WAY
    head = queues[queue + at.HEAD]
    if head < 0:
        queues[queue + at.HEAD] = request
        queues[queue + at.TAIL] = request
        way[place + at.FOLLOWER] = at.NONE
        queues[queue + at.ACTIVE_AT] = e[at.ACTIVE]
        owner = owner_of(queues, queue)
        if queues[owner + at.WAITERS] == 0:
            queues[owner + at.SINCE] = max(queues[owner + at.SINCE], e[at.VIRTUAL])
        queues[owner + at.WAITERS] += 1
        active[e[at.ACTIVE]] = queue
        e[at.ACTIVE] += 1
        rerank(e, queues, active, queue, prompt)
    elif request < head:
        queues[queue + at.HEAD] = request
        way[place + at.FOLLOWER] = head
        rerank(e, queues, active, queue, prompt)
    else:
        before = head
        while way[before * at.WAY + at.FOLLOWER] < request:
            before = way[before * at.WAY + at.FOLLOWER]
        way[place + at.FOLLOWER] = way[before * at.WAY + at.FOLLOWER]
        way[before * at.WAY + at.FOLLOWER] = request


@inlined
def remove_head(
    e: Int64s, queues: Int64s, active: Int64s, way: Int32s, prompt: Int64s, cut: Int64s, queue: int
) -> None:
    """The head of ``queue`` leaves it."""
    e[at.WAITING] -= 1
    request = queues[queue + at.HEAD] & at.INDEX
    follower = way[request * at.WAY + at.FOLLOWER]
    if follower < 0:
        _deactivate(e, queues, active, queue)
        return
    queues[queue + at.HEAD] = follower
    rerank(e, queues, active, queue, prompt)
    # it is needed when this queue's turn comes, and with many queues it is in no cache
    prefetch(way, follower * at.WAY)
    prefetch(prompt, follower)
    prefetch(cut, follower)


@compiled
def _deactivate(e: Int64s, queues: Int64s, active: Int64s, queue: int) -> None:
    """Nobody waits in ``queue`` any more."""
    queues[queue + at.HEAD] = at.NONE
    if e[at.POLICY] >= at.KEEPS_RANKS:
        mark_stale(e, queues, active, queue)
    last = active[e[at.ACTIVE] - 1]
    place = queues[queue + at.ACTIVE_AT]
    active[place] = last
    queues[last + at.ACTIVE_AT] = place
    e[at.ACTIVE] -= 1
    owner = owner_of(queues, queue)
    queues[owner + at.WAITERS] -= 1
    if queues[owner + at.WAITERS] == 0:
        e[at.LAST_TO_LEAVE] = owner
        if e[at.POLICY] == at.DRR:
            queues[owner + at.SERVICE] = 0


@compiled
def remove(
    e: Int64s,
    queues: Int64s,
    active: Int64s,
    queue_rows: Int64s,
    way: Int32s,
    prompt: Int64s,
    cut: Int64s,
    request: int,
) -> None:
    """``request`` leaves its queue, wherever it stands."""
    queue = queue_of(e, queue_rows, request)
    head = queues[queue + at.HEAD]
    if head == request:
        remove_head(e, queues, active, way, prompt, cut, queue)
        return
    e[at.WAITING] -= 1
    follower = way[request * at.WAY + at.FOLLOWER]
    before = np.int64(head)
    while way[before * at.WAY + at.FOLLOWER] != request:
        before = np.int64(way[before * at.WAY + at.FOLLOWER])
    way[before * at.WAY + at.FOLLOWER] = follower
    if queues[queue + at.TAIL] == request:
        queues[queue + at.TAIL] = before


@inlined
def next_queue(
    e: Int64s,
    queues: Int64s,
    active: Int64s,
    head: Int64s,
    way: Int32s,
    kept: Int64s,
    out: Int64s,
    arrival: Int64s,
    prompt: Int64s,
    request_weight: Int64s,
    weights: Int64s,
) -> int:
    """The queue whose head goes next, NONE if the types of all heads are barred; somebody waits."""
    if e[at.GATED]:
        tell(e, at.BAR_HEADS, 0, 0)
    elif e[at.ACTIVE] == 1 and e[at.FIRST_TYPE] < 0:
        return active[0] & at.INDEX
    if e[at.POLICY] == at.USER:
        for place in range(e[at.ACTIVE]):
            queue = active[place] & at.INDEX
            request = queues[queue + at.HEAD]
            show_head(e, queues, head, way, kept, out, arrival, prompt, request_weight, weights, queue, request)
            queues[queue + at.RANK] = call_rank(e[at.RANK_ADDRESS], head)
            if head[at.HEAD_FAILED] != 0:
                head[at.HEAD_FAILED] = 0
                e[at.FAILED] = 1 + request
    if e[at.POLICY] >= at.KEEPS_RANKS:
        return ask(e, at.LOWEST, 0, 0, 0)
    if e[at.FIRST_TYPE] >= 0 or e[at.GATED]:
        return _lowest_queue_above_floors(e, queues, active)
    return _lowest_queue(e, queues, active) & at.INDEX


@compiled
def show_head(
    e: Int64s,
    queues: Int64s,
    head: Int64s,
    way: Int32s,
    kept: Int64s,
    out: Int64s,
    arrival: Int64s,
    prompt: Int64s,
    request_weight: Int64s,
    weights: Int64s,
    queue: int,
    request: int,
) -> None:
    """Fields of a head for a user's rank, in the order of ``policies.user.HEAD_FIELDS``."""
    head[0] = e[at.CLOCK]
    head[1] = arrival[request]
    head[2] = prompt[request]
    head[3] = prompt[request]
    if way[request * at.WAY + at.PLACE] == at.BACK:
        head[3] = kept[request * at.KEPT + at.KEPT_KNOWN]
    head[4] = queues[queue + at.PRIORITY_OF]
    head[5] = queues[queue + at.TENANT]
    head[6] = queues[queue + at.TYPE]
    head[7] = out[at.PREEMPTIONS, request]
    head[8] = service(e, queues, queue)
    head[9] = inverse_weight(e, queues, weights, request_weight, queue, request)
    head[10] = e[at.WAITING]
    head[11] = e[at.RUNNING]


@inlined
def rank_of(e: Int64s, queues: Int64s, queue: int) -> int:
    return service(e, queues, queue) if e[at.POLICY] == at.VTC else queues[queue + at.RANK]


@inlined
def goes_before(e: Int64s, queues: Int64s, queue: int, other: int) -> bool:
    """Between heads of equal rank: by tenant under ``vtc``, then by (arrival, order in the source)."""
    if e[at.POLICY] == at.VTC and queues[queue + at.TENANT] != queues[other + at.TENANT]:
        return queues[queue + at.TENANT] < queues[other + at.TENANT]
    return queues[queue + at.HEAD] < queues[other + at.HEAD]


@compiled
def _lowest_queue(e: Int64s, queues: Int64s, active: Int64s) -> int:
    best = active[0] & at.INDEX
    if e[at.POLICY] == at.VTC:
        # without floors each tenant has one queue, which counts its service, and queues stand in order of tenant
        ticks = e[at.TICK] - e[at.LAG]
        least = queues[best + at.SERVICE] + queues[best + at.RATE] * ticks
        for place in range(1, e[at.ACTIVE]):
            queue = active[place] & at.INDEX
            rank = queues[queue + at.SERVICE] + queues[queue + at.RATE] * ticks
            if rank < least or (rank == least and queue < best):
                best = queue
                least = rank
        return best
    least = rank_of(e, queues, best)
    for place in range(1, e[at.ACTIVE]):
        queue = active[place] & at.INDEX
        rank = rank_of(e, queues, queue)
        if rank < least or (rank == least and goes_before(e, queues, queue, best)):
            best = queue
            least = rank
    return best


@compiled
def _lowest_queue_above_floors(e: Int64s, queues: Int64s, active: Int64s) -> int:
    """As above, but types below their floor go before the others, and who is barred not at all."""
    total = served_in_all(e, queues)
    best = np.int64(-1)
    above = 0
    least = 0
    for place in range(e[at.ACTIVE]):
        queue = active[place] & at.INDEX
        is_above = standing(e, queues, queue, total)
        if is_above < 0:
            continue
        rank = rank_of(e, queues, queue)
        better = best < 0 or is_above < above
        if not better and is_above == above:
            better = rank < least or (rank == least and goes_before(e, queues, queue, best))
        if better:
            best = queue
            above = is_above
            least = rank
    return best


@compiled
def begin_floor_window(e: Int64s, queues: Int64s) -> None:
    """Types have been served nothing yet in the window in which the clock stands."""
    window = e[at.FLOOR_WINDOW]
    e[at.FLOOR_ENDS] = (e[at.CLOCK] // window + 1) * window
    for number in range(e[at.FIRST_TYPE], e[at.ENTRIES]):
        entry = number * at.QUEUE
        queues[entry + at.SERVICE] -= served(e, queues, entry)


@inlined
def greet(e: Int64s, queues: Int64s, active: Int64s, queue_rows: Int64s, request: int) -> None:
    """The policy sees ``request`` arrive: under ``vtc`` a tenant that returns is lifted."""
    if e[at.LIFT] == 0:
        if e[at.POLICY] == at.WFQ or e[at.POLICY] == at.WFQ_EDF:
            owner = owner_of(queues, queue_of(e, queue_rows, request))
            if queues[owner + at.WAITERS] == 0:
                queues[owner + at.SERVICE] = max(queues[owner + at.SERVICE], e[at.VIRTUAL])
        return
    owner = owner_of(queues, queue_of(e, queue_rows, request))
    if queues[owner + at.WAITERS] > 0:
        return
    if e[at.POLICY] == at.VTC_OF_MANY and e[at.ACTIVE] > 0:
        floor = service(e, queues, ask(e, at.LOWEST, 0, 0, 0))
    elif e[at.ACTIVE] > 0:
        floor = service(e, queues, active[0])
        for place in range(1, e[at.ACTIVE]):
            floor = min(floor, service(e, queues, active[place]))
    elif e[at.LAST_TO_LEAVE] >= 0:
        floor = served(e, queues, e[at.LAST_TO_LEAVE])
    else:
        return
    own = served(e, queues, owner)
    if floor > own:
        queues[owner + at.SERVICE] += floor - own


@inlined
def waits(way: Int32s, request: int) -> bool:
    place = way[request * at.WAY + at.PLACE]
    return place < 0 and place != at.GONE


@compiled
def youngest_waiting(e: Int64s, way: Int32s) -> int:
    request = e[at.NEXT_ARRIVAL] - 1
    while not waits(way, request):
        request -= 1
    return request


@compiled
def oldest_waiting(e: Int64s, queues: Int64s, active: Int64s) -> int:
    oldest = queues[active[0] + at.HEAD]
    for place in range(1, e[at.ACTIVE]):
        oldest = min(oldest, queues[active[place] + at.HEAD])
    return oldest


@compiled
def clear_queues(e: Int64s, queues: Int64s, queue_facts: Int64s) -> None:
    """Empty queues and fresh counters for the policy in force."""
    row = e[at.QUEUE_ROW] * at.QUEUE_FACTS
    for number in range(e[at.ENTRIES]):
        entry = number * at.QUEUE
        for field in range(at.QUEUE):
            queues[entry + field] = 0
        queues[entry + at.HEAD] = at.NONE
        queues[entry + at.TAIL] = at.NONE
        if e[at.QUEUE_ROW] >= 0:
            queues[entry + at.RANK] = queue_facts[row, number]
            queues[entry + at.OWNER] = queue_facts[row + 1, number] * at.QUEUE
            queues[entry + at.OF_TYPE] = queue_facts[row + 2, number] * at.QUEUE
            queues[entry + at.TENANT] = queue_facts[row + 3, number]
            queues[entry + at.TYPE] = queue_facts[row + 4, number]
            queues[entry + at.PRIORITY_OF] = queue_facts[row + 5, number]
            queues[entry + at.TARGET] = queue_facts[row + 6, number]
            if e[at.POLICY] == at.QUANTILE:
                queues[entry + at.TARGET_50] = queue_facts[row + 7, number]
                queues[entry + at.TARGET_90] = queue_facts[row + 8, number]
                queues[entry + at.TARGET_99] = queue_facts[row + 9, number]
    e[at.ACTIVE] = 0
    e[at.WAITING] = 0
    e[at.LAST_TO_LEAVE] = at.NONE
    if e[at.FIRST_TYPE] >= 0:
        begin_floor_window(e, queues)
    if e[at.POLICY] >= at.KEEPS_RANKS:
        ask(e, at.BEGIN, 0, 0, 0)
