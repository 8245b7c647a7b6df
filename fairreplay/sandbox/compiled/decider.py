"""What policies that keep ranks are asked and told, as machine code that the kernel calls by its address.

So the kernel is compiled without them, and they are compiled when the first replay needs them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numba
import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import numbers_at, small_numbers_at
from fairreplay.sandbox.compiled.ranking import (
    begin,
    forget_ranks,
    hear_finish,
    hear_first_token,
    lowest_queue,
    take_turn,
)
from fairreplay.sandbox.compiled.sources import decider_sources, digest_of

_NUMBER: Final = numba.types.int64
_SIGNATURE: Final = _NUMBER(*(_NUMBER,) * 5)


def _decide(sources: int) -> Any:
    def decide(address: int, what: int, queue: int, request: int, number: int) -> int:
        if sources < 0:
            return 0
        e = numbers_at(address)
        queues = numbers_at(e[at.TO_QUEUES])
        active = numbers_at(e[at.TO_ACTIVE])
        ranks = numbers_at(e[at.TO_RANKS])
        kept = numbers_at(e[at.TO_KEPT])
        prompt = numbers_at(e[at.TO_PROMPT])
        arrival = numbers_at(e[at.TO_ARRIVAL])
        own = numbers_at(e[at.TO_REQUEST_WEIGHT])
        weights = numbers_at(e[at.TO_WEIGHTS])
        if what == at.LOWEST:
            way = small_numbers_at(e[at.TO_WAY])
            return lowest_queue(e, queues, active, ranks, way, kept, arrival, prompt, own, weights)
        if what == at.TURN:
            cut = numbers_at(e[at.TO_CUT])
            take_turn(e, queues, active, kept, arrival, prompt, cut, own, weights, queue, request, number)
        elif what == at.FINISH:
            hear_finish(e, queues, active, kept, queue, request, number)
        elif what == at.FIRST_TOKEN_CAME:
            misses = numbers_at(e[at.TO_MISSES])
            hear_first_token(e, queues, active, misses, queue, number - arrival[request])
        elif what == at.CHANGE:
            forget_ranks(e, queues, active, np.int64(at.NONE))
        elif what == at.BEGIN:
            begin(e, queues, ranks, numbers_at(e[at.TO_MISSES]))
        return 0

    return decide


@lru_cache(maxsize=1)
def decider() -> Any:
    """A C callback; its ``address`` is what the kernel calls. Compiled once and cached."""
    return numba.cfunc(_SIGNATURE, cache=True, error_model="numpy", _nrt=False)(_decide(digest_of(decider_sources())))
