"""Joining and leaving the cohort of decoders that advance together.

A member is a running request with one token to compute, whose pass yields a sample. With async scheduling samples
arrive a pass later; then a slot is *due* for what the step in flight brings it beyond the ordinary token: its first
token, its last one, or the start of its rate of service.
"""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.calendar import clear_place, enter, find_next_finish, leave
from fairreplay.sandbox.compiled.jit import compiled, inlined
from fairreplay.sandbox.compiled.members import (
    blocks_for,
    charge,
    complete,
    drop_running,
    full_blocks,
    queue_at,
    release_counted,
)
from fairreplay.sandbox.compiled.service import ask, inverse_weight, owner_of
from fairreplay.sandbox.engine import Int32s, Int64s


@inlined
def is_decoding(run: Int64s, slot: int) -> bool:
    """One token to compute, and it yields a sample after the first."""
    known = run[slot + at.KNOWN] + run[slot + at.IN_FLIGHT]
    return run[slot + at.COMPUTED] == known - 1 and known > run[slot + at.PROMPT]


@inlined
def waits_for_last_token(run: Int64s, slot: int) -> bool:
    known = run[slot + at.KNOWN] + run[slot + at.IN_FLIGHT]
    output = run[slot + at.OUTPUT]
    return run[slot + at.COMPUTED] == known if output == 0 else known - run[slot + at.PROMPT] >= output


@inlined
def join(e: Int64s, run: Int64s, calendar: Int64s, marks: Int64s, phases: Int64s, slot: int) -> None:
    """A decoder becomes a member; KNOWN counts its sample in flight."""
    tick = e[at.TICK]
    computed = run[slot + at.COMPUTED]
    if e[at.PREFIX]:
        _note_join(e, run, slot)
    run[slot + at.FLAGS] |= at.MEMBER
    run[slot + at.FINISH] = tick + run[slot + at.OUTPUT] - (run[slot + at.KNOWN] - run[slot + at.PROMPT])
    run[slot + at.COMPUTED] = computed - tick
    e[at.OFFSETS] += computed - tick
    e[at.MEMBERS] += 1
    run[slot + at.DONE] -= tick
    if run[slot + at.FLAGS] & at.HELD == 0:
        _count_growth(e, phases, computed, np.int64(1))
    enter(e, run, calendar, marks, slot)


@compiled
def _note_join(e: Int64s, run: Int64s, slot: int) -> None:
    computed = run[slot + at.COMPUTED]
    run[slot + at.JOINED] = computed if run[slot + at.FILLED] >= full_blocks(e, computed) else computed - 1


@compiled
def _note_parting(e: Int64s, run: Int64s, slot: int) -> None:
    """With async scheduling a block is cached when the sample that fills it has arrived, a pass later."""
    computed = run[slot + at.COMPUTED]
    is_cached = e[at.ASYNC] == 0 or run[slot + at.JOINED] == computed
    run[slot + at.FILLED] = full_blocks(e, computed if is_cached else computed - 1)


@inlined
def part(e: Int64s, run: Int64s, phases: Int64s, slot: int) -> None:
    """A member leaves the cohort (the calendar apart); its slot says again what it has computed and owns."""
    tick = e[at.TICK]
    computed = run[slot + at.COMPUTED] + tick
    e[at.OFFSETS] -= computed - tick
    e[at.MEMBERS] -= 1
    run[slot + at.DONE] += tick
    run[slot + at.COMPUTED] = computed
    run[slot + at.KNOWN] = computed + 1
    if e[at.PREFIX]:
        _note_parting(e, run, slot)
    run[slot + at.BEST] = computed
    if run[slot + at.FLAGS] & at.HELD == 0:
        _count_growth(e, phases, computed, np.int64(-1))
        run[slot + at.OWNED] = blocks_for(e, computed)
    run[slot + at.FLAGS] &= ~at.MEMBER


@inlined
def _count_growth(e: Int64s, phases: Int64s, computed: int, sign: int) -> None:
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
def add_rate(e: Int64s, run: Int64s, queues: Int64s, weights: Int64s, request_weight: Int64s, slot: int) -> None:
    """The samples of the ticks to come are charged as they arrive."""
    if e[at.SERVED] or e[at.FIRST_TYPE] >= 0:
        _change_rate(e, run, queues, weights, request_weight, slot, np.int64(1))
        run[slot + at.FLAGS] |= at.RATED


@inlined
def drop_rate(e: Int64s, run: Int64s, queues: Int64s, weights: Int64s, request_weight: Int64s, slot: int) -> None:
    if run[slot + at.FLAGS] & at.RATED:
        _change_rate(e, run, queues, weights, request_weight, slot, np.int64(-1))
        run[slot + at.FLAGS] &= ~at.RATED


@inlined
def _change_rate(
    e: Int64s, run: Int64s, queues: Int64s, weights: Int64s, request_weight: Int64s, slot: int, sign: int
) -> None:
    queue = queue_at(run, slot)
    ticks = e[at.TICK] - e[at.LAG]
    if e[at.SERVED]:
        request = run[slot + at.REQUEST] & at.INDEX
        owner = owner_of(queues, queue)
        rate = sign * e[at.OUTPUT_COST] * inverse_weight(e, queues, weights, request_weight, queue, request)
        queues[owner + at.RATE] += rate
        queues[owner + at.SERVICE] -= rate * ticks
    if e[at.FIRST_TYPE] >= 0:
        kind = queues[queue + at.OF_TYPE] & at.INDEX
        queues[kind + at.RATE] += sign
        queues[kind + at.SERVICE] -= sign * ticks


@inlined
def expect(e: Int64s, run: Int64s, dues: Int64s, slot: int, what: int) -> None:
    """``slot`` waits for what the step at hand brings."""
    run[slot + at.FLAGS] |= what
    half = len(dues) >> 1
    place = e[at.NEXT_DUE] if e[at.DUE_HALF] == 1 else half + e[at.NEXT_DUE]
    dues[place & at.INDEX] = slot
    e[at.NEXT_DUE] += 1


@inlined
def turn_dues(e: Int64s) -> None:
    """The step at hand is now the one in flight."""
    e[at.DUE] = e[at.NEXT_DUE]
    e[at.NEXT_DUE] = 0
    e[at.DUE_HALF] = 1 - e[at.DUE_HALF]


@compiled
def deliver(
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
) -> None:
    """What the step in flight brings to the slots that are due."""
    first = (len(dues) >> 1) * e[at.DUE_HALF]
    for place in range(first, first + e[at.DUE]):
        slot = dues[place] & at.INDEX
        request = run[slot + at.REQUEST] & at.INDEX
        flags = run[slot + at.FLAGS]
        if flags & at.FIRST:
            out[at.FIRST_TOKEN, request] = e[at.CLOCK]
            if e[at.LISTENS] & at.FIRST_TOKENS:
                ask(e, at.FIRST_TOKEN_CAME, queue_at(run, slot), request, e[at.CLOCK])
        if not flags & at.RATED and not flags & at.IDLE and run[slot + at.OUTPUT] != 0:
            charge(e, queues, weights, request_weight, queue_at(run, slot), request, np.int64(1), e[at.OUTPUT_COST])
        if flags & at.ENDING:
            drop_rate(e, run, queues, weights, request_weight, slot)
            release_counted(e, run, kept, blocks, slot, np.int64(at.NONE))
            drop_running(e, run, free_slots, slot)
            if e[at.LISTENS] & at.FINISHES:
                ask(e, at.FINISH, queue_at(run, slot), request, run[slot + at.OUTPUT])
            complete(e, run, out, way, slot, request)
        elif not flags & at.RATED:
            add_rate(e, run, queues, weights, request_weight, slot)
        run[slot + at.FLAGS] &= ~(at.FIRST | at.IDLE)


@inlined
def finish_members(
    e: Int64s,
    run: Int64s,
    free_slots: Int64s,
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
    """Those whose last tick this was are done, or will be when their last token arrives."""
    place = e[at.TICK] & (len(calendar) - 1) & at.INDEX
    slot = calendar[place] & at.INDEX
    clear_place(calendar, marks, place)
    while slot != 0:
        part(e, run, phases, slot)
        if e[at.ASYNC]:
            expect(e, run, dues, slot, at.ENDING)
        else:
            drop_rate(e, run, queues, weights, request_weight, slot)
            release_counted(e, run, kept, blocks, slot, np.int64(at.NONE))
            drop_running(e, run, free_slots, slot)
            request = run[slot + at.REQUEST] & at.INDEX
            if e[at.LISTENS] & at.FINISHES:
                ask(e, at.FINISH, queue_at(run, slot), request, run[slot + at.OUTPUT])
            complete(e, run, out, way, slot, request)
        slot = run[slot + at.LATER] & at.INDEX
    find_next_finish(e, calendar, marks)


@compiled
def gather(
    e: Int64s,
    run: Int64s,
    parts: Int64s,
    dues: Int64s,
    calendar: Int64s,
    marks: Int64s,
    phases: Int64s,
    queues: Int64s,
    weights: Int64s,
    request_weight: Int64s,
) -> None:
    """From steps one by one to a cohort."""
    e[at.COHORT] = 1
    e[at.LAG] = e[at.ASYNC]
    e[at.PARTS] = 0
    e[at.NEXT_DUE] = 0
    e[at.NEXT_FINISH] = at.NO_CAP
    slot = run[at.NEXT]
    while slot != 0:
        first = at.FIRST if run[slot + at.KNOWN] == run[slot + at.PROMPT] else 0
        if waits_for_last_token(run, slot):
            expect(e, run, dues, slot, at.ENDING | first)
            if run[slot + at.OUTPUT] != 0:
                add_rate(e, run, queues, weights, request_weight, slot)
        elif is_decoding(run, slot):
            flying = run[slot + at.IN_FLIGHT]
            run[slot + at.KNOWN] += flying
            run[slot + at.IN_FLIGHT] = 0
            join(e, run, calendar, marks, phases, slot)
            if e[at.ASYNC] and not flying:
                expect(e, run, dues, slot, at.IDLE)
            else:
                add_rate(e, run, queues, weights, request_weight, slot)
                if flying and first:
                    expect(e, run, dues, slot, at.FIRST)
        else:
            parts[e[at.PARTS]] = slot
            e[at.PARTS] += 1
        slot = run[slot + at.NEXT]
    turn_dues(e)


@compiled
def scatter(
    e: Int64s,
    run: Int64s,
    flights: Int64s,
    calendar: Int64s,
    marks: Int64s,
    phases: Int64s,
    queues: Int64s,
    weights: Int64s,
    request_weight: Int64s,
) -> None:
    """From a cohort to steps one by one; the step in flight lists its outputs again."""
    e[at.COHORT] = 0
    flight = e[at.FIRST_FLYING]
    outputs = 0
    slot = run[at.NEXT]
    while slot != 0:
        flags = run[slot + at.FLAGS]
        drop_rate(e, run, queues, weights, request_weight, slot)
        if flags & at.MEMBER:
            leave(e, run, calendar, marks, slot)
            part(e, run, phases, slot)
        elif e[at.PREFIX] and not flags & at.ENDING:
            run[slot + at.FILLED] = full_blocks(e, run[slot + at.COMPUTED])
        flying = flags & at.ENDING or (e[at.ASYNC] and flags & at.MEMBER and not flags & at.IDLE)
        if flying:
            if run[slot + at.OUTPUT] != 0:
                run[slot + at.KNOWN] = run[slot + at.COMPUTED]
                run[slot + at.IN_FLIGHT] = 1
            flights[flight, 2 * outputs + 2] = run[slot + at.REQUEST]
            flights[flight, 2 * outputs + 3] = slot
            outputs += 1
        run[slot + at.FLAGS] &= ~(at.FIRST | at.ENDING | at.IDLE)
        slot = run[slot + at.NEXT]
    if e[at.FLYING]:
        flights[flight, 0] = e[at.BUSY_UNTIL]
        flights[flight, 1] = outputs
    e[at.DUE] = 0
