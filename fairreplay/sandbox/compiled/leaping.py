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

import math

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.calendar import clear_place, enter, find_next_finish, leave
from fairreplay.sandbox.compiled.changes import refusal
from fairreplay.sandbox.compiled.jit import compiled, inlined
from fairreplay.sandbox.compiled.members import (
    blocks_for,
    charge,
    complete,
    drop_running,
    preempt,
    queue_at,
    victim_of,
)
from fairreplay.sandbox.compiled.stepping import first_admission, prefill_cap, seat, try_head
from fairreplay.sandbox.compiled.sums import add_pass, reach
from fairreplay.sandbox.compiled.waiting import Int32s, inverse_weight, remove
from fairreplay.sandbox.engine import NEVER, NO_REASON, PS_PER_SECOND, Int64s
from fairreplay.sandbox.reference import PASSES_WITHOUT_PROGRESS_MAX

PASSES_OF_HOLD = 8
"""Passes that are stepped one by one after one that could not be counted."""


# ---- joining and leaving the cohort ----


@inlined
def is_decoding(run: Int64s, slot: int) -> bool:
    """One token to compute, and it yields a sample after the first."""
    known = run[slot + at.KNOWN]
    return run[slot + at.COMPUTED] == known - 1 and known > run[slot + at.PROMPT]


@inlined
def join(
    e: Int64s,
    run: Int64s,
    calendar: Int64s,
    marks: Int64s,
    phases: Int64s,
    queues: Int64s,
    weights: Int64s,
    request_weight: Int64s,
    slot: int,
) -> None:
    """A decoder becomes a member."""
    tick = e[at.TICK]
    request = run[slot + at.REQUEST] & at.INDEX
    computed = run[slot + at.COMPUTED]
    run[slot + at.FLAGS] |= at.MEMBER
    run[slot + at.FINISH] = tick + run[slot + at.OUTPUT] - (run[slot + at.KNOWN] - run[slot + at.PROMPT])
    run[slot + at.COMPUTED] = computed - tick
    e[at.OFFSETS] += computed - tick
    e[at.MEMBERS] += 1
    run[slot + at.DONE] -= tick
    if run[slot + at.FLAGS] & at.HELD == 0:
        count_growth(e, phases, computed, 1)
    if e[at.POLICY] == at.VTC:
        queue = queue_at(run, slot)
        rate = e[at.OUTPUT_COST] * inverse_weight(e, weights, request_weight, queue, request)
        queues[queue + at.RATE] += rate
        queues[queue + at.SERVICE] -= rate * tick
    enter(e, run, calendar, marks, slot)


@inlined
def count_growth(e: Int64s, phases: Int64s, computed: int, sign: int) -> None:
    """A member of ``computed`` tokens needs a block whenever they are a multiple of the block size."""
    size = e[at.BLOCK_SIZE]
    phase = e[at.PHASE] - (computed & (size - 1) if e[at.SHIFT] >= 0 else computed % size)
    if phase < 0:
        phase += size
    phase &= at.INDEX
    phases[phase] += sign
    phases[phase + size] += sign
    e[at.GROWING] += sign


@inlined
def part(
    e: Int64s,
    run: Int64s,
    phases: Int64s,
    queues: Int64s,
    weights: Int64s,
    request_weight: Int64s,
    slot: int,
) -> None:
    """A member leaves the cohort (the calendar apart); its slot says again what it has computed and owns."""
    tick = e[at.TICK]
    request = run[slot + at.REQUEST] & at.INDEX
    computed = run[slot + at.COMPUTED] + tick
    e[at.OFFSETS] -= computed - tick
    e[at.MEMBERS] -= 1
    run[slot + at.DONE] += tick
    run[slot + at.COMPUTED] = computed
    run[slot + at.KNOWN] = computed + 1
    run[slot + at.BEST] = computed
    if run[slot + at.FLAGS] & at.HELD == 0:
        count_growth(e, phases, computed, -1)
        run[slot + at.OWNED] = blocks_for(e, computed)
    run[slot + at.FLAGS] &= ~at.MEMBER
    if e[at.POLICY] == at.VTC:
        queue = queue_at(run, slot)
        rate = e[at.OUTPUT_COST] * inverse_weight(e, weights, request_weight, queue, request)
        queues[queue + at.RATE] -= rate
        queues[queue + at.SERVICE] += rate * tick


@compiled
def gather(
    e: Int64s,
    run: Int64s,
    parts: Int64s,
    calendar: Int64s,
    marks: Int64s,
    phases: Int64s,
    queues: Int64s,
    weights: Int64s,
    request_weight: Int64s,
) -> None:
    """From steps one by one to a cohort."""
    e[at.COHORT] = 1
    e[at.PARTS] = 0
    e[at.NEXT_FINISH] = at.NO_CAP
    slot = run[at.NEXT]
    while slot != 0:
        if is_decoding(run, slot):
            join(e, run, calendar, marks, phases, queues, weights, request_weight, slot)
        else:
            parts[e[at.PARTS]] = slot
            e[at.PARTS] += 1
        slot = run[slot + at.NEXT]


@compiled
def scatter(
    e: Int64s,
    run: Int64s,
    calendar: Int64s,
    marks: Int64s,
    phases: Int64s,
    queues: Int64s,
    weights: Int64s,
    request_weight: Int64s,
) -> None:
    """From a cohort to steps one by one."""
    e[at.COHORT] = 0
    slot = run[at.NEXT]
    while slot != 0:
        if run[slot + at.FLAGS] & at.MEMBER:
            leave(e, run, calendar, marks, slot)
            part(e, run, phases, queues, weights, request_weight, slot)
        slot = run[slot + at.NEXT]


# ---- what a tick costs ----


@inlined
def ticks_ps(first: int, growth: int, k: int) -> int:
    """Time of ``k`` ticks: the first takes ``first + growth``, each later one ``growth`` more."""
    return k * first + growth * ((k * (k + 1)) >> 1)


@inlined
def ticks_until(first: int, growth: int, span: int) -> int:
    """The fewest ticks that take at least ``span`` > 0; at least one tick takes time."""
    half = first + 0.5 * growth
    k = np.int64(2.0 * span / (half + math.sqrt(half * half + 2.0 * growth * span)))
    while k > 1 and ticks_ps(first, growth, k - 1) >= span:
        k -= 1
    while ticks_ps(first, growth, k) < span:
        k += 1
    return max(1, k)


@inlined
def growth_of(e: Int64s, phases: Int64s, k: int) -> int:
    """Blocks that members need for the next ``k`` ticks."""
    size = e[at.BLOCK_SIZE]
    phase = e[at.PHASE]
    if k == 1:
        return phases[phase]
    cycles = k // size
    blocks = cycles * e[at.GROWING]
    for later in range(phase, phase + k - cycles * size):
        blocks += phases[later]
    return blocks


@inlined
def ticks_with_blocks(e: Int64s, phases: Int64s, most: int) -> int:
    """Ticks, up to ``most``, for which the free blocks last; the first is known to have its blocks."""
    size = e[at.BLOCK_SIZE]
    growing = e[at.GROWING]
    if (most // size + 1) * growing <= e[at.FREE]:
        return most
    cycles = e[at.FREE] // growing
    left = e[at.FREE] - cycles * growing
    phase = e[at.PHASE]
    while phases[phase] <= left:
        left -= phases[phase]
        phase += 1
    return min(most, cycles * size + phase - e[at.PHASE])


@inlined
def advance_ticks(e: Int64s, k: int) -> None:
    e[at.TICK] += k
    phase = e[at.PHASE] + k
    size = e[at.BLOCK_SIZE]
    if phase >= size:
        phase = phase - size if phase < 2 * size else phase % size
    e[at.PHASE] = phase


# ---- finishes ----


@inlined
def finish_members(
    e: Int64s,
    run: Int64s,
    free_slots: Int64s,
    calendar: Int64s,
    marks: Int64s,
    phases: Int64s,
    out: Int64s,
    way: Int32s,
    queues: Int64s,
    weights: Int64s,
    request_weight: Int64s,
) -> None:
    """Those whose last tick this was are done."""
    place = e[at.TICK] & (len(calendar) - 1) & at.INDEX
    slot = calendar[place] & at.INDEX
    clear_place(calendar, marks, place)
    while slot != 0:
        part(e, run, phases, queues, weights, request_weight, slot)
        e[at.FREE] += run[slot + at.OWNED]
        drop_running(e, run, free_slots, slot)
        complete(e, run, out, way, slot, run[slot + at.REQUEST] & at.INDEX)
        slot = run[slot + at.LATER] & at.INDEX
    find_next_finish(e, calendar, marks)


# ---- a pass ----


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
            part(e, run, phases, queues, weights, request_weight, slot)
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
def spread(e: Int64s, phases: Int64s, sums: Int64s, rows: Int64s, first: int, growth: int, k: int) -> None:
    """Add ``k`` ticks from now on, at whose end as many run and wait as now, to the sums of their seconds."""
    size = e[at.BLOCK_SIZE]
    used = e[at.USABLE] - e[at.FREE]
    phase = e[at.PHASE]
    done = 0
    while done < k:
        start_ps = e[at.CLOCK] + ticks_ps(first, growth, done)
        reach(e, sums, rows, start_ps)
        boundary = (e[at.SECOND] + 1) * PS_PER_SECOND - e[at.SECOND_OFFSET] - e[at.CLOCK]
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
    calendar: Int64s,
    marks: Int64s,
    phases: Int64s,
    out: Int64s,
    way: Int32s,
    queues: Int64s,
    weights: Int64s,
    request_weight: Int64s,
) -> None:
    """Prefills that have reached their known tokens sample one, and finish or become members."""
    stay = 0
    for place in range(e[at.PARTS]):
        slot = parts[place] & at.INDEX
        request = run[slot + at.REQUEST] & at.INDEX
        output = run[slot + at.OUTPUT]
        known = run[slot + at.KNOWN]
        if run[slot + at.COMPUTED] == known:
            if output != 0:
                known += 1
                run[slot + at.KNOWN] = known
                if e[at.POLICY] == at.VTC:
                    charge(e, queues, weights, request_weight, queue_at(run, slot), request, e[at.OUTPUT_COST])
            if run[slot + at.FLAGS] & at.RESUMED == 0 or out[at.FIRST_TOKEN, request] == NEVER:
                out[at.FIRST_TOKEN, request] = e[at.CLOCK]
            if known - run[slot + at.PROMPT] >= output:
                e[at.FREE] += run[slot + at.OWNED]
                drop_running(e, run, free_slots, slot)
                complete(e, run, out, way, slot, request)
                continue
        if is_decoding(run, slot):
            join(e, run, calendar, marks, phases, queues, weights, request_weight, slot)
        else:
            parts[stay] = slot
            stay += 1
    e[at.PARTS] = stay


@inlined
def end_empty_pass(e: Int64s, sums: Int64s, rows: Int64s) -> None:
    """All that ran was preempted: requests that a smaller cache can never hold."""
    e[at.IDLE_PASSES] += 1
    if e[at.SUMMING]:
        add_pass(e, sums, rows, e[at.CLOCK], 0, 0, 0, e[at.USABLE] - e[at.FREE])
    e[at.PREEMPTED] = 0


@inlined
def cohort_pass(
    e: Int64s,
    run: Int64s,
    free_slots: Int64s,
    parts: Int64s,
    calendar: Int64s,
    marks: Int64s,
    phases: Int64s,
    out: Int64s,
    way: Int32s,
    kept: Int64s,
    queues: Int64s,
    active: Int64s,
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
        # victims by priority may stand before prefills that would get their tokens
        if alone or e[at.MEMBERS] == 0 or (had_parts > 0 and left == 0 and e[at.POLICY] == at.PRIORITY):
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
            request, tokens, size = try_head(
                e, kept, queues, active, way, blocks, table, found, chains, prefix_start, prefix_tokens,
                prompt, cut, left,
            )  # fmt: skip
            if request < 0:
                if e[at.POLICY] == at.VTC and e[at.ACTIVE] > 1:
                    stretch = 1  # service changes whose head it is
                arrivals_matter = e[at.POLICY] != at.FCFS or e[at.THRESHOLD] != 0
                break
            remove(e, queues, active, queue_rows, way, prompt, request)
            slot = seat(e, run, free_slots, out, kept, queue_rows, way, prompt, cut, request)
            run[slot + at.OWNED] = size
            run[slot + at.TOKENS] = tokens
            e[at.FREE] -= size
            if run[slot + at.FLAGS] & at.RESUMED == 0:
                first_admission(e, run, out, queues, weights, request_weight, slot)
            parts[e[at.PARTS]] = slot
            e[at.PARTS] += 1
            left -= tokens
    if e[at.POLICY] == at.VTC or e[at.SUMMING]:
        arrivals_matter = True

    members = e[at.MEMBERS]
    prefills = 0
    prefill_tokens = 0
    ticks = 1
    start_ps = e[at.CLOCK]
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
        e[at.CLOCK] += (
            e[at.BASE_PS] + e[at.PREFILL_PS] * prefill_tokens + e[at.DECODE_PS] * members + e[at.CONTEXT_PS] * context
        )
        e[at.STEPS] += 1
        e[at.IDLE_PASSES] = 1 if progress else e[at.IDLE_PASSES] + 1
    else:
        # a stretch of ticks; the first one's blocks are taken for a pass with prefills, but not yet with prefills alone
        if members == 0:
            return False
        if not alone:
            e[at.FREE] += needed
        elif phases[e[at.PHASE]] > e[at.FREE]:
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
            span = event - e[at.CLOCK]
            if float(ticks) * (first + 0.5 * growth * (ticks + 1.0)) > 0.99 * span:
                ticks = min(ticks, ticks_until(first, growth, span))
        if e[at.SUMMING] and ticks > 1:
            spread(e, phases, sums, rows, first, growth, ticks - 1)
        start_ps = e[at.CLOCK] + ticks_ps(first, growth, ticks - 1)
        e[at.CLOCK] += ticks_ps(first, growth, ticks)
        e[at.FREE] -= growth_of(e, phases, ticks)
        e[at.STEPS] += ticks
        e[at.IDLE_PASSES] = 1
        if alone:
            e[at.DECODE_STEPS] += ticks
    used = e[at.USABLE] - e[at.FREE]
    if members > 0:
        advance_ticks(e, ticks)
        if e[at.TICK] == e[at.NEXT_FINISH]:
            finish_members(
                e, run, free_slots, calendar, marks, phases, out, way, queues, weights,
                request_weight,
            )  # fmt: skip
    if prefills > 0:
        end_prefills(
            e, run, free_slots, parts, calendar, marks, phases, out, way, queues, weights,
            request_weight,
        )  # fmt: skip
    if e[at.SUMMING]:
        add_pass(e, sums, rows, start_ps, prefills, members, prefill_tokens + members, used)
    e[at.PREEMPTED] = 0
    return True
