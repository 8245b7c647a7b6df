"""Where things stand in the rows of integers that controls work on.

``c``  scalars and settings, then ``TENANT`` numbers a tenant (``tenant_at``), then ``TYPE`` numbers a type.
``s``  by request of the workload, ``SOURCE`` numbers each: what it asks for.
``t``  by ticket, ``TICKET`` numbers each. A ticket is one arrival of one request: requests that come back have several.
       Tickets are numbered in order of arrival, which is the order of every queue.
``w``  what happened, ``EVENT`` numbers each, until the engine takes it away.

Instants and spans are picoseconds, rates thousandths of a request a second.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = list[int] | NDArray[np.int64]

NONE: Final = -1
FOREVER: Final = 2**63 - 1

# ---- scalars ----
(
    REQUESTS,
    TENANTS,
    TYPES,
    TICKETS,  # tickets taken so far; the next one is prepared where there is one
    FROM_RETRY,  # 1 if that next one is a request that comes back
    NEXT_REQUEST,  # requests below have arrived for the first time
    BACK_FIRST,  # the ticket whose request comes back next, NONE if there is none
    BACK_LAST,
    OLDEST,  # tickets below do not wait for their first batch any more
    HELD,  # tickets that wait for their first batch
    NEXT_CHECK,  # instant at which rates are looked at next
    WINDOW_ENDS,
    EVENTS,  # events in ``w``
    ROOM,  # how many it can hold
    LOST,  # events for which it had no room
    MODE,  # the emergency mode in force
    LONG_LEVEL,  # what the bucket of long contexts holds
    LONG_AT,  # microsecond up to which it was filled
    UTILISED,  # tokens of the last batch
    SWAPPED,  # tokens in host memory
    SWAP_PS,  # what the next step waits for tokens that move between host and device
    USED,  # KV blocks in use, as the gate was last told
    USABLE,
    DENIED,  # 1 + the ticket whose preemption of others was denied at this pass
    # settings:
    ATTEMPTS,  # how often a refused request may come back
    RETRY_AFTER,
    QUEUE_TIME,  # 0: no limit
    TENANT_LIMIT,  # 0: no limit
    PRESSURE,  # how rates react: NO_PRESSURE, GENTLE or LITERAL
    SIGNAL_WINDOW,
    HOLD,
    CHECK,
    DELAY,
    WINDOW,
    WINDOW_OFFSET,  # instant 0 lies so far after the begin of a window
    LONG_TOKENS,  # contexts from so many tokens on are long; 0: no gate for them
    LONG_SATURATION,  # millionths of the KV blocks
    LONG_RATE,
    VOLUNTARY,  # 1 if preemption for a head has limits
    UTILISATION_MAX,  # millionths of the allowed batch tokens
    RECOVERY_MAX,
    DENIAL,  # 1 if a head that may not preempt is refused
    SWAPS,  # 1 if victims go to host memory
    HOST_TOKENS,
    SWAP_TOKEN_PS,
    EMERGENCY,  # 1 if emergency modes are on
    LOW_WEIGHT,  # 1: throttle tenants of low weight, not those served too much
    PROMPT_COST,  # thousandths of a unit
    OUTPUT_COST,
    MIN_50,
    MIN_90,
    MIN_99,
    BELOW_SCR,  # windows in a row in a state of emergency
    BELOW_JFI,
    BELOW_TFR,
    CALM,  # windows in a row above yellow since the mode began
    AUTO_FLOORS,  # 1: floors of types follow the window before
    RESERVE_PART,
    ETA,
    ERROR,  # largest error of a predicted cost, millionths
    CORRECTS,  # 1 if predictions are corrected as requests finish
    SEED,
) = range(62)
SCALARS: Final = 64

# ---- by tenant ----
(
    WAITERS,  # tickets that wait for their first batch
    LIMIT,  # the tenant's own limit of waiting requests; 0: the general one
    RATE,
    RATE_MAX,
    RATE_MIN,
    RATE_STEP,
    LEVEL,  # what its bucket holds, in 1e-9 requests
    BURST,
    FILLED_AT,  # microsecond up to which the bucket was filled
    TARGET,  # TTFT target of the signal
    APPLIED_AT,  # instant at which the rate was last set
    SAMPLE_FIRST,  # tickets by their first token: the oldest in the signal's window
    SAMPLE_LAST,
    WAIT_FIRST,  # tickets by arrival: those before have left the queue
    WAIT_LAST,
    # of the window at hand:
    COUNT,
    MISSED_50,
    MISSED_90,
    MISSED_99,
    SERVED,
    REFUSED_COST,
    WAITING_COST,
    TARGET_50,
    TARGET_90,
    TARGET_99,
    WEIGHT,
    CAP,  # served in a window, from which the tenant is held back
    SHARE,  # scratch: entitlement
    RATIO,  # scratch: served over entitlement, in 1/1024
) = range(29)
TENANT: Final = 32

# ---- by type ----
(
    K_SERVED,
    K_REFUSED_COST,
    K_WAITING_COST,
    K_FLOOR,  # its part of what is served, in 2**-20
    K_CAP,
    K_ARRIVALS,
    K_SUM,  # cost of its arrivals
    K_SQUARES,
) = range(8)
TYPE: Final = 8

# ---- by request of the workload ----
(
    S_ARRIVAL,
    S_PROMPT,
    S_OUTPUT,
    S_TENANT,
    S_TYPE,
    S_LIMITED,  # so many of its arrivals ``rpm-limit`` refuses
    # for the compiled engine, which copies them:
    S_CUT,  # output that fits into the model's length
    S_PRIORITY,
    S_WEIGHT,
    S_COST,
    S_DRAW,
    S_PRECISION,
) = range(12)
SOURCE: Final = 12

# ---- by ticket ----
(
    OF,  # the request
    STATE,
    ARRIVED,
    LEFT,  # instant at which it left the queue: first batch or refusal; FOREVER while it waits
    FIRST_TOKEN,
    NEXT_SAMPLE,
    NEXT_WAITING,
    COMES_BACK,  # instant
    NEXT_BACK,
    ATTEMPT,  # 1 at the first arrival
    HOST,  # tokens in host memory
) = range(11)
TICKET: Final = 12
DONE, WAITS, RUNS = range(3)

# ---- events ----
E_AT, E_WHAT, E_WHO, E_VALUE = range(4)
EVENT: Final = 4
(
    RATE_SET,  # tenant, new rate
    VOLUNTARY_PREEMPTED,  # ticket, tokens lost
    PREEMPTION_DENIED_SEEN,  # ticket, 0
    SWAPPED_OUT,  # ticket, tokens
    SWAPPED_IN,  # ticket, tokens
    SWAP_FULL,  # ticket, tokens that found no room
    MODE_SET,  # mode, 0
    THROTTLED,  # tenant, cap
    ISOLATED,  # type, cap
    LONG_ADMITTED,  # ticket, tokens
    FLOOR_SET,  # type, floor
) = range(11)
ABOUT_TICKETS: Final = (
    VOLUNTARY_PREEMPTED,
    PREEMPTION_DENIED_SEEN,
    SWAPPED_OUT,
    SWAPPED_IN,
    SWAP_FULL,
    LONG_ADMITTED,
)
"""Events whose ``E_WHO`` is a ticket."""

NO_PRESSURE, GENTLE, LITERAL = range(3)
NO_MODE, SINGLE_P99, THROTTLE, ISOLATION = range(4)
NO_CAP: Final = 2**62


def tenant_at(tenant: int) -> int:
    """Where a tenant's numbers begin in ``c``."""
    return SCALARS + tenant * TENANT


def type_at(tenants: int, kind: int) -> int:
    """Where a type's numbers begin in ``c``."""
    return SCALARS + tenants * TENANT + kind * TYPE
