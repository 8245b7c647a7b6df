"""``fairreplay export``: tables of the store as files, the period's figures for Prometheus, a Grafana dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

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
    from collections.abc import Callable

    from fairreplay.export.results import Results

WHAT = "requests, rejects, windows, tenants, types, episodes, decisions, prometheus or grafana."


def export(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=WHAT)],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="Of a table: jsonl, csv or parquet [default: by the name of -o, else jsonl]; of grafana: dashboard or "
            "rules [default: both with -o, else dashboard].",
        ),
    ] = None,
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
    """Write a table, the period's figures or a dashboard as a file or to stdout.

    Requests, rejects and decisions (what production and each replay decided, side by side) come in the order of the
    logs; windows, tenants and types are the measured ones. prometheus is OpenMetrics text; grafana needs no store.
    """
    from fairreplay.config.load import load_config
    from fairreplay.export.results import Results
    from fairreplay.export.tables import COMPUTED, TABLES
    from fairreplay.metrics.options import measure_options
    from fairreplay.store.store import open_store

    if what == "grafana":
        _grafana(to, output, json=json, quiet=quiet)
        return
    if json and output is None:
        raise UsageError("export --json: stdout is taken by the export; name a file with -o")
    if what not in (*COMPUTED, "prometheus"):
        _refuse_unused(what, window, min_samples, strict_samples, refusals, spread)
    begin, end = period(since, until)
    settings = load_config(config)
    options = measure_options(settings, window, min_samples, strict_samples, refusals, spread, begin, end)
    if what not in (*TABLES, "prometheus"):
        from fairreplay.errors import nearest

        raise UsageError(f"export {what}: no such export ({nearest(what, [*TABLES, 'prometheus', 'grafana'])})")
    results = Results(open_store(store), settings, options, jobs)
    if what in ("episodes", "prometheus"):
        from fairreplay.cli.replay import note_compilation

        note_compilation(quiet=quiet)
    if what == "prometheus":
        _prometheus(results, to, output, json=json, quiet=quiet)
        return
    _table(results, what, to or _kind_of(output), output, json=json, quiet=quiet)


def _refuse_unused(what: str, *given: Any) -> None:
    """The options of a measurement, where nothing is measured."""
    names = ("--window", "--min-samples", "--strict-samples", "--refusals", "--spread")
    for name, value, default in zip(names, given, (None, None, False, "miss", "phases"), strict=True):
        if value != default:
            raise UsageError(f"export {what} takes no {name}: nothing is measured for it")


def _kind_of(output: Path | None) -> str:
    kinds = {".csv": "csv", ".parquet": "parquet"}
    return "jsonl" if output is None else kinds.get(output.suffix.lower(), "jsonl")


def _table(results: Results, what: str, to: str, output: Path | None, *, json: bool, quiet: bool) -> None:
    import sys

    from fairreplay.export.tables import export as write

    if to == "parquet" and output is None and sys.stdout.isatty():
        raise UsageError("export --to parquet: not for a terminal; name a file with -o, or pipe it")
    rows = written(output, lambda stream: write(results, what, to, stream))
    if json:
        console.out_json({"table": what, "to": to, "path": str(output), "rows": rows})
    elif output is not None:
        console.note(f"{rows} {what} written to {console.printable(str(output))}", quiet=quiet)


def _prometheus(results: Results, to: str | None, output: Path | None, *, json: bool, quiet: bool) -> None:
    from fairreplay.export.prometheus import exposition

    if to is not None:
        raise UsageError("export prometheus takes no --to: it is OpenMetrics text")
    text, remarks = exposition(results)
    written(output, lambda stream: stream.write(text.encode()))
    for remark in remarks:
        console.note(remark, quiet=quiet)
    samples = sum(not line.startswith("#") for line in text.splitlines())
    if json:
        console.out_json({"table": "prometheus", "path": str(output), "samples": samples, "remarks": remarks})
    elif output is not None:
        console.note(f"{samples} samples written to {console.printable(str(output))}", quiet=quiet)


def _grafana(to: str | None, output: Path | None, *, json: bool, quiet: bool) -> None:
    from fairreplay.export.grafana import DASHBOARD, RULES, dashboard, rules

    made = {"dashboard": dashboard, "rules": rules}
    if to is not None and to not in made:
        from fairreplay.errors import nearest

        raise UsageError(f"export grafana --to {to}: no such part ({nearest(to, list(made))})")
    if output is None:
        if json:
            raise UsageError("export --json: stdout is taken by the export; name a file with -o")
        written(None, lambda stream: stream.write(made[to or "dashboard"]()))
        if to is None:
            console.note("the alert rules: fairreplay export grafana --to rules", quiet=quiet)
        return
    if to is not None:
        places = {to: output}
    elif output.suffix:
        places = {"dashboard": output, "rules": output.with_suffix("." + RULES)}
    else:
        places = {"dashboard": output / DASHBOARD, "rules": output / RULES}
    for part, path in places.items():
        content = made[part]()
        written(path, lambda stream, content=content: stream.write(content))  # type: ignore[misc]
    if json:
        console.out_json({"table": "grafana", "paths": {part: str(path) for part, path in places.items()}})
    else:
        for part, path in places.items():
            console.note(f"{part} written to {console.printable(str(path))}", quiet=quiet)


def written(output: Path | None, write: Callable[[BinaryIO], int]) -> int:
    """What ``write`` gives, on stdout or in the file ``output``, which is there whole or not at all.

    Raises:
        UsageError: the place cannot be written to.
    """
    import sys

    from fairreplay.store.files import replace_file

    if output is None:
        sys.stdout.flush()
        count = write(sys.stdout.buffer)
        sys.stdout.flush()
        return count
    count = 0

    def fill(temporary: Path) -> None:
        nonlocal count
        with temporary.open("wb") as stream:
            count = write(cast(BinaryIO, stream))

    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        replace_file(output, fill)
    except OSError as error:
        raise UsageError(f"{output}: cannot be written ({error.strerror}); choose another -o") from None
    return count
