"""The time grid: tumbling windows aligned to the epoch, every one of them there whether or not anything happened in it.

All instants are int64 microseconds since the epoch in UTC; a zone is a label of the page, so no window ever moves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fairreplay.errors import UsageError

Int64s = NDArray[np.int64]

WINDOWS_MAX: Final = 2_000_000
DEFAULT_SIZE_US: Final = 60_000_000
"""What stands in where a rule needs windows and the period is one window."""

_UNITS_US: Final = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "min": 60_000_000, "h": 3_600_000_000}
_UNITS_US["d"] = 24 * _UNITS_US["h"]
_SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*")


def parse_size(text: str, option: str = "--window") -> int:
    """A window size in microseconds; ``"0"`` is 0: the whole period as one window.

    Raises:
        UsageError: not a number with a unit (ms, s, m, h, d), or below one millisecond; names ``option``.
    """
    if text.strip() == "0":
        return 0
    match = _SIZE.fullmatch(text)
    unit = _UNITS_US.get(match[2]) if match else None
    size_us = round(float(match[1]) * unit) if match and unit else 0
    if size_us < 1_000:
        raise UsageError(f'{option} {text!r}: not a window size such as "60s", "500ms", "5m", "1h" or "0"')
    return size_us


@dataclass(frozen=True)
class Grid:
    """Windows ``[edges[w], edges[w + 1])``; inner edges are multiples of ``size_us`` (0: one window)."""

    edges: Int64s
    size_us: int

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def start_us(self) -> int:
        return int(self.edges[0])

    @property
    def end_us(self) -> int:
        return int(self.edges[-1])

    def index(self, at_us: pl.Expr) -> pl.Expr:
        """Window of each instant, which lies in [``start_us``, ``end_us``)."""
        if self.size_us == 0:
            return at_us * 0
        return at_us // self.size_us - self.start_us // self.size_us

    def within(self, at_us: pl.Expr) -> pl.Expr:
        return (at_us >= self.start_us) & (at_us < self.end_us)

    def edge(self, window: pl.Expr) -> pl.Expr:
        """The instant at which each window begins."""
        if self.size_us == 0:
            return pl.when(window <= 0).then(self.start_us).otherwise(self.end_us)
        inner = (window + self.start_us // self.size_us) * self.size_us
        return inner.clip(self.start_us, self.end_us)


def grid(size_us: int, since_us: int, until_us: int) -> Grid:
    """Every window of [``since_us``, ``until_us``), empty ones too; the first and last are cut to that period.

    Raises:
        UsageError: more than ``WINDOWS_MAX`` windows.
    """
    if size_us == 0:
        return Grid(np.array([since_us, until_us], dtype=np.int64), 0)
    first, last = since_us // size_us, -(-until_us // size_us)
    if last - first > WINDOWS_MAX:
        raise UsageError(
            f"--window: {last - first} windows of {size_us / 1e6:g} s in the period, the most are {WINDOWS_MAX}; "
            "take longer windows, or narrow the period with --since and --until"
        )
    edges = np.arange(first, last + 1, dtype=np.int64) * size_us
    edges[0], edges[-1] = since_us, until_us
    return Grid(edges, size_us)
