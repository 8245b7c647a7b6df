"""``--join``: the gateway's log gives tenants, types and token counts to the engine's rows.

Left is the engine's log, right the gateway's. Only names and counts cross, no time: the two have two clocks. What the
left side says itself is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from fairreplay.errors import UsageError, nearest
from fairreplay.trace.adapt import changed, free_key
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

MATCHED_MIN: Final = 0.9
KEYS_SHOWN: Final = 3
_DEFAULTS: Final = {"tenant": DEFAULT_TENANT, "type": DEFAULT_TYPE}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
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
        cut = next((prefix for prefix in self.strip if text.startswith(prefix)), "")
        text = text.removeprefix(cut)
        spelt = [text]
        if cut == _COMPLETION_PREFIX and _CHOICE.search(text):
            spelt.append(_CHOICE.sub("", text))
        return tuple(item.lower() if _UUID.fullmatch(item) else item for item in spelt if item)


def _as_text(value: object) -> str | None:
    if isinstance(value, str):
        return value.strip() or None if known(value.strip()) else None
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
        self._path = paths[0] if paths else name

    def of(self, record: Record, prepared: Record) -> object:
        value = next((prepared[name] for name in self._columns if known(prepared.get(name))), None)
        if value is None:
            value = walk(record, self._path)
        if value is None and record is not prepared:
            value = walk(prepared, self._path)
        self.found = self.found or value is not None
        return value

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

        return changed(log_format, columns, change)

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


def _some(keys: Iterable[str]) -> str:
    shown = [key if len(key) <= 60 else key[:59] + "…" for key in islice(keys, KEYS_SHOWN)]
    return ", ".join(map(repr, shown)) or "none"
