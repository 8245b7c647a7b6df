"""Compile one part into an object file: ``python -m fairreplay.sandbox.compiled.build PART FILE``.

Numba turns the part's functions into LLVM code; ``machine_code`` makes an object file of that.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Final

from fairreplay.machine_code import NUMBER, object_code
from fairreplay.sandbox.compiled import layout
from fairreplay.sandbox.compiled.jit import APART, compiled
from fairreplay.sandbox.compiled.parts import ENTRY, PACKAGE, PARTS

LIBRARY: Final = frozenset({"sqrt"})
"""Of the C library, which every process has; rounded correctly everywhere."""


def build(name: str) -> bytes:
    """The object file of a part.

    Raises:
        RuntimeError: its code calls something that would not be there when it is loaded.
    """
    _skip_inner_machine_code()
    layout.EXTRAS, layout.ESTIMATES = PARTS[name].extras, PARTS[name].estimates
    module = importlib.import_module(f"{PACKAGE}.{PARTS[name].module}")
    function = compiled(getattr(module, PARTS[name].function))
    return object_code(function, NUMBER * 5, ENTRY, LIBRARY, map(_mangled, APART))


def _mangled(name: str) -> str:
    """How the name of a function's machine code begins."""
    return "_ZN" + "".join(f"{len(part)}{part}" for part in name.split("."))


def _skip_inner_machine_code() -> None:
    """Numba makes machine code of each function by itself as soon as it is known, of which a build has no use."""
    from numba.core.registry import cpu_target

    codegen = cpu_target.target_context.codegen()
    codegen.set_env = lambda *_: None
    codegen._engine.finalize_object = lambda: None


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(build(sys.argv[1]))
