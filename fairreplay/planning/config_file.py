"""Write fitted values into a config file: everything else, comments included, stays as it was."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from fairreplay.errors import UsageError
from fairreplay.store.files import replace_bytes

PRESET: Final = "preset"
FILES: Final = (("weights", "file"), ("defaults", "openslo"))
"""Keys whose value is a path relative to the config."""


def edited(text: str, model: str | None, values: dict[str, Any]) -> str:
    """``text`` (TOML) with ``values`` set in ``[cluster]``, or in ``[models.NAME]``; dicts are tables below it.

    A ``preset`` in such a table is dropped: its values are not what holds any more.

    Where the tables are spelled in a way that cannot be edited in place (dotted keys), the same content is written
    anew, without comments.
    """
    wanted = tomllib.loads(text)
    target = (
        wanted.setdefault("cluster", {}) if model is None else wanted.setdefault("models", {}).setdefault(model, {})
    )
    for key, value in values.items():
        if isinstance(value, dict):
            target[key] = {inner: kept for inner, kept in target.get(key, {}).items() if inner != PRESET} | value
        else:
            target[key] = value
    try:
        in_place = _edited_in_place(text, model, values)
        if tomllib.loads(in_place) == wanted:
            return in_place
    except (TOMLKitError, tomllib.TOMLDecodeError):
        pass
    return tomlkit.dumps(wanted)


def moved(text: str, old: Path, new: Path) -> str:
    """``text`` (TOML) of a config in folder ``old`` for one in ``new``: the files that it names stay the same ones.

    They stand relative to the config; a path that is not relative stays as it is.
    """
    wanted = tomllib.loads(text)
    here, there = os.path.realpath(old), os.path.realpath(new)
    if here == there:
        return text
    paths = {}
    for table, key in FILES:
        name = wanted.get(table, {}).get(key)
        if isinstance(name, str) and not Path(name).is_absolute():
            paths[table, key] = _relative(Path(here) / name, there)
    if not paths:
        return text
    document = tomlkit.parse(text)
    for (table, key), path in paths.items():
        wanted[table][key] = document[table][key] = path
    in_place = tomlkit.dumps(document)
    return in_place if tomllib.loads(in_place) == wanted else tomlkit.dumps(wanted)


def _relative(path: Path, folder: str) -> str:
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # another drive
        return path.as_posix()


def _edited_in_place(text: str, model: str | None, values: dict[str, Any]) -> str:
    document = tomlkit.parse(text)
    if model is None:
        target = _table(document, "cluster")
    else:
        if "models" not in document:
            document["models"] = tomlkit.table(is_super_table=True)
        target = _table(document["models"], model)
    for key, value in values.items():
        if not isinstance(value, dict):
            target[key] = value
            continue
        is_new = key not in target
        below = _table(target, key)
        if PRESET in below:
            del below[PRESET]
        for inner, number in value.items():
            below[inner] = number
        if is_new:
            below.add(tomlkit.nl())
    return tomlkit.dumps(document)


def _table(parent: Any, key: str) -> Any:
    if key not in parent:
        parent[key] = tomlkit.table()
    found = parent[key]
    if isinstance(found, Table) and found.is_super_table():
        found._is_super_table = False  # it gets keys of its own, so its header must be written
    return found


def check_folder(path: Path) -> None:
    """Before long work whose result goes to ``path``.

    Raises:
        UsageError: its folder is not there.
    """
    if not path.parent.is_dir():
        raise UsageError(f"-o {path}: there is no folder {path.parent}")


def write_atomically(path: Path, text: str) -> None:
    """The file as a whole or not at all.

    Raises:
        UsageError: the folder is not there or not writable.
    """
    try:
        replace_bytes(path, text.encode())
    except OSError as error:
        raise UsageError(f"-o {path}: cannot be written: {error.strerror}") from None
