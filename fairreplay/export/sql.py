"""``SELECT`` over a store: its requests, rejects and replays, and the windows and episodes that are computed from them.

Names of tables come from here, values from the store; a query is parsed first and refused unless it is one ``SELECT``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import orjson
import polars as pl
import pyarrow as pa

from fairreplay.errors import UsageError
from fairreplay.export.results import EPISODE_SCHEMA, MEASURED, REPLAYS_SCHEMA, Results, replay_rows
from fairreplay.store.replays import REPLAY_SCHEMA
from fairreplay.store.session import batches, parquet, session
from fairreplay.store.store import REJECT_SCHEMA
from fairreplay.trace.schema import SCHEMA

Schema = dict[str, pl.DataType]


@dataclass(frozen=True)
class Table:
    """A table of the session: what it is, its columns, and what loads it."""

    help: str
    columns: Schema
    load: Callable[[], object]


@dataclass(frozen=True)
class Answer:
    """The columns of an answer and its rows, some thousand at a time, once."""

    schema: Schema
    types: dict[str, str]
    """Column -> its type in DuckDB's words."""
    frames: Iterator[pl.DataFrame]


def tables(results: Results) -> dict[str, Table]:
    """Every table by name; nothing is read or computed until one is loaded."""
    store = results.store

    def requests() -> object:
        files = store.segment_files()
        return parquet(files) if files else pl.DataFrame(schema=SCHEMA).to_arrow()

    found = {
        "requests": Table("every stored request, as production logged it", SCHEMA, requests),
        "rejects": Table("every record that was no request", REJECT_SCHEMA, lambda: store.rejects().to_arrow()),
        "windows": Table(
            "metrics by window, model and source", MEASURED["windows"], lambda: results.measured("windows").to_arrow()
        ),
        "tenants": Table(
            "metrics by window, model, source and tenant",
            MEASURED["tenants"],
            lambda: results.measured("tenants").to_arrow(),
        ),
        "types": Table(
            "metrics by window, model, source and type",
            MEASURED["types"],
            lambda: results.measured("types").to_arrow(),
        ),
        "episodes": Table("episodes and their causes", EPISODE_SCHEMA, lambda: results.episodes().to_arrow()),
    }
    names = store.replay_names()
    current = results.replays()
    found["replays"] = Table(
        "one row per stored replay",
        REPLAYS_SCHEMA,
        lambda: pl.DataFrame(
            replay_rows(store, names, list(current.values())), schema=REPLAYS_SCHEMA, orient="row"
        ).to_arrow(),
    )
    for policy, name in current.items():
        found[f"replay_{policy}"] = Table(
            f"what {policy} decided, request by request", REPLAY_SCHEMA, _replay(results, name)
        )
    for name in names:
        found[name] = Table("a stored replay", REPLAY_SCHEMA, _replay(results, name))
    return found


def _replay(results: Results, name: str) -> Callable[[], object]:
    return lambda: parquet([results.store.replay_file(name)])


@contextmanager
def answer(results: Results, query: str) -> Iterator[Answer]:
    """The answer to one ``SELECT``; only the tables that the query names are loaded.

    Raises:
        UsageError: no query that reads, or one that DuckDB refuses; what it says is on one line.
    """
    check(query)
    known = tables(results)
    named = {name: table.load() for name, table in known.items() if _names(query, name)}
    absent = {name: f"table {name}: write its name out in the query" for name in known if name not in named}
    for stored in results.store.replay_names():
        policy = stored.rpartition("-")[0]
        if f"replay_{policy}" not in known:
            absent[f"replay_{policy}"] = (
                f"no replay of {policy} is of this config and of what is stored now (is --config missing?); "
                f'an older one is "{stored}"'
            )
    with session(results.store.path, named, absent=absent) as connection:
        with _said_plainly():
            reader = batches(connection, query)
        names = _distinct(reader.schema.names)
        columns = [_Column.of(field, name) for field, name in zip(reader.schema, names, strict=True)]
        yield Answer(
            schema={column.name: column.dtype for column in columns},
            types={column.name: column.said for column in columns},
            frames=_frames(reader, columns),
        )


def check(query: str) -> None:
    """One statement that reads.

    Raises:
        UsageError: anything else; it names what is refused.
    """
    with _said_plainly():
        statements = duckdb.extract_statements(query)
    kinds = [statement.type.name for statement in statements]
    if not kinds:
        raise UsageError('sql: nothing to run; write a query such as "SELECT count(*) FROM requests"')
    if kinds == ["MULTI"]:
        raise UsageError("sql: PIVOT needs its values here: PIVOT ... ON column IN ('a', 'b')")
    refused = [kind for kind in kinds if kind != "SELECT"]
    if refused:
        raise UsageError(f"sql: {refused[0]} is refused: the store is read only; write one SELECT")
    if len(kinds) > 1:
        raise UsageError(f"sql: {len(kinds)} statements; write one SELECT")


def _names(query: str, table: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(table)}(?!\w)", query, flags=re.IGNORECASE) is not None


@contextmanager
def _said_plainly() -> Iterator[None]:
    """DuckDB's errors as one line. Those of a row come through Arrow as OSError."""
    try:
        yield
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise UsageError(f"sql: {_plain(str(error))}") from None


def _plain(message: str) -> str:
    text = " ".join(line.strip() for line in re.split(r"\n+LINE \d+:", message)[0].splitlines() if line.strip())
    if "Permission Error" in text:
        return f"only the store's tables can be read: no file, no network, no extension ({text})"
    if "read-only mode" in text:
        return f"the store is read only; write one SELECT ({text})"
    if "Out of Memory" in text:
        return f"the answer needs more memory than there is: narrow it by WHERE, or read it in parts ({text})"
    return text


def _distinct(names: list[str]) -> list[str]:
    """Column names with a number behind those that come again."""
    seen: dict[str, int] = {}
    made: list[str] = []
    for name in names:
        candidate = name
        while candidate in seen:
            seen[name] += 1
            candidate = f"{name}_{seen[name]}"
        seen.setdefault(name, 1)
        seen.setdefault(candidate, 1)
        made.append(candidate)
    return made


@dataclass(frozen=True)
class _Column:
    """A column on its way from Arrow to a frame that every kind of file can hold."""

    name: str
    dtype: pl.DataType
    said: str
    as_json: bool
    """Nested, or of a type that frames do not know: its JSON text stands for it."""

    @staticmethod
    def of(field: pa.Field, name: str) -> _Column:
        plain = _dtype(field.type)
        return _Column(name, plain or pl.String(), str(field.type), plain is None)


def _dtype(kind: pa.DataType) -> pl.DataType | None:
    """Null where the JSON text of the values stands for them."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _dtype(kind.value_type)
        return pl.List(inner) if isinstance(inner, (pl.String, pl.Boolean)) or (inner and inner.is_numeric()) else None
    if pa.types.is_dictionary(kind) or pa.types.is_null(kind):
        return pl.String()
    if pa.types.is_decimal(kind):
        return pl.Int128() if kind.scale == 0 else pl.Float64()
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return None
    if str(kind) == "month_day_nano_interval":
        return None
    return pl.Series(pa.array([], kind)).dtype


def _frames(reader: pa.RecordBatchReader, columns: list[_Column]) -> Iterator[pl.DataFrame]:
    with _said_plainly():
        for batch in reader:
            yield pl.DataFrame([_series(array, column) for array, column in zip(batch.columns, columns, strict=True)])


def _series(array: pa.Array, column: _Column) -> pl.Series:
    if column.as_json:
        return pl.Series(column.name, map(_text, array.to_pylist()), dtype=pl.String)
    return pl.Series(column.name, array).cast(column.dtype)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, pa.MonthDayNano):
        return interval(value.months, value.days, value.nanoseconds)
    return orjson.dumps(value, default=_inside, option=orjson.OPT_NON_STR_KEYS).decode()


def _inside(value: Any) -> Any:
    return _text(value) if isinstance(value, (bytes, pa.MonthDayNano)) else str(value)


def interval(months: int, days: int, nanoseconds: int) -> str:
    """As DuckDB writes it: ``1 year 2 months 3 days 00:00:01.5``."""
    years, months = divmod(abs(months), 12) if months >= 0 else (-(-months // 12), -(-months % 12))
    parts = [f"{count} {unit}{'' if abs(count) == 1 else 's'}"
             for count, unit in ((years, "year"), (months, "month"), (days, "day")) if count]  # fmt: skip
    micros = abs(nanoseconds) // 1000
    seconds, fraction = divmod(micros, 1_000_000)
    if seconds or fraction or not parts:
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        parts.append(("-" if nanoseconds < 0 else "") + clock + (f".{fraction:06}".rstrip("0") if fraction else ""))
    return " ".join(parts)


def described(found: Mapping[str, Table]) -> list[tuple[str, str, str]]:
    """Name, what it is, columns: of each table."""
    return [(name, table.help, ", ".join(table.columns)) for name, table in found.items()]
