"""Arrivals, and the return of what was refused: every arrival of a request is a ticket of its own."""

from __future__ import annotations

from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.controls.places import Ints


def prepare(c: Ints, s: Ints, t: Ints) -> int:
    """Write the next ticket, as things stand now, and give its arrival; FOREVER if nobody is to come.

    Of equal instants the request that comes back is first.
    """
    first, back = at.FOREVER, at.FOREVER
    if c[at.NEXT_REQUEST] < c[at.REQUESTS]:
        first = s[c[at.NEXT_REQUEST] * at.SOURCE + at.S_ARRIVAL]
    if c[at.BACK_FIRST] >= 0:
        back = t[c[at.BACK_FIRST] * at.TICKET + at.COMES_BACK]
    if first == at.FOREVER and back == at.FOREVER:
        return at.FOREVER
    ticket = c[at.TICKETS] * at.TICKET
    c[at.FROM_RETRY] = 1 if back <= first else 0
    if back <= first:
        before = c[at.BACK_FIRST] * at.TICKET
        t[ticket + at.OF] = t[before + at.OF]
        t[ticket + at.ATTEMPT] = t[before + at.ATTEMPT] + 1
        t[ticket + at.ARRIVED] = back
    else:
        t[ticket + at.OF] = c[at.NEXT_REQUEST]
        t[ticket + at.ATTEMPT] = 1
        t[ticket + at.ARRIVED] = first
    t[ticket + at.LEFT] = at.FOREVER
    t[ticket + at.FIRST_TOKEN] = at.NONE
    t[ticket + at.NEXT_SAMPLE] = at.NONE
    t[ticket + at.NEXT_WAITING] = at.NONE
    return t[ticket + at.ARRIVED]


def take(c: Ints, t: Ints) -> None:
    """The prepared ticket arrives."""
    if c[at.FROM_RETRY]:
        c[at.BACK_FIRST] = t[c[at.BACK_FIRST] * at.TICKET + at.NEXT_BACK]
    else:
        c[at.NEXT_REQUEST] += 1
    c[at.TICKETS] += 1


def come_back(c: Ints, t: Ints, ticket: int, now_ps: int) -> None:
    """A refused ticket's request returns after a while, unless it has been refused too often."""
    place = ticket * at.TICKET
    if t[place + at.ATTEMPT] > c[at.ATTEMPTS]:
        return
    t[place + at.COMES_BACK] = now_ps + c[at.RETRY_AFTER]
    t[place + at.NEXT_BACK] = at.NONE
    if c[at.BACK_FIRST] < 0:
        c[at.BACK_FIRST] = ticket
    else:
        t[c[at.BACK_LAST] * at.TICKET + at.NEXT_BACK] = ticket
    c[at.BACK_LAST] = ticket
