"""Policies, configs or periods side by side: who is best by which metric, and what that costs in the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from fairreplay.metrics.alerts import figures
from fairreplay.metrics.measure import Measured, models
from fairreplay.metrics.preemption import taxed
from fairreplay.report.rounding import rounded
from fairreplay.report.tables import tokens_per_s
from fairreplay.report.ttft import quantiles
from fairreplay.store.outcome_rows import of_model

Scale = Literal["part", "relative"]


@dataclass(frozen=True)
class Metric:
    """What is compared. ``part``: a gap is a difference, ``relative``: a difference over the better value.

    Nothing is better than ``enough``.
    """

    title: str
    is_high_good: bool
    scale: Scale
    enough: float | None = None


METRICS: Final[dict[str, Metric]] = {
    "scr": Metric("SCR", True, "part"),
    "jfi": Metric("JFI", True, "part"),
    "tfr": Metric("TFR", True, "part", enough=1.0),
    "ttft_p50_ms": Metric("TTFT P50", False, "relative"),
    "ttft_p90_ms": Metric("TTFT P90", False, "relative"),
    "ttft_p99_ms": Metric("TTFT P99", False, "relative"),
    "refused_share": Metric("refused", False, "part"),
    "recompute_tax": Metric("recompute tax", False, "part"),
    "tokens_per_s": Metric("tokens/s", True, "relative"),
}
"""In the order of the table. Means of SCR, JFI and TFR are over the judged windows, the drain left out."""
GAP_MIN: Final = 0.005
"""A smaller gap is no cost worth a word."""


@dataclass(frozen=True)
class Candidate:
    """One column of the comparison: a model group under a policy, a config, or in a period."""

    name: str
    model: str | None
    requests: int
    is_ranked: bool
    """The log stands beside the replays for the eye; it is ranked where it was asked for."""
    values: dict[str, float | None]
    """By the names of ``METRICS``."""


@dataclass(frozen=True)
class Cost:
    """What a candidate gives up in a metric: its value, the best one and whose that is."""

    metric: str
    value: float
    best: float
    of: str
    gap: float
    """As the metric's ``scale`` says."""


@dataclass(frozen=True)
class Best:
    """Who is best by a metric, in one model group, and what that costs each; nobody where all are equal."""

    model: str | None
    metric: str
    names: tuple[str, ...]
    costs: dict[str, tuple[Cost, ...]]
    """By name, the largest gap first."""


def candidates(name: str, outcome: pl.DataFrame, measured: Measured, *, is_ranked: bool) -> list[Candidate]:
    """The figures of ``outcome`` (the rows of the period) by model group."""
    found = []
    for model in models(outcome):
        rows = of_model(outcome, model)
        of_period = {one.metric: one.mean for one in figures(of_model(measured.windows, model))}
        tax = taxed(rows.with_columns(pl.lit(0).alias("window")))["recompute_tax"]
        values: dict[str, float | None] = {
            **{str(metric): mean for metric, mean in of_period.items()},
            **{f"ttft_{q}_ms": value for q, value in quantiles(rows).items()},
            "refused_share": int((rows["status"] == "rejected").sum()) / len(rows),
            "recompute_tax": None if tax.is_empty() else tax[0],
            "tokens_per_s": tokens_per_s(rows),
        }
        kept = {key: rounded(values[key]) for key in METRICS}
        found.append(Candidate(name, model, len(rows), is_ranked, kept))
    return found


def best(found: Sequence[Candidate]) -> list[Best]:
    """For each model group and metric, by the ranked candidates alone."""
    judged: list[Best] = []
    for model in dict.fromkeys(one.model for one in found):
        ranked = [one for one in found if one.model == model and one.is_ranked]
        leaders = {metric: _leaders(ranked, metric) for metric in METRICS}
        for metric, names in leaders.items():
            costs = {one.name: _costs(one, ranked, leaders) for one in ranked if one.name in names}
            judged.append(Best(model, metric, names, costs))
    return judged


def _leaders(ranked: Sequence[Candidate], metric: str) -> tuple[str, ...]:
    known = [(one.name, value) for one in ranked if (value := _counted(one.values[metric], metric)) is not None]
    if not known:
        return ()
    top = (max if METRICS[metric].is_high_good else min)(value for _, value in known)
    names = tuple(name for name, value in known if value == top)
    return () if len(names) == len(known) else names


def _costs(one: Candidate, ranked: Sequence[Candidate], leaders: dict[str, tuple[str, ...]]) -> tuple[Cost, ...]:
    found = []
    for metric, names in leaders.items():
        value = one.values[metric]
        if not names or one.name in names or value is None:
            continue
        leader = next(other for other in ranked if other.name == names[0])
        top = leader.values[metric]
        assert top is not None, "a leader has a value"
        gap = abs((_counted(value, metric) or 0.0) - (_counted(top, metric) or 0.0))
        if METRICS[metric].scale == "relative":
            gap = gap / top if top > 0 else 0.0
        if gap >= GAP_MIN:
            found.append(Cost(metric, value, top, leader.name, round(gap, 6)))
    return tuple(sorted(found, key=lambda cost: -cost.gap))


def _counted(value: float | None, metric: str) -> float | None:
    """``value`` as far as more of it is better."""
    enough = METRICS[metric].enough
    return value if value is None or enough is None else min(value, enough)
