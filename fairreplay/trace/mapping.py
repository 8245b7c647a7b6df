"""Mapping files: how any other log becomes the canonical columns, said in TOML (``ingest --map FILE.toml``).

The formats that this form can express are such files themselves, packaged beside their neighbours in ``formats``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import re2
from pydantic import ValidationError

from fairreplay.config.explain import explained, line_of
from fairreplay.errors import UsageError, nearest
from fairreplay.trace.fields import Format
from fairreplay.trace.map_draft import draft as draft
from fairreplay.trace.map_reader import TIME_BASES, Condition, Plan, mapped_format, split_path, texts_of
from fairreplay.trace.map_tables import (
    MAPPED_COLUMNS,
    NUMBER_COLUMNS,
    ClockTable,
    ColumnTable,
    ConditionTable,
    MappingFile,
)
from fairreplay.trace.schema import TIME_COLUMNS
from fairreplay.trace.values import compile_pattern

_FILE_BYTES_MAX: Final = 1 << 20
_ARRIVAL: Final = "the arrival is an instant; name its clock"


def load_mapping(path: Path, taken: Collection[str] = ()) -> Format:
    """The format that the mapping file at ``path`` describes; ``taken`` are names that it may not have.

    Raises:
        UsageError: no such file, not TOML, an unknown key or column, or keys that contradict each other.
    """
    try:
        content = path.read_bytes()
        text = content[:_FILE_BYTES_MAX].decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"map {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"map {path}: cannot be read: {error}") from None
    if len(content) > _FILE_BYTES_MAX:
        raise UsageError(f"map {path}: more than {_FILE_BYTES_MAX} bytes; name the mapping, not the log")
    log_format = parse_mapping(text, str(path))
    if log_format.name in taken:
        raise UsageError(f"map {path}: name = {log_format.name!r} is a format of its own; choose another name")
    return log_format


def packaged(name: str) -> Format:
    """The format of the mapping file ``formats/<name>.toml`` of this package."""
    path = Path(__file__).with_name("formats") / f"{name}.toml"
    return parse_mapping(path.read_text(encoding="utf-8"), path.name, private=False)


def parse_mapping(text: str, file: str, *, private: bool = True) -> Format:
    """The format in ``text``; ``file`` stands in its errors. ``private``: as of ``mapped_format``."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"map {file}: not TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"map {file}: nested too deeply") from None
    try:
        mapping = MappingFile.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"map {file}{explained(error, text, MappingFile)}") from None
    try:
        plan = _plan(mapping)
    except _FaultError as fault:
        line = line_of(text, list(fault.where))
        at = f", line {line}" if line else ""
        raise UsageError(f"map {file}{at}: {'.'.join(fault.where)}: {fault.what}") from None
    return mapped_format(plan, file, private=private)


class _FaultError(Exception):
    """Keys that are each right and do not fit together."""

    def __init__(self, where: tuple[str, ...], what: str) -> None:
        super().__init__(what)
        self.where = where
        self.what = what


def _plan(mapping: MappingFile) -> Plan:
    _check_names(mapping)
    read = mapping.read
    if read.records is not None and read.kind != "json":
        raise _FaultError(("read", "records"), 'is for kind = "json"')
    if read.kind != "csv" and (read.delimiter != "," or not read.header):
        raise _FaultError(("read", "header" if not read.header else "delimiter"), 'is for kind = "csv"')
    clocks = {name: _clock(name, clock) for name, clock in mapping.clock.items()}
    columns = {name: _column(name, table, clocks) for name, table in mapping.columns.items()}
    regexes = {
        name: _regex(table.regex, ("columns", name, "regex"), groups=1)
        for name, table in mapping.columns.items()
        if table.regex is not None
    }
    keep = [_condition(item, ("read", "keep")) for item in read.keep]
    types = [(_condition(rule.when, ("type", "when")) if rule.when else None, rule.name) for rule in mapping.type]
    return Plan(mapping=mapping, clocks=clocks, columns=columns, regexes=regexes, keep=keep, types=types)


def _check_names(mapping: MappingFile) -> None:
    for section, names in (("columns", mapping.columns), ("constants", mapping.constants)):
        for name in names:
            if name not in MAPPED_COLUMNS:
                raise _FaultError((section, name), f"no canonical column; {nearest(name, list(MAPPED_COLUMNS))}")
    for name in mapping.constants:
        if name in TIME_COLUMNS or name in ("request_id", "prefix_ids"):
            raise _FaultError(("constants", name), "cannot be the same for all requests")
        if name in mapping.columns:
            raise _FaultError(("constants", name), "is in [columns] too; use default there, or leave one out")
        if name in NUMBER_COLUMNS and isinstance(mapping.constants[name], str):
            raise _FaultError(("constants", name), "must be a number")
    for name, table in (("status", mapping.status), ("type", mapping.type)):
        if table and (name in mapping.columns or name in mapping.constants):
            other = "columns" if name in mapping.columns else "constants"
            raise _FaultError((other, name), f"is decided by [{name}] too; leave one out")
    if "arrived_at" not in mapping.columns:
        raise _FaultError(("columns",), "no arrived_at; FairReplay cannot replay a log without arrival times")


def _clock(name: str, clock: ClockTable) -> ClockTable:
    where = ("clock", name)
    if clock.kind == "wall":
        if clock.unit is not None:
            raise _FaultError((*where, "unit"), "is for epoch and relative clocks")
        if clock.tz is not None:
            _zone(clock.tz, (*where, "tz"))
        if clock.format is not None:
            try:
                compile_pattern(clock.format)
            except ValueError as error:
                raise _FaultError((*where, "format"), f"{clock.format!r}: {error}") from None
        return clock
    for key in ("format", "tz"):
        if getattr(clock, key) is not None:
            raise _FaultError((*where, key), "is for wall clocks")
    if clock.unit is None:
        raise _FaultError(
            where, f"{'an' if clock.kind == 'epoch' else 'a'} {clock.kind} clock needs unit: s, ms, us, ns"
        )
    return clock


def _zone(name: str, where: tuple[str, ...]) -> None:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise _FaultError(where, f"{name!r}: no such zone; name one such as Europe/Berlin or UTC") from None


def _column(name: str, table: ColumnTable, clocks: dict[str, ClockTable]) -> ColumnTable:
    where = ("columns", name)
    if (table.column is None) == (table.total is None):
        raise _FaultError(where, "needs either column or sum")
    for path in (table.column, *(table.total or ()), *table.otherwise, table.minus):
        if path is not None and not all(split_path(path)):
            raise _FaultError(where, f"{path!r}: an empty name in the path; write a dot inside a name as \\\\.")
    if table.total is not None:
        for key in ("regex", "otherwise", "minus"):
            if getattr(table, key):
                raise _FaultError(where, f"sum does not go with {'else' if key == 'otherwise' else key}")
    if name in TIME_COLUMNS:
        _check_time(name, table, clocks)
        return table
    for key in ("clock", "unit", "after", "minus"):
        if getattr(table, key) is not None:
            raise _FaultError((*where, key), f"is for times ({', '.join(TIME_COLUMNS)})")
    if name not in NUMBER_COLUMNS and (table.total is not None or table.negate):
        raise _FaultError(where, f"{'sum' if table.total is not None else 'negate'} is for numbers")
    if name in NUMBER_COLUMNS and isinstance(table.default, str):
        raise _FaultError((*where, "default"), "must be a number")
    if name == "prefix_ids" and (table.regex is not None or table.default is not None):
        raise _FaultError(where, "takes a list of integers; regex and default do not go with it")
    if table.block_tokens is not None and name != "prefix_ids":
        raise _FaultError((*where, "block_tokens"), "is for prefix_ids")
    return table


def _check_time(name: str, table: ColumnTable, clocks: dict[str, ClockTable]) -> None:
    """An instant names its clock; a duration its unit, or the clock of two marks, and what it counts from."""
    where = ("columns", name)
    if table.clock is not None and table.clock not in clocks:
        hint = nearest(table.clock, list(clocks)) if clocks else "there is no [clock] table"
        raise _FaultError((*where, "clock"), f"{table.clock!r}: no such clock; {hint}")
    for key in ("negate", "default", "block_tokens"):
        if getattr(table, key) not in (None, False):
            raise _FaultError((*where, key), "does not go with a time")
    if table.after is None:
        if table.unit is not None or table.minus is not None or table.total is not None:
            key = "unit" if table.unit is not None else "minus" if table.minus is not None else "sum"
            what = 'is for durations; say what it counts from, after = "arrived_at"'
            raise _FaultError(
                (*where, key), what if name != "arrived_at" else "the arrival is an instant; name its clock"
            )
        if table.clock is None:
            known = f" ({', '.join(clocks)})" if clocks else ", defined as [clock.NAME]"
            raise _FaultError(where, f"a time names its clock{known}; a duration has unit and after")
        return
    bases = TIME_BASES[name]
    if table.after not in bases:
        what = f"{table.after!r}: one of {', '.join(bases)}" if bases else _ARRIVAL
        raise _FaultError((*where, "after"), what)
    if (table.unit is None) == (table.clock is None):
        raise _FaultError(where, "a duration needs unit, or for two marks (minus) their clock")
    if table.clock is not None:
        if table.minus is None:
            raise _FaultError((*where, "clock"), "with after, two marks: column and minus; a plain duration has unit")
        if clocks[table.clock].kind == "wall":
            raise _FaultError((*where, "clock"), "marks are read from clocks that count (epoch or relative)")


def _condition(table: ConditionTable, where: tuple[str, ...]) -> Condition:
    if not all(split_path(table.column)):
        raise _FaultError(where, f"{table.column!r}: an empty name in the path; write a dot inside a name as \\\\.")
    return Condition(
        parts=split_path(table.column),
        among=texts_of(table.among) if table.among is not None else None,
        regex=_regex(table.regex, (*where, "regex")) if table.regex is not None else None,
        at_least=table.at_least,
        at_most=table.at_most,
    )


def _regex(text: str, where: tuple[str, ...], groups: int | None = None) -> Any:
    """A compiled RE2 expression: matching takes time linear in the text, whatever either of them is."""
    options = re2.Options()
    options.log_errors = False
    try:
        regex = re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0]
        raise _FaultError(
            where, f"{text!r}: {reason.decode(errors='replace') if isinstance(reason, bytes) else reason}"
        ) from None
    if groups is not None and regex.groups != groups:
        raise _FaultError(where, f"{text!r} has {regex.groups} groups, not one; (?:...) groups without counting")
    return regex
