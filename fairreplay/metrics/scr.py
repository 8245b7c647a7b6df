"""SCR, the SLO compliance ratio: the part of judged tenants that met P50, P90 and P99 of TTFT."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from fairreplay.config.model import QUANTILES, Config, MinSamples, SloTtft
from fairreplay.errors import UsageError
from fairreplay.metrics.windows import Grid

Q = {"p50": 50, "p90": 90, "p99": 99}
ASSUMED_FACTOR = 1.5


def needed(q: int, n: pl.Expr) -> pl.Expr:
    """Samples that must meet the target for ``P_q <= s_q`` by nearest rank: ``ceil(q n / 100)``, in integers.

    ``P_q`` is the value of rank ``ceil(q n / 100)``; it is at most s exactly if that many samples are. The count needs
    no sort and adds up over shards.
    """
    return (q * n + 99).floordiv(100)


def nearest_rank(values: pl.Series, q: int) -> float | None:
    """``x_(ceil(q n / 100))`` of the values sorted upward; null without values."""
    known = values.drop_nulls().sort()
    return None if known.is_empty() else float(known[(q * len(known) + 99) // 100 - 1])


def ttft_us(rows: pl.DataFrame) -> pl.Series:
    """TTFT of each row in microseconds; null without a first token."""
    return (rows["first_token_at"] - rows["arrived_at"]).dt.total_microseconds()


def judged(
    rows: pl.DataFrame,
    slo: Mapping[str, SloTtft],
    grid: Grid,
    min_samples: MinSamples,
    refusals: str,
    trace_end_us: int,
) -> pl.DataFrame:
    """One row per (window of arrival, tenant) with requests: ``window``, ``tenant``, ``requests``, ``pass``.

    ``pass`` is null where no quantile has enough samples. Refused and failed requests, and cancelled ones, without a
    first token are infinitely late (``refusals = "drop"`` leaves refused ones out). One still waiting at the trace's
    end with age a misses q if a > s_q and is else left out of n for q. An ``ok`` row without times says nothing.
    """
    late = pl.col("status").is_in(["rejected", "failed", "cancelled"]) & pl.col("ttft_us").is_null()
    waits = (pl.col("status") == "unfinished") & pl.col("ttft_us").is_null()
    targets = pl.DataFrame(
        [(name, *(round(getattr(target, quantile) * 1000) for quantile in QUANTILES)) for name, target in slo.items()],
        schema={"tenant": pl.String, **{f"slo_{quantile}": pl.Int64 for quantile in QUANTILES}},
        orient="row",
    )
    inside = (
        rows.with_columns(grid.index(pl.col("arrived_at")).alias("window"), ttft_us(rows).alias("ttft_us"))
        .filter(pl.col("window").is_between(0, grid.count - 1))
        .join(targets, on="tenant", how="left")
    )
    if refusals == "drop":
        late = late & (pl.col("status") != "rejected")
    age = trace_end_us - pl.col("arrived_at").cast(pl.Int64)
    counts = [pl.col("slo_p50").is_not_null().all().alias("has_target")]
    for quantile in QUANTILES:
        target = pl.col(f"slo_{quantile}")
        met = pl.col("ttft_us") <= target
        counts.append(met.sum().cast(pl.Int64).alias(f"met_{quantile}"))
        sample = pl.col("ttft_us").is_not_null() | late | (waits & (age > target))
        counts.append(sample.sum().cast(pl.Int64).alias(f"n_{quantile}"))
    table = inside.group_by("window", "tenant").agg(pl.len().cast(pl.Int64).alias("requests"), *counts)
    verdicts = []
    for quantile in QUANTILES:
        n = pl.col(f"n_{quantile}")
        enough = n >= getattr(min_samples, quantile)
        verdicts.append(
            pl.when(enough & pl.col("has_target")).then(pl.col(f"met_{quantile}") >= needed(Q[quantile], n))
        )
    decided = pl.any_horizontal(verdict.is_not_null() for verdict in verdicts)
    passed = pl.all_horizontal(verdict.fill_null(True) for verdict in verdicts)
    return table.with_columns(pl.when(decided).then(passed).alias("pass")).sort("window", "tenant")


def slos(config: Config, tenants: list[str], rows: pl.DataFrame, grid: Grid) -> tuple[dict[str, SloTtft], bool]:
    """The TTFT targets of each tenant, and whether any was assumed.

    Without a target in the config: 1.5 times the pooled P50/P90/P99 of all tenants over the windows whose pooled P50
    is at most the median window's. A tenant's own past would excuse permanent starvation. No target at all where the
    rows have no first tokens.
    """
    own = {tenant: target for tenant in tenants if (target := config.slo_ttft_ms(tenant)) is not None}
    if len(own) == len(tenants):
        return own, False
    assumed = assumed_slo(rows, grid)
    if assumed is None:
        return own, False
    return {tenant: own.get(tenant, assumed) for tenant in tenants}, True


def assumed_slo(rows: pl.DataFrame, grid: Grid) -> SloTtft | None:
    known = rows.with_columns(
        ttft_us(rows).alias("ttft_us"), grid.index(pl.col("arrived_at")).alias("window")
    ).drop_nulls("ttft_us")
    if known.is_empty():
        return None
    half = (50 * pl.len() + 99).floordiv(100) - 1
    by_window = known.group_by("window").agg(pl.col("ttft_us").sort().get(half).alias("p50"))
    usual = nearest_rank(by_window["p50"], 50)
    calm = known.join(by_window.filter(pl.col("p50") <= usual), on="window", how="semi")["ttft_us"]
    values = {name: nearest_rank(calm, q) for name, q in Q.items()}
    if any(value is None or value <= 0 for value in values.values()):
        raise UsageError("no SLO is set and none can be assumed (first tokens at arrival): set [defaults] slo_ttft_ms")
    return SloTtft(**{name: ASSUMED_FACTOR * value / 1000 for name, value in values.items() if value is not None})
