"""Machine code: compiled with Numba once, in a process of its own, and kept in a file.

Whoever calls it later loads that file with llvmlite; Numba, whose import takes longer than many a command, is not
needed for it. The parts of the engine (``sandbox.compiled``) are made so, and ``Routine``: a function on plain memory.
It takes pointers and int64, returns an int64, raises nothing and makes no array:
``python -m fairreplay.machine_code MODULE FUNCTION SIGNATURE FILE`` compiles it.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent
ENTRY: Final = "fairreplay_routine"
BYTES: Final = "b"
"""In a signature: a pointer to uint8."""
INTS: Final = "i"
"""A pointer to int64."""
NUMBER: Final = "n"
"""An int64."""
OPTIONS: Final = {
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,  # no function makes an array, and counting references to them takes most of the time
    "no_cpython_wrapper": True,  # machine code is called by its address alone
    "no_cfunc_wrapper": True,
}
"""How Numba compiles all functions that become machine code."""
_WRAPPER: Final = """
define i64 @{entry}({taken}) {{
  %result = alloca i64
  %trouble = alloca ptr
  %status = call i32 @"{function}"(ptr %result, ptr %trouble, {taken})
  %value = load i64, ptr %result
  ret i64 %value
}}
"""
"""Numba's functions return a status beside the result; these raise no errors, so it says nothing."""


@dataclass(frozen=True)
class Routine:
    """``function`` of ``module``, by the kinds of its arguments (``BYTES``, ``INTS``, ``NUMBER``)."""

    module: str
    function: str
    signature: str

    def python(self) -> Callable[..., int]:
        """As it is written, for arrays in place of pointers."""
        function: Callable[..., int] = getattr(importlib.import_module(self.module), self.function)
        return function


def is_switched_off() -> bool:
    """NUMBA_DISABLE_JIT: a debugger's run."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def is_at_hand(routine: Routine) -> bool:
    """It was compiled before."""
    path = _kept(routine)
    return path is not None and path.is_file()


@lru_cache(maxsize=16)
def compiled(routine: Routine) -> Callable[..., int] | None:
    """It as machine code, compiled first if need be; None where that cannot be had. Takes addresses and numbers; other
    threads run meanwhile."""
    path = None if is_switched_off() else _kept(routine)
    if path is None or not (path.is_file() or _compile(routine, path)):
        return None
    kinds = [ctypes.c_int64 if kind == NUMBER else ctypes.c_void_p for kind in routine.signature]
    function: Callable[..., int] = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(load(path.read_bytes(), ENTRY))
    return function


# ---- where it is kept ----


def _kept(routine: Routine) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / _file_name(routine)


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


@lru_cache(maxsize=16)
def _file_name(routine: Routine) -> str:
    spec = importlib.util.find_spec(routine.module)
    origin = spec.origin if spec is not None else None
    assert origin is not None, "a module of ours is a file"
    return file_name(routine.function, [Path(origin), Path(__file__)], routine.signature)


def file_name(name: str, sources: Iterable[Path], more: str = "") -> str:
    """Sources, compiler and processor are part of the name: what was compiled from others is never loaded."""
    import llvmlite
    import llvmlite.binding as llvm

    processor = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    machine = f"{llvmlite.__version__} {llvm.get_process_triple()} {processor}"
    text = hashlib.blake2b(more.encode(), digest_size=8)
    for path in sources:
        text.update(path.read_bytes())
    return f"fairreplay-{name}-{hashlib.blake2b(machine.encode(), digest_size=6).hexdigest()}-{text.hexdigest()}.o"


def keep(code: Path, path: Path) -> None:
    """Put a file of machine code in its place, and remove those of earlier sources."""
    code.replace(path)
    for old in path.parent.glob(path.name[: -len("0123456789abcdef.o")] + "*.o"):
        if old != path:
            old.unlink(missing_ok=True)


# ---- loading ----

_ENGINES: Final[list[Any]] = []
"""What machine code lives in, as long as the process."""


def load(code: bytes, entry: str) -> int:
    """Where the function ``entry`` of an object file now stands."""
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ENGINES.append(engine)
    return int(engine.get_function_address(entry))


def _target_machine() -> Any:
    """What machine code is made for: this processor."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )


# ---- compiling ----


def run_apart(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run a module in a process of its own, which imports what this one does and compiles."""
    # Numba's own optimisation, function by function, is what takes longest; ``object_code`` optimises the whole once
    environment = os.environ | {
        "NUMBA_OPT": "0",
        "NUMBA_DISABLE_JIT": "0",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _compile(routine: Routine, path: Path) -> bool:
    """Whether it is there now. Two processes may do it at once; the file is always a whole one."""
    with tempfile.TemporaryDirectory(prefix="fairreplay-", dir=path.parent) as scratch:
        target = Path(scratch) / path.name
        done = run_apart(__name__, routine.module, routine.function, routine.signature, str(target))
        if done.returncode != 0 or not target.is_file():
            return False
        keep(target, path)
    return True


def build(routine: Routine) -> bytes:
    """Its object file.

    Raises:
        RuntimeError: see ``object_code``.
    """
    import numba

    return object_code(numba.njit(**OPTIONS)(routine.python()), routine.signature, ENTRY)


def object_code(
    function: Any, signature: str, entry: str, known: frozenset[str] = frozenset(), apart: Iterable[str] = ()
) -> bytes:
    """An object file in which ``entry`` is ``function``, one of Numba's, with arguments of these kinds.

    It is optimised as one whole: everything but ``entry`` is internal to it, so that what has one caller is merged with
    it and what has none is dropped. Functions whose names begin as one of ``apart`` are not merged.

    Raises:
        RuntimeError: it calls something that would not be there when it is loaded, ``known`` excepted.
    """
    import llvmlite.binding as llvm
    import numba

    kinds = {
        BYTES: (numba.types.CPointer(numba.types.uint8), "ptr"),
        INTS: (numba.types.CPointer(numba.types.int64), "ptr"),
        NUMBER: (numba.types.int64, "i64"),
    }
    types = tuple(kinds[kind][0] for kind in signature)
    function.compile(types)
    inner = function.overloads[types].fndesc.llvm_func_name
    taken = ", ".join(f"{kinds[kind][1]} %a{place}" for place, kind in enumerate(signature))
    wrapper = _WRAPPER.format(entry=entry, function=inner, taken=taken)
    code, kept_apart = llvm.parse_assembly(function.inspect_llvm(types) + wrapper), tuple(apart)
    code.verify()
    for each in code.functions:
        if not each.is_declaration and each.name != entry:
            each.linkage = llvm.Linkage.internal
            if each.name.startswith(kept_apart):
                each.add_function_attribute("noinline")
    machine = _target_machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(code, builder)
    strange = {each.name for each in code.functions if each.is_declaration and not each.name.startswith("llvm.")}
    if strange - known:
        raise RuntimeError(f"it calls {', '.join(sorted(strange - known))}")
    return bytes(machine.emit_object(code))


if __name__ == "__main__":
    Path(sys.argv[4]).write_bytes(build(Routine(*sys.argv[1:4])))
