"""Single values of a log: numbers without a double in between, instants as exact microseconds since the epoch.

``None`` is "the source does not say": an absent key, null, ``""`` and ``"-"``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Final, Literal, NamedTuple

Unit = Literal["s", "ms", "us", "ns"]
Number = int | Decimal

UNIT_US: Final[dict[Unit, Decimal]] = {
    "s": Decimal(1_000_000),
    "ms": Decimal(1000),
    "us": Decimal(1),
    "ns": Decimal("0.001"),
}
EXACT: Final = Context(prec=1200, rounding=ROUND_HALF_EVEN)
"""Sums of times in it have no rounding error: far more digits than ``parse_number`` lets in."""

_MAGNITUDE_MAX: Final = 40
_INTEGER_MAX: Final = 10**_MAGNITUDE_MAX
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_WALL = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(?::(\d\d)(?:[.,](\d+))?)?\s?(?:([Zz])|([+-]\d\d):?(\d\d)?)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST_US: Final = int((datetime(1, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds()) * 1_000_000
LATEST_US: Final = int((datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH).total_seconds()) * 1_000_000


class UnparsableError(ValueError):
    """A value that is not what its column holds."""


class Ticks(NamedTuple):
    """An instant from a typed column (Parquet): whole ticks since the epoch, or of a wall clock without zone."""

    number: int
    unit: Unit
    zoned: bool


def known(value: object) -> bool:
    """False for what stands for "unknown" in any column."""
    return value not in ("", "-") if isinstance(value, str) else value is not None


def parse_number(value: object) -> Number:
    """``value`` (number or text of one) without loss.

    Raises:
        UnparsableError: no number, not finite, or of a magnitude that no column has.
    """
    if type(value) is int:
        if -_INTEGER_MAX < value < _INTEGER_MAX:
            return value
        raise UnparsableError
    if isinstance(value, Decimal):
        number = value
    elif type(value) is float:
        number = Decimal(repr(value))
    elif isinstance(value, str) and _NUMBER.fullmatch(text := value.strip()):
        try:
            number = Decimal(text)
        except InvalidOperation:
            raise UnparsableError from None
    else:
        raise UnparsableError
    if number.is_finite() and (not number or -_MAGNITUDE_MAX <= number.adjusted() < _MAGNITUDE_MAX):
        return number
    raise UnparsableError


def whole(number: Number) -> int | None:
    """``number`` as an integer (``76.0`` is 76), or None if it has a fraction."""
    if isinstance(number, int):
        return number
    return int(number) if number == number.to_integral_value() else None


def microseconds(number: Number, unit: Unit) -> Number:
    """``number`` of ``unit`` in microseconds, exact."""
    if unit == "us":
        return number
    return EXACT.multiply(UNIT_US[unit], number)


def add(left: Number, right: Number) -> Number:
    """The exact sum."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    return EXACT.add(left, right)


def subtract(left: Number, right: Number) -> Number:
    """The exact difference."""
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    return EXACT.subtract(left, right)


def magnitude(number: Number) -> Number:
    """The absolute value; ``abs`` would round a long decimal."""
    return number.copy_abs() if isinstance(number, Decimal) else abs(number)


def rounded_us(exact: Number) -> int:
    """Whole microseconds, half to even; the one place where a time loses digits.

    Raises:
        UnparsableError: outside the years 1 to 9999.
    """
    instant = exact if isinstance(exact, int) else int(exact.to_integral_value(ROUND_HALF_EVEN))
    if EARLIEST_US <= instant <= LATEST_US:
        return instant
    raise UnparsableError


def parse_wall(text: object, zone: tzinfo) -> tuple[Number, bool]:
    """ISO 8601 date and time with any number of digits -> (exact microseconds since the epoch, it carried a zone).

    A time without zone is one of ``zone``; of the two readings in the hour that a zone repeats, the first.

    Raises:
        UnparsableError: another form, or no day of the calendar.
    """
    match = _WALL.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise UnparsableError
    day, minute, second, fraction, zulu, hours, minutes = match.groups()
    offset: tzinfo | None = None
    shift_s = 0
    if hours is not None:
        shift_s = (abs(int(hours)) * 60 + int(minutes or 0)) * (-60 if hours[0] == "-" else 60)
        if abs(shift_s) >= 86_400:
            raise UnparsableError
    elif zulu is None:
        offset = zone
    second_s = int(second or 0)
    if second_s > 59:
        raise UnparsableError
    instant: Number = (_minute_s(day, minute, offset) + second_s - shift_s) * 1_000_000
    if fraction is not None:
        instant = add(instant, Decimal((0, tuple(map(int, fraction)), 6 - len(fraction))))
    return instant, offset is None


@lru_cache(maxsize=4096)
def _minute_s(day: str, minute: str, zone: tzinfo | None) -> int:
    """Epoch seconds of the start of a minute on the clock of ``zone`` (None: UTC)."""
    try:
        wall = datetime.fromisoformat(f"{day}T{minute}").replace(tzinfo=zone or UTC)
        delta = wall - _EPOCH
    except (ValueError, OverflowError):
        raise UnparsableError from None
    return delta.days * 86_400 + delta.seconds


_FRACTION = re.compile(r"%(?:\.(\d?)f|(\d?)f)")
_LOOSE: Final = (
    {"Y": r"\d{4}", "b": "[A-Za-z.]+", "B": "[A-Za-z]+", "a": "[A-Za-z]+", "A": "[A-Za-z]+"}
    | {"p": "[AaPp][Mm]", "z": r"(?:[Zz]|[+-]\d\d:?\d\d)", "j": r"\d{1,3}", "%": "%"}
    | dict.fromkeys("ymdHMSIe", r"\s?\d{1,2}")
)


@lru_cache(maxsize=64)
def compile_pattern(pattern: str) -> tuple[re.Pattern[str], str]:
    """A pattern of time as a regex whose group ``fraction`` is the fraction of the second, and the pattern without it.

    Directives are those of C's ``strftime`` (``%Y %y %m %d %e %b %B %a %A %H %I %M %S %p %j %z %F %T``); ``%.f`` is a
    dot and any number of digits or nothing, ``%f`` digits.

    Raises:
        ValueError: a directive that is not known, or no day in it.
    """
    expanded = pattern.replace("%F", "%Y-%m-%d").replace("%T", "%H:%M:%S").replace("%D", "%m/%d/%y")
    parts = _FRACTION.split(expanded)
    if len(parts) > 4:
        raise ValueError("more than one fraction")
    fraction = ""
    if len(parts) == 4:
        dotted = expanded[len(parts[0]) + 1] == "."
        fraction = r"(?:\.(?P<fraction>\d{1,40}))?" if dotted else r"(?P<fraction>\d{1,40})"
    regex = _loose(parts[0]) + fraction + (_loose(parts[3]) if len(parts) == 4 else "")
    without = parts[0] + (parts[3] if len(parts) == 4 else "")
    if not ("%d" in without or "%e" in without or "%j" in without) or not ("%Y" in without or "%y" in without):
        raise ValueError("it names no day and year")
    return re.compile(regex, re.ASCII), without.replace("%e", "%d")


def _loose(pattern: str) -> str:
    pieces = re.split(r"%(.)", pattern)
    unknown = [piece for piece in pieces[1::2] if piece not in _LOOSE]
    if unknown or pattern.endswith("%"):
        raise ValueError(f"unknown directive %{unknown[0] if unknown else ''}")
    return "".join(_LOOSE[piece] if index % 2 else re.escape(piece) for index, piece in enumerate(pieces))


def parse_pattern(text: object, pattern: str, zone: tzinfo) -> tuple[Number, bool]:
    """As ``parse_wall`` for text in the form of ``pattern``."""
    regex, without = compile_pattern(pattern)
    match = regex.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise UnparsableError
    fraction = match.groupdict().get("fraction")
    start, end = match.span("fraction") if fraction else (0, 0)
    whole_text = match.string[: max(start - ("%." in pattern), 0)] + match.string[end:]
    seconds, zoned = _pattern_s(whole_text, without, zone)
    instant: Number = seconds * 1_000_000
    if fraction:
        instant = add(instant, Decimal((0, tuple(map(int, fraction)), 6 - len(fraction))))
    return instant, zoned


@lru_cache(maxsize=4096)
def _pattern_s(text: str, pattern: str, zone: tzinfo) -> tuple[int, bool]:
    """Epoch seconds of a time without fraction, and whether it carried a zone."""
    try:
        wall = datetime.strptime(text, pattern)  # noqa: DTZ007 (the zone follows)
        delta = wall.replace(tzinfo=wall.tzinfo or zone) - _EPOCH
    except (ValueError, OverflowError):
        raise UnparsableError from None
    return delta.days * 86_400 + delta.seconds, wall.tzinfo is not None


def parse_ticks(ticks: Ticks, zone: tzinfo) -> tuple[Number, bool]:
    """As ``parse_wall`` for a typed instant."""
    exact = microseconds(ticks.number, ticks.unit)
    if ticks.zoned:
        return exact, True
    whole_minutes, rest = divmod(exact, 60_000_000)
    try:
        wall = datetime.fromtimestamp(int(whole_minutes) * 60, UTC).replace(tzinfo=zone)
    except (ValueError, OverflowError, OSError):
        raise UnparsableError from None
    delta = wall - _EPOCH
    return add((delta.days * 86_400 + delta.seconds) * 1_000_000, rest), False


def epoch_us(instant: datetime) -> int:
    """Microseconds since the epoch, exact; the instant carries a zone."""
    return (instant - _EPOCH) // timedelta(microseconds=1)


def iso(instant_us: int) -> str:
    """``2024-05-10T00:00:00.009930Z``."""
    return (_EPOCH + timedelta(microseconds=instant_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
