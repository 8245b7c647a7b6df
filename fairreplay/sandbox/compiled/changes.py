"""What happens between passes: settings and weights that change, and requests that arrive."""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import compiled, inlined
from fairreplay.sandbox.compiled.members import blocks_for, final_tokens, preempt, refuse, victim_of
from fairreplay.sandbox.compiled.prefix import resize_cache
from fairreplay.sandbox.compiled.segments import bury_run, resize_runs
from fairreplay.sandbox.compiled.service import ask, queue_of, tell
from fairreplay.sandbox.compiled.waiting import (
    clear_queues,
    greet,
    oldest_waiting,
    push,
    remove,
    waits,
)
from fairreplay.sandbox.engine import (
    NEVER_FITS,
    NO_REASON,
    QUEUE_FULL,
    QUEUE_TIME,
    RATE_LIMITED,
    TOO_LONG,
    Int32s,
    Int64s,
)


@inlined
def next_change(e: Int64s, settings: Int64s, weights_at: Int64s) -> int:
    """When settings or weights change next; after the end of time if never."""
    instant = np.int64(2**63 - 1)
    if e[at.NEXT_SETTINGS] < e[at.STATES]:
        instant = settings[e[at.NEXT_SETTINGS], at.AT_PS - at.SETTINGS]
    if e[at.NEXT_WEIGHTS] < len(weights_at):
        instant = min(instant, weights_at[e[at.NEXT_WEIGHTS]])
    return instant


@compiled
def apply_changes(
    e: Int64s,
    settings: Int64s,
    weights_at: Int64s,
    run: Int64s,
    free_slots: Int64s,
    out: Int64s,
    kept: Int64s,
    queues: Int64s,
    active: Int64s,
    queue_rows: Int64s,
    queue_facts: Int64s,
    way: Int32s,
    blocks: Int64s,
    table: Int64s,
    own: Int64s,
    found: Int64s,
    arrival: Int64s,
    prompt: Int64s,
    cut: Int64s,
    priority: Int64s,
) -> None:
    """Settings and weights whose instant has come. A cache that shrank preempts until what is in use fits."""
    usable = e[at.USABLE]
    policy = e[at.POLICY_NUMBER]
    states = e[at.STATES]
    while e[at.NEXT_SETTINGS] < states and settings[e[at.NEXT_SETTINGS], at.AT_PS - at.SETTINGS] <= e[at.CLOCK]:
        # the policy's part is copied too: until the queues are sorted anew below nothing reads them
        row = e[at.NEXT_SETTINGS] + states * e[at.IN_MODE]
        for column in range(at.SETTINGS_WIDTH):
            e[at.SETTINGS + column] = settings[row, column]
        e[at.NEXT_SETTINGS] += 1
        e[at.NEXT_BAD] = 0
    while e[at.NEXT_WEIGHTS] < len(weights_at) and weights_at[e[at.NEXT_WEIGHTS]] <= e[at.CLOCK]:
        e[at.WEIGHTS] = e[at.NEXT_WEIGHTS]
        e[at.NEXT_WEIGHTS] += 1
    if e[at.POLICY_NUMBER] != policy:
        oldest = oldest_waiting(e, queues, active) if e[at.WAITING] > 0 else e[at.NEXT_ARRIVAL]
        e[at.FLOOR_ENDS] = at.HORIZON_PS
        clear_queues(e, queues, queue_facts)
        for request in range(oldest, e[at.NEXT_ARRIVAL]):
            if waits(way, request):
                kept[request * at.KEPT + at.KEPT_TAG] = at.NONE
                greet(e, queues, active, queue_rows, request)
                push(e, queues, active, queue_rows, way, prompt, request)
        slot = run[at.NEXT]
        while slot != 0:
            queue = queue_of(e, queue_rows, run[slot + at.REQUEST])
            kept[run[slot + at.REQUEST] * at.KEPT + at.KEPT_TAG] = at.NONE
            run[slot + at.FLAGS] = (run[slot + at.FLAGS] & ((1 << at.FLAG_BITS) - 1)) | (queue << at.FLAG_BITS)
            slot = run[slot + at.NEXT]
    if e[at.POLICY] >= at.KEEPS_RANKS:
        ask(e, at.CHANGE, 0, 0, 0)
    if e[at.USABLE] == usable:
        return
    if e[at.PREFIX] == at.BLOCKS:
        resize_cache(e, blocks, table, e[at.USABLE])
    elif e[at.PREFIX]:
        resize_runs(e, blocks, kept, e[at.USABLE])
    else:
        e[at.FREE] += e[at.USABLE] - usable
    while e[at.FREE] < 0:
        preempt(
            e, run, free_slots, out, kept, queues, active, queue_rows, way,
            blocks, table, own, found, prompt, victim_of(e, run, priority, arrival),
        )  # fmt: skip
    if e[at.WAITING] == 0:
        return
    for request in range(oldest_waiting(e, queues, active), e[at.NEXT_ARRIVAL]):
        if waits(way, request) and not ever_fits(e, prompt, cut, request):
            remove(e, queues, active, queue_rows, way, prompt, cut, request)
            if e[at.PREFIX] == at.RUNS:
                bury_run(e, blocks, kept, request)
            refuse(e, out, way, request, np.int64(NEVER_FITS))


@inlined
def ever_fits(e: Int64s, prompt: Int64s, cut: Int64s, request: int) -> bool:
    return blocks_for(e, final_tokens(prompt[request], cut[request])) <= e[at.USABLE]


@inlined
def refusal(e: Int64s, prompt: Int64s, cut: Int64s, request: int) -> int:
    """Why ``request`` is turned away at the door, NO_REASON if it is not."""
    if prompt[request] >= e[at.MODEL_LEN]:
        return TOO_LONG
    if not ever_fits(e, prompt, cut, request):
        return NEVER_FITS
    return NO_REASON


@inlined
def take_arrivals(
    e: Int64s,
    out: Int64s,
    queues: Int64s,
    active: Int64s,
    queue_rows: Int64s,
    way: Int32s,
    arrival: Int64s,
    prompt: Int64s,
    cut: Int64s,
) -> None:
    """Requests whose time has come join their queues, or are refused at the door."""
    request = e[at.NEXT_ARRIVAL]
    clock = e[at.CLOCK]
    while request < len(arrival) and arrival[request] <= clock:
        if e[at.MODEL_LEN_VARIES]:
            cut[request] = min(cut[request], max(0, e[at.MODEL_LEN] - prompt[request]))
        reason = refusal(e, prompt, cut, request)
        if e[at.POLICY] == at.RPM_LIMIT and reason == NO_REASON:
            if e[at.CONTROL]:
                reason = tell(e, at.AT_GATEWAY, request, 0)
            elif queues[queue_of(e, queue_rows, request) + at.TARGET] != 0:
                reason = RATE_LIMITED
        if reason == NO_REASON and e[at.WAITING] >= e[at.QUEUE_LIMIT]:
            reason = QUEUE_FULL
        if e[at.CONTROL]:
            reason = tell(e, at.ARRIVED, request, reason)
        if reason != NO_REASON:
            refuse(e, out, way, request, reason)
        else:
            greet(e, queues, active, queue_rows, request)
            way[request * at.WAY + at.PLACE] = at.NEW
            push(e, queues, active, queue_rows, way, prompt, request)
        request += 1
    e[at.NEXT_ARRIVAL] = request


@compiled
def refuse_expired(
    e: Int64s,
    out: Int64s,
    queues: Int64s,
    active: Int64s,
    queue_rows: Int64s,
    way: Int32s,
    prompt: Int64s,
    cut: Int64s,
) -> None:
    """Who has waited too long for its first batch is turned away."""
    request = tell(e, at.EXPIRED, 0, 0)
    while request >= 0:
        remove(e, queues, active, queue_rows, way, prompt, cut, request)
        refuse(e, out, way, request, np.int64(QUEUE_TIME))
        request = tell(e, at.EXPIRED, 0, 0)
