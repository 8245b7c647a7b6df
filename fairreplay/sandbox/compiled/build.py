"""Compile one part into an object file: ``python -m fairreplay.sandbox.compiled.build PART FILE``.

Numba turns the part's functions into LLVM code. That is optimised as one whole here, and everything but the entry is
internal to it, so that what has one caller is merged with it and what has none is dropped.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, Final

import llvmlite.binding as llvm

from fairreplay.sandbox.compiled import layout
from fairreplay.sandbox.compiled.jit import APART, compiled
from fairreplay.sandbox.compiled.parts import ENTRY, PACKAGE, PARTS, target_machine

_WRAPPER = """
define i64 @{entry}(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e) {{
  %result = alloca i64
  %trouble = alloca ptr
  %status = call i32 @"{function}"(ptr %result, ptr %trouble, i64 %a, i64 %b, i64 %c, i64 %d, i64 %e)
  %value = load i64, ptr %result
  ret i64 %value
}}
"""
"""Numba's functions return a status beside the result. Parts raise no errors, so here it says nothing."""


LIBRARY: Final = frozenset({"sqrt"})
"""Of the C library, which every process has; rounded correctly everywhere."""


def build(name: str) -> bytes:
    """The object file of a part.

    Raises:
        RuntimeError: its code calls something that would not be there when it is loaded.
    """
    import numba

    _skip_inner_machine_code()
    layout.EXTRAS, layout.ESTIMATES = PARTS[name].extras, PARTS[name].estimates
    module = importlib.import_module(f"{PACKAGE}.{PARTS[name].module}")
    function: Any = compiled(getattr(module, PARTS[name].function))
    signature = (numba.types.int64,) * 5
    function.compile(signature)
    inner = function.overloads[signature].fndesc.llvm_func_name
    code = llvm.parse_assembly(function.inspect_llvm(signature) + _WRAPPER.format(entry=ENTRY, function=inner))
    code.verify()
    for each in code.functions:
        if not each.is_declaration and each.name != ENTRY:
            each.linkage = llvm.Linkage.internal
            if any(each.name.startswith(_mangled(name)) for name in APART):
                each.add_function_attribute("noinline")
    machine = target_machine()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(code, builder)
    strange = {each.name for each in code.functions if each.is_declaration and not each.name.startswith("llvm.")}
    strange -= LIBRARY
    if strange:
        raise RuntimeError(f"part {name} calls {', '.join(sorted(strange))}")
    return bytes(machine.emit_object(code))


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
