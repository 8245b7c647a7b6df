"""Medians by key without a sort, compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

from fairreplay.metrics.load import Ints

Bools = NDArray[np.bool_]
COUNTS_BITS: Final = 24
"""Digits of the values are counted by key in at most so many counters (or 16 of each key), as a power of two."""


def medians_below(key: Sequence[Ints], values: Sequence[Ints], without: Sequence[Bools], keys: int) -> Ints:
    """Median of each key's values, rounded down, ``without`` some rows; 0 where none is left, or none is left out.

    All three in chunks of the same lengths; ``key`` is in 0..keys-1, values that count are >= 0. No sort: the median's
    digits are found one after the other, by counting.
    """
    found = np.zeros(keys, np.int64)
    if not any(left_out.any() for left_out in without):
        return found
    rows = sum(map(len, key))
    digit = min(11, max(4, min(COUNTS_BITS, rows.bit_length()) - keys.bit_length()))
    bits = max(int(some.max(initial=0)) for some in values).bit_length()
    chunks = list(zip(key, values, without, strict=True))
    n = sum(np.bincount(of[~left_out], minlength=keys) for of, _, left_out in chunks)
    rank = np.maximum(n - 1, 0) // 2
    for shift in range((bits - 1) // digit * digit, -1, -digit):
        counts = np.zeros((keys, 1 << digit), np.int64)
        for chunk in chunks:
            _count(*chunk, shift, digit, found, counts)
        upto = np.cumsum(counts, axis=1)
        here = np.minimum((upto <= rank[:, None]).sum(axis=1), (1 << digit) - 1)
        rank -= np.take_along_axis(upto - counts, here[:, None], axis=1)[:, 0]
        found += here << shift
    # Of an even number, the median lies between this value and the next: itself, if it is there often enough.
    upto, above = np.zeros(keys, np.int64), np.full(keys, -1, np.int64)
    for chunk in chunks:
        _next(*chunk, found, upto, above)
    return np.where(n == 0, 0, np.where(n // 2 >= upto, (found + above) // 2, found))


def _count_digits(key: Ints, values: Ints, without: Bools, shift: int, digit: int, found: Ints, counts: Ints) -> None:
    """Add to ``counts`` the digit at ``shift`` of the values that begin as ``found`` does, by key."""
    for row in range(len(key)):
        of, value = key[row], values[row]
        if not without[row] and value >> (shift + digit) == found[of] >> (shift + digit):
            counts[of, (value >> shift) & ((1 << digit) - 1)] += 1


def _count_and_next(key: Ints, values: Ints, without: Bools, found: Ints, upto: Ints, above: Ints) -> None:
    """Count in ``upto`` the values up to ``found``, and put the least above it (-1: none) into ``above``, by key."""
    for row in range(len(key)):
        of, value = key[row], values[row]
        if not without[row]:
            upto[of] += value <= found[of]
            if value > found[of] and (above[of] < 0 or value < above[of]):
                above[of] = value


_count = numba.njit(cache=True, nogil=True, error_model="numpy", _nrt=False)(_count_digits)
_next = numba.njit(cache=True, nogil=True, error_model="numpy", _nrt=False)(_count_and_next)
