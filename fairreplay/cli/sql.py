"""``fairreplay sql``: any question to the store, in DuckDB's SQL, read only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairreplay.cli import console
from fairreplay.cli.options import (
    DEFAULT_STORE,
    ConfigOption,
    JobsOption,
    JsonOption,
    MinSamplesOption,
    QuietOption,
    RefusalsOption,
    SinceOption,
    SpreadOption,
    StoreOption,
    StrictSamplesOption,
    UntilOption,
    WindowOption,
)
from fairreplay.config.instants import period
from fairreplay.errors import UsageError

if TYPE_CHECKING:
    from fairreplay.export.sql import Answer, Table

ROWS_SHOWN = 1000


def sql(
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="One SELECT; without one the tables are listed.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="csv, jsonl or parquet instead of a table.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write [default: stdout].")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    window: WindowOption = None,
    min_samples: MinSamplesOption = None,
    strict_samples: StrictSamplesOption = False,
    refusals: RefusalsOption = "miss",
    spread: SpreadOption = "phases",
    jobs: JobsOption = 1,
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Ask the store in SQL (DuckDB's), read only: requests, rejects, windows, tenants, types, episodes, replays.

    The options of a measurement hold for windows, tenants, types and episodes, which are computed where a query names
    them. requests is all that is stored.
    """
    from fairreplay.config.load import load_config
    from fairreplay.export.results import Results
    from fairreplay.export.sql import answer, tables
    from fairreplay.metrics.options import measure_options
    from fairreplay.store.store import open_store

    if json and to is not None:
        raise UsageError("--json does not go with --to: both say what comes out")
    if output is not None and to is None:
        raise UsageError("sql -o: say what to write with --to csv, jsonl or parquet")
    begin, end = period(since, until)
    settings = load_config(config)
    options = measure_options(settings, window, min_samples, strict_samples, refusals, spread, begin, end)
    results = Results(open_store(store), settings, options, jobs)
    if query is None:
        _list(tables(results), json=json)
        return
    with answer(results, query) as found:
        if to is not None:
            _write(found, to, output, quiet=quiet)
        elif json:
            _json(found)
        else:
            _show(found, quiet=quiet)


def _list(found: dict[str, Table], *, json: bool) -> None:
    from fairreplay.export.sql import described

    rows = described(found)
    if json:
        console.out_json(
            {"tables": [{"name": name, "is": said, "columns": cols.split(", ")} for name, said, cols in rows]}
        )
        return
    for name, said, columns in rows:
        console.out(console.printable(f"{name}: {said}"))
        console.out(console.printable(f"    {columns}"))


def _write(found: Answer, to: str, output: Path | None, *, quiet: bool) -> None:
    import sys

    from fairreplay.cli.export import written
    from fairreplay.errors import nearest
    from fairreplay.export.tables import WRITERS

    if to not in WRITERS:
        raise UsageError(f"--to {to}: no such kind of file ({nearest(to, list(WRITERS))})")
    if to == "parquet" and output is None and sys.stdout.isatty():
        raise UsageError("sql --to parquet: not for a terminal; name a file with -o, or pipe it")
    rows = written(output, lambda stream: WRITERS[to](found.frames, found.schema, stream))
    if output is not None:
        console.note(f"{rows} rows written to {console.printable(str(output))}", quiet=quiet)


def _json(found: Answer) -> None:
    """One document, a row a line, written as the rows come."""
    import sys

    import orjson

    from fairreplay.export.tables import json_lines

    columns = [{"name": name, "type": said} for name, said in found.types.items()]
    sys.stdout.write('{\n  "columns": ' + orjson.dumps(columns).decode() + ',\n  "rows": [')
    first = True
    for frame in found.frames:
        for line in json_lines(frame, found.schema).decode().splitlines():
            sys.stdout.write(("\n    " if first else ",\n    ") + line)
            first = False
    sys.stdout.write("]\n}\n" if first else "\n  ]\n}\n")


def _show(found: Answer, *, quiet: bool) -> None:
    """A table as wide as the terminal, or as its cells where there is none."""
    import orjson

    from fairreplay.export.tables import json_lines

    rows: list[list[object]] = []
    more = False
    for frame in found.frames:
        lines = json_lines(frame.head(ROWS_SHOWN + 1 - len(rows)), found.schema).splitlines()
        rows += [list(orjson.loads(line).values()) for line in lines]
        if len(rows) > ROWS_SHOWN:
            rows.pop()
            more = True
            break
    console.out(console.grid(list(found.schema), rows))
    if more:
        console.note(f"only the first {ROWS_SHOWN:,} rows are shown; --json and --to csv give all", quiet=quiet)
