"""Entries of queues: which queue a request waits in, who owns it, and what its tenant has been served."""

from __future__ import annotations

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import call_part, inlined
from fairreplay.sandbox.engine import FLOOR_SCALE, Int64s


@inlined
def queue_of(e: Int64s, queue_rows: Int64s, request: int) -> int:
    row = e[at.QUEUE_ROW]
    return 0 if row < 0 else queue_rows[row & at.INDEX, request] * at.QUEUE


@inlined
def served(e: Int64s, queues: Int64s, entry: int) -> int:
    """What an entry has counted so far."""
    return queues[entry + at.SERVICE] + queues[entry + at.RATE] * (e[at.TICK] - e[at.LAG])


@inlined
def served_in_all(e: Int64s, queues: Int64s) -> int:
    """Tokens of all types since the window of their floors began; 0 without floors."""
    total = 0
    if e[at.FIRST_TYPE] >= 0:
        for number in range(e[at.FIRST_TYPE], e[at.ENTRIES]):
            total += served(e, queues, number * at.QUEUE)
    return total


@inlined
def standing(e: Int64s, queues: Int64s, queue: int, total: int) -> int:
    """NONE if the head of ``queue`` is barred, 0 if its type is below its floor of ``total``, else 1."""
    if e[at.GATED] and queues[queue + at.BARRED]:
        return at.NONE
    if e[at.FIRST_TYPE] < 0:
        return 1
    kind = queues[queue + at.OF_TYPE] & at.INDEX
    tokens = served(e, queues, kind)
    if tokens >= queues[kind + at.CAP_OF]:
        return at.NONE
    return 0 if tokens * FLOOR_SCALE < queues[kind + at.RANK] * total else 1


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


@inlined
def tell(e: Int64s, what: int, request: int, number: int) -> int:
    """Tell or ask the controls, where there are any: see ``control``."""
    return call_part(e[at.CONTROL], e, what, 0, request, number)
