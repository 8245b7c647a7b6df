"""How functions of the engine are compiled."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import llvmlite.ir

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


_OPTIONS: Final = {
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,  # no function here makes an array, and counting references to them takes most of the time
    "no_cpython_wrapper": True,  # the kernel is all that Python calls
    "no_cfunc_wrapper": True,
}


def compiled(function: Function) -> Function:
    """Compiled as part of the kernel that calls it."""
    return numba.njit(**_OPTIONS)(function)


def inlined(function: Function) -> Function:
    """Compiled into each of its callers: for small functions that are called often."""
    return numba.njit(**_OPTIONS, forceinline=True)(function)


@numba.extending.intrinsic  # type: ignore[untyped-decorator]
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


@numba.extending.intrinsic  # type: ignore[untyped-decorator]
def call_rank(_context: Any, address: Any, fields: Any) -> Any:  # noqa: ARG001
    """Call machine code that takes a pointer to ``fields`` and returns an int64.

    A number for the function, not the function: so the kernel is the same, and cached, whatever the user's rank.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[1])(context, builder, arguments[1]).data
        number = llvmlite.ir.IntType(64)
        function = builder.inttoptr(arguments[0], llvmlite.ir.FunctionType(number, [data.type]).as_pointer())
        return builder.call(function, [data])

    return numba.types.int64(numba.types.int64, fields), generate


@numba.extending.intrinsic  # type: ignore[untyped-decorator]
def call_decider(_context: Any, address: Any, e: Any, what: Any, queue: Any, request: Any, number: Any) -> Any:  # noqa: ARG001
    """Call machine code that takes the address of ``e`` and four int64, and returns an int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = llvmlite.ir.IntType(64)
        data = context.make_array(signature.args[1])(context, builder, arguments[1]).data
        kind = llvmlite.ir.FunctionType(number, [number] * 5)
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        return builder.call(function, [builder.ptrtoint(data, number), *arguments[2:]])

    return numba.types.int64(numba.types.int64, e, *(numba.types.int64,) * 4), generate


@numba.extending.intrinsic  # type: ignore[untyped-decorator]
def numbers_at(_context: Any, _address: Any) -> Any:
    """The int64 that stand at an address, as an array whose length nobody may ask for."""
    return _array_at(numba.types.int64)


@numba.extending.intrinsic  # type: ignore[untyped-decorator]
def small_numbers_at(_context: Any, _address: Any) -> Any:
    """As ``numbers_at``, of int32."""
    return _array_at(numba.types.int32)


def _array_at(dtype: Any) -> Any:
    kind = numba.types.Array(dtype, 1, "C")

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        array = context.make_array(kind)(context, builder)
        width = dtype.bitwidth // 8
        number = llvmlite.ir.IntType(64)
        context.populate_array(
            array,
            data=builder.inttoptr(arguments[0], context.get_data_type(dtype).as_pointer()),
            shape=[number(2**40)],
            strides=[number(width)],
            itemsize=number(width),
            meminfo=None,
        )
        return array._getvalue()

    return kind(numba.types.int64), generate


@numba.extending.intrinsic  # type: ignore[untyped-decorator]
def trailing_zeros(_context: Any, _number: Any) -> Any:
    """Number of zero bits below the lowest one of an int64 that is not 0: a single instruction."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], numba.core.cgutils.true_bit)

    return numba.types.int64(numba.types.int64), generate
