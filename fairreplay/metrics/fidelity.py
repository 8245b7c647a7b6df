"""How well a replay matches the log: over the requests that have a first token in both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from fairreplay.metrics.quantiles import nearest_rank, ttft_us
from fairreplay.store.outcome_rows import beside

FIDELITY_COLUMNS: Final = ("request_id", "tenant", "arrived_at", "first_token_at")
"""Canonical columns that the comparison reads."""


@dataclass(frozen=True)
class Fidelity:
    """Relative errors of the replay, ``(replay - log) / log``; a tenant's is that of its median TTFT, unsigned."""

    requests: int
    ttft_p50_error: float | None
    ttft_p90_error: float | None
    ttft_p99_error: float | None
    tenant_p50_error_median: float | None
    tenant_p50_error_max: float | None


def fidelity(logged: pl.DataFrame, replayed: pl.DataFrame) -> Fidelity | None:
    """Compare two outcomes (canonical columns) by request id; null where no request has a first token in both."""
    return errors_of(answered_by_both(logged, replayed))


def answered_by_both(logged: pl.DataFrame, replayed: pl.DataFrame) -> pl.DataFrame:
    """Requests with a first token in both outcomes: ``tenant``, and TTFT in microseconds as ``log`` and ``replay``."""
    real = logged.select("request_id", "tenant", ttft_us(logged).alias("log"))
    ours = replayed.select("request_id", ttft_us(replayed).alias("replay"))
    return beside(real, ours).select("tenant", "log", "replay").drop_nulls(["log", "replay"])


def errors_of(both: pl.DataFrame) -> Fidelity | None:
    """The errors over ``answered_by_both``; null without a request."""
    if both.is_empty():
        return None

    def error(rows: pl.DataFrame, q: int) -> float | None:
        real, ours = nearest_rank(rows["log"], q), nearest_rank(rows["replay"], q)
        return None if not real or ours is None else (ours - real) / real

    tenants = pl.Series(
        [abs(value) for part in both.partition_by("tenant") if (value := error(part, 50)) is not None], dtype=pl.Float64
    )
    return Fidelity(
        requests=len(both),
        ttft_p50_error=error(both, 50),
        ttft_p90_error=error(both, 90),
        ttft_p99_error=error(both, 99),
        tenant_p50_error_median=nearest_rank(tenants, 50),
        tenant_p50_error_max=nearest_rank(tenants, 100),
    )
