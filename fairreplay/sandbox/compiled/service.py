"""Entries of queues: which queue a request waits in, who owns it, and what its tenant has been served."""

from __future__ import annotations

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import call_part, inlined
from fairreplay.sandbox.engine import Int64s


@inlined
def queue_of(e: Int64s, queue_rows: Int64s, request: int) -> int:
    row = e[at.QUEUE_ROW]
    return 0 if row < 0 else queue_rows[row & at.INDEX, request] * at.QUEUE


@inlined
def served(e: Int64s, queues: Int64s, entry: int) -> int:
    """What an entry has counted so far."""
    return queues[entry + at.SERVICE] + queues[entry + at.RATE] * (e[at.TICK] - e[at.LAG])


@inlined
def owner_of(queues: Int64s, queue: int) -> int:
    return queues[queue + at.OWNER] & at.INDEX


@inlined
def service(e: Int64s, queues: Int64s, queue: int) -> int:
    """Service counter of the tenant whose queue this is."""
    return served(e, queues, owner_of(queues, queue))


@inlined
def inverse_weight(e: Int64s, queues: Int64s, weights: Int64s, request_weight: Int64s, queue: int, request: int) -> int:
    """What a token of ``request`` counts for its tenant."""
    if e[at.OWN_WEIGHTS] and request_weight[request] != 0:
        return request_weight[request]
    return weights[e[at.WEIGHTS], queues[queue + at.TENANT]]


@inlined
def mark_stale(e: Int64s, queues: Int64s, active: Int64s, queue: int) -> None:
    """What ranks the head of ``queue`` has changed."""
    if queues[queue + at.FRESH] != 0:
        queues[queue + at.FRESH] = 0
        active[e[at.STALE_AT] + e[at.STALE]] = queue
        e[at.STALE] += 1


@inlined
def ask(e: Int64s, what: int, queue: int, request: int, number: int) -> int:
    """Ask or tell a policy that keeps ranks: see ``decider``."""
    return call_part(e[at.DECIDER], e, what, queue, request, number)
