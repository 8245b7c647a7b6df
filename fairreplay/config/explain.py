"""A fault in a TOML file that pydantic found, told with its line and the nearest key that exists."""

from __future__ import annotations

import re
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from fairreplay.errors import nearest


def explained(error: ValidationError, text: str, model: type[BaseModel]) -> str:
    """The first fault of ``text`` (TOML) for a message: `, line 3: unknown key 'x'; did you mean 'y'?`.

    A misspelt key comes before the key that is missing for it.
    """
    faults = error.errors(include_url=False, include_input=True)
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    where = [part for part in first["loc"] if not (isinstance(part, str) and part.startswith("function-"))]
    key = ".".join(str(part) for part in where)
    line = line_of(text, [part for part in where if isinstance(part, str)])
    at = f", line {line}" if line else ""
    if first["type"] == "extra_forbidden":
        return f"{at}: unknown key {key!r}; {nearest(str(where[-1]), _keys_beside(where, model))}"
    if first["type"] == "missing":
        return f"{at}: {key} is missing"
    shown = repr(first.get("input"))
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return f"{at}: {key} = {shown}: {first['msg'].removeprefix('Value error, ')}"


def line_of(text: str, path: list[str]) -> int | None:
    """Line of the last key of ``path``, searched below the table header that names the keys before it."""
    if not path:
        return None
    lines = text.splitlines()
    header_at = 0
    for parts in range(len(path) - 1, 0, -1):
        dotted = r"\s*\.\s*".join(rf"[\"']?{re.escape(part)}[\"']?" for part in path[:parts])
        header = re.compile(rf"^\s*\[\[?\s*{dotted}\s*\]")
        found = next((number for number, line in enumerate(lines) if header.match(line)), None)
        if found is not None:
            header_at = found
            break
    last = re.compile(rf"(^|[\s{{,.\[])[\"']?{re.escape(path[-1])}[\"']?\s*[=\].]")
    for number in range(header_at, len(lines)):
        if last.search(lines[number]):
            return number + 1
    return None


def _keys_beside(where: list[Any], root: type[BaseModel]) -> list[str]:
    """The keys that the table holding ``where[-1]`` knows."""
    model: type[BaseModel] | None = root
    for part in where[:-1]:
        if model is None:
            return []
        if isinstance(part, int):
            continue
        field = model.model_fields.get(str(part))
        if field is None:
            continue  # the name of an entry in a dict of tables
        model = _table_in(field.annotation)
    if model is None:
        return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _table_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = _table_in(inner)
        if found is not None:
            return found
    return None
