"""The strict path: a record and its format's declaration become a canonical row, or a reject that says why.

Every format goes through here, so a rule of the canonical trace stands at one place. Reasons are tested in the order
of ``REASONS``; the first names the reject.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from decimal import Decimal
from typing import Final, NamedTuple

from fairreplay.config.model import TypeRule
from fairreplay.errors import BadInputError
from fairreplay.trace.fields import After, Columns, Epoch, Field, Ids, Integer, Real, Record, Relative, Tokens, Wall
from fairreplay.trace.schema import (
    DEFAULT_TENANT,
    DEFAULT_TYPE,
    STATUSES,
    TIME_COLUMNS,
    TYPE_ALIASES,
)
from fairreplay.trace.type_rules import named_type
from fairreplay.trace.values import (
    Number,
    Ticks,
    UnparsableError,
    add,
    known,
    magnitude,
    microseconds,
    parse_number,
    parse_pattern,
    parse_ticks,
    parse_wall,
    rounded_us,
    subtract,
    whole,
)

OWN_ID: Final = "{}-{}"
"""For a record without id, of content id and record number: the same on every ingest of the same bytes, and of no
other record."""
AMBIGUOUS: Final = " ambiguous join"
"""Key of a record whose join found several tenants: (column, value) of the key."""
CLOCKS_APART_US: Final = 366 * 86_400 * 1_000_000
"""No request takes a year: two instants of one row that far apart are of two clocks."""
MAGNITUDES_APART: Final = 100
"""Unix times from 1973 to 2100 differ by a factor below 50, units by 1000."""

_TEXT_COLUMNS: Final = ("request_id", "tenant", "type", "model", "replica", "status", "precision", "session_id")
_TOKEN_COLUMNS: Final = ("prompt_tokens", "output_tokens", "cached_tokens", "recomputed_tokens")
_LIMITS: Final = {
    "prompt_tokens": (0, 2**32 - 1),
    "output_tokens": (0, 2**32 - 1),
    "cached_tokens": (0, 2**32 - 1),
    "recomputed_tokens": (0, 2**32 - 1),
    "priority": (-(2**31), 2**31 - 1),
    "preemptions": (0, 2**16 - 1),
}
_FLOAT32_MAX: Final = 3.4e38


@dataclass(frozen=True)
class Reading:
    """What the reader of a log decides: clocks, zone, and what fills columns that the log does not have."""

    t0_us: Number = 0
    """Exact epoch microseconds of clock value 0 of relative clocks."""
    zone: tzinfo = UTC
    zone_name: str = "UTC"
    tenant: str | None = None
    type_: str | None = None
    model: str | None = None
    max_skew_us: int = 0
    type_rules: tuple[TypeRule, ...] = ()
    """The first that holds names the type, whatever the log says."""


class RejectedError(Exception):
    """A record that is no canonical row: reason, the source's column, the value as read."""

    def __init__(self, reason: str, column: str | None = None, value: object = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.column = column
        self.value = value


Row = tuple[object, ...]
"""Values in the order of the canonical columns but ``source``; times as epoch microseconds."""


@dataclass
class Tally:
    """What reading a source found out about it on the way."""

    clamped: int = 0
    naive_columns: set[str] = field(default_factory=set)
    defaulted: Counter[str] = field(default_factory=Counter)
    magnitudes: dict[str, tuple[Number, Number]] = field(default_factory=dict)

    def copy(self) -> Tally:
        return Tally(self.clamped, set(self.naive_columns), Counter(self.defaulted), dict(self.magnitudes))


class Found(NamedTuple):
    """One canonical column in one record: where it was looked up and what stood there (None: unknown)."""

    field: Field
    value: object


class Rules:
    """The strict path for one source. ``file`` is for messages, ``source`` the content id."""

    def __init__(self, columns: Columns, reading: Reading, file: str, source: str) -> None:
        self.columns = {name: tuple(fields) for name, fields in columns.items()}
        self.reading = reading
        self.file = file
        self.source = source
        self.tally = Tally()

    def row(self, record: Record, number: int) -> Row:
        """The canonical row of record ``number``.

        Raises:
            RejectedError: the record is no request that can have been.
            BadInputError: a time column mixes units or clocks: no row of the file can be believed.
        """
        found = {name: self._find(record, fields) for name, fields in self.columns.items()}
        text = {name: _text(found.get(name)) for name in _TEXT_COLUMNS}
        status = text["status"] or "ok"
        if status not in STATUSES:
            raise RejectedError("unparsable_record", _column(found["status"]), text["status"])

        times = self._instants(found, number)
        spans = self._spans(found, record)
        numbers = {name: _number(found.get(name)) for name in (*_TOKEN_COLUMNS, "priority", "preemptions")}
        _check_limits(found, numbers)
        weight, utilization = _real(found.get("weight")), _real(found.get("batch_utilization"))
        prefix_ids = _ids(found.get("prefix_ids"))
        arrival = times["arrived_at"]
        assert arrival is not None, "_instants refuses a row without arrival"
        for name, (base, span) in spans.items():
            start = times[base]
            times[name] = add(start, span) if start is not None else None

        type_ = text["type"] or self.reading.type_ or DEFAULT_TYPE
        type_ = TYPE_ALIASES.get(type_, type_)
        if self.reading.type_rules:
            values = {**text, **numbers, "type": type_, "status": status}
            type_ = named_type(self.reading.type_rules, values) or type_
        counts = _counts(found, numbers, status, type_)
        instants = {name: _rounded(found.get(name), exact) for name, exact in times.items()}
        self._settle_first_token(found, instants, counts["output_tokens"], status, type_)
        self._check_order(found, instants)
        if AMBIGUOUS in record:
            raise RejectedError("ambiguous_join", *record[AMBIGUOUS])  # type: ignore[misc]
        self.tally.defaulted.update(name for name in ("tenant", "type") if text[name] is None)
        return (
            text["request_id"] or OWN_ID.format(self.source, number),
            text["tenant"] or self.reading.tenant or DEFAULT_TENANT,
            type_,
            text["model"] or self.reading.model,
            text["replica"],
            instants["arrived_at"],
            counts["prompt_tokens"],
            counts["output_tokens"],
            counts["cached_tokens"],
            counts["priority"],
            instants["scheduled_at"],
            instants["first_token_at"],
            instants["finished_at"],
            status,
            counts["preemptions"],
            counts["recomputed_tokens"],
            weight,
            utilization,
            text["precision"],
            text["session_id"],
            prefix_ids,
            number,
        )

    def facts(self, record: Record) -> dict[str, object]:
        """What can be read of a record's names and counts, whatever else is wrong with it; None: nothing."""
        facts: dict[str, object] = {}
        for name, fields in self.columns.items():
            there = self._find(record, fields)
            try:
                if name in _TEXT_COLUMNS:
                    facts[name] = _text(there)
                elif name in _LIMITS:
                    number = _number(there)
                    _check_limits({name: there}, {name: number})
                    count = whole(number) if number is not None else None
                    facts[name] = None if name in _TOKEN_COLUMNS and (count or 0) < 0 else count
                elif name == "weight":
                    facts[name] = _real(there)
            except RejectedError:
                facts[name] = None
        if facts.get("status") not in (None, "ok") and not facts.get("prompt_tokens"):
            facts["prompt_tokens"] = None
        return facts

    def _find(self, record: Record, fields: Sequence[Field]) -> Found:
        """The first place that holds something; else the first that is there at all, else the first (for its name)."""
        present: Field | None = None
        for place in fields:
            if place.column in record:
                value = record[place.column]
                if known(value):
                    return Found(place, value)
                present = present or place
        return Found(present or fields[0], None)

    # -- times --------------------------------------------------------------------------------------------------------

    def _instants(self, found: dict[str, Found], number: int) -> dict[str, Number | None]:
        """Exact epoch microseconds of the instants among the time columns, the arrival first."""
        times: dict[str, Number | None] = dict.fromkeys(TIME_COLUMNS)
        at = found["arrived_at"]
        times["arrived_at"] = self._instant(at, arrival=True)
        if times["arrived_at"] is None:
            raise RejectedError("missing_time", _column(at), at.value)
        for name in TIME_COLUMNS[1:]:
            there = found.get(name)
            if there is not None and not isinstance(there.field, After):
                times[name] = self._instant(there, arrival=False)
        self._check_clocks(found, times, number)
        return times

    def _instant(self, there: Found, *, arrival: bool) -> Number | None:
        if there.value is None:
            return None
        try:
            return self._exact_instant(there, arrival=arrival)
        except UnparsableError:
            raise RejectedError("unparsable_time", _column(there), there.value) from None

    def _exact_instant(self, there: Found, *, arrival: bool) -> Number | None:
        place, value = there.field, there.value
        if not isinstance(place, Wall):
            if isinstance(value, Ticks):
                raise UnparsableError
            return self._exact_number(place, value, arrival=arrival)
        zone = UTC if place.utc else place.zone or self.reading.zone
        if isinstance(value, Ticks):
            exact, zoned = parse_ticks(value, zone)
        else:
            try:
                exact, zoned = parse_pattern(value, place.pattern, zone) if place.pattern else parse_wall(value, zone)
            except UnparsableError:
                if parse_number(value) == 0:
                    return None
                if place.epoch is None:
                    raise
                return self._exact_number(Epoch(place.column, place.epoch), value, arrival=arrival)
        if not zoned and not place.utc and place.zone is None:
            self.tally.naive_columns.add(place.column)
        rounded_us(exact)
        return exact

    def _exact_number(self, place: Field, value: object, *, arrival: bool) -> Number | None:
        assert isinstance(place, Epoch | Relative)
        number = parse_number(value)
        if isinstance(place, Relative):
            if number == 0 and (place.monotonic or not arrival):
                return None
            exact = add(self.reading.t0_us, microseconds(number, place.unit))
        else:
            if number == 0:
                return None
            self._check_magnitude(place.column, number)
            exact = microseconds(number, place.unit)
        rounded_us(exact)
        return exact

    def _check_magnitude(self, column: str, number: Number) -> None:
        """Seconds and milliseconds in one column: whatever the unit is, some rows are wrong by years."""
        size = magnitude(number)
        low, high = self.tally.magnitudes.get(column, (size, size))
        low, high = min(low, size), max(high, size)
        self.tally.magnitudes[column] = (low, high)
        if high > low * MAGNITUDES_APART:
            raise BadInputError(
                f"{self.file}: column {column} mixes magnitudes ({_plain(low)} and {_plain(high)}): times of two units "
                "or two clocks; give each its own column and ingest again"
            )

    def _check_clocks(self, found: dict[str, Found], times: dict[str, Number | None], number: int) -> None:
        arrival = times["arrived_at"]
        for name in TIME_COLUMNS[1:]:
            other = times[name]
            if arrival is None or other is None:
                continue
            apart = magnitude(subtract(other, arrival))
            if apart > CLOCKS_APART_US:
                years = int(apart) // CLOCKS_APART_US
                raise BadInputError(
                    f"{self.file}: row {number}: {found['arrived_at'].field.column} and {found[name].field.column} "
                    f"are {years} years apart: two clocks; give both on one clock and ingest again"
                )

    def _spans(self, found: dict[str, Found], record: Record) -> dict[str, tuple[str, Number]]:
        """The time columns that are durations: since when, and exact microseconds."""
        spans: dict[str, tuple[str, Number]] = {}
        for name in TIME_COLUMNS[1:]:
            there = found.get(name)
            if there is not None and isinstance(there.field, After) and there.value is not None:
                span = _span(there.field, there.value, record)
                if span is not None:
                    spans[name] = there.field.base, span
        return spans

    def _settle_first_token(
        self, found: dict[str, Found], instants: dict[str, int | None], output: int | None, status: str, type_: str
    ) -> None:
        """A TTFT of 0 with nothing generated is "no first token"; on a row that claims success it is a contradiction.

        A served ``embed`` request answers once, with all that it has: its first token is its end.
        """
        if type_ == "embed":
            if status == "ok" and instants["finished_at"] is not None:
                instants["first_token_at"] = instants["finished_at"]
            return
        if output or instants["first_token_at"] is None or instants["first_token_at"] != instants["arrived_at"]:
            return
        if status == "ok":
            raise RejectedError("contradictory", _column(found["first_token_at"]), found["first_token_at"].value)
        instants["first_token_at"] = None

    def _check_order(self, found: dict[str, Found], instants: dict[str, int | None]) -> None:
        for name, floor, reason in (
            ("scheduled_at", "arrived_at", "scheduled_before_arrival"),
            ("first_token_at", "arrived_at", "first_token_before_arrival"),
            ("finished_at", "arrived_at", "finish_before_arrival"),
            ("finished_at", "first_token_at", "finish_before_first_token"),
        ):
            instant, earliest = instants[name], instants[floor]
            if instant is None or earliest is None or instant >= earliest:
                continue
            if earliest - instant > self.reading.max_skew_us:
                raise RejectedError(reason, _column(found[name]), found[name].value)
            instants[name] = earliest
            self.tally.clamped += 1


def _plain(number: Number) -> str:
    """Digits without an exponent, and none that say nothing."""
    integer = whole(number)
    return str(integer) if integer is not None else format(number, "f").rstrip("0")


def _column(there: Found | None) -> str | None:
    if there is None:
        return None
    place = there.field
    return place.source if isinstance(place, Tokens) and place.source else place.column


def _span(place: After, value: object, record: Record) -> Number | None:
    try:
        span = parse_number(value)
    except UnparsableError:
        raise RejectedError("unparsable_number", place.column, value) from None
    if place.minus is None:
        return None if span == -1 else microseconds(span, place.unit)
    start = record.get(place.minus)
    if not known(start):
        return None
    try:
        mark = parse_number(start)
    except UnparsableError:
        raise RejectedError("unparsable_number", place.minus, start) from None
    if span == 0 or mark == 0:
        return None
    return microseconds(subtract(span, mark), place.unit)


def _rounded(there: Found | None, exact: Number | None) -> int | None:
    if exact is None:
        return None
    try:
        return rounded_us(exact)
    except UnparsableError:
        raise RejectedError("unparsable_number", _column(there), there.value if there else None) from None


def _text(there: Found | None) -> str | None:
    value = there.value if there is not None else None
    if value is None or isinstance(value, str):
        return value
    try:
        if isinstance(value, bool):
            raise UnparsableError
        number = parse_number(value)
    except UnparsableError:
        raise RejectedError("unparsable_record", _column(there), value) from None
    integer = whole(number)
    return str(integer) if integer is not None else format(number, "f")


def _number(there: Found | None) -> Number | None:
    if there is None or there.value is None:
        return None
    try:
        number = parse_number(there.value)
    except UnparsableError:
        raise RejectedError("unparsable_number", _column(there), there.value) from None
    if isinstance(there.field, Integer) and whole(number) is None:
        raise RejectedError("unparsable_number", _column(there), there.value)
    return number


def _real(there: Found | None) -> float | None:
    if there is None or there.value is None:
        return None
    try:
        assert isinstance(there.field, Real)
        number = float(parse_number(there.value))
        if abs(number) > _FLOAT32_MAX:
            raise UnparsableError
    except UnparsableError:
        raise RejectedError("unparsable_number", _column(there), there.value) from None
    return number


def _ids(there: Found | None) -> list[int] | None:
    if there is None or there.value is None:
        return None
    assert isinstance(there.field, Ids)
    values = there.value
    if not isinstance(values, list) or not all(type(item) is int and 0 <= item < 2**64 for item in values):
        raise RejectedError("unparsable_number", _column(there), values)
    return values


def _counts(
    found: dict[str, Found], numbers: dict[str, Number | None], status: str, type_: str
) -> dict[str, int | None]:
    """Whole counts within their column's bounds, and the rules for rows that were not served."""
    served = status == "ok"
    for name in ("prompt_tokens", "output_tokens"):
        if served and numbers[name] is None and not (name == "output_tokens" and type_ == "embed"):
            raise RejectedError("missing_tokens", _column(found.get(name)), None)
    counts: dict[str, int | None] = {}
    for name, number in numbers.items():
        counts[name] = whole(number) if number is not None else None
        if number is not None and counts[name] is None:
            raise RejectedError("fractional_tokens", _column(found[name]), found[name].value)
    for name, count in counts.items():
        if count is not None and count < 0 and name in _TOKEN_COLUMNS:
            raise RejectedError("negative_tokens", _column(found[name]), found[name].value)
    if served and counts["prompt_tokens"] == 0:
        raise RejectedError("zero_prompt", _column(found["prompt_tokens"]), found["prompt_tokens"].value)
    if not served:
        counts["prompt_tokens"] = counts["prompt_tokens"] or None
    if type_ == "embed" or (status == "rejected" and counts["output_tokens"] is None):
        counts["output_tokens"] = 0
    return counts


def _check_limits(found: dict[str, Found], numbers: dict[str, Number | None]) -> None:
    """Counts that no column can hold are ``unparsable_number``."""
    for name, number in numbers.items():
        low, high = _LIMITS[name]
        if number is not None and (number > high or (number < low and name not in _TOKEN_COLUMNS)):
            raise RejectedError("unparsable_number", _column(found[name]), found[name].value)


def shown(value: object) -> str | None:
    """A value as the source wrote it: text as it is, anything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)
