"""Files as records: plain, ``.gz`` (several members), ``.zst``; JSON lines, JSON documents, CSV, Parquet.

A record is one object, one CSV line, one Parquet row. A line that cannot be read is a record too, without a value: it
becomes a reject and never hides its neighbours. Nothing but single JSON documents is held in memory as a whole.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fairreplay.errors import BadInputError
from fairreplay.trace.fields import Container, Format, Record, Sample
from fairreplay.trace.values import Ticks, Unit, UnparsableError, parse_number

LINE_BYTES_MAX: Final = 1 << 20
"""A longer line of a line format is one reject."""
DOCUMENT_BYTES_MAX: Final = 1 << 28
"""A longer JSON document is refused: it has to be in memory as a whole."""
PARQUET_ROWS_MAX: Final = 1 << 28
PARQUET_BATCH_ROWS: Final = 1 << 13
SAMPLE_RECORDS: Final = 50
OVERLONG_SHOWN_BYTES: Final = 200

_PAGE_KEYS: Final = frozenset(
    {"data", "meta", "total", "page", "page_size", "total_pages", "object", "has_more", "next_page", "cursor"}
)
_UNITS: Final[dict[str, Unit]] = {"s": "s", "ms": "ms", "us": "us", "ns": "ns"}
_COMPRESSIONS: Final = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"))
_PARQUET_MAGIC: Final = b"PAR1"


class Read(NamedTuple):
    """One record as read. ``value`` is None where it cannot be read; ``text`` is its line (None: not a line format)."""

    value: Record | None
    text: str | None


class Content(NamedTuple):
    """What a file turned out to be. ``documents`` holds the parsed JSON of a single document, else nothing."""

    sample: Sample
    documents: list[object]


# -- bytes ------------------------------------------------------------------------------------------------------------


class _Decompressed(io.RawIOBase):
    """A compressed file's content. Damage is an error that names the file and the byte."""

    def __init__(self, path: Path, compression: str) -> None:
        self._path = path
        self._compression = compression
        self._file = path.open("rb")
        self._stream: Any = pa.CompressedInputStream(pa.PythonFile(self._file, mode="r"), compression)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._stream.read(len(buffer))
        except (OSError, pa.ArrowException) as error:
            truncated = "runcated" in str(error)
            what = "ends in the middle of its data" if truncated else "damaged"
            raise BadInputError(
                f"{self._path}: {self._compression} {what} at byte {self._file.tell()}; get a complete copy of the file"
            ) from None
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The decoded bytes of ``path`` after a BOM, as a buffered stream."""
    with path.open("rb") as plain:
        magic = plain.read(4)
    compression = next((name for start, name in _COMPRESSIONS if magic.startswith(start)), None)
    raw: io.RawIOBase = _Decompressed(path, compression) if compression else io.FileIO(path, "rb")
    with io.BufferedReader(raw, 1 << 18) as stream:
        if stream.peek(3)[:3] == b"\xef\xbb\xbf":
            stream.read(3)
        yield stream


def is_parquet(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == _PARQUET_MAGIC


# -- JSON -------------------------------------------------------------------------------------------------------------


def _careful_number(text: str) -> Decimal:
    """A number too long for Python's own limits; an exponent beyond Decimal's is no number."""
    try:
        return Decimal(text)
    except ArithmeticError:
        return Decimal("NaN")


_DECODER: Final = json.JSONDecoder(parse_float=Decimal)
_CAREFUL_DECODER: Final = json.JSONDecoder(parse_float=_careful_number, parse_int=_careful_number)
"""Not orjson: it reads numbers as doubles, and 17 digits of a Unix time are more than a double keeps."""


def decode_json(text: str) -> object:
    """One JSON value, decimals exact.

    Raises:
        ValueError: not JSON, nested too deeply, or with half a surrogate pair (no text that can be stored).
    """
    try:
        value = _decode(_DECODER, text)
    except json.JSONDecodeError:
        raise
    except (ValueError, ArithmeticError):
        value = _decode(_CAREFUL_DECODER, text)
    if "\\ud" in text or "\\uD" in text:
        _check_surrogates(value)
    return value


def _decode(decoder: json.JSONDecoder, text: str) -> object:
    try:
        value: object = decoder.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _check_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _values_of(text: str) -> list[object]:
    """The JSON values that stand one after the other in ``text`` (concatenated JSON)."""
    values = []
    position = 0
    while position < len(text):
        try:
            value, position = _CAREFUL_DECODER.raw_decode(text, position)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        values.append(value)
        while position < len(text) and text[position] in " \t\r\n":
            position += 1
    if "\\ud" in text or "\\uD" in text:
        _check_surrogates(values)
    return values


def _rows_of(value: object, log_format: Format | None) -> Iterator[object]:
    """The records of one JSON document: the items of an array, the rows in ``data`` of an API page, or itself."""
    pages = log_format is None or log_format.pages
    if isinstance(value, list):
        yield from value
    elif pages and isinstance(value, dict) and isinstance(value.get("data"), list) and _is_page(value):
        yield from value["data"]
    else:
        yield value


def _is_page(value: Record) -> bool:
    """An object with rows under ``data``; an empty one only if nothing else in it is a record's."""
    return bool(value["data"]) or value.keys() <= _PAGE_KEYS


def sample_within(sample: Sample, log_format: Format) -> Sample:
    """``sample`` of the rows inside the documents of a format that explodes them."""
    if log_format.explode is None:
        return sample
    rows = (row for record in sample.records for row in _expanded(record, log_format))
    return _sample(sample.container, map(_document_read, itertools.islice(rows, SAMPLE_RECORDS)))


def _expanded(value: object, log_format: Format | None) -> Iterator[object]:
    for row in _rows_of(value, log_format):
        inner = log_format.explode(row) if log_format and log_format.explode and isinstance(row, dict) else None
        yield from [row] if inner is None else inner


# -- lines ------------------------------------------------------------------------------------------------------------


class Overlong(NamedTuple):
    """The beginning of a line beyond the cap."""

    head: bytes


def lines_of_stream(stream: BinaryIO, first_max: int, rest_max: int) -> Iterator[bytes | Overlong]:
    """Lines without their ends, blank ones left out; memory is bounded by the caps."""
    limit = first_max
    while line := stream.readline(limit + 1):
        if len(line) > limit and not line.endswith(b"\n"):
            while (more := stream.readline(1 << 16)) and not more.endswith(b"\n"):
                pass
            yield Overlong(line[:OVERLONG_SHOWN_BYTES])
            limit = rest_max
            continue
        line = line.strip(b"\r\n")
        if line.strip():
            yield line
            limit = rest_max


def unreadable(line: bytes | Overlong) -> Read:
    if isinstance(line, Overlong):
        return Read(None, line.head.decode(errors="replace") + f"… (a line of more than {LINE_BYTES_MAX} bytes)")
    return Read(None, line.decode(errors="replace"))


def json_reads(line: bytes | Overlong, log_format: Format | None) -> Iterator[Read]:
    """The records of one line: mostly one; several of concatenated JSON or of a line that holds a run."""
    if isinstance(line, Overlong):
        yield unreadable(line)
        return
    try:
        text = line.decode()
        try:
            values = [decode_json(text)]
        except json.JSONDecodeError as error:
            if not error.msg.startswith("Extra data"):
                raise
            values = _values_of(text)
    except ValueError:
        yield unreadable(line)
        return
    for value in values:
        if type(value) is dict and (log_format is None or log_format.explode is None) and "data" not in value:
            yield Read(value, text)
            continue
        rows = list(_expanded(value, log_format))
        for row in rows:
            yield _document_read(row) if len(rows) > 1 else Read(row if isinstance(row, dict) else None, text)


def _document_read(row: object) -> Read:
    if isinstance(row, dict):
        return Read(row, None)
    return Read(None, json.dumps(row, ensure_ascii=False, default=str))


# -- CSV --------------------------------------------------------------------------------------------------------------


def _csv_cells(line: str, delimiter: str) -> list[str] | None:
    try:
        return next(csv.reader([line], strict=True, delimiter=delimiter))
    except (csv.Error, StopIteration):
        return None


Lines = Iterator[bytes | Overlong]


def csv_reads(
    lines: Lines, header: list[str], delimiter: str = ",", more: Callable[[], Iterable[bytes | Overlong]] = tuple
) -> Iterator[Read]:
    """CSV rows. A quote that never closes spoils its own line only: the lines after it are read again by themselves.

    ``more`` gives further lines where ``lines`` end inside a quote.
    """
    csv.field_size_limit(LINE_BYTES_MAX)
    waiting: deque[bytes | Overlong] = deque()

    def following() -> bytes | Overlong | None:
        return waiting.popleft() if waiting else next(lines, None)

    while (line := following()) is not None:
        if isinstance(line, Overlong):
            yield unreadable(line)
            continue
        parts = [line]
        quotes, size = line.count(b'"'), len(line)
        while quotes % 2 and size < LINE_BYTES_MAX:
            part = following()
            if part is None:
                waiting.extend(more())
                part = following()
            if part is None or isinstance(part, Overlong):
                waiting.extendleft([] if part is None else [part])
                break
            parts.append(part)
            quotes += part.count(b'"')
            size += len(part)
        read = _csv_read(b"\n".join(parts), header, delimiter)
        if read.value is None and len(parts) > 1:
            waiting.extendleft(reversed(parts[1:]))
            read = unreadable(line)
        yield read


def _csv_read(line: bytes, header: list[str], delimiter: str) -> Read:
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return unreadable(line)
    cells = _csv_cells(text, delimiter)
    if cells is None or len(cells) != len(header):
        return Read(None, text)
    return Read(dict(zip(header, cells, strict=True)), text)


def csv_header(line: bytes | Overlong, path: Path, known: Format | None = None) -> list[str]:
    """Names of the cells: what the first line says, or ``c0``, ``c1``, ... if it names none."""
    delimiter = known.delimiter if known else ","
    cells = None if isinstance(line, Overlong) else _csv_cells(line.decode(errors="replace"), delimiter)
    if cells is None:
        raise BadInputError(f"{path}: neither JSON nor CSV nor Parquet (its first line cannot be read); check the file")
    if not _names_columns(cells, known):
        return [f"c{number}" for number in range(len(cells))]
    header = [name.strip() for name in cells]
    twice = sorted({name for name in header if header.count(name) > 1 and name})
    if twice:
        raise BadInputError(f"{path}: column {twice[0]} stands twice in the header; rename one")
    return header


# -- Parquet ----------------------------------------------------------------------------------------------------------


@contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """An open Parquet file; damage is an error that names the file, a lost footer also the byte."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        stream.seek(-4 if size >= 4 else 0, io.SEEK_END)
        if size < 12 or stream.read(4) != _PARQUET_MAGIC:
            raise BadInputError(f"{path}: Parquet without its footer, ends at byte {size}; get a complete copy")
        stream.seek(0)
        try:
            file = pq.ParquetFile(stream, read_dictionary=_dictionaries(stream))
            if file.metadata.num_rows > PARQUET_ROWS_MAX:
                raise BadInputError(
                    f"{path}: {file.metadata.num_rows} rows, more than {PARQUET_ROWS_MAX}; split the file"
                )
            yield file
        except (pa.ArrowException, OSError) as error:
            detail = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise BadInputError(f"{path}: damaged Parquet ({detail}); get a complete copy of the file") from None


def _dictionaries(stream: BinaryIO) -> list[str]:
    """Text columns whose cells are mostly references: they may stand for far more bytes than the file has."""
    metadata = pq.read_metadata(stream)
    wide = set()
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            if chunk.physical_type == "BYTE_ARRAY" and chunk.total_uncompressed_size < 4 * chunk.num_values + (1 << 16):
                wide.add(chunk.path_in_schema)
    return sorted(wide)


def parquet_reads(batch: Any) -> Iterator[Read]:
    """The rows of an Arrow batch."""
    names = batch.schema.names
    columns = [_parquet_column(batch.column(index)) for index in range(len(names))]
    for cells in zip(*columns, strict=True):
        yield Read(dict(zip(names, cells, strict=True)), None)


def _parquet_column(column: Any) -> list[object]:
    """Cells as Python values; timestamps as ticks, for ``datetime`` has no nanoseconds."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        # Each value once: a short column of references to a long text stays short.
        values = _parquet_column(column.dictionary)
        return [None if index is None else values[index] for index in column.indices.to_pylist()]
    if pa.types.is_timestamp(kind):
        unit, zoned = _UNITS[kind.unit], kind.tz is not None
        counts = column.cast(pa.int64()).to_pylist()
        return [None if count is None else Ticks(count, unit, zoned) for count in counts]
    cells: list[object] = column.to_pylist()
    return cells


def _parquet_rows(path: Path, rows: int) -> Iterator[Read]:
    with parquet_file(path) as file:
        for batch in file.iter_batches(batch_size=rows):
            yield from parquet_reads(batch)


# -- the file ---------------------------------------------------------------------------------------------------------


def inspect(path: Path, known: Format | None = None) -> Content:
    """What kind of file this is, and its first records; ``known``: the format, where a person has said it.

    Raises:
        BadInputError: empty, damaged, or nothing that can be read.
    """
    if path.stat().st_size == 0:
        raise BadInputError(f"{path}: empty file; nothing to ingest")
    if is_parquet(path):
        with parquet_file(path) as file:
            columns = tuple(file.schema_arrow.names)
        return Content(
            _sample("parquet", itertools.islice(_parquet_rows(path, SAMPLE_RECORDS), SAMPLE_RECORDS), columns), []
        )
    with opened(path) as stream:
        lines = lines_of_stream(stream, DOCUMENT_BYTES_MAX, LINE_BYTES_MAX)
        head = list(itertools.islice(lines, SAMPLE_RECORDS))
    if not head:
        raise BadInputError(f"{path}: empty file; nothing to ingest")
    first = head[0]
    if isinstance(first, Overlong):
        raise BadInputError(f"{path}: starts with a line of more than {DOCUMENT_BYTES_MAX} bytes; split it")
    if known is not None and known.containers == ("csv",):
        return _inspect_csv(path, head, known)
    unopened = replace(known, explode=None) if known is not None else None
    if first.lstrip()[:1] in (b"{", b"["):
        content = _inspect_json(path, head, unopened)
        if content is not None:
            return content
    reads = [read for line in head for read in json_reads(line, unopened)]
    if any(read.value is not None for read in reads):
        return Content(_sample("jsonl", reads), [])
    if first.lstrip()[:1] in (b"{", b"["):
        raise BadInputError(f"{path}: not JSON: {_json_fault(first)}; check the file")
    return _inspect_csv(path, head, known)


def _inspect_csv(path: Path, head: list[bytes | Overlong], known: Format | None) -> Content:
    header = csv_header(head[0], path, known)
    first, delimiter = head[0], known.delimiter if known else ","
    assert isinstance(first, bytes), "csv_header refuses any other"
    named = _names_columns(_csv_cells(first.decode(errors="replace"), delimiter) or [], known)
    reads = csv_reads(iter(head[1:] if named else head), header, delimiter)
    return Content(_sample("csv", reads, tuple(header)), [])


def _names_columns(cells: list[str], known: Format | None) -> bool:
    """The first line is a header: a person says so, or it does not begin with a number like a line of data."""
    if known is not None:
        return known.header
    try:
        parse_number(cells[0])
    except UnparsableError:
        return True
    return False


def _inspect_json(path: Path, head: list[bytes | Overlong], known: Format | None) -> Content | None:
    """A file that starts like JSON: lines if its first line is an object, else one document or several."""
    reads = list(json_reads(head[0], known))
    if head[0].lstrip().startswith(b"{") and any(read.value is not None for read in reads):  # type: ignore[union-attr]
        return Content(_sample("jsonl", (read for line in head for read in json_reads(line, known))), [])
    if len(head) > 1 and not _may_go_on(head[0]):
        return None
    documents = _documents(path)
    if documents is None:
        return None
    rows = (_document_read(row) for value in documents for row in _rows_of(value, known))
    first = list(itertools.islice(rows, SAMPLE_RECORDS))
    sample = _sample("document", first)
    if not first:  # an empty page may tell by its keys whose it is
        keys = dict.fromkeys(key for value in documents if isinstance(value, dict) for key in value)
        sample = replace(sample, columns=tuple(keys), is_empty_page=True)
    return Content(sample, documents)


def _may_go_on(line: bytes | Overlong) -> bool:
    """A first line that is no whole value may be the beginning of a pretty-printed one; a line broken inside is not."""
    if isinstance(line, Overlong):
        return False
    text = line.decode(errors="replace").rstrip()
    try:
        decode_json(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text) or error.msg.startswith("Extra data")
    except ValueError:
        return False
    return True


def _documents(path: Path) -> list[object] | None:
    """Every JSON value of the file, or None if it is not JSON throughout."""
    with opened(path) as stream:
        content = stream.read(DOCUMENT_BYTES_MAX + 1)
    if len(content) > DOCUMENT_BYTES_MAX:
        raise BadInputError(
            f"{path}: one JSON document of more than {DOCUMENT_BYTES_MAX} bytes; write it as JSON lines"
        )
    try:
        text = content.decode()
        del content
        return _values_of(text.strip())
    except ValueError:
        return None


def _json_fault(line: bytes) -> str:
    try:
        decode_json(line.decode())
    except json.JSONDecodeError as error:
        return f"{error.msg} at character {error.pos} of its first line"
    except ValueError as error:
        return str(error)
    return "its values are no objects"


def _sample(container: Container, reads: Iterable[Read], columns: tuple[str, ...] = ()) -> Sample:
    records = tuple(read.value for read in reads if read.value is not None)
    names = columns or tuple(dict.fromkeys(key for record in records for key in record))
    return Sample(container, names, records)


def records(path: Path, content: Content, log_format: Format) -> Iterator[Read]:
    """Every record of the file, in file order."""
    container = content.sample.container
    if container == "parquet":
        yield from _parquet_rows(path, PARQUET_BATCH_ROWS)
    elif container == "document":
        for value in content.documents:
            yield from (_document_read(row) for row in _expanded(value, log_format))
    else:
        # A run on one line is a single document, whatever its length; so may be the first line of any JSON file.
        rest_max = DOCUMENT_BYTES_MAX if log_format.explode else LINE_BYTES_MAX
        with opened(path) as stream:
            lines = lines_of_stream(stream, rest_max, rest_max)
            if container == "jsonl":
                for line in lines:
                    yield from json_reads(line, log_format)
            else:
                first = next(lines)
                header = csv_header(first, path, log_format)
                rows = lines if log_format.header else itertools.chain([first], lines)
                yield from csv_reads(rows, header, log_format.delimiter)
