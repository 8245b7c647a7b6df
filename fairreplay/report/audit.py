"""The preemption audit: how often work was thrown away, at what utilisation, and what it cost to do it again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import polars as pl

from fairreplay.config.model import Config, resolve_cluster
from fairreplay.metrics.kernel import THRASH_TOTAL
from fairreplay.metrics.preemption import THRASH_CLOSE, THRASH_WITHIN_US, marginal_loss_s, taxed
from fairreplay.metrics.quantiles import nearest_rank
from fairreplay.metrics.steady import mean_of
from fairreplay.report.facts import SourceFacts, by_source
from fairreplay.report.rounding import rounded
from fairreplay.report.schema import Band, Preemption, Recovery

BANDS: Final = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
"""Edges of the utilisation bands; from .8 on a policy may no longer preempt of its own will."""
RECOVERY_LONG_MS: Final = 100.0


def preemption(sources: Sequence[SourceFacts], models: Sequence[str | None], config: Config) -> list[Preemption]:
    """One row per model group and source."""
    return [
        audited(facts.name, model, outcome, config, facts.role == "logged")
        for model in models
        for facts, outcome in by_source(sources, model)
    ]


def audited(source: str, model: str | None, outcome: pl.DataFrame, config: Config, logged: bool) -> Preemption:
    """The audit of one outcome (canonical columns). ``logged``: its batch utilisation is its own."""
    known = outcome.filter(pl.col("preemptions").is_not_null())
    counts = known["preemptions"].cast(pl.Int64)
    says = not known.is_empty()
    redone = outcome["recomputed_tokens"].drop_nulls().cast(pl.Int64)
    tax = taxed(outcome.with_columns(pl.lit(0).alias("window")))["recompute_tax"]
    twice = known.filter(pl.col("preemptions") == THRASH_CLOSE)
    life = (twice["finished_at"] - twice["scheduled_at"]).dt.total_microseconds()
    close = int((life <= THRASH_WITHIN_US).sum())
    return {
        "model": model,
        "source": source,
        "requests": len(outcome),
        "preempted_requests": int((counts > 0).sum()) if says else None,
        "preempted_once": int((counts == 1).sum()) if says else None,
        "preemptions": int(counts.sum()) if says else None,
        "recomputed_tokens": None if redone.is_empty() else int(redone.sum()),
        "recompute_tax": None if tax.is_empty() else rounded(tax[0]),
        "thrashing_requests": int((counts >= THRASH_TOTAL).sum()) + close if says else None,
        "thrashing_unknown": len(twice) - close if says else None,
        "bands": bands(known) if logged else None,
        "recovery": recovery(known, model, config),
    }


def bands(known: pl.DataFrame) -> list[Band] | None:
    """Requests whose preemptions are known by the utilisation of their first batch; null where none names it."""
    told = known.filter(pl.col("batch_utilization").is_not_null())
    if told.is_empty():
        return None
    # 32-bit ratios: 0.8 as read is 0.800000012, and belongs to the band that begins there
    used = pl.col("batch_utilization").cast(pl.Float64).round(6)
    counts = pl.col("preemptions").cast(pl.Int64)
    found: list[Band] = []
    for low, high in pairwise(BANDS):
        inside = told.filter((used >= low) & ((used < high) if high < BANDS[-1] else pl.lit(True)))
        hit = inside.select((counts > 0).sum().alias("hit"), counts.sum().alias("all")).row(0)
        found.append(
            {
                "low": low,
                "high": high,
                "requests": len(inside),
                "preempted_requests": int(hit[0]),
                "preemptions": int(hit[1]),
            }
        )
    return found


def recovery(known: pl.DataFrame, model: str | None, config: Config) -> Recovery | None:
    """What a preemption cost: recomputed tokens of one, over the throughput of a prefill as the config has it.

    Null where no request was preempted or none says what it computed again.
    """
    engine = resolve_cluster(config, model).engine
    seconds_per_token = engine.step_time.prefill_token / engine.speed
    hit = known.filter((pl.col("preemptions") > 0) & pl.col("recomputed_tokens").is_not_null())
    if hit.is_empty() or seconds_per_token <= 0:
        return None
    tokens = hit.select(pl.col("recomputed_tokens").cast(pl.Float64) / pl.col("preemptions").cast(pl.Float64))
    ms = (tokens.to_series() * (seconds_per_token * 1000)).sort()
    share = int((known["preemptions"] > 0).sum()) / len(known)
    mean = (mean_of(tokens.to_series()) or 0.0) * seconds_per_token
    return {
        "requests": len(hit),
        "over_100ms": int((ms > RECOVERY_LONG_MS).sum()),
        "p50_ms": rounded(nearest_rank(ms, 50)),
        "p99_ms": rounded(nearest_rank(ms, 99)),
        "prefill_tokens_per_s": rounded(1 / seconds_per_token) or 0.0,
        "marginal_loss_ms": rounded(1000 * marginal_loss_s(share, mean)),
    }
