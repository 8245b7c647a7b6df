"""The loop of passes: leaps where it can, else calls the stepper."""

from __future__ import annotations

from typing import Final

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.changes import apply_changes, next_change, refuse_expired, take_arrivals
from fairreplay.sandbox.compiled.cohort import gather, scatter
from fairreplay.sandbox.compiled.giving_way import may_give_way
from fairreplay.sandbox.compiled.jit import call_part, matrix, scalars_at, small_vector, vector
from fairreplay.sandbox.compiled.leaping import PASSES_OF_HOLD, cohort_pass
from fairreplay.sandbox.compiled.prefix import first_blocks, number_chains
from fairreplay.sandbox.compiled.segments import first_run
from fairreplay.sandbox.compiled.service import tell
from fairreplay.sandbox.compiled.waiting import begin_floor_window, clear_queues

ROWS_TO_SPARE: Final = 16
"""Room for rows of step sums below which the kernel returns to have them taken away."""


def advance(address: int, _what: int, _queue: int, _request: int, _number: int) -> int:
    """The part ``kernel``: go on for up to ``PASSES`` passes or until ``rows`` is full.

    1 when all is finished or cannot go on, else 0.
    """
    e = scalars_at(address)
    run = vector(e, at.TO_RUN)
    free_slots = vector(e, at.TO_FREE_SLOTS)
    flights = matrix(e, at.TO_FLIGHTS)
    parts = vector(e, at.TO_PARTS)
    dues = vector(e, at.TO_DUES)
    calendar = vector(e, at.TO_CALENDAR)
    marks = vector(e, at.TO_MARKS)
    phases = vector(e, at.TO_PHASES)
    out = matrix(e, at.TO_OUT)
    way = small_vector(e, at.TO_WAY)
    kept = vector(e, at.TO_KEPT)
    queues = vector(e, at.TO_QUEUES)
    active = vector(e, at.TO_ACTIVE)
    head = vector(e, at.TO_HEAD)
    queue_rows = matrix(e, at.TO_QUEUE_ROWS)
    queue_facts = matrix(e, at.TO_QUEUE_FACTS)
    blocks = vector(e, at.TO_BLOCKS)
    table = vector(e, at.TO_TABLE)
    own = matrix(e, at.TO_OWN)
    found = vector(e, at.TO_FOUND)
    chains = vector(e, at.TO_CHAINS)
    chain_table = vector(e, at.TO_CHAIN_TABLE)
    prefix_start = vector(e, at.TO_PREFIX_START)
    prefix_ids = vector(e, at.TO_PREFIX_IDS)
    settings = matrix(e, at.TO_SETTINGS)
    weights_at = vector(e, at.TO_WEIGHTS_AT)
    weights = matrix(e, at.TO_WEIGHTS)
    arrival = vector(e, at.TO_ARRIVAL)
    prompt = vector(e, at.TO_PROMPT)
    cut = vector(e, at.TO_CUT)
    priority = vector(e, at.TO_PRIORITY)
    request_weight = vector(e, at.TO_REQUEST_WEIGHT)
    sums = vector(e, at.TO_SUMS)
    rows = matrix(e, at.TO_ROWS)
    prefix_tokens = e[at.PREFIX_TOKENS]
    passes = e[at.PASSES]
    may_leap = e[at.LEAPING] != 0 and not (e[at.PREFIX] == at.BLOCKS or e[at.MODEL_LEN_VARIES])
    change_ps = next_change(e, settings, weights_at)
    last_row = len(rows) - ROWS_TO_SPARE
    if e[at.READY] == 0:
        e[at.READY] = 1
        e[at.FLOOR_ENDS] = at.HORIZON_PS
        clear_queues(e, queues, queue_facts)
        if e[at.PREFIX] == at.RUNS:
            first_run(e, blocks, e[at.USABLE])
        elif e[at.PREFIX]:
            first_blocks(e, blocks, e[at.USABLE])
            number_chains(prefix_start, prefix_ids, chain_table, chains)
        if e[at.CONTROL]:
            tell(e, at.OPEN, 0, 0)
    while passes > 0 and e[at.ROWS] <= last_row:
        passes -= 1
        if e[at.CLOCK] > at.HORIZON_PS or e[at.FAILED]:
            return 1
        if e[at.RUNNING] == 0 and e[at.WAITING] == 0 and e[at.FLYING] == 0:
            if e[at.NEXT_ARRIVAL] == len(arrival) or arrival[e[at.NEXT_ARRIVAL]] == at.FOREVER:
                return 1
            e[at.CLOCK] = max(e[at.CLOCK], arrival[e[at.NEXT_ARRIVAL]])
        if e[at.CLOCK] >= change_ps:
            if e[at.COHORT]:
                scatter(e, run, flights, calendar, marks, phases, queues, weights, request_weight)
            apply_changes(
                e, settings, weights_at, run, free_slots, out, kept, queues, active, queue_rows, queue_facts,
                way, blocks, table, own, found, arrival, prompt, cut, priority,
            )  # fmt: skip
            change_ps = next_change(e, settings, weights_at)
            if e[at.CONTROL]:
                tell(e, at.NEW_SETTINGS, 0, 0)
        if e[at.FIRST_TYPE] >= 0 and e[at.CLOCK] >= e[at.FLOOR_ENDS]:
            begin_floor_window(e, queues)
        take_arrivals(e, out, queues, active, queue_rows, way, arrival, prompt, cut)
        if e[at.CONTROL]:
            told = tell(e, at.TICKED, 0, 0)
            if told & at.SWITCHES:  # the state in force is taken again, now from the other half of the table
                e[at.IN_MODE] = 1 - e[at.IN_MODE]
                e[at.NEXT_SETTINGS] -= 1
                apply_changes(
                    e, settings, weights_at, run, free_slots, out, kept, queues, active, queue_rows, queue_facts,
                    way, blocks, table, own, found, arrival, prompt, cut, priority,
                )  # fmt: skip
            if told & at.FILLED_UP:
                passes = 0
            refuse_expired(e, out, queues, active, queue_rows, way, prompt, cut)
        if e[at.RUNNING] == 0 and e[at.WAITING] == 0 and e[at.FLYING] == 0:
            continue  # all that arrived was refused at the door
        if (
            may_leap
            and e[at.GIVES_WAY] != at.NO_CAP
            and e[at.WAITING] > 0
            and may_give_way(e, run, queues, active, priority)
        ):
            # somebody who runs might be preempted for a head: whether it is shows request by request
            if e[at.COHORT]:
                scatter(e, run, flights, calendar, marks, phases, queues, weights, request_weight)
            e[at.HOLD] = max(e[at.HOLD], 1)
        if may_leap and e[at.COHORT] == 0:
            if e[at.HOLD] > 0:
                e[at.HOLD] -= 1
            elif e[at.PREEMPTED] == 0:
                gather(
                    e, run, parts, dues, calendar, marks, phases, queues, weights,
                    request_weight,
                )  # fmt: skip
        if e[at.COHORT]:
            counted = cohort_pass(
                e, run, free_slots, parts, dues, calendar, marks, phases, out, way, kept, queues, active, head,
                queue_rows, blocks, table, own, found, chains, prefix_start, prefix_tokens, weights,
                arrival, prompt, cut, priority, request_weight, sums, rows, min(change_ps, e[at.FLOOR_ENDS]),
            )  # fmt: skip
            if counted:
                continue
            scatter(e, run, flights, calendar, marks, phases, queues, weights, request_weight)
            # with async scheduling or runs of blocks preemption alone ends a cohort
            e[at.HOLD] = 0 if e[at.ASYNC] or e[at.PREFIX] else PASSES_OF_HOLD
        call_part(e[at.STEPPER], e, 0, 0, 0, 0)
    return 0
