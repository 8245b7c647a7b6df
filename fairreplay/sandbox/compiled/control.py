"""What controls are asked and told: a part of its own, compiled when the first replay has controls.

The controls themselves are those of the plain engine, compiled as they are.
"""

from __future__ import annotations

import inspect

import numba

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import IS_PYTHON, compiled, matrix, scalars_at, small_vector, vector
from fairreplay.sandbox.controls import door, emergency, events, longs, pressure, shares, swap, tickets
from fairreplay.sandbox.controls import places as has
from fairreplay.sandbox.controls.build import HEAVIEST
from fairreplay.sandbox.controls.door import (
    admit,
    arrive,
    expired,
    finish,
    first_token,
    is_barred,
    refuse,
    tick,
    tokens,
    wakes_ps,
)
from fairreplay.sandbox.controls.events import note
from fairreplay.sandbox.controls.places import tenant_at
from fairreplay.sandbox.controls.swap import (
    in_host,
    is_batch_full,
    recovers_in_time,
    swap_in,
    swap_out,
    wait_for_swaps,
)
from fairreplay.sandbox.controls.tickets import prepare
from fairreplay.sandbox.engine import FLOOR_SCALE, NO_REASON, RATE_LIMITED, Int64s

if not IS_PYTHON:
    for module in (has, events, tickets, pressure, longs, shares, emergency, swap, door):
        for function in vars(module).values():
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                numba.extending.register_jitable(nogil=True, error_model="numpy", _nrt=False)(function)


def control(address: int, what: int, _queue: int, ticket: int, number: int) -> int:
    """The part ``control``."""
    e = scalars_at(address)
    c = vector(e, at.TO_C)
    s = vector(e, at.TO_S)
    t = vector(e, at.TO_T)
    w = vector(e, at.TO_W)
    now_ps = e[at.CLOCK]
    answer = 0
    if what == at.TOKENS_SEEN:
        tokens(c, s, t, ticket, number)
    elif what == at.FIRST_TOKEN_SEEN:
        first_token(c, s, t, ticket, now_ps)
    elif what == at.ARRIVED:
        answer = arrive(c, s, t, w, ticket, number)
        write_next(e, c, s, t)
    elif what == at.AT_GATEWAY:
        place = ticket * has.TICKET
        limited = t[place + has.ATTEMPT] <= s[t[place + has.OF] * has.SOURCE + has.S_LIMITED]
        answer = RATE_LIMITED if limited else NO_REASON
    elif what == at.TURNED_AWAY:
        refuse(c, s, t, ticket, number, now_ps)
        write_next(e, c, s, t)
    elif what == at.TICKED:
        tick(c, t, w, now_ps)
        if (c[has.MODE] == has.SINGLE_P99) != (e[at.IN_MODE] != 0):
            answer |= at.SWITCHES
        if 2 * c[has.EVENTS] > c[has.ROOM]:
            answer |= at.FILLED_UP
    elif what == at.EXPIRED:
        answer = expired(c, t, now_ps)
    elif what == at.BAR_HEADS:
        bar_heads(e, c, s, t)
    elif what == at.WAKES:
        answer = wakes_ps(c, t, now_ps)
    elif what == at.ADMITTED:
        admit(c, s, t, w, ticket, number, now_ps)
    elif what == at.CAME_BACK:
        swap_in(c, t, w, ticket, number, now_ps)
    elif what == at.DONE_WITH:
        finish(c, t, ticket)
    elif what == at.MAY_GIVE_WAY:
        full = is_batch_full(c, e[at.BUDGET])
        if not full and recovers_in_time(c, number, e[at.BASE_PS], e[at.PREFILL_PS], e[at.BUDGET]):
            answer = 1
    elif what == at.DENIES:
        note(c, w, now_ps, has.PREEMPTION_DENIED_SEEN, ticket, 0)
        answer = c[has.DENIAL]
    elif what == at.GAVE_WAY:
        note(c, w, now_ps, has.VOLUNTARY_PREEMPTED, ticket, number)
    elif what == at.LOST_BLOCKS:
        swap_out(c, t, w, ticket, number, now_ps)
    elif what == at.IN_HOST:
        answer = in_host(t, ticket)
    elif what == at.STARTED:
        answer = wait_for_swaps(c)
        c[has.UTILISED] = number
    elif what == at.NEW_SETTINGS:
        take_settings(e, c)
    elif what == at.OPEN:
        take_settings(e, c)
        vector(e, at.TO_PREFIX_START)[0] = len(vector(e, at.TO_PREFIX_IDS))
        write_next(e, c, s, t)
    return answer


@compiled
def write_next(e: Int64s, c: Int64s, s: Int64s, t: Int64s) -> None:
    """The next arrival, as things stand, is the next request of the engine's arrays."""
    arrival = vector(e, at.TO_ARRIVAL)
    if prepare(c, s, t) == has.FOREVER:
        return
    ticket = c[has.TICKETS]
    request = t[ticket * has.TICKET + has.OF]
    source = request * has.SOURCE
    arrival[ticket] = t[ticket * has.TICKET + has.ARRIVED]
    prompt = vector(e, at.TO_PROMPT)
    cut = vector(e, at.TO_CUT)
    priority = vector(e, at.TO_PRIORITY)
    weight = vector(e, at.TO_REQUEST_WEIGHT)
    prompt[ticket] = s[source + has.S_PROMPT]
    cut[ticket] = s[source + has.S_CUT]
    priority[ticket] = s[source + has.S_PRIORITY]
    weight[ticket] = s[source + has.S_WEIGHT]
    rows = matrix(e, at.TO_QUEUE_ROWS)
    rows_of = matrix(e, at.TO_QUEUES_OF)
    if rows.shape[1] > 1:
        for row in range(len(rows)):
            rows[row, ticket] = rows_of[row, request]
    if e[at.TO_KIND] != 0:
        copy_extras(e, s, ticket, source)
    if e[at.PREFIX] == 0:
        return
    starts = vector(e, at.TO_PREFIX_START)
    starts_of = vector(e, at.TO_PREFIX_OF)
    chains = vector(e, at.TO_CHAINS)
    begin = starts[ticket]
    first = starts_of[request]
    count = starts_of[request + 1] - first
    starts[ticket + 1] = begin + count
    for position in range(count):
        chains[begin + position] = chains[first + position]


@compiled
def copy_extras(e: Int64s, s: Int64s, ticket: int, source: int) -> None:
    """What only ``extra_stepper`` looks at."""
    vector(e, at.TO_KIND)[ticket] = s[source + has.S_TYPE]
    vector(e, at.TO_TENANT)[ticket] = s[source + has.S_TENANT]
    cost = vector(e, at.TO_COST)
    draw = vector(e, at.TO_DRAW)
    precision = vector(e, at.TO_PRECISION)
    if ticket < len(cost):
        cost[ticket] = s[source + has.S_COST]
    if ticket < len(draw):
        draw[ticket] = s[source + has.S_DRAW]
    if ticket < len(precision):
        precision[ticket] = s[source + has.S_PRECISION]


@compiled
def bar_heads(e: Int64s, c: Int64s, s: Int64s, t: Int64s) -> None:
    """Which heads are passed over at this pass."""
    queues = vector(e, at.TO_QUEUES)
    active = vector(e, at.TO_ACTIVE)
    way = small_vector(e, at.TO_WAY)
    kept = vector(e, at.TO_KEPT)
    prompt = vector(e, at.TO_PROMPT)
    c[has.USED] = e[at.USABLE] - e[at.FREE]
    c[has.USABLE] = e[at.USABLE]
    for place in range(e[at.ACTIVE]):
        queue = active[place]
        ticket = queues[queue + at.HEAD]
        known = prompt[ticket]
        if way[ticket * at.WAY + at.PLACE] == at.BACK:
            known = kept[ticket * at.KEPT + at.KEPT_KNOWN]
        queues[queue + at.BARRED] = 1 if is_barred(c, s, t, ticket, known, e[at.CLOCK]) else 0


@compiled
def take_settings(e: Int64s, c: Int64s) -> None:
    """Settings and weights in force."""
    c[has.QUEUE_TIME] = e[at.QUEUE_TIME]
    c[has.TENANT_LIMIT] = e[at.TENANT_LIMIT]
    weights = matrix(e, at.TO_WEIGHTS)
    for tenant in range(c[has.TENANTS]):
        inverse = max(1, weights[e[at.WEIGHTS], tenant])
        c[tenant_at(tenant) + has.WEIGHT] = max(1, min(HEAVIEST, FLOOR_SCALE * 1024 // inverse))
