"""A source as pieces. Each is a table for ``vector``, or two halves, or records for the strict path."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

import polars as pl

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
    def __init__(self, batch: Any, whole: _Whole, index: int, start: int) -> None:
        self._batch = batch
        self._whole = whole
        self._index = index
        self._start = start

    def table(self) -> tuple[pl.DataFrame, set[str]]:
        return frame_of(self._batch), set()

    def halves(self) -> Sequence[Piece]:
        rows = self._batch.num_rows
        if rows <= _SMALL_ROWS:
            return ()
        half = rows // 2
        return (
            _ParquetRows(self._batch.slice(0, half), self._whole, self._index, self._start),
            _ParquetRows(self._batch.slice(half), self._whole, self._index, self._start + half),
        )

    def reads(self, positions: Sequence[int] | None = None) -> Iterator[Read]:
        batch = self._whole.batch(self._index).slice(self._start, self._batch.num_rows)
        if positions is None:
            for start in range(0, batch.num_rows, _SMALL_ROWS):
                yield from parquet_reads(batch.slice(start, _SMALL_ROWS))
            return
        for position in positions:
            yield from parquet_reads(batch.slice(position, 1))


def _parquet_pieces(path: Path, used: list[str]) -> Iterator[Piece]:
    with parquet_file(path) as file:
        yield from itertools.chain.from_iterable(
            _group_pieces(path, file, group, used) for group in range(file.num_row_groups)
        )


def _group_pieces(path: Path, file: Any, group: int, used: list[str]) -> Iterator[Piece]:
    metadata = file.metadata.row_group(group)
    if not metadata.num_rows:
        return
    row_bytes = max(1, metadata.total_byte_size // metadata.num_rows)
    rows = max(1, min(PARQUET_ROWS, PARQUET_BYTES // row_bytes))
    whole = _Whole(path, group, rows)
    for index, batch in enumerate(file.iter_batches(batch_size=rows, row_groups=[group], columns=used)):
        yield _ParquetRows(batch, whole, index, 0)
