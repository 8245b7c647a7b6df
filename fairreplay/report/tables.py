"""The tables of the document: policies side by side, TTFT curves, tenants, types."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from fairreplay.config.model import Config
from fairreplay.metrics.fidelity import answered_by_both, errors_of
from fairreplay.metrics.measure import TFR_DEGRADED
from fairreplay.metrics.steady import steady_mean, steady_sum
from fairreplay.metrics.weights import is_skewed
from fairreplay.report.facts import SourceFacts, by_source
from fairreplay.report.levels import slo_use
from fairreplay.report.rounding import rounded
from fairreplay.report.schema import (
    Comparison,
    Curve,
    Errors,
    Preemption,
    Series,
    TenantRow,
    TenantUnder,
    TypeRow,
    TypeUnder,
)
from fairreplay.report.ttft import CURVE_PERMILLE, TTFT_COLUMNS, nearest_rank, quantiles, quantiles_of, ttft_ms
from fairreplay.store.outcome_rows import of_model


def comparison(
    sources: Sequence[SourceFacts],
    models: Sequence[str | None],
    timeline: Sequence[Series],
    audit: Sequence[Preemption],
) -> list[Comparison]:
    """One row per model group and source, the log first. Means leave out the drain and windows without a value."""
    audits = {(row["model"], row["source"]): row for row in audit}
    places = {(series["model"], series["source"]): series for series in timeline}
    rows: list[Comparison] = []
    for model in models:
        for facts, outcome in by_source(sources, model):
            series = places[model, facts.name]
            judged = of_model(facts.whole.tenants, model)["pass"].drop_nulls()
            preempted = audits[model, facts.name]
            statuses = dict(outcome["status"].value_counts().iter_rows())
            rows.append(
                {
                    "model": model,
                    "source": facts.name,
                    "requests": len(outcome),
                    "ok": statuses.get("ok", 0),
                    "rejected": statuses.get("rejected", 0),
                    "failed": statuses.get("failed", 0) + statuses.get("cancelled", 0),
                    "unfinished": statuses.get("unfinished", 0),
                    "scr": period_mean(series["scr"], series["drain"]),
                    "jfi": period_mean(series["jfi"], series["drain"]),
                    "tfr": period_mean(series["tfr"], series["drain"]),
                    "min_x": period_mean(series["min_x"], series["drain"]),
                    "windows_degraded": sum(series["degraded"]),
                    "period_judged": len(judged),
                    "period_passing": int(judged.sum()),
                    "ttft_ms": {q: rounded(value) for q, value in quantiles(outcome).items()},
                    "preemptions": preempted["preemptions"],
                    "recompute_tax": preempted["recompute_tax"],
                    "tokens_per_s": rounded(tokens_per_s(outcome)),
                }
            )
    return rows


def period_mean(values: Sequence[float | None], drain: Sequence[bool]) -> float | None:
    """Mean over the windows that have a value and are not drain."""
    counted = [value for value, late in zip(values, drain, strict=True) if value is not None and not late]
    return rounded(sum(counted) / len(counted)) if counted else None


def tokens_per_s(outcome: pl.DataFrame) -> float | None:
    """Prompt and output tokens of the finished requests over the time from first arrival to last finish."""
    done = outcome.filter(pl.col("finished_at").is_not_null() & (pl.col("status") == "ok"))
    if done.is_empty():
        return None
    tokens = done.select(pl.sum_horizontal(pl.col("prompt_tokens", "output_tokens").cast(pl.Int64)).sum()).item()
    span_us = done.select((pl.col("finished_at").max() - outcome["arrived_at"].min()).dt.total_microseconds()).item()
    return tokens * 1e6 / span_us if span_us > 0 else None


def curves(sources: Sequence[SourceFacts], models: Sequence[str | None]) -> list[Curve]:
    found: list[Curve] = []
    for model in models:
        for facts, outcome in by_source(sources, model):
            ordered = ttft_ms(outcome)
            points = [] if ordered.is_empty() else [(q, nearest_rank(ordered, q)) for q in CURVE_PERMILLE]
            found.append(
                {
                    "model": model,
                    "source": facts.name,
                    "requests": len(ordered),
                    "without_first_token": len(outcome) - len(ordered),
                    "q": [q / 10 for q, _ in points],
                    "ttft_ms": [value for _, at in points if (value := rounded(at)) is not None],
                }
            )
    return found


def fidelity_rows(
    sources: Sequence[SourceFacts], models: Sequence[str | None], timeline: Sequence[Series]
) -> list[Errors]:
    """The baseline replay against the log by group, over the requests that have a first token in both.

    A tenant's error is that of its median TTFT, without sign. Empty without a baseline replay; a group without a common
    request has no row.
    """
    baseline = next((facts for facts in sources if facts.role == "baseline"), None)
    if baseline is None:
        return []
    places = {(series["model"], series["source"]): series for series in timeline}
    rows: list[Errors] = []
    for model in models:
        logged, replayed = of_model(sources[0].outcome, model), of_model(baseline.outcome, model)
        both = answered_by_both(logged, replayed)
        found = errors_of(both)
        if found is None:
            continue
        windows = _same_windows(places[model, sources[0].name], places[model, baseline.name])
        rows.append(
            {
                "model": model,
                "requests": found.requests,
                "logged_ttft_ms": {q: rounded(value) for q, value in quantiles_of(both["log"]).items()},
                "replayed_ttft_ms": {q: rounded(value) for q, value in quantiles_of(both["replay"]).items()},
                "error": {
                    "p50": rounded(found.ttft_p50_error),
                    "p90": rounded(found.ttft_p90_error),
                    "p99": rounded(found.ttft_p99_error),
                },
                "tenants": both["tenant"].n_unique(),
                "tenant_error_p50": rounded(found.tenant_p50_error_median),
                "tenant_error_max": rounded(found.tenant_p50_error_max),
                "windows": len(windows),
                "windows_same": sum(windows),
            }
        )
    return rows


def _same_windows(logged: Series, replayed: Series) -> list[bool]:
    """By window that both hold, the drain left out: is it degraded in both, or in neither?"""
    other = dict(zip(replayed["start"], replayed["degraded"], strict=True))
    return [
        degraded == other[start]
        for start, degraded, late in zip(logged["start"], logged["degraded"], logged["drain"], strict=True)
        if not late and start in other
    ]


def idle_share(sources: Sequence[SourceFacts]) -> float | None:
    """Share of the log's windows at whose end nobody waited or was refused, under any source.

    There policies cannot differ. Null without a replay, or without windows.
    """
    windows = sources[0].measured.windows.filter(~pl.col("drain")).select("model", "start")
    if windows.is_empty() or all(facts.role == "logged" for facts in sources):
        return None
    busy = pl.concat([facts.measured.tenants.filter("backlog").select("model", "start") for facts in sources])
    idle = windows.join(busy, on=["model", "start"], how="anti", nulls_equal=True)
    return len(idle) / len(windows)


def tenant_rows(sources: Sequence[SourceFacts], models: Sequence[str | None], config: Config) -> list[TenantRow]:
    """Tenants by group, hurt most in the log first: misses, then the unjudged, then by TTFT over target, then name."""
    rows: list[TenantRow] = []
    committed = config.commitments()
    total = sum(committed.values())
    slos = sources[0].whole.slo
    for model in models:
        weights = _weights(of_model(sources[0].measured.tenants, model))
        found: dict[str, list[TenantUnder]] = {}
        for facts, outcome in by_source(sources, model):
            for tenant, under in _tenants_under(facts, outcome, model):
                found.setdefault(tenant, []).append(under)
        group: list[TenantRow] = []
        for tenant, unders in found.items():
            own = config.tenants.get(tenant)
            tokens = committed.get(tenant)
            slo = slos.get(tenant)
            in_force, skew = weights.get(tenant, (None, None))
            group.append(
                {
                    "model": model,
                    "tenant": tenant,
                    "slo_ttft_ms": None if slo is None else {q: getattr(slo, q) for q in ("p50", "p90", "p99")},
                    "weight": rounded(own.weight) if own is not None else None,
                    "commitment_share": rounded(tokens / total) if tokens is not None else None,
                    "weight_in_force": rounded(in_force),
                    "skew": rounded(skew),
                    "skewed": None if skew is None else is_skewed(skew),
                    "under": unders,
                }
            )
        rows += sorted(group, key=_harm)
    return rows


def _weights(windows: pl.DataFrame) -> dict[str, tuple[float | None, float | None]]:
    """By tenant: mean weight in force, and the skew furthest from 1 (the larger of s and 1/s)."""
    off = pl.col("skew").log().abs()
    table = windows.group_by("tenant").agg(
        steady_mean(pl.col("weight")),
        pl.col("skew").sort_by(off, descending=True, nulls_last=True).first().alias("skew"),
    )
    return {tenant: (weight, skew) for tenant, weight, skew in table.iter_rows()}


def _harm(row: TenantRow) -> tuple[int, float, str]:
    first = row["under"][0]
    order = {False: 0, None: 1, True: 2}[first["passes"]]
    return order, -(slo_use(first, row["slo_ttft_ms"]) or 0.0), row["tenant"]


def _tenants_under(facts: SourceFacts, outcome: pl.DataFrame, model: str | None) -> list[tuple[str, TenantUnder]]:
    windows = of_model(facts.measured.tenants, model)
    owed = windows.filter(pl.col("entitlement") > 0)
    served = windows.group_by("tenant").agg(steady_sum(pl.col("served", "entitlement")))
    shares = owed.group_by("tenant").agg(steady_mean(pl.col("x")), pl.col("x").min().alias("min_x"))
    whole = of_model(facts.whole.tenants, model).select("tenant", "pass")
    table = whole.join(served, on="tenant", how="left").join(shares, on="tenant", how="left").sort("tenant")
    of_tenant = outcome.select("tenant", *TTFT_COLUMNS).partition_by("tenant", as_dict=True)
    rows: list[tuple[str, TenantUnder]] = []
    for row in table.iter_rows(named=True):
        requests = of_tenant.get((row["tenant"],), outcome.clear())
        ttft = {q: rounded(value) for q, value in quantiles(requests).items()}
        p50, p99 = ttft["p50"], ttft["p99"]
        rows.append(
            (
                row["tenant"],
                {
                    "source": facts.name,
                    "requests": len(requests),
                    "n": int(requests["first_token_at"].is_not_null().sum()),
                    "ttft_ms": ttft,
                    "passes": row["pass"],
                    "tail_ratio": rounded(p99 / p50) if p50 and p99 is not None else None,
                    "served": rounded(row["served"]),
                    "entitlement": rounded(row["entitlement"]),
                    "x": rounded(row["x"]),
                    "min_x": rounded(row["min_x"]),
                },
            )
        )
    return rows


def type_rows(sources: Sequence[SourceFacts], models: Sequence[str | None]) -> list[TypeRow]:
    """Types by group, in the order of the least ratio in the log; means over the windows that have a value."""
    rows: list[TypeRow] = []
    for model in models:
        found: dict[str, list[TypeUnder]] = {}
        for facts in sources:
            table = (
                of_model(facts.measured.types, model)
                .group_by("type")
                .agg(
                    steady_mean(pl.col("share", "floor", "ratio", "ratio_raw")),
                    pl.col("ratio").min().alias("ratio_min"),
                    steady_sum(pl.col("leak")),
                    pl.col("ratio").count().alias("windows"),
                    (pl.col("ratio") < TFR_DEGRADED).sum().alias("windows_below"),
                )
                .sort("type")
            )
            of_type = of_model(facts.outcome, model).select("type", *TTFT_COLUMNS).partition_by("type", as_dict=True)
            for row in table.iter_rows(named=True):
                requests = of_type.get((row["type"],), facts.outcome.clear())
                found.setdefault(row["type"], []).append(
                    {
                        "source": facts.name,
                        "share": rounded(row["share"]),
                        "floor": rounded(row["floor"]),
                        "ratio": rounded(row["ratio"]),
                        "ratio_min": rounded(row["ratio_min"]),
                        "ratio_raw": rounded(row["ratio_raw"]),
                        "leak_tokens": rounded(row["leak"]),
                        "ttft_ms": {q: rounded(value) for q, value in quantiles(requests).items()},
                        "windows": row["windows"],
                        "windows_below": row["windows_below"],
                    }
                )
        counts = dict(of_model(sources[0].outcome, model)["type"].value_counts().iter_rows())
        group: list[TypeRow] = [
            {"model": model, "type": name, "requests": counts.get(name, 0), "under": under}
            for name, under in found.items()
        ]
        rows += sorted(group, key=lambda row: (_least(row), row["type"]))
    return rows


def _least(row: TypeRow) -> float:
    least = row["under"][0]["ratio_min"]
    return float("inf") if least is None else least
