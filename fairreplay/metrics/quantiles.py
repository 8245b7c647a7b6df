"""TTFTs and their quantiles by nearest rank."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints = NDArray[np.int64]

Number = TypeVar("Number", int, Ints, pl.Expr)


def needed(q: int, n: Number) -> Number:
    """Samples that must meet the target for ``P_q <= s_q`` by nearest rank: ``ceil(q n / 100)``, in integers.

    ``P_q`` is the value of rank ``ceil(q n / 100)``; it is at most s exactly if that many samples are. The count needs
    no sort and adds up over shards.
    """
    return (q * n + 99) // 100


def nearest_rank(values: pl.Series, q: int) -> float | None:
    """``x_(ceil(q n / 100))`` of the values sorted upward; null without values."""
    known = values.drop_nulls()
    known = known if known.flags["SORTED_ASC"] else known.sort()
    return None if known.is_empty() else float(known[needed(q, len(known)) - 1])


def ttft_us(rows: pl.DataFrame) -> pl.Series:
    """TTFT of each row in microseconds; null without a first token."""
    return (rows["first_token_at"] - rows["arrived_at"]).dt.total_microseconds()
