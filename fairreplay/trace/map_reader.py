"""A checked mapping file as a format: paths into records, made values, and what must exist.

Where a column is a key of the record as it stands, it is declared like that of any built-in format; everything else is
put into the prepared record under the path's own text, so that a reject names what the mapping names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import polars as pl

from fairreplay.errors import UsageError, nearest
from fairreplay.trace import nested
from fairreplay.trace.columnwise import ByColumns, either, made
from fairreplay.trace.fields import (
    After,
    Container,
    Epoch,
    Field,
    Format,
    Ids,
    Integer,
    Real,
    Record,
    Relative,
    Sample,
    Skipped,
    Text,
    Tokens,
    Wall,
    has_all,
)
from fairreplay.trace.map_tables import ClockTable, ColumnTable, DetectTable, MappingFile, Scalar
from fairreplay.trace.schema import TIME_COLUMNS
from fairreplay.trace.values import Number, UnparsableError, add, known, parse_number, subtract, whole

TIME_BASES: Final[dict[str, tuple[str, ...]]] = {name: TIME_COLUMNS[:index] for index, name in enumerate(TIME_COLUMNS)}
"""What a duration may count from: the time columns before it."""

_CONTAINERS: Final[dict[str, tuple[Container, ...]]] = {
    "jsonl": ("jsonl", "document"),
    "json": ("jsonl", "document"),
    "csv": ("csv",),
    "parquet": ("parquet",),
}
_KINDS: Final[dict[str, Callable[[str], Field]]] = {
    **dict.fromkeys(("prompt_tokens", "output_tokens", "cached_tokens", "recomputed_tokens"), Tokens),
    **dict.fromkeys(("priority", "preemptions"), Integer),
    **dict.fromkeys(("weight", "batch_utilization"), Real),
    "prefix_ids": Ids,
}
_PATHS_MAX: Final = 2000
_DEPTH_MAX: Final = 6

Parts = tuple[str, ...]


class _Missing:
    """Stands for "no such key", which is not the same as null."""


_MISSING: Final = _Missing()


def split_path(path: str) -> Parts:
    """``a.b`` as names; ``\\.`` is a dot inside a name, ``\\\\`` a backslash."""
    parts, name, escaped = [], "", False
    for character in path:
        if escaped or character not in "\\.":
            name += character
            escaped = False
        elif character == "\\":
            escaped = True
        else:
            parts.append(name)
            name = ""
    return (*parts, name)


def joined_path(parts: Iterable[str]) -> str:
    return ".".join(part.replace("\\", "\\\\").replace(".", "\\.") for part in parts)


@lru_cache(maxsize=1024)
def _whole_key(parts: Parts) -> str:
    return ".".join(parts)


class Walk:
    """One record whose objects are walked; JSON inside a string is opened once."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._opened: dict[Parts, object] = {}

    def get(self, parts: Parts) -> object:
        """What stands at a path. A key that is spelt like the whole path comes first."""
        record = self._record
        if len(parts) == 1:
            return record.get(parts[0], _MISSING)
        if (spelt := _whole_key(parts)) in record:
            return record[spelt]
        value: object = record
        for depth, part in enumerate(parts):
            if type(value) is str:
                value = self._open(parts[:depth], value)
            if not isinstance(value, dict) or part not in value:
                return _MISSING
            value = value[part]
        return value

    def _open(self, at: Parts, text: str) -> object:
        if at not in self._opened:
            self._opened[at] = _opened(text)
        return self._opened[at]


def _opened(text: str) -> object:
    """The JSON that a string holds, or None."""
    inner = nested.opened(text)
    return None if inner is text else inner


def text_of(value: object) -> str | None:
    """A single value as text, for comparing: ``True`` is "true", 200 and 200.0 are "200"."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    try:
        return _digits(parse_number(value))
    except UnparsableError:
        return None


def texts_of(values: Iterable[Scalar]) -> frozenset[str]:
    """The texts that stand for ``values``; of a number in text (``0.0``) that of the number too."""
    texts = {text for value in values if (text := text_of(value)) is not None}
    numbers = (nested.number_of(text) for text in texts)
    return frozenset(texts | {_digits(number) for number in numbers if number is not None})


def _digits(number: Number) -> str:
    integer = whole(number)
    return str(integer) if integer is not None else format(number, "f")


def _one_of(value: object, texts: Collection[str]) -> str | None:
    """Which of ``texts`` equals ``value``: its own text, or for a number in text (``200.0``) that of the number."""
    text = text_of(value)
    if text is None or text in texts:
        return text
    number = nested.number_of(text)
    digits = _digits(number) if number is not None else None
    return digits if digits in texts else None


@dataclass(frozen=True)
class Condition:
    """A test of one value; a value that is not known fails it."""

    parts: Parts
    among: frozenset[str] | None
    regex: Any
    at_least: float | None
    at_most: float | None

    def holds(self, walk: Walk) -> bool:
        value = walk.get(self.parts)
        if value is _MISSING or not known(value):
            return False
        if self.among is not None and _one_of(value, self.among) is None:
            return False
        if self.regex is not None and self.regex.search(text_of(value) or "") is None:
            return False
        return self._in_bounds(value)

    def _in_bounds(self, value: object) -> bool:
        if self.at_least is None and self.at_most is None:
            return True
        try:
            number = parse_number(value)
        except UnparsableError:
            return False
        return (self.at_least is None or number >= self.at_least) and (self.at_most is None or number <= self.at_most)


@dataclass(frozen=True)
class Plan:
    """A mapping file whose keys fit together, with its conditions compiled."""

    mapping: MappingFile
    clocks: Mapping[str, ClockTable]
    columns: Mapping[str, ColumnTable]
    regexes: Mapping[str, Any]
    keep: Sequence[Condition]
    types: Sequence[tuple[Condition | None, str]]


class _Named(NamedTuple):
    """A path that the mapping names: where in the file, and whether the whole log may lack it."""

    where: str
    parts: Parts
    optional: bool


class _Made(NamedTuple):
    """A value that is put into the prepared record under ``key``."""

    key: str
    make: Callable[[Walk], object]
    paths: tuple[Parts, ...]
    """All that it looks at."""


def mapped_format(plan: Plan, file: str, *, private: bool) -> Format:
    """The format that ``plan`` describes; ``file`` is the mapping file, for messages.

    ``private``: a person's own mapping. Its logs may hold prompts and answers, and every path in it must exist.
    """
    mapping = plan.mapping
    builder = _Builder(plan)
    columns = builder.columns()
    named = _named(plan)
    needs = (
        tuple(mapping.detect.needs)
        if mapping.detect
        else tuple(dict.fromkeys(joined_path(item.parts) for item in named if not item.optional))
    )
    kept = builder.plain if builder.made or plan.keep or plan.types or mapping.status else None
    ids = mapping.columns.get("prefix_ids")
    records = split_path(mapping.read.records) if mapping.read.records else None

    def survey(sample: Sample, values: Iterable[Record]) -> Format:
        return _checked(log_format, named, sample, values, file)

    log_format = Format(
        name=mapping.name,
        containers=_CONTAINERS[mapping.read.kind],
        needs=needs,
        columns=columns,
        matches=_matcher(mapping.detect, records, file),
        prepare=_preparer(plan, kept, builder.made) if kept is not None else None,
        by_columns=_by_columns(plan, builder.made) if kept is not None else None,
        explode=_exploder(records) if records else None,
        survey=survey if private else None,
        private=private,
        reads=tuple(dict.fromkeys(item.parts[0] for item in named)),
        prefix_block_tokens=ids.block_tokens if ids else None,
        pages=not private,
        delimiter=mapping.read.delimiter,
        header=mapping.read.header,
    )
    return log_format


# -- columns ----------------------------------------------------------------------------------------------------------


class _Builder:
    """Declares the columns; what is no key of the record as it stands is listed in ``made``."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.made: list[_Made] = []
        self.plain: set[str] = set()
        """Keys of the record that are declared as they stand."""

    def columns(self) -> dict[str, tuple[Field, ...]]:
        tables = self._plan.columns
        for name, table in tables.items():
            paths = map(split_path, (*_paths(table), *([table.minus] if table.minus else [])))
            self.plain.update(parts[0] for parts in paths if self._stands(name, table, parts))
        columns = {name: self._fields(name, table) for name, table in tables.items()}
        for name, value in self._plan.mapping.constants.items():
            columns[name] = (_kind(name)(self._add(f"constant {name}", name, _constant(value), ())),)
        status, types = self._plan.mapping.status, self._plan.types
        if status is not None:
            status_at = (split_path(status.column),)
            columns["status"] = (Text(self._add(status.column, "status", _status_of(self._plan), status_at)),)
        if types:
            at = tuple(rule.parts for rule, _ in types if rule is not None)
            columns["type"] = (Text(self._add("type by rule", "type", lambda walk: _type_of(types, walk), at)),)
        return columns

    def _stands(self, name: str, table: ColumnTable, parts: Parts) -> bool:
        """The value of a path is a value of the record that needs nothing done to it."""
        changed = table.total is not None or table.null or table.negate or table.regex is not None
        cell = name == "prefix_ids" and self._plan.mapping.read.kind == "csv"
        return len(parts) == 1 and not changed and not cell

    def _fields(self, name: str, table: ColumnTable) -> tuple[Field, ...]:
        declare = self._declared(name, table)
        fields: list[Field] = []
        if table.total is not None:
            sum_, at = _sum_of(table, spans=name in TIME_COLUMNS), tuple(map(split_path, table.total))
            fields.append(declare(self._add(" + ".join(table.total), name, sum_, at)))
        for path in _paths(table) if table.total is None else ():
            parts = split_path(path)
            if self._stands(name, table, parts):
                fields.append(declare(parts[0]))
                continue
            regex = self._plan.regexes.get(name) if path == table.column else None
            value = _value_of(parts, table, regex, ids=name == "prefix_ids")
            fields.append(declare(self._add(path, name, value, (parts,))))
        if table.default is not None:
            fields.append(declare(self._add(f"default {name}", name, _constant(table.default), ())))
        return tuple(fields)

    def _declared(self, name: str, table: ColumnTable) -> Callable[[str], Field]:
        """How the rules are to read a column of this name from a key."""
        if name not in TIME_COLUMNS:
            return _kind(name)
        clock = self._plan.clocks[table.clock] if table.clock else None
        unit = table.unit or (clock.unit if clock else None)
        if table.after is not None:
            assert unit is not None, "checked with the mapping"
            minus, base = self._mark(name, table), table.after
            return lambda key: After(key, unit, minus, base)
        assert clock is not None, "checked with the mapping"
        if clock.kind == "wall":
            zone = ZoneInfo(clock.tz) if clock.tz else None
            return lambda key: Wall(key, zone=zone, pattern=clock.format)
        assert unit is not None, "checked with the mapping"
        counted = Epoch if clock.kind == "epoch" else Relative
        return lambda key: counted(key, unit)

    def _mark(self, name: str, table: ColumnTable) -> str | None:
        if table.minus is None:
            return None
        parts = split_path(table.minus)
        if self._stands(name, table, parts):
            return parts[0]
        return self._add(table.minus, f"{name} minus", _value_of(parts, table, None, ids=False), (parts,))

    def _add(self, key: str, use: str, make: Callable[[Walk], object], paths: tuple[Parts, ...]) -> str:
        """A key for a made value: the path's own text, unless that is taken by another value."""
        taken = self.plain | {item.key for item in self.made}
        free = key if key not in taken else f"{key} ({use})"
        self.made.append(_Made(free, make, paths))
        return free


def _paths(table: ColumnTable) -> list[str]:
    first = [table.column] if table.column is not None else table.total or []
    return [*first, *table.otherwise]


def _kind(name: str) -> Callable[[str], Field]:
    return _KINDS.get(name, Text)


def _constant(value: object) -> Callable[[Walk], object]:
    return lambda _: value


def _value_of(parts: Parts, table: ColumnTable, regex: Any, *, ids: bool) -> Callable[[Walk], object]:
    nulls = texts_of(table.null)

    def value(walk: Walk) -> object:
        found = walk.get(parts)
        if found is _MISSING or not known(found):
            return found
        if nulls and _one_of(found, nulls) is not None:
            return None
        if regex is not None:
            match = regex.search(text_of(found) or "")
            found = match.group(1) if match is not None else None
        if ids and isinstance(found, str):
            found = nested.opened(found)
        return _negated(found) if table.negate and known(found) else found

    return value


def _negated(value: object) -> object:
    number = nested.number_of(value)
    return value if number is None else subtract(0, number)


def _sum_of(table: ColumnTable, *, spans: bool) -> Callable[[Walk], object]:
    """A sum of counts whose first part is known, others may be absent; of durations, all of which must be known.

    A part that is no number, or a count below 0 or with a fraction, stands for the sum: the rules reject it.
    """
    makers = [
        _value_of(split_path(path), table.model_copy(update={"negate": False}), None, ids=False)
        for path in table.total or ()
    ]

    def total(walk: Walk) -> object:
        parts = [make(walk) for make in makers]
        there = [part for part in parts if part is not _MISSING and known(part)]
        if not there or (parts[0] is _MISSING or not known(parts[0])) or (spans and len(there) < len(parts)):
            return _MISSING if all(part is _MISSING for part in parts) else None
        result: Number = 0
        for part in there:
            try:
                number = parse_number(part)
            except UnparsableError:
                return part
            if spans and number == -1:
                return None
            if not spans and (number < 0 or whole(number) is None):
                return part
            result = add(result, number)
        return _negated(result) if table.negate else result

    return total


def _status_of(plan: Plan) -> Callable[[Walk], object]:
    table = plan.mapping.status
    assert table is not None
    parts = split_path(table.column)

    def status(walk: Walk) -> object:
        value = walk.get(parts)
        if value is _MISSING or not known(value):
            return table.default
        text = _one_of(value, table.map)
        if text is not None:
            return table.map[text]
        return table.default if table.default is not None else value

    return status


def _type_of(rules: Sequence[tuple[Condition | None, str]], walk: Walk) -> str | None:
    return next((name for condition, name in rules if condition is None or condition.holds(walk)), None)


# -- records ----------------------------------------------------------------------------------------------------------


def _preparer(plan: Plan, kept: set[str], made: Sequence[_Made]) -> Callable[[Record], Record | Skipped]:
    def prepare(record: Record) -> Record | Skipped:
        walk = Walk(record)
        if not all(condition.holds(walk) for condition in plan.keep):
            return Skipped("not_a_request")
        prepared: Record = {name: value for name, value in record.items() if name in kept}
        for key, make, _ in made:
            value = make(walk)
            if value is not _MISSING:
                prepared[key] = value
        return prepared

    return prepare


def _by_columns(plan: Plan, all_made: Sequence[_Made]) -> ByColumns | None:
    """The same for whole columns, where no path leads into an object."""
    paths = [*(path for item in all_made for path in item.paths), *(condition.parts for condition in plan.keep)]
    if any(len(path) > 1 for path in paths):
        return None

    def prepare(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series | None]:
        odd = None
        for condition in plan.keep:
            odd = either(odd, ~made(frame, [condition.parts[0]], partial(_holds, condition)))
        columns = [
            made(frame, [path[0] for path in item.paths], partial(_made_of, item)).alias(item.key) for item in all_made
        ]
        return frame.with_columns(columns), odd

    return ByColumns(tuple(Text(path[0]) for path in paths), prepare)


def _holds(condition: Condition, record: Record) -> bool:
    return condition.holds(Walk(record))


def _made_of(item: _Made, record: Record) -> object:
    value = item.make(Walk(record))
    return None if value is _MISSING else value


def _exploder(parts: Parts) -> Callable[[Record], list[object] | None]:
    def rows(document: Record) -> list[object] | None:
        value = Walk(document).get(parts)
        return value if isinstance(value, list) else None

    return rows


def _matcher(detect: DetectTable | None, records: Parts | None, file: str) -> Callable[[Sample], bool]:
    rows = _exploder(records) if records else None

    def matches(sample: Sample) -> bool:
        if rows is not None and sample.records and not any(rows(record) is not None for record in sample.records):
            lists = [joined_path(path) for path, value in all_paths(sample.records) if isinstance(value, list)]
            hint = nearest(joined_path(records or ()), lists) if lists else "there are none"
            raise UsageError(f"map {file}: read.records: no array at {joined_path(records or ())!r}; {hint}")
        return detect is None or _fits(detect, sample)

    return matches


def _fits(detect: DetectTable, sample: Sample) -> bool:
    if sample.container in ("csv", "parquet"):
        return has_all(sample, detect.needs) and not any(name in sample.columns for name in detect.without)
    return any(
        all(name in record for name in detect.needs)
        and not any(name in record for name in detect.without)
        and not any(isinstance(record.get(name), dict) for name in detect.no_object)
        for record in sample.records
    )


# -- what must exist --------------------------------------------------------------------------------------------------


def _named(plan: Plan) -> list[_Named]:
    mapping = plan.mapping
    named = [
        _Named(f"columns.{name}", split_path(path), table.optional)
        for name, table in plan.columns.items()
        for path in (*_paths(table), *([table.minus] if table.minus else []))
    ]
    if mapping.status is not None:
        named.append(_Named("status", split_path(mapping.status.column), optional=False))
    named += [_Named("type", rule.parts, optional=False) for rule, _ in plan.types if rule is not None]
    named += [_Named("read.keep", condition.parts, optional=False) for condition in plan.keep]
    return named


def _checked(
    log_format: Format, named: Sequence[_Named], sample: Sample, records: Iterable[Record], file: str
) -> Format:
    """``log_format`` if every path of the mapping is there in some record; the first records mostly have them all."""
    wanted = [item for item in named if not item.optional]
    missing = [item for item in wanted if not (len(item.parts) == 1 and item.parts[0] in sample.columns)]
    missing = _without_those_of(missing, sample.records)
    if missing:
        for record in records:
            missing = _without_those_of(missing, [record])
            if not missing:
                break
    if missing:
        item = missing[0]
        known_paths = [joined_path(path) for path, _ in all_paths(sample.records)] or list(sample.columns)
        path = joined_path(item.parts)
        hint = nearest(path, known_paths) if known_paths else "there are no records"
        raise UsageError(f"map {file}: {item.where}: no record has {path!r}; {hint}")
    return log_format


def _without_those_of(missing: Sequence[_Named], records: Sequence[Record]) -> list[_Named]:
    walks = [Walk(record) for record in records] if missing else []
    return [item for item in missing if all(walk.get(item.parts) is _MISSING for walk in walks)]


def all_paths(records: Sequence[Record]) -> list[tuple[Parts, object]]:
    """Every path of the sampled records in order of appearance, with its first value."""
    found: dict[Parts, object] = {}

    def visit(at: Parts, value: object) -> None:
        inner = nested.opened(value)
        if not isinstance(inner, dict) or len(at) >= _DEPTH_MAX:
            return
        for key, item in inner.items():
            path = (*at, key)
            if len(found) < _PATHS_MAX and found.get(path) is None:
                found[path] = item
                visit(path, item)

    for record in records:
        visit((), record)
    return list(found.items())
