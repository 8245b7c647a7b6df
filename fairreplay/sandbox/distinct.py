"""The distinct columns of a table of integers, without sorting its columns as records."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
_SMALL: Final = 1 << 16


def distinct_columns(table: Int64s) -> tuple[Int64s, Int64s]:
    """As ``np.unique(table, axis=1, return_inverse=True)``: columns in lexicographic order, and each one's number.

    Rows are taken in one after the other; integers of a small range are counted, others sorted. ``table`` has a row and
    a column.
    """
    number = np.zeros(table.shape[1], np.int64)
    count = 1
    for row in table:
        codes, span = _codes(row)
        if span > 1:
            number, count = _codes(number * span + codes)
    first = np.empty(count, np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]  # of equal ones the first is written last
    return table[:, first], number


def _codes(values: Int64s) -> tuple[Int64s, int]:
    """Places of ``values`` among the distinct ones, upward, and how many these are."""
    low, high = int(values.min()), int(values.max())
    if high == low:
        return np.zeros(len(values), np.int64), 1
    if high - low > len(values) + _SMALL:
        found, places = np.unique(values, return_inverse=True)
        return places.astype(np.int64), len(found)
    shifted = values - low
    there = np.zeros(high - low + 1, np.bool_)
    there[shifted] = True
    place = np.cumsum(there) - 1
    return place[shifted], int(place[-1]) + 1
