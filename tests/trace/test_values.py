"""Numbers and times: what is exact, what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.trace.values import (
    Ticks,
    UnparsableError,
    add,
    iso,
    microseconds,
    parse_number,
    parse_ticks,
    parse_wall,
    rounded_us,
    whole,
)

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (512, 512),
        ("512", 512),
        ("76.0", 76),
        (Decimal("76.0"), 76),
        (" 1e3 ", 1000),
        ("-1", -1),
        (1772438400500000001, 1772438400500000001),
        ("1772438400500000001", 1772438400500000001),
    ],
)
def test_numbers_and_their_text_are_the_same_number(value: object, number: int) -> None:
    assert parse_number(value) == number
    assert whole(parse_number(value)) == number


@pytest.mark.parametrize(
    "value",
    [
        "NaN",
        "inf",
        float("nan"),
        float("inf"),
        Decimal("NaN"),
        True,
        "x",
        "1,5",
        "0x10",
        "1_0",
        "",
        [],
        {},
        "٣",
        10**41,
        "1e999999999",
        "9" * 5000,
        Decimal("1e-41"),
    ],
)
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(UnparsableError):
        parse_number(value)


def test_a_fraction_is_not_whole() -> None:
    assert whole(Decimal("76.5")) is None


def test_seven_digits_round_half_to_even() -> None:
    base = "2023-11-16 18:17:03."
    rounded = [
        iso(rounded_us(parse_wall(base + digits, UTC)[0])) for digits in ("9799600", "0000005", "0000015", "0000025")
    ]
    assert [text.split(".")[1] for text in rounded] == ["979960Z", "000000Z", "000002Z", "000002Z"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-05-10 00:00:00+00:00", "2024-05-10T00:00:00.000000Z"),
        ("2024-05-10T02:00:00.5+02:00", "2024-05-10T00:00:00.500000Z"),
        ("2024-05-09T18:30:00-0530", "2024-05-10T00:00:00.000000Z"),
        ("2024-05-10T00:00Z", "2024-05-10T00:00:00.000000Z"),
        ("2024-07-01 12:00:00", "2024-07-01T10:00:00.000000Z"),
        ("2024-01-01 12:00:00", "2024-01-01T11:00:00.000000Z"),
        ("2024-10-27 02:30:00", "2024-10-27T00:30:00.000000Z"),  # the hour stands twice: the first of the two
    ],
)
def test_wall_times(text: str, expected: str) -> None:
    exact, zoned = parse_wall(text, BERLIN)
    assert iso(rounded_us(exact)) == expected
    assert zoned is (text[-1] == "Z" or "+" in text or text.endswith("-0530"))


@pytest.mark.parametrize(
    "text",
    [
        "2024-13-11 00:00:03",
        "2023-02-29T00:00:00Z",
        "2024-05-10",
        "02/Mar/2026:08:00:00 +0000",
        "1710000000",
        "0",
        "2024-05-10T24:00:00Z",
        "2024-05-10T23:59:60Z",
        "2024-05-10T00:00:00+24:00",
        "x2024-05-10T00:00:00Z",
        "",
    ],
)
def test_what_is_no_wall_time_is_refused(text: str) -> None:
    with pytest.raises(UnparsableError):
        parse_wall(text, UTC)


def test_typed_timestamps_keep_nanoseconds_until_the_one_rounding() -> None:
    exact, zoned = parse_ticks(Ticks(1_500, "ns", True), UTC)
    assert (exact, zoned) == (Decimal("1.5"), True)
    local, zoned = parse_ticks(Ticks(1719835200, "s", False), BERLIN)  # 2024-07-01 12:00 on the wall
    assert (iso(rounded_us(local)), zoned) == ("2024-07-01T10:00:00.000000Z", False)


def test_instants_beyond_the_calendar_are_refused() -> None:
    with pytest.raises(UnparsableError):
        rounded_us(10**18)
    assert iso(rounded_us(253_402_214_400_000_000)) == "9999-12-31T00:00:00.000000Z"


@settings(derandomize=True, max_examples=200)
@given(
    st.decimals(-(10**10), 10**10, allow_nan=False, allow_infinity=False, places=9),
    st.decimals(0, 10**4, allow_nan=False, allow_infinity=False, places=17),
)
def test_sums_are_exact_then_rounded_once(start: Decimal, span: Decimal) -> None:
    total = add(microseconds(start, "s"), microseconds(span, "s"))
    reference = (Fraction(start) + Fraction(span)) * 1_000_000
    assert Fraction(total) == reference
    assert rounded_us(total) == round(reference)  # Fraction rounds half to even


@settings(derandomize=True, max_examples=100)
@given(st.datetimes(max_value=datetime(9999, 12, 30), timezones=st.just(UTC)))  # noqa: DTZ001 (the zone is given)
def test_wall_times_agree_with_the_standard_library(instant: datetime) -> None:
    exact, _ = parse_wall(instant.isoformat(), UTC)
    assert exact == (instant - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution)
    assert iso(rounded_us(exact)) == instant.isoformat(timespec="microseconds").replace("+00:00", "Z")
