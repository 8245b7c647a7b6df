"""Nearest-rank quantiles in integers, and the count test that equals them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Value = TypeVar("Value", int, float)

PERCENTS: Final = {"p50": 50, "p90": 90, "p99": 99}
MISSED: Final = 1 << 62
"""TTFT in microseconds of a request that never got a first token: larger than any target."""


def rank(q: int, n: int) -> int:
    """``ceil(q n / 100)``: the place, from 1, of the q-th percentile among n values sorted upward."""
    return (q * n + 99) // 100


def nearest_rank(ordered: Sequence[Value], q: int) -> Value | None:
    """``P_q`` of values sorted upward; null of none. Source: nearest-rank definition, no interpolation."""
    return ordered[rank(q, len(ordered)) - 1] if len(ordered) else None


def passes(within: int, n: int, q: int) -> bool:
    """Whether ``P_q <= s``, from the count ``within`` of values at most s: mergeable over shards, needs no sort."""
    return within >= rank(q, n)


def grouped(ordered: Int64s, first: Int64s, n: Int64s, q: int) -> Int64s:
    """``P_q`` of each group: its ``n`` values stand sorted upward in ``ordered`` from place ``first`` on.

    ``MISSED`` for a group of no values.
    """
    place = np.where(n > 0, first + (q * n + 99) // 100 - 1, 0)
    if len(ordered) == 0:
        return np.full(len(n), MISSED, dtype=np.int64)
    return np.where(n > 0, ordered[place], MISSED)
