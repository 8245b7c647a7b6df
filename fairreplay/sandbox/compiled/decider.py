"""What policies that keep ranks are asked and told: a part of its own, compiled when the first replay needs it."""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.estimating import forget_corrections, learn
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
    """The parts ``decider`` and ``estimating_decider``."""
    e = scalars_at(address)
    queues = vector(e, at.TO_QUEUES)
    active = vector(e, at.TO_ACTIVE)
    if what == at.LOWEST:
        return lowest_queue(
            e,
            queues,
            active,
            vector(e, at.TO_RANKS),
            small_vector(e, at.TO_WAY),
            vector(e, at.TO_KEPT),
            vector(e, at.TO_ARRIVAL),
            vector(e, at.TO_PROMPT),
            vector(e, at.TO_REQUEST_WEIGHT),
            matrix(e, at.TO_WEIGHTS),
        )
    if what == at.TURN:
        take_turn(
            e,
            queues,
            active,
            vector(e, at.TO_KEPT),
            vector(e, at.TO_ARRIVAL),
            vector(e, at.TO_PROMPT),
            vector(e, at.TO_CUT),
            vector(e, at.TO_REQUEST_WEIGHT),
            matrix(e, at.TO_WEIGHTS),
            queue,
            request,
            number,
        )
    elif what == at.FINISH:
        if at.ESTIMATES and e[at.LEARNING] > 0:
            learn(e, request)
            if e[at.POLICY] != at.WFQ and e[at.POLICY] != at.WFQ_EDF:
                forget_ranks(e, queues, active, np.int64(at.NONE))
                return 0
        hear_finish(e, queues, active, vector(e, at.TO_KEPT), queue, request, number)
    elif what == at.FIRST_TOKEN_CAME:
        ttft_ps = number - vector(e, at.TO_ARRIVAL)[request]
        hear_first_token(e, queues, active, vector(e, at.TO_MISSES), queue, ttft_ps)
    elif what == at.CHANGE:
        forget_ranks(e, queues, active, np.int64(at.NONE))
    elif what == at.BEGIN:
        if at.ESTIMATES and e[at.ESTIMATING]:
            forget_corrections(e)
        begin(e, queues, vector(e, at.TO_RANKS), vector(e, at.TO_MISSES))
    return 0
