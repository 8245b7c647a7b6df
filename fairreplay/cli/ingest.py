"""``fairreplay ingest``: request logs into the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairreplay.cli import console
from fairreplay.cli.options import DEFAULT_STORE, JsonOption, QuietOption, StoreOption

if TYPE_CHECKING:
    from fairreplay.store.ingest import IngestOptions, IngestSummary, SourceSummary
    from fairreplay.trace.values import Number

NAMES_SHOWN = 20


def ingest(
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="Logs: files, folders, patterns.")],
    store: StoreOption = DEFAULT_STORE,
    log_format: Annotated[
        str, typer.Option("--format", help="The logs' format; auto decides on the first records.")
    ] = "auto",
    map_file: Annotated[
        Path | None, typer.Option("--map", metavar="FILE.toml", help="What the columns of any other log mean.")
    ] = None,
    tz: Annotated[str, typer.Option("--tz", help="Zone of times that carry none.")] = "UTC",
    t0: Annotated[
        str, typer.Option("--t0", help="Instant of clock value 0 in logs that count from their own start (ISO 8601).")
    ] = "1970-01-01T00:00:00Z",
    tenant: Annotated[str | None, typer.Option("--tenant", help="Tenant of rows that name none.")] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Request type of rows that name none.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model of rows that name none.")] = None,
    max_reject_rate: Annotated[
        float, typer.Option("--max-reject-rate", min=0, max=1, help="Share of rejects that stops a source.")
    ] = 0.01,
    max_skew: Annotated[
        str, typer.Option("--max-skew", help='Clock skew that is clamped, not rejected, such as "5ms".')
    ] = "0",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Read request logs into the store.

    Every row is checked; what cannot be a request is kept as a reject with its reason. The same bytes again change
    nothing.
    """
    from fairreplay.store.ingest import ingest as run

    options = _options(log_format, tz, t0, tenant, type_, model, max_reject_rate, max_skew)
    if map_file is not None:
        options = _mapped(options, map_file)
    summary = run(sources, store, options)
    if json:
        console.out_json(document(summary))
    elif not quiet:
        console.out(summary_text(summary))
    for source in summary.sources:
        if source.already:
            console.note(f"{source.path}: already in the store (same bytes); nothing changed", quiet=quiet)


def _options(
    log_format: str,
    tz: str,
    t0: str,
    tenant: str | None,
    type_: str | None,
    model: str | None,
    max_reject_rate: float,
    max_skew: str,
) -> IngestOptions:
    from zoneinfo import ZoneInfo

    from fairreplay.errors import UsageError
    from fairreplay.store.ingest import IngestOptions
    from fairreplay.trace.rules import Reading
    from fairreplay.trace.values import UnparsableError, parse_wall

    try:
        zone = ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        raise UsageError(f"--tz {tz}: no such zone; name one such as Europe/Berlin or UTC") from None
    try:
        t0_us, _ = parse_wall(t0, zone)
    except UnparsableError:
        raise UsageError(f"--t0 {t0}: no instant; write it as 2026-03-02T08:00:00Z") from None
    reading = Reading(
        t0_us=t0_us,
        zone=zone,
        zone_name=tz,
        tenant=tenant or None,
        type_=type_ or None,
        model=model or None,
        max_skew_us=_skew_us(max_skew),
    )
    return IngestOptions(log_format, reading, max_reject_rate)


def _mapped(options: IngestOptions, map_file: Path) -> IngestOptions:
    from dataclasses import replace

    from fairreplay.errors import UsageError
    from fairreplay.trace.formats import FORMATS
    from fairreplay.trace.mapping import load_mapping

    if options.format != "auto":
        raise UsageError(f"--map {map_file} and --format {options.format}: give one of them")
    return replace(options, mapping=load_mapping(map_file, FORMATS))


def _skew_us(text: str) -> int:
    """``0``, ``250us``, ``5ms``, ``1.5s`` in microseconds."""
    from fairreplay.errors import UsageError
    from fairreplay.trace.values import UnparsableError, microseconds, parse_number

    number, unit = text.strip(), None
    for suffix in ("ms", "us", "s"):
        if number.endswith(suffix):
            number, unit = number.removesuffix(suffix), suffix
            break
    try:
        skew: Number = microseconds(parse_number(number), "ms" if unit == "ms" else "us" if unit == "us" else "s")
    except UnparsableError:
        skew = -1
    if skew < 0 or (unit is None and skew != 0):
        raise UsageError(f"--max-skew {text}: no duration; write it as 5ms, 250us or 1s")
    return int(skew)


def document(summary: IngestSummary) -> dict[str, Any]:
    """The result as the documented keys of ``ingest --json``."""
    return {
        "sources": [_source_keys(source) for source in summary.sources],
        "tenants": summary.tenants,
        "types": summary.types,
        "first_arrival": summary.first_arrival,
        "last_arrival": summary.last_arrival,
        "store": summary.store,
    }


def _source_keys(source: SourceSummary) -> dict[str, Any]:
    segment = source.segment
    return {
        "path": source.path,
        "source": segment.source,
        "format": segment.format,
        "rows": segment.rows,
        "accepted": segment.accepted,
        "rejected": segment.rejected,
        "duplicates": segment.duplicates,
        "skipped": sum(segment.skipped.values()),
        "rejects": segment.rejects,
    }


def summary_text(summary: IngestSummary) -> str:
    """What was recognised and why, counts, and everything that was assumed or left out."""
    columns = ("file", "format", "rows", "accepted", "rejected", "duplicates", "skipped")
    rows = []
    for source in summary.sources:
        item = source.segment
        counts = (item.rows, item.accepted, item.rejected, item.duplicates, sum(item.skipped.values()))
        rows.append((item.name, item.format, *counts))
    parts = [console.table(columns, rows), ""]
    said: dict[str, list[str]] = {}
    for source in summary.sources:
        for remark in _remarks(source):
            said.setdefault(remark, []).append(console.cell(source.segment.name))
    parts += [remark + _whose(names, len(rows)) for remark, names in said.items()]
    parts += ["", _totals(summary)]
    return "\n".join(parts)


def _whose(names: list[str], sources: int) -> str:
    """The files that a remark is about, where that is not all of them."""
    if len(names) == sources:
        return ""
    return f"  [{names[0] if len(names) == 1 else f'{len(names)} files'}]"


def _remarks(source: SourceSummary) -> list[str]:
    segment = source.segment
    remarks = [f"recognised as {segment.format} ({source.why})"]
    remarks += [console.printable(line) for line in segment.assumptions]
    if segment.rejects:
        remarks.append("rejected: " + ", ".join(f"{reason} {count}" for reason, count in segment.rejects.items()))
    if segment.skipped:
        remarks.append("skipped: " + ", ".join(f"{reason} {count}" for reason, count in segment.skipped.items()))
    if segment.clamped:
        remarks.append(f"{segment.clamped} times moved within --max-skew")
    if segment.out_of_order:
        remarks.append(f"{segment.out_of_order} of {segment.accepted} rows stood after a later arrival; sorted")
    if segment.runs:
        remarks.append("the clock jumped back by more than an hour at " + "; ".join(segment.runs))
    if segment.unknown_columns:
        remarks.append("columns left out: " + _named(segment.unknown_columns))
    if segment.empty_columns:
        remarks.append("unknown in this log: " + _named(segment.empty_columns))
    return remarks


def _named(names: tuple[str, ...]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(map(console.cell, names[:NAMES_SHOWN])) + (f" and {more} more" if more > 0 else "")


def _totals(summary: IngestSummary) -> str:
    accepted = sum(summary.types.values())
    period = f", {summary.first_arrival} to {summary.last_arrival}" if summary.first_arrival else ""
    types = ", ".join(f"{console.cell(name)} {count}" for name, count in summary.types.items())
    return (
        f"{accepted} requests of {len(summary.tenants)} tenants" + (f" ({types})" if types else "") + period + "\n"
        f"store: {console.printable(summary.store)}"
    )
