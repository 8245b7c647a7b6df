"""Machine code of the engine's parts: compiled once, kept in a file, called by address.

A part is a function of the address of ``e`` (``layout``) and four int64 that returns an int64. Those named here are
compiled by ``build``, each in a process of its own and all that are missing at the same time; what a replay needs
afterwards is this module, which loads object files. So Numba, whose import takes longer than many a replay, is
imported where something is compiled and nowhere else.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from fairreplay import machine_code
from fairreplay.errors import FairReplayError

PART: Final = ctypes.CFUNCTYPE(ctypes.c_int64, *(ctypes.c_int64,) * 5)
"""How a part is called; the interpreter is free to run other threads meanwhile."""
ENTRY: Final = "fairreplay_part"
"""The symbol of a part's object file."""
PACKAGE: Final = __package__
FOLDER: Final = Path(__file__).parent
_IMPORT: Final = re.compile(rb"^(?:    )?from fairreplay\.sandbox\.([\w.]+) import (\(?)(\w*)", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    module: str
    function: str
    extras: bool = False
    """It is compiled with what ``extras`` adds."""
    estimates: bool = False
    """And with what ``estimating`` adds."""


PARTS: Final = {
    "kernel": Part("kernel", "advance"),
    "stepper": Part("stepper", "step"),
    "decider": Part("decider", "decide"),
    "estimating_decider": Part("decider", "decide", estimates=True),
    "control": Part("control", "control"),
    "extra_stepper": Part("stepper", "step", extras=True),
    "extra_kernel": Part("kernel", "advance", extras=True),
}


# ---- where machine code is kept ----


def sources(name: str) -> list[Path]:
    """The files that a part is compiled from: its module and all that it imports of the sandbox."""
    found: dict[Path, None] = {}
    waiting = [FOLDER / f"{PARTS[name].module}.py", FOLDER / "build.py", Path(machine_code.__file__)]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found[path] = None
        for module, _bracket, first in _IMPORT.findall(path.read_bytes()):
            place = FOLDER.parent.joinpath(*module.decode().split("."))
            waiting += [place.with_suffix(".py"), place / f"{first.decode()}.py"]
    return sorted(found)


@lru_cache(maxsize=16)
def _file_name(name: str) -> str:
    return machine_code.file_name(name, sources(name))


def missing(names: list[str]) -> list[str]:
    """Those parts that are still to be compiled."""
    folder = machine_code.cache_folder()
    if is_python():
        return []
    return [name for name in names if name not in _LOADED and not (folder and (folder / _file_name(name)).is_file())]


# ---- compiling ----


def compile_parts(names: list[str]) -> None:
    """Compile parts, as many at the same time as there are cores, and keep them.

    What another process compiles meanwhile is waited for, not compiled twice.

    Raises:
        FairReplayError: a part could not be compiled.
    """
    if not names:
        return
    from filelock import FileLock

    folder = machine_code.cache_folder()
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="fairreplay-") as scratch:
            for name, code in _compiled(names, Path(scratch)).items():
                _LOADED[name] = machine_code.load(code.read_bytes(), ENTRY)
        return
    with FileLock(folder / "fairreplay.lock"), tempfile.TemporaryDirectory(prefix="fairreplay-", dir=folder) as scratch:
        for name, code in _compiled(missing(names), Path(scratch)).items():
            machine_code.keep(code, folder / _file_name(name))


def _compiled(names: list[str], scratch: Path) -> dict[str, Path]:
    """Object files of parts, each made by a process of its own."""
    from concurrent.futures import ThreadPoolExecutor

    def make(name: str) -> Path:
        target = scratch / f"{name}.o"
        done = machine_code.run_apart(f"{PACKAGE}.build", name, str(target))
        if done.returncode != 0:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit {done.returncode}"]
            raise FairReplayError(f"the engine's part {name} could not be compiled: {last[0]}")
        return target

    with ThreadPoolExecutor(os.cpu_count()) as several:
        return dict(zip(names, several.map(make, names), strict=True))


# ---- loading ----

_LOADED: Final[dict[str, int]] = {}
_PYTHON: Final[list[Any]] = []
"""The parts as they were written, in place of machine code: their place, from 1 on, stands for an address."""
_LOCK: Final = threading.Lock()


def is_python() -> bool:
    """Whether parts run as plain Python, for a debugger."""
    return machine_code.is_switched_off()


def address_of(name: str) -> int:
    """Where the machine code of a part is; compiled first where that has not been done."""
    with _LOCK:
        if name not in _LOADED and is_python():
            function = getattr(importlib.import_module(f"{PACKAGE}.{PARTS[name].module}"), PARTS[name].function)
            _PYTHON.append(function)
            _LOADED[name] = len(_PYTHON)  # 0 stands for no part
        if missing([name]):
            compile_parts([name])
        if name not in _LOADED:
            folder = machine_code.cache_folder()
            assert folder is not None
            _LOADED[name] = machine_code.load((folder / _file_name(name)).read_bytes(), ENTRY)
        return _LOADED[name]


def part(name: str) -> Callable[[int, int, int, int, int], int]:
    """A part to be called from Python."""
    return part_at(address_of(name))


def part_at(address: int) -> Callable[[int, int, int, int, int], int]:
    """The part at an address that ``address_of`` gave."""
    return _PYTHON[address - 1] if is_python() else PART(address)
