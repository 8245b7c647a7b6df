"""The right side of a join, read to its end, and what of it no engine ever saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from fairreplay.errors import BadInputError
from fairreplay.trace.asked import OUTSIDE, Applied, Asked
from fairreplay.trace.columnwise import DeclinedError, either
from fairreplay.trace.containers import Read, inspect, records, sample_within
from fairreplay.trace.detect import detect, listed
from fairreplay.trace.fields import Columns, Field, Format, Record, Sample, Skipped, Text, Wall
from fairreplay.trace.formats import FORMATS
from fairreplay.trace.join import FILLS, Entry, Gateway, JoinKey, Refused, SideKey, on_wall_clock
from fairreplay.trace.pieces import Piece, pieces, tabled
from fairreplay.trace.read import Block, Order, SourceFacts, canonical, prepared_records, read_columns, surveyed
from fairreplay.trace.reject import Reject
from fairreplay.trace.rules import Reading, RejectedError, Row, Rules, shown
from fairreplay.trace.vector import is_plain, told


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
    right = _Right(log_format, columns, rules, side, key)
    try:
        if not is_plain(log_format, columns, reading):
            raise DeclinedError
        found = pieces(path, content, log_format, read_columns(log_format, columns))
    except DeclinedError:
        right.take(enumerate(records(path, content, log_format)))
    else:
        for piece in tabled(found):
            right.take_piece(piece)
    side.check()
    return Gateway(
        path=path,
        source=source,
        format=log_format,
        sample=sample,
        records=right.records,
        entries=right.entries,
        refused=right.refused,
        on_wall_clock=on_wall_clock(columns, sample),
        names_tenants=any(entry.facts[0] is not None for entry in right.entries.values()),
    )


class _Right:
    """The right side's records, as they come."""

    def __init__(self, log_format: Format, columns: Columns, rules: Rules, side: SideKey, key: JoinKey) -> None:
        self.entries: dict[str, Entry] = {}
        self.refused: dict[str, list[Refused]] = {}
        self.records = 0
        self._format = log_format
        self._columns = columns
        self._rules = rules
        self._side = side
        self._key = key
        self._interned: dict[object, tuple[object, ...]] = {}

    def take(self, reads: Iterable[tuple[int, Read]]) -> None:
        """Records one by one."""
        for number, read, prepared in prepared_records(reads, self._format):
            self.records += 1
            if prepared is None or isinstance(prepared, Skipped | RejectedError):
                continue
            spelt = self._key.spellings(self._side.of(read.value or {}, prepared))[:1]
            facts = self._rules.facts(prepared)
            if spelt:
                self._add(spelt[0], tuple(facts.get(name) for name in FILLS))
            if facts.get("status") not in (None, "ok"):
                of_key = self.refused.setdefault(spelt[0] if spelt else "", [])
                of_key.append(_refused(self._rules, number, read, prepared))

    def take_piece(self, piece: Piece) -> None:
        """By whole columns; what is odd, or was not served, one by one."""
        try:
            block, _ = piece.table()
            by_columns = self._format.by_columns
            frame, odd = by_columns.prepare(block) if by_columns else (block, None)
            keys = self._side.of_columns(block, frame, odd)
            facts, strange = told(self._columns, self._rules.reading, frame, either(odd, keys.is_null()))
        except DeclinedError:
            halves = piece.halves()
            for half in halves:
                self.take_piece(half)
            if not halves:
                self.take(enumerate(piece.reads(), self.records))
            return
        refused = facts["status"] != "ok" if "status" in facts else None
        one_by_one = set(strange) | (set(refused.fill_null(value=False).arg_true()) if refused is not None else set())
        nothing = [None] * block.height
        rows = zip(*(facts[name].to_list() if name in facts else nothing for name in FILLS), strict=True)
        reads = piece.reads(sorted(one_by_one))
        for place, (key, row) in enumerate(zip(keys, rows, strict=True)):
            if place in one_by_one:
                self.take([(self.records, next(reads))])
                continue
            self.records += 1
            for spelt in self._key.spellings(key)[:1]:
                self._add(spelt, row)

    def _add(self, key: str, told: tuple[object, ...]) -> None:
        told = self._interned.setdefault(told, told)
        first = self.entries.get(key)
        if first is None:
            self.entries[key] = Entry(told, ambiguous=False)
        elif first.facts[0] != told[0] and not first.ambiguous:  # the tenant stands first in FILLS
            self.entries[key] = first._replace(ambiguous=True)


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
