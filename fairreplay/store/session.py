"""DuckDB over tables of the store: read only, and locked so that no statement reaches a file or the network.

The store's Parquet files are read by Arrow and handed to DuckDB as tables. That DuckDB may read the folder itself would
not do: since version 2 a ``COPY ... TO`` fits inside of a ``WITH``, so what it may read it may write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from fairreplay.errors import StoreError

MEMORY_LIMIT: Final = "256MB"
"""Of a session that may spill; what it sorts or joins beyond that goes to disk."""
BATCH_ROWS: Final = 1 << 16

_LOCKED: Final[dict[str, str | bool | int | float | list[str]]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
}

Connection: TypeAlias = duckdb.DuckDBPyConnection


@contextmanager
def session(
    store: Path, tables: Mapping[str, object], spill: Path | None = None, absent: Mapping[str, str] | None = None
) -> Iterator[Connection]:
    """A connection that knows ``tables`` (Arrow datasets or tables by name) and nothing else.

    Args:
        store: the only folder that the settings name; nothing in it can be reached by SQL either.
        tables: names may be any text. A stream is read once.
        spill: a folder for what does not fit into ``MEMORY_LIMIT``, for SQL of our own. Without one no file at all is
            within reach of DuckDB, and the limit is its own (80 % of the memory).
        absent: tables that are listed but not at hand, and what is said to a query that reaches one.
    """
    connection = duckdb.connect(":memory:", config=_LOCKED)
    try:
        for name, table in tables.items():
            connection.register(name, table)
        for name, said in (absent or {}).items():
            connection.execute(f"CREATE VIEW {identifier(name)} AS SELECT error({literal(said)}) AS {identifier(name)}")
        connection.execute("SET TimeZone = 'UTC'")
        if spill is None:
            connection.execute("SET temp_directory = ''")
        else:
            connection.execute(f"SET temp_directory = {literal(str(spill))}")
            connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        connection.execute(f"SET allowed_directories = [{literal(str(store.absolute()))}]")
        connection.execute("SET enable_external_access = false")
        if spill is None:
            connection.execute("SET disabled_filesystems = 'LocalFileSystem'")
        connection.execute("SET lock_configuration = true")
        connection.execute("BEGIN TRANSACTION READ ONLY")
        yield connection
    finally:
        connection.close()


def batches(connection: Connection, query: str, parameters: list[Any] | None = None) -> pa.RecordBatchReader:
    """The rows of ``query``, some ``BATCH_ROWS`` at a time, as they are computed."""
    return connection.sql(query, params=parameters).to_arrow_reader(BATCH_ROWS)


def parquet(paths: Iterable[Path]) -> ds.Dataset:
    """Parquet files as one table; their names are taken literally."""
    names = [str(path) for path in paths]
    for name in names:
        _schema(name)
    return ds.dataset(names, filesystem=fs.LocalFileSystem(), format="parquet")


def stream(paths: Sequence[Path], columns: Sequence[str]) -> pa.RecordBatchReader:
    """As ``parquet``, for one pass: in less memory, since nothing is read ahead."""
    schema = pa.schema([_schema(str(paths[0])).field(name) for name in columns])

    def read() -> Iterator[pa.RecordBatch]:
        for path in paths:
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(BATCH_ROWS, columns=list(columns), use_threads=False)

    return pa.RecordBatchReader.from_batches(schema, (batch.select(columns) for batch in read()))


def _schema(path: str) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowException):
        raise StoreError(f"{path}: missing or damaged; make it again ('fairreplay replay' makes replays)") from None


def literal(text: str) -> str:
    """``text`` as a string of SQL."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """``name`` as an identifier of SQL: the only way in which a name enters a query."""
    return '"' + name.replace('"', '""') + '"'
