"""Passes that cost the same however many requests run.

Decoders are members of a cohort that advances by one tick a decode step. What a step needs to know of them are sums:
how many there are, their computed tokens, how many need a block at each tick (mod block size), the service that each
tenant receives a tick, and who finishes when. A member's computed tokens are TICK plus a number that never changes.

Sums suffice because, without prefix caching, order within a batch decides nothing: blocks are counted, samples are
delivered at one instant, and if blocks are short the victims are the first m in the order of victims, with the
smallest m for which those that stay get their blocks. Only a budget that does not reach all running requests makes
their order matter; such passes, and all others outside these conditions, are stepped one by one.

While only members run, the next tick differs from this one in nothing but numbers, until somebody finishes, blocks are
short, settings change or a request arrives that could be admitted: these passes are leapt over at once. T(k), the time
of k ticks, is a quadratic in k.
"""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.calendar import leave
from fairreplay.sandbox.compiled.changes import refusal
from fairreplay.sandbox.compiled.cohort import (
    add_rate,
    deliver,
    drop_rate,
    expect,
    finish_members,
    is_decoding,
    join,
    part,
    turn_dues,
)
from fairreplay.sandbox.compiled.jit import compiled, inlined
from fairreplay.sandbox.compiled.members import (
    blocks_for,
    charge,
    complete,
    drop_running,
    full_blocks,
    preempt,
    queue_at,
    release_counted,
    victim_of,
)
from fairreplay.sandbox.compiled.service import ask
from fairreplay.sandbox.compiled.stepping import first_admission, hand_over, prefill_cap, seat, seat_run, try_head
from fairreplay.sandbox.compiled.sums import add_pass, reach
from fairreplay.sandbox.compiled.ticks import advance_ticks, growth_of, ticks_ps, ticks_until, ticks_with_blocks
from fairreplay.sandbox.compiled.waiting import remove_head
from fairreplay.sandbox.engine import NO_REASON, PASSES_WITHOUT_PROGRESS_MAX, PS_PER_SECOND, Int32s, Int64s

PASSES_OF_HOLD = 8
"""Passes that are stepped one by one after one that could not be counted."""


@inlined
def give_parts_tokens(e: Int64s, run: Int64s, parts: Int64s, left: int) -> int:
    """Tokens for running prefills in list order; returns the budget left, or -1 if members' order matters."""
    cap = e[at.CAP]
    for place in range(e[at.PARTS]):
        slot = parts[place] & at.INDEX
        wanted = min(run[slot + at.KNOWN] - run[slot + at.COMPUTED], cap)
        if wanted > left:
            other = run[at.PREVIOUS]
            for back in range(e[at.PARTS] - 1, -1, -1):
                if other != parts[back]:
                    return -1
                other = run[other + at.PREVIOUS]
            wanted = left
        run[slot + at.TOKENS] = wanted
        left -= wanted
    return left


@inlined
def part_growth(e: Int64s, run: Int64s, slot: int) -> int:
    if run[slot + at.TOKENS] == 0:
        return 0
    return max(0, blocks_for(e, run[slot + at.COMPUTED] + run[slot + at.TOKENS]) - run[slot + at.OWNED])


@compiled
def free_by_preemption(
    e: Int64s,
    run: Int64s,
    free_slots: Int64s,
    parts: Int64s,
    calendar: Int64s,
    marks: Int64s,
    phases: Int64s,
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
    weights: Int64s,
    arrival: Int64s,
    prompt: Int64s,
    priority: Int64s,
    request_weight: Int64s,
    demand: int,
) -> int:
    """Preempt until the rest has the blocks that it needs; returns how many these are."""
    while demand > e[at.FREE]:
        slot = victim_of(e, run, priority, arrival)
        if run[slot + at.FLAGS] & at.MEMBER:
            before = phases[e[at.PHASE]]
            leave(e, run, calendar, marks, slot)
            part(e, run, phases, slot)
            drop_rate(e, run, queues, weights, request_weight, slot)
            demand -= before - phases[e[at.PHASE]]
        else:
            demand -= part_growth(e, run, slot)
            place = 0
            while parts[place] != slot:
                place += 1
            for later in range(place + 1, e[at.PARTS]):
                parts[later - 1] = parts[later]
            e[at.PARTS] -= 1
        preempt(e, run, free_slots, out, kept, queues, active, queue_rows, way, blocks, table, own, found, prompt, slot)
    return demand


@inlined
def next_bad_arrival(e: Int64s, prompt: Int64s, cut: Int64s) -> int:
    """The next request that will be refused at the door, as an index; the number of requests if there is none."""
    request = max(e[at.NEXT_BAD], e[at.NEXT_ARRIVAL])
    while request < len(prompt) and refusal(e, prompt, cut, request) == NO_REASON:
        request += 1
    e[at.NEXT_BAD] = request
    return request


@inlined
def spread(e: Int64s, phases: Int64s, sums: Int64s, rows: Int64s, begin: int, first: int, growth: int, k: int) -> None:
    """Add ``k`` ticks to the sums of their seconds; the first starts at ``begin``, and as many run and wait as now."""
    size = e[at.BLOCK_SIZE]
    used = e[at.USABLE] - e[at.FREE]
    phase = e[at.PHASE]
    done = np.int64(0)
    while done < k:
        start_ps = begin + ticks_ps(first, growth, done)
        reach(e, sums, rows, start_ps)
        boundary = (e[at.SECOND] + 1) * PS_PER_SECOND - e[at.SECOND_OFFSET] - begin
        until = k
        if ticks_ps(first, growth, k - 1) >= boundary:
            until = ticks_until(first, growth, boundary)
        count = until - done
        # a block that is taken at the first of these ticks counts for all of them, one taken at the last for one
        block_ticks = 0
        for offset in range(min(size, count)):
            terms = (count - offset + size - 1) // size
            needed = phases[(phase + offset) % size]
            block_ticks += needed * (terms * (count - offset) - size * ((terms * (terms - 1)) >> 1))
        decode = at.DECODE_CLASS * at.SUMS
        sums[decode + at.SUM_STEPS] += count
        sums[decode + at.SUM_TOKENS] += count * e[at.MEMBERS]
        sums[decode + at.SUM_RUNNING] += count * e[at.RUNNING]
        sums[decode + at.SUM_WAITING] += count * e[at.WAITING]
        sums[decode + at.SUM_USED] += count * used + block_ticks
        cycles = count // size
        used += cycles * e[at.GROWING]
        for offset in range(count - cycles * size):
            used += phases[(phase + offset) % size]
        phase = (phase + count) % size
        done = until


@inlined
def end_prefills(
    e: Int64s,
    run: Int64s,
    free_slots: Int64s,
    parts: Int64s,
    dues: Int64s,
    calendar: Int64s,
    marks: Int64s,
    phases: Int64s,
    out: Int64s,
    way: Int32s,
    kept: Int64s,
    blocks: Int64s,
    queues: Int64s,
    weights: Int64s,
    request_weight: Int64s,
) -> None:
    """Prefills that have reached their known tokens sample one, and finish or become members."""
    later = e[at.ASYNC] != 0  # the sample arrives a pass later
    stay = 0
    for place in range(e[at.PARTS]):
        slot = parts[place] & at.INDEX
        request = run[slot + at.REQUEST] & at.INDEX
        output = run[slot + at.OUTPUT]
        known = run[slot + at.KNOWN]
        if e[at.PREFIX]:
            run[slot + at.FILLED] = full_blocks(e, run[slot + at.COMPUTED])
        samples = run[slot + at.COMPUTED] == known
        first = at.FIRST if known == run[slot + at.PROMPT] else 0
        if samples:
            if output != 0:
                known += 1
                run[slot + at.KNOWN] = known
                if not later:
                    charge(
                        e, queues, weights, request_weight, queue_at(run, slot), request, np.int64(1), e[at.OUTPUT_COST]
                    )
            if first and not later:
                out[at.FIRST_TOKEN, request] = e[at.CLOCK]
                if e[at.LISTENS] & at.FIRST_TOKENS:
                    ask(e, at.FIRST_TOKEN_CAME, queue_at(run, slot), request, e[at.CLOCK])
            if known - run[slot + at.PROMPT] >= output:
                if later:
                    expect(e, run, dues, slot, at.ENDING | first)
                else:
                    release_counted(e, run, kept, blocks, slot, np.int64(at.NONE))
                    drop_running(e, run, free_slots, slot)
                    if e[at.LISTENS] & at.FINISHES:
                        ask(e, at.FINISH, queue_at(run, slot), request, output)
                    complete(e, run, out, way, slot, request)
                continue
        if is_decoding(run, slot):
            join(e, run, calendar, marks, phases, slot)
            if not later:
                add_rate(e, run, queues, weights, request_weight, slot)
            elif not samples:
                expect(e, run, dues, slot, at.IDLE)
            elif first or e[at.SERVED] or e[at.FIRST_TYPE] >= 0:
                expect(e, run, dues, slot, first)
        else:
            parts[stay] = slot
            stay += 1
    e[at.PARTS] = stay


@inlined
def end_empty_pass(e: Int64s, sums: Int64s, rows: Int64s) -> None:
    """All that ran was preempted: requests that a smaller cache can never hold."""
    e[at.IDLE_PASSES] += 1
    if e[at.SUMMING]:
        add_pass(e, sums, rows, e[at.CLOCK], np.int64(0), np.int64(0), np.int64(0), e[at.USABLE] - e[at.FREE])
    e[at.PREEMPTED] = 0


@compiled
def end_waiting_pass(
    e: Int64s,
    run: Int64s,
    free_slots: Int64s,
    dues: Int64s,
    out: Int64s,
    way: Int32s,
    kept: Int64s,
    blocks: Int64s,
    queues: Int64s,
    weights: Int64s,
    request_weight: Int64s,
    sums: Int64s,
    rows: Int64s,
) -> None:
    """Nothing to schedule, only the output of the step in flight to take in."""
    start_ps = e[at.CLOCK]
    used = e[at.USABLE] - e[at.FREE]
    e[at.CLOCK] = e[at.BUSY_UNTIL]
    e[at.FLYING] = 0
    advance_ticks(e, np.int64(1))
    deliver(e, run, free_slots, dues, out, way, kept, blocks, queues, weights, request_weight)
    turn_dues(e)
    e[at.IDLE_PASSES] += 1
    if e[at.SUMMING]:
        add_pass(e, sums, rows, start_ps, np.int64(0), np.int64(0), np.int64(0), used)
    e[at.PREEMPTED] = 0


@inlined
def cohort_pass(
    e: Int64s,
    run: Int64s,
    free_slots: Int64s,
    parts: Int64s,
    dues: Int64s,
    calendar: Int64s,
    marks: Int64s,
    phases: Int64s,
    out: Int64s,
    way: Int32s,
    kept: Int64s,
    queues: Int64s,
    active: Int64s,
    head: Int64s,
    queue_rows: Int64s,
    blocks: Int64s,
    table: Int64s,
    own: Int64s,
    found: Int64s,
    chains: Int64s,
    prefix_start: Int64s,
    prefix_tokens: int,
    weights: Int64s,
    arrival: Int64s,
    prompt: Int64s,
    cut: Int64s,
    priority: Int64s,
    request_weight: Int64s,
    sums: Int64s,
    rows: Int64s,
    change_ps: int,
) -> bool:
    """One pass, or a stretch of passes in which only members run; False, and nothing done, if it must be stepped."""
    e[at.CAP] = prefill_cap(e)
    alone = e[at.PREFILL_FIRST] != 0  # prefills run alone
    ahead = e[at.ASYNC] != 0  # this pass is scheduled while a step is in flight, and then takes that step's output
    had_parts = e[at.PARTS]
    left = e[at.BUDGET] if alone else e[at.BUDGET] - e[at.MEMBERS]
    if e[at.MEMBERS] > e[at.BUDGET] or e[at.IDLE_PASSES] >= PASSES_WITHOUT_PROGRESS_MAX:
        return False
    needed = 0
    if had_parts > 0:
        room = left
        left = give_parts_tokens(e, run, parts, left)
        if left < 0 or (left == 0 and room == 0):
            return False
        for place in range(had_parts):
            needed += part_growth(e, run, parts[place])
    if not alone:
        needed += phases[e[at.PHASE]]
    if needed > e[at.FREE]:
        # victims by priority may stand before prefills that would get their tokens; and with runs of blocks it matters
        # who took blocks before a victim gave its own back
        if (
            alone
            or ahead
            or e[at.PREFIX] != 0
            or e[at.MEMBERS] == 0
            or (had_parts > 0 and left == 0 and e[at.VICTIM] != at.LAST_VICTIM)
        ):
            return False
        needed = free_by_preemption(
            e, run, free_slots, parts, calendar, marks, phases, out, kept, queues, active, queue_rows, way,
            blocks, table, own, found, weights, arrival, prompt, priority, request_weight, needed,
        )  # fmt: skip
        if e[at.RUNNING] == 0:
            end_empty_pass(e, sums, rows)
            return True
    e[at.FREE] -= needed
    for place in range(e[at.PARTS]):
        slot = parts[place] & at.INDEX
        run[slot + at.OWNED] += part_growth(e, run, slot)

    # admission; ``arrivals_matter`` unless nobody who arrives now could be admitted while only members run
    stretch = np.int64(at.NO_CAP)
    arrivals_matter = True
    if e[at.PREEMPTED] > 0:
        stretch = 1
    elif alone and had_parts == 0 and e[at.MEMBERS] > 0 and e[at.DECODE_STEPS] < e[at.INTERVAL]:
        if e[at.WAITING] > 0:
            stretch = e[at.INTERVAL] - e[at.DECODE_STEPS]
            arrivals_matter = False
    else:
        while e[at.WAITING] > 0:
            if left == 0 or e[at.RUNNING] >= e[at.MOST_RUNNING]:
                arrivals_matter = False
                break
            queue, tokens, size = try_head(
                e, out, kept, queues, active, head, way, blocks, table, found, chains, prefix_start, prefix_tokens,
                arrival, prompt, cut, request_weight, weights, left,
            )  # fmt: skip
            if queue < 0:
                if e[at.DYNAMIC] and e[at.ACTIVE] > 1:
                    stretch = 1  # by the next pass another head may go first
                if e[at.PREFIX] and e[at.HIT] > 0 and e[at.FULL_PROMPT] == 0:
                    stretch = 1  # by the next pass less is found again, and a smaller first chunk may fit
                arrivals_matter = e[at.POLICY] != at.FCFS or e[at.DYNAMIC] != 0 or e[at.THRESHOLD] != 0
                break
            request = queues[queue + at.HEAD] & at.INDEX
            remove_head(e, queues, active, way, prompt, cut, queue)
            slot = seat(e, run, free_slots, out, kept, way, prompt, cut, queue, request)
            if e[at.PREFIX]:
                run[slot + at.COMPUTED] = seat_run(e, run, kept, blocks, slot, request, size)
            else:
                run[slot + at.OWNED] = size
                e[at.FREE] -= size
            run[slot + at.TOKENS] = tokens
            if at.EXTRAS and e[at.HANDED_OVER] > 0:
                hand_over(run, slot)
            if run[slot + at.FLAGS] & at.RESUMED == 0:
                first_admission(e, run, out, queues, weights, request_weight, slot)
            parts[e[at.PARTS]] = slot
            e[at.PARTS] += 1
            left -= tokens
    if e[at.ARRIVALS] or e[at.SUMMING]:
        arrivals_matter = True

    members = e[at.MEMBERS]
    prefills = np.int64(0)
    prefill_tokens = np.int64(0)
    resumed = np.int64(0)  # parts that decode
    ticks = np.int64(1)
    begin = max(e[at.CLOCK], e[at.BUSY_UNTIL]) if ahead else e[at.CLOCK]
    start_ps = begin  # of the last step
    duration = np.int64(0)  # of all steps
    if e[at.PARTS] > 0:
        # a step with prefills, alone or with the members
        if alone:
            members = 0
            ticks = 0
            e[at.DECODE_STEPS] = 0
        context = np.int64(0)
        progress = members > 0
        for place in range(e[at.PARTS]):
            slot = parts[place] & at.INDEX
            tokens = run[slot + at.TOKENS]
            if tokens == 0:
                continue
            computed = run[slot + at.COMPUTED]
            after = computed + tokens
            best = run[slot + at.BEST]
            known_before = e[at.PREFIX] != 0
            if at.EXTRAS and e[at.HANDED_OVER] > 0:
                known_before = True
            if known_before and computed >= max(run[slot + at.PROMPT], run[slot + at.KNOWN] - 1):
                resumed += 1  # all that it had computed was found again, or was handed over
            else:
                prefills += 1
                prefill_tokens += tokens
            context += after
            run[slot + at.DONE] += tokens
            if computed < best:
                out[at.RECOMPUTED, run[slot + at.REQUEST]] += min(after, best) - computed
            if after > best:
                progress = True
                run[slot + at.BEST] = after
            run[slot + at.COMPUTED] = after
        if members > 0:
            context += e[at.OFFSETS] + members * (e[at.TICK] + 1)
        duration = (
            e[at.BASE_PS]
            + e[at.PREFILL_PS] * prefill_tokens
            + e[at.DECODE_PS] * (members + resumed)
            + e[at.CONTEXT_PS] * context
        )
        e[at.STEPS] += 1
        e[at.IDLE_PASSES] = 1 if progress else e[at.IDLE_PASSES] + 1
    else:
        # a stretch of ticks; the first one's blocks are taken for a pass with prefills, but not yet with prefills alone
        if members == 0:
            if e[at.FLYING]:
                end_waiting_pass(
                    e, run, free_slots, dues, out, way, kept, blocks, queues, weights, request_weight, sums, rows
                )
                return True
            return False
        if ahead and (e[at.FLYING] == 0 or e[at.DUE] > 0):
            stretch = 1
        if not alone:
            e[at.FREE] += needed
        elif phases[e[at.PHASE]] > e[at.FREE]:
            if e[at.PREFIX]:
                return False
            free_by_preemption(
                e, run, free_slots, parts, calendar, marks, phases, out, kept, queues, active, queue_rows, way, blocks,
                table, own, found, weights, arrival, prompt, priority, request_weight, phases[e[at.PHASE]],
            )  # fmt: skip
            if e[at.RUNNING] == 0:
                end_empty_pass(e, sums, rows)
                return True
            stretch = 1
            members = e[at.MEMBERS]
        growth = e[at.CONTEXT_PS] * members
        first = e[at.BASE_PS] + e[at.DECODE_PS] * members + e[at.CONTEXT_PS] * (e[at.OFFSETS] + members * e[at.TICK])
        ticks = ticks_with_blocks(e, phases, min(stretch, e[at.NEXT_FINISH] - e[at.TICK]))
        event = change_ps
        coming = e[at.NEXT_ARRIVAL] if arrivals_matter else next_bad_arrival(e, prompt, cut)
        if coming < len(arrival):
            event = min(event, arrival[coming])
        if e[at.SUMMING]:
            event = min(event, e[at.CLOCK] + (len(rows) - e[at.ROWS] - 8) * PS_PER_SECOND)
        if ticks > 1 and first + growth > 0:
            # the first pass that sees the event: at the end of the step before it, or of the one before that
            span = event - begin
            if span <= 0:
                ticks = 1
            elif float(ticks) * (first + 0.5 * growth * (ticks + 1.0)) > 0.99 * span:
                ticks = min(ticks, ticks_until(first, growth, span) + e[at.LAG])
        if e[at.SUMMING] and ticks > 1:
            spread(e, phases, sums, rows, begin, first, growth, ticks - 1)
        start_ps = begin + ticks_ps(first, growth, ticks - 1)
        duration = ticks_ps(first, growth, ticks)
        e[at.FREE] -= growth_of(e, phases, ticks)
        e[at.STEPS] += ticks
        e[at.IDLE_PASSES] = 1
        if alone:
            e[at.DECODE_STEPS] += ticks
    used = e[at.USABLE] - e[at.FREE]
    if ahead:
        if e[at.FLYING]:
            e[at.CLOCK] = start_ps
        e[at.FLYING] = 1
        e[at.BUSY_UNTIL] = begin + duration
        advance_ticks(e, ticks)
        if e[at.DUE] > 0:
            deliver(e, run, free_slots, dues, out, way, kept, blocks, queues, weights, request_weight)
    else:
        e[at.CLOCK] += duration
        if members > 0:
            advance_ticks(e, ticks)
    if e[at.TICK] == e[at.NEXT_FINISH]:
        finish_members(
            e, run, free_slots, dues, calendar, marks, phases, out, way, kept, blocks, queues, weights, request_weight
        )
    if prefills + resumed > 0:
        end_prefills(
            e, run, free_slots, parts, dues, calendar, marks, phases, out, way, kept, blocks, queues, weights,
            request_weight,
        )  # fmt: skip
    if ahead:
        turn_dues(e)
    if e[at.SUMMING]:
        decodes = members + resumed
        add_pass(e, sums, rows, start_ps, prefills, decodes, prefill_tokens + decodes, used)
    e[at.PREEMPTED] = 0
    return True
