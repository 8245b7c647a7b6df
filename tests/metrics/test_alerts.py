"""Alert levels, channels, period figures, and the emergency modes that would have fired."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from fairreplay.config.load import parse_config
from fairreplay.errors import UsageError
from fairreplay.metrics.alerts import (
    alerts,
    emergency_modes,
    figures,
    throttle,
    throttle_order,
    window_level,
)
from fairreplay.metrics.jfi import jain

T0 = datetime(2026, 11, 2, 10, tzinfo=UTC)
NOBODY = pl.DataFrame(schema={"start": pl.Datetime("us", "UTC"), "tenant": pl.String, "x": pl.Float64})


def minute(number: int) -> datetime:
    return T0 + timedelta(minutes=number)


def windows(drain: int = 0, **columns: list[float | None]) -> pl.DataFrame:
    """A window a minute; metrics that are not named were not judged. The last ``drain`` of them are drain."""
    count = len(next(iter(columns.values())))
    full: dict[str, Any] = {name: columns.get(name, [None] * count) for name in ("scr", "jfi", "min_x", "tfr")}
    times = {"start": [minute(n) for n in range(count)], "end": [minute(n + 1) for n in range(count)]}
    flags = [number >= count - drain for number in range(count)]
    return pl.DataFrame(times | full | {"drain": flags}, schema_overrides=dict.fromkeys(full, pl.Float64))


# ---- levels ----


@pytest.mark.parametrize(
    ("metric", "value", "level"),
    [
        ("scr", 0.95, "ok"), ("scr", 0.9499, "yellow"), ("scr", 0.90, "yellow"), ("scr", 0.8999, "red"),
        ("scr", 0.85, "red"), ("scr", 0.8499, "emergency"),
        ("jfi", 0.90, "ok"), ("jfi", 0.8999, "yellow"), ("jfi", 0.80, "yellow"), ("jfi", 0.7999, "emergency"),
        ("tfr", 0.50, "ok"), ("tfr", 0.4999, "yellow"), ("tfr", 0.40, "yellow"), ("tfr", 0.3999, "emergency"),
        ("tfr", None, None),
    ],
)  # fmt: skip
def test_level_of_a_window(metric: Any, value: float | None, level: str | None) -> None:
    assert window_level(metric, value) == level


def test_jfi_alerts_for_one_starved_tenant_of_ten_though_jain_is_nine_tenths() -> None:
    x = np.array([[1.0] * 9 + [0.0]])
    value = float(jain(x, np.ones_like(x, np.bool_))[0])
    assert value == pytest.approx(0.9)
    assert window_level("jfi", 0.95, 0.49) == "yellow"
    assert window_level("jfi", 0.95, 0.5) == "ok"
    assert window_level("scr", 1.0, 0.0) == "ok"


def test_channels() -> None:
    table = windows(scr=[0.94, 0.89, 1], jfi=[0.89, 0.7, 1], tfr=[0.45, 0.3, 1])
    said = [(alert.metric, alert.level, alert.channel) for alert in alerts(table)]
    assert said == [
        ("scr", "yellow", "slack"), ("jfi", "yellow", "slack"), ("tfr", "yellow", "ticket"),
        ("scr", "red", "phone"), ("jfi", "red", "slack"), ("tfr", "red", "slack"),
    ]  # fmt: skip


def test_one_alert_for_a_run_of_windows() -> None:
    (first, second) = alerts(windows(scr=[0.94, 0.92, 1.0, None, 0.93]))
    assert (first.start, first.end, first.windows, first.value) == (minute(0), minute(2), 2, 0.92)
    assert (second.start, second.end, second.windows) == (minute(4), minute(5), 1)
    assert alerts(windows(scr=[1.0, 0.5, 0.5], drain=2)) == []


# ---- period ----


def test_a_period_figure_is_the_mean_over_judged_windows_without_the_drain_and_minutes_below_each_level() -> None:
    table = windows(drain=2, scr=[1.0, 0.94, None, 0.89, 0.84, 0.0, 0.0], jfi=[1.0] * 7, tfr=[2.0] * 7)
    scr, jfi, tfr = figures(table)
    assert scr.mean == pytest.approx((1.0 + 0.94 + 0.89 + 0.84) / 4)
    assert (scr.windows, scr.worst, scr.worst_at) == (4, 0.84, minute(4))
    assert (scr.minutes_yellow, scr.minutes_red, scr.minutes_emergency) == (3, 2, 1)
    assert (jfi.mean, jfi.minutes_yellow) == (1.0, 0)
    assert (tfr.mean, tfr.worst) == (2.0, 2.0)


def test_a_period_without_judged_windows_has_no_figure() -> None:
    scr, *_ = figures(windows(scr=[None, None]))
    assert (scr.mean, scr.windows, scr.worst, scr.worst_at, scr.minutes_yellow) == (None, 0, None, None, 0)


# ---- emergency modes ----


def fired(table: pl.DataFrame) -> list[tuple[str, int, int, bool]]:
    def at(instant: datetime) -> int:
        return int((instant - T0).total_seconds() // 60)

    return [(mode.metric, at(mode.start), at(mode.end), mode.ended) for mode in emergency_modes(table, NOBODY)]


def test_a_mode_begins_after_two_windows_and_ends_after_five_above_yellow() -> None:
    assert fired(windows(scr=[0.8] + [1.0] * 9)) == []
    assert fired(windows(scr=[0.8, 0.8] + [1.0] * 9)) == [("scr", 2, 7, True)]
    # .94 is not above yellow: the count starts anew
    assert fired(windows(scr=[0.8, 0.8] + [1.0] * 4 + [0.94] + [1.0] * 6)) == [("scr", 2, 12, True)]
    assert fired(windows(scr=[0.8, 0.8] + [1.0] * 4)) == [("scr", 2, 6, False)]


def test_type_isolation_begins_after_three() -> None:
    assert fired(windows(tfr=[0.3, 0.3] + [1.0] * 6)) == []
    assert fired(windows(tfr=[0.3, 0.3, 0.3] + [1.0] * 6)) == [("tfr", 3, 8, True)]


def test_a_window_that_was_not_judged_ends_a_run_and_is_no_recovery() -> None:
    assert fired(windows(scr=[0.8, None, 0.8, 1.0])) == []
    assert fired(windows(scr=[0.8, 0.8] + [1.0] * 3 + [None] * 3 + [1.0] * 3)) == [("scr", 2, 10, True)]


def test_one_mode_at_a_time_by_priority() -> None:
    both = windows(scr=[1.0, 1.0, 0.8, 0.8] + [1.0] * 6, jfi=[0.7] * 4 + [1.0] * 6, tfr=[0.1] * 10)
    # JFI after two windows; SCR takes over after the fourth; after it nothing but TFR is still low.
    assert fired(both) == [("jfi", 2, 4, True), ("scr", 4, 9, True), ("tfr", 9, 10, False)]


def test_the_drain_fires_nothing() -> None:
    assert fired(windows(drain=3, scr=[1.0, 0.0, 0.0, 0.0])) == []


# ---- throttling ----

X, WEIGHTS = np.array([1.8, 0.6, 0.6]), np.array([3.0, 1.0, 1.0])


def test_throttling_the_over_served_helps_and_the_literal_form_hurts() -> None:
    over, literal = throttle(X, WEIGHTS, "over-served"), throttle(X, WEIGHTS, "low-weight")
    assert over.tolist() == pytest.approx([0.9, 1.05, 1.05])
    assert literal.tolist() == [1.8, 0.3, 0.3]
    everyone = np.ones((1, 3), np.bool_)
    index = [float(jain(x[None, :], everyone)[0]) for x in (X, over, literal)]
    assert index == pytest.approx([25 / 33, 0.9950, 0.5614], abs=5e-5)


def test_most_over_served_first() -> None:
    assert throttle_order(np.array([1.1, 0.5, 1.9, 1.0]), np.ones(4), "over-served") == [2, 0]
    assert throttle_order(X, np.array([3.0, 2.0, 1.0]), "low-weight") == [2, 1]


def test_the_mode_names_whom_it_would_have_throttled() -> None:
    rows = [(minute(1), name, x) for name, x in zip("abc", X.tolist(), strict=True)]
    tenants = pl.DataFrame(rows, schema=NOBODY.schema, orient="row")
    table = windows(jfi=[0.7, 0.7, 0.7])
    weights = dict(zip("abc", WEIGHTS.tolist(), strict=True))
    assert [mode.throttled for mode in emergency_modes(table, tenants)] == [("a",)]
    assert [mode.throttled for mode in emergency_modes(table, tenants, "low-weight", weights)] == [("b", "c")]


def test_the_rule_is_a_key_of_the_config() -> None:
    assert parse_config("", "test").emergency.jfi == "over-served"
    assert parse_config('[emergency]\njfi = "low-weight"\n', "test").emergency.jfi == "low-weight"
    with pytest.raises(UsageError):
        parse_config('[emergency]\njfi = "all"\n', "test")
