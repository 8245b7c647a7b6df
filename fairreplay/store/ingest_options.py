"""The options of ``ingest`` as text, each checked and made what ``store.ingest`` takes; its result as a document."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from fairreplay.config.defaults import KEY_VARIABLE, T0
from fairreplay.config.instants import period
from fairreplay.config.load import load_config
from fairreplay.errors import UsageError
from fairreplay.store.ingest import IngestOptions, IngestSummary, SourceSummary
from fairreplay.trace.asked import Asked
from fairreplay.trace.formats import FORMATS
from fairreplay.trace.join import JoinKey
from fairreplay.trace.mapping import load_mapping
from fairreplay.trace.pseudonyms import Pseudonyms
from fairreplay.trace.rules import Reading
from fairreplay.trace.type_rules import check_type_rules
from fairreplay.trace.values import Number, UnparsableError, epoch_us, microseconds, parse_number, parse_wall


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
    pseudonyms = _pseudonyms(pseudonymise, key_file)
    hidden = pseudonyms.name(tenant) if pseudonyms and tenant else tenant
    reading = _reading(tz, t0, tenant, type_, model, max_skew, config)
    asked = _asked(tenant_from, join, on, on_strip or [], since, until, pseudonyms)
    settings = {
        "--tz": tz if tz != "UTC" else None,
        "--t0": t0 if t0 != T0 else None,
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


def _reading(
    tz: str,
    t0: str,
    tenant: str | None,
    type_: str | None,
    model: str | None,
    max_skew: str,
    config: Path | None,
) -> Reading:
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
    if options.format != "auto":
        raise UsageError(f"--map {map_file} and --format {options.format}: give one of them")
    return replace(options, mapping=load_mapping(map_file, FORMATS))


def _skew_us(text: str) -> int:
    """``0``, ``250us``, ``5ms``, ``1.5s`` in microseconds."""
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
