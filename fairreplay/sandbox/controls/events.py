"""What controls did, event by event, for the record of a replay."""

from __future__ import annotations

from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.controls.places import Ints


def note(c: Ints, w: Ints, now_ps: int, what: int, who: int, value: int) -> None:
    """An event for the record."""
    if c[at.EVENTS] >= c[at.ROOM]:
        c[at.LOST] += 1
        return
    place = c[at.EVENTS] * at.EVENT
    w[place + at.E_AT] = now_ps
    w[place + at.E_WHAT] = what
    w[place + at.E_WHO] = who
    w[place + at.E_VALUE] = value
    c[at.EVENTS] += 1
