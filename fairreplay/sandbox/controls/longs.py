"""Admission by context length: near KV saturation long contexts come in at a lower rate, short ones at the full one."""

from __future__ import annotations

from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.controls.events import note
from fairreplay.sandbox.controls.places import Ints
from fairreplay.sandbox.controls.pressure import PS_PER_US, UNITS, fill

MILLION = 10**6


def is_saturated(c: Ints) -> bool:
    return c[at.USED] * MILLION >= c[at.LONG_SATURATION] * c[at.USABLE]


def is_long_barred(c: Ints, tokens: int, now_ps: int) -> bool:
    """Whether a context of so many tokens has to wait for its turn among the long ones."""
    if c[at.LONG_TOKENS] == 0 or tokens < c[at.LONG_TOKENS] or not is_saturated(c):
        return False
    fill(c, at.LONG_LEVEL, at.LONG_AT, c[at.LONG_RATE], UNITS, now_ps)
    return c[at.LONG_LEVEL] < UNITS


def admit_long(c: Ints, w: Ints, ticket: int, tokens: int, now_ps: int) -> None:
    """Somebody was admitted; near saturation a long context uses up its turn."""
    if c[at.LONG_TOKENS] == 0 or tokens < c[at.LONG_TOKENS] or not is_saturated(c):
        return
    c[at.LONG_LEVEL] -= UNITS
    note(c, w, now_ps, at.LONG_ADMITTED, ticket, tokens)


def refilled_ps(c: Ints, now_ps: int) -> int:
    """When the next long context may come in, if it may not now and nothing else changes; else FOREVER."""
    if c[at.LONG_TOKENS] == 0 or c[at.LONG_LEVEL] >= UNITS or c[at.LONG_RATE] == 0:
        return at.FOREVER
    missing = UNITS - c[at.LONG_LEVEL]
    full_ps = (c[at.LONG_AT] + (missing + c[at.LONG_RATE] - 1) // c[at.LONG_RATE]) * PS_PER_US
    return full_ps if full_ps > now_ps else at.FOREVER
