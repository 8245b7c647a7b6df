"""``--join``: the gateway's log gives tenants, types and token counts to the engine's rows.

Left is the engine's log, right the gateway's. Only names and counts cross, no time: the two have two clocks. What the
left side says itself is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from fairreplay.errors import UsageError, nearest
from fairreplay.trace.adapt import changed, free_key
from fairreplay.trace.columnwise import ByColumns, DeclinedError, either
from fairreplay.trace.containers import Read
from fairreplay.trace.fields import (
    Columns,
    Epoch,
    Field,
    Format,
    Integer,
    Real,
    Record,
    Sample,
    Text,
    Tokens,
    Wall,
)
from fairreplay.trace.paths import find_path, paths_of, walk
from fairreplay.trace.rules import AMBIGUOUS, RejectedError, Row
from fairreplay.trace.schema import COLUMNS, DEFAULT_TENANT, DEFAULT_TYPE
from fairreplay.trace.values import known

FILLS: Final[dict[str, Callable[[str], Field]]] = {
    "tenant": Text,
    "type": Text,
    "model": Text,
    "session_id": Text,
    "priority": Integer,
    "weight": Real,
    "prompt_tokens": Tokens,
    "output_tokens": Tokens,
    "cached_tokens": Tokens,
    "recomputed_tokens": Tokens,
}
"""What crosses, where the left side has null or the default."""

_FACT_TYPES: Final[dict[Callable[[str], Field], pl.DataType]] = {
    Text: pl.String(),
    Integer: pl.Int64(),
    Tokens: pl.Int64(),
    Real: pl.Float64(),
}
MATCHED_MIN: Final = 0.9
KEYS_SHOWN: Final = 3
_DEFAULTS: Final = {"tenant": DEFAULT_TENANT, "type": DEFAULT_TYPE}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_UUID_LENGTH: Final = 36
_COMPLETION_PREFIX: Final = "cmpl-"
_CHOICE = re.compile(r"-\d+$")


@dataclass(frozen=True)
class JoinKey:
    """``--on KEY`` or ``--on LEFT=RIGHT``: canonical columns or paths; ``strip`` are prefixes that ids may carry."""

    left: str
    right: str
    strip: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str, strip: Sequence[str] = ()) -> JoinKey:
        """
        Raises:
            UsageError: a side is empty.
        """
        left, equals, right = text.partition("=")
        sides = (left.strip(), right.strip() if equals else left.strip())
        if not all(sides):
            raise UsageError(f"--on {text}: write KEY, or LEFT=RIGHT where the two logs call it differently")
        return JoinKey(*sides, tuple(strip))

    def spellings(self, value: object) -> tuple[str, ...]:
        """The value as compared: trimmed text, UUIDs in lower case, a prefix cut; none if it is unknown.

        A second spelling is tried where the first has no partner: vLLM's completions end in ``-<choice>``.
        """
        text = _as_text(value)
        if text is None:
            return ()
        for prefix in self.strip:
            if text.startswith(prefix):
                text = text.removeprefix(prefix)
                if prefix == _COMPLETION_PREFIX and _CHOICE.search(text):
                    return tuple(_spelt(item) for item in (text, _CHOICE.sub("", text)) if item)
                break
        return (_spelt(text),) if text else ()


def _spelt(text: str) -> str:
    return text.lower() if len(text) == _UUID_LENGTH and _UUID.fullmatch(text) else text


def _as_text(value: object) -> str | None:
    if isinstance(value, str):
        text = value.strip()
        return text if known(text) else None
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    return str(value) if type(value) is int else None


class SideKey:
    """One side's key: a canonical column as the format reads it, else a path of the record as it was read."""

    def __init__(self, name: str, option: str, log_format: Format, sample: Sample, file: str) -> None:
        self.name = name
        self.found = False
        self._option = option
        self._file = file
        self._names = dict.fromkeys(name for record in sample.records for name in paths_of(record))
        self._columns = tuple(place.column for place in log_format.columns_for(sample).get(name, ()))
        paths = [] if self._columns else find_path(name, sample.records)
        if len(paths) > 1:
            raise UsageError(f"{option}: stands at {', '.join(paths)} in {file}; name one of them")
        self.path = paths[0] if paths else name

    def of(self, record: Record, prepared: Record) -> object:
        value = next((prepared[name] for name in self._columns if known(prepared.get(name))), None)
        if value is None:
            value = walk(record, self.path)
        if value is None and record is not prepared:
            value = walk(prepared, self.path)
        self.found = self.found or value is not None
        return value

    def of_columns(self, block: pl.DataFrame, prepared: pl.DataFrame, odd: pl.Series | None) -> pl.Series:
        """The same for every row of a block; null where it is not in a column of its own, or the row is ``odd``."""
        places = [prepared[name] for name in self._columns if name in prepared.columns]
        places += [frame[self.path] for frame in (block, prepared) if self.path in frame.columns]
        if not places:
            return pl.Series([None] * block.height, dtype=pl.String)
        values = places[0]
        if values.dtype == pl.String:
            values = values.set((values == "") | (values == "-"), None)
        elif not values.dtype.is_integer():
            raise DeclinedError
        if odd is not None:
            values = values.set(odd, None)
        self.found = self.found or values.null_count() < values.len()
        return values

    def check(self) -> None:
        if not self.found:
            names = [*self._names, *(name for name in COLUMNS if name not in self._names)]
            raise UsageError(f"{self._option}: in no record of {self._file} ({nearest(self.name, names)})")


# -- the right side ---------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """What the gateway knows of one key: the first record's facts. ``tenants`` differ: the key is ambiguous."""

    facts: tuple[object, ...]
    ambiguous: bool


class Refused(NamedTuple):
    """A record of the gateway that no engine served: a row of its own, or why it is none."""

    number: int
    row: Row | None
    fault: RejectedError | None
    read: Read
    prepared: Record


@dataclass(frozen=True)
class Gateway:
    """The right side, read to its end. ``refused`` are the records that are not ``ok``, by key ("": none)."""

    path: Path
    source: str
    """Content id."""
    format: Format
    sample: Sample
    records: int
    entries: dict[str, Entry]
    refused: dict[str, list[Refused]]
    on_wall_clock: bool
    names_tenants: bool
    """Some record of it says its tenant."""

    @cached_property
    def places(self) -> dict[str, int]:
        """Key -> its row in ``facts``."""
        return {key: place for place, key in enumerate(self.entries)}

    @cached_property
    def facts(self) -> pl.DataFrame:
        """What it knows, a row an entry: the columns of ``FILLS``, and whether the key is ambiguous."""
        return _facts(self.entries.values())

    def without(self, matched: set[str]) -> Iterator[Refused]:
        """The refused records whose key no engine's log has, in file order."""
        left = (item for key, items in self.refused.items() if key not in matched for item in items)
        yield from sorted(left, key=lambda item: item.number)


def on_wall_clock(columns: Columns, sample: Sample) -> bool:
    """Arrivals of this log are of the calendar, not of a clock that started with the log or the machine."""
    places = columns.get("arrived_at", ())
    there = [place for place in places if place.column in sample.columns] or list(places)
    return bool(there) and all(isinstance(place, Wall | Epoch) for place in there)


# -- the left side ----------------------------------------------------------------------------------------------------


class Join:
    """The join of one engine's log with the gateway's: ``attach`` it to the format, read, ask for ``counts``."""

    def __init__(self, gateway: Gateway, key: JoinKey) -> None:
        self.gateway = gateway
        self.key = key
        self.matched: set[str] = set()
        self.left_only: dict[str, None] = {}
        self.on_wall_clock = False
        self._side: SideKey | None = None

    def attach(self, log_format: Format, sample: Sample, file: str) -> Format:
        """The format with the gateway's columns beside its own."""
        columns = dict(log_format.columns_for(sample))
        self.on_wall_clock = on_wall_clock(columns, sample)
        side = self._side = SideKey(self.key.left, f"--on {self.key.left}", log_format, sample, file)
        own = {name: tuple(place.column for place in columns.get(name, ())) for name in FILLS}
        keys: dict[str, str] = {}
        for name, kind in FILLS.items():
            keys[name] = free_key(name, columns)
            places = tuple(columns.get(name, ()))
            added = (kind(keys[name]),)
            columns[name] = (*added, *places) if name in _DEFAULTS else (*places, *added)
        entries = self.gateway.entries

        def change(record: Record, prepared: Record) -> Record:
            spelt = self.key.spellings(side.of(record, prepared))
            partner = next((item for item in spelt if item in entries), None)
            if partner is None:
                self.left_only |= dict.fromkeys(spelt[:1])
                return prepared | {key: None for name, key in keys.items() if not own[name]}
            self.matched.add(partner)
            entry = entries[partner]
            filled = dict(prepared)
            for (name, key), value in zip(keys.items(), entry.facts, strict=True):
                filled[key] = None if _says(prepared, own[name], _DEFAULTS.get(name)) else value
            if entry.ambiguous:
                filled[AMBIGUOUS] = (self.key.left, partner)
            return filled

        return changed(log_format, columns, change, self._by_columns(log_format, side, keys, own))

    def _by_columns(
        self, log_format: Format, side: SideKey, keys: dict[str, str], own: dict[str, tuple[str, ...]]
    ) -> ByColumns | None:
        """What ``change`` does, for whole columns; None where records have to be taken one by one."""
        if log_format.whole is not None or (log_format.prepare is not None and log_format.by_columns is None):
            return None
        first = log_format.by_columns
        places, facts = self.gateway.places, self.gateway.facts

        def prepare(block: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series | None]:
            frame, odd = first.prepare(block) if first else (block, None)
            found: list[int | None] = []
            values = side.of_columns(block, frame, odd)
            for value in values:
                spelt = self.key.spellings(value)
                partner = next(filter(places.__contains__, spelt), None)
                if partner is None:
                    self.left_only |= dict.fromkeys(spelt[:1])
                    found.append(None)
                else:
                    self.matched.add(partner)
                    found.append(places[partner])
            entries = facts.select(pl.all().gather(pl.Series(found, dtype=pl.Int64)))
            filled = {}
            for name, key in keys.items():
                filled[key] = entries[name]
                if name in _DEFAULTS:
                    said = _said(frame, own[name], _DEFAULTS[name])
                    filled[key] = filled[key].zip_with(~said, filled[key].clear(filled[key].len()))
            # Where the key is not at hand it may stand inside of something.
            if first is not None or "." in side.path:
                odd = either(odd, values.is_null())
            return frame.with_columns(**filled), either(odd, entries["ambiguous"].fill_null(value=False))

        return ByColumns((*(first.looks_at if first else ()), Text(side.path)), prepare)

    def check(self) -> None:
        """After the last record.

        Raises:
            UsageError: no record of the left side has the key.
        """
        if self._side is not None:
            self._side.check()

    def counts(self, left_records: int) -> dict[str, int]:
        """Records of both sides, and keys: of both, of the left only, of the right only."""
        return {
            "left_records": left_records,
            "right_records": self.gateway.records,
            "matched": len(self.matched),
            "left_only": len(self.left_only),
            "right_only": len(self.gateway.entries) - len(self.matched),
        }

    def remarks(self) -> list[str]:
        """Below 90 % of the left side's keys matched: some keys of each side; and refusals that cannot be placed."""
        said = []
        keys = len(self.matched) + len(self.left_only)
        if keys and len(self.matched) < MATCHED_MIN * keys:
            right = (key for key in self.gateway.entries if key not in self.matched)
            said.append(
                f"only {len(self.matched)} of {keys} keys have a partner in the joined log; without one: "
                f"{_some(self.left_only)} here, {_some(right)} there (see --on, --on-strip)"
            )
        refused = sum(1 for _ in self.gateway.without(self.matched))
        if refused and not (self.on_wall_clock and self.gateway.on_wall_clock):
            said.append(
                f"{refused} refused requests of the joined log are left out: one of the two logs does not tell the "
                "time of day"
            )
        return said


def _says(prepared: Record, columns: Sequence[str], default: str | None) -> bool:
    """The left side says it itself, other than by the default."""
    value = next((prepared[name] for name in columns if known(prepared.get(name))), None)
    return value is not None and value != default


def _said(frame: pl.DataFrame, columns: Sequence[str], default: str) -> pl.Series:
    """``_says`` for every row."""
    first = pl.coalesce(
        pl.lit(None, pl.String),
        *(
            pl.when(~pl.col(name).cast(pl.String).is_in(["", "-"])).then(pl.col(name).cast(pl.String))
            for name in columns
            if name in frame.columns
        ),
    )
    return frame.with_columns(said=(first.is_not_null() & (first != default)).fill_null(value=False))["said"]


def _facts(entries: Iterable[Entry]) -> pl.DataFrame:
    """What the gateway knows, a row an entry."""
    held = list(entries)
    schema = {name: _FACT_TYPES[kind] for name, kind in FILLS.items()}
    columns = {name: [entry.facts[place] for entry in held] for place, name in enumerate(FILLS)}
    return pl.DataFrame(columns, schema=schema).with_columns(
        ambiguous=pl.Series([entry.ambiguous for entry in held], dtype=pl.Boolean)
    )


def _some(keys: Iterable[str]) -> str:
    shown = [key if len(key) <= 60 else key[:59] + "…" for key in islice(keys, KEYS_SHOWN)]
    return ", ".join(map(repr, shown)) or "none"
