"""Alert levels with their channels, period figures, and the emergency modes that would have fired.

A window is below a level where its value is below the threshold. Windows after the last arrival (the drain) count for
nothing here; a window without a value is neither below nor above anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import numpy as np
import polars as pl

from fairreplay.metrics.entitlement import Floats

Level = Literal["ok", "yellow", "red", "emergency"]
Metric = Literal["scr", "jfi", "tfr"]

METRICS: Final[tuple[Metric, ...]] = ("scr", "jfi", "tfr")
"""In order of priority."""
TARGETS: Final[dict[Metric, float]] = {"scr": 0.99, "jfi": 1.0, "tfr": 1.0}
THRESHOLDS: Final[dict[str, dict[str, float]]] = {
    "scr": {"yellow": 0.95, "red": 0.90, "emergency": 0.85},
    "jfi": {"yellow": 0.90, "red": 0.80, "emergency": 0.80},
    "tfr": {"yellow": 0.50, "red": 0.40, "emergency": 0.40},
    "min_x": {"yellow": 0.70, "red": 0.50},
}
CHANNELS: Final[dict[Metric, dict[str, str]]] = {
    "scr": {"yellow": "slack", "red": "phone"},
    "jfi": {"yellow": "slack", "red": "slack"},
    "tfr": {"yellow": "ticket", "red": "slack"},
}
"""Where an alert goes. An emergency switches a mode on and tells the channel of red."""
STARVED_X: Final = 0.5
"""JFI also alerts (yellow) where a tenant with backlog gets less than this of its entitlement: with n >= 10 tenants
JFI stays above .9 however one of them starves."""

MODES: Final[dict[Metric, str]] = {"scr": "single-P99", "jfi": "throttle", "tfr": "hard isolation"}
ENTER: Final[dict[Metric, int]] = {"scr": 2, "jfi": 2, "tfr": 3}
"""Windows in a row below the emergency threshold after which the mode begins."""
LEAVE: Final = 5
"""Judged windows in a row above yellow after which it ends."""


@dataclass(frozen=True)
class PeriodFigure:
    """One metric over a period: the mean over its judged windows, and the minutes below each level."""

    metric: Metric
    mean: float | None
    windows: int
    worst: float | None
    worst_at: datetime | None
    minutes_yellow: float
    minutes_red: float
    minutes_emergency: float


@dataclass(frozen=True)
class Alert:
    """Consecutive windows at one level. ``value`` is the worst, ``windows`` how many."""

    metric: Metric
    level: Level
    channel: str
    start: datetime
    end: datetime
    windows: int
    value: float


@dataclass(frozen=True)
class EmergencyMode:
    """A mode that would have been on in [``start``, ``end``); ``ended`` false: it still was at the period's end."""

    metric: Metric
    mode: str
    start: datetime
    end: datetime
    ended: bool
    throttled: tuple[str, ...]
    """Tenants that the JFI mode would have throttled, as of the window that set it off, first to go first."""


def figures(windows: pl.DataFrame) -> list[PeriodFigure]:
    """The period figures of one model and source (rows of ``measure.WINDOW_SCHEMA``), the drain left out."""
    kept = windows.filter(~pl.col("drain")).sort("start")
    minutes = ((kept["end"] - kept["start"]).dt.total_microseconds() / 60e6).to_numpy()
    found = []
    for metric in METRICS:
        values = kept[metric].to_numpy()
        judged = ~np.isnan(values)
        below = {level: float(minutes[judged & (values < limit)].sum()) for level, limit in THRESHOLDS[metric].items()}
        place = int(np.nanargmin(values)) if judged.any() else None
        found.append(
            PeriodFigure(
                metric=metric,
                mean=float(values[judged].mean()) if judged.any() else None,
                windows=int(judged.sum()),
                worst=None if place is None else float(values[place]),
                worst_at=None if place is None else kept["start"][place],
                minutes_yellow=below["yellow"],
                minutes_red=below["red"],
                minutes_emergency=below["emergency"],
            )
        )
    return found


def window_level(metric: Metric, value: float | None, min_x: float | None = None) -> Level | None:
    """The level of one window; null where it was not judged. ``min_x`` counts for JFI alone."""
    limits = THRESHOLDS[metric]
    for level in ("emergency", "red", "yellow"):
        if value is not None and value < limits[level]:
            return level
    if metric == "jfi" and min_x is not None and min_x < STARVED_X:
        return "yellow"
    return None if value is None else "ok"


def alerts(windows: pl.DataFrame) -> list[Alert]:
    """What would have been sent for one model and source, by start, then metric: one for each run of a level.

    Emergency counts as red here: it says that a mode may begin (``emergency_modes``), not whom to call.
    """
    kept = windows.filter(~pl.col("drain")).sort("start")
    rows = kept.select("start", "end", "min_x", *METRICS).rows(named=True)
    found: list[Alert] = []
    for metric in METRICS:
        last: Alert | None = None
        for row in rows:
            level = window_level(metric, row[metric], row["min_x"])
            level = "red" if level == "emergency" else level
            if last is not None and level != last.level:
                found.append(last)
                last = None
            if level in (None, "ok"):
                continue
            assert level is not None
            value = row[metric] if row[metric] is not None else row["min_x"]
            last = Alert(
                metric=metric,
                level=level,
                channel=CHANNELS[metric][level],
                start=last.start if last else row["start"],
                end=row["end"],
                windows=last.windows + 1 if last else 1,
                value=min(last.value, value) if last else value,
            )
        if last is not None:
            found.append(last)
    return sorted(found, key=lambda alert: (alert.start, METRICS.index(alert.metric)))


def emergency_modes(
    windows: pl.DataFrame, tenants: pl.DataFrame, rule: str = "over-served", weights: dict[str, float] | None = None
) -> list[EmergencyMode]:
    """The modes that would have fired for one model and source (``measure.Measured.windows`` and ``tenants``).

    One at a time, SCR before JFI before TFR: a mode gives way to one of higher priority, and none of lower priority
    begins beside it. It begins with the window after the one that completes ``ENTER`` windows in a row below the
    emergency threshold (a window that was not judged ends such a run), and ends with the window after ``LEAVE`` judged
    windows in a row above yellow. ``rule`` is ``[emergency] jfi``, ``weights`` are the fair ones for "low-weight".
    """
    kept = windows.filter(~pl.col("drain")).sort("start")
    rows = kept.select("start", "end", *METRICS).rows(named=True)
    below = dict.fromkeys(METRICS, 0)
    above = dict.fromkeys(METRICS, 0)
    found: list[EmergencyMode] = []
    current: Metric | None = None
    since: datetime | None = None
    throttled: tuple[str, ...] = ()

    def close(end: datetime, ended: bool) -> None:
        if current is not None and since is not None and since < end:
            found.append(EmergencyMode(current, MODES[current], since, end, ended, throttled))

    for row in rows:
        for metric in METRICS:
            value = row[metric]
            below[metric] = below[metric] + 1 if value is not None and value < THRESHOLDS[metric]["emergency"] else 0
            if value is not None:
                above[metric] = above[metric] + 1 if value >= THRESHOLDS[metric]["yellow"] else 0
        if current is not None and above[current] >= LEAVE:
            close(row["end"], ended=True)
            current = None
        for metric in METRICS:
            if metric == current:
                break
            if below[metric] >= ENTER[metric]:
                close(row["end"], ended=True)
                current, since = metric, row["end"]
                of_window = tenants.filter(pl.col("start") == row["start"])
                throttled = _throttled(of_window, rule, weights or {}) if metric == "jfi" else ()
                break
    if rows:
        close(rows[-1]["end"], ended=False)
    return found


def _throttled(tenants: pl.DataFrame, rule: str, weights: dict[str, float]) -> tuple[str, ...]:
    known = tenants.drop_nulls("x").sort("tenant")
    x = known["x"].to_numpy()
    weight = np.array([weights.get(name, 1.0) for name in known["tenant"]], np.float64)
    return tuple(known["tenant"][place] for place in throttle_order(x, weight, rule))


def throttle_order(x: Floats, weights: Floats, rule: str) -> list[int]:
    """Places of the tenants that the JFI mode throttles, first to go first.

    ``over-served``: x > 1, most first. ``low-weight`` (the essay's): all but those of the largest weight, least first.
    """
    if rule == "over-served":
        return [place for place in np.argsort(-x, kind="stable").tolist() if x[place] > 1]
    return [place for place in np.argsort(weights, kind="stable").tolist() if weights[place] < weights.max()]


def throttle(x: Floats, weights: Floats, rule: str) -> Floats:
    """x after the throttled were halved.

    Under ``over-served`` what they lose is shared by the others in equal parts; the essay's form lets it lapse.
    """
    halved = throttle_order(x, weights, rule)
    after = x.copy()
    after[halved] /= 2
    others = np.setdiff1d(np.arange(len(x)), halved)
    if rule == "over-served" and len(others):
        after[others] += (x.sum() - after.sum()) / len(others)
    return after
