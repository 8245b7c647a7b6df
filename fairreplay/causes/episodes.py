"""Degraded windows, merged into episodes: when it was unfair, by how much, and to whom."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import polars as pl

from fairreplay.causes.verdict import Verdict
from fairreplay.metrics.measure import JFI_DEGRADED, SCR_DEGRADED, TFR_DEGRADED, X_DEGRADED, Measured
from fairreplay.metrics.quantiles import ttft_us
from fairreplay.metrics.steady import steady_sum
from fairreplay.store.outcome_rows import of_model

GAP_WINDOWS_MAX: Final = 2
"""Healthy or null windows that may lie between two degraded ones of an episode."""

DEFICIT_UNIT_S: Final = 60.0
DEFICIT_MINOR: Final = 0.5
"""A metric with a smaller deficit gets no cause; an episode without any larger one is ``minor``."""

METRICS: Final = ("scr", "jfi", "tfr")
UNCLASSIFIED: Final = "unclassified"
MINOR: Final = "minor"


@dataclass(frozen=True)
class Episode:
    """Consecutive degraded windows of one model group and source.

    ``metrics`` holds the worst value of each metric (null where it was never judged), ``deficits`` how far below its
    threshold it was, summed over windows, in units of 60 s windows. ``shares`` and what follows stay empty until a
    cause is established.
    """

    id: str
    start: datetime
    end: datetime
    source: str
    model: str | None
    windows: int
    degraded_windows: int
    metrics: Mapping[str, float | None]
    min_x: float | None
    deficits: Mapping[str, float]
    tenants: tuple[str, ...]
    types: tuple[str, ...]
    requests_hurt: int
    """Requests that arrived in the episode and were refused or later than their tenant's P99 target."""
    tokens_hurt: int
    """Prompt and output tokens of these requests."""
    cause: str
    reason: str
    shares: Mapping[str, float] | None = None
    by_metric: Mapping[str, Any] = field(default_factory=dict)
    confidence: str | None = None
    signatures: Mapping[str, Any] = field(default_factory=dict)
    recommendation: str | None = None
    verdict: Verdict | None = None
    """All that the fields above say in short, and how to recompute it."""


def episodes(measured: Measured, outcome: pl.DataFrame) -> list[Episode]:
    """The episodes of one source, by model and start.

    A window is degraded where SCR < .95, JFI < .9, TFR < .5 or a tenant with waiting or refused requests has x < .7;
    the raw forms never count. Degraded windows with at most two others between them are one episode.
    """
    found = []
    for model in measured.windows["model"].unique(maintain_order=True).to_list():
        windows = of_model(measured.windows, model).sort("start")
        runs = merge(windows["degraded"].to_list())
        if not runs:
            continue
        tables = _Tables(
            tenants=of_model(measured.tenants, model).sort("start", maintain_order=True),
            types=of_model(measured.types, model).sort("start", maintain_order=True),
            hurt=_hurt(measured, of_model(outcome, model)),
        )
        found += [_episode(tables, windows[first : last + 1], model) for first, last in runs]
    return found


@dataclass(frozen=True)
class _Tables:
    """What happened to one model group, each in order of time: an episode is a slice of it."""

    tenants: pl.DataFrame
    types: pl.DataFrame
    hurt: pl.DataFrame


def merge(degraded: Sequence[bool]) -> list[tuple[int, int]]:
    """First and last index of each run of degraded windows, runs with a gap of at most two joined."""
    runs: list[tuple[int, int]] = []
    for index, flag in enumerate(degraded):
        if not flag:
            continue
        if runs and index - runs[-1][1] - 1 <= GAP_WINDOWS_MAX:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return runs


def episode_id(model: str | None, start: datetime) -> str:
    """A stable name: ``ep-`` and a hash of the model and the first window."""
    text = f"{'' if model is None else 'model:' + model}\0{start:%Y-%m-%dT%H:%M:%S.%f}"
    return "ep-" + hashlib.sha256(text.encode()).hexdigest()[:10]


def deficits(windows: pl.DataFrame) -> dict[str, float]:
    """How far below its threshold each metric was, summed over the windows, in units of 60 s windows.

    SCR ``max(0, .95 - scr) / .95``; JFI ``max(0, (.9 - jfi) / .9, (.7 - min_x) / .7)``; TFR ``max(0, .5 - tfr) / .5``.
    A null window counts 0.
    """
    length = (pl.col("end") - pl.col("start")).dt.total_microseconds() / 1e6 / DEFICIT_UNIT_S

    def below(column: str, threshold: float) -> pl.Expr:
        return ((threshold - pl.col(column)) / threshold).fill_null(0.0)

    floor = pl.lit(0.0)
    terms = {
        "scr": pl.max_horizontal(floor, below("scr", SCR_DEGRADED)),
        "jfi": pl.max_horizontal(floor, below("jfi", JFI_DEGRADED), below("min_x", X_DEGRADED)),
        "tfr": pl.max_horizontal(floor, below("tfr", TFR_DEGRADED)),
    }
    return windows.select(steady_sum(term * length).alias(name) for name, term in terms.items()).row(0, named=True)


def _episode(tables: _Tables, windows: pl.DataFrame, model: str | None) -> Episode:
    start, end = windows["start"][0], windows["end"][-1]
    bad = windows.filter("degraded")
    tenants = _between(tables.tenants, "start", start, end).join(bad, on="start", how="semi")
    unfair = bad.filter((pl.col("jfi") < JFI_DEGRADED) | (pl.col("min_x") < X_DEGRADED))
    late = set(tenants.filter(~pl.col("pass"))["tenant"].to_list())
    short = tenants.join(unfair, on="start", how="semi").filter((pl.col("x") < X_DEGRADED) & pl.col("backlog"))
    types = _between(tables.types, "start", start, end).join(bad, on="start", how="semi")
    types = types.filter(pl.col("ratio") < TFR_DEGRADED)
    hurt = _between(tables.hurt, "arrived_at", start, end)
    lacking = deficits(windows)
    worst = {name: least(windows[name]) for name in METRICS}
    hit = tuple(sorted(late | set(short["tenant"].to_list())))
    return Episode(
        id=episode_id(model, start),
        start=start,
        end=end,
        source=windows["source"][0],
        model=model,
        windows=len(windows),
        degraded_windows=len(bad),
        metrics=worst,
        min_x=least(windows["min_x"]),
        deficits=lacking,
        tenants=hit,
        types=tuple(sorted(set(types["type"].to_list()))),
        requests_hurt=len(hurt),
        tokens_hurt=int(
            hurt.select(pl.sum_horizontal(pl.col("prompt_tokens", "output_tokens").cast(pl.Int64)).sum()).item()
        ),
        cause=UNCLASSIFIED if max(lacking.values()) >= DEFICIT_MINOR else MINOR,
        reason=_reason(windows, bad, len(hit), len(hurt)),
    )


def _between(rows: pl.DataFrame, column: str, start: datetime, end: datetime) -> pl.DataFrame:
    """The rows of [``start``, ``end``) of a table in the order of ``column``."""
    first, last = (rows[column].search_sorted(at, side="left") for at in (start, end))
    return rows[first:last]


def _hurt(measured: Measured, group: pl.DataFrame) -> pl.DataFrame:
    """Refused, or later than the tenant's P99 target; in order of arrival."""
    targets = {tenant: slo.p99 * 1000 for tenant, slo in measured.slo.items()}
    target = pl.col("tenant").replace_strict(targets, default=None, return_dtype=pl.Float64)
    is_late = (ttft_us(group) > group.select(target.alias("target")).to_series()).fill_null(False)
    is_hurt = (group["status"] == "rejected") | is_late
    return group.filter(is_hurt).select("arrived_at", "prompt_tokens", "output_tokens").sort("arrived_at")


def _reason(windows: pl.DataFrame, bad: pl.DataFrame, tenants: int, hurt: int) -> str:
    """What degraded, in one sentence with numbers; names of tenants stay out of it."""
    said = []
    for name, threshold in (("scr", SCR_DEGRADED), ("jfi", JFI_DEGRADED), ("tfr", TFR_DEGRADED)):
        low = least(windows[name])
        below = int((windows[name] < threshold).sum())
        if below:
            said.append(f"{name.upper()} fell to {low:.2f} (below {threshold:g} in {below} of {len(windows)} windows)")
    starved = windows.filter(pl.col("min_x") < X_DEGRADED)
    if len(starved):
        said.append(f"one tenant got {least(starved['min_x']):.0%} of its entitlement")
    whom = f"{_count(tenants, 'tenant')} hit, {_count(hurt, 'request')} late or refused"
    return ", ".join(said) + f"; {whom} in {_count(len(bad), 'degraded window')}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def least(values: pl.Series) -> float | None:
    """The smallest value; null if none is known."""
    value = values.min()
    return None if value is None else float(value)  # type: ignore[arg-type]
