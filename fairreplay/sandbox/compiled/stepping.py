"""One pass of the engine, request by request: what ``reference`` says, in arrays."""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.extras import (
    draft_step_ps,
    has_other_precision,
    mark_drafts,
    more_tokens,
    switch_precision,
    token_ps,
)
from fairreplay.sandbox.compiled.jit import compiled, inlined
from fairreplay.sandbox.compiled.members import (
    append_running,
    blocks_for,
    charge,
    complete,
    complete_waiting,
    drop_running,
    final_tokens,
    full_blocks,
    preempt,
    queue_at,
    release,
    victim_of,
)
from fairreplay.sandbox.compiled.prefix import fill, look_up, take_blocks, take_hit
from fairreplay.sandbox.compiled.segments import bury_run, look_up_run, take_run
from fairreplay.sandbox.compiled.service import ask, mark_stale, queue_of, tell
from fairreplay.sandbox.compiled.waiting import next_queue, remove, remove_head
from fairreplay.sandbox.engine import Int32s, Int64s


@inlined
def is_prefilling(run: Int64s, slot: int) -> bool:
    return run[slot + at.COMPUTED] < max(run[slot + at.PROMPT], run[slot + at.KNOWN] - 1)


@inlined
def prefill_cap(e: Int64s) -> int:
    """Most prefill tokens that one request may take in this pass; a lone request is not capped."""
    unfinished = e[at.RUNNING] + e[at.WAITING]
    if e[at.THRESHOLD] == 0 or (unfinished <= 1 and e[at.OLDER] & at.LONE_CAPPED == 0):
        return at.NO_CAP
    if e[at.ADAPTIVE]:
        return max(e[at.THRESHOLD], e[at.BUDGET] // max(1, unfinished))
    return e[at.THRESHOLD]


@inlined
def _todo(run: Int64s, slot: int) -> int:
    """Tokens that a pass could give; 0 while the request only waits for its last token."""
    known = run[slot + at.KNOWN] + run[slot + at.IN_FLIGHT]
    output = run[slot + at.OUTPUT]
    if output != 0 and known - run[slot + at.PROMPT] >= output:
        return 0
    return known - run[slot + at.COMPUTED]


@compiled
def schedule_running(
    e: Int64s,
    run: Int64s,
    free_slots: Int64s,
    batch: Int64s,
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
    chains: Int64s,
    prefix_start: Int64s,
    prefix_tokens: int,
    arrival: Int64s,
    prompt: Int64s,
    priority: Int64s,
    prefilling_only: bool,
    budget: int,
) -> int:
    """Tokens for running requests in list order; preempts where blocks are not there. Returns the budget left."""
    cap = e[at.CAP]
    by_order = e[at.VICTIM] == at.LAST_VICTIM
    prefix = e[at.PREFIX] != 0
    by_block = e[at.PREFIX] == at.BLOCKS
    slot = run[at.NEXT] & at.INDEX
    while slot != 0 and budget > 0:
        if prefilling_only and not is_prefilling(run, slot):
            slot = run[slot + at.NEXT] & at.INDEX
            continue
        computed = run[slot + at.COMPUTED]
        todo = _todo(run, slot)
        if at.EXTRAS and e[at.DRAFTS] > 0 and todo > 0:
            todo += more_tokens(e, run, slot, is_prefilling(run, slot))
        tokens = min(min(todo, cap), min(budget, e[at.MODEL_LEN] - computed - 1))
        if tokens <= 0:
            slot = run[slot + at.NEXT] & at.INDEX
            continue
        needed = blocks_for(e, computed + tokens) - run[slot + at.OWNED]
        stays = True
        while needed > e[at.FREE]:
            victim = victim_of(e, run, priority, arrival)
            if not by_order:
                for place in range(e[at.BATCH]):
                    if batch[place] == victim:
                        if e[at.OLDER] & at.VICTIM_TOKENS_LOST == 0:
                            budget += run[victim + at.TOKENS]
                        for later in range(place + 1, e[at.BATCH]):
                            batch[later - 1] = batch[later]
                        e[at.BATCH] -= 1
                        break
            preempt(
                e, run, free_slots, out, kept, queues, active, queue_rows, way,
                blocks, table, own, found, prompt, victim,
            )  # fmt: skip
            if victim == slot:
                stays = False
                break
        if stays:
            if needed > 0:
                if by_block:
                    take_blocks(e, run, blocks, table, own, slot, needed)
                else:
                    run[slot + at.OWNED] += needed
                    e[at.FREE] -= needed
            if not prefix or full_blocks(e, computed + tokens) <= run[slot + at.FILLED]:
                pass
            elif not by_block:
                fill_run(e, run, slot, min(computed + tokens, run[slot + at.KNOWN]))
            else:
                fill(
                    e, run, blocks, table, own, chains, prefix_start, prefix_tokens, prompt, slot,
                    min(computed + tokens, run[slot + at.KNOWN]),
                )  # fmt: skip
            run[slot + at.TOKENS] = tokens
            if at.EXTRAS and e[at.DRAFTS] > 0:
                mark_drafts(run, slot, is_prefilling(run, slot))
            batch[e[at.BATCH] & at.INDEX] = slot
            e[at.BATCH] += 1
            budget -= tokens
        elif by_order or e[at.OLDER] & at.SELF_PREEMPTION_ENDS != 0:
            break
        slot = run[slot + at.NEXT] & at.INDEX
    return budget


@inlined
def try_head(
    e: Int64s,
    out: Int64s,
    kept: Int64s,
    queues: Int64s,
    active: Int64s,
    head: Int64s,
    way: Int32s,
    blocks: Int64s,
    table: Int64s,
    found: Int64s,
    chains: Int64s,
    prefix_start: Int64s,
    prefix_tokens: int,
    arrival: Int64s,
    prompt: Int64s,
    cut: Int64s,
    request_weight: Int64s,
    weights: Int64s,
    budget: int,
) -> tuple[int, int, int]:
    """The queue whose head goes next, the tokens and blocks for it now; (NONE, 0, 0) if it does not fit."""
    if e[at.POLICY] == at.DRR and e[at.PREFIX] == at.BLOCKS:
        find_cached(e, queues, active, way, blocks, table, found, chains, prefix_start, prefix_tokens, prompt)
    queue = next_queue(e, queues, active, head, way, kept, out, arrival, prompt, request_weight, weights)
    if queue < 0:
        return at.NONE, 0, 0
    request = queues[queue + at.HEAD] & at.INDEX
    known = prompt[request]
    if way[request * at.WAY + at.PLACE] == at.BACK:
        known = kept[request * at.KEPT + at.KEPT_KNOWN]
    hit = 0
    evictable = 0
    finds = e[at.PREFIX] != 0
    if at.EXTRAS and has_other_precision(e, request):
        if e[at.RUNNING] > 0:
            return at.NONE, 0, 0
        if e[at.DROPS] > 0:
            finds = False
            e[at.HIT] = 0
    if finds:
        if e[at.PREFIX] == at.BLOCKS:
            look_up(e, blocks, table, found, chains, prefix_start, prefix_tokens, prompt, request, known)
        else:
            look_up_run(e, blocks, kept, request)
        hit = e[at.HIT]
        evictable = e[at.EVICTABLE]
    cached = hit * e[at.BLOCK_SIZE]
    computed = cached
    if e[at.CONTROL]:
        computed = max(cached, tell(e, at.IN_HOST, request, 0))
    if at.EXTRAS and e[at.HANDED_OVER] > 0 and way[request * at.WAY + at.PLACE] == at.NEW:
        known += 1
        computed = prompt[request]
    wanted = min(known - computed, e[at.CAP])
    if wanted > budget and e[at.CHUNKED] == 0:
        return at.NONE, 0, 0
    tokens = min(wanted, budget)
    if e[at.RESERVE]:
        size = blocks_for(e, final_tokens(prompt[request], cut[request]))
    else:
        size = blocks_for(e, computed + tokens)
    checked = size
    if e[at.FULL_PROMPT]:
        checked = max(size, blocks_for(e, known))
    watermark = e[at.WATERMARK] if e[at.RUNNING] > 0 else 0
    if checked - hit + evictable + watermark > e[at.FREE]:
        return at.NONE, 0, 0
    if e[at.POLICY] >= at.KEEPS_RANKS and way[request * at.WAY + at.PLACE] == at.NEW:
        ask(e, at.TURN, queue, request, cached)
    return queue, tokens, size


@compiled
def find_cached(
    e: Int64s,
    queues: Int64s,
    active: Int64s,
    way: Int32s,
    blocks: Int64s,
    table: Int64s,
    found: Int64s,
    chains: Int64s,
    prefix_start: Int64s,
    prefix_tokens: int,
    prompt: Int64s,
) -> None:
    """Look every head up in the prefix cache: what it holds of them changes their price."""
    for place in range(e[at.ACTIVE]):
        queue = active[place] & at.INDEX
        request = queues[queue + at.HEAD] & at.INDEX
        if way[request * at.WAY + at.PLACE] == at.NEW:
            look_up(e, blocks, table, found, chains, prefix_start, prefix_tokens, prompt, request, prompt[request])
            queues[queue + at.CACHED_NOW] = e[at.HIT] * e[at.BLOCK_SIZE]
            mark_stale(e, queues, active, queue)


@compiled
def admit(
    e: Int64s,
    run: Int64s,
    free_slots: Int64s,
    batch: Int64s,
    out: Int64s,
    kept: Int64s,
    queues: Int64s,
    active: Int64s,
    head: Int64s,
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
    request_weight: Int64s,
    weights: Int64s,
    budget: int,
) -> None:
    """Waiting requests by rank, until a head does not fit."""
    while e[at.WAITING] > 0 and budget > 0 and e[at.RUNNING] < e[at.MOST_RUNNING]:
        queue, tokens, size = try_head(
            e, out, kept, queues, active, head, way, blocks, table, found, chains, prefix_start, prefix_tokens,
            arrival, prompt, cut, request_weight, weights, budget,
        )  # fmt: skip
        if queue < 0:
            return
        request = queues[queue + at.HEAD]
        if e[at.YIELDED] > 0 and request != e[at.YIELDED_TO]:
            return
        remove_head(e, queues, active, way, prompt, cut, queue)
        slot = seat(e, run, free_slots, out, kept, way, prompt, cut, queue, request)
        if at.EXTRAS and e[at.PRECISION_SWITCH] > 0:
            switch_precision(e, blocks, table, request)
        cached = 0
        if e[at.PREFIX] == at.RUNS:
            cached = seat_run(e, run, kept, blocks, slot, request, size)
            fill_run(e, run, slot, min(cached + tokens, run[slot + at.KNOWN]))
        elif e[at.PREFIX]:
            cached = e[at.HIT] * e[at.BLOCK_SIZE]
            filled = cached
            if e[at.CONTROL]:
                filled = max(cached, tell(e, at.IN_HOST, request, 0))
            take_hit(e, run, blocks, own, found, slot)
            take_blocks(e, run, blocks, table, own, slot, size - e[at.HIT])
            fill(
                e, run, blocks, table, own, chains, prefix_start, prefix_tokens, prompt, slot,
                min(filled + tokens, run[slot + at.KNOWN]),
            )  # fmt: skip
        else:
            run[slot + at.OWNED] = size
            e[at.FREE] -= size
        if e[at.CONTROL]:
            cached = let_in(e, run, slot, request, cached)
        run[slot + at.COMPUTED] = cached
        if at.EXTRAS and e[at.HANDED_OVER] > 0:
            hand_over(run, slot)
        run[slot + at.TOKENS] = tokens
        if run[slot + at.FLAGS] & at.RESUMED == 0:
            out[at.CACHED, request] = cached
            first_admission(e, run, out, queues, weights, request_weight, slot)
        batch[e[at.BATCH] & at.INDEX] = slot
        e[at.BATCH] += 1
        budget -= tokens


@compiled
def let_in(e: Int64s, run: Int64s, slot: int, request: int, cached: int) -> int:
    """Controls see a request in its seat; gives the tokens that it need not compute."""
    if run[slot + at.FLAGS] & at.RESUMED == 0:
        tell(e, at.ADMITTED, request, cached)
        return cached
    in_host = tell(e, at.IN_HOST, request, 0)
    tell(e, at.CAME_BACK, request, cached)
    return max(cached, in_host)


@inlined
def seat(
    e: Int64s,
    run: Int64s,
    free_slots: Int64s,
    out: Int64s,
    kept: Int64s,
    way: Int32s,
    prompt: Int64s,
    cut: Int64s,
    queue: int,
    request: int,
) -> int:
    """The end of the running list for a request that left its queue; blocks and tokens are still to be set."""
    slot = append_running(e, run, free_slots)
    run[slot + at.REQUEST] = request
    run[slot + at.PROMPT] = prompt[request]
    run[slot + at.OUTPUT] = cut[request]
    flags = at.HELD if e[at.RESERVE] else 0
    if way[request * at.WAY + at.PLACE] == at.BACK:
        flags |= at.RESUMED
        run[slot + at.DONE] = out[at.COMPUTED_TOKENS, request]
        run[slot + at.KNOWN] = kept[request * at.KEPT + at.KEPT_KNOWN]
        run[slot + at.BEST] = kept[request * at.KEPT + at.KEPT_BEST]
    else:
        run[slot + at.DONE] = 0
        run[slot + at.KNOWN] = prompt[request]
        run[slot + at.BEST] = 0
    run[slot + at.COMPUTED] = 0
    run[slot + at.IN_FLIGHT] = 0
    run[slot + at.FLAGS] = flags | (queue << at.FLAG_BITS)
    way[request * at.WAY + at.PLACE] = slot
    return slot


@compiled
def hand_over(run: Int64s, slot: int) -> None:
    """The prompt was computed elsewhere, and gave the first output token."""
    if run[slot + at.FLAGS] & at.RESUMED == 0:
        run[slot + at.KNOWN] = run[slot + at.PROMPT] + 1
        run[slot + at.COMPUTED] = run[slot + at.PROMPT]
        run[slot + at.BEST] = run[slot + at.PROMPT]


@compiled
def seat_run(e: Int64s, run: Int64s, kept: Int64s, blocks: Int64s, slot: int, request: int, size: int) -> int:
    """Blocks for a request that was looked up last, its hit among them; gives the tokens of the hit."""
    take_run(e, blocks, kept, request, size)
    run[slot + at.OWNED] = size
    run[slot + at.FILLED] = e[at.HIT]
    return e[at.HIT] * e[at.BLOCK_SIZE]


@inlined
def fill_run(e: Int64s, run: Int64s, slot: int, tokens: int) -> None:
    """The blocks that the first ``tokens`` tokens fill enter the cache."""
    run[slot + at.FILLED] = max(run[slot + at.FILLED], full_blocks(e, tokens))


@inlined
def first_admission(
    e: Int64s, run: Int64s, out: Int64s, queues: Int64s, weights: Int64s, request_weight: Int64s, slot: int
) -> None:
    request = run[slot + at.REQUEST] & at.INDEX
    out[at.SCHEDULED, request] = e[at.CLOCK]
    charge(e, queues, weights, request_weight, queue_at(run, slot), request, run[slot + at.PROMPT], e[at.PROMPT_COST])


@compiled
def start(e: Int64s, run: Int64s, batch: Int64s, out: Int64s, flights: Int64s) -> tuple[int, int, int]:
    """Start the step of the batch: (duration, prefilling requests, tokens)."""
    total = 0
    prefill_tokens = 0
    decodes = 0
    context = 0
    progress = False
    flight = (e[at.FIRST_FLYING] + e[at.FLYING]) & 1
    outputs = 0
    drawn_ps = np.int64(0)  # what tokens cost whose experts differ
    for place in range(e[at.BATCH]):
        slot = batch[place] & at.INDEX
        request = run[slot + at.REQUEST] & at.INDEX
        tokens = run[slot + at.TOKENS]
        computed = run[slot + at.COMPUTED]
        best = run[slot + at.BEST]
        total += tokens
        if is_prefilling(run, slot):
            prefill_tokens += tokens
        else:
            decodes += 1
        after = computed + tokens
        run[slot + at.DONE] += tokens
        if computed < best:
            out[at.RECOMPUTED, request] += min(after, best) - computed
        if after > best:
            progress = True
            run[slot + at.BEST] = after
        context += after
        samples = after - run[slot + at.KNOWN] - run[slot + at.IN_FLIGHT] + 1
        if at.EXTRAS and e[at.TOKEN_COSTS] > 0:
            drawn_ps += token_ps(e, run, slot, is_prefilling(run, slot))
        run[slot + at.COMPUTED] = after
        if samples > 0:
            flights[flight, 2 * outputs + 2] = request
            flights[flight, 2 * outputs + 3] = slot
            if at.EXTRAS and e[at.DRAFTS] > 0:
                flights[flight, 2 * outputs + 3] = slot + (samples << at.INDEX_WIDTH)
            outputs += 1
            if run[slot + at.OUTPUT] != 0:
                run[slot + at.IN_FLIGHT] += samples
    if progress:
        e[at.IDLE_PASSES] = 0
    duration = (
        e[at.BASE_PS] + e[at.PREFILL_PS] * prefill_tokens + e[at.DECODE_PS] * decodes + e[at.CONTEXT_PS] * context
    )
    if at.EXTRAS:
        if e[at.TOKEN_COSTS] > 0:
            duration = e[at.BASE_PS] + drawn_ps + e[at.CONTEXT_PS] * context
        if e[at.DRAFTS] > 0:
            duration += draft_step_ps(e, run, batch)
    if e[at.CONTROL]:
        duration += tell(e, at.STARTED, 0, total)
    e[at.BUSY_UNTIL] = max(e[at.CLOCK], e[at.BUSY_UNTIL]) + duration
    flights[flight, 0] = e[at.BUSY_UNTIL]
    flights[flight, 1] = outputs
    e[at.FLYING] += 1
    return duration, e[at.BATCH] - decodes, total


@compiled
def take_output(
    e: Int64s,
    run: Int64s,
    free_slots: Int64s,
    out: Int64s,
    kept: Int64s,
    flights: Int64s,
    queues: Int64s,
    active: Int64s,
    queue_rows: Int64s,
    way: Int32s,
    blocks: Int64s,
    table: Int64s,
    own: Int64s,
    found: Int64s,
    chains: Int64s,
    prefix_start: Int64s,
    prefix_tokens: int,
    prompt: Int64s,
    cut: Int64s,
    request_weight: Int64s,
    weights: Int64s,
) -> None:
    """Deliver the older step's samples in batch order; finished requests give their blocks back at once."""
    flight = e[at.FIRST_FLYING]
    e[at.FIRST_FLYING] = 1 - flight
    e[at.FLYING] -= 1
    clock = flights[flight, 0]
    e[at.CLOCK] = clock
    prefix = e[at.PREFIX] != 0
    by_block = e[at.PREFIX] == at.BLOCKS
    by_service = e[at.SERVED] != 0 or e[at.FIRST_TYPE] >= 0
    for place in range(flights[flight, 1]):
        request = flights[flight, 2 * place + 2] & at.INDEX
        slot = flights[flight, 2 * place + 3] & at.INDEX
        where = np.int64(way[request * at.WAY + at.PLACE])
        if where == at.GONE:
            continue
        # preempted meanwhile: nobody is admitted in that pass, so it still waits
        stays = where == slot
        output = cut[request]
        first = prompt[request]
        known = run[slot + at.KNOWN] if stays else kept[request * at.KEPT + at.KEPT_KNOWN]
        samples = np.int64(1)
        if at.EXTRAS and e[at.DRAFTS] > 0:
            samples = flights[flight, 2 * place + 3] >> at.INDEX_WIDTH
        if output != 0:
            known += samples
            if stays:
                run[slot + at.KNOWN] = known
                run[slot + at.IN_FLIGHT] -= samples
                if not prefix or known - first >= output or full_blocks(e, known) <= run[slot + at.FILLED]:
                    pass
                elif not by_block:
                    fill_run(e, run, slot, min(run[slot + at.COMPUTED] - run[slot + at.IN_FLIGHT], known))
                else:
                    fill(
                        e, run, blocks, table, own, chains, prefix_start, prefix_tokens, prompt, slot,
                        min(run[slot + at.COMPUTED] - run[slot + at.IN_FLIGHT], known),
                    )  # fmt: skip
            else:
                kept[request * at.KEPT + at.KEPT_KNOWN] = known
            if by_service:
                queue = queue_of(e, queue_rows, request)
                charge(e, queues, weights, request_weight, queue, request, samples, e[at.OUTPUT_COST])
            if e[at.CONTROL]:
                tell(e, at.TOKENS_SEEN, request, samples)
        if known - first <= 1:
            out[at.FIRST_TOKEN, request] = clock
            if e[at.CONTROL]:
                tell(e, at.FIRST_TOKEN_SEEN, request, 0)
            if e[at.LISTENS] & at.FIRST_TOKENS:
                queue = queue_of(e, queue_rows, request)
                ask(e, at.FIRST_TOKEN_CAME, queue, request, clock)
        if known - first >= output:
            if e[at.LISTENS] & at.FINISHES:
                ask(e, at.FINISH, queue_of(e, queue_rows, request), request, output)
            if e[at.CONTROL]:
                tell(e, at.DONE_WITH, request, 0)
            if stays:
                drop_running(e, run, free_slots, slot)
                release(e, run, kept, blocks, table, own, found, slot, np.int64(at.NONE))
                complete(e, run, out, way, slot, request)
            else:
                remove(e, queues, active, queue_rows, way, prompt, cut, request)
                if e[at.PREFIX] == at.RUNS:
                    bury_run(e, blocks, kept, request)
                complete_waiting(e, out, way, request)


@compiled
def count_prefilling(run: Int64s) -> int:
    count = 0
    slot = run[at.NEXT] & at.INDEX
    while slot != 0:
        if is_prefilling(run, slot):
            count += 1
        slot = run[slot + at.NEXT] & at.INDEX
    return count
