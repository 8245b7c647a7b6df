"""Rows of the record of controls, worked out by hand from refusals and events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.controls.record import control_rows, totals
from fairreplay.sandbox.engine import (
    BACKPRESSURE,
    NEVER_FITS,
    PS_PER_SECOND,
    QUEUE_FULL,
    QUEUE_TIME,
    RATE_LIMITED,
    Backpressure,
    Controls,
    EngineResult,
)
from fairreplay.store.replays import CONTROL_SCHEMA
from tests.sandbox.scenarios import workload

S = PS_PER_SECOND
NINE = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
MINUTE = Controls(window_ps=60 * S)
WORK = workload([("b", 0.0, 10, 1), ("a", 1.0, 10, 1), ("a", 2.0, 10, 1)])
"""Requests 0 of b, 1 and 2 of a."""


def rows(
    *,
    refusals: Any = (),
    events: Any = (),
    controls: Controls = MINUTE,
    end_s: float = 300,
    start: datetime = NINE,
) -> pl.DataFrame:
    """The record of replica "r" of model "m", whose instant 0 is ``start``."""
    nothing = np.zeros(len(WORK), np.int64)
    result = EngineResult(
        **dict.fromkeys(
            (
                "scheduled_ps",
                "first_token_ps",
                "finished_ps",
                "status",
                "reason",
                "preemptions",
                "recomputed_tokens",
                "cached_tokens",
                "computed_tokens",
            ),
            nothing,
        ),
        steps=1,
        end_ps=round(end_s * S),
        refusals=np.array(refusals, np.int64).reshape(-1, 4),
        events=np.array(events, np.int64).reshape(-1, 4),
    )
    start_us = round(start.timestamp() * 1e6)
    return control_rows(controls, WORK, result, "m", "r", start_us)


def told(frame: pl.DataFrame, since: datetime = NINE) -> list[tuple[Any, ...]]:
    """(seconds of the window's begin after ``since``, control.what, tenant, type, value)."""
    names = ("tenant", "type", "value")
    return [
        ((row["start"] - since).total_seconds(), f"{row['control']}.{row['what']}", *(row[name] for name in names))
        for row in frame.iter_rows(named=True)
    ]


def test_nothing_happened_no_rows() -> None:
    frame = rows()
    assert dict(frame.schema) == dict(pl.Schema(CONTROL_SCHEMA))
    assert frame.is_empty()
    assert totals(frame) == {}


def test_whose_record_it_is() -> None:
    frame = rows(refusals=[(0, 1, 5 * S, QUEUE_FULL)])
    assert frame.select("model", "replica").rows() == [("m", "r")]


def test_refusals_count_by_window_reason_and_tenant() -> None:
    """Windows are those of the clock, whatever instant the replica began at; each attempt counts."""
    refusals = [
        (0, 1, 10 * S, QUEUE_FULL),
        (1, 1, 11 * S, QUEUE_FULL),
        (1, 2, 20 * S, QUEUE_FULL),
        (2, 1, 20 * S, QUEUE_TIME),
        (2, 1, 31 * S, NEVER_FITS),
    ]
    half_past = NINE + timedelta(seconds=30)  # 31 s after it another minute has begun
    assert told(rows(refusals=refusals, start=half_past)) == [
        (0.0, "refusal.queue_full", "a", None, 2.0),
        (0.0, "refusal.queue_full", "b", None, 1.0),
        (0.0, "refusal.queue_time", "a", None, 1.0),
        (60.0, "refusal.never_fits", "a", None, 1.0),
    ]


def test_who_comes_back_is_counted_when_it_does() -> None:
    """Two returns are allowed, 50 s after each refusal: not a third, and none of what can never fit."""
    controls = Controls(window_ps=60 * S, retries=2, retry_after_ps=50 * S)
    refusals = [
        (1, 1, 5 * S, BACKPRESSURE),
        (1, 2, 55 * S, BACKPRESSURE),
        (1, 3, 105 * S, BACKPRESSURE),
        (0, 1, 8 * S, NEVER_FITS),
    ]
    found = told(rows(refusals=refusals, controls=controls))
    assert [row for row in found if row[1] == "retry.came_back"] == [
        (0.0, "retry.came_back", "a", None, 1.0),
        (60.0, "retry.came_back", "a", None, 1.0),
    ]


def test_events_of_requests_count_with_their_tokens() -> None:
    events = [
        (10 * S, at.VOLUNTARY_PREEMPTED, 1, 300),
        (20 * S, at.VOLUNTARY_PREEMPTED, 2, 40),
        (20 * S, at.PREEMPTION_DENIED_SEEN, 0, 0),
        (61 * S, at.SWAPPED_OUT, 0, 128),
        (62 * S, at.SWAPPED_IN, 0, 100),
        (63 * S, at.SWAP_FULL, 1, 7),
        (64 * S, at.LONG_ADMITTED, 2, 9000),
        (65 * S, at.FLOOR_SET, 0, 5),  # is not told
    ]
    assert told(rows(events=events)) == [
        (0.0, "preemption.denied", "b", None, 1.0),
        (0.0, "preemption.voluntary", "a", None, 2.0),
        (0.0, "preemption.voluntary_tokens", "a", None, 340.0),
        (60.0, "kv_admission.long", "a", None, 1.0),
        (60.0, "kv_admission.long_tokens", "a", None, 9000.0),
        (60.0, "swap.in", "b", None, 1.0),
        (60.0, "swap.in_tokens", "b", None, 100.0),
        (60.0, "swap.no_room", "a", None, 1.0),
        (60.0, "swap.no_room_tokens", "a", None, 7.0),
        (60.0, "swap.out", "b", None, 1.0),
        (60.0, "swap.out_tokens", "b", None, 128.0),
    ]


PRESSED = Controls(window_ps=60 * S, backpressure=Backpressure(rates=(4000, 2000), targets_ps=(S, S)))
"""Of a 4 requests a second, of b 2."""


def test_seconds_below_the_rate_are_parted_by_window() -> None:
    """a: 1 a second from 50 s, 2.5 from 70 s, the whole rate again from 130 s. b was never slowed down."""
    events = [
        (50 * S, at.RATE_SET, 0, 1000),
        (70 * S, at.RATE_SET, 0, 2500),
        (130 * S, at.RATE_SET, 0, 4000),
        (140 * S, at.RATE_SET, 1, 2000),
    ]
    frame = rows(events=events, controls=PRESSED)
    assert told(frame) == [
        (0.0, "backpressure.limited_s", "a", None, 10.0),
        (0.0, "backpressure.rate_per_s", "a", None, 1.0),
        (60.0, "backpressure.limited_s", "a", None, 60.0),
        (60.0, "backpressure.rate_per_s", "a", None, 1.0),
        (120.0, "backpressure.limited_s", "a", None, 10.0),
        (120.0, "backpressure.rate_per_s", "a", None, 2.5),
    ]
    assert totals(frame) == {"backpressure.limited_s": 80.0, "backpressure.lowest_rate_per_s": 1.0}


def test_a_rate_that_never_recovers_is_low_until_the_end() -> None:
    found = told(rows(events=[(100 * S, at.RATE_SET, 1, 500)], controls=PRESSED, end_s=150.25))
    assert found == [
        (60.0, "backpressure.limited_s", "b", None, 20.0),
        (60.0, "backpressure.rate_per_s", "b", None, 0.5),
        (120.0, "backpressure.limited_s", "b", None, 30.25),
        (120.0, "backpressure.rate_per_s", "b", None, 0.5),
    ]


def test_a_replica_that_begins_within_a_window() -> None:
    """Instant 0 lies 45 s after a minute's begin: the first window ends 15 s later."""
    controls = Controls(window_ps=60 * S, offset_ps=45 * S, backpressure=PRESSED.backpressure)
    start = NINE + timedelta(seconds=45)
    events = [(5 * S, at.RATE_SET, 0, 1000), (25 * S, at.RATE_SET, 0, 4000)]
    assert told(rows(events=events, controls=controls, start=start)) == [
        (0.0, "backpressure.limited_s", "a", None, 10.0),
        (0.0, "backpressure.rate_per_s", "a", None, 1.0),
        (60.0, "backpressure.limited_s", "a", None, 10.0),
        (60.0, "backpressure.rate_per_s", "a", None, 1.0),
    ]


def test_modes_are_entered_and_left_and_last() -> None:
    """Throttle from 60 s to 120 s, then at once single-p99 until the end at 150 s."""
    events = [
        (60 * S, at.MODE_SET, at.THROTTLE, 0),
        (60 * S, at.THROTTLED, 0, 90_500),
        (120 * S, at.MODE_SET, at.SINGLE_P99, 0),
    ]
    frame = rows(events=events, end_s=150)
    assert told(frame) == [
        (60.0, "emergency.cap", "a", None, 90.5),
        (60.0, "emergency.entered_throttle", None, None, 1.0),
        (60.0, "emergency.throttle_s", None, None, 60.0),
        (120.0, "emergency.entered_single-p99", None, None, 1.0),
        (120.0, "emergency.left_throttle", None, None, 1.0),
        (120.0, "emergency.single-p99_s", None, None, 30.0),
    ]
    assert totals(frame) == {
        "emergency.entered_single-p99": 1.0,
        "emergency.entered_throttle": 1.0,
        "emergency.left_throttle": 1.0,
        "emergency.single-p99_s": 30.0,
        "emergency.throttle_s": 60.0,
    }


def test_isolation_caps_types() -> None:
    events = [
        (0, at.MODE_SET, at.ISOLATION, 0),
        (0, at.ISOLATED, 0, 1500),
        (90 * S, at.MODE_SET, at.NO_MODE, 0),
    ]
    assert told(rows(events=events)) == [
        (0.0, "emergency.cap", None, WORK.types[0], 1.5),
        (0.0, "emergency.entered_isolation", None, None, 1.0),
        (0.0, "emergency.isolation_s", None, None, 60.0),
        (60.0, "emergency.isolation_s", None, None, 30.0),
        (60.0, "emergency.left_isolation", None, None, 1.0),
    ]


def test_totals_add_what_can_be_added() -> None:
    """Over windows, tenants and replicas; the lowest of all rates, and nothing of caps."""
    one = rows(
        refusals=[(0, 1, 5 * S, RATE_LIMITED), (1, 1, 65 * S, RATE_LIMITED)],
        events=[(0, at.RATE_SET, 0, 3000), (30 * S, at.RATE_SET, 0, 4000), (10 * S, at.THROTTLED, 0, 1)],
        controls=PRESSED,
    )
    other = rows(events=[(0, at.RATE_SET, 1, 250), (1 * S, at.RATE_SET, 1, 2000)], controls=PRESSED)
    assert totals(pl.concat([one, other])) == {
        "backpressure.limited_s": 31.0,
        "backpressure.lowest_rate_per_s": 0.25,
        "refusal.rate_limited": 2.0,
    }


@pytest.mark.parametrize("window_s", [1, 60, 3600])
def test_windows_of_any_size_hold_all_seconds(window_s: int) -> None:
    controls = Controls(window_ps=window_s * S, backpressure=PRESSED.backpressure)
    frame = rows(events=[(7 * S, at.RATE_SET, 0, 1)], controls=controls, end_s=200)
    assert totals(frame)["backpressure.limited_s"] == 193.0
    assert frame.filter(pl.col("what") == "limited_s")["value"].max() == min(window_s, 193)
