"""TTFTs and their quantiles by nearest rank."""

from __future__ import annotations

from typing import Final, TypeVar

import numba
import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints = NDArray[np.int64]
COUNTS_BITS: Final = 24
"""``medians_below`` counts digits of the values by key, in at most so many counters (and 16 of each key)."""

Number = TypeVar("Number", int, Ints, pl.Expr)


def needed(q: int, n: Number) -> Number:
    """Samples that must meet the target for ``P_q <= s_q`` by nearest rank: ``ceil(q n / 100)``, in integers.

    ``P_q`` is the value of rank ``ceil(q n / 100)``; it is at most s exactly if that many samples are. The count needs
    no sort and adds up over shards.
    """
    return (q * n + 99) // 100


def nearest_rank(values: pl.Series, q: int) -> float | None:
    """``x_(ceil(q n / 100))`` of the values sorted upward; null without values."""
    known = values.drop_nulls().sort()
    return None if known.is_empty() else float(known[needed(q, len(known)) - 1])


def ttft_us(rows: pl.DataFrame) -> pl.Series:
    """TTFT of each row in microseconds; null without a first token."""
    return (rows["first_token_at"] - rows["arrived_at"]).dt.total_microseconds()


def medians_below(key: Ints, values: Ints, without: NDArray[np.bool_], keys: int) -> Ints:
    """Median of each key's values, rounded down, ``without`` some rows; 0 where none is left, or none is left out.

    ``key`` is in 0..keys-1; values that count are >= 0.
    """
    found = np.zeros(keys, np.int64)
    if without.any():
        digit = min(11, max(4, COUNTS_BITS - keys.bit_length()))
        _select(key, values, without, int(values.max()).bit_length(), digit, found)
    return found


def _select_medians(key: Ints, values: Ints, without: NDArray[np.bool_], bits: int, digit: int, found: Ints) -> None:
    """Put the median of each key into ``found`` (all 0): ``digit`` bits at once, without a sort."""
    shift, places, keys = (bits + digit - 1) // digit * digit, 1 << digit, len(found)
    counts = np.zeros((keys, places), np.int64)
    n, rank = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
    for row in range(len(key)):
        n[key[row]] += not without[row]
    for of in range(keys):
        rank[of] = (n[of] - 1) // 2
    while shift > 0:
        shift -= digit
        counts[:] = 0
        for row in range(len(key)):
            of, value = key[row], values[row]
            if not without[row] and value >> (shift + digit) == found[of] >> (shift + digit):
                counts[of, (value >> shift) & (places - 1)] += 1
        for of in range(keys):
            here = 0
            while here < places - 1 and rank[of] >= counts[of, here]:
                rank[of] -= counts[of, here]
                here += 1
            found[of] += here << shift
    # Of an even number, the median lies between this value and the next: itself, if it is there often enough.
    upto, above = np.zeros(keys, np.int64), np.full(keys, -1, np.int64)
    for row in range(len(key)):
        of, value = key[row], values[row]
        if not without[row]:
            upto[of] += value <= found[of]
            if value > found[of] and (above[of] < 0 or value < above[of]):
                above[of] = value
    for of in range(keys):
        if n[of] == 0:
            found[of] = 0
        elif n[of] // 2 >= upto[of]:
            found[of] = (found[of] + above[of]) // 2


_select = numba.njit(cache=True, nogil=True, error_model="numpy")(_select_medians)
