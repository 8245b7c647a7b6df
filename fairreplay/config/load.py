"""Read ``fairreplay.toml``: an error names the key, the line and the nearest key that exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from fairreplay.config.model import Config, resolve_cluster
from fairreplay.errors import UsageError, nearest

DEFAULT_NAME = "fairreplay.toml"


def load_config(path: Path | None) -> Config:
    """The config at ``path``; without a path ``./fairreplay.toml`` if it is there, else all defaults.

    Raises:
        UsageError: no such file, not TOML, an unknown key, or a value of the wrong type or range.
    """
    if path is None:
        path = Path(DEFAULT_NAME)
        if not path.exists():
            return Config()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"config {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"config {path}: cannot be read: {error}") from None
    return parse_config(text, str(path))


def parse_config(text: str, name: str) -> Config:
    """The config in ``text``; ``name`` stands in its errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"config {name}: not TOML: {error}") from None
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"config {name}{_describe(error, text)}") from None
    for model in (None, *config.models):
        try:
            resolve_cluster(config, model)
        except ValidationError as error:
            where = "[cluster]" if model is None else f"[models.{model!r}]"
            reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise UsageError(f"config {name}: {where}: {reason}") from None
    return config


def _describe(error: ValidationError, text: str) -> str:
    first = error.errors(include_url=False, include_input=True)[0]
    where = [part for part in first["loc"] if not (isinstance(part, str) and part.startswith("function-"))]
    key = ".".join(str(part) for part in where)
    line = _line_of(text, [part for part in where if isinstance(part, str)])
    at = f", line {line}" if line else ""
    if first["type"] == "extra_forbidden":
        return f"{at}: unknown key {key!r}; {nearest(str(where[-1]), _keys_beside(where))}"
    shown = repr(first.get("input"))
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return f"{at}: {key} = {shown}: {first['msg']}"


def _line_of(text: str, path: list[str]) -> int | None:
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


def _keys_beside(where: list[Any]) -> list[str]:
    """The keys that the table holding ``where[-1]`` knows."""
    model: type[BaseModel] | None = Config
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
