"""Tables of the store as JSON lines, CSV or Parquet, one block of rows at a time.

Rows come source by source (in the order of their content ids), inside a source in ``seq`` order: that of the log.
Times are ISO 8601 in UTC with 6 digits, in Parquet typed. Null is ``null`` in JSON, an empty cell in CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import BinaryIO, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fairreplay.errors import UsageError, nearest
from fairreplay.store.store import REJECT_SCHEMA, Store
from fairreplay.trace.schema import COLUMNS, SCHEMA

BLOCK_ROWS: Final = 1 << 16
_ISO: Final = "%Y-%m-%dT%H:%M:%S%.6fZ"
_FORMULA: Final = r"^[=+\-@\t\r]"
_PLAIN_NUMBER: Final = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"

Frames = Iterable[pl.DataFrame]
Schema = dict[str, pl.DataType]


def requests(store: Store, since: datetime | None, until: datetime | None) -> Iterator[pl.DataFrame]:
    """The stored requests that arrived in [``since``, ``until``), canonical columns."""
    for segment in store.manifest.segments:
        yield from _blocks(store.requests_of([segment.source], since, until).select(COLUMNS).sort("seq"))


def rejects(store: Store, since: datetime | None, until: datetime | None) -> Iterator[pl.DataFrame]:
    """Every reject by source and row. A reject may have no time: a period cannot choose among them.

    Raises:
        UsageError: a period was given.
    """
    if since is not None or until is not None:
        raise UsageError("export rejects takes no --since and no --until: a reject may have no time")
    yield from _blocks(store.rejects())


TABLES: Final[dict[str, tuple[Schema, Callable[[Store, datetime | None, datetime | None], Iterator[pl.DataFrame]]]]] = {
    "requests": (SCHEMA, requests),
    "rejects": (REJECT_SCHEMA, rejects),
}
"""Table -> its columns, and what reads it."""


def _blocks(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    yield from frame.iter_slices(BLOCK_ROWS)


# -- kinds of file ----------------------------------------------------------------------------------------------------


def write_jsonl(frames: Frames, schema: Schema, stream: BinaryIO) -> int:
    """One object a row with every column. The number of rows."""
    rows = 0
    for frame in frames:
        stream.write(_times_as_text(frame, schema).write_ndjson().encode())
        rows += frame.height
    return rows


def write_csv(frames: Frames, schema: Schema, stream: BinaryIO) -> int:
    """A header, then the rows. A name that a spreadsheet would run as a formula gets an apostrophe in front."""
    rows = 0
    stream.write((",".join(schema) + "\n").encode())
    for frame in frames:
        cells = _times_as_text(frame, schema).with_columns(
            *(_harmless(name) for name, dtype in schema.items() if dtype == pl.String),
            *(_ids_as_text(name) for name, dtype in schema.items() if isinstance(dtype, pl.List)),
        )
        stream.write(cells.write_csv(include_header=False).encode())
        rows += frame.height
    return rows


def write_parquet(frames: Frames, schema: Schema, stream: BinaryIO) -> int:
    """Typed columns; one row group a block."""
    columns = pa.schema([(name, _arrow_type(dtype)) for name, dtype in schema.items()])
    rows = 0
    with pq.ParquetWriter(stream, columns, compression="zstd") as writer:
        for frame in frames:
            writer.write_table(frame.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(columns))
            rows += frame.height
    return rows


WRITERS: Final[dict[str, Callable[[Frames, Schema, BinaryIO], int]]] = {
    "jsonl": write_jsonl,
    "csv": write_csv,
    "parquet": write_parquet,
}


def export(
    store: Store, table: str, kind: str, stream: BinaryIO, since: datetime | None = None, until: datetime | None = None
) -> int:
    """Write ``table`` (of ``TABLES``) as ``kind`` (of ``WRITERS``) to ``stream``; the number of rows.

    Raises:
        UsageError: no such table or kind.
        StoreError: a segment is missing or damaged.
    """
    if table not in TABLES:
        raise UsageError(f"export {table}: no such table ({nearest(table, list(TABLES))})")
    if kind not in WRITERS:
        raise UsageError(f"--to {kind}: no such kind of file ({nearest(kind, list(WRITERS))})")
    schema, read = TABLES[table]
    return WRITERS[kind](read(store, since, until), schema, stream)


def _times_as_text(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    times = (name for name, dtype in schema.items() if isinstance(dtype, pl.Datetime))
    return frame.with_columns(pl.col(name).dt.strftime(_ISO) for name in times)


def _harmless(name: str) -> pl.Expr:
    text = pl.col(name)
    runs = text.str.contains(_FORMULA) & ~text.str.contains(_PLAIN_NUMBER)
    return pl.when(runs).then(pl.lit("'") + text).otherwise(text).alias(name)


def _ids_as_text(name: str) -> pl.Expr:
    joined = pl.col(name).list.eval(pl.element().cast(pl.String)).list.join(",")
    return (pl.lit("[") + joined + pl.lit("]")).alias(name)


def _arrow_type(dtype: pl.DataType) -> pa.DataType:
    if isinstance(dtype, pl.Datetime):
        return pa.timestamp("us", tz="UTC")
    if isinstance(dtype, pl.List):
        return pa.list_(pa.uint64())
    return _ARROW[type(dtype)]


_ARROW: Final = {
    pl.String: pa.string(),
    pl.UInt64: pa.uint64(),
    pl.UInt32: pa.uint32(),
    pl.UInt16: pa.uint16(),
    pl.Int32: pa.int32(),
    pl.Float32: pa.float32(),
}
