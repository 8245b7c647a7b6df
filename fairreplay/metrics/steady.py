"""Sums and means of floats that are the same on any number of threads.

Floats do not add up to the same in another order, and Polars adds parts of a column on each thread. Rows stand in an
order of their own everywhere, also within a group; these add in that order. Integers need none of this.
"""

from __future__ import annotations

import numpy as np
import polars as pl


def steady_sum(values: pl.Expr) -> pl.Expr:
    """The sum of the values of a column, or of each group, as Float64; 0 without values."""
    return values.map_batches(_sum, return_dtype=pl.Float64(), returns_scalar=True)


def steady_mean(values: pl.Expr) -> pl.Expr:
    """Their mean; null without values."""
    return values.map_batches(_mean, return_dtype=pl.Float64(), returns_scalar=True)


def mean_of(values: pl.Series) -> float | None:
    """The mean of a series; null without values."""
    known = values.drop_nulls()
    return None if known.is_empty() else total_of(known) / len(known)


def total_of(values: pl.Series) -> float:
    """The sum of a series; 0 without values."""
    return float(np.sum(values.drop_nulls().to_numpy(), dtype=np.float64))


def _sum(values: pl.Series) -> pl.Series:
    return pl.Series(values.name, [total_of(values)], pl.Float64)


def _mean(values: pl.Series) -> pl.Series:
    return pl.Series(values.name, [mean_of(values)], pl.Float64)
