"""``fairreplay export``: tables of the store as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from fairreplay.cli import console
from fairreplay.cli.options import (
    DEFAULT_STORE,
    JsonOption,
    QuietOption,
    SinceOption,
    StoreOption,
    UntilOption,
)
from fairreplay.cli.period import period
from fairreplay.errors import UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from fairreplay.store.store import Store


def export(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="requests or rejects.")],
    to: Annotated[str, typer.Option("--to", help="jsonl, csv or parquet.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write [default: stdout].")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write the stored requests or rejects as a file or to stdout, in the order of the logs."""
    from fairreplay.store.store import open_store

    begin, end = period(since, until)
    opened = open_store(store)
    if output is None:
        _to_stdout(opened, table, to, begin, end, json=json)
        return
    rows = _to_file(opened, table, to, output, begin, end)
    if json:
        console.out_json({"table": table, "to": to, "path": str(output), "rows": rows})
    else:
        console.note(f"{rows} {table} written to {output}", quiet=quiet)


def _to_stdout(
    store: Store, table: str, to: str, since: datetime | None, until: datetime | None, *, json: bool
) -> None:
    import sys

    from fairreplay.export.tables import export as write

    if json:
        raise UsageError("export --json: stdout is taken by the table; name a file with -o")
    if to == "parquet" and sys.stdout.isatty():
        raise UsageError("export --to parquet: not for a terminal; name a file with -o, or pipe it")
    sys.stdout.flush()
    write(store, table, to, sys.stdout.buffer, since, until)
    sys.stdout.flush()


def _to_file(store: Store, table: str, to: str, output: Path, since: datetime | None, until: datetime | None) -> int:
    from fairreplay.export.tables import export as write
    from fairreplay.store.files import replace_file

    rows = 0

    def fill(temporary: Path) -> None:
        nonlocal rows
        with temporary.open("wb") as stream:
            rows = write(store, table, to, cast(BinaryIO, stream), since, until)

    try:
        replace_file(output, fill)
    except OSError as error:
        raise UsageError(f"{output}: cannot be written ({error.strerror}); choose another -o") from None
    return rows
