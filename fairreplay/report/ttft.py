"""TTFT of an outcome frame: the quantiles that the report draws and prints."""

from __future__ import annotations

from typing import Final

import polars as pl

TTFT_COLUMNS: Final = ("arrived_at", "first_token_at")
CURVE_PERMILLE: Final = (*range(10, 1000, 10), 999, 1000)
"""Points of a TTFT curve: every percent, P99.9 and the largest."""


def ttft_ms(outcome: pl.DataFrame) -> pl.Series:
    """TTFT in milliseconds of the requests with a first token, sorted upward."""
    known = outcome.select(TTFT_COLUMNS).drop_nulls("first_token_at")
    micros = (known["first_token_at"] - known["arrived_at"]).dt.total_microseconds()
    return (micros / 1000).sort()


def nearest_rank(ordered: pl.Series, permille: int) -> float | None:
    """``x_(ceil(q n / 1000))`` of a series sorted upward, in integers; null without samples."""
    n = len(ordered)
    return None if n == 0 else float(ordered[(permille * n + 999) // 1000 - 1])


def quantiles(outcome: pl.DataFrame) -> dict[str, float | None]:
    ordered = ttft_ms(outcome)
    return {f"p{q}": nearest_rank(ordered, 10 * q) for q in (50, 90, 99)}
