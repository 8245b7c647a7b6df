"""SGLang's preemption, by any policy's rank: running requests that give way to a much more urgent head."""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import compiled, inlined
from fairreplay.sandbox.compiled.members import blocks_for, final_tokens, preempt, queue_at, refuse
from fairreplay.sandbox.compiled.prefix import look_up
from fairreplay.sandbox.compiled.segments import look_up_run
from fairreplay.sandbox.compiled.service import service, tell
from fairreplay.sandbox.compiled.waiting import next_queue, remove
from fairreplay.sandbox.engine import PREEMPTION_DENIED, Int32s, Int64s


@compiled
def may_give_way(e: Int64s, run: Int64s, queues: Int64s, active: Int64s, priority: Int64s) -> bool:
    """Whether anybody runs who is less urgent than a head by more than the threshold."""
    least = np.int64(at.NO_CAP)
    for place in range(e[at.ACTIVE]):
        least = min(least, queues[active[place] + at.RANK])
    slot = run[at.NEXT]
    while slot != 0:
        if priority[run[slot + at.REQUEST]] - least > e[at.GIVES_WAY]:
            return True
        slot = run[slot + at.NEXT]
    return False


@inlined
def urgency(
    e: Int64s, queues: Int64s, arrival: Int64s, prompt: Int64s, priority: Int64s, queue: int, request: int
) -> int:
    """The rank of a request that runs or waits, under the policies that preempt for a head."""
    policy = e[at.POLICY]
    if policy == at.VTC:
        return service(e, queues, queue)
    if policy == at.TYPE_PRIORITY:
        return queues[queue + at.RANK]
    if policy == at.SJF:
        return prompt[request]
    if policy == at.EDF:
        return arrival[request] + queues[queue + at.TARGET]
    return priority[request]


@compiled
def _lacks(
    e: Int64s,
    kept: Int64s,
    way: Int32s,
    blocks: Int64s,
    table: Int64s,
    found: Int64s,
    chains: Int64s,
    prefix_start: Int64s,
    prefix_tokens: int,
    prompt: Int64s,
    cut: Int64s,
    request: int,
) -> int:
    """Blocks that admission of ``request`` would need beyond the free ones, were it alone in its pass."""
    known = prompt[request]
    if way[request * at.WAY + at.PLACE] == at.BACK:
        known = kept[request * at.KEPT + at.KEPT_KNOWN]
    hit = np.int64(0)
    evictable = np.int64(0)
    if e[at.PREFIX]:
        if e[at.PREFIX] == at.BLOCKS:
            look_up(e, blocks, table, found, chains, prefix_start, prefix_tokens, prompt, request, known)
        else:
            look_up_run(e, blocks, kept, request)
        hit = e[at.HIT]
        evictable = e[at.EVICTABLE]
    computed = hit * e[at.BLOCK_SIZE]
    if e[at.CONTROL]:
        computed = max(computed, tell(e, at.IN_HOST, request, 0))
    if at.EXTRAS and e[at.HANDED_OVER] > 0 and way[request * at.WAY + at.PLACE] == at.NEW:
        known += 1
        computed = prompt[request]
    size = blocks_for(e, computed + min(known - computed, e[at.BUDGET]))
    if e[at.RESERVE]:
        size = blocks_for(e, final_tokens(prompt[request], cut[request]))
    if e[at.FULL_PROMPT]:
        size = max(size, blocks_for(e, known))
    watermark = e[at.WATERMARK] if e[at.RUNNING] > 0 else 0
    return size - hit + evictable + watermark - e[at.FREE]


@compiled
def make_room(
    e: Int64s,
    run: Int64s,
    free_slots: Int64s,
    out: Int64s,
    kept: Int64s,
    queues: Int64s,
    active: Int64s,
    head: Int64s,
    queue_rows: Int64s,
    way: Int32s,
    blocks: Int64s,
    table: Int64s,
    own: Int64s,
    found: Int64s,
    chains: Int64s,
    prefix_start: Int64s,
    prefix_tokens: int,
    arrival: Int64s,
    prompt: Int64s,
    cut: Int64s,
    priority: Int64s,
    request_weight: Int64s,
    weights: Int64s,
) -> None:
    """Preempt for the head what is less urgent by more than the threshold, if that lets it fit."""
    queue = next_queue(e, queues, active, head, way, kept, out, arrival, prompt, request_weight, weights)
    if queue < 0:
        return
    request = queues[queue + at.HEAD]
    lacking = _lacks(e, kept, way, blocks, table, found, chains, prefix_start, prefix_tokens, prompt, cut, request)
    if lacking <= 0 and e[at.RUNNING] < e[at.MOST_RUNNING]:
        return
    bound = urgency(e, queues, arrival, prompt, priority, queue, request) + e[at.GIVES_WAY]
    theirs = np.int64(0)
    count = np.int64(0)
    denied = np.int64(0)
    slot = run[at.NEXT]
    while slot != 0:
        other = run[slot + at.REQUEST]
        may = np.int64(0)
        if urgency(e, queues, arrival, prompt, priority, queue_at(run, slot), other) > bound:
            may = np.int64(1)
            if e[at.CONTROL]:
                may = tell(e, at.MAY_GIVE_WAY, other, run[slot + at.COMPUTED])
            theirs += may * run[slot + at.OWNED]
            count += may
            denied += 1 - may
        run[slot + at.TOKENS] = may  # not in use before the batch is made
        slot = run[slot + at.NEXT]
    if count == 0 or lacking > theirs:
        if denied > 0 and tell(e, at.DENIES, request, 0) and way[request * at.WAY + at.PLACE] == at.NEW:
            remove(e, queues, active, queue_rows, way, prompt, cut, request)
            refuse(e, out, way, request, np.int64(PREEMPTION_DENIED))
        return
    while count > 0 and (lacking > 0 or e[at.RUNNING] >= e[at.MOST_RUNNING]):
        slot = run[at.NEXT]
        victim = np.int64(0)
        least = np.int64(0)
        while slot != 0:
            if run[slot + at.TOKENS]:
                other = run[slot + at.REQUEST]
                rank = urgency(e, queues, arrival, prompt, priority, queue_at(run, slot), other)
                if victim == 0 or rank > least or (rank == least and other > run[victim + at.REQUEST]):
                    victim = slot
                    least = rank
            slot = run[slot + at.NEXT]
        if e[at.CONTROL]:
            tell(e, at.GAVE_WAY, run[victim + at.REQUEST], run[victim + at.COMPUTED])
        preempt(
            e, run, free_slots, out, kept, queues, active, queue_rows, way, blocks, table, own, found, prompt, victim
        )  # fmt: skip
        e[at.YIELDED] += 1
        e[at.YIELDED_TO] = request
        count -= 1
        lacking = _lacks(
            e, kept, way, blocks, table, found, chains, prefix_start, prefix_tokens, prompt, cut, request
        )  # fmt: skip
