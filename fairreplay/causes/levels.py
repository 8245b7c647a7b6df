"""Arrivals by window, tenant and type around an episode, and which windows stand for the usual level."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fairreplay.store.outcome_rows import arrived_between
from fairreplay.trace.values import epoch_us

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

BASELINE: Final = timedelta(hours=1)
WINDOWS_BEFORE: Final = 2
"""What makes an episode may begin this many windows before it shows."""
VARIANCE_MIN: Final = 1.0


@dataclass(frozen=True)
class Levels:
    """Requests and tokens that arrived, by window; arrays of shape (windows, tenants, types)."""

    starts: tuple[datetime, ...]
    ends: tuple[datetime, ...]
    tenants: tuple[str, ...]
    types: tuple[str, ...]
    requests: Floats
    tokens: Floats
    usual: Bools
    """The baseline: windows of the hour before the episode that were not degraded. Shape (windows,)."""
    judged: Bools
    """From two windows before the episode to its end."""

    @property
    def has_baseline(self) -> bool:
        return bool(self.usual.any())


def levels(rows: pl.DataFrame, windows: pl.DataFrame, start: datetime, end: datetime) -> Levels:
    """Of the episode ``[start, end)``.

    Args:
        rows: canonical, of the episode's model.
        windows: the measured ones of that model (``start``, ``end``, ``degraded``).

    The two windows before the episode are judged, not usual, unless there are no others. The trace's first window,
    where arrivals may begin in its midst, is left out of the baseline if there are others.
    """
    near = windows.sort("start").filter((pl.col("start") >= start - BASELINE) & (pl.col("start") < end))
    starts, ends = near["start"].to_list(), near["end"].to_list()
    first = next((number for number, at in enumerate(starts) if at >= start), len(starts))
    number = np.arange(len(starts))
    judged = number >= first - WINDOWS_BEFORE
    before = ~near["degraded"].to_numpy() & (number < first)
    usual = before & ~judged
    if not usual.any():
        usual = before
    trace_begins = rows["arrived_at"].min()
    if usual.sum() > 1 and starts[0] < trace_begins:
        usual = usual & (number > 0)
    tenants, types = (tuple(sorted(rows[key].unique().to_list())) for key in ("tenant", "type"))
    edges = np.array([*map(epoch_us, starts), epoch_us(end)], np.int64)
    inside = arrived_between(rows, starts[0], end)
    shape = (len(starts), len(tenants), len(types))
    cell = (
        np.searchsorted(edges, inside["arrived_at"].to_physical().to_numpy(), side="right") - 1,
        inside["tenant"].cast(pl.Enum(tenants)).to_physical().to_numpy(),
        inside["type"].cast(pl.Enum(types)).to_physical().to_numpy(),
    )
    flat = np.ravel_multi_index(cell, shape)
    tokens = inside.select(_size("prompt_tokens") + _size("output_tokens")).to_series().to_numpy()
    size = int(np.prod(shape))
    return Levels(
        starts=tuple(starts),
        ends=tuple(ends),
        tenants=tenants,
        types=types,
        requests=np.bincount(flat, minlength=size).astype(np.float64).reshape(shape),
        tokens=np.bincount(flat, weights=tokens, minlength=size).astype(np.float64).reshape(shape),
        usual=usual,
        judged=judged,
    )


def _size(column: str) -> pl.Expr:
    """Tokens; the tenant's median where they are unknown (0 where the tenant has none)."""
    value = pl.col(column).cast(pl.Float64)
    return value.fill_null(value.median().over("tenant")).fill_null(0.0)


def usual_level(counts: Floats, usual: Bools) -> tuple[Floats, Floats]:
    """Mean and standard deviation over the usual windows of ``counts`` (windows first).

    The variance is the windows' own, at least ``max(mean, 1)``: a Poisson stream's, so that a few calm windows do not
    make every request an event.
    """
    known = counts[usual]
    mean = known.mean(axis=0)
    own = known.var(axis=0, ddof=1) if len(known) > 1 else np.zeros_like(mean)
    return mean, np.sqrt(np.maximum(np.maximum(own, mean), VARIANCE_MIN))
