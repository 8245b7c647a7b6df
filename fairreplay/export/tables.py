"""Tables of a store as JSON lines, CSV or Parquet, one block of rows at a time.

Requests come source by source (in the order of their content ids), inside a source in ``seq`` order: that of the log.
Times are ISO 8601 in UTC with 6 digits, in Parquet typed. Null is ``null`` in JSON, an empty cell in CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final

import orjson
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.parquet as pq

from fairreplay.errors import StoreError, UsageError, nearest
from fairreplay.export.results import EPISODE_SCHEMA, MEASURED, Measured, Results
from fairreplay.store.outcomes import LOGGED
from fairreplay.store.session import batches, identifier, session, stream
from fairreplay.store.store import REJECT_SCHEMA
from fairreplay.trace.schema import SCHEMA

BLOCK_ROWS: Final = 1 << 16
_ISO: Final = "%Y-%m-%dT%H:%M:%S%.6fZ"
_FORMULA: Final = r"^[=+\-@\t\r]"
_PLAIN_NUMBER: Final = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"

Frames = Iterable[pl.DataFrame]
Schema = dict[str, pl.DataType]
Table = tuple[Schema, Frames]

DECIDED: Final = ("scheduled_at", "first_token_at", "finished_at", "status", "preemptions")
"""What ``decisions`` sets side by side."""
DECISION_KEYS: Final = ("request_id", "tenant", "type", "model", "arrived_at", "prompt_tokens", "output_tokens")


def requests(results: Results) -> Table:
    """The stored requests that arrived in the period asked for, canonical columns."""
    return SCHEMA, _in_log_order(results, SCHEMA, {})


def decisions(results: Results) -> Table:
    """What production and each replay decided on a request, side by side: ``<what>_logged``, ``<what>_<policy>``.

    Every stored request of the period asked for is a row; null where a side does not know, or does not hold, it. The
    replays are those that belong to the config and the store's content.
    """
    schema = decision_schema(list(results.replays()))
    return schema, _in_log_order(results, schema, results.replays())


def decision_schema(policies: list[str]) -> Schema:
    """The columns of ``decisions`` with replays of these policies."""
    sides = (LOGGED, *policies)
    return {
        **{name: SCHEMA[name] for name in DECISION_KEYS},
        **{f"{what}_{side}": SCHEMA[what] for what in DECIDED for side in sides},
        "seq": SCHEMA["seq"],
        "source": SCHEMA["source"],
    }


def rejects(results: Results) -> Table:
    """Every reject by source and row. A reject may have no time: a period cannot choose among them.

    Raises:
        UsageError: a period was given.
    """
    if results.asked.since is not None or results.asked.until is not None:
        raise UsageError("export rejects takes no --since and no --until: a reject may have no time")
    return REJECT_SCHEMA, _blocks(results.store.rejects())


def episodes(results: Results) -> Table:
    """The episodes of the log, with causes, and of every replay."""
    return EPISODE_SCHEMA, _blocks(results.episodes())


def _measured(table: Measured) -> Callable[[Results], Table]:
    return lambda results: (MEASURED[table], _blocks(results.measured(table)))


TABLES: Final[dict[str, Callable[[Results], Table]]] = {
    "requests": requests,
    "rejects": rejects,
    "windows": _measured("windows"),
    "tenants": _measured("tenants"),
    "types": _measured("types"),
    "episodes": episodes,
    "decisions": decisions,
}
"""Table -> what reads it."""

COMPUTED: Final = (*MEASURED, "episodes")
"""Tables that are measured, not stored: the options of ``metrics`` hold for them."""


def _in_log_order(results: Results, schema: Schema, replays: dict[str, str]) -> Iterator[pl.DataFrame]:
    """Stored requests with what each replay decided, sorted on disk where they do not fit into memory."""
    store, asked = results.store, results.asked
    files = store.segment_files()
    if not files:
        return
    read = [name for name in dict.fromkeys(name.removesuffix("_" + LOGGED) for name in schema) if name in SCHEMA]
    tables = {"requests": stream(files, read)}
    columns = [f"{LOGGED}.{identifier(name.removesuffix('_' + LOGGED))} AS {identifier(name)}" for name in schema]
    joins = []
    for number, (policy, replay) in enumerate(replays.items()):
        tables[f"replay{number}"] = stream([store.replay_file(replay)], ("request_id", *DECIDED))
        joins.append(f"LEFT JOIN replay{number} USING (request_id)")
        for what in DECIDED:
            columns[list(schema).index(f"{what}_{policy}")] = (
                f"replay{number}.{what} AS {identifier(f'{what}_{policy}')}"
            )
    bounds = [(op, at) for op, at in ((">=", asked.since), ("<", asked.until)) if at is not None]
    where = " AND ".join(f"{LOGGED}.arrived_at {op} ?" for op, _ in bounds) or "true"
    query = (
        f"SELECT {', '.join(columns)} FROM requests AS {LOGGED} {' '.join(joins)} WHERE {where} "
        f"ORDER BY {LOGGED}.source, {LOGGED}.seq"
    )
    with TemporaryDirectory(prefix="fairreplay-") as spill, session(store.path, tables, Path(spill)) as connection:
        found = batches(connection, query, [at for _, at in bounds])
        while (batch := _next(found, store.path)) is not None:
            frame = pl.DataFrame(batch)
            yield frame.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def _next(found: pa.RecordBatchReader, store: Path) -> pa.RecordBatch | None:
    try:
        return found.read_next_batch()
    except StopIteration:
        return None
    except (OSError, pa.ArrowException) as error:
        said = str(error).splitlines()[0]
        raise StoreError(f"{store}: cannot be read to the end, or the temporary folder is full ({said})") from None


def _blocks(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    yield from frame.iter_slices(BLOCK_ROWS)


# -- kinds of file ----------------------------------------------------------------------------------------------------


def write_jsonl(frames: Frames, schema: Schema, stream: BinaryIO) -> int:
    """One object a row with every column. The number of rows."""
    rows = 0
    for frame in frames:
        stream.write(json_lines(frame, schema))
        rows += frame.height
    return rows


def json_lines(frame: pl.DataFrame, schema: Schema) -> bytes:
    """One object a row with every column, each on its line."""
    return _times_as_text(frame, schema).write_ndjson().encode()


def write_csv(frames: Frames, schema: Schema, stream: BinaryIO) -> int:
    """A header, then the rows. A name that a spreadsheet would run as a formula gets an apostrophe in front."""
    rows = 0
    stream.write((",".join(schema) + "\n").encode())
    for frame in frames:
        cells = _lists_as_json(_times_as_text(frame, schema), schema).with_columns(
            _harmless(name) for name, dtype in schema.items() if dtype == pl.String
        )
        stream.write(cells.write_csv(include_header=False).encode())
        rows += frame.height
    return rows


def write_parquet(frames: Frames, schema: Schema, stream: BinaryIO) -> int:
    """Typed columns; one row group a block."""
    columns = arrow_schema(schema)
    rows = 0
    with pq.ParquetWriter(stream, columns, compression="zstd") as writer:
        for frame in frames:
            plain = frame.with_columns(cs.by_dtype(pl.Int128).cast(pl.Decimal(38, 0)))  # Arrow has no such integer
            writer.write_table(plain.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(columns))
            rows += frame.height
    return rows


WRITERS: Final[dict[str, Callable[[Frames, Schema, BinaryIO], int]]] = {
    "jsonl": write_jsonl,
    "csv": write_csv,
    "parquet": write_parquet,
}


def export(results: Results, table: str, kind: str, stream: BinaryIO) -> int:
    """Write ``table`` (of ``TABLES``) as ``kind`` (of ``WRITERS``) to ``stream``; the number of rows.

    Raises:
        UsageError: no such table or kind.
        StoreError: a segment is missing or damaged.
    """
    if table not in TABLES:
        raise UsageError(f"export {table}: no such table ({nearest(table, list(TABLES))})")
    if kind not in WRITERS:
        raise UsageError(f"--to {kind}: no such kind of file ({nearest(kind, list(WRITERS))})")
    schema, frames = TABLES[table](results)
    return WRITERS[kind](frames, schema, stream)


def _times_as_text(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    return frame.with_columns(
        pl.col(name).dt.strftime(_ISO if dtype.time_zone else _ISO.removesuffix("Z"))
        for name, dtype in schema.items()
        if isinstance(dtype, pl.Datetime)
    )


def _harmless(name: str) -> pl.Expr:
    text = pl.col(name)
    runs = text.str.contains(_FORMULA) & ~text.str.contains(_PLAIN_NUMBER)
    return pl.when(runs).then(pl.lit("'") + text).otherwise(text).alias(name)


def _lists_as_json(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """A list as the text of a JSON array; its brackets keep any name in it from being read as a formula."""
    lists = {name: dtype for name, dtype in schema.items() if isinstance(dtype, pl.List)}
    return frame.with_columns(
        _numbers_as_json(name) if dtype.inner.is_integer() else _as_json(frame[name]) for name, dtype in lists.items()
    )


def _numbers_as_json(name: str) -> pl.Expr:
    joined = pl.col(name).list.eval(pl.element().cast(pl.String)).list.join(",")
    return (pl.lit("[") + joined + pl.lit("]")).alias(name)


def _as_json(lists: pl.Series) -> pl.Series:
    texts = (None if one is None else orjson.dumps(one).decode() for one in lists.to_list())
    return pl.Series(lists.name, texts, dtype=pl.String)


def arrow_schema(schema: Schema) -> pa.Schema:
    """The columns as Parquet files have them: UTC times, strings and lists of the plain kind."""
    return pa.schema([(name, _arrow_type(dtype)) for name, dtype in schema.items()])


def _arrow_type(dtype: Any) -> pa.DataType:
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is not None:
        return pa.timestamp(dtype.time_unit, tz="UTC")
    if isinstance(dtype, pl.List):
        return pa.list_(_arrow_type(dtype.inner))
    if isinstance(dtype, pl.Int128):
        return pa.decimal128(38, 0)
    plain = pl.Series(dtype=dtype).to_arrow(compat_level=pl.CompatLevel.oldest()).type
    return pa.string() if pa.types.is_large_string(plain) else plain
