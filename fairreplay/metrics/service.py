"""Served tokens over time, and what still waits: one rule for the log and for every sandbox row, in integers.

Prompt tokens lie evenly over scheduled..first token (from the arrival where the schedule is unknown), output tokens
evenly over first token..finish. ``spread = "decode"`` puts all of a request over first token..finish, as the VTC
artifact does for its published numbers. Amounts are thousandths of a token, by cumulative floor division, so that the
windows of a request add up to the whole exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from fairreplay.config.model import Cost
from fairreplay.metrics.entitlement import Floats
from fairreplay.metrics.load import FOREVER, OK, REJECTED, UNFINISHED, UNKNOWN, Bools, Columns, Ints
from fairreplay.metrics.windows import Grid

MILLI: Final = 1000
PIECES_MAX: Final = 1 << 21
"""Pieces of requests (one for each window that a request runs in) that are held at once."""
KINDS: Final = ("prompt", "cached", "output")
"""Kinds of tokens with a price each: computed prompt, prompt from the prefix cache, generated."""


class Sums:
    """Exact sums of thousandths of tokens and of requests over (window, key); one key a row, tenant or type."""

    def __init__(self, windows: int, key: Ints, keys: int) -> None:
        self._key = key
        # One window more than there are: what lasts beyond the last one leaves there.
        self._shape = (windows + 1, keys)
        self._sums: dict[str, Ints] = {}

    def add(self, name: str, rows: Ints, window: Ints, amount: Ints | None = None) -> None:
        """Add ``amount`` (1 if left out) of each of ``rows`` in its ``window``; exact below 2**53."""
        cell = window * self._shape[1] + self._key[rows]
        added = np.bincount(cell, amount, minlength=self._shape[0] * self._shape[1]).astype(np.int64)
        self._sums[name] = self._sums[name] + added if name in self._sums else added

    def get(self, name: str) -> Ints:
        """Shape (windows, keys)."""
        if name not in self._sums:
            return np.zeros((self._shape[0] - 1, self._shape[1]), np.int64)
        return self._sums[name].reshape(self._shape)[:-1]

    def held(self, name: str) -> Ints:
        """What came (``name+``) less what left (``name-``) up to each window, shape (windows, keys)."""
        return np.cumsum(self.get(f"{name}+") - self.get(f"{name}-"), axis=0)

    def served(self, cost: Cost) -> Floats:
        """Service units delivered in each window."""
        return _units({kind: self.get(f"served {kind}") for kind in KINDS}, cost)

    def unmet(self, cost: Cost) -> Floats:
        """Service units of what waits at each window's end or was refused in it."""
        waiting = {kind: self.held(f"waiting {kind}") - self.get(f"begun {kind}") for kind in KINDS}
        return _units({kind: waiting[kind] + self.get(f"refused {kind}") for kind in KINDS}, cost)

    def backlog(self) -> Bools:
        """Whether any request waits at the window's end or was refused in it."""
        return np.asarray(self.held("waiting") + self.get("refused") > 0)


def _units(milli: dict[str, Ints], cost: Cost) -> Floats:
    prices = {"prompt": cost.prompt, "cached": cost.cached, "output": cost.output}
    return np.asarray(sum(milli[kind] * prices[kind] for kind in KINDS) / MILLI, np.float64)


def served_until(instant: Ints, begin: Ints, end: Ints, tokens: Ints) -> Ints:
    """Thousandths of ``tokens`` served before ``instant`` when spread evenly over ``begin``..``end``."""
    whole = tokens * MILLI
    span = np.maximum(end - begin, 0)
    elapsed = np.clip(instant - begin, 0, span)
    part = muldiv(whole, elapsed, np.maximum(span, 1))
    return np.asarray(np.where(instant <= begin, 0, np.where(elapsed >= span, whole, part)), np.int64)


def muldiv(a: Ints, b: Ints, divisor: Ints) -> Ints:
    """``a * b // divisor`` where 0 <= b <= divisor and a * b may not fit into 64 bits.

    Long division: b is taken in digits so small that a remainder times a digit fits.
    """
    if len(a) == 0:
        return a
    width = int(divisor.max()).bit_length()
    whole, rest = np.divmod(a, divisor)
    if 2 * width <= 63:
        return np.asarray(whole * b + rest * b // divisor, np.int64)
    bits = 62 - width
    quotient, remainder = np.zeros_like(a), np.zeros_like(a)
    for place in reversed(range(0, width, bits)):
        digit = (b >> place) & ((1 << bits) - 1)
        carry, remainder = np.divmod((remainder << bits) + rest * digit, divisor)
        quotient = (quotient << bits) + carry
    return np.asarray(whole * b + quotient, np.int64)


@dataclass(frozen=True)
class Span:
    """Tokens of some kinds of a request, spread evenly over ``begin``..``end`` (microseconds)."""

    rows: Ints
    begin: Ints
    end: Ints
    tokens: dict[str, Ints]


def spans(rows: Columns, spread: str, kinds: tuple[str, ...] = KINDS) -> list[Span]:
    """What each request was served and when.

    A request that is not known to have been answered was served nothing. One whose first token is unknown but whose
    finish is known (a log of end-to-end times) is served evenly from schedule or arrival to finish.
    """
    first = np.where((rows.first_token == UNKNOWN) & (rows.status == OK), rows.finished, rows.first_token)
    which = np.flatnonzero((first != UNKNOWN) & (rows.status != REJECTED))
    first, logged_first = first[which], rows.first_token[which]
    begin = _either(rows.scheduled, rows.arrived)[which]
    end = _either(rows.finished, rows.first_token)[which]
    tokens = {kind: getattr(rows, kind)[which] for kind in kinds}
    if spread == "decode":
        return [Span(which, first, np.maximum(first, end), tokens)]
    output_begin = np.where(logged_first == UNKNOWN, begin, first)
    prompt = {kind: tokens[kind] for kind in kinds if kind != "output"}
    output = {kind: tokens[kind] for kind in kinds if kind == "output"}
    parts = [
        Span(which, begin, np.maximum(begin, first), prompt),
        Span(which, output_begin, np.maximum(output_begin, end), output),
    ]
    return [part for part in parts if part.tokens]


def add_served(span: Span, grid: Grid, *sums: Sums) -> None:
    """Add the part of ``span`` that lies in each window, as ``served <kind>``."""
    inside = (span.end >= grid.start_us) & (span.begin < grid.end_us)
    low = np.clip(grid.index(span.begin), 0, grid.count - 1)
    # The end is exclusive, but a span of no length lies in the window of its instant.
    high = np.clip(grid.index(np.maximum(span.end - 1, span.begin)), 0, grid.count - 1)
    for piece, window in pieces(low, np.where(inside, high, -1)):
        lower = grid.start_us + grid.size_us * window
        upper = lower + grid.size_us
        cut = np.flatnonzero((span.begin[piece] < lower) | (span.end[piece] > upper))
        begin, end = span.begin[piece[cut]], span.end[piece[cut]]
        for kind, tokens in span.tokens.items():
            amount = tokens[piece] * MILLI
            whole = tokens[piece[cut]]
            amount[cut] = served_until(upper[cut], begin, end, whole) - served_until(lower[cut], begin, end, whole)
            for one in sums:
                one.add(f"served {kind}", span.rows[piece], window, amount)


def add_waiting(rows: Columns, spread: str, grid: Grid, *sums: Sums) -> None:
    """Add the requests not yet scheduled at a window's end, as ``waiting`` (how many) and ``waiting <kind>``.

    Where ``scheduled_at`` is unknown, a request waits until its first token; the part of its prompt that the spread has
    served by then (``begun <kind>``) is not waiting any more, so nothing is counted twice. One that got neither waits
    until its refusal or failure.
    """
    stop = waits_until(rows)
    low = np.maximum(grid.index(rows.arrived), 0)
    beyond = np.minimum(grid.index(stop - 1), grid.count)  # its end lies after the wait
    which = np.flatnonzero((stop > grid.start_us) & (rows.arrived < grid.end_us) & (low < beyond))
    low, beyond = low[which], beyond[which]
    for kind in (None, *KINDS):
        name, amount = ("waiting", None) if kind is None else (f"waiting {kind}", getattr(rows, kind)[which] * MILLI)
        for one in sums:
            one.add(f"{name}+", which, low, amount)
            one.add(f"{name}-", which, beyond, amount)
    begun = (rows.scheduled[which] == UNKNOWN) & (rows.first_token[which] != UNKNOWN)
    if spread != "phases" or not begun.any():
        return
    for piece, window in pieces(low, np.where(begun, beyond - 1, -1)):
        row = which[piece]
        upper = grid.start_us + grid.size_us * (window + 1)
        for kind in ("prompt", "cached"):
            done = served_until(upper, rows.arrived[row], rows.first_token[row], getattr(rows, kind)[row])
            for one in sums:
                one.add(f"begun {kind}", row, window, done)


def waits_until(rows: Columns) -> Ints:
    """When a request's wait ends, in microseconds; one that has no instant but its arrival is not known to have waited.

    Nor is one that was answered, of which only the finish is known: it was served all along (``spans``).

    An ``unfinished`` request waits on past the trace's end.
    """
    never = np.where(rows.status == UNFINISHED, FOREVER, rows.arrived)
    gone = np.where(rows.status != OK, rows.finished, UNKNOWN)
    return _either(rows.scheduled, _either(rows.first_token, _either(gone, never)))


def add_refused(rows: Columns, grid: Grid, *sums: Sums) -> None:
    """Add the requests refused in a window (at the refusal, else the arrival), as ``refused`` and ``refused <kind>``."""
    window = grid.index(_either(rows.finished, rows.arrived))
    which = np.flatnonzero((rows.status == REJECTED) & (window >= 0) & (window < grid.count))
    for one in sums:
        one.add("refused", which, window[which])
        for kind in KINDS:
            one.add(f"refused {kind}", which, window[which], getattr(rows, kind)[which] * MILLI)


def backlogged_through(rows: Columns, grid: Grid, tenants: int) -> Bools:
    """Whether each tenant had a waiting request at every instant of a window, shape (windows, tenants).

    ``rows`` stand in order of arrival.
    """
    stop = np.minimum(waits_until(rows), grid.end_us)
    begin = np.maximum(rows.arrived, grid.start_us)
    which = np.flatnonzero(stop > begin)
    which = which[np.argsort(rows.tenant[which].astype(np.min_scalar_type(tenants)), kind="stable")]
    through = np.zeros((grid.count + 1) * tenants, np.int64)
    if len(which):
        tenant, begin, stop = rows.tenant[which], begin[which], stop[which]
        # Each tenant's waits are merged; instants are moved so far apart that one pass over all tenants does it.
        moved = tenant * (grid.end_us - grid.start_us + 1)
        latest = np.maximum.accumulate(stop - grid.start_us + moved)
        new = np.concatenate([[True], begin[1:] - grid.start_us + moved[1:] > latest[:-1]])
        first = np.flatnonzero(new)
        last = np.concatenate([first[1:], [len(which)]]) - 1
        low = -((grid.start_us - begin[first]) // grid.size_us)
        beyond = (latest[last] - moved[last]) // grid.size_us
        whole = low < beyond
        key = tenant[first]
        through += np.bincount((low * tenants + key)[whole], minlength=len(through))
        through -= np.bincount((beyond * tenants + key)[whole], minlength=len(through))
    return np.asarray(np.cumsum(through.reshape(grid.count + 1, tenants), axis=0)[:-1] > 0)


def pieces(low: Ints, high: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Every place i and window in ``low[i]..high[i]`` (none where high < low), some ``PIECES_MAX`` at once."""
    count = np.maximum(high - low + 1, 0)
    if len(count) == 0 or int(count.max()) <= 0:
        return
    total = np.cumsum(count)
    first = 0
    while first < len(count):
        taken = int(total[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(total, taken + PIECES_MAX, side="right")))
        part = count[first:last]
        place = np.repeat(np.arange(first, last, dtype=np.int64), part)
        before = np.repeat(np.cumsum(part) - part, part)
        yield place, low[place] + np.arange(len(place)) - before
        first = last


def request_cost(rows: Columns, cost: Cost) -> Floats:
    """Service units of each whole request."""
    return np.asarray(rows.prompt * cost.prompt + rows.cached * cost.cached + rows.output * cost.output, np.float64)


def _either(wanted: Ints, other: Ints) -> Ints:
    """``wanted``, and ``other`` where it is unknown."""
    return np.asarray(np.where(wanted == UNKNOWN, other, wanted), np.int64)
