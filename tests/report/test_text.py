"""How figures and times are written."""

from __future__ import annotations

from fairreplay.report import text


def test_numbers() -> None:
    assert text.number(None) == "–"
    assert text.number(1500) == "1,500"
    assert text.number(7 / 27, 3) == "0.259"
    assert text.number(-0.0001, 2) == "0.00"
    assert text.signed_percent(-0.0001) == "0.0 %"
    assert text.signed_percent(0.0312) == "+3.1 %"
    assert text.percent(0.0125) == "1.2 %"


def test_seconds_have_the_digits_a_reader_needs() -> None:
    assert [text.seconds(value) for value in (184.0, 4200.0, 39070.0, 136_940.0, -65_000.0, None)] == [
        "0.184",
        "4.20",
        "39.07",
        "136.9",
        "-65.00",
        "–",
    ]


def test_times_are_utc_and_short_where_the_day_is_clear() -> None:
    assert text.instant("2026-11-02T09:16:00.000000Z") == "2026-11-02 09:16"
    assert text.instant("2026-11-02T09:16:05.000000Z", day=False) == "09:16:05"
    assert text.instant("2026-11-02T09:16:00+02:00") == "2026-11-02 07:16"


def test_durations() -> None:
    assert [text.duration(seconds) for seconds in (0, 45, 720, 1_137_600, 90061)] == [
        "0 s",
        "45 s",
        "12 min",
        "13 d 4 h",
        "1 d 1 h",
    ]


def test_minutes_and_plurals() -> None:
    assert text.minutes(9.0) == "9"
    assert text.minutes(1.25) == "1.2"
    assert text.plural(1, "tenant") == "1 tenant"
    assert text.plural(1500, "request") == "1,500 requests"
