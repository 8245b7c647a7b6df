"""What preemption costs: work that is done twice."""

from __future__ import annotations

import numpy as np
import polars as pl

from fairreplay.metrics import kernel
from fairreplay.metrics.entitlement import Floats
from fairreplay.metrics.kernel import THRASH_TOTAL
from fairreplay.metrics.load import Ints

THRASH_CLOSE = 2
THRASH_WITHIN_US = 60_000_000


def recompute_tax(recomputed_tokens: int, computed_tokens: int) -> float | None:
    """Recomputed tokens over all computed tokens, 0..1; null where nothing was computed."""
    return recomputed_tokens / computed_tokens if computed_tokens > 0 else None


def recovery_s(prompt: int, generated: int, cached: int, prefill_tokens_per_s: float) -> float:
    """Seconds to compute a victim again: ``(prompt + generated - cached) / prefill throughput``."""
    return (prompt + generated - cached) / prefill_tokens_per_s


def marginal_loss_s(preempted_share: float, recovery_s: float) -> float:
    """The essay's expected loss of a request to preemption, ``pi * C_r``; shown, never divided by a step's time."""
    return preempted_share * recovery_s


def thrashes(instants_us: Ints) -> bool:
    """Whether a request that was preempted at these instants thrashes: two within 60 s, or three in all."""
    at = np.sort(instants_us)
    close = len(at) >= THRASH_CLOSE and bool(
        (at[THRASH_CLOSE - 1 :] - at[: 1 - THRASH_CLOSE] <= THRASH_WITHIN_US).any()
    )
    return close or len(at) >= THRASH_TOTAL


def taxed(rows: pl.DataFrame) -> pl.DataFrame:
    """By ``window``: ``recompute_tax`` over the served rows that say what was recomputed; null where none says it.

    A request computes its prompt less the cached part, and every output token but the last.
    """
    once = (
        pl.col("prompt_tokens").cast(pl.Int64)
        - pl.col("cached_tokens").cast(pl.Int64).fill_null(0)
        + (pl.col("output_tokens").cast(pl.Int64) - 1).clip(0, None)
    )
    redone = pl.col("recomputed_tokens").cast(pl.Int64)
    known = rows.filter(
        pl.col("recomputed_tokens").is_not_null() & pl.col("first_token_at").is_not_null() & once.is_not_null()
    )
    sums = known.group_by("window").agg(redone.sum().alias("redone"), (once + redone).sum().alias("computed"))
    return sums.select(
        "window", pl.when(pl.col("computed") > 0).then(pl.col("redone") / pl.col("computed")).alias("recompute_tax")
    )


def taxes(windows: Ints) -> Floats:
    """Recompute tax of each window (``service.Sums.windows``); NaN where nothing is known."""
    computed = windows[:, kernel.COMPUTED]
    return np.asarray(
        np.where(computed > 0, windows[:, kernel.REDONE] / np.where(computed > 0, computed, 1), np.nan), np.float64
    )


def counts(windows: Ints) -> list[pl.Series]:
    """Preemptions, preempted and thrashing requests among each window's arrivals; null where no row tells."""
    names = {
        "preemptions": kernel.PREEMPTIONS,
        "preempted_requests": kernel.PREEMPTED,
        "thrashing_requests": kernel.THRASHING,
    }
    told = pl.Series(windows[:, kernel.TOLD] > 0)
    return [pl.Series(name, windows[:, field]).set(~told, None) for name, field in names.items()]
