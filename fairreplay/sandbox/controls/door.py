"""What the engine tells and asks the controls: at an arrival, at each pass, at admission, at first token and finish."""

from __future__ import annotations

from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.controls.emergency import (
    add_waiting,
    close_window,
    count_arrival,
    count_first_token,
    count_refusal,
    count_served,
    holds_back,
)
from fairreplay.sandbox.controls.longs import admit_long, is_long_barred, refilled_ps
from fairreplay.sandbox.controls.places import Ints, tenant_at
from fairreplay.sandbox.controls.pressure import lets_in, look, queue_up, sample
from fairreplay.sandbox.controls.tickets import come_back, take
from fairreplay.sandbox.engine import (
    BACKPRESSURE,
    COME_BACK,
    NO_REASON,
    TENANT_QUEUE_FULL,
)


def arrive(c: Ints, s: Ints, t: Ints, w: Ints, ticket: int, reason: int) -> int:
    """The prepared ticket arrives. Why it is refused: ``reason`` if there is one already; NO_REASON if it may queue."""
    arrived_ps = t[ticket * at.TICKET + at.ARRIVED]
    tick(c, t, w, arrived_ps)
    take(c, t)
    source = t[ticket * at.TICKET + at.OF] * at.SOURCE
    tenant = s[source + at.S_TENANT]
    place = tenant_at(tenant)
    count_arrival(c, s, source)
    limit = c[place + at.LIMIT] if c[place + at.LIMIT] > 0 else c[at.TENANT_LIMIT]
    pressed = c[at.PRESSURE] != at.NO_PRESSURE and c[place + at.RATE_MAX] > 0
    if reason != NO_REASON:
        return reason
    if limit > 0 and c[place + at.WAITERS] >= limit:
        return TENANT_QUEUE_FULL
    if pressed and not lets_in(c, tenant, arrived_ps):
        return BACKPRESSURE
    t[ticket * at.TICKET + at.STATE] = at.WAITS
    c[place + at.WAITERS] += 1
    c[at.HELD] += 1
    queue_up(c, t, tenant, ticket)
    add_waiting(c, s, source, 1)
    return NO_REASON


def tick(c: Ints, t: Ints, w: Ints, until_ps: int) -> None:
    """Look at the rates and close windows whose instants have come, in order of time."""
    if c[at.HELD] == 0 and c[at.NEXT_CHECK] <= until_ps:
        # after so many looks nothing is in sight and nothing changes any more
        useful = (c[at.SIGNAL_WINDOW] + c[at.DELAY]) // c[at.CHECK] + 2
        due = (until_ps - c[at.NEXT_CHECK]) // c[at.CHECK] + 1
        skipped = max(0, due - useful)
    else:
        useful, skipped = at.FOREVER, 0
    while min(c[at.NEXT_CHECK], c[at.WINDOW_ENDS]) <= until_ps:
        if c[at.WINDOW_ENDS] <= c[at.NEXT_CHECK]:
            close_window(c, w, c[at.WINDOW_ENDS])
            c[at.WINDOW_ENDS] += c[at.WINDOW]
            continue
        look(c, t, w, c[at.NEXT_CHECK])
        c[at.NEXT_CHECK] += c[at.CHECK]
        useful -= 1
        if useful == 0:
            c[at.NEXT_CHECK] += skipped * c[at.CHECK]


def expired(c: Ints, t: Ints, now_ps: int) -> int:
    """A ticket that has waited too long for its first batch, NONE if there is none: to be refused, then ask again."""
    if c[at.QUEUE_TIME] == 0:
        return at.NONE
    _drop_gone(c, t)
    ticket = c[at.OLDEST]
    if ticket < c[at.TICKETS] and t[ticket * at.TICKET + at.ARRIVED] + c[at.QUEUE_TIME] <= now_ps:
        return ticket
    return at.NONE


def _drop_gone(c: Ints, t: Ints) -> None:
    while c[at.OLDEST] < c[at.TICKETS] and t[c[at.OLDEST] * at.TICKET + at.STATE] != at.WAITS:
        c[at.OLDEST] += 1


def refuse(c: Ints, s: Ints, t: Ints, ticket: int, reason: int, now_ps: int) -> None:
    """A ticket was turned away; its request may come back."""
    place = ticket * at.TICKET
    source = t[place + at.OF] * at.SOURCE
    if t[place + at.STATE] == at.WAITS:
        _leave(c, s, t, ticket, now_ps)
    t[place + at.STATE] = at.DONE
    leave_host(c, t, ticket)
    count_refusal(c, s, source)
    if reason in COME_BACK:
        come_back(c, t, ticket, now_ps)


def _leave(c: Ints, s: Ints, t: Ints, ticket: int, now_ps: int) -> None:
    source = t[ticket * at.TICKET + at.OF] * at.SOURCE
    t[ticket * at.TICKET + at.LEFT] = now_ps
    c[tenant_at(s[source + at.S_TENANT]) + at.WAITERS] -= 1
    c[at.HELD] -= 1
    add_waiting(c, s, source, -1)


def is_barred(c: Ints, s: Ints, t: Ints, ticket: int, known: int, now_ps: int) -> bool:
    """Whether a head is passed over for now; one that was preempted has been let in already."""
    if t[ticket * at.TICKET + at.STATE] != at.WAITS:
        return False
    return holds_back(c, s, t[ticket * at.TICKET + at.OF] * at.SOURCE) or is_long_barred(c, known, now_ps)


def wakes_ps(c: Ints, t: Ints, now_ps: int) -> int:
    """When a head that is barred now may be let in or refused, if nothing else changes."""
    wakes = min(c[at.WINDOW_ENDS], refilled_ps(c, now_ps))
    if c[at.QUEUE_TIME] > 0:
        _drop_gone(c, t)
        if c[at.OLDEST] < c[at.TICKETS]:
            wakes = min(wakes, t[c[at.OLDEST] * at.TICKET + at.ARRIVED] + c[at.QUEUE_TIME])
    return wakes


def admit(c: Ints, s: Ints, t: Ints, w: Ints, ticket: int, cached: int, now_ps: int) -> None:
    """A ticket goes to its first batch."""
    source = t[ticket * at.TICKET + at.OF] * at.SOURCE
    _leave(c, s, t, ticket, now_ps)
    t[ticket * at.TICKET + at.STATE] = at.RUNS
    admit_long(c, w, ticket, s[source + at.S_PROMPT], now_ps)
    count_served(c, s, source, c[at.PROMPT_COST] * (s[source + at.S_PROMPT] - cached))


def first_token(c: Ints, s: Ints, t: Ints, ticket: int, now_ps: int) -> None:
    source = t[ticket * at.TICKET + at.OF] * at.SOURCE
    sample(c, t, s[source + at.S_TENANT], ticket, now_ps)
    count_first_token(c, s, source, now_ps - t[ticket * at.TICKET + at.ARRIVED])


def tokens(c: Ints, s: Ints, t: Ints, ticket: int, count: int) -> None:
    """A ticket was given output tokens."""
    count_served(c, s, t[ticket * at.TICKET + at.OF] * at.SOURCE, count * c[at.OUTPUT_COST])


def finish(c: Ints, t: Ints, ticket: int) -> None:
    t[ticket * at.TICKET + at.STATE] = at.DONE
    leave_host(c, t, ticket)


def leave_host(c: Ints, t: Ints, ticket: int) -> None:
    """What a ticket has in host memory is not needed any more."""
    c[at.SWAPPED] -= t[ticket * at.TICKET + at.HOST]
    t[ticket * at.TICKET + at.HOST] = 0
