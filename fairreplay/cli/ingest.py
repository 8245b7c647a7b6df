"""``fairreplay ingest``: request logs into the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairreplay.cli import console
from fairreplay.cli.options import (
    DEFAULT_STORE,
    DEFAULT_T0,
    KEY_VARIABLE,
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
from fairreplay.cli.period import period

if TYPE_CHECKING:
    from fairreplay.store.ingest import IngestOptions, IngestSummary, SourceSummary
    from fairreplay.trace.asked import Asked
    from fairreplay.trace.pseudonyms import Pseudonyms
    from fairreplay.trace.rules import Reading
    from fairreplay.trace.values import Number

NAMES_SHOWN = 20
ROWS_SHOWN = 3


def ingest(
    sources: SourcesArgument,
    store: StoreOption = DEFAULT_STORE,
    log_format: FormatOption = "auto",
    map_file: MapOption = None,
    tz: ZoneOption = "UTC",
    t0: T0Option = DEFAULT_T0,
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


def options_of(
    *,
    log_format: str,
    map_file: Path | None,
    tz: str,
    t0: str,
    tenant: str | None,
    tenant_from: str | None,
    type_: str | None,
    model: str | None,
    join: str | None,
    on: str | None,
    on_strip: list[str] | None,
    since: str | None,
    until: str | None,
    max_reject_rate: float,
    max_skew: str,
    pseudonymise: str | None,
    key_file: Path | None,
    config: Path | None,
) -> IngestOptions:
    """The options of the command line as ``store.ingest`` takes them, each checked."""
    from fairreplay.store.ingest import IngestOptions

    pseudonyms = _pseudonyms(pseudonymise, key_file)
    hidden = pseudonyms.name(tenant) if pseudonyms and tenant else tenant
    reading = _reading(tz, t0, tenant, type_, model, max_skew, config)
    asked = _asked(tenant_from, join, on, on_strip or [], since, until, pseudonyms)
    settings = {
        "--tz": tz if tz != "UTC" else None,
        "--t0": t0 if t0 != DEFAULT_T0 else None,
        "--tenant": hidden,
        "--tenant-from": tenant_from,
        "--type": type_,
        "--model": model,
        "--on": on,
        "--on-strip": " ".join(on_strip or []),
        "--since": since,
        "--until": until,
        "--max-skew": max_skew if reading.max_skew_us else None,
        "--pseudonymise": pseudonyms.fingerprint() if pseudonyms else None,
        "type_rules": "; ".join(rule.model_dump_json(by_alias=True, exclude_none=True) for rule in reading.type_rules),
    }
    options = IngestOptions(
        format=log_format,
        reading=reading,
        max_reject_rate=max_reject_rate,
        asked=asked,
        join=join,
        settings={name: value for name, value in settings.items() if value},
    )
    return options if map_file is None else _mapped(options, map_file)


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


def _reading(
    tz: str,
    t0: str,
    tenant: str | None,
    type_: str | None,
    model: str | None,
    max_skew: str,
    config: Path | None,
) -> Reading:
    from zoneinfo import ZoneInfo

    from fairreplay.config.load import load_config
    from fairreplay.errors import UsageError
    from fairreplay.trace.rules import Reading
    from fairreplay.trace.type_rules import check_type_rules
    from fairreplay.trace.values import UnparsableError, parse_wall

    try:
        zone = ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        raise UsageError(f"--tz {tz}: no such zone; name one such as Europe/Berlin or UTC") from None
    try:
        t0_us, _ = parse_wall(t0, zone)
    except UnparsableError:
        raise UsageError(f"--t0 {t0}: no instant; write it as 2026-03-02T08:00:00Z") from None
    type_rules = load_config(config).type_rules
    check_type_rules(type_rules)
    return Reading(
        t0_us=t0_us,
        zone=zone,
        zone_name=tz,
        tenant=tenant or None,
        type_=type_ or None,
        model=model or None,
        max_skew_us=_skew_us(max_skew),
        type_rules=type_rules,
    )


def _asked(
    tenant_from: str | None,
    join: str | None,
    on: str | None,
    on_strip: list[str],
    since: str | None,
    until: str | None,
    pseudonyms: Pseudonyms | None,
) -> Asked:
    from fairreplay.errors import UsageError
    from fairreplay.trace.asked import Asked
    from fairreplay.trace.join import JoinKey
    from fairreplay.trace.values import epoch_us

    if (join is None) != (on is None):
        raise UsageError("--join and --on go together: --join gateway.jsonl --on request_id")
    if on_strip and join is None:
        raise UsageError("--on-strip cuts a prefix of joined ids: it needs --join and --on")
    begin, end = period(since, until)
    return Asked(
        tenant_from=tenant_from or None,
        key=JoinKey.parse(on, on_strip) if on is not None else None,
        since_us=epoch_us(begin) if begin else None,
        until_us=epoch_us(end) if end else None,
        pseudonyms=pseudonyms,
    )


def _pseudonyms(what: str | None, key_file: Path | None) -> Pseudonyms | None:
    import os

    from fairreplay.errors import UsageError
    from fairreplay.trace.pseudonyms import Pseudonyms

    if what is None:
        if key_file is not None:
            raise UsageError("--key-file is the key of --pseudonymise tenant; give both")
        return None
    if what != "tenant":
        raise UsageError(f"--pseudonymise {what}: only 'tenant' can stand under pseudonyms")
    if key_file is None:
        if not (key := os.environ.get(KEY_VARIABLE, "")):
            raise UsageError(f"--pseudonymise needs a key: --key-file FILE, or {KEY_VARIABLE} in the environment")
        return Pseudonyms(os.fsencode(key))
    try:
        return Pseudonyms(key_file.read_bytes().strip())
    except OSError as error:
        raise UsageError(f"--key-file {key_file}: cannot be read ({error.strerror})") from None


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
        **({"dry_run": True} if summary.dry_run else {}),
    }


def _source_keys(source: SourceSummary) -> dict[str, Any]:
    segment = source.segment
    return {
        "path": source.path,
        "source": segment.source,
        "format": segment.format,
        "records": segment.rows + sum(segment.skipped.values()),
        "rows": segment.rows,
        "accepted": segment.accepted,
        "rejected": segment.rejected,
        "duplicates": segment.duplicates,
        "skipped": sum(segment.skipped.values()),
        "rejects": segment.rejects,
        "skips": segment.skipped,
        "by_status": source.by_status,
        "by_tenant": source.by_tenant,
        "unknown": list(segment.empty_columns),
        "join": segment.join,
        "assumptions": list(segment.assumptions),
        "changed": source.changed,
        **({"first_rows": list(source.first_rows)} if source.first_rows else {}),
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
