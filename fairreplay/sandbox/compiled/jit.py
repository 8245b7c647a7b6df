"""How functions of the engine are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiled as part of the kernel that calls it."""
    return numba.njit(nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


def inlined(function: Function) -> Function:
    """Compiled into each of its callers: for small functions that are called often."""
    return numba.njit(nogil=True, error_model="numpy", forceinline=True)(function)  # type: ignore[no-any-return]
