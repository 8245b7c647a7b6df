"""Machine code of the engine's parts: compiled once, kept in a file, called by address.

A part is a function of the address of ``e`` (``layout``) and four int64 that returns an int64. Those named here are
compiled by ``build``, each in a process of its own and all that are missing at the same time; what a replay needs
afterwards is this module, which loads object files. So Numba, whose import takes longer than many a replay, is
imported where something is compiled and nowhere else.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import llvmlite
import llvmlite.binding as llvm

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


@lru_cache(maxsize=1)
def cache_folder() -> Path | None:
    """``NUMBA_CACHE_DIR``, else beside the sources, else among the user's caches; None if none can be written."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    for folder in [Path(named)] if named else [FOLDER / "__pycache__", *_users_caches()]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return None


def _users_caches() -> list[Path]:
    try:
        return [Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairreplay"]
    except RuntimeError:  # a user without a home, as containers have them
        return []


def sources(name: str) -> list[Path]:
    """The files that a part is compiled from: its module and all that it imports of the sandbox."""
    found: dict[Path, None] = {}
    waiting = [FOLDER / f"{PARTS[name].module}.py", FOLDER / "build.py"]
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
    """Sources, compiler and processor are part of the name: what was compiled from others is never loaded."""
    machine = f"{llvmlite.__version__} {llvm.get_process_triple()} {_processor()}"
    text = hashlib.blake2b(digest_size=8)
    for path in sources(name):
        text.update(path.read_bytes())
    return f"fairreplay-{name}-{hashlib.blake2b(machine.encode(), digest_size=6).hexdigest()}-{text.hexdigest()}.o"


def _processor() -> str:
    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def missing(names: list[str]) -> list[str]:
    """Those parts that are still to be compiled."""
    folder = cache_folder()
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

    folder = cache_folder()
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="fairreplay-") as scratch:
            for name, code in _compiled(names, Path(scratch)).items():
                _LOADED[name] = _load(code.read_bytes())
        return
    with FileLock(folder / "fairreplay.lock"), tempfile.TemporaryDirectory(prefix="fairreplay-", dir=folder) as scratch:
        for name, code in _compiled(missing(names), Path(scratch)).items():
            kept = folder / _file_name(name)
            code.replace(kept)
            for old in folder.glob(kept.name[: -len("0123456789abcdef.o")] + "*.o"):
                if old != kept:
                    old.unlink(missing_ok=True)


def _compiled(names: list[str], scratch: Path) -> dict[str, Path]:
    """Object files of parts, each made by a process of its own."""
    from concurrent.futures import ThreadPoolExecutor

    # Numba's own optimisation, function by function, is what takes longest; ``build`` optimises the whole once
    environment = os.environ | {
        "NUMBA_OPT": "0",
        "NUMBA_DISABLE_JIT": "0",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }

    def make(name: str) -> Path:
        target = scratch / f"{name}.o"
        command = [sys.executable, "-m", f"{PACKAGE}.build", name, str(target)]
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode != 0:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit {done.returncode}"]
            raise FairReplayError(f"the engine's part {name} could not be compiled: {last[0]}")
        return target

    with ThreadPoolExecutor(os.cpu_count()) as several:
        return dict(zip(names, several.map(make, names), strict=True))


# ---- loading ----

_LOADED: Final[dict[str, int]] = {}
_ENGINES: Final[list[Any]] = []
"""What machine code lives in, as long as the process."""
_PYTHON: Final[list[Any]] = []
"""The parts as they were written, in place of machine code: their place, from 1 on, stands for an address."""
_LOCK: Final = threading.Lock()


def is_python() -> bool:
    """Whether parts run as plain Python, for a debugger."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


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
            folder = cache_folder()
            assert folder is not None
            _LOADED[name] = _load((folder / _file_name(name)).read_bytes())
        return _LOADED[name]


def part(name: str) -> Callable[[int, int, int, int, int], int]:
    """A part to be called from Python."""
    return part_at(address_of(name))


def part_at(address: int) -> Callable[[int, int, int, int, int], int]:
    """The part at an address that ``address_of`` gave."""
    return _PYTHON[address - 1] if is_python() else PART(address)


def target_machine() -> Any:
    """What machine code is made for: this processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )


def _load(code: bytes) -> int:
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ENGINES.append(engine)
    return int(engine.get_function_address(ENTRY))
