"""How functions of the engine are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


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
def trailing_zeros(_context: Any, _number: Any) -> Any:
    """Number of zero bits below the lowest one of an int64 that is not 0: a single instruction."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], numba.core.cgutils.true_bit)

    return numba.types.int64(numba.types.int64), generate
