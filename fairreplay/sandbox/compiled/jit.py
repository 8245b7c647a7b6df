"""How functions of the engine are compiled."""

from __future__ import annotations

import ctypes
import importlib
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import llvmlite.ir
import numpy as np

from fairreplay.machine_code import OPTIONS
from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.parts import is_python, part_at

Function = TypeVar("Function", bound=Callable[..., Any])

UNNEEDED: Final = ("scipy.linalg.cython_blas", "cffi")
"""What Numba loads if it is there, all of scipy with it, and the engine has no use for: a fifth of the start-up."""


@contextmanager
def _without(modules: tuple[str, ...]) -> Iterator[None]:
    """Let ``modules``, where not yet imported, seem not to be installed: that is what None in ``sys.modules`` means."""
    hidden = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


with _without(UNNEEDED):
    import numba

    for part in ("numba.core.typing.cffi_utils", "numba.np.arraymath"):  # else loaded with the first kernel
        importlib.import_module(part)


IS_PYTHON: Final = is_python()
"""NUMBA_DISABLE_JIT=1: all parts run as plain Python, slowly, for a debugger."""
numba.config.DISABLE_JIT = int(IS_PYTHON)  # whatever else it reads


def compiled(function: Function) -> Function:
    """Compiled as part of what calls it."""
    return numba.njit(**OPTIONS)(function)


APART: Final[set[str]] = set()
"""Functions that ``build`` keeps out of what calls them, as Numba names them."""


def apart(function: Function) -> Function:
    """Compiled, but not into its caller: for large functions on a way that is mostly short."""
    APART.add(f"{function.__module__}.{function.__qualname__}")
    return compiled(function)


def inlined(function: Function) -> Function:
    """Compiled into each of its callers: for small functions that are called often."""
    return numba.njit(**OPTIONS, forceinline=True)(function)


def instruction(python: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """A function of which compiled code knows the instructions, and what does the same in Python."""

    def choose(function: Callable[..., Any]) -> Any:
        return python if IS_PYTHON else numba.extending.intrinsic(function)

    return choose


@instruction(lambda _array, _index: None)
def prefetch(_context: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Start to load ``array[index]`` into the cache, for later."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.gep(data, [arguments[1]])
        int32 = llvmlite.ir.IntType(32)
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch",
            [address.type],
            llvmlite.ir.FunctionType(llvmlite.ir.VoidType(), [address.type, int32, int32, int32]),
        )
        builder.call(prefetch, [address, int32(0), int32(3), int32(1)])
        return context.get_dummy_value()

    return numba.types.void(array, numba.types.int64), generate


@instruction(
    lambda address, fields: ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(int(address))(fields.ctypes.data)
)
def call_rank(_context: Any, address: Any, fields: Any) -> Any:  # noqa: ARG001
    """Call machine code that takes a pointer to ``fields`` and returns an int64.

    A number for the function, not the function: so the code that calls is the same, and cached, whatever the rank.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[1])(context, builder, arguments[1]).data
        number = llvmlite.ir.IntType(64)
        function = builder.inttoptr(arguments[0], llvmlite.ir.FunctionType(number, [data.type]).as_pointer())
        return builder.call(function, [data])

    return numba.types.int64(numba.types.int64, fields), generate


@instruction(lambda address, e, *numbers: part_at(int(address))(e.ctypes.data, *map(int, numbers)))
def call_part(_context: Any, address: Any, e: Any, what: Any, queue: Any, request: Any, number: Any) -> Any:  # noqa: ARG001
    """Call another part (``parts``) by its address: it takes the address of ``e`` and four int64, returns an int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = llvmlite.ir.IntType(64)
        data = context.make_array(signature.args[1])(context, builder, arguments[1]).data
        kind = llvmlite.ir.FunctionType(number, [number] * 5)
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        return builder.call(function, [builder.ptrtoint(data, number), *arguments[2:]])

    return numba.types.int64(numba.types.int64, e, *(numba.types.int64,) * 4), generate


# ---- arrays from their links: see ``layout.LINKS`` ----


def _seen(dtype: type, dimensions: int) -> Callable[..., Any]:
    def see(address: int, *shape: int) -> Any:
        return np.ndarray(shape, dtype, (ctypes.c_char * (8 * max(1, math.prod(shape)))).from_address(address))

    def see_linked(e: Any, place: int) -> Any:
        return see(int(e[place]), *map(int, e[place + 1 : place + 1 + dimensions]))

    return see_linked if dimensions else lambda address: see(address, at.SCALARS)


@instruction(_seen(np.int64, 0))
def scalars_at(_context: Any, _address: Any) -> Any:
    """``e``, which stands at an address."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        length = llvmlite.ir.IntType(64)(at.SCALARS)
        return _array(context, builder, numba.types.int64, arguments[0], [length])

    return numba.types.Array(numba.types.int64, 1, "C")(numba.types.int64), generate


@instruction(_seen(np.int64, 1))
def vector(_context: Any, e: Any, _place: Any) -> Any:
    """The int64 that ``e[place]`` leads to, ``e[place + 1]`` of them."""
    return _linked(e, numba.types.int64, 1)


@instruction(_seen(np.int32, 1))
def small_vector(_context: Any, e: Any, _place: Any) -> Any:
    """As ``vector``, of int32."""
    return _linked(e, numba.types.int32, 1)


@instruction(_seen(np.int64, 2))
def matrix(_context: Any, e: Any, _place: Any) -> Any:
    """As ``vector``, with ``e[place + 1]`` rows of ``e[place + 2]`` numbers."""
    return _linked(e, numba.types.int64, 2)


def _linked(e: Any, dtype: Any, dimensions: int) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        scalars = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        number = llvmlite.ir.IntType(64)
        link = [
            builder.load(builder.gep(scalars, [builder.add(arguments[1], number(offset))]))
            for offset in range(1 + dimensions)
        ]
        return _array(context, builder, dtype, link[0], link[1:])

    return numba.types.Array(dtype, dimensions, "C")(e, numba.types.int64), generate


def _array(context: Any, builder: Any, dtype: Any, address: Any, shape: list[Any]) -> Any:
    array = context.make_array(numba.types.Array(dtype, len(shape), "C"))(context, builder)
    width = llvmlite.ir.IntType(64)(dtype.bitwidth // 8)
    strides = [width] if len(shape) == 1 else [builder.mul(shape[1], width), width]
    context.populate_array(
        array,
        data=builder.inttoptr(address, context.get_data_type(dtype).as_pointer()),
        shape=shape,
        strides=strides,
        itemsize=width,
        meminfo=None,
    )
    return array._getvalue()


@instruction(lambda number: (int(number) & -int(number)).bit_length() - 1)
def trailing_zeros(_context: Any, _number: Any) -> Any:
    """Number of zero bits below the lowest one of an int64 that is not 0: a single instruction."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], numba.core.cgutils.true_bit)

    return numba.types.int64(numba.types.int64), generate


@instruction(lambda number: np.uint64(int(number) & 2**64 - 1))
def unsigned(_context: Any, _number: Any) -> Any:
    """The uint64 of the same bits."""

    def generate(_context: Any, _builder: Any, _signature: Any, arguments: Any) -> Any:
        return arguments[0]

    return numba.types.uint64(numba.types.int64), generate
