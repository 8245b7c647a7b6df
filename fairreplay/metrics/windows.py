"""The grid of windows: tumbling, aligned to the epoch, complete. A stalled minute is a window, not a hole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fairreplay.errors import UsageError
from fairreplay.metrics.options import WHOLE_PERIOD, MeasureOptions
from fairreplay.trace.schema import TIMESTAMP
from fairreplay.trace.values import epoch_us, iso

Ints = NDArray[np.int64]

WINDOWS_MAX: Final = 1_000_000
"""A fortnight has 20,160 minutes. More windows than this are a mistake of units, or of clocks in the log."""


@dataclass(frozen=True)
class Grid:
    """Windows ``[start + i*size, start + (i+1)*size)`` for i in 0..count-1; microseconds since the epoch."""

    start_us: int
    size_us: int
    count: int

    @property
    def end_us(self) -> int:
        return self.start_us + self.size_us * self.count

    def index(self, instant_us: Ints) -> Ints:
        """Window numbers of instants (may lie outside 0..count-1)."""
        return np.asarray((instant_us - self.start_us) // self.size_us)

    def starts_us(self) -> Ints:
        return self.start_us + self.size_us * np.arange(self.count, dtype=np.int64)

    def frame(self) -> pl.DataFrame:
        """One row a window: ``start``, ``end``."""
        starts = self.starts_us()
        return pl.DataFrame(
            {"start": pl.Series(starts).cast(TIMESTAMP), "end": pl.Series(starts + self.size_us).cast(TIMESTAMP)}
        )

    def parts(self, windows_max: int) -> Iterator[Grid]:
        """The same windows in time order, at most ``windows_max`` at once."""
        for first in range(0, self.count, windows_max):
            yield Grid(self.start_us + self.size_us * first, self.size_us, min(windows_max, self.count - first))


def grid(first_us: int, end_us: int, options: MeasureOptions) -> Grid:
    """The grid over rows whose first arrival and last instant are ``first_us`` and ``end_us``.

    From the first arrival (or ``since``) to the last instant (or ``until``), so that the drain after the last arrival
    has its windows too. The whole period as one window is exactly ``[since, until)`` where they are given; its end is
    else just after the last instant.

    Raises:
        UsageError: more than ``WINDOWS_MAX`` windows.
    """
    first = epoch_us(options.since) if options.since else first_us
    end = epoch_us(options.until) if options.until else end_us + 1
    end = max(end, first + 1)
    if options.window_us == WHOLE_PERIOD:
        return Grid(first, end - first, 1)
    size = options.window_us
    start = (first - options.offset_us) // size * size + options.offset_us
    count = -(-(end - start) // size)
    if count > WINDOWS_MAX:
        raise UsageError(
            f"{count} windows of {size / 1e6:g} s between {iso(start)} and {iso(end)}, but at most {WINDOWS_MAX} are "
            "measured: choose a larger --window, or narrow the period with --since and --until"
        )
    return Grid(start, size, count)
