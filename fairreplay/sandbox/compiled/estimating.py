"""Estimates of costs in the compiled engine: what ``sandbox.estimation`` says, in arrays.

All of it is called where ``layout.ESTIMATES`` is true, which is in the part ``estimating_decider`` alone. Of a run with
controls the factors are those of the requests, and what is spoken of here are tickets.
"""

from __future__ import annotations

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import compiled, vector
from fairreplay.sandbox.controls import places as has
from fairreplay.sandbox.engine import Int64s
from fairreplay.sandbox.estimation import NANO
from fairreplay.sandbox.extras import MICRO


@compiled
def _named(e: Int64s, request: int) -> int:
    """The request of the workload that a ticket stands for."""
    if e[at.CONTROL]:
        return vector(e, at.TO_T)[request * has.TICKET + has.OF]
    return request


@compiled
def estimated(e: Int64s, request: int, cost: int) -> int:
    """As ``Estimator.estimated``."""
    named = _named(e, request)
    factor = vector(e, at.TO_ESTIMATE)[named]
    if e[at.LEARNING] > 0:
        kind = vector(e, at.TO_COST_CLASS)[named]
        factor = factor * vector(e, at.TO_CORRECTIONS)[kind] // NANO
    return cost // MICRO * factor + cost % MICRO * factor // MICRO


@compiled
def estimated_prompt(e: Int64s, request: int) -> int:
    """What ``sjf`` ranks by: the prompt's cost, in millionths of a token."""
    cost = vector(e, at.TO_PROMPT)[request] * MICRO
    if e[at.BY_COST]:
        cost = vector(e, at.TO_COST)[request]
    return estimated(e, request, cost)


@compiled
def true_units(e: Int64s, request: int, outputs: int) -> int:
    """What ``wfq`` would charge if it knew."""
    tokens = vector(e, at.TO_PROMPT)[request]
    if e[at.BY_COST]:
        tokens = vector(e, at.TO_COST)[request] // MICRO
    return e[at.PROMPT_COST] * tokens + e[at.OUTPUT_COST] * outputs


@compiled
def learn(e: Int64s, request: int) -> None:
    """As ``Estimator.learn``."""
    named = _named(e, request)
    kind = vector(e, at.TO_COST_CLASS)[named]
    corrections = vector(e, at.TO_CORRECTIONS)
    ratio = NANO * MICRO // vector(e, at.TO_ESTIMATE)[named]
    corrections[kind] = (e[at.LEARNING] * ratio + (MICRO - e[at.LEARNING]) * corrections[kind]) // MICRO


@compiled
def forget_corrections(e: Int64s) -> None:
    """The policy starts anew."""
    corrections = vector(e, at.TO_CORRECTIONS)
    for kind in range(len(corrections)):
        corrections[kind] = NANO
