"""The right side of a join, read to its end, and what of it no engine ever saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fairreplay.errors import BadInputError
from fairreplay.trace.asked import OUTSIDE, Applied, Asked
from fairreplay.trace.containers import Read, inspect, records, sample_within
from fairreplay.trace.detect import detect, listed
from fairreplay.trace.fields import Field, Format, Record, Sample, Skipped, Text, Wall
from fairreplay.trace.formats import FORMATS
from fairreplay.trace.join import FILLS, Entry, Gateway, JoinKey, Refused, SideKey, on_wall_clock
from fairreplay.trace.read import Block, Order, SourceFacts, canonical, prepared_records, surveyed
from fairreplay.trace.reject import Reject
from fairreplay.trace.rules import Reading, RejectedError, Row, Rules, shown


def read_gateway(
    path: Path, reading: Reading, key: JoinKey, source: str, adapt: Callable[[Format, Sample], Format] | None = None
) -> Gateway:
    """Read the right side: any log format, or records with canonical names for what they know.

    Raises:
        BadInputError: it cannot be read, or holds nothing that a join could use.
        UsageError: no record has the key.
    """
    content = inspect(path)
    log_format = _format_of(path, content.sample)
    sample = sample_within(content.sample, log_format)
    if log_format.survey is not None:
        log_format = surveyed(path, content, log_format, sample)
    if adapt is not None:
        log_format = adapt(log_format, sample)
    columns = log_format.columns_for(sample)
    rules = Rules(columns, reading, str(path), source)
    side = SideKey(key.right, f"--on {key.right}", log_format, sample, str(path))
    entries: dict[str, Entry] = {}
    refused: dict[str, list[Refused]] = {}
    interned: dict[object, tuple[object, ...]] = {}
    read_records = 0
    for number, read, prepared in prepared_records(enumerate(records(path, content, log_format)), log_format):
        read_records += 1
        if prepared is None or isinstance(prepared, Skipped | RejectedError):
            continue
        spelt = key.spellings(side.of(read.value or {}, prepared))[:1]
        facts = rules.facts(prepared)
        if spelt:
            told = tuple(facts.get(name) for name in FILLS)
            _add(entries, spelt[0], interned.setdefault(told, told))
        if facts.get("status") not in (None, "ok"):
            of_key = refused.setdefault(spelt[0] if spelt else "", [])
            of_key.append(_refused(rules, number, read, prepared))
    side.check()
    return Gateway(
        path=path,
        source=source,
        format=log_format,
        sample=sample,
        records=read_records,
        entries=entries,
        refused=refused,
        on_wall_clock=on_wall_clock(columns, sample),
        names_tenants=any(entry.facts[0] is not None for entry in entries.values()),
    )


def _add(entries: dict[str, Entry], key: str, facts: tuple[object, ...]) -> None:
    first = entries.get(key)
    if first is None:
        entries[key] = Entry(facts, ambiguous=False)
    elif first.facts[0] != facts[0] and not first.ambiguous:  # the tenant stands first in FILLS
        entries[key] = first._replace(ambiguous=True)


def _refused(rules: Rules, number: int, read: Read, prepared: Record) -> Refused:
    try:
        return Refused(number, rules.row(prepared, number), None, read, prepared)
    except RejectedError as fault:
        return Refused(number, None, fault, read, prepared)


def _format_of(path: Path, sample: Sample) -> Format:
    if any(item.recognises(sample) for item in FORMATS.values()):
        return detect(path, sample)
    columns: dict[str, tuple[Field, ...]] = {
        name: (kind(name),) for name, kind in FILLS.items() if name in sample.columns
    }
    if not columns:
        raise BadInputError(
            f"{path}: --join: no known format, and no column called {', '.join(FILLS)}; columns found: {listed(sample)}"
        )
    needs = tuple(columns)
    columns |= {"arrived_at": (Wall("arrived_at"),), "request_id": (Text("request_id"),), "status": (Text("status"),)}
    return Format("names", (sample.container,), needs, columns)


def refused_source(gateway: Gateway, matched: set[str], asked: Asked, source: str) -> tuple[SourceFacts, Block]:
    """What a joined log says was refused before any engine, as a source: its facts and all of its rows.

    ``matched``: keys that an engine's log has; ``source``: the content id of this remainder.
    """
    applied = Applied(replace(asked, tenant_from=None, gateway=None), gateway.format, gateway.sample, str(gateway.path))
    rows: list[Row] = []
    rejects: list[Reject] = []
    for item in gateway.without(matched):
        if item.row is not None:
            rows.append(item.row)
        elif item.fault is not None:
            value = applied.keeping.value(item.fault.column, shown(item.fault.value))
            line = applied.kept_line(item.read, item.prepared)
            rejects.append(Reject(item.number, item.fault.column, value, item.fault.reason, line))
    order = Order()
    frame = applied.rows(canonical(rows, source))
    order.see(frame)
    facts = SourceFacts(
        path=gateway.path,
        source=source,
        format=gateway.format,
        container=gateway.sample.container,
        accepted=frame.height,
        rejected=len(rejects),
        skipped={OUTSIDE: applied.outside} if applied.outside else {},
        own_ids=False,
        ignored_columns=(),
        assumptions=(),
        clamped=0,
        out_of_order=order.late,
        runs=order.runs(),
        applied=applied,
    )
    return facts, Block(frame, tuple(rejects))
