"""Levels of the period's figures: the thresholds of the alert table, applied to means and to minutes.

A window is below a level where its value is below the threshold. Emergency modes of JFI and TFR share red's number and
differ by persistence: they begin with the second (TFR: third) window in a row, so minutes of emergency are those of
runs that long, and a mean is an emergency only if such a run exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fairreplay.metrics.alerts import METRICS as METRICS
from fairreplay.metrics.alerts import THRESHOLDS as THRESHOLDS
from fairreplay.report.schema import Level, Metric, TenantUnder

EMERGENCY_RUN: Final[dict[Metric, int]] = {"scr": 1, "jfi": 2, "tfr": 3}
ORDER: Final[tuple[Level, ...]] = ("ok", "yellow", "red", "emergency")


@dataclass(frozen=True)
class Minutes:
    yellow: float
    red: float
    emergency: float


def level(metric: Metric, value: float | None, longest_run: int) -> Level | None:
    """The level of ``value``; ``longest_run`` is the most windows in a row below the emergency threshold."""
    if value is None:
        return None
    limits = THRESHOLDS[metric]
    if value < limits["emergency"] and longest_run >= EMERGENCY_RUN[metric]:
        return "emergency"
    if value < limits["red"]:
        return "red"
    return "yellow" if value < limits["yellow"] else "ok"


def worst(levels: Sequence[Level | None]) -> Level:
    """The gravest of ``levels``; ``ok`` where none was judged."""
    return max((one for one in levels if one is not None), key=ORDER.index, default="ok")


def runs(metric: Metric, values: Sequence[float | None]) -> list[range]:
    """Maximal runs of windows below the emergency threshold; a null window ends a run."""
    limit = THRESHOLDS[metric]["emergency"]
    found: list[range] = []
    first: int | None = None
    for index, value in enumerate([*values, None]):
        below = value is not None and value < limit
        if below and first is None:
            first = index
        elif not below and first is not None:
            found.append(range(first, index))
            first = None
    return found


def minutes_below(metric: Metric, values: Sequence[float | None], lengths_min: Sequence[float]) -> Minutes:
    """Minutes spent below each level; ``lengths_min`` are the windows' lengths."""
    pairs = list(zip(values, lengths_min, strict=True))

    def below(limit: float) -> float:
        return sum(length for value, length in pairs if value is not None and value < limit)

    lasting = [run for run in runs(metric, values) if len(run) >= EMERGENCY_RUN[metric]]
    return Minutes(
        yellow=below(THRESHOLDS[metric]["yellow"]),
        red=below(THRESHOLDS[metric]["red"]),
        emergency=sum(lengths_min[index] for run in lasting for index in run),
    )


def longest_run(metric: Metric, values: Sequence[float | None]) -> int:
    return max((len(run) for run in runs(metric, values)), default=0)


def slo_use(under: TenantUnder, slo: dict[str, float] | None) -> float | None:
    """The worst of P50, P90 and P99 TTFT over its target: above 1 the tenant misses its SLO."""
    if slo is None:
        return None
    ratios = [value / slo[q] for q, value in under["ttft_ms"].items() if value is not None and slo.get(q)]
    return max(ratios, default=None)
