"""All windowed metrics of one outcome: what production logged, or what the sandbox did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from fairreplay.config.model import Config, SloTtft
from fairreplay.metrics import jfi, preemption, scr, service, types
from fairreplay.metrics.entitlement import Floats, entitlements, fair_weights
from fairreplay.metrics.options import MeasureOptions
from fairreplay.metrics.windows import Grid, grid, trace_end_us
from fairreplay.trace.schema import TIMESTAMP

SCR_DEGRADED: Final = 0.95
JFI_DEGRADED: Final = 0.9
X_DEGRADED: Final = 0.7
TFR_DEGRADED: Final = 0.5

WINDOW_SCHEMA: Final[dict[str, pl.DataType]] = {
    "start": TIMESTAMP,
    "end": TIMESTAMP,
    "model": pl.String(),
    "source": pl.String(),
    "requests": pl.Int64(),
    "scr": pl.Float64(),
    "scr_weighted": pl.Float64(),
    "failing": pl.List(pl.String()),
    "tenants_insufficient": pl.Int64(),
    "jfi": pl.Float64(),
    "jfi_raw": pl.Float64(),
    "min_x": pl.Float64(),
    "min_x_tenant": pl.String(),
    "service_gap": pl.Float64(),
    "tfr": pl.Float64(),
    "tfr_raw": pl.Float64(),
    "tfr_type": pl.String(),
    "recompute_tax": pl.Float64(),
    "drain": pl.Boolean(),
    "degraded": pl.Boolean(),
}
"""One row per window and model. Null: not judged. ``drain``: after the last arrival, left out of period figures."""

TENANT_SCHEMA: Final[dict[str, pl.DataType]] = {
    "start": TIMESTAMP,
    "model": pl.String(),
    "source": pl.String(),
    "tenant": pl.String(),
    "requests": pl.Int64(),
    "served": pl.Float64(),
    "demand": pl.Float64(),
    "entitlement": pl.Float64(),
    "x": pl.Float64(),
    "pass": pl.Boolean(),
    "backlog": pl.Boolean(),
}
"""One row per window and tenant with requests or demand. Amounts in service units."""

TYPE_SCHEMA: Final[dict[str, pl.DataType]] = {
    "start": TIMESTAMP,
    "model": pl.String(),
    "source": pl.String(),
    "type": pl.String(),
    "share": pl.Float64(),
    "floor": pl.Float64(),
    "ratio": pl.Float64(),
    "ratio_raw": pl.Float64(),
    "leak": pl.Float64(),
}


@dataclass(frozen=True)
class Measured:
    """The tables of one source, by model and window, and what was assumed to make them."""

    windows: pl.DataFrame
    tenants: pl.DataFrame
    types: pl.DataFrame
    slo: Mapping[str, SloTtft]
    assumed_slo: bool
    assumptions: tuple[str, ...]


def measure(
    outcome: pl.DataFrame,
    config: Config,
    options: MeasureOptions,
    source: str,
    slo: tuple[Mapping[str, SloTtft], bool] | None = None,
) -> Measured:
    """Measure an outcome (canonical columns, the whole of it: the period is cut here, by ``since`` and ``until``).

    ``slo`` holds every source to the same targets: those that ``slos_of`` gave for the log. A request counts in the
    window of its arrival; service counts when it is delivered, also for requests that arrived before ``since``.
    """
    targets, assumed = slo if slo is not None else slos_of(outcome, config, options)
    windows: list[pl.DataFrame] = []
    tenants: list[pl.DataFrame] = []
    kinds: list[pl.DataFrame] = []
    end_us = trace_end_us(outcome) if len(outcome) else 0
    for model in models(outcome):
        tables = _measure_group(of_model(outcome, model), config, options, targets, end_us)
        stamp = (pl.lit(model, pl.String).alias("model"), pl.lit(source).alias("source"))
        for made, table, schema in zip(
            (windows, tenants, kinds), tables, (WINDOW_SCHEMA, TENANT_SCHEMA, TYPE_SCHEMA), strict=True
        ):
            made.append(table.with_columns(stamp).select(pl.col(name).cast(dtype) for name, dtype in schema.items()))
    return Measured(
        windows=pl.concat(windows) if windows else pl.DataFrame(schema=WINDOW_SCHEMA),
        tenants=pl.concat(tenants) if tenants else pl.DataFrame(schema=TENANT_SCHEMA),
        types=pl.concat(kinds) if kinds else pl.DataFrame(schema=TYPE_SCHEMA),
        slo=targets,
        assumed_slo=assumed,
        assumptions=_assumptions(outcome, config, options, targets, assumed),
    )


def models(rows: pl.DataFrame) -> list[str | None]:
    """The model groups of a load, by name; rows that name no model are a group of their own, first."""
    return sorted(rows["model"].unique().to_list(), key=lambda model: (model is not None, model or ""))


def of_model(rows: pl.DataFrame, model: str | None) -> pl.DataFrame:
    """The rows of one model group."""
    return rows.filter(pl.col("model").eq_missing(pl.lit(model, pl.String)))


def slos_of(outcome: pl.DataFrame, config: Config, options: MeasureOptions) -> tuple[dict[str, SloTtft], bool]:
    """TTFT targets by tenant, and whether they were assumed from ``outcome``."""
    tenants = sorted(outcome["tenant"].unique().to_list())
    if outcome.is_empty():
        return {}, False
    return scr.slos(config, tenants, outcome, grid(outcome, options))


def _measure_group(
    group: pl.DataFrame, config: Config, options: MeasureOptions, slo: Mapping[str, SloTtft], end_us: int
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Windows, tenants and types of one model group; ``end_us`` is the end of the whole trace, not of this model."""
    frame = grid(group, options)
    rows = service.sized(group)
    tenants, kinds = sorted(group["tenant"].unique().to_list()), sorted(group["type"].unique().to_list())
    served = service.served_by_window(rows, options.spread, frame).with_columns(
        service.units(config.cost).alias("units")
    )
    waiting = service.waiting_by_window(rows, options.spread, frame)
    refused = service.refused_by_window(rows, frame)
    unmet = pl.concat([waiting.drop("waiting"), refused.drop("refused")]).with_columns(
        service.units(config.cost).alias("units"), pl.lit(1.0).alias("one")
    )
    inside = rows.with_columns(frame.index(pl.col("arrived_at")).alias("window")).filter(
        pl.col("window").is_between(0, frame.count - 1)
    )
    judged = scr.judged(group, slo, frame, options.min_samples, options.refusals, end_us)
    weights = fair_weights(config, tenants)

    got = _dense(served, "tenant", tenants, "units", frame)
    lacks = _dense(unmet, "tenant", tenants, "units", frame)
    backlog = _dense(unmet, "tenant", tenants, "one", frame) > 0
    demand = got + lacks
    entitled = entitlements(got.sum(axis=1), weights, demand)
    x = jfi.attainment(got, entitled)
    min_x, whose = jfi.least_served(x, entitled)
    names = np.array([*tenants, None], dtype=object)

    tenant_table = (
        _long(frame, "tenant", tenants, served=got, demand=demand, entitlement=entitled, x=x, backlog=backlog)
        .join(judged.select("window", "tenant", "requests", "pass"), on=["window", "tenant"], how="left")
        .with_columns(pl.col("requests").fill_null(0))
        .filter((pl.col("requests") > 0) | (pl.col("demand") > 0))
    )
    type_table, tfr, tfr_type, tfr_raw = _types(frame, inside, served, unmet, kinds, config)
    windows = (
        frame.frame()
        .join(inside.group_by("window").agg(pl.len().alias("requests")), on="window", how="left")
        .join(_scr(judged, dict(zip(tenants, weights.tolist(), strict=True))), on="window", how="left")
        .join(preemption.taxed(inside), on="window", how="left")
        .sort("window")
        .with_columns(
            pl.col("requests").fill_null(0),
            pl.col("failing").fill_null([]),
            pl.col("tenants_insufficient").fill_null(0),
            _column("jfi", jfi.jain(x, entitled > 0)),
            _column("jfi_raw", _jfi_raw(got, config, tenants)),
            _column("min_x", min_x),
            pl.Series("min_x_tenant", names[whose].tolist(), dtype=pl.String),
            _column("service_gap", _service_gap(got / weights, _backlogged_through(rows, frame, tenants))),
            _column("tfr", tfr),
            _column("tfr_raw", tfr_raw),
            pl.Series("tfr_type", tfr_type, dtype=pl.String),
            (pl.col("start") > group["arrived_at"].max()).alias("drain"),
        )
        .with_columns(degraded().alias("degraded"))
    )
    starts = frame.frame().select("window", "start")
    return windows, tenant_table.join(starts, on="window"), type_table.join(starts, on="window")


def degraded() -> pl.Expr:
    """Whether a window is degraded; the drain never is. Tenants with x < 1 have waiting or refused requests."""
    below = [
        pl.col("scr") < SCR_DEGRADED,
        pl.col("jfi") < JFI_DEGRADED,
        pl.col("min_x") < X_DEGRADED,
        pl.col("tfr") < TFR_DEGRADED,
    ]
    return pl.any_horizontal(test.fill_null(False) for test in below) & ~pl.col("drain")


def _scr(judged: pl.DataFrame, weights: Mapping[str, float]) -> pl.DataFrame:
    """By window: ``scr``, ``scr_weighted``, ``failing``, ``tenants_insufficient``; null SCR where nobody is judged."""
    weight = pl.col("tenant").replace_strict(weights, return_dtype=pl.Float64)
    known = pl.col("pass").is_not_null()
    return (
        judged.group_by("window")
        .agg(
            pl.col("pass").mean().alias("scr"),
            ((weight * pl.col("pass")).sum() / weight.filter(known).sum()).alias("scr_weighted"),
            pl.col("tenant").filter(~pl.col("pass")).sort().alias("failing"),
            (~known).sum().cast(pl.Int64).alias("tenants_insufficient"),
        )
        .with_columns(pl.when(pl.col("scr").is_not_null()).then(pl.col("scr_weighted")).alias("scr_weighted"))
    )


def _jfi_raw(got: Floats, config: Config, tenants: list[str]) -> Floats:
    """The essay's form: served over committed tokens, of all tenants with a commitment, quiet ones included."""
    committed = config.commitments()
    if not committed:
        return np.full(len(got), np.nan)
    column = {name: index for index, name in enumerate(tenants)}
    served = np.stack([got[:, column[name]] if name in column else np.zeros(len(got)) for name in committed], axis=1)
    x = served / np.array(list(committed.values()), np.float64)
    return jfi.jain(x, np.ones_like(x, np.bool_))


def _backlogged_through(
    rows: pl.DataFrame, frame: Grid, tenants: list[str]
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Whether each tenant had a waiting request at every instant of a window, shape (W, T)."""
    waits = (
        rows.select("tenant", pl.col("arrived_us").alias("begin"), service.waits_until().alias("stop"))
        .filter(pl.col("stop") > pl.col("begin"))
        .sort("tenant", "begin")
        .with_columns(pl.col("stop").cum_max().shift(1).over("tenant").alias("before"))
        .with_columns((pl.col("before").is_null() | (pl.col("begin") > pl.col("before"))).cum_sum().alias("run"))
        .group_by("tenant", "run")
        .agg(pl.col("begin").min(), pl.col("stop").max())
    )
    first = -((frame.start_us - pl.col("begin")).floordiv(frame.size_us))
    beyond = (pl.col("stop") - frame.start_us).floordiv(frame.size_us)
    covered = (
        waits.with_columns(first.clip(0, None).alias("first"), beyond.clip(None, frame.count).alias("beyond"))
        .filter(pl.col("first") < pl.col("beyond"))
        .with_columns(pl.int_ranges("first", "beyond").alias("window"), pl.lit(1.0).alias("one"))
        .explode("window")
    )
    return _dense(covered, "tenant", tenants, "one", frame) > 0


def _service_gap(per_weight: Floats, through: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Floats:
    """VTC's measure: largest difference of service per weight between two tenants backlogged through the window."""
    if per_weight.shape[1] == 0:
        return np.full(len(per_weight), np.nan)
    most = np.where(through, per_weight, -np.inf).max(axis=1)
    least = np.where(through, per_weight, np.inf).min(axis=1)
    enough = through.sum(axis=1) >= 2
    return np.where(enough, np.where(enough, most, 0.0) - np.where(enough, least, 0.0), np.nan)


def _types(
    frame: Grid, inside: pl.DataFrame, served: pl.DataFrame, unmet: pl.DataFrame, kinds: list[str], config: Config
) -> tuple[pl.DataFrame, Floats, list[str | None], Floats]:
    """The type table, and by window TFR, whose it is, and the essay's raw form."""
    got = _dense(served, "type", kinds, "units", frame)
    demand = got + _dense(unmet, "type", kinds, "units", frame)
    waits = _dense(unmet, "type", kinds, "one", frame) > 0
    cost = service.request_cost(config.cost)
    stats = inside.group_by("window", "type").agg(
        pl.len().cast(pl.Float64).alias("n"), cost.mean().alias("mean"), cost.std(ddof=0).alias("sigma")
    )
    arrivals, mean, sigma = (_dense(stats, "type", kinds, name, frame) for name in ("n", "mean", "sigma"))
    total = arrivals.sum(axis=1, keepdims=True)
    share = np.where(total > 0, arrivals / np.where(total > 0, total, 1.0), 0.0)
    cv = np.where(mean > 0, sigma / np.where(mean > 0, mean, 1.0), 0.0)
    # A floor follows the window before, so that a starved type's floor does not chase its own decline.
    # A window without arrivals has no shares: the last one that had some stands for it.
    number = np.arange(frame.count)
    last = np.maximum.accumulate(np.where(total[:, 0] > 0, number, -1))
    before = np.concatenate([[-1], last[:-1]])
    before = np.where(before >= 0, before, number)
    rho = types.floors(share[before], cv[before], sigma[before], config.floor)
    ratio = types.ratios(got, demand, rho, waits)
    all_served = got.sum(axis=1, keepdims=True)
    actual = np.where(all_served > 0, got / np.where(all_served > 0, all_served, 1.0), np.nan)
    raw = np.where(rho > 0, actual / np.where(rho > 0, rho, 1.0), np.nan)
    known = ~np.isnan(ratio)
    least = np.where(known, ratio, np.inf)
    whose = least.argmin(axis=1)
    tfr = np.where(known.any(axis=1), least.min(axis=1), np.nan)
    names = [
        None if np.isnan(value) else kinds[index] for index, value in zip(whose.tolist(), tfr.tolist(), strict=True)
    ]
    table = _long(
        frame, "type", kinds, share=actual, floor=rho, ratio=ratio, ratio_raw=raw, leak=types.leaks(got, demand, rho)
    ).join(_long(frame, "type", kinds, demand=demand).filter(pl.col("demand") > 0), on=["window", "type"], how="semi")
    return table, tfr, names, raw.min(axis=1)


# ---- dense and long ----


def _dense(table: pl.DataFrame, key: str, names: list[str], value: str, frame: Grid) -> Floats:
    """``value`` summed by (window, ``key``) as an array of shape (windows, names); 0 where there is no row."""
    dense = np.zeros((frame.count, len(names)))
    if not table.is_empty():
        column = {name: index for index, name in enumerate(names)}
        summed = table.group_by("window", key).agg(pl.col(value).sum()).sort("window", key)
        at = summed[key].replace_strict(column, return_dtype=pl.Int64).to_numpy()
        dense[summed["window"].to_numpy(), at] = summed[value].cast(pl.Float64).to_numpy()
    return dense


def _long(frame: Grid, key: str, names: list[str], **columns: np.ndarray[tuple[int, ...], np.dtype]) -> pl.DataFrame:
    """Arrays of shape (windows, names) as one row per (window, name); NaN becomes null."""
    index = pl.Series("window", np.repeat(np.arange(frame.count, dtype=np.int64), len(names)))
    named = pl.Series(key, names * frame.count, dtype=pl.String)
    return pl.DataFrame([index, named, *(_column(name, array.reshape(-1)) for name, array in columns.items())])


def _column(name: str, values: np.ndarray[tuple[int, ...], np.dtype]) -> pl.Series:
    series = pl.Series(name, values)
    return series.fill_nan(None) if series.dtype == pl.Float64 else series


def _assumptions(
    outcome: pl.DataFrame, config: Config, options: MeasureOptions, slo: Mapping[str, SloTtft], assumed: bool
) -> tuple[str, ...]:
    """What a reader must know to trust the tables, in a fixed order."""
    said = []
    if assumed:
        target = next(slo[tenant] for tenant in sorted(slo) if config.slo_ttft_ms(tenant) is None)
        said.append(
            f"assumed SLO: TTFT P50 {target.p50:.0f} ms, P90 {target.p90:.0f} ms, P99 {target.p99:.0f} ms, 1.5 times "
            "the pooled quantiles of all tenants over the calmer half of the windows"
        )
    if not slo:
        said.append("no SLO: none is set and the rows have no first tokens, so SCR is not judged")
    if not outcome.is_empty() and outcome["scheduled_at"].null_count() == len(outcome):
        said.append("scheduled_at is unknown: a request is taken to wait until its first token")
    if not outcome.is_empty() and outcome["preemptions"].null_count() == len(outcome):
        said.append("preemptions are unknown in this source; they are not counted as none")
    if not any(tenant.committed_tokens_per_month or tenant.weight for tenant in config.tenants.values()):
        said.append("no commitments or weights are set: every tenant is entitled to the same share")
    if options.refusals == "drop":
        said.append("refused requests are left out of SCR (--refusals drop)")
    return tuple(said)
