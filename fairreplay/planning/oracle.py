"""What an injection did, by undoing it: the truth that a verdict is held against.

The oracle knows the injection, not the classifier: it takes parts of the injection back, serves the same requests
again, and compares deficits. None of the classifier's thresholds or interventions enters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from math import factorial
from typing import Any, Final

import polars as pl

from fairreplay.causes.episodes import METRICS, deficits
from fairreplay.config.model import Config
from fairreplay.metrics.measure import measure
from fairreplay.metrics.options import measure_options
from fairreplay.planning.incidents import undone
from fairreplay.planning.serving import serve

HIT: Final = 1.0
"""Deficit, in minutes of a total loss, that an injection must leave on a metric to be judged on it."""
ALONE: Final = 0.5
"""A cause whose undoing alone takes away this part of it is a right answer."""
MATTERS: Final = 0.25
"""Both causes of a pair are judged where each has at least this part (Shapley) of the deficit of some metric."""
NATIVE: Final = {"jfi": "weight_skew", "tfr": "type_starvation"}
"""Load makes contention, the rule makes it unfair: where undoing a metric's own rule alone helps, the rule is right."""


@dataclass(frozen=True)
class Truth:
    """What the injection did to one metric."""

    metric: str
    deficit: float
    """Of production, from the start of the incident to the end of the trace."""
    left: float
    """Of it, with the whole injection undone."""
    parts: Mapping[str, float]
    """Injected cause -> its symmetric Shapley part of what the injection took; they add up to 1."""
    right: tuple[str, ...]
    """Right answers, the likeliest first; never empty."""


def truths(trace: pl.DataFrame, config: Config, labels: Mapping[str, Any]) -> dict[str, Truth]:
    """The truth of each metric that the injections of a trace with one slot of incidents hit.

    Args:
        trace: as ``synth`` made it.
        config: the one beside it.
        labels: its labels; the incidents must be of one slot.
    """
    players = _players(labels["incidents"])
    since = min(datetime.fromisoformat(label["start"]) for label in labels["incidents"])
    names = sorted(players)

    def lacking(without: Sequence[str]) -> dict[str, float]:
        served = (
            trace
            if not without
            else serve(*undone(trace, config, labels, [part for name in without for part in players[name]]))
        )
        measured = measure(served, config, measure_options(config), "oracle")
        return deficits(measured.windows.filter((pl.col("end") > since) & ~pl.col("drain")))

    lost = {without: lacking(without) for size in range(len(names) + 1) for without in combinations(names, size)}
    found = {}
    for metric in METRICS:
        whole = lost[()][metric] - lost[tuple(names)][metric]
        if not names or whole < HIT:
            continue
        gone = {without: (lost[()][metric] - lost[without][metric]) / whole for without in lost}
        parts = shapley(names, gone)
        found[metric] = Truth(
            metric=metric,
            deficit=lost[()][metric],
            left=lost[tuple(names)][metric],
            parts=parts,
            right=right_answers(metric, parts, {name: gone[(name,)] for name in names}),
        )
    return found


def _players(incidents: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Injected cause -> the parts of injections that are it, as ``undone`` names them. Quiet tenants hurt nobody."""
    players: dict[str, list[str]] = {}
    for label in incidents:
        for part, cause in label["injection"]["causes"].items():
            if cause != "low_demand":
                players.setdefault(cause, []).append(f"{label['id']}:{part}")
    return players


def shapley(names: Sequence[str], values: Mapping[tuple[str, ...], float]) -> dict[str, float]:
    """Symmetric Shapley values of the game ``values`` (every subset of ``names``, each in the order of ``names``)."""
    count = len(names)
    found = dict.fromkeys(names, 0.0)
    for name in names:
        others = [other for other in names if other != name]
        for size in range(count):
            part = factorial(size) * factorial(count - size - 1) / factorial(count)
            for before in combinations(others, size):
                after = tuple(other for other in names if other in before or other == name)
                found[name] += part * (values[after] - values[before])
    return found


def right_answers(metric: str, parts: Mapping[str, float], alone: Mapping[str, float]) -> tuple[str, ...]:
    """The causes that are right for a metric: those whose undoing alone takes away half of it.

    If none does, each that matters; if the metric's own rule is among those that do, that one only.
    """
    by_part = sorted(parts, key=lambda cause: (-parts[cause], cause))
    enough = [cause for cause in by_part if alone[cause] >= ALONE]
    if NATIVE.get(metric) in enough:
        return (NATIVE[metric],)
    return tuple(enough) or tuple(cause for cause in by_part if parts[cause] >= MATTERS) or tuple(by_part[:1])
