"""Write fitted values into a config file: everything else, comments included, stays as it was."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import Table

from fairreplay.errors import UsageError


def edited(text: str, model: str | None, values: dict[str, Any]) -> str:
    """``text`` (TOML) with ``values`` set in ``[cluster]``, or in ``[models.NAME]``; dicts are tables below it."""
    document = tomlkit.parse(text)
    if model is None:
        target = _table(document, "cluster")
    else:
        models = document.get("models")
        if models is None:
            models = tomlkit.table(is_super_table=True)
            document["models"] = models
        target = _table(models, model)
    for key, value in values.items():
        if isinstance(value, dict):
            is_new = key not in target
            below = _table(target, key)
            for inner, number in value.items():
                below[inner] = number
            if is_new:
                below.add(tomlkit.nl())
        else:
            target[key] = value
    return tomlkit.dumps(document)


def _table(parent: Any, key: str) -> Any:
    found = parent.get(key)
    if found is None:
        found = tomlkit.table()
        parent[key] = found
    if isinstance(found, Table) and found.is_super_table():
        found._is_super_table = False  # it gets keys of its own, so its header must be written
    return found


def write_atomically(path: Path, text: str) -> None:
    """The file as a whole or not at all.

    Raises:
        UsageError: the folder is not there or not writable.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"-o {path}: cannot be written: {error.strerror}") from None
