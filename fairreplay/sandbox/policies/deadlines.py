"""Deadlines of requests, in integer picoseconds, for the policies that know TTFT targets.

``budget_target`` is the rule of the multi-quantile scheduler: the tightest target whose error budget is used up must
be met now.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairreplay.sandbox.engine import QUANTILES

LOG_BITS = 12
"""Logarithms count in steps of ``2**-LOG_BITS``."""
_INDEX_BITS = 8


def _log2(mantissa: int) -> int:
    """``round(2**LOG_BITS * log2(mantissa / 2**_INDEX_BITS))`` by squaring, in integers."""
    bits, number, one = 0, mantissa << (60 - _INDEX_BITS), 1 << 60
    for _ in range(LOG_BITS + 1):
        number = (number * number) >> 60
        bits <<= 1
        if number >= 2 * one:
            number >>= 1
            bits += 1
    return (bits + 1) >> 1


LOG_TABLE = tuple(_log2((1 << _INDEX_BITS) + index) for index in range(1 << _INDEX_BITS))
"""Scaled logarithms of 1, 1 + 1/256, ... below 2."""


def allowance(q: int, n: int) -> int:
    """How many of ``n`` requests may miss the target of quantile ``q``: ``n - ceil(q n / 100)``."""
    return n - (q * n + 99) // 100


def budget_target(targets: Sequence[int], misses: Sequence[int], n: int, quantiles: Sequence[int] = (0, 1, 2)) -> int:
    """The target that counts now: ``min{ s_q : c_q >= a_q }``, else that of the largest quantile.

    ``targets`` and ``misses`` stand in the order of ``QUANTILES``; ``quantiles`` are the places that count.
    """
    due = [targets[place] for place in quantiles if misses[place] >= allowance(QUANTILES[place], n)]
    return min(due, default=targets[quantiles[-1]])


def log2_scaled(number: int) -> int:
    """``2**LOG_BITS * log2(1 + number)`` from the table: integers alone, the same on every machine.

    0 or more up to 2**62 - 1; at most 0.6 % of a doubling below the true value.
    """
    number += 1
    power = number.bit_length() - 1
    shifted = number >> (power - _INDEX_BITS) if power > _INDEX_BITS else number << (_INDEX_BITS - power)
    return (power << LOG_BITS) + LOG_TABLE[shifted - (1 << _INDEX_BITS)]
