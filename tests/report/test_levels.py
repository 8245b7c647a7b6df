"""Levels by hand, from the alert table."""

from __future__ import annotations

from fairreplay.report.levels import Minutes, level, longest_run, minutes_below, slo_use, worst
from tests.report.documents import stored


def test_levels_are_strictly_below() -> None:
    assert [level("scr", value, 1) for value in (0.95, 0.9499, 0.90, 0.8999, 0.85, 0.8499, None)] == [
        "ok",
        "yellow",
        "yellow",
        "red",
        "red",
        "emergency",
        None,
    ]
    assert [level("jfi", value, 0) for value in (0.9, 0.89, 0.79)] == ["ok", "yellow", "red"]
    assert level("jfi", 0.79, 2) == "emergency"
    assert level("tfr", 0.39, 2) == "red"
    assert level("tfr", 0.39, 3) == "emergency"
    assert level("tfr", 1.7, 0) == "ok"


def test_minutes_by_hand() -> None:
    # JFI: one window below .8 alone (red, no emergency), then two in a row (emergency), a null, one yellow.
    values = [1.0, 0.7, 1.0, 0.75, 0.79, None, 0.85]
    assert minutes_below("jfi", values, [1.0] * 7) == Minutes(yellow=4.0, red=3.0, emergency=2.0)
    assert longest_run("jfi", values) == 2
    # a null window ends a run: no tenant was judged, so nothing says that the emergency went on
    assert longest_run("tfr", [0.1, None, 0.1, 0.1]) == 2
    assert minutes_below("tfr", [0.1, None, 0.1, 0.1], [0.5] * 4) == Minutes(yellow=1.5, red=1.5, emergency=0.0)


def test_worst_level() -> None:
    assert worst(["ok", None, "red", "yellow"]) == "red"
    assert worst([None]) == "ok"


def test_slo_use_is_the_worst_quantile_over_its_target() -> None:
    under = stored()["tenants"][0]["under"][0]
    under["ttft_ms"] = {"p50": 50.0, "p90": 900.0, "p99": None}
    assert slo_use(under, {"p50": 100.0, "p90": 300.0, "p99": 1.0}) == 3.0
    assert slo_use(under, None) is None
