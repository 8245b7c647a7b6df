"""One pass that is stepped request by request: a part of its own, which the kernel calls."""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.giving_way import make_room
from fairreplay.sandbox.compiled.jit import compiled, matrix, scalars_at, small_vector, vector
from fairreplay.sandbox.compiled.members import refuse_anywhere
from fairreplay.sandbox.compiled.service import tell
from fairreplay.sandbox.compiled.stepping import (
    admit,
    count_prefilling,
    prefill_cap,
    schedule_running,
    start,
    take_output,
)
from fairreplay.sandbox.compiled.sums import add_pass
from fairreplay.sandbox.compiled.waiting import next_queue, youngest_waiting
from fairreplay.sandbox.engine import PASSES_WITHOUT_PROGRESS_MAX, Int32s, Int64s


def step(address: int, _what: int, _queue: int, _request: int, _number: int) -> int:
    """The part ``stepper``."""
    e = scalars_at(address)
    one_pass(
        e,
        vector(e, at.TO_RUN),
        vector(e, at.TO_FREE_SLOTS),
        vector(e, at.TO_BATCH),
        matrix(e, at.TO_FLIGHTS),
        matrix(e, at.TO_OUT),
        small_vector(e, at.TO_WAY),
        vector(e, at.TO_KEPT),
        vector(e, at.TO_QUEUES),
        vector(e, at.TO_ACTIVE),
        vector(e, at.TO_HEAD),
        matrix(e, at.TO_QUEUE_ROWS),
        vector(e, at.TO_BLOCKS),
        vector(e, at.TO_TABLE),
        matrix(e, at.TO_OWN),
        vector(e, at.TO_FOUND),
        vector(e, at.TO_CHAINS),
        vector(e, at.TO_PREFIX_START),
        e[at.PREFIX_TOKENS],
        matrix(e, at.TO_WEIGHTS),
        vector(e, at.TO_ARRIVAL),
        vector(e, at.TO_PROMPT),
        vector(e, at.TO_CUT),
        vector(e, at.TO_PRIORITY),
        vector(e, at.TO_REQUEST_WEIGHT),
        vector(e, at.TO_SUMS),
        matrix(e, at.TO_ROWS),
    )
    return 0


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
        else:  # all heads are barred until a window ends or controls let them in
            e[at.IDLE_PASSES] = 0
            opens = e[at.FLOOR_ENDS]
            if e[at.CONTROL]:
                opens = min(opens, tell(e, at.WAKES, 0, 0))
            e[at.CLOCK] = max(e[at.CLOCK], opens)
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
