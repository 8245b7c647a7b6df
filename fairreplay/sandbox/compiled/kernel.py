"""The loop of passes: the one function that is compiled as a whole and cached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numba
import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.changes import apply_changes, next_change, take_arrivals
from fairreplay.sandbox.compiled.cohort import gather, scatter
from fairreplay.sandbox.compiled.giving_way import make_room, may_give_way
from fairreplay.sandbox.compiled.jit import compiled
from fairreplay.sandbox.compiled.leaping import PASSES_OF_HOLD, cohort_pass
from fairreplay.sandbox.compiled.members import refuse_anywhere
from fairreplay.sandbox.compiled.prefix import first_blocks, number_chains
from fairreplay.sandbox.compiled.segments import first_run
from fairreplay.sandbox.compiled.service import Int32s
from fairreplay.sandbox.compiled.sources import digest_of, kernel_sources
from fairreplay.sandbox.compiled.stepping import (
    admit,
    count_prefilling,
    prefill_cap,
    schedule_running,
    start,
    take_output,
)
from fairreplay.sandbox.compiled.sums import add_pass
from fairreplay.sandbox.compiled.waiting import (
    begin_floor_window,
    clear_queues,
    next_queue,
    youngest_waiting,
)
from fairreplay.sandbox.engine import Int64s
from fairreplay.sandbox.reference import PASSES_WITHOUT_PROGRESS_MAX

ROWS_TO_SPARE: Final = 16
"""Room for rows of step sums below which the kernel returns to have them taken away."""


@compiled
def one_pass(
    e: Int64s,
    run: Int64s,
    free_slots: Int64s,
    batch: Int64s,
    flights: Int64s,
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
) -> None:
    """Schedule a batch, start its step, take the output that is due in."""
    e[at.BATCH] = 0
    if e[at.GIVES_WAY] != at.NO_CAP and e[at.WAITING] > 0 and e[at.RUNNING] > 0:
        make_room(
            e, run, free_slots, out, kept, queues, active, head, queue_rows, way, blocks, table, own, found, chains,
            prefix_start, prefix_tokens, arrival, prompt, cut, priority, request_weight, weights,
        )  # fmt: skip
    e[at.CAP] = prefill_cap(e)
    prefill_first = e[at.PREFILL_FIRST] != 0
    for attempt in range(2):
        # prefill-first: prefills alone, then, if there are none, the decoders
        prefills_only = prefill_first and attempt == 0
        left = schedule_running(
            e, run, free_slots, batch, out, kept, queues, active, queue_rows, way, blocks, table, own, found, chains,
            prefix_start, prefix_tokens, arrival, prompt, priority, prefills_only, e[at.BUDGET],
        )  # fmt: skip
        if attempt == 1:
            e[at.DECODE_STEPS] += min(e[at.BATCH], 1)
            break
        may_admit = True
        if prefill_first:
            prefilling = count_prefilling(run)
            may_admit = prefilling > 0 or prefilling == e[at.RUNNING] or e[at.DECODE_STEPS] >= e[at.INTERVAL]
        if may_admit and e[at.PREEMPTED] == e[at.YIELDED]:
            admit(
                e, run, free_slots, batch, out, kept, queues, active, head, way, blocks, table, own, found, chains,
                prefix_start, prefix_tokens, arrival, prompt, cut, request_weight, weights, left,
            )  # fmt: skip
        if not prefill_first:
            break
        if e[at.BATCH] > 0:
            e[at.DECODE_STEPS] = 0
            break
    used = e[at.USABLE] - e[at.FREE]
    duration, prefills, tokens = np.int64(0), np.int64(0), np.int64(0)
    has_batch = e[at.BATCH] > 0
    start_ps = e[at.CLOCK]
    if has_batch:
        duration, prefills, tokens = start(e, run, batch, out, flights)
        start_ps = e[at.BUSY_UNTIL] - duration
    overlap = e[at.ASYNC] != 0 and has_batch and e[at.FLYING] == 1
    took_output = e[at.FLYING] > 0 and not overlap
    if took_output:
        take_output(
            e, run, free_slots, out, kept, flights, queues, active, queue_rows, way, blocks, table, own, found,
            chains, prefix_start, prefix_tokens, prompt, cut, request_weight, weights,
        )  # fmt: skip
    # nobody may block for ever
    e[at.IDLE_PASSES] += 1
    stuck = at.NONE
    if not has_batch and not took_output and e[at.PREEMPTED] == 0 and e[at.RUNNING] == 0 and e[at.WAITING] > 0:
        queue = next_queue(e, queues, active, head, way, kept, out, arrival, prompt, request_weight, weights)
        if queue >= 0:
            stuck = queues[queue + at.HEAD]
        else:  # all types are barred until the window ends
            e[at.CLOCK] = max(e[at.CLOCK], e[at.FLOOR_ENDS])
            if e[at.NEXT_ARRIVAL] < len(arrival):
                e[at.CLOCK] = max(start_ps, min(e[at.CLOCK], arrival[e[at.NEXT_ARRIVAL]]))
    elif e[at.IDLE_PASSES] > PASSES_WITHOUT_PROGRESS_MAX:
        e[at.IDLE_PASSES] = 0
        if e[at.WAITING] > 0:
            stuck = youngest_waiting(e, way)
        else:
            slot = run[at.NEXT]
            while slot != 0:
                stuck = max(stuck, run[slot + at.REQUEST])
                slot = run[slot + at.NEXT]
    if stuck >= 0:
        refuse_anywhere(
            e,
            run,
            free_slots,
            out,
            kept,
            queues,
            active,
            queue_rows,
            way,
            blocks,
            table,
            own,
            found,
            prompt,
            cut,
            stuck,
        )
    if e[at.SUMMING] and (has_batch or took_output or e[at.PREEMPTED] > 0):
        decodes = e[at.BATCH] - prefills
        add_pass(e, sums, rows, start_ps, prefills, decodes, tokens, used)
    if has_batch:
        e[at.STEPS] += 1
    e[at.PREEMPTED] = 0
    e[at.YIELDED] = 0


def _kernel(sources: int) -> Callable[..., bool]:
    """The compiled loop; ``sources`` is part of what its cache is looked up by (``sources``)."""

    def advance(
        e: Int64s,
        run: Int64s,
        free_slots: Int64s,
        batch: Int64s,
        flights: Int64s,
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
        queue_facts: Int64s,
        blocks: Int64s,
        table: Int64s,
        own: Int64s,
        found: Int64s,
        chains: Int64s,
        chain_table: Int64s,
        prefix_start: Int64s,
        prefix_ids: Int64s,
        prefix_tokens: int,
        settings: Int64s,
        weights_at: Int64s,
        weights: Int64s,
        arrival: Int64s,
        prompt: Int64s,
        cut: Int64s,
        priority: Int64s,
        request_weight: Int64s,
        sums: Int64s,
        rows: Int64s,
        passes: int,
    ) -> bool:
        """Go on for up to ``passes`` passes or until ``rows`` is full; True when all is finished or cannot go on."""
        if sources < 0:
            return False
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
        while passes > 0 and e[at.ROWS] <= last_row:
            passes -= 1
            if e[at.CLOCK] > at.HORIZON_PS or e[at.FAILED]:
                return True
            if e[at.RUNNING] == 0 and e[at.WAITING] == 0 and e[at.FLYING] == 0:
                if e[at.NEXT_ARRIVAL] == len(arrival):
                    return True
                e[at.CLOCK] = max(e[at.CLOCK], arrival[e[at.NEXT_ARRIVAL]])
            if e[at.CLOCK] >= change_ps:
                if e[at.COHORT]:
                    scatter(e, run, flights, calendar, marks, phases, queues, weights, request_weight)
                apply_changes(
                    e, settings, weights_at, run, free_slots, out, kept, queues, active, queue_rows, queue_facts,
                    way, blocks, table, own, found, arrival, prompt, cut, priority,
                )  # fmt: skip
                change_ps = next_change(e, settings, weights_at)
            if e[at.FIRST_TYPE] >= 0 and e[at.CLOCK] >= e[at.FLOOR_ENDS]:
                begin_floor_window(e, queues)
            take_arrivals(e, out, queues, active, queue_rows, way, arrival, prompt, cut)
            if e[at.RUNNING] == 0 and e[at.WAITING] == 0 and e[at.FLYING] == 0:
                continue  # all that arrived was refused at the door
            if e[at.GIVES_WAY] != at.NO_CAP and e[at.WAITING] > 0 and may_give_way(e, run, queues, active, priority):
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
            one_pass(
                e, run, free_slots, batch, flights, out, way, kept, queues, active, head, queue_rows, blocks,
                table, own, found, chains, prefix_start, prefix_tokens, weights, arrival, prompt, cut, priority,
                request_weight, sums, rows,
            )  # fmt: skip
        return False

    return numba.njit(cache=True, nogil=True, error_model="numpy", _nrt=False)(advance)


advance = _kernel(digest_of(kernel_sources()))
