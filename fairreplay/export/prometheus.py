"""The period's figures as OpenMetrics text: gauges by model, policy, tenant and type.

``policy`` is ``logged`` for what production did, else the replayed policy; where the log holds arrivals only, the
baseline replay stands for production (``production``). What is unknown has no sample, never 0.
Both parsers read it, OpenMetrics' and Prometheus' own (for which ``# UNIT`` and ``# EOF`` are comments).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

import polars as pl

from fairreplay.causes.review import Source, has_decisions, inside, production
from fairreplay.export.results import Period, Results, periods
from fairreplay.metrics.alerts import CHANNELS, MODES, THRESHOLDS, PeriodFigure
from fairreplay.metrics.measure import Measured, measure, models
from fairreplay.metrics.options import WHOLE_PERIOD
from fairreplay.metrics.quantiles import nearest_rank, ttft_us
from fairreplay.metrics.scr import Q
from fairreplay.metrics.steady import steady_mean
from fairreplay.store.outcome_rows import of_model

PREFIX: Final = "fairreplay_"
MODELS_MAX: Final = 100
TENANTS_MAX: Final = 1000
TYPES_MAX: Final = 100
"""Of each model those with the most logged requests have series; how many have none is a sample of its own."""

_GROUP: Final = ("model", "policy")
_NAMES: Final = {"scr": "SLO compliance (SCR)", "jfi": "Jain's index over tenants (JFI)", "tfr": "type fairness (TFR)"}


class Family(NamedTuple):
    """A metric: its help text, its unit (the end of its name, if it has one) and its labels."""

    help: str
    unit: str
    labels: tuple[str, ...]


FAMILIES: Final[dict[str, Family]] = {
    "period_start_timestamp_seconds": Family("Begin of the period that was measured.", "seconds", ()),
    "period_end_timestamp_seconds": Family("End of the period that was measured.", "seconds", ()),
    "production": Family(
        "1 for what stands for production (the log, or the baseline of one that holds arrivals only), else 0.",
        "",
        _GROUP,
    ),
    "requests": Family("Requests that arrived in the period.", "", _GROUP),
    "refused_requests": Family("Requests of the period that were refused.", "", _GROUP),
    "windows": Family("Windows of the period, the drain after the last arrival left out.", "", _GROUP),
    "degraded_windows": Family("Windows in which a metric was below its threshold.", "", _GROUP),
    **{
        f"{metric}_{which}_ratio": Family(f"{said} {name}.", "ratio", _GROUP)
        for metric, name in _NAMES.items()
        for which, said in (
            ("mean", "Mean over the judged windows of"),
            ("worst", "Worst window of"),
            ("latest", "Last judged window of"),
        )
    },
    "least_attainment_worst_ratio": Family(
        "Least service over entitlement of a tenant in any window (min x).", "ratio", _GROUP
    ),
    "least_attainment_latest_ratio": Family(
        "Least service over entitlement of a tenant in the last judged window (min x).", "ratio", _GROUP
    ),
    "below_level_seconds": Family(
        "Time that a metric was below an alert level.", "seconds", (*_GROUP, "metric", "level")
    ),
    "alerts": Family(
        "Alerts of the period: runs of windows at one level.", "", (*_GROUP, "metric", "level", "channel")
    ),
    "emergency_mode_active": Family(
        "1 where the emergency mode would be on at the end of the period, else 0.", "", (*_GROUP, "metric", "mode")
    ),
    "episodes": Family("Episodes of production by cause.", "", (*_GROUP, "cause")),
    "ttft_seconds": Family(
        "Time to first token of the answered requests, by nearest rank.", "seconds", (*_GROUP, "percentile")
    ),
    "preemptions": Family("Preemptions of requests that arrived in the period.", "", _GROUP),
    "recompute_tax_ratio": Family("Recomputed over all computed tokens.", "ratio", _GROUP),
    "tenants": Family("Tenants with requests in the period.", "", _GROUP),
    "tenants_left_out": Family("Tenants without series of their own, those with the fewest requests.", "", _GROUP),
    "types_left_out": Family("Request types without series of their own.", "", _GROUP),
    "models_left_out": Family("Models without series of their own.", "", ()),
    "tenant_requests": Family("Requests of the tenant.", "", (*_GROUP, "tenant")),
    "tenant_service_units": Family("Service units that the tenant got.", "", (*_GROUP, "tenant")),
    "tenant_entitlement_units": Family(
        "Weighted max-min share of the delivered units, at most what the tenant asked for.", "", (*_GROUP, "tenant")
    ),
    "tenant_attainment_ratio": Family("Service over entitlement of the period.", "ratio", (*_GROUP, "tenant")),
    "tenant_attainment_worst_ratio": Family(
        "Service over entitlement of the tenant's worst window.", "ratio", (*_GROUP, "tenant")
    ),
    "tenant_windows_judged": Family("Windows in which the tenant's SLO was judged.", "", (*_GROUP, "tenant")),
    "tenant_windows_failed": Family("Windows in which the tenant missed its SLO.", "", (*_GROUP, "tenant")),
    "tenant_ttft_seconds": Family(
        "Time to first token by nearest rank; absent where the rank falls on a request that got none.",
        "seconds",
        (*_GROUP, "tenant", "percentile"),
    ),
    "tenant_weight_skew_ratio": Family(
        "Weight in force over the committed share, mean over windows.", "ratio", (*_GROUP, "tenant")
    ),
    "type_share_ratio": Family("Part of the served units that the type got.", "ratio", (*_GROUP, "type")),
    "type_floor_ratio": Family("Minimum share of the type.", "ratio", (*_GROUP, "type")),
    "type_attainment_ratio": Family("Share over floor, demand considered.", "ratio", (*_GROUP, "type")),
    "type_leaked_units": Family("Service units of its floor that the type lost to others.", "", (*_GROUP, "type")),
}
"""Every exported metric, without ``fairreplay_`` in front. All are gauges: figures of a period, no running counts."""

Sample = tuple[str, tuple[str, ...], float | None]
"""Family, label values in its order, value."""


def exposition(results: Results) -> tuple[str, list[str]]:
    """The text, and a remark on each kind of name that was capped."""
    found = list(samples(results))
    left_out: dict[str, int] = {}
    for name, _, value in found:
        if name.endswith("_left_out") and value:
            left_out[name] = max(left_out.get(name, 0), int(value))
    caps = {"tenants_left_out": TENANTS_MAX, "types_left_out": TYPES_MAX, "models_left_out": MODELS_MAX}
    remarks = [
        f"{count} {name.removesuffix('_left_out')} have no series: only the {caps[name]} with the most requests have"
        for name, count in left_out.items()
    ]
    return rendered(found), remarks


def rendered(found: Iterable[Sample]) -> str:
    """Samples as text, family by family."""
    by_family: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for name, values, value in found:
        if value is not None:
            by_family[name].append(f"{PREFIX}{name}{_labels(FAMILIES[name].labels, values)} {_number(value)}\n")
    parts = []
    for name, lines in by_family.items():
        if lines:
            family = FAMILIES[name]
            parts.append(f"# HELP {PREFIX}{name} {family.help}\n# TYPE {PREFIX}{name} gauge\n")
            parts.append(f"# UNIT {PREFIX}{name} {family.unit}\n" if family.unit else "")
            parts += lines
    return "".join(parts) + "# EOF\n"


def escaped(text: str) -> str:
    """A label value between quotes: any text, literally."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = ",".join(f'{name}="{escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    return repr(int(value)) if float(value).is_integer() else repr(float(value))


def samples(results: Results) -> Iterator[Sample]:
    """All samples, in the order of sources and models."""
    logged = results.sources[0]
    counts = _by_requests(inside(logged.outcome, results.options), "model")
    kept = set(counts[:MODELS_MAX])
    begin, end = _bounds(results)
    yield "period_start_timestamp_seconds", (), begin
    yield "period_end_timestamp_seconds", (), end
    yield "models_left_out", (), len(counts) - len(kept)
    judged = production(results.named)
    for source in results.sources:
        outcome = inside(source.outcome, results.options)
        whole = measure(
            source.outcome,
            results.config,
            replace(results.options, window_us=WHOLE_PERIOD),
            source.name,
            (source.measured.slo, source.measured.assumed_slo),
        )
        of_period = {period.model: period for period in periods(source, results.config)}
        for model in models(source.measured.windows):
            if model in kept:
                group = _Group(
                    labels=(model or "", source.name),
                    outcome=of_model(outcome, model),
                    logged=of_model(inside(logged.outcome, results.options), model),
                    windows=of_model(source.measured.windows, model).filter(~pl.col("drain")),
                    period=of_period[model],
                )
                yield "production", group.labels, int(source.name == judged.name)
                yield from _figures(group)
                yield from _tenants(group, source.measured, whole, model)
                yield from _types(group, whole, model)
                if source.name == judged.name:
                    yield from _episodes(group, judged, model)


@dataclass(frozen=True)
class _Group:
    """A model group under one policy."""

    labels: tuple[str, str]
    outcome: pl.DataFrame
    logged: pl.DataFrame
    windows: pl.DataFrame
    period: Period


def _bounds(results: Results) -> tuple[float | None, float | None]:
    arrivals = inside(results.sources[0].outcome, results.options)["arrived_at"]
    since, until = results.options.since or arrivals.min(), results.options.until or arrivals.max()
    return tuple(at.timestamp() if isinstance(at, datetime) else None for at in (since, until))  # type: ignore[return-value]


def _figures(group: _Group) -> Iterator[Sample]:
    labels, windows = group.labels, group.windows
    yield "requests", labels, len(group.outcome)
    yield "refused_requests", labels, int((group.outcome["status"] == "rejected").sum())
    yield "windows", labels, len(windows)
    yield "degraded_windows", labels, int(windows["degraded"].sum())
    for figure in group.period.figures:
        yield f"{figure.metric}_mean_ratio", labels, figure.mean
        yield f"{figure.metric}_worst_ratio", labels, figure.worst
        yield f"{figure.metric}_latest_ratio", labels, _latest(windows[figure.metric])
        if figure.windows:
            yield from _levels(group, figure)
    yield "least_attainment_worst_ratio", labels, windows["min_x"].min()  # type: ignore[misc]
    yield "least_attainment_latest_ratio", labels, _latest(windows["min_x"])
    ttft = ttft_us(group.outcome)
    for q in Q.values():
        yield "ttft_seconds", (*labels, str(q)), _seconds(nearest_rank(ttft, q), 1e6)
    known = group.outcome["preemptions"].drop_nulls()
    yield "preemptions", labels, int(known.cast(pl.Int64).sum()) if len(known) else None


def _levels(group: _Group, figure: PeriodFigure) -> Iterator[Sample]:
    """Of a metric that was judged: one that was not is neither below nor above anything."""
    labels, metric = group.labels, figure.metric
    for level in THRESHOLDS[metric]:
        yield "below_level_seconds", (*labels, metric, level), 60 * getattr(figure, f"minutes_{level}")
    for level, channel in CHANNELS[metric].items():
        count = sum(alert.metric == metric and alert.level == level for alert in group.period.alerts)
        yield "alerts", (*labels, metric, level, channel), count
    active = any(mode.metric == metric and not mode.ended for mode in group.period.modes)
    yield "emergency_mode_active", (*labels, metric, MODES[metric].replace(" ", "-").lower()), int(active)


def _episodes(group: _Group, judged: Source, model: str | None) -> Iterator[Sample]:
    causes: dict[str, int] = {}
    for episode in judged.episodes:
        if episode.model == model:
            causes[episode.cause] = causes.get(episode.cause, 0) + 1
    for cause, count in sorted(causes.items()):
        yield "episodes", (*group.labels, cause), count


def _tenants(group: _Group, measured: Measured, whole: Measured, model: str | None) -> Iterator[Sample]:
    order = _by_requests(group.logged, "tenant")
    kept = set(order[:TENANTS_MAX])
    decided = has_decisions(group.outcome)
    yield "tenants", group.labels, group.outcome["tenant"].n_unique()
    yield "tenants_left_out", group.labels, len(order) - len(kept)
    for row in of_model(whole.windows, model).head(1).iter_rows(named=True):
        yield "recompute_tax_ratio", group.labels, row["recompute_tax"]
    by_window = {
        row["tenant"]: row
        for row in of_model(measured.tenants, model)
        .group_by("tenant")
        .agg(
            pl.col("x").min().alias("worst"),
            pl.col("pass").count().alias("judged"),
            (~pl.col("pass")).sum().alias("failed"),
            steady_mean(pl.col("skew")),
        )
        .iter_rows(named=True)
    }
    for row in of_model(whole.tenants, model).sort("tenant").iter_rows(named=True):
        if row["tenant"] not in kept:
            continue
        labels = (*group.labels, row["tenant"])
        over_windows: dict[str, Any] = by_window.get(row["tenant"], {})
        yield "tenant_requests", labels, row["requests"]
        if decided:
            yield "tenant_service_units", labels, row["served"]
            yield "tenant_entitlement_units", labels, row["entitlement"]
        yield "tenant_attainment_ratio", labels, row["x"]
        yield "tenant_attainment_worst_ratio", labels, over_windows.get("worst")
        yield "tenant_windows_judged", labels, over_windows.get("judged")
        yield "tenant_windows_failed", labels, over_windows.get("failed")
        yield "tenant_weight_skew_ratio", labels, over_windows.get("skew")
        for name, q in Q.items():
            yield "tenant_ttft_seconds", (*labels, str(q)), _seconds(row[f"ttft_{name}_ms"], 1e3)


def _types(group: _Group, whole: Measured, model: str | None) -> Iterator[Sample]:
    order = _by_requests(group.logged, "type")
    kept = set(order[:TYPES_MAX])
    yield "types_left_out", group.labels, len(order) - len(kept)
    for row in of_model(whole.types, model).sort("type").iter_rows(named=True):
        if row["type"] in kept:
            labels = (*group.labels, row["type"])
            yield "type_share_ratio", labels, row["share"]
            yield "type_floor_ratio", labels, row["floor"]
            yield "type_attainment_ratio", labels, row["ratio"]
            yield "type_leaked_units", labels, row["leak"]


def _by_requests(rows: pl.DataFrame, column: str) -> list[Any]:
    """The names in a column, those with the most rows first, then by name."""
    counts = rows.group_by(column).len().sort(["len", column], descending=[True, False], nulls_last=True)
    return counts[column].to_list()


def _latest(values: pl.Series) -> float | None:
    known = values.drop_nulls()
    return float(known[-1]) if len(known) else None


def _seconds(value: float | None, per_second: float) -> float | None:
    return None if value is None else value / per_second
