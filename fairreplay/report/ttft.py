"""TTFT of an outcome frame: the quantiles that the report draws and prints."""

from __future__ import annotations

from typing import Final

import polars as pl

from fairreplay.metrics.quantiles import ttft_us

TTFT_COLUMNS: Final = ("arrived_at", "first_token_at")
"""Canonical columns that a TTFT is made of."""
CURVE_PERMILLE: Final = (*range(10, 1000, 10), 999, 1000)
"""Points of a TTFT curve: every percent, P99.9 and the largest."""


def ttft_ms(outcome: pl.DataFrame) -> pl.Series:
    """TTFT in milliseconds of the requests with a first token, sorted upward."""
    return _ordered_ms(ttft_us(outcome))


def _ordered_ms(micros: pl.Series) -> pl.Series:
    return (micros.drop_nulls() / 1000).sort()


def nearest_rank(ordered: pl.Series, permille: int) -> float | None:
    """``x_(ceil(q n / 1000))`` of a series sorted upward, in integers; null without samples."""
    n = len(ordered)
    return None if n == 0 else float(ordered[(permille * n + 999) // 1000 - 1])


def quantiles(outcome: pl.DataFrame) -> dict[str, float | None]:
    """P50, P90 and P99 of the TTFT in milliseconds; null without samples."""
    return quantiles_of(ttft_us(outcome))


def quantiles_of(ttft: pl.Series) -> dict[str, float | None]:
    """The same of TTFTs in microseconds, null where a request has no first token."""
    ordered = _ordered_ms(ttft)
    return {f"p{q}": nearest_rank(ordered, 10 * q) for q in (50, 90, 99)}
