"""The grid of windows: tumbling, aligned to the epoch, complete. A stalled minute is a window, not a hole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from fairreplay.metrics.options import WHOLE_PERIOD, MeasureOptions
from fairreplay.trace.schema import TIME_COLUMNS, TIMESTAMP
from fairreplay.trace.values import epoch_us


@dataclass(frozen=True)
class Grid:
    """Windows ``[start + i*size, start + (i+1)*size)`` for i in 0..count-1; microseconds since the epoch."""

    start_us: int
    size_us: int
    count: int

    @property
    def end_us(self) -> int:
        return self.start_us + self.size_us * self.count

    def index(self, instant: pl.Expr) -> pl.Expr:
        """Window number of an instant column (may lie outside 0..count-1)."""
        return (instant.cast(pl.Int64) - self.start_us).floordiv(self.size_us)

    def frame(self) -> pl.DataFrame:
        """One row a window: ``window`` (number), ``start``, ``end``."""
        starts = self.start_us + self.size_us * np.arange(self.count, dtype=np.int64)
        return pl.DataFrame(
            {
                "window": np.arange(self.count, dtype=np.int64),
                "start": pl.Series(starts).cast(TIMESTAMP),
                "end": pl.Series(starts + self.size_us).cast(TIMESTAMP),
            }
        )


def grid(group: pl.DataFrame, options: MeasureOptions) -> Grid:
    """The grid over one model group (canonical columns, not empty).

    From the first arrival (or ``since``) to the last instant that the group knows (or ``until``), so that the drain
    after the last arrival has its windows too. The whole period as one window is exactly ``[since, until)`` where they
    are given; its end is else just after the last instant.
    """
    first = epoch_us(options.since) if options.since else int(group["arrived_at"].cast(pl.Int64).min())  # type: ignore[arg-type]
    end = epoch_us(options.until) if options.until else trace_end_us(group) + 1
    end = max(end, first + 1)
    if options.window_us == WHOLE_PERIOD:
        return Grid(first, end - first, 1)
    size = options.window_us
    start = first // size * size
    return Grid(start, size, -(-(end - start) // size))


def trace_end_us(group: pl.DataFrame) -> int:
    """The last instant that any row names."""
    last = group.select(pl.max_horizontal(pl.col(TIME_COLUMNS).cast(pl.Int64).max())).item()
    return int(last)
