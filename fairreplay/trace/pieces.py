"""A source as pieces. Each is a table for ``vector``, or two halves, or records for the strict path."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

import polars as pl
import pyarrow as pa

from fairreplay.trace.blocks import CsvTables, JsonTables, frame_of, halves, used_columns, whole_lines
from fairreplay.trace.containers import (
    LINE_BYTES_MAX,
    Content,
    Overlong,
    Read,
    csv_header,
    csv_reads,
    json_reads,
    lines_of_stream,
    opened,
    parquet_file,
    parquet_reads,
    unreadable,
)
from fairreplay.trace.fields import Columns, Format
from fairreplay.trace.vector import DeclinedError

PARQUET_ROWS: Final = 1 << 17
PARQUET_BYTES: Final = 1 << 26
"""A batch of Parquet is at most so many rows, and about so many bytes."""
_SMALL_ROWS: Final = 1 << 12
_GROUP_ROWS_MAX: Final = 1 << 20
"""A row group of up to so many rows is read at once; it is still taken a batch at a time."""
_PLAIN: Final[dict[pa.DataType, pl.DataType]] = {
    pa.int32(): pl.Int32(),
    pa.int64(): pl.Int64(),
    pa.uint32(): pl.UInt32(),
    pa.uint64(): pl.UInt64(),
    pa.float32(): pl.Float32(),
    pa.float64(): pl.Float64(),
    pa.string(): pl.String(),
    pa.large_string(): pl.String(),
    pa.string_view(): pl.String(),
    pa.timestamp("ms", "UTC"): pl.Datetime("ms", "UTC"),
    pa.timestamp("us", "UTC"): pl.Datetime("us", "UTC"),
    pa.timestamp("ns", "UTC"): pl.Datetime("ns", "UTC"),
    pa.timestamp("ms"): pl.Datetime("ms"),
    pa.timestamp("us"): pl.Datetime("us"),
}
"""Without instants of nanoseconds that have no zone: an old type of Parquet's (INT96) is one to Arrow, too."""


class Piece(Protocol):
    """Consecutive records of a source."""

    def table(self) -> tuple[pl.DataFrame, set[str]]:
        """The declared columns, one row a record, and the names of the others; or DeclinedError."""

    def halves(self) -> Sequence[Piece]:
        """The same records in two pieces; nothing where that is not worth it."""

    def reads(self, positions: Sequence[int] | None = None) -> Iterator[Read]:
        """The records, or those at ``positions`` (ascending) of a piece that has a table."""


def pieces(
    path: Path, content: Content, log_format: Format, columns: Columns, *, odd_as_nulls: bool = False
) -> Iterator[Piece]:
    """All records of the source, in order; ``odd_as_nulls`` as of ``JsonTables``.

    Raises:
        DeclinedError: at once, where no piece of this source can have a table.
    """
    container = content.sample.container
    if container == "parquet":
        used = used_columns(columns, content.sample.columns)
        if not used or len(set(content.sample.columns)) < len(content.sample.columns):
            raise DeclinedError
        return _parquet_pieces(path, used)
    if container == "jsonl":
        log_bytes = path.stat().st_size
        tables = JsonTables(columns, content.sample, log_bytes, odd_as_nulls=odd_as_nulls)
        return _json_pieces(path, log_format, tables)
    if container == "csv":
        header = list(content.sample.columns)
        return _csv_pieces(path, log_format, CsvTables(columns, header, log_format.delimiter), header)
    raise DeclinedError


class _Tabled:
    """A piece whose table is made already, or declined."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._found: tuple[pl.DataFrame, set[str]] | None = None
        try:
            self._found = piece.table()
        except DeclinedError:
            self.declined = True
        else:
            self.declined = False

    def table(self) -> tuple[pl.DataFrame, set[str]]:
        found, self._found = self._found, None
        if found is None:
            raise DeclinedError
        return found

    def halves(self) -> Sequence[Piece]:
        return self._piece.halves()

    def reads(self, positions: Sequence[int] | None = None) -> Iterator[Read]:
        return self._piece.reads(positions)


def tabled(found: Iterator[Piece]) -> Iterator[Piece]:
    """The same pieces, the next one's table made by another thread while one is worked on.

    A piece that is declined may have to read on in the source, so then nothing is read before it is done with.
    """

    def following() -> _Tabled | None:
        piece = next(found, None)
        return None if piece is None else _Tabled(piece)

    with ThreadPoolExecutor(1, "tables") as thread:
        piece = following()
        while piece is not None:
            if piece.declined:
                yield piece
                piece = following()
                continue
            ahead = thread.submit(following)
            yield piece
            piece = ahead.result()


# -- lines ------------------------------------------------------------------------------------------------------------


class _Unreadable:
    """The beginning of a line beyond the cap."""

    def __init__(self, line: Overlong) -> None:
        self._line = line

    def table(self) -> tuple[pl.DataFrame, set[str]]:
        raise DeclinedError

    def halves(self) -> Sequence[Piece]:
        return ()

    def reads(self, positions: Sequence[int] | None = None) -> Iterator[Read]:
        yield unreadable(self._line)


class _JsonLines:
    def __init__(self, block: bytes, log_format: Format, tables: JsonTables) -> None:
        self._block = block
        self._format = log_format
        self._tables = tables

    def table(self) -> tuple[pl.DataFrame, set[str]]:
        return self._tables.table(self._block)

    def halves(self) -> Sequence[Piece]:
        return [_JsonLines(half, self._format, self._tables) for half in halves(self._block) or ()]

    def reads(self, positions: Sequence[int] | None = None) -> Iterator[Read]:
        for line in _chosen(_lines(self._block), positions):
            yield from json_reads(line, self._format)


class _CsvLines:
    """``rest``: where the lines go on if the piece ends inside a quote; then it cannot be halved."""

    def __init__(
        self, block: bytes, header: list[str], delimiter: str, tables: CsvTables, rest: Iterator[bytes | Overlong]
    ) -> None:
        self._block = block
        self._header = header
        self._delimiter = delimiter
        self._tables = tables
        self._rest = rest

    def table(self) -> tuple[pl.DataFrame, set[str]]:
        return self._tables.table(self._block)

    def halves(self) -> Sequence[Piece]:
        if b'"' in self._block and any(line.count(b'"') % 2 for line in self._block.split(b"\n")):
            return ()
        return [
            _CsvLines(half, self._header, self._delimiter, self._tables, self._rest)
            for half in halves(self._block) or ()
        ]

    def reads(self, positions: Sequence[int] | None = None) -> Iterator[Read]:
        lines = _chosen(_lines(self._block), positions)
        return csv_reads(lines, self._header, self._delimiter, self._more)

    def _more(self) -> Iterator[bytes | Overlong]:
        block = next(self._rest, None)
        if block is None:
            return iter(())
        return iter((block,)) if isinstance(block, Overlong) else _lines(block)


def _lines(block: bytes) -> Iterator[bytes | Overlong]:
    return lines_of_stream(io.BytesIO(block), LINE_BYTES_MAX, LINE_BYTES_MAX)


def _chosen(lines: Iterator[bytes | Overlong], positions: Sequence[int] | None) -> Iterator[bytes | Overlong]:
    if positions is None:
        return lines
    wanted = set(positions)
    return (line for position, line in enumerate(lines) if position in wanted)


def _json_pieces(path: Path, log_format: Format, tables: JsonTables) -> Iterator[Piece]:
    with opened(path) as stream:
        for block in whole_lines(stream):
            yield _Unreadable(block) if isinstance(block, Overlong) else _JsonLines(block, log_format, tables)


def _csv_pieces(path: Path, log_format: Format, tables: CsvTables, header: list[str]) -> Iterator[Piece]:
    with opened(path) as stream:
        first = next(lines_of_stream(stream, LINE_BYTES_MAX, LINE_BYTES_MAX))
        assert not isinstance(first, Overlong)
        csv_header(first, path, log_format)
        blocks = whole_lines(stream, b"" if log_format.header else first + b"\n")
        for block in blocks:
            if isinstance(block, Overlong):
                yield _Unreadable(block)
            else:
                yield _CsvLines(block, header, log_format.delimiter, tables, blocks)


# -- Parquet ----------------------------------------------------------------------------------------------------------


class _Whole:
    """All columns of a row group's batches, read only if a row is to be seen as a whole; forward only.

    It reads through a file of its own: the other is read ahead.
    """

    def __init__(self, path: Path, group: int, rows: int) -> None:
        self._batches = enumerate(_batches(path, group, rows))
        self._last: tuple[int, Any] = (-1, None)

    def batch(self, index: int) -> Any:
        while self._last[0] < index:
            self._last = next(self._batches)
        return self._last[1]


def _batches(path: Path, group: int, rows: int) -> Iterator[Any]:
    with parquet_file(path) as file:
        yield from file.iter_batches(batch_size=rows, row_groups=[group])


class _ParquetRows:
    """``content``: the columns that are looked at, as read by Polars or a batch of Arrow's."""

    def __init__(self, content: Any, whole: _Whole, index: int, start: int) -> None:
        self._content = content
        self._whole = whole
        self._index = index
        self._start = start

    def table(self) -> tuple[pl.DataFrame, set[str]]:
        return self._content if isinstance(self._content, pl.DataFrame) else frame_of(self._content), set()

    def halves(self) -> Sequence[Piece]:
        rows = len(self._content)
        if rows <= _SMALL_ROWS:
            return ()
        half = rows // 2
        return (
            _ParquetRows(self._content.slice(0, half), self._whole, self._index, self._start),
            _ParquetRows(self._content.slice(half), self._whole, self._index, self._start + half),
        )

    def reads(self, positions: Sequence[int] | None = None) -> Iterator[Read]:
        batch = self._whole.batch(self._index).slice(self._start, len(self._content))
        if positions is None:
            for start in range(0, batch.num_rows, _SMALL_ROWS):
                yield from parquet_reads(batch.slice(start, _SMALL_ROWS))
            return
        for position in positions:
            yield from parquet_reads(batch.slice(position, 1))


def _parquet_pieces(path: Path, used: list[str]) -> Iterator[Piece]:
    with parquet_file(path) as file:
        columns, start = _PolarsColumns(path, file, used), 0
        for group in range(file.num_row_groups):
            yield from _group_pieces(path, file, group, used, columns.rows(group, start))
            start += file.metadata.row_group(group).num_rows


def _group_pieces(path: Path, file: Any, group: int, used: list[str], frame: pl.DataFrame | None) -> Iterator[Piece]:
    """``frame``: the row group, where it is read already."""
    metadata = file.metadata.row_group(group)
    if not metadata.num_rows:
        return
    row_bytes = max(1, metadata.total_byte_size // metadata.num_rows)
    rows = max(1, min(PARQUET_ROWS, PARQUET_BYTES // row_bytes))
    whole = _Whole(path, group, rows)
    contents = (
        frame.iter_slices(rows)
        if frame is not None
        else file.iter_batches(batch_size=rows, row_groups=[group], columns=used)
    )
    for index, content in enumerate(contents):
        yield _ParquetRows(content, whole, index, 0)


class _PolarsColumns:
    """Row groups by Polars, which reads plain columns in half the time that Arrow takes to read and hand them over.

    Only what both take for the same: numbers, texts and instants, in groups that fit into memory.
    """

    def __init__(self, path: Path, file: Any, used: list[str]) -> None:
        self._metadata = file.metadata
        self._scan: pl.LazyFrame | None = None
        schema = file.metadata.schema.to_arrow_schema()
        kinds = {name: _PLAIN.get(schema.field(name).type) for name in used}
        self._schema = {name: kind for name, kind in kinds.items() if kind is not None}
        if len(self._schema) < len(used) or any(name.startswith("^") for name in used):  # "^...$" is a pattern
            return
        self._scan = pl.scan_parquet(path, glob=False, hive_partitioning=False).select(used)

    def rows(self, group: int, start: int) -> pl.DataFrame | None:
        """The group whose first row is the file's row ``start``; None where that is for Arrow."""
        metadata = self._metadata.row_group(group)
        rows = metadata.num_rows
        if self._scan is None or not rows or rows > _GROUP_ROWS_MAX or metadata.total_byte_size > PARQUET_BYTES:
            return None
        try:
            frame = self._scan.slice(start, rows).collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
            self._scan = None  # Arrow says what is wrong with the file
            return None
        return frame if frame.height == rows and frame.schema == self._schema else None
