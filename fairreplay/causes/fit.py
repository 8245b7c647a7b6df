"""One unlisted change that explains what the baseline replay does not: a factor on speed or KV, its start and end.

Where production did something that no config lists, the baseline replay serves the same load without trouble. The fit
looks for the one change that brings its times closest to the logged ones. The sandbox may also be off throughout (its
step times are estimates); what the lead-in shows as well is taken for that, not for a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fairreplay.causes.counterfactual import Intervention, Scene, simulate
from fairreplay.causes.verdict import Inferred
from fairreplay.metrics.options import WHOLE_PERIOD
from fairreplay.sandbox.engine import NEVER
from fairreplay.trace.values import epoch_us

LOSS_FALLS: Final = 0.3
"""Part of the loss that a change must take away to be believed."""
FINEST_S: Final = 0.02
"""Times are compared as logarithms of this many seconds more: below it, differences do not matter."""
FINEST_PART: Final = 0.01
"""Preempted parts are compared as logarithms of this part more."""
SPEEDS: Final = (0.85, 0.7, 0.55, 0.42, 0.3, 0.2)
KVS: Final = (0.6, 0.4, 0.25, 0.15, 0.09, 0.05)
SPEEDS_OFF: Final = (0.6, 0.75, 0.9, 1.1, 1.3, 1.6)
"""Speeds tried for the sandbox as a whole; then ``REFINED_OFF`` around the best."""
REFINED_OFF: Final = (0.93, 0.965, 1.035, 1.07)
REFINED: Final = (0.88, 0.95, 0.98, 1.02, 1.05, 1.13)
"""Factors on the best one so far."""
FACTOR_MAX: Final = 0.95
"""A change takes something away; what gained speed or KV hurt nobody."""
SHORTER: Final = (0.75, 0.5, 0.35)
"""Parts of the episode's length after which the change may have ended."""
ROUNDS: Final = 3
SHIFTS: Final = (-2, -1, 1, 2)
"""Windows by which start and end are moved."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Fitted:
    """What the fit found; both may be null."""

    calibration: Intervention | None
    """A factor on the speed throughout, in which the lead-in agrees: the sandbox was off, nothing changed."""
    change: Intervention | None
    inferred: Inferred | None


@dataclass(frozen=True)
class _Logged:
    """Logged seconds of each row of the load, NaN where unknown."""

    ttft: Floats
    decode: Floats
    preempted: float | None
    """Part of the rows that were preempted; null where the log does not say."""
    lead_in: NDArray[np.bool_]


def fit(scene: Scene) -> Fitted:
    """Fit one change to the logged TTFT and decode times of the scene's load.

    It is believed if the loss falls by 30 % against the sandbox that suits the lead-in best.
    """
    logged = _logged(scene)
    if not np.isfinite(logged.ttft).any():
        return Fitted(None, None, None)
    calibration = calibrate(scene)
    base = [calibration] if calibration else []
    before = _loss(scene, base, logged)
    best = min(
        (_search(scene, base, logged, what, factors) for what, factors in (("speed", SPEEDS), ("kv", KVS))),
        key=lambda found: found[0],
    )
    after, what, factor, start, end = best
    if before == 0 or after > (1 - LOSS_FALLS) * before:
        return Fitted(calibration, None, None)
    change = _change(what, factor, start, end)
    inferred = Inferred(
        what="kv" if what == "kv" else "speed",
        factor=factor,
        start=start.isoformat(),
        end=end.isoformat(),
        loss_before=before,
        loss_after=after,
    )
    return Fitted(calibration, change, inferred)


def _search(
    scene: Scene, base: Sequence[Intervention], logged: _Logged, what: str, factors: Sequence[float]
) -> tuple[float, str, float, datetime, datetime]:
    """Loss, kind, factor, start and end of the best change of one kind: one coordinate at a time."""

    def loss(factor: float, start: datetime, end: datetime) -> float:
        return _loss(scene, [*base, _change(what, factor, start, end)], logged)

    size_us = scene.options.window_us or int((scene.end - scene.start).total_seconds() * 1e6)
    window = timedelta(microseconds=size_us)
    start, end = _departs(scene, base, logged, window), scene.end
    best_end = end
    least, factor = min((loss(factor, start, end), factor) for factor in factors)
    # the episode outlasts the change by the time that the backlog takes: a shorter change must have been a stronger one
    stronger = factors[factors.index(factor) :][:3]
    for part in SHORTER:
        sooner = start + max(1, round(part * ((end - start) / window))) * window
        value, other = min((loss(other, start, sooner), other) for other in stronger)
        if value < least:
            least, factor, best_end = value, other, sooner
    end = best_end
    for _ in range(ROUNDS):
        before = least
        for shift in SHIFTS:
            moved = start + shift * window
            if moved < end and (value := loss(factor, moved, end)) < least:
                least, start = value, moved
        for shift in SHIFTS:
            moved = end + shift * window
            if moved > start and (value := loss(factor, start, moved)) < least:
                least, end = value, moved
        nearby = [min(FACTOR_MAX, round(factor * by, 4)) for by in REFINED]
        value, finer = min((loss(near, start, end), near) for near in nearby)
        if value < least:
            least, factor = value, finer
        if least == before:
            break
    return least, what, factor, start, end


def _departs(scene: Scene, base: Sequence[Intervention], logged: _Logged, window: timedelta) -> datetime:
    """The first window in which the log is half as far from the replay as where it is furthest.

    An episode may begin with a jam that has nothing to do with the change.
    """
    if scene.options.window_us == WHOLE_PERIOD:
        return scene.start
    arrived = scene.load.frame["arrived_at"].to_physical().to_numpy()
    ttft = _span(simulate(scene, base).first_token_us, arrived)
    apart = np.abs(np.log((ttft + FINEST_S) / (logged.ttft + FINEST_S)))
    number = (arrived - epoch_us(scene.start)) // int(window.total_seconds() * 1e6)
    known = np.isfinite(apart) & (number >= -1) & (arrived < epoch_us(scene.end))
    if not known.any():
        return scene.start - window
    place = number[known] + 1
    mean = np.bincount(place, weights=apart[known]) / np.maximum(np.bincount(place), 1)
    return scene.start + (int(np.argmax(mean >= mean.max() / 2)) - 1) * window


def calibrate(scene: Scene) -> Intervention | None:
    """A factor on the speed throughout, if it takes 30 % off the loss of the lead-in: nothing has changed there yet."""
    logged = _logged(scene)
    if not (logged.lead_in & np.isfinite(logged.ttft)).any():
        return None

    def loss(factor: float) -> float:
        return _loss(scene, [_change("speed", factor, None, None)], logged, lead_in=True)

    before = _loss(scene, [], logged, lead_in=True)
    least, factor = min((loss(factor), factor) for factor in SPEEDS_OFF)
    least, factor = min((least, factor), *((loss(near), near) for by in REFINED_OFF if (near := round(factor * by, 4))))
    if before == 0 or least > (1 - LOSS_FALLS) * before:
        return None
    return _change("speed", factor, None, None)


def _change(what: str, factor: float, start: datetime | None, end: datetime | None) -> Intervention:
    ratio = Fraction(repr(factor))
    pair = [ratio.numerator, ratio.denominator]
    return {
        "kind": "scale",
        "speed": pair if what == "speed" else [1, 1],
        "kv": pair if what == "kv" else [1, 1],
        "since": None if start is None else start.isoformat(),
        "until": None if end is None else end.isoformat(),
    }


def _logged(scene: Scene) -> _Logged:
    frame = scene.load.frame

    def seconds(later: str, earlier: str) -> Floats:
        span = (pl.col(later) - pl.col(earlier)).dt.total_microseconds() / 1e6
        return frame.select(span.fill_null(np.nan)).to_series().to_numpy()

    known = frame["preemptions"].drop_nulls()
    decodes = (frame["output_tokens"].fill_null(0) > 1).to_numpy()
    return _Logged(
        ttft=seconds("first_token_at", "arrived_at"),
        decode=np.where(decodes, seconds("finished_at", "first_token_at"), np.nan),
        preempted=None if known.is_empty() else float((known > 0).mean()),  # type: ignore[arg-type]
        lead_in=(frame["arrived_at"] < scene.start).to_numpy(),
    )


def _loss(scene: Scene, interventions: Sequence[Intervention], logged: _Logged, *, lead_in: bool = False) -> float:
    """Mean absolute difference of the logarithms of TTFT and of decode time, over rows that have them in both.

    And half the difference of the logarithms of the preempted part, where the log has it: slow steps and too little KV
    make the same requests late, but only one of them evicts.
    """
    done = simulate(scene, interventions)
    arrived = scene.load.frame["arrived_at"].to_physical().to_numpy()
    ttft = _span(done.first_token_us, arrived)
    decode = _span(done.finished_us, done.first_token_us)
    rows = logged.lead_in if lead_in else np.ones(len(arrived), np.bool_)
    late = _distance(ttft[rows], logged.ttft[rows]) + _distance(decode[rows], logged.decode[rows])
    if lead_in or logged.preempted is None:
        return late
    preempted = float((done.preemptions > 0).mean())
    return late + abs(float(np.log((preempted + FINEST_PART) / (logged.preempted + FINEST_PART)))) / 2


def _span(later: NDArray[np.int64], earlier: NDArray[np.int64]) -> Floats:
    return np.where((later == NEVER) | (earlier == NEVER), np.nan, (later - earlier) / 1e6)


def _distance(ours: Floats, theirs: Floats) -> float:
    known = np.isfinite(ours) & np.isfinite(theirs)
    if not known.any():
        return 0.0
    return float(np.abs(np.log((ours[known] + FINEST_S) / (theirs[known] + FINEST_S))).mean())
