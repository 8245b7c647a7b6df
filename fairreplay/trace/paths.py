"""A place inside a record by its path: ``a.b.c`` walks objects, ``a\\.b`` is a key with a dot."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from fairreplay.trace.fields import Record

DEPTH_MAX: Final = 8
_PARTS = re.compile(r"(?:\\.|[^.\\])+")


@lru_cache(maxsize=256)
def split_path(path: str) -> tuple[str, ...]:
    """``a.b\\.c`` -> (``a``, ``b.c``)."""
    return tuple(re.sub(r"\\(.)", r"\1", part) for part in _PARTS.findall(path)) or (path,)


def walk(record: Record, path: str) -> object:
    """What stands at ``path``, or None. A key that is spelt like the whole path comes first; JSON text is opened."""
    if path in record:
        return record[path]
    value: object = record
    for part in split_path(path):
        if isinstance(value, str) and value[:1] == "{":
            value = _opened(value)
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def _opened(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def paths_of(record: Record) -> Iterator[str]:
    """Every path of the record that ends in a plain value."""
    yield from _paths(record, "", 0)


def _paths(value: object, prefix: str, depth: int) -> Iterator[str]:
    if isinstance(value, str) and value[:1] == "{" and depth:
        value = _opened(value) or value
    if not isinstance(value, dict) or depth > DEPTH_MAX:
        if prefix and not isinstance(value, dict | list):
            yield prefix[1:]
        return
    for key, inner in value.items():
        escaped = key.replace("\\", "\\\\").replace(".", "\\.")
        yield from _paths(inner, f"{prefix}.{escaped}", depth + 1)


def find_path(name: str, records: Iterable[Record]) -> list[str]:
    """Where ``name`` is in ``records``: [``name``] if it is a path, else every path whose last key it is."""
    ends: dict[str, None] = {}
    for record in records:
        if walk(record, name) is not None:
            return [name]
        ends |= dict.fromkeys(path for path in paths_of(record) if split_path(path)[-1] == name)
    return list(ends)
