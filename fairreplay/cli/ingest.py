"""``fairreplay ingest``: request logs into the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairreplay.cli import console
from fairreplay.cli.options import (
    DEFAULT_STORE,
    ConfigOption,
    FormatOption,
    JoinOption,
    JsonOption,
    KeyFileOption,
    MapOption,
    MaxRejectRateOption,
    MaxSkewOption,
    ModelOption,
    OnOption,
    OnStripOption,
    PseudonymiseOption,
    QuietOption,
    SinceOption,
    SourcesArgument,
    StoreOption,
    T0Option,
    TenantFromOption,
    TenantOption,
    TypeOption,
    UntilOption,
    ZoneOption,
)
from fairreplay.config.defaults import T0

if TYPE_CHECKING:
    from fairreplay.store.ingest import IngestSummary, SourceSummary

NAMES_SHOWN = 20
ROWS_SHOWN = 3


def ingest(
    sources: SourcesArgument,
    store: StoreOption = DEFAULT_STORE,
    log_format: FormatOption = "auto",
    map_file: MapOption = None,
    tz: ZoneOption = "UTC",
    t0: T0Option = T0,
    tenant: TenantOption = None,
    tenant_from: TenantFromOption = None,
    type_: TypeOption = None,
    model: ModelOption = None,
    join: JoinOption = None,
    on: OnOption = None,
    on_strip: OnStripOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    max_reject_rate: MaxRejectRateOption = 0.01,
    max_skew: MaxSkewOption = "0",
    pseudonymise: PseudonymiseOption = None,
    key_file: KeyFileOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it would do; the store stays as it is.")
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Read request logs into the store.

    Every row is checked; what cannot be a request is kept as a reject with its reason. The same bytes again change
    nothing. Prompts and answers are never stored.
    """
    from dataclasses import replace

    from fairreplay.store.ingest import ingest as run
    from fairreplay.store.ingest_options import document, options_of

    options = options_of(
        log_format=log_format,
        map_file=map_file,
        tz=tz,
        t0=t0,
        tenant=tenant,
        tenant_from=tenant_from,
        type_=type_,
        model=model,
        join=join,
        on=on,
        on_strip=on_strip,
        since=since,
        until=until,
        max_reject_rate=max_reject_rate,
        max_skew=max_skew,
        pseudonymise=pseudonymise,
        key_file=key_file,
        config=config,
    )
    options = replace(options, dry_run=dry_run)
    with console.progress("ingest", "rows", quiet=quiet or json) as told:
        summary = run(sources, store, replace(options, progress=told))
    if json:
        console.out_json(document(summary))
    elif not quiet:
        console.out(summary_text(summary))
    for source in summary.sources:
        if remark := _nothing_new(source):
            console.note(f"{console.printable(source.path)}: {remark}", quiet=quiet)


def _nothing_new(source: SourceSummary) -> str | None:
    if source.already and source.otherwise:
        return (
            "already in the store (same bytes), read with other options then; nothing changed. "
            "Ingest into a new store to read it otherwise"
        )
    if source.already:
        return "already in the store (same bytes); nothing changed"
    if not source.changed:
        return f"all {source.segment.duplicates} requests are in the store already; nothing changed"
    return None


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
    for source in summary.sources:
        if source.first_rows:
            parts += ["", _first_rows(source)]
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
    if segment.join:
        join = segment.join
        remarks.append(
            f"joined: {join['matched']} keys in both logs, {join['left_only']} in this one only, "
            f"{join['right_only']} in the other only"
        )
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


def _first_rows(source: SourceSummary) -> str:
    """The first rows as they would be stored, a column a line; columns without any value are left out."""
    rows = source.first_rows[:ROWS_SHOWN]
    names = [name for name in rows[0] if name != "source" and any(row[name] is not None for row in rows)]
    title = f"first rows of {console.cell(source.segment.name)} as they would be stored:"
    return f"{title}\n" + console.table(
        ("column", *(f"record {row['seq']}" for row in rows)),
        [(name, *(_brief(row[name]) for row in rows)) for name in names],
    )


def _brief(value: object) -> object:
    if isinstance(value, list):
        return f"{len(value)} ids"
    return value


def _totals(summary: IngestSummary) -> str:
    accepted = sum(summary.types.values())
    period = f", {summary.first_arrival} to {summary.last_arrival}" if summary.first_arrival else ""
    types = ", ".join(f"{console.cell(name)} {count}" for name, count in summary.types.items())
    requests = f"{accepted} requests of {len(summary.tenants)} tenants" + (f" ({types})" if types else "") + period
    where = "dry run: nothing was stored; the store would be " if summary.dry_run else "store: "
    return f"{requests}\n{where}{console.printable(summary.store)}"
