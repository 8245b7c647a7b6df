"""The waiting queues, as ``queues.WaitingQueues`` and the policies define them, in arrays.

Requests whose order the policy cannot tell apart share a queue, sorted by request index: all of them under ``fcfs``,
those of a priority, of a tenant (``vtc``) or of a place in the type order, and for ``sjf`` those of one (tenant, type,
priority), because there the prompt of each queue's head decides.
"""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import compiled, inlined, prefetch
from fairreplay.sandbox.engine import Int64s

Int32s = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


@inlined
def queue_of(e: Int64s, queue_rows: Int64s, request: int) -> int:
    row = e[at.QUEUE_ROW]
    return 0 if row < 0 else queue_rows[row & at.INDEX, request] * at.QUEUE


@inlined
def service(e: Int64s, queues: Int64s, queue: int) -> int:
    """Service counter of the tenant whose queue this is."""
    return queues[queue + at.SERVICE] + queues[queue + at.RATE] * (e[at.TICK] - e[at.LAG])


@inlined
def rerank(e: Int64s, queues: Int64s, queue: int, prompt: Int64s) -> None:
    """The queue has a new head."""
    if e[at.POLICY] == at.SJF:
        queues[queue + at.RANK] = prompt[queues[queue + at.HEAD]]


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
        active[e[at.ACTIVE]] = queue
        e[at.ACTIVE] += 1
        rerank(e, queues, queue, prompt)
    elif request < head:
        queues[queue + at.HEAD] = request
        way[place + at.FOLLOWER] = head
        rerank(e, queues, queue, prompt)
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
    rerank(e, queues, queue, prompt)
    # it is needed when this queue's turn comes, and with many queues it is in no cache
    prefetch(way, follower * at.WAY)
    prefetch(prompt, follower)
    prefetch(cut, follower)


@compiled
def _deactivate(e: Int64s, queues: Int64s, active: Int64s, queue: int) -> None:
    """Nobody waits in ``queue`` any more."""
    queues[queue + at.HEAD] = at.NONE
    last = active[e[at.ACTIVE] - 1]
    place = queues[queue + at.ACTIVE_AT]
    active[place] = last
    queues[last + at.ACTIVE_AT] = place
    e[at.ACTIVE] -= 1
    if e[at.POLICY] == at.VTC:
        e[at.LAST_TO_LEAVE] = queue


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
def next_queue(e: Int64s, queues: Int64s, active: Int64s) -> int:
    """The queue whose head goes next; somebody waits."""
    if e[at.ACTIVE] == 1:
        return active[0] & at.INDEX
    return _lowest_queue(e, queues, active) & at.INDEX


@compiled
def _lowest_queue(e: Int64s, queues: Int64s, active: Int64s) -> int:
    best = active[0] & at.INDEX
    if e[at.POLICY] == at.VTC:
        least = service(e, queues, best)
        for place in range(1, e[at.ACTIVE]):
            queue = active[place] & at.INDEX
            rank = service(e, queues, queue)
            if rank < least or (rank == least and queue < best):
                best = queue
                least = rank
        return best
    least = queues[best + at.RANK]
    for place in range(1, e[at.ACTIVE]):
        queue = active[place] & at.INDEX
        rank = queues[queue + at.RANK]
        if rank < least or (rank == least and queues[queue + at.HEAD] < queues[best + at.HEAD]):
            best = queue
            least = rank
    return best


@inlined
def greet(e: Int64s, queues: Int64s, active: Int64s, queue_rows: Int64s, request: int) -> None:
    """The policy sees ``request`` arrive: under ``vtc`` a tenant that returns is lifted."""
    if e[at.POLICY] != at.VTC or e[at.LIFT] == 0:
        return
    queue = queue_of(e, queue_rows, request)
    if queues[queue + at.HEAD] >= 0:
        return
    if e[at.ACTIVE] > 0:
        floor = service(e, queues, active[0])
        for place in range(1, e[at.ACTIVE]):
            floor = min(floor, service(e, queues, active[place]))
    elif e[at.LAST_TO_LEAVE] >= 0:
        floor = service(e, queues, e[at.LAST_TO_LEAVE])
    else:
        return
    own = service(e, queues, queue)
    if floor > own:
        queues[queue + at.SERVICE] += floor - own


@inlined
def inverse_weight(e: Int64s, weights: Int64s, request_weight: Int64s, queue: int, request: int) -> int:
    """What a token of ``request`` counts under ``vtc``, where a queue is a tenant's."""
    if e[at.OWN_WEIGHTS] and request_weight[request] != 0:
        return request_weight[request]
    return weights[e[at.WEIGHTS], queue // at.QUEUE]


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
def clear_queues(e: Int64s, queues: Int64s, queue_ranks: Int64s) -> None:
    """Empty queues and fresh counters for the policy in force."""
    row = e[at.QUEUE_ROW]
    for number in range(e[at.QUEUE_COUNT]):
        queue = number * at.QUEUE
        queues[queue + at.HEAD] = at.NONE
        queues[queue + at.TAIL] = at.NONE
        queues[queue + at.RANK] = queue_ranks[row, number] if row >= 0 else 0
        queues[queue + at.SERVICE] = 0
        queues[queue + at.RATE] = 0
    e[at.ACTIVE] = 0
    e[at.WAITING] = 0
    e[at.LAST_TO_LEAVE] = at.NONE
