"""The rules of ``rules.py`` on whole columns: which rows are plainly right, and what they are.

Derived from the same declaration. It never decides what is wrong with a row: a row that is not plainly right is *odd*
and goes through the strict path, and so does a block whose columns it does not know (``DeclinedError``). Times are
whole numbers of ticks, so many to the microsecond that no digit of the block is lost; sums are exact and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, tzinfo
from decimal import Decimal
from typing import Any, Final

import polars as pl
import pyarrow as pa

from fairreplay.trace.columnwise import DeclinedError as DeclinedError
from fairreplay.trace.fields import (
    After,
    Columns,
    Epoch,
    Field,
    Format,
    Ids,
    Integer,
    Real,
    Relative,
    Text,
    Tokens,
    Wall,
)
from fairreplay.trace.rules import CLOCKS_APART_US, MAGNITUDES_APART, OWN_ID, Reading, Tally
from fairreplay.trace.schema import (
    COLUMNS,
    DEFAULT_TENANT,
    DEFAULT_TYPE,
    SCHEMA,
    STATUSES,
    TIME_COLUMNS,
    TYPE_ALIASES,
)
from fairreplay.trace.type_rules import type_expression
from fairreplay.trace.values import (
    EARLIEST_US,
    EXACT,
    LATEST_US,
    Number,
    Ticks,
    Unit,
    UnparsableError,
    known,
    parse_pattern,
    parse_ticks,
    whole,
)

UNIT_DIGITS: Final[dict[Unit, int]] = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""Digits of a second below one of the unit."""
FINEST: Final = 19
"""Ticks of 10**-19 s are the finest: 19 digits before and 19 after the point are what 128 bits hold for certain."""
LANES: Final = (6, 9, FINEST)
"""A block's times are ticks of 10**-6 or 10**-9 s in 64 bits, or of 10**-19 s in 128."""
TEXT_DIGITS: Final = 17
"""Numbers in text with more digits before the point are left to the strict path."""

_SUPPORTED: Final[dict[type, frozenset[str]]] = {
    Wall: frozenset({"column", "utc", "zone", "pattern"}),
    Epoch: frozenset({"column", "unit"}),
    Relative: frozenset({"column", "unit", "monotonic"}),
    After: frozenset({"column", "unit", "minus", "base"}),
    Tokens: frozenset({"column", "source"}),
    Integer: frozenset({"column"}),
    Real: frozenset({"column"}),
    Text: frozenset({"column"}),
    Ids: frozenset({"column"}),
    Format: frozenset(
        {"name", "containers", "needs", "columns", "matches", "refuse", "private", "reads"}
        | {
            "prefix_block_tokens",
            "survey",
            "survey_reads",
            "tenant_from",
            "pages",
            "page",
            "delimiter",
            "header",
            "by_columns",
        }
    ),
    Reading: frozenset({"t0_us", "zone", "zone_name", "tenant", "type_", "model", "max_skew_us"} | {"type_rules"}),
}
"""What is known here of each declaration; whoever sets anything else goes through the strict path."""
_UINT_COLUMNS: Final = ("prompt_tokens", "output_tokens", "cached_tokens", "recomputed_tokens", "preemptions")
_INT64_MAX: Final = 2**63 - 1
_FLOAT32_MAX: Final = 3.4e38
_EXACT_FLOAT_MAX: Final = 2.0**53


def is_plain(log_format: Format, columns: Columns, reading: Reading) -> bool:
    """Nothing in the declaration is beyond what is known here, and every record stands for itself."""
    places = [place for places in columns.values() for place in places]
    return all(_has_only_known(item) for item in (log_format, reading, *places))


def _has_only_known(declared: Format | Reading | Field) -> bool:
    known = _SUPPORTED[type(declared)]
    if isinstance(declared, Format) and declared.by_columns is not None:
        known |= {"prepare"}
    return all(item.name in known or getattr(declared, item.name) == item.default for item in fields(declared))


@dataclass(frozen=True)
class Judged:
    """``rows``: the plainly right ones, canonical, in order. ``odd``: positions in the block of the others."""

    rows: pl.DataFrame
    odd: Sequence[int]
    names_ids: bool


@dataclass(frozen=True)
class _Numbers:
    """A column as whole numbers of 10**-``digits`` (64 or 128 bits); null is unknown. ``odd`` rows are null too."""

    values: pl.Series
    digits: int
    odd: pl.Series | None


@dataclass(frozen=True)
class _Instants:
    """A column of wall times as ticks of 10**-``digits`` s; null is unknown. ``odd`` rows are null too."""

    ticks: pl.Series
    digits: int
    zoned: bool
    odd: pl.Series | None


class Vector:
    """The vectorised rules for one source."""

    def __init__(self, columns: Columns, reading: Reading, source: str) -> None:
        self._columns = columns
        self._reading = reading
        self._source = source

    def judge(self, block: pl.DataFrame, start: int, tally: Tally, odd: pl.Series | None = None) -> Judged:
        """``block``: columns of the source by name, records ``start``, ``start + 1``, ...; ``odd`` ones are named.

        Adds the rows that it returns to ``tally``, if it returns.

        Raises:
            DeclinedError: a column of a type that is not known here, or a fault that concerns the file as a whole.
        """
        return _Judgement(self._columns, self._reading, self._source, tally, block, start, odd).judged()


def told(
    columns: Columns, reading: Reading, block: pl.DataFrame, odd: pl.Series | None
) -> tuple[dict[str, pl.Series], Sequence[int]]:
    """What a block says of names and counts, as ``Rules.facts`` does of a record, and positions of *odd* rows.

    Raises:
        DeclinedError: as of ``Vector.judge``.
    """
    return _Judgement(columns, reading, "", Tally(), block, 0, odd).told()


class _Judgement:
    """One block on its way through the rules."""

    def __init__(
        self,
        columns: Columns,
        reading: Reading,
        source: str,
        tally: Tally,
        block: pl.DataFrame,
        start: int,
        odd: pl.Series | None,
    ) -> None:
        self._columns = columns
        self._reading = reading
        self._source = source
        self._tally = tally
        self._block = block
        self._start = start
        self._odd: list[pl.Series] = [] if odd is None else [odd]
        self._numbers: dict[tuple[str, int], _Numbers] = {}
        self._instants: dict[str, _Instants] = {}
        self._naive: list[tuple[str, pl.Series]] = []
        """Columns of wall times without zone, and where they count."""
        self._sizes: list[tuple[str, pl.Series, int]] = []
        """Columns of Unix times, their sizes where they count, and the digits of these."""

    def judged(self) -> Judged:
        text = {name: self._text(name) for name in ("request_id", "tenant", "type", "model", "replica")}
        text |= {name: self._text(name) for name in ("status", "precision", "session_id")}
        counts = {name: self._count(name) for name in (*_UINT_COLUMNS, "priority")}
        times = self._times()
        rest = {"weight": self._real("weight"), "batch_utilization": self._real("batch_utilization")}
        rest["prefix_ids"] = self._ids()
        seq = pl.int_range(self._start, self._start + self._block.height, dtype=pl.UInt64, eager=True)
        named = {**text, **counts, **times, **rest, "seq": seq}
        frame = pl.DataFrame([series.alias(name) for name, series in named.items() if series is not None])
        absent = [name for name, series in named.items() if series is None]
        frame = frame.with_columns(
            pl.lit(None, pl.Int64 if name in TIME_COLUMNS else SCHEMA[name]).alias(name) for name in absent
        )
        frame, odd = self._settled(frame)
        return self._finished(frame, odd)

    def told(self) -> tuple[dict[str, pl.Series], Sequence[int]]:
        found = {name: self._text(name) for name in ("tenant", "type", "model", "session_id", "status")}
        found |= {name: self._count(name) for name in (*_UINT_COLUMNS, "priority")}
        found["weight"] = self._real("weight")
        strange = _all(self._block.height, value=False)
        for series in self._odd:
            strange = strange | series
        return {name: series for name, series in found.items() if series is not None}, strange.arg_true().to_list()

    # -- what the strict path calls finding ---------------------------------------------------------------------------

    def _series(self, column: str) -> pl.Series | None:
        """A column of the block; None if it is not there or holds nothing."""
        if column not in self._block.columns:
            return None
        series = self._block[column]
        return None if series.null_count() == series.len() else series

    def _places(self, name: str) -> list[Field]:
        """Where the block holds anything for a canonical column."""
        return [place for place in self._columns.get(name, ()) if self._series(place.column) is not None]

    def _mark(self, odd: pl.Series | None) -> None:
        if odd is not None and odd.any():
            self._odd.append(odd)

    # -- names --------------------------------------------------------------------------------------------------------

    def _text(self, name: str) -> pl.Series | None:
        found: pl.Series | None = None
        for place in self._places(name):
            values = _known_text(self._block[place.column])
            found = values if found is None else _first_of(found, values)
        return found

    # -- numbers ------------------------------------------------------------------------------------------------------

    def _whole(self, column: str) -> pl.Series:
        """A column of whole numbers, 64 bits; what is none is odd."""
        numbers = self._read(column, 0)
        if numbers.digits == 0 and numbers.values.dtype == pl.Int64:
            return numbers.values
        unit = pl.lit(10**numbers.digits, pl.Int128)
        wide = numbers.values.cast(pl.Int128)
        result = _map(lambda number: (number // unit).cast(pl.Int64, strict=False), wide)
        self._mark(
            _map(lambda number, whole: number.is_not_null() & (whole.is_null() | (number % unit != 0)), wide, result)
        )
        return result

    def _count(self, name: str) -> pl.Series | None:
        found: pl.Series | None = None
        for place in self._places(name):
            values = self._whole(place.column)
            found = values if found is None else _first_of(found, values)
        if found is None:
            return None
        low, high = (-(2**31), 2**31 - 1) if name == "priority" else (0, 2**16 - 1)
        if name in _UINT_COLUMNS and name != "preemptions":
            high = 2**32 - 1
        return self._only_within(found, low, high).cast(SCHEMA[name])

    def _only_within(self, values: pl.Series, low: int, high: int) -> pl.Series:
        """``values``, null and odd where they are not in [``low``, ``high``]; mostly all are."""
        found = _range(values)
        if found is None or (low <= found[0] and found[1] <= high):
            return values
        lowest, highest = found
        low, high = max(low, lowest), min(high, highest)  # edges that are values of the column's own type
        fits = _each(lambda value: (value >= _lit(low, value)) & (value <= _lit(high, value)), values)
        self._mark((~fits).fill_null(value=False))
        return _null_where(values, ~fits)

    def _real(self, name: str) -> pl.Series | None:
        places = self._places(name)
        if not places:
            return None
        dtype = self._block[places[0].column].dtype
        if len(places) > 1 or not (dtype.is_integer() or dtype.is_float()):
            raise DeclinedError
        values = self._block[places[0].column].cast(pl.Float64)
        fits = values.is_finite() & (values.abs() <= _FLOAT32_MAX)
        self._mark((~fits).fill_null(value=False))
        return _null_where(values, ~fits).cast(pl.Float32)

    def _ids(self) -> pl.Series | None:
        places = self._places("prefix_ids")
        if not places:
            return None
        series = self._block[places[0].column]
        inner = series.dtype.inner if isinstance(series.dtype, pl.List) else None
        if len(places) > 1 or not isinstance(inner, pl.DataType) or not inner.is_integer():
            raise DeclinedError
        items = series.drop_nulls().explode(empty_as_null=False)
        if items.null_count() or (inner.is_signed_integer() and (items < 0).any()):
            raise DeclinedError
        return series.cast(pl.List(pl.UInt64))

    def _read(self, column: str, unit_digits: int) -> _Numbers:
        """A column as whole numbers of some fraction of its unit."""
        key = (column, unit_digits)
        if key not in self._numbers:
            numbers = _numbers(self._block[column], FINEST - unit_digits)
            self._mark(numbers.odd)
            self._numbers[key] = numbers
        return self._numbers[key]

    # -- times --------------------------------------------------------------------------------------------------------

    def _times(self) -> dict[str, pl.Series | None]:
        """The time columns in microseconds, each rounded once."""
        places = {name: self._places(name) for name in TIME_COLUMNS}
        lane = self._lane([place for found in places.values() for place in found])
        exact: dict[str, pl.Series | None] = {}
        for name, found in places.items():
            exact[name] = self._ticks(name, found, lane, exact)
        return {name: None if ticks is None else self._rounded(ticks, lane) for name, ticks in exact.items()}

    def _lane(self, places: Sequence[Field]) -> int:
        """So many digits of a second as no number of the block exceeds."""
        t0_us = Decimal(self._reading.t0_us)
        digits = [6 - min(0, int(t0_us.as_tuple().exponent))]
        for place in places:
            if isinstance(place, Wall):
                digits.append(self._read_wall(place).digits)
                continue
            assert isinstance(place, Epoch | Relative | After)
            below = UNIT_DIGITS[place.unit]
            digits.append(below + self._read(place.column, below).digits)
            if isinstance(place, After) and place.minus is not None and self._series(place.minus) is not None:
                digits.append(below + self._read(place.minus, below).digits)
        lane = next((lane for lane in LANES if lane >= max(digits)), None)
        if lane is None or (lane < FINEST and abs(t0_us) * 10 ** (lane - 6) > _INT64_MAX // 4):
            raise DeclinedError
        return lane

    def _ticks(
        self, name: str, places: Sequence[Field], lane: int, before: Mapping[str, pl.Series | None]
    ) -> pl.Series | None:
        """``before``: the ticks of the time columns before ``name``.

        Of the places that say anything in a row the first counts, even where it says "unknown" by a sentinel.
        """
        chosen: pl.Series | None = None
        taken: pl.Series | None = None
        for place in places:
            known = self._said(place)
            counts = known if taken is None else known & ~taken
            if isinstance(place, After):
                ticks = self._after(place, lane, before.get(place.base))
            else:
                ticks = self._instant(place, lane, counts, arrival=name == "arrived_at")
                self._check_clocks(ticks, before.get("arrived_at"), lane)
            if chosen is None or taken is None:
                chosen, taken = ticks, known
            else:
                chosen = _map(lambda use, new, old: pl.when(use).then(new).otherwise(old), counts, ticks, chosen)
                taken = taken | known
        return chosen

    def _said(self, place: Field) -> pl.Series:
        """Where a column of times says anything at all; mostly everywhere."""
        if isinstance(place, Wall):
            values = self._read_wall(place).ticks
        else:
            assert isinstance(place, Epoch | Relative | After)
            values = self._read(place.column, UNIT_DIGITS[place.unit]).values
        return values.is_not_null() if values.null_count() else _all(self._block.height, value=True)

    def _instant(self, place: Field, lane: int, counts: pl.Series, *, arrival: bool) -> pl.Series:
        if isinstance(place, Wall):
            return self._wall(place, lane, counts)
        assert isinstance(place, Epoch | Relative)
        below = UNIT_DIGITS[place.unit]
        numbers = self._read(place.column, below)
        zero = _each(lambda number: number == 0, numbers.values)
        ticks = self._scaled(numbers.values, numbers.digits + below, lane)
        if isinstance(place, Epoch):
            sizes = _null_where(numbers.values, zero | ~counts)
            found = _range(sizes)
            if found is not None and found[0] < 0:
                sizes = _each(lambda number: number.abs(), sizes)
            self._sizes.append((place.column, sizes, numbers.digits))
            return _null_where(ticks, zero)
        t0 = int(EXACT.scaleb(Decimal(self._reading.t0_us), lane - 6))
        ticks = _each(lambda tick: tick + _lit(t0, tick), ticks)
        return ticks if arrival and not place.monotonic else _null_where(ticks, zero)

    def _after(self, place: After, lane: int, start: pl.Series | None) -> pl.Series:
        if start is None:
            raise DeclinedError
        below = UNIT_DIGITS[place.unit]
        numbers = self._read(place.column, below)
        spans = self._scaled(numbers.values, numbers.digits + below, lane)
        if place.minus is None:
            none = -(10**numbers.digits)
            spans = _null_where(spans, _each(lambda number: number == _lit(none, number), numbers.values))
        elif self._series(place.minus) is None:
            spans = spans.clear(spans.len())
        else:
            marks = self._read(place.minus, below)
            first = self._scaled(marks.values, marks.digits + below, lane)
            no_mark = _map(lambda mark, since: (mark == 0) | (since == 0), numbers.values, marks.values)
            spans = _null_where(_each(lambda mark, since: mark - since, spans, first), no_mark)
        return _each(lambda instant, span: instant + span, start, spans)

    def _scaled(self, values: pl.Series, digits: int, lane: int) -> pl.Series:
        """Whole numbers of 10**-``digits`` s as ticks; what may not fit is odd."""
        factor = 10 ** (lane - digits)
        wide = pl.Int64() if lane < FINEST else pl.Int128()
        limit = min(LATEST_US * 10 ** (lane - 6), (_INT64_MAX if lane < FINEST else 2**126) // 4) // factor
        narrow = self._only_within(values, -limit, limit).cast(wide)
        return narrow if factor == 1 else _each(lambda number: number * _lit(factor, number), narrow)

    def _read_wall(self, place: Wall) -> _Instants:
        if place.column not in self._instants:
            series = self._block[place.column]
            self._instants[place.column] = found = (
                _instants(series) if place.pattern is None else _patterned(series, place.pattern)
            )
            self._mark(found.odd)
        return self._instants[place.column]

    def _wall(self, place: Wall, lane: int, counts: pl.Series) -> pl.Series:
        found = self._read_wall(place)
        ticks = self._scaled(found.ticks, found.digits, lane)
        if found.zoned or place.utc:
            return ticks
        if place.zone is None:
            self._naive.append((place.column, counts))
        zone = place.zone or self._reading.zone
        return ticks if str(zone) == "UTC" else _moved(ticks, lane, zone)

    def _check_clocks(self, other: pl.Series, arrival: pl.Series | None, lane: int) -> None:
        if arrival is None:
            return
        apart, between = CLOCKS_APART_US * 10 ** (lane - 6), _each(lambda one, two: one - two, other, arrival)
        found = _range(between)
        if found is not None and (found[0] < -apart or found[1] > apart):
            raise DeclinedError

    def _rounded(self, ticks: pl.Series, lane: int) -> pl.Series:
        """Microseconds, half to even; outside the calendar is odd."""
        if lane > 6:
            unit, half = (pl.lit(10 ** (lane - 6) // part, ticks.dtype) for part in (1, 2))
            down = _map(lambda tick: tick // unit, ticks)
            up = _map(
                lambda tick, below: (
                    (tick % unit > half) | ((tick % unit == half) & (below % pl.lit(2, ticks.dtype) != 0))
                ),
                ticks,
                down,
            )
            ticks = down.cast(pl.Int64) + up.cast(pl.Int64)
        return self._only_within(ticks, EARLIEST_US, LATEST_US)

    # -- rows as a whole ----------------------------------------------------------------------------------------------

    def _settled(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
        """Defaults, the rules that look at several columns, and which rows are odd by them."""
        reading = self._reading
        type_ = pl.col("type").fill_null(reading.type_ or DEFAULT_TYPE)
        if reading.type_ in TYPE_ALIASES or any((frame["type"] == alias).any() for alias in TYPE_ALIASES):
            type_ = type_.replace(TYPE_ALIASES)
        frame = frame.with_columns(
            status=pl.col("status").fill_null("ok"),
            type=type_,
            no_tenant=pl.col("tenant").is_null(),
            no_type=pl.col("type").is_null(),
        )
        if reading.type_rules:
            frame = frame.with_columns(type_expression(reading.type_rules))
        served, embed = pl.col("status") == "ok", pl.col("type") == "embed"
        prompt, output = pl.col("prompt_tokens"), pl.col("output_tokens")
        arrived, scheduled = pl.col("arrived_at"), pl.col("scheduled_at")
        first, finished = pl.col("first_token_at"), pl.col("finished_at")
        if (frame["status"] == "ok").all():
            odd = prompt.is_null() | (prompt == 0) | (output.is_null() & ~embed)
        else:
            odd = (served & (prompt.is_null() | (prompt == 0) | (output.is_null() & ~embed))) | ~pl.col("status").is_in(
                STATUSES
            )
        odd = odd | arrived.is_null()
        # No first token that is written as the arrival; an answer to an embed request whose first token is not its end.
        odd = odd | (~embed & (first == arrived) & (output.fill_null(0) == 0)).fill_null(value=False)
        odd = odd | (embed & served & first.is_not_null() & first.ne_missing(finished))
        for late, early in ((scheduled, arrived), (first, arrived), (finished, arrived), (finished, first)):
            odd = odd | (late < early).fill_null(value=False)
        refused = pl.col("status") == "rejected"
        frame = frame.with_columns(
            odd=odd,
            prompt_tokens=pl.when(~served & (prompt == 0)).then(None).otherwise(prompt),
            output_tokens=pl.when(embed | (refused & output.is_null())).then(pl.lit(0, pl.UInt32)).otherwise(output),
            first_token_at=pl.when(embed & served & first.is_null()).then(finished).otherwise(first),
        )
        strange = frame["odd"]
        for series in self._odd:
            strange = strange | series
        return frame, strange

    def _finished(self, frame: pl.DataFrame, odd: pl.Series) -> Judged:
        self._check_sizes(odd)
        positions = odd.arg_true().to_list()
        right = frame.filter(~odd) if positions else frame
        self._tally.naive_columns |= {column for column, counts in self._naive if (counts & ~odd).any()}
        self._tally.defaulted.update({name: right[f"no_{name}"].sum() for name in ("tenant", "type")})
        reading = self._reading
        own_id, unnamed = pl.format(OWN_ID, pl.lit(self._source), pl.col("seq")), right["request_id"].null_count()
        named = pl.coalesce("request_id", own_id) if unnamed else pl.col("request_id")
        rows = right.select(
            own_id.alias("request_id") if unnamed == right.height else named,
            pl.col("tenant").fill_null(reading.tenant or DEFAULT_TENANT),
            "type",
            pl.col("model").fill_null(reading.model) if reading.model else "model",
            *(name for name in COLUMNS[4:-1] if name not in TIME_COLUMNS),
            *(pl.col(name).cast(SCHEMA[name]) for name in TIME_COLUMNS),
            source=pl.lit(self._source),
        )
        return Judged(rows.select(COLUMNS), positions, self._names_ids(odd))

    def _names_ids(self, odd: pl.Series) -> bool:
        """A row that is right says anything at all where its id is looked for, if only that it is unknown."""
        columns = (self._series(place.column) for place in self._columns.get("request_id", ()))
        return any((series.is_not_null() & ~odd).any() for series in columns if series is not None)

    def _check_sizes(self, odd: pl.Series) -> None:
        """Mixed magnitudes of Unix times are the file's fault: the strict path names the row."""
        found: dict[str, tuple[Number, Number]] = {}
        for column, sizes, digits in self._sizes:
            right = sizes.filter(~odd).drop_nulls()
            if not right.len():
                continue
            edges = pl.Series([right.min(), right.max()], dtype=right.dtype).to_list()
            low, high = (EXACT.scaleb(Decimal(size), -digits) for size in edges)
            before = found.get(column) or self._tally.magnitudes.get(column) or (low, high)
            found[column] = min(low, before[0]), max(high, before[1])
            if found[column][1] > found[column][0] * MAGNITUDES_APART:
                raise DeclinedError
        self._tally.magnitudes.update(found)


# -- columns ----------------------------------------------------------------------------------------------------------


def _known_text(series: pl.Series) -> pl.Series:
    """Names; null where they stand for "unknown"."""
    dtype = series.dtype
    if dtype.is_integer():
        return series.cast(pl.String)
    if isinstance(dtype, pl.Categorical | pl.Enum):
        series = series.cast(pl.String)
    elif dtype != pl.String:
        raise DeclinedError
    unknown = (series == "") | (series == "-")
    return _null_where(series, unknown) if unknown.any() else series


def _numbers(series: pl.Series, digits_max: int) -> _Numbers:
    """Any column of numbers, without loss."""
    dtype = series.dtype
    if dtype == pl.Int64:
        return _Numbers(series, 0, None)
    if dtype.is_integer():
        values = series.cast(pl.Int64, strict=False)
        return _Numbers(values, 0, values.is_null() & series.is_not_null())
    if isinstance(dtype, pl.Decimal):
        if dtype.scale > digits_max:
            raise DeclinedError
        values = series.to_physical()
        narrow = values.cast(pl.Int64, strict=False)
        fits = narrow.null_count() == values.null_count()
        return _Numbers(narrow if fits else values, dtype.scale, None)
    if dtype.is_float():
        return _float_numbers(series.cast(pl.Float64), digits_max)
    if dtype == pl.String:
        return _text_numbers(series, digits_max)
    if isinstance(dtype, pl.Categorical | pl.Enum):
        return _text_numbers(series.cast(pl.String), digits_max)
    raise DeclinedError


def _float_numbers(series: pl.Series, digits_max: int) -> _Numbers:
    """Doubles are the shortest decimals that name them, as Python writes them."""
    if not series.is_finite().all(ignore_nulls=True):
        usable = series.is_finite()
        rest = _float_numbers(_null_where(series, ~usable), digits_max)
        odd = (~usable).fill_null(value=False)
        return _Numbers(rest.values, rest.digits, odd if rest.odd is None else odd | rest.odd)
    if ((series.floor() == series) & (series.abs() <= _EXACT_FLOAT_MAX)).all(ignore_nulls=True):
        return _Numbers(series.cast(pl.Int64), 0, None)
    return _text_numbers(series.cast(pl.String), digits_max)


def _text_numbers(series: pl.Series, digits_max: int) -> _Numbers:
    """Numbers in text: plain ones; signs of nothing, exponents and long ones are odd."""
    unknown = (series == "") | (series == "-")
    if unknown.any():
        series = _null_where(series, unknown)
    whole = series.str.contains(rf"^-?[0-9]{{1,{TEXT_DIGITS}}}$")
    if whole.all(ignore_nulls=True):
        return _Numbers(series.cast(pl.Int64), 0, None)
    plain = series.str.contains(rf"^-?[0-9]{{1,{TEXT_DIGITS}}}(\.[0-9]{{0,{digits_max}}})?$")
    odd = (~plain).fill_null(value=False)
    array = _null_where(series, odd).to_arrow()
    try:
        decimals = pl.Series(array.cast(pa.large_string()).cast(pa.decimal128(38, digits_max)))
    except pa.ArrowException:
        raise DeclinedError from None
    values = decimals.to_physical()
    return _Numbers(values, digits_max, odd if odd.any() else None)


def _instants(series: pl.Series) -> _Instants:
    """Typed instants, or ISO 8601 text."""
    dtype = series.dtype
    if isinstance(dtype, pl.Datetime):
        digits = UNIT_DIGITS[dtype.time_unit]
        return _Instants(series.to_physical(), digits, dtype.time_zone is not None, None)
    if dtype != pl.String:
        raise DeclinedError
    unknown = (series == "") | (series == "-")
    # Arrow also takes a day alone or an hour alone for an instant; the rules want hours and minutes.
    shaped = series.str.contains(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}")
    odd = (~shaped & ~unknown).fill_null(value=False)
    array = _null_where(series, odd | unknown).to_arrow().cast(pa.large_string())
    for zone in ("UTC", None):
        for unit, digits in (("us", 6), ("ns", 9)):
            try:
                ticks = array.cast(pa.timestamp(unit, zone)).cast(pa.int64())
            except pa.ArrowException:
                continue
            return _Instants(pl.Series(ticks), digits, zone is not None, odd)
    raise DeclinedError


def _patterned(series: pl.Series, pattern: str) -> _Instants:
    """Text in the form of ``pattern``; whether that has a zone is the same for all of it."""
    if series.dtype != pl.String:
        raise DeclinedError
    ticks: list[int | None] = []
    odd: list[bool] = []
    for text in series:
        tick: int | None = None
        if known(text):
            with suppress(UnparsableError):
                tick = whole(EXACT.multiply(parse_pattern(text, pattern, UTC)[0], 1000))
        ticks.append(tick)
        odd.append(tick is None and known(text))
    return _Instants(pl.Series(ticks, dtype=pl.Int64), 9, "%z" in pattern, pl.Series(odd, dtype=pl.Boolean))


def _moved(ticks: pl.Series, lane: int, zone: tzinfo) -> pl.Series:
    """Ticks of a wall clock in ``zone`` as ticks since the epoch; offsets are looked up a minute at a time."""
    minute, second = (pl.lit(length * 10**lane, ticks.dtype) for length in (60, 1))
    minutes = _map(lambda tick: (tick // minute).cast(pl.Int64), ticks)
    each = minutes.unique().drop_nulls()
    try:
        moved = [_moved_s(item * 60, zone) - item * 60 for item in each]
    except UnparsableError:
        raise DeclinedError from None
    shifts = minutes.replace_strict(each, pl.Series(moved, dtype=pl.Int64), default=None).cast(ticks.dtype)
    return _map(lambda tick, shift: tick + shift * second, ticks, shifts)


def _moved_s(wall_s: int, zone: tzinfo) -> int:
    return int(parse_ticks(Ticks(wall_s, "s", zoned=False), zone)[0]) // 1_000_000


def _all(rows: int, *, value: bool) -> pl.Series:
    return pl.Series([value], dtype=pl.Boolean).new_from_index(0, rows)


def _range(values: pl.Series) -> tuple[int, int] | None:
    """The least and the largest of whole numbers, None where there is none."""
    lowest, highest = values.min(), values.max()
    return (lowest, highest) if isinstance(lowest, int) and isinstance(highest, int) else None


def _lit(value: int, like: Any) -> Any:
    """``value`` beside a series or an expression of 64 or 128 bits, in its type."""
    return value if isinstance(like, pl.Series) else pl.lit(value, pl.Int128)


def _each(operation: Callable[..., Any], *series: pl.Series) -> pl.Series:
    """``operation`` of series of one length: at once where these have 64 bits, else as ``_map``."""
    if all(item.dtype == pl.Int64 for item in series):
        result: pl.Series = operation(*series)
        return result
    return _map(operation, *series)


def _map(expression: Callable[..., pl.Expr], *series: pl.Series) -> pl.Series:
    """``expression`` of series of one length; unlike operators of series it knows 128-bit integers."""
    frame = pl.DataFrame([item.alias(str(index)) for index, item in enumerate(series)])
    return frame.select(expression(*map(pl.col, frame.columns)).alias("0"))["0"]


def _null_where(series: pl.Series, where: pl.Series) -> pl.Series:
    if not where.any():
        return series
    return _map(lambda value, null: pl.when(null.fill_null(value=False)).then(None).otherwise(value), series, where)


def _first_of(left: pl.Series, right: pl.Series) -> pl.Series:
    return _map(lambda one, other: pl.coalesce(one, other), left, right)
