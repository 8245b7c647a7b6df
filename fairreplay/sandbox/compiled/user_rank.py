"""A user's rank as machine code that the kernel can call."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numba
import numpy as np

from fairreplay.errors import UsageError
from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.engine import UserRank
from fairreplay.sandbox.policies.user import HEAD_FIELDS, WHOLE_HEAD, Head

assert len(HEAD_FIELDS) == at.HEAD_FIELDS


@lru_cache(maxsize=16)
def compile_rank(rank: UserRank) -> Any:
    """A C callback over the fields of a head; keep it as long as its ``address`` is in use.

    Raises:
        UsageError: Numba cannot compile the function, or it returns something else than an integer.
    """
    function = numba.njit(rank.function)
    number = numba.types.int64
    whole = (numba.types.NamedUniTuple(number, len(HEAD_FIELDS), Head),)
    try:
        function.compile(whole if rank.fields == WHOLE_HEAD else (number,) * len(rank.fields))
    except numba.core.errors.NumbaError as error:
        why = " ".join(str(error).split())
        raise UsageError(f"policy {rank.name}: rank does not compile: {why[:300]}") from None
    result = function.overloads[function.signatures[0]].signature.return_type
    if not isinstance(result, numba.types.Integer | numba.types.Boolean):
        raise UsageError(f"policy {rank.name}: rank must return an integer, not {result}")
    space = {"np": np, "carray": numba.carray, "rank": function, "Head": Head}
    exec(_callback(rank), space)
    return numba.cfunc(number(numba.types.CPointer(number)))(space["callback"])


def _callback(rank: UserRank) -> str:
    """Source of a function that picks the rank's arguments and notes an error, which machine code cannot raise."""
    places = list(HEAD_FIELDS)
    is_whole = rank.fields == WHOLE_HEAD
    arguments = ", ".join(f"head[{places.index(name)}]" for name in (places if is_whole else rank.fields))
    arguments = f"Head({arguments})" if is_whole else arguments
    return f"""
def callback(pointer):
    head = carray(pointer, ({at.HEAD_FIELDS + 1},))
    try:
        return np.int64(rank({arguments}))
    except Exception:
        head[{at.HEAD_FAILED}] = 1
        return np.int64(0)
"""
