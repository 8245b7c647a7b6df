"""SGLang's preemption by priority: running requests that give way to a much more urgent head."""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import compiled
from fairreplay.sandbox.compiled.members import blocks_for, final_tokens, preempt
from fairreplay.sandbox.compiled.prefix import look_up
from fairreplay.sandbox.compiled.segments import look_up_run
from fairreplay.sandbox.compiled.waiting import next_queue
from fairreplay.sandbox.engine import Int32s, Int64s


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
    bound = priority[request] + e[at.GIVES_WAY]
    theirs = np.int64(0)
    count = 0
    slot = run[at.NEXT]
    while slot != 0:
        if priority[run[slot + at.REQUEST]] > bound:
            theirs += run[slot + at.OWNED]
            count += 1
        slot = run[slot + at.NEXT]
    lacking = np.int64(0)
    if count > 0:
        lacking = _lacks(
            e, kept, way, blocks, table, found, chains, prefix_start, prefix_tokens, prompt, cut, request
        )  # fmt: skip
    if lacking > theirs:
        return
    while count > 0 and (lacking > 0 or e[at.RUNNING] >= e[at.MOST_RUNNING]):
        slot = run[at.NEXT]
        victim = np.int64(0)
        while slot != 0:
            other = run[slot + at.REQUEST]
            if priority[other] > bound:
                worse = victim == 0
                if not worse:
                    worst = run[victim + at.REQUEST]
                    worse = priority[other] > priority[worst] or (priority[other] == priority[worst] and other > worst)
                if worse:
                    victim = slot
            slot = run[slot + at.NEXT]
        preempt(
            e, run, free_slots, out, kept, queues, active, queue_rows, way, blocks, table, own, found, prompt, victim
        )  # fmt: skip
        e[at.YIELDED] += 1
        e[at.YIELDED_TO] = request
        count -= 1
        lacking = _lacks(
            e, kept, way, blocks, table, found, chains, prefix_start, prefix_tokens, prompt, cut, request
        )  # fmt: skip
