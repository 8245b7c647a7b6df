"""How numbers, times and hostile names are written for a reader. Rules stand here once; nothing else formats."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta

MISSING = "–"
NAME_MAX = 48
"""Characters of a name shown in a table; a longer one is cut in the middle and stands whole in its fold."""

_BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_HIDDEN = {"Cc", "Cs", "Zl", "Zp"}


def visible(name: str) -> str:
    """``name`` with control, direction and lone surrogate characters shown as ``\\uXXXX``, not obeyed; empty as ``""``.

    Joiners inside scripts and emoji stay as they are.
    """
    if name == "":
        return '""'
    return "".join(
        f"\\u{ord(char):04x}" if char in _BIDI or unicodedata.category(char) in _HIDDEN else char for char in name
    )


def short(name: str, limit: int = NAME_MAX) -> str:
    """``visible(name)`` cut in the middle to ``limit`` characters."""
    text = visible(name)
    if len(text) <= limit:
        return text
    half = (limit - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def plotly_label(name: str, limit: int = 32) -> str:
    """A name for a Plotly label, which reads a subset of HTML: no tag, entity or ``%{template}`` survives."""
    text = "".join(f"\\u{ord(char):04x}" if unicodedata.category(char) == "Cf" else char for char in short(name, limit))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "%&#123;")


def number(value: float | int | None, digits: int = 2) -> str:
    """Fixed digits with thousands separators; missing is a dash, never 0."""
    if value is None:
        return MISSING
    if isinstance(value, int):
        return f"{value:,}"
    text = f"{value:,.{digits}f}"
    return text.replace("-0." + "0" * digits, "0." + "0" * digits) if float(f"{value:.{digits}f}") == 0 else text


def percent(value: float | None, digits: int = 1) -> str:
    return MISSING if value is None else f"{100 * value:.{digits}f} %"


def signed_percent(value: float | None, digits: int = 1) -> str:
    """A relative difference with its sign."""
    if value is None:
        return MISSING
    shown = f"{100 * value:+.{digits}f}"
    return f"{shown.lstrip('+-') if float(shown) == 0 else shown} %"


def seconds(value_ms: float | None) -> str:
    """Milliseconds as seconds with the digits that a reader needs: 0.184, 4.20, 112.8."""
    if value_ms is None:
        return MISSING
    value = value_ms / 1000
    size = abs(value)
    return f"{value:.3f}" if size < 1 else f"{value:.2f}" if size < 100 else f"{value:,.1f}"


def minutes(value: float | None) -> str:
    """Minutes: whole ones without a fraction."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def parse(instant: str) -> datetime:
    """An instant of the document."""
    return datetime.fromisoformat(instant).astimezone(UTC)


def iso(instant: datetime) -> str:
    """ISO 8601, UTC, six digits: the only form of an instant in the document."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def instant(value: str | None, *, day: bool = True) -> str:
    """An instant for a reader, in UTC, no finer than it needs; ``day=False`` where the day is clear."""
    if value is None:
        return MISSING
    moment = parse(value)
    clock = moment.strftime("%H:%M:%S") if moment.second or moment.microsecond else moment.strftime("%H:%M")
    return f"{moment:%Y-%m-%d} {clock}" if day else clock


def span(start: str, end: str) -> str:
    """Two instants; the day is repeated only where it changes."""
    return f"{instant(start)} – {instant(end, day=parse(start).date() != parse(end).date())}"


def duration(total_s: float) -> str:
    """A length of time in at most two units: ``45 s``, ``12 min``, ``13 d 4 h``."""
    delta = timedelta(seconds=round(total_s))
    days, rest = delta.days, delta.seconds
    hours, rest = divmod(rest, 3600)
    mins, secs = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (mins, "min"), (secs, "s")]
    shown = [f"{count} {unit}" for count, unit in parts if count]
    return " ".join(shown[:2]) or "0 s"
