"""What each control did, window by window: a table beside a replay's rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.engine import (
    COME_BACK,
    PS_PER_SECOND,
    PS_PER_US,
    REASON_NAMES,
    Controls,
    EngineResult,
    Int64s,
    Workload,
)
from fairreplay.store.replays import CONTROL_SCHEMA

MODES: Final = {at.SINGLE_P99: "single-p99", at.THROTTLE: "throttle", at.ISOLATION: "isolation"}
COUNTED: Final = {
    at.VOLUNTARY_PREEMPTED: ("preemption", "voluntary"),
    at.PREEMPTION_DENIED_SEEN: ("preemption", "denied"),
    at.SWAPPED_OUT: ("swap", "out"),
    at.SWAPPED_IN: ("swap", "in"),
    at.SWAP_FULL: ("swap", "no_room"),
    at.LONG_ADMITTED: ("kv_admission", "long"),
}
"""Events of single requests: how many there were, and under ``<what>_tokens`` their tokens."""


def control_rows(
    controls: Controls, workload: Workload, result: EngineResult, model: str | None, replica: str, start_us: int
) -> pl.DataFrame:
    """``CONTROL_SCHEMA`` of one replica, sorted; windows in which nothing happened have no rows."""
    parts = [
        *_refusals(controls, workload, result),
        *_single_events(workload, result),
        _rates(controls, workload, result),
        _modes(controls, workload, result),
    ]
    rows = pl.concat(parts)
    window_us = controls.window_ps // PS_PER_US
    begin_us = (start_us + pl.col("at_ps") // PS_PER_US) // window_us * window_us
    return (
        rows.with_columns(begin_us.cast(CONTROL_SCHEMA["start"]).alias("start"))
        .group_by("start", "control", "what", "tenant", "type")
        .agg(pl.col("value").sum())
        .with_columns(
            pl.lit(model, pl.String).alias("model"), pl.lit(replica, pl.String).alias("replica"), pl.col("value")
        )
        .select(pl.col(name).cast(dtype) for name, dtype in CONTROL_SCHEMA.items())
        .sort("start", "control", "what", "tenant", "type", nulls_last=True)
    )


def totals(rows: pl.DataFrame) -> dict[str, float]:
    """``control.what`` -> sum over windows, replicas and tenants; of rates the lowest, of caps nothing."""
    kept = rows.filter(~pl.col("what").is_in(["cap", "rate_per_s"]))
    summed = kept.group_by("control", "what").agg(pl.col("value").sum()).sort("control", "what")
    found = {f"{control}.{what}": value for control, what, value in summed.iter_rows()}
    rates = rows.filter(pl.col("what") == "rate_per_s")["value"]
    if len(rates):
        found["backpressure.lowest_rate_per_s"] = rates.min()
    return dict(sorted(found.items()))


def _frame(
    at_ps: Int64s, control: str, what: str | pl.Series, value: Int64s | pl.Series | float, who: pl.Series | None = None
) -> pl.DataFrame:
    """Rows before they are summed by window."""
    count = len(at_ps)
    return pl.DataFrame(
        {
            "at_ps": pl.Series(at_ps, dtype=pl.Int64),
            "control": pl.Series([control], dtype=pl.String).new_from_index(0, count),
            "what": what if isinstance(what, pl.Series) else pl.Series([what]).new_from_index(0, count),
            "tenant": pl.Series([None], dtype=pl.String).new_from_index(0, count) if who is None else who,
            "type": pl.Series([None], dtype=pl.String).new_from_index(0, count),
            "value": pl.Series(np.broadcast_to(np.asarray(value, np.float64), (count,))),
        },
        schema_overrides={"what": pl.String, "tenant": pl.String},
    )


def _tenants(workload: Workload, requests: Int64s) -> pl.Series:
    return pl.Series(workload.tenants, dtype=pl.String).gather(workload.tenant[requests])


def _refusals(controls: Controls, workload: Workload, result: EngineResult) -> list[pl.DataFrame]:
    request, attempt, at_ps, reason = result.refusals.T
    names = pl.Series([REASON_NAMES[code] for code in range(len(REASON_NAMES))]).gather(reason)
    frames = [_frame(at_ps, "refusal", names, 1.0, _tenants(workload, request))]
    returns = np.isin(reason, COME_BACK) & (attempt <= controls.retries)
    back = at_ps[returns] + controls.retry_after_ps
    return [*frames, _frame(back, "retry", "came_back", 1.0, _tenants(workload, request[returns]))]


def _single_events(workload: Workload, result: EngineResult) -> list[pl.DataFrame]:
    frames = []
    for kind, (control, what) in COUNTED.items():
        own = result.events[result.events[:, at.E_WHAT] == kind]
        tenants = _tenants(workload, own[:, at.E_WHO])
        frames.append(_frame(own[:, at.E_AT], control, what, 1.0, tenants))
        if kind != at.PREEMPTION_DENIED_SEEN:
            frames.append(_frame(own[:, at.E_AT], control, f"{what}_tokens", own[:, at.E_VALUE], tenants))
    return frames


def _rates(controls: Controls, workload: Workload, result: EngineResult) -> pl.DataFrame:
    """By window and tenant: seconds below the configured rate, and the lowest rate; only windows with such seconds."""
    empty = _frame(np.zeros(0, np.int64), "backpressure", "limited_s", 0.0)
    if controls.backpressure is None:
        return empty
    rows: list[tuple[int, str, str, float]] = []
    for tenant, name in enumerate(workload.tenants):
        full = controls.backpressure.rates[tenant]
        own = result.events[(result.events[:, at.E_WHAT] == at.RATE_SET) & (result.events[:, at.E_WHO] == tenant)]
        changes = [*own[:, [at.E_AT, at.E_VALUE]].tolist(), [max(result.end_ps, int(own[-1, 0]) if len(own) else 0), 0]]
        for (begin, rate), (end, _) in pairwise(changes):
            if rate >= full:
                continue
            for since, until in _windows(controls, begin, end):
                rows += [(since, name, "limited_s", (until - since) / PS_PER_SECOND), (since, name, "low", rate / 1000)]
    if not rows:
        return empty
    found = pl.DataFrame(rows, schema=["at_ps", "tenant", "what", "value"], orient="row")
    window = (pl.col("at_ps") + controls.offset_ps) // controls.window_ps
    lowest = (
        found.filter(pl.col("what") == "low")
        .group_by(window.alias("window"), "tenant")
        .agg(pl.col("at_ps").min(), pl.col("value").min())
        .with_columns(pl.lit("rate_per_s").alias("what"))
        .select(found.columns)
    )
    both = pl.concat([found.filter(pl.col("what") != "low"), lowest])
    return both.select(
        "at_ps",
        pl.lit("backpressure").alias("control"),
        "what",
        "tenant",
        pl.lit(None, pl.String).alias("type"),
        pl.col("value").cast(pl.Float64),
    )


def _windows(controls: Controls, begin: int, end: int) -> list[tuple[int, int]]:
    """The parts of a span that lie in different windows."""
    found = []
    while begin < end:
        until = min(end, begin + controls.window_ps - (begin + controls.offset_ps) % controls.window_ps)
        found.append((begin, until))
        begin = until
    return found


def _modes(controls: Controls, workload: Workload, result: EngineResult) -> pl.DataFrame:
    """Modes entered and left, the seconds that they were on, and what each held back in a window (units of cost)."""
    rows: list[tuple[int, str, str | None, str | None, float]] = []
    own = [row for row in result.events.tolist() if row[at.E_WHAT] == at.MODE_SET]
    before = at.NO_MODE
    for number, (at_ps, _, mode, _) in enumerate(own):
        end_ps = own[number + 1][at.E_AT] if number + 1 < len(own) else max(at_ps, result.end_ps)
        if before != at.NO_MODE:
            rows.append((at_ps, f"left_{MODES[before]}", None, None, 1.0))
        if mode != at.NO_MODE:
            rows.append((at_ps, f"entered_{MODES[mode]}", None, None, 1.0))
            rows += [
                (since, f"{MODES[mode]}_s", None, None, (until - since) / PS_PER_SECOND)
                for since, until in _windows(controls, at_ps, end_ps)
            ]
        before = mode
    for at_ps, what, who, value in result.events.tolist():
        if what == at.THROTTLED:
            rows.append((at_ps, "cap", workload.tenants[who], None, value / 1000))
        elif what == at.ISOLATED:
            rows.append((at_ps, "cap", None, workload.types[who], value / 1000))
    return pl.DataFrame(
        [(at_ps, "emergency", *rest) for at_ps, *rest in rows],
        schema={
            "at_ps": pl.Int64,
            "control": pl.String,
            "what": pl.String,
            "tenant": pl.String,
            "type": pl.String,
            "value": pl.Float64,
        },
        orient="row",
    )
