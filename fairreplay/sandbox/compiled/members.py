"""Requests of the running list: joining it, leaving it, being preempted, finishing and being refused."""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import compiled, inlined
from fairreplay.sandbox.compiled.prefix import give_back
from fairreplay.sandbox.compiled.segments import bury_run, free_run
from fairreplay.sandbox.compiled.service import inverse_weight, owner_of, tell
from fairreplay.sandbox.compiled.waiting import push, remove
from fairreplay.sandbox.engine import LIVELOCK, NEVER_FITS, OK, REFUSED, Int32s, Int64s


@inlined
def blocks_for(e: Int64s, tokens: int) -> int:
    shift = e[at.SHIFT]
    if shift >= 0:
        return (tokens + e[at.BLOCK_SIZE] - 1) >> shift
    return (tokens + e[at.BLOCK_SIZE] - 1) // e[at.BLOCK_SIZE]


@inlined
def full_blocks(e: Int64s, tokens: int) -> int:
    shift = e[at.SHIFT]
    return tokens >> shift if shift >= 0 else tokens // e[at.BLOCK_SIZE]


@inlined
def final_tokens(prompt: int, output: int) -> int:
    """KV tokens held at the finish: the last sampled token is never computed."""
    return prompt + max(0, output - 1)


@inlined
def append_running(e: Int64s, run: Int64s, free_slots: Int64s) -> int:
    """A slot for a request that joins the end of the running list."""
    e[at.FREE_SLOTS] -= 1
    slot = free_slots[e[at.FREE_SLOTS] & at.INDEX] & at.INDEX
    last = run[at.PREVIOUS] & at.INDEX
    run[slot + at.PREVIOUS] = last
    run[slot + at.NEXT] = 0
    run[last + at.NEXT] = slot
    run[at.PREVIOUS] = slot
    e[at.RUNNING] += 1
    return slot


@inlined
def drop_running(e: Int64s, run: Int64s, free_slots: Int64s, slot: int) -> None:
    """Leave the running list; the slot's numbers stay readable until another request takes it."""
    before = run[slot + at.PREVIOUS] & at.INDEX
    after = run[slot + at.NEXT] & at.INDEX
    run[before + at.NEXT] = after
    run[after + at.PREVIOUS] = before
    free_slots[e[at.FREE_SLOTS] & at.INDEX] = slot
    e[at.FREE_SLOTS] += 1
    e[at.RUNNING] -= 1


@inlined
def release(
    e: Int64s,
    run: Int64s,
    kept: Int64s,
    blocks: Int64s,
    table: Int64s,
    own: Int64s,
    found: Int64s,
    slot: int,
    owner: int,
) -> None:
    """The slot's blocks come back; ``owner`` is its request if that will resume, else NONE."""
    if e[at.PREFIX] == at.BLOCKS:
        give_back(e, run, blocks, table, own, found, slot)
    else:
        release_counted(e, run, kept, blocks, slot, owner)


@inlined
def release_counted(e: Int64s, run: Int64s, kept: Int64s, blocks: Int64s, slot: int, owner: int) -> None:
    """As ``release``, where blocks are counted and not kept track of one by one."""
    if e[at.PREFIX]:
        _release_run(e, run, kept, blocks, slot, owner)
    else:
        e[at.FREE] += run[slot + at.OWNED]


@compiled
def _release_run(e: Int64s, run: Int64s, kept: Int64s, blocks: Int64s, slot: int, owner: int) -> None:
    owned = run[slot + at.OWNED]
    cached = min(run[slot + at.FILLED], owned)
    free_run(e, blocks, kept, owner, cached, owned - cached)


@inlined
def refuse(e: Int64s, out: Int64s, way: Int32s, request: int, reason: int) -> None:
    """A request that is not (or no longer) in any queue is turned away for good."""
    out[at.FINISHED, request] = e[at.CLOCK]
    out[at.STATUS, request] = REFUSED
    out[at.REASON, request] = reason
    way[request * at.WAY + at.PLACE] = at.GONE
    if e[at.CONTROL]:
        tell(e, at.TURNED_AWAY, request, reason)


@inlined
def complete(e: Int64s, run: Int64s, out: Int64s, way: Int32s, slot: int, request: int) -> None:
    """A request that runs in ``slot`` is done."""
    out[at.COMPUTED_TOKENS, request] = run[slot + at.DONE]
    complete_waiting(e, out, way, request)


@inlined
def complete_waiting(e: Int64s, out: Int64s, way: Int32s, request: int) -> None:
    """A request whose last token came while it waited after a preemption is done."""
    out[at.FINISHED, request] = e[at.CLOCK]
    out[at.STATUS, request] = OK
    way[request * at.WAY + at.PLACE] = at.GONE


@inlined
def charge(
    e: Int64s,
    queues: Int64s,
    weights: Int64s,
    request_weight: Int64s,
    queue: int,
    request: int,
    tokens: int,
    cost: int,
) -> None:
    """Tokens at ``cost`` units each, served to the tenant and the type whose queue this is."""
    if e[at.SERVED]:
        units = tokens * cost * inverse_weight(e, queues, weights, request_weight, queue, request)
        queues[owner_of(queues, queue) + at.SERVICE] += units
    if e[at.FIRST_TYPE] >= 0:
        queues[queues[queue + at.OF_TYPE] + at.SERVICE] += tokens


@inlined
def queue_at(run: Int64s, slot: int) -> int:
    """The queue that the request in ``slot`` came from."""
    return (run[slot + at.FLAGS] >> at.FLAG_BITS) & at.INDEX


@inlined
def victim_of(e: Int64s, run: Int64s, priority: Int64s, arrival: Int64s) -> int:
    """Who loses its blocks; by priority it is the largest (priority, arrival), the first if equal."""
    if e[at.VICTIM] == at.LAST_VICTIM:
        return run[at.PREVIOUS]
    if e[at.VICTIM] == at.LEAST_VICTIM:
        return _least_computed(e, run)
    slot = run[at.NEXT]
    victim = slot
    worst = priority[run[slot + at.REQUEST]]
    latest = arrival[run[slot + at.REQUEST]]
    slot = run[slot + at.NEXT]
    while slot != 0:
        request = run[slot + at.REQUEST]
        rank = priority[request]
        if rank > worst or (rank == worst and arrival[request] > latest):
            victim = slot
            worst = rank
            latest = arrival[request]
        slot = run[slot + at.NEXT]
    return victim


@compiled
def _least_computed(e: Int64s, run: Int64s) -> int:
    """The fewest computed tokens, the last if equal."""
    slot = run[at.NEXT]
    victim = slot
    least = np.int64(at.NO_CAP)
    while slot != 0:
        computed = run[slot + at.COMPUTED]
        if run[slot + at.FLAGS] & at.MEMBER:
            computed += e[at.TICK]
        if computed <= least:
            victim = slot
            least = computed
        slot = run[slot + at.NEXT]
    return victim


@compiled
def preempt(
    e: Int64s,
    run: Int64s,
    free_slots: Int64s,
    out: Int64s,
    kept: Int64s,
    queues: Int64s,
    active: Int64s,
    queue_rows: Int64s,
    way: Int32s,
    blocks: Int64s,
    table: Int64s,
    own: Int64s,
    found: Int64s,
    prompt: Int64s,
    slot: int,
) -> None:
    """The victim loses its blocks and all computed tokens, keeps its sampled ones, and waits at the head."""
    request = run[slot + at.REQUEST]
    resumes = blocks_for(e, final_tokens(run[slot + at.PROMPT], run[slot + at.OUTPUT])) <= e[at.USABLE]
    drop_running(e, run, free_slots, slot)
    release(e, run, kept, blocks, table, own, found, slot, request if resumes else at.NONE)
    kept[request * at.KEPT + at.KEPT_KNOWN] = run[slot + at.KNOWN]
    kept[request * at.KEPT + at.KEPT_BEST] = run[slot + at.BEST]
    out[at.COMPUTED_TOKENS, request] = run[slot + at.DONE]
    out[at.PREEMPTIONS, request] += 1
    e[at.PREEMPTED] += 1
    if resumes and e[at.CONTROL]:
        tell(e, at.LOST_BLOCKS, request, run[slot + at.COMPUTED])
    if resumes:
        way[request * at.WAY + at.PLACE] = at.BACK
        push(e, queues, active, queue_rows, way, prompt, request)
    else:
        refuse(e, out, way, request, np.int64(NEVER_FITS))


@compiled
def refuse_anywhere(
    e: Int64s,
    run: Int64s,
    free_slots: Int64s,
    out: Int64s,
    kept: Int64s,
    queues: Int64s,
    active: Int64s,
    queue_rows: Int64s,
    way: Int32s,
    blocks: Int64s,
    table: Int64s,
    own: Int64s,
    found: Int64s,
    prompt: Int64s,
    cut: Int64s,
    request: int,
) -> None:
    """Turn away a request that waits or runs, because nothing else would end a deadlock."""
    place = np.int64(way[request * at.WAY + at.PLACE])
    if place < 0:
        remove(e, queues, active, queue_rows, way, prompt, cut, request)
        if e[at.PREFIX] == at.RUNS:
            bury_run(e, blocks, kept, request)
    else:
        out[at.COMPUTED_TOKENS, request] = run[place + at.DONE]
        drop_running(e, run, free_slots, place)
        release(e, run, kept, blocks, table, own, found, place, np.int64(at.NONE))
    refuse(e, out, way, request, np.int64(LIVELOCK))
