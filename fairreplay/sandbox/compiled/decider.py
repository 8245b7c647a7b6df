"""What policies that keep ranks are asked and told: a part of its own, compiled when the first replay needs it."""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import matrix, scalars_at, small_vector, vector
from fairreplay.sandbox.compiled.ranking import (
    begin,
    forget_ranks,
    hear_finish,
    hear_first_token,
    lowest_queue,
    take_turn,
)


def decide(address: int, what: int, queue: int, request: int, number: int) -> int:
    """The part ``decider``."""
    e = scalars_at(address)
    queues = vector(e, at.TO_QUEUES)
    active = vector(e, at.TO_ACTIVE)
    ranks = vector(e, at.TO_RANKS)
    kept = vector(e, at.TO_KEPT)
    prompt = vector(e, at.TO_PROMPT)
    arrival = vector(e, at.TO_ARRIVAL)
    own = vector(e, at.TO_REQUEST_WEIGHT)
    weights = matrix(e, at.TO_WEIGHTS)
    if what == at.LOWEST:
        way = small_vector(e, at.TO_WAY)
        return lowest_queue(e, queues, active, ranks, way, kept, arrival, prompt, own, weights)
    if what == at.TURN:
        cut = vector(e, at.TO_CUT)
        take_turn(e, queues, active, kept, arrival, prompt, cut, own, weights, queue, request, number)
    elif what == at.FINISH:
        hear_finish(e, queues, active, kept, queue, request, number)
    elif what == at.FIRST_TOKEN_CAME:
        misses = vector(e, at.TO_MISSES)
        hear_first_token(e, queues, active, misses, queue, number - arrival[request])
    elif what == at.CHANGE:
        forget_ranks(e, queues, active, np.int64(at.NONE))
    elif what == at.BEGIN:
        begin(e, queues, ranks, vector(e, at.TO_MISSES))
    return 0
