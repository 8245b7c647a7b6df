"""Blocks of a source as tables of declared types, for ``vector``. Whatever is not plainly so is declined.

JSON lines and CSV go through Arrow's readers, which keep numbers as they are written until they are converted; a block
is declined unless every line of it is exactly one row of the table.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from threading import Lock
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from fairreplay.machine_code import compiled, is_at_hand
from fairreplay.trace.arrow import handed_over
from fairreplay.trace.containers import LINE_BYTES_MAX, OVERLONG_SHOWN_BYTES, Overlong, json_reads
from fairreplay.trace.fields import (
    After,
    Columns,
    Epoch,
    Field,
    Ids,
    Integer,
    Real,
    Relative,
    Sample,
    Text,
    Tokens,
    Wall,
)
from fairreplay.trace.flat_lines import READ_LINES, FlatKey, FlatLines, Kind
from fairreplay.trace.vector import FINEST, UNIT_DIGITS, DeclinedError

BLOCK_BYTES: Final = 1 << 24
SMALL_BYTES: Final = 1 << 14
"""A declined piece of a block is halved down to about this size, and then read line by line."""
_PARSED_BYTES: Final = 1 << 22
_OPENINGS_MAX: Final = 64
"""Arrow's reader recurses into nested values; a line of more brackets is for the strict path."""
_BOM: Final = b"\xef\xbb\xbf"

LOADED_FROM_BYTES: Final = 1 << 26
"""Of a log as long as this, compiled code saves more time than it takes to load."""
COMPILED_FROM_BYTES: Final = 1 << 28
"""And of one as long as this, than it takes to compile, which is done once."""
_MISSES_MAX: Final = 3
_PLAIN: Final = {pa.int64(): pl.Int64(), pa.string(): pl.String(), pa.list_(pa.uint64()): pl.List(pl.UInt64)}
_OTHERS: Final = {
    pa.int64(): pl.Int64(),
    pa.float64(): pl.Float64(),
    pa.bool_(): pl.Boolean(),
    pa.string(): pl.String(),
    pa.timestamp("s"): pl.String(),
    pa.timestamp("ns"): pl.String(),
}
"""How Arrow takes a key that is not declared -> how Polars has to."""
_CENSUS_BYTES: Final = 1 << 18
"""So many at a time are looked through: what the processor keeps at hand."""

_Types = tuple[pa.DataType, ...]
"""How a column may be declared, from the type that its first values suggest to the widest."""


def whole_lines(stream: BinaryIO, start: bytes = b"") -> Iterator[bytes | Overlong]:
    """The stream (after ``start``) in blocks of whole lines; of a line beyond the cap the beginning only."""
    while content := start + stream.read(_to_a_line_end(stream, BLOCK_BYTES - len(start))):
        start = b""
        begun = len(content) - content.rfind(b"\n") - 1
        more = stream.readline(LINE_BYTES_MAX + 2) if begun else b""
        if begun + len(more.removesuffix(b"\n")) <= LINE_BYTES_MAX:
            yield content + more if more else content
            continue
        if begun < len(content):
            yield content[:-begun]
        yield Overlong((content[-begun:][:OVERLONG_SHOWN_BYTES] + more)[:OVERLONG_SHOWN_BYTES])
        while more and not more.endswith(b"\n"):
            more = stream.readline(1 << 16)


def _to_a_line_end(stream: BinaryIO, size: int) -> int:
    """``size`` and what follows of its last line, where that can be seen: so a block need not be put together."""
    if not stream.seekable():
        return size
    here = stream.tell()
    stream.seek(size, io.SEEK_CUR)
    more = len(stream.readline(LINE_BYTES_MAX))
    stream.seek(here)
    return size + more if more < LINE_BYTES_MAX else size


def halves(block: bytes) -> tuple[bytes, bytes] | None:
    """A block cut at the end of a line near its middle; None where it is small or one line."""
    if len(block) <= SMALL_BYTES:
        return None
    cut = block.find(b"\n", len(block) // 2) + 1
    if not 0 < cut < len(block):
        cut = block.rfind(b"\n", 0, len(block) // 2) + 1
    return (block[:cut], block[cut:]) if 0 < cut < len(block) else None


# -- JSON lines -------------------------------------------------------------------------------------------------------


class JsonTables:
    """JSON lines as tables: the declared columns by name and type, and whatever other keys there are."""

    def __init__(self, columns: Columns, sample: Sample, log_bytes: int = 0, *, odd_as_nulls: bool = False) -> None:
        """``log_bytes``: at least so many will come. ``odd_as_nulls``: a line may be a row of nulls in the table where
        it is exactly one record, but not plainly one of the declared columns.

        Raises DeclinedError where one key would have to be of two types.
        """
        self._types = _json_types(columns, sample)
        self._seen = {name for name in self._types if name in sample.columns}
        """Declared columns that the log has so far; each costs time in every row."""
        self._order = {name: place for place, name in enumerate(sample.columns)}
        self._others: dict[str, pl.DataType] = {}
        """Keys that are not declared and hold single values."""
        self._wide = False
        self._misses = 0
        self._bytes = log_bytes
        self._odd_as_nulls = odd_as_nulls
        self._flat: tuple[dict[str, FlatKey], FlatLines] | None = None
        self._flat_misses = 0
        self._lock = Lock()

    def table(self, block: bytes) -> tuple[pl.DataFrame, set[str]]:
        """The declared columns, and the names of all others.

        Raises:
            DeclinedError: not exactly one object a line, or a value of another type.
        """
        with self._lock:
            frame = self._compiled(block)
        if frame is not None:
            return frame, set()
        census = _Census.of(block)
        with self._lock:
            frame = self._plain(block, census)
            return (frame, set()) if frame is not None else self._inferred(block, census.rows)

    def _compiled(self, block: bytes) -> pl.DataFrame | None:
        """By compiled code, if the log is long and all but a few lines are flat objects of the keys seen so far."""
        self._bytes += len(block)
        flat = self._flat_lines() if self._flat_misses <= _MISSES_MAX else None
        if flat is None or block.startswith(_BOM) or not _is_text(block):
            return None
        self._flat_misses += 1
        found = flat.table(block, LINE_BYTES_MAX)
        if found is None:
            return None
        frame, odd = found
        if odd and not (self._odd_as_nulls and all(len(list(json_reads(line, None))) == 1 for line in odd)):
            return None
        self._flat_misses = 0
        return frame.select(sorted(self._seen))

    def _flat_lines(self) -> FlatLines | None:
        if self._bytes < LOADED_FROM_BYTES or (self._bytes < COMPILED_FROM_BYTES and not is_at_hand(READ_LINES)):
            return None
        names = sorted({*self._seen, *self._others}, key=lambda name: (self._order.get(name, len(self._order)), name))
        keys = {name: _flat_key(self._types[name][0]) if name in self._seen else FlatKey(Kind.OTHER) for name in names}
        if self._flat is None or self._flat[0] != keys:
            read = compiled(READ_LINES) if FlatLines.takes(keys) else None
            if read is None:
                return None
            self._flat = keys, FlatLines(keys, read)
        return self._flat[1]

    def _inferred(self, block: bytes, rows: int) -> tuple[pl.DataFrame, set[str]]:
        """By Arrow, which reads numbers of any length as they are written and finds the other keys."""
        table = self._parsed(block)
        unseen = self._types.keys() & set(table.column_names) - self._seen
        if unseen:
            self._seen |= unseen
            table = self._parsed(block)
        if table.num_rows != rows or "data" in table.column_names:
            raise DeclinedError
        others = {name: table.schema.field(name).type for name in table.column_names if name not in self._seen}
        for name, kind in others.items():
            if kind in _OTHERS and name not in self._others:
                self._others[name] = _OTHERS[kind]
                self._misses = 0
        return frame_of(table.select(sorted(self._seen))), set(others)

    def _plain(self, block: bytes, census: _Census) -> pl.DataFrame | None:
        """By Polars, which is faster and as strict about whole numbers, if nothing is there that it passes over.

        It takes numbers and nested values for text, the first of two equal keys, half a surrogate pair for NUL, and
        says nothing of unknown keys. Without escapes and nulls, all is well if each bracket, colon and quote outside
        of the values belongs to a known key that has the value that was read.
        """
        kinds = {name: _PLAIN.get(self._types[name][0]) for name in sorted(self._seen)}
        if self._wide or self._misses > _MISSES_MAX or None in kinds.values() or b"\\" in block:
            return None
        self._misses += 1
        kinds |= {name: kind for name, kind in self._others.items() if name not in kinds}
        try:
            frame = pl.read_ndjson(block, schema=kinds)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return None
        if frame.height != census.rows or not _all_accounted(census, frame):
            return None
        self._misses = 0
        return frame.select(sorted(self._seen))

    def _parsed(self, block: bytes) -> Any:
        """The block with the first of the declared types, or else with the widest; from then on with these."""
        for wide in (False, True)[int(self._wide) :]:
            try:
                table = self._parsed_as(block, wide=wide)
            except (pa.ArrowException, UnicodeDecodeError):
                continue
            self._wide = wide
            return table
        raise DeclinedError

    def _parsed_as(self, block: bytes, *, wide: bool) -> Any:
        schema = pa.schema(
            [(name, types[-1 if wide else 0]) for name, types in self._types.items() if name in self._seen]
        )
        return pajson.read_json(
            pa.BufferReader(block),
            pajson.ReadOptions(block_size=_PARSED_BYTES),
            pajson.ParseOptions(explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior="infer"),
        )


def _flat_key(kind: pa.DataType) -> FlatKey:
    """For the types that ``_json_type`` gives."""
    if pa.types.is_decimal128(kind):
        return FlatKey(Kind.WHOLE, kind.scale)
    kinds = {pa.int64(): Kind.WHOLE, pa.string(): Kind.NAME, pa.float64(): Kind.REAL, pa.list_(pa.uint64()): Kind.IDS}
    return FlatKey(kinds[kind])


def _all_accounted(census: _Census, frame: pl.DataFrame) -> bool:
    """Nothing in the lines but the keys and values of ``frame``; a null is a colon too many."""
    known = {series.name: frame.height - series.null_count() for series in frame}
    texts = [series for series in frame if series.dtype == pl.String]
    lists = sum(known[series.name] for series in frame if series.dtype == pl.List)
    values = sum(known.values())
    quotes = 2 * (values + sum(known[series.name] for series in texts))
    if census.openings != census.rows or census.brackets != lists or census.quotes != quotes:
        return False
    return census.colons in (values, values + sum(_within(series, ":") for series in texts))


def _within(series: pl.Series, part: str) -> int:
    return int(series.str.count_matches(part, literal=True).sum())


def _json_types(columns: Columns, sample: Sample) -> dict[str, _Types]:
    wanted: dict[str, _Types] = {}
    for places in columns.values():
        for place in places:
            names = [place.column, *([place.minus] if isinstance(place, After) and place.minus else [])]
            for name in names:
                values = [record[name] for record in sample.records if record.get(name) is not None]
                types = _json_type(place, values)
                if wanted.setdefault(name, types) != types:
                    raise DeclinedError
    return wanted


def _json_type(place: Field, values: Sequence[object]) -> _Types:
    match place:
        case Wall():
            return (pa.string(),)
        case Text():
            numbers = bool(values) and all(type(value) is int for value in values)
            return (pa.int64(),) if numbers else (pa.string(),)
        case Real():
            return (pa.float64(),)
        case Ids():
            return (pa.list_(pa.uint64()),)
        case Tokens() | Integer():
            below = 0
        case Epoch() | Relative() | After():
            below = UNIT_DIGITS[place.unit]
    widest = _decimal(FINEST - below)
    if all(type(value) is int for value in values):
        return (pa.int64(), widest)
    if below < 9 and all(_digits(value) <= 9 - below for value in values):
        return (_decimal(9 - below), widest)
    return (widest,)


def _digits(value: object) -> int:
    """Digits after the point."""
    return max(0, -int(value.as_tuple().exponent)) if isinstance(value, Decimal) and value.is_finite() else 0


def _decimal(scale: int) -> pa.DataType:
    """Arrow checks the digits that are written, not those after scaling: both together fit into 128 bits."""
    return pa.decimal128(38 - scale, scale)


class _Census(NamedTuple):
    """What stands in a block of JSON lines, each of which is one whole object as far as its ends tell."""

    rows: int
    colons: int
    quotes: int
    openings: int
    brackets: int
    """``{`` and ``[``."""

    @staticmethod
    def of(block: bytes) -> _Census:
        """
        Raises:
            DeclinedError: a line is too long, deeply nested, no text, or not one object.
        """
        if block.startswith(_BOM) or not _is_text(block):
            raise DeclinedError
        content = np.frombuffer(block, np.uint8)
        ends, (colons, quotes, openings, brackets) = _looked_through(content)
        if content[-1] != ord("\n"):
            ends = np.append(ends, content.size)
        starts = np.concatenate([np.zeros(1, ends.dtype), ends[:-1] + 1])
        if int((ends - starts).max()) >= LINE_BYTES_MAX or not (content[starts] == ord("{")).all():
            raise DeclinedError
        last = content[ends - 1]
        if (last == ord("\r")).any():
            last = np.where(last == ord("\r"), content[np.maximum(ends - 2, 0)], last)
        if not (last == ord("}")).all():
            raise DeclinedError
        if openings + brackets > starts.size:
            _check_depth(content, starts)
        return _Census(int(starts.size), colons, quotes, openings, brackets)


def _looked_through(content: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Where the lines end, and how many colons, quotes, ``{`` and ``[`` there are."""
    ends, counts = [], [0, 0, 0, 0]
    equal = np.empty(_CENSUS_BYTES, np.bool_)
    for start in range(0, content.size, _CENSUS_BYTES):
        piece = content[start : start + _CENSUS_BYTES]
        found = equal[: piece.size]
        ends.append(np.flatnonzero(np.equal(piece, ord("\n"), out=found)) + start)
        for index, byte in enumerate(b':"{['):
            counts[index] += int(np.count_nonzero(np.equal(piece, byte, out=found)))
    return np.concatenate(ends), counts


def _check_depth(content: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> None:
    """A line of few brackets is not deep, and most lines have few."""
    opening = (content | 0x20) == ord("{")  # and "["
    many = np.flatnonzero(np.add.reduceat(opening, starts, dtype=np.int32) > _OPENINGS_MAX)
    if many.size:
        raise DeclinedError


def _is_text(block: bytes) -> bool:
    if block.isascii():
        return True
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


# -- CSV --------------------------------------------------------------------------------------------------------------


class CsvTables:
    """CSV lines without quotes as tables of text."""

    def __init__(self, columns: Columns, header: Sequence[str], delimiter: str) -> None:
        self._header = list(header)
        self._used = used_columns(columns, header)
        if len(delimiter) != 1 or not delimiter.isascii() or len(set(header)) < len(self._header):
            raise DeclinedError
        self._parsing = pacsv.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=True)

    def table(self, block: bytes) -> tuple[pl.DataFrame, set[str]]:
        """As ``JsonTables.table``; the header names all columns, so none are others."""
        if b'"' in block or b"\0" in block or block.startswith(_BOM) or not _is_text(block):
            raise DeclinedError
        if block.count(b"\r") != block.count(b"\r\n"):
            raise DeclinedError
        rows = _csv_rows(block)
        try:
            table = pacsv.read_csv(
                pa.BufferReader(block),
                pacsv.ReadOptions(column_names=self._header, block_size=_PARSED_BYTES),
                self._parsing,
                pacsv.ConvertOptions(
                    column_types=dict.fromkeys(self._used, pa.large_string()),
                    include_columns=self._used,
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowException:
            raise DeclinedError from None
        if table.num_rows != rows:
            raise DeclinedError
        return frame_of(table), set()


def _csv_rows(block: bytes) -> int:
    """The number of lines that are not blank; declined where one is too long or of blanks only."""
    content = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(content == ord("\n"))
    if content[-1] != ord("\n"):
        ends = np.append(ends, content.size)
    lengths = np.diff(ends, prepend=-1) - 1
    if int(lengths.max()) >= LINE_BYTES_MAX:
        raise DeclinedError
    short = np.flatnonzero(lengths <= 1)
    blank = sum(
        not block[end - length : end].strip(b"\r") for end, length in zip(ends[short], lengths[short], strict=True)
    )
    return int(ends.size) - blank


# -- tables -----------------------------------------------------------------------------------------------------------


def frame_of(table: Any) -> pl.DataFrame:
    """An Arrow table or batch as a frame; instants in UTC or without zone, dictionaries as what they stand for.

    Raises:
        DeclinedError: a type that Polars does not have.
    """
    try:
        return pl.DataFrame({name: _series(table.column(index)) for index, name in enumerate(table.schema.names)})
    except (pa.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException, TypeError, ValueError):
        raise DeclinedError from None


def _series(column: Any) -> pl.Series:
    if isinstance(column, pa.DictionaryArray) and len(column.dictionary):
        # References to the dictionary's texts, however long these are.
        return _series(column.dictionary).gather(pl.Series(column.indices))
    return handed_over(pa.table([_array(column)], [""])).to_series()


def _array(column: Any) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _array(column.cast(kind.value_type))
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("ms" if kind.unit == "s" else kind.unit, "UTC" if kind.tz else None))
    if pa.types.is_decimal128(kind) and kind.precision < 38:
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return pa.chunked_array([_widest(chunk) for chunk in chunks], pa.decimal128(38, kind.scale))
    if pa.types.is_float16(kind) or pa.types.is_duration(kind) or pa.types.is_binary(kind):
        raise DeclinedError
    return column


def _widest(decimals: Any) -> Any:
    """The same 128 bits, with all digits that these hold declared."""
    kind = pa.decimal128(38, decimals.type.scale)
    return pa.Array.from_buffers(kind, len(decimals), decimals.buffers(), decimals.null_count, decimals.offset)


def used_columns(columns: Columns, there: Iterable[str]) -> list[str]:
    """Columns of the source that are looked at, of those that are there."""
    places = [place for found in columns.values() for place in found]
    used = {place.column for place in places} | {place.minus for place in places if isinstance(place, After)}
    return [name for name in there if name in used]
