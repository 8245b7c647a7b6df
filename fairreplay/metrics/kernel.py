"""One pass over requests: everything that is summed by window, compiled.

Served tokens lie over time by one rule for the log and for every sandbox row. Prompt tokens lie evenly over
scheduled..first token (from the arrival where the schedule is unknown), output tokens evenly over first token..finish;
``decode`` puts all of a request over first token..finish, as the VTC artifact does for its published numbers. Amounts
are thousandths of a token, by cumulative floor division, so that the windows of a request add up to the whole exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from fairreplay.metrics.load import (
    CANCELLED,
    FAILED,
    FOREVER,
    OK,
    REJECTED,
    UNFINISHED,
    UNKNOWN,
    Ints,
)

Function = TypeVar("Function", bound=Callable[..., Any])

MILLI: Final = 1000
THRASH_TOTAL: Final = 3
"""A request with this many preemptions thrashes (two within 60 s do too, where a log gives their instants)."""

# What a cell (window and tenant, or window and type) holds, all integers; kinds of tokens are prompt, cached, output.
SERVED: Final = 0  # thousandths of tokens delivered in the window, by kind
UNMET: Final = 3  # refused in the window, less what has begun to be served of a prompt that still waits, by kind
WAITING: Final = 6  # change against the window before of what waits at its end, by kind
WAITERS: Final = 9  # likewise the number of requests
REFUSED: Final = 10  # requests refused in the window
TYPE_FIELDS: Final = 11
REQUESTS: Final = 11  # arrivals
LATE: Final = 12  # of these, without a first token for good
ANSWERED: Final = 13
MET: Final = 14  # TTFT within the target of P50, P90, P99
OVERDUE: Final = 17  # still waiting at the trace's end for longer than the target
TENANT_FIELDS: Final = 20

# What a window holds.
REDONE: Final = 0
COMPUTED: Final = 1
PREEMPTIONS: Final = 2
PREEMPTED: Final = 3
THRASHING: Final = 4
TOLD: Final = 5  # arrivals whose preemptions are known
WINDOW_FIELDS: Final = 6

# What the spread of service cost is reckoned from, by window and type (Welford).
COUNT: Final = 0
MEAN: Final = 1
SQUARES: Final = 2


def _compiled(function: Function) -> Function:
    """Compiled as part of its callers; no function here makes an array, and counting references takes long."""
    options = {
        "nogil": True,
        "error_model": "numpy",
        "_nrt": False,
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }
    return numba.njit(**options)(function)  # type: ignore[no-any-return]


@_compiled
def served_until(instant: int, begin: int, end: int, tokens: int) -> int:
    """Thousandths of ``tokens`` served before ``instant`` when spread evenly over ``begin``..``end``."""
    whole, span, elapsed = tokens * MILLI, end - begin, instant - begin
    if elapsed <= 0:
        return 0
    if elapsed >= span:
        return whole
    if whole < 1 << 31 and elapsed < 1 << 32:
        return whole * elapsed // span
    # The product may need more than 64 bits: long division with digits of ``elapsed`` so small that a remainder times
    # a digit fits.
    quotient, rest = whole // span, whole % span
    width = 0
    while span >> width:
        width += 1
    bits = 62 - width
    place = width // bits * bits
    more, remainder = 0, 0
    while place >= 0:
        now = (remainder << bits) + rest * ((elapsed >> place) & ((1 << bits) - 1))
        more = (more << bits) + now // span
        remainder = now % span
        place -= bits
    return quotient * elapsed + more


@_compiled
def window_of(instant: int, near: int, start: int, size: int) -> int:
    """The window of an instant, which is likely to be ``near``; a division takes longer than two comparisons."""
    lower = start + size * near
    return near if lower <= instant < lower + size else (instant - start) // size


@_compiled
def add_span(
    by_tenant: Ints,
    by_type: Ints,
    tenant: int,
    kind: int,
    field: int,
    tokens: int,
    begin: int,
    end: int,
    near: int,
    start: int,
    size: int,
    count: int,
) -> None:
    """Add the part of tokens served over ``begin``..``end`` that lies in each window."""
    end = max(begin, end)
    if end < start or begin >= start + size * count:
        return
    low = window_of(begin, near, start, size)
    upper = start + size * (low + 1)
    if low >= 0 and end <= upper:
        by_tenant[low, tenant, field] += tokens * MILLI
        by_type[low, kind, field] += tokens * MILLI
        return
    low = max(low, 0)
    high = min((end - 1 - start) // size, count - 1)
    before = served_until(start + size * low, begin, end, tokens)
    for window in range(low, high + 1):
        now = served_until(start + size * (window + 1), begin, end, tokens)
        by_tenant[window, tenant, field] += now - before
        by_type[window, kind, field] += now - before
        before = now


@_compiled
def mark(through: Ints, tenant: int, begin: int, stop: int, start: int, size: int) -> None:
    """Note that a tenant had a waiting request at every instant of ``begin``..``stop``, as changes by window."""
    low, beyond = -((start - begin) // size), (stop - start) // size
    if low < beyond:
        through[low, tenant] += 1
        through[beyond, tenant] -= 1


def add_requests(
    tenants: Ints,
    kinds: Ints,
    statuses: Ints,
    arrived: Ints,
    scheduled: Ints,
    first_token: Ints,
    finished: Ints,
    prompts: Ints,
    outputs: Ints,
    from_cache: Ints,
    recomputed: Ints,
    preemptions: Ints,
    weights: NDArray[np.float64],
    usual_prompt: Ints,
    usual_output: Ints,
    targets: Ints,
    prices: NDArray[np.float64],
    start: int,
    size: int,
    count: int,
    trace_end: int,
    decode: bool,
    drop_refused: bool,
    by_tenant: Ints,
    by_type: Ints,
    by_window: Ints,
    costs: NDArray[np.float64],
    in_force: NDArray[np.float64],
    through: Ints,
    runs: Ints,
    cell: Ints,
    ttft: Ints,
) -> int:
    """Add requests, in order of arrival, to the windows ``start + size * i``; instants in microseconds.

    Args:
        targets: shape (tenants, 3), TTFT targets of P50, P90, P99; negative where there is none.
        by_tenant, by_type: shape (windows + 1, keys, fields), the last window takes what leaves after the grid.
        by_window: shape (windows, ``WINDOW_FIELDS``); ``costs``: shape (windows, types, 3).
        weights: weight that a request was served with, NaN where unknown; ``in_force``: shape (windows, tenants, 2),
            number and mean of those of the arrivals.
        through: shape (windows + 1, tenants), changes; ``runs``: shape (tenants, 2), the wait that goes on, at first
            empty at ``start``; ``mark_runs`` notes the last ones.
        cell, ttft: shape (requests,), filled with window * tenants + tenant and TTFT of those that were answered.

    Returns:
        How many were answered.
    """
    stop_us, arrival, answered = start + size * count, 0, 0
    for row in range(len(arrived)):
        tenant, kind, status, at = tenants[row], kinds[row], statuses[row], arrived[row]
        schedule, first, finish = scheduled[row], first_token[row], finished[row]
        arrival = window_of(at, arrival, start, size)
        cached = max(from_cache[row], 0)
        prompt, output = prompts[row], outputs[row]
        if prompt == UNKNOWN:
            prompt = usual_prompt[tenant]
        else:
            cached = min(cached, prompt)
        prompt = max(prompt - cached, 0)
        if output == UNKNOWN or status == REJECTED:
            output = usual_output[tenant]

        # What it was served, and when. One that is not known to have been answered was served nothing. One whose first
        # token is unknown but whose finish is known (a log of end-to-end times) is served evenly up to its finish.
        begin = at if schedule == UNKNOWN else schedule
        end = first if finish == UNKNOWN else finish
        turn = finish if first == UNKNOWN and status == OK else first
        if turn != UNKNOWN and status != REJECTED:
            prompt_from, prompt_to = (turn, end) if decode else (begin, turn)
            output_from = begin if first == UNKNOWN and not decode else turn
            for field, tokens, since, until in (
                (SERVED, prompt, prompt_from, prompt_to),
                (SERVED + 1, cached, prompt_from, prompt_to),
                (SERVED + 2, output, output_from, end),
            ):
                if tokens > 0:
                    add_span(by_tenant, by_type, tenant, kind, field, tokens, since, until, arrival, start, size, count)

        # Until when it waits. One that has no instant but its arrival is not known to have waited, nor is one that was
        # answered, of which only the finish is known: it was served all along. ``unfinished`` waits on for ever.
        stop = at
        if schedule != UNKNOWN:
            stop = schedule
        elif first != UNKNOWN:
            stop = first
        elif status != OK and finish != UNKNOWN:
            stop = finish
        elif status == UNFINISHED:
            stop = FOREVER
        low, beyond = max(arrival, 0), min(window_of(stop - 1, arrival, start, size), count)
        if stop > start and low < beyond:
            for window, sign in ((low, 1), (beyond, -1)):
                for field in range(WAITING, WAITERS + 1):
                    amount = sign * (prompt * MILLI, cached * MILLI, output * MILLI, 1)[field - WAITING]
                    by_tenant[window, tenant, field] += amount
                    by_type[window, kind, field] += amount
            # Where the schedule is unknown, a part of the prompt counts as served before the first token: it does not
            # wait as well.
            if schedule == UNKNOWN and first != UNKNOWN and not decode:
                for window in range(low, beyond):
                    upper = start + size * (window + 1)
                    for field, tokens in ((UNMET, prompt), (UNMET + 1, cached)):
                        begun = served_until(upper, at, first, tokens)
                        by_tenant[window, tenant, field] -= begun
                        by_type[window, kind, field] -= begun
        if status == REJECTED:
            refusal = at if finish == UNKNOWN else finish
            window = (refusal - start) // size
            if 0 <= window < count:
                for field in range(UNMET, UNMET + 3):
                    amount = (prompt, cached, output)[field - UNMET] * MILLI
                    by_tenant[window, tenant, field] += amount
                    by_type[window, kind, field] += amount
                by_tenant[window, tenant, REFUSED] += 1
                by_type[window, kind, REFUSED] += 1

        # The tenant's waits, merged.
        wait_from, wait_to = max(at, start), min(stop, stop_us)
        if wait_to > wait_from:
            if wait_from > runs[tenant, 1]:
                mark(through, tenant, runs[tenant, 0], runs[tenant, 1], start, size)
                runs[tenant, 0] = wait_from
                runs[tenant, 1] = wait_to
            else:
                runs[tenant, 1] = max(runs[tenant, 1], wait_to)

        if at < start:
            continue
        by_tenant[arrival, tenant, REQUESTS] += 1
        if first != UNKNOWN:
            wait = first - at
            by_tenant[arrival, tenant, ANSWERED] += 1
            for q in range(3):
                if wait <= targets[tenant, q]:
                    by_tenant[arrival, tenant, MET + q] += 1
            cell[answered] = arrival * through.shape[1] + tenant
            ttft[answered] = wait
            answered += 1
        elif status in (FAILED, CANCELLED) or (status == REJECTED and not drop_refused):
            by_tenant[arrival, tenant, LATE] += 1
        elif status == UNFINISHED:
            for q in range(3):
                if trace_end - at > targets[tenant, q]:
                    by_tenant[arrival, tenant, OVERDUE + q] += 1

        cost = prompt * prices[0] + cached * prices[1] + output * prices[2]
        costs[arrival, kind, COUNT] += 1
        off = cost - costs[arrival, kind, MEAN]
        costs[arrival, kind, MEAN] += off / costs[arrival, kind, COUNT]
        costs[arrival, kind, SQUARES] += off * (cost - costs[arrival, kind, MEAN])

        if first != UNKNOWN and recomputed[row] != UNKNOWN and prompts[row] != UNKNOWN and outputs[row] != UNKNOWN:
            by_window[arrival, REDONE] += recomputed[row]
            by_window[arrival, COMPUTED] += (
                recomputed[row] + prompts[row] - max(from_cache[row], 0) + max(outputs[row] - 1, 0)
            )
        if weights[row] > 0:
            in_force[arrival, tenant, COUNT] += 1
            in_force[arrival, tenant, MEAN] += (weights[row] - in_force[arrival, tenant, MEAN]) / in_force[
                arrival, tenant, COUNT
            ]
        if preemptions[row] != UNKNOWN:
            by_window[arrival, TOLD] += 1
            by_window[arrival, PREEMPTIONS] += preemptions[row]
            by_window[arrival, PREEMPTED] += preemptions[row] > 0
            by_window[arrival, THRASHING] += preemptions[row] >= THRASH_TOTAL
    return answered


add_requests_compiled = numba.njit(cache=True, nogil=True, error_model="numpy", _nrt=False)(add_requests)


def mark_runs(through: Ints, runs: Ints, start: int, size: int) -> None:
    """Note the waits that ``add_requests`` has left open."""
    for tenant in range(len(runs)):
        mark(through, tenant, runs[tenant, 0], runs[tenant, 1], start, size)


mark_runs_compiled = numba.njit(cache=True, nogil=True, error_model="numpy", _nrt=False)(mark_runs)


def outlasting(
    arrived: Ints, scheduled: Ints, first_token: Ints, finished: Ints, statuses: Ints, start: int, part: int, row: Ints
) -> int:
    """Fill ``row`` with the rows that last beyond the part of the grid in which they arrived, or until it begins.

    A row lasts until the last instant that it names, for ever if it waits on. Parts are ``part`` microseconds long,
    from ``start`` on.

    Returns:
        How many do; that many entries are filled.
    """
    found, end = 0, start
    for place in range(len(arrived)):
        if arrived[place] >= end:
            end = start + ((arrived[place] - start) // part + 1) * part
        turn = max(scheduled[place], first_token[place])
        waits_on = turn == UNKNOWN and statuses[place] == UNFINISHED
        if waits_on or max(turn, finished[place], arrived[place]) >= end:
            row[found] = place
            found += 1
    return found


outlasting_compiled = numba.njit(cache=True, nogil=True, error_model="numpy", _nrt=False)(outlasting)


def put_in_cells(cell: Ints, value: Ints, first: Ints, known: Ints, ordered: Ints, small: int) -> None:
    """Put each value among those of its cell, which begin at ``first``; cells of up to ``small`` values are sorted."""
    filled = np.zeros(len(first), np.int64)
    for row in range(len(cell)):
        of, new = cell[row], value[row]
        begin = first[of]
        place = begin + filled[of]
        filled[of] += 1
        if known[of] <= small:
            while place > begin and ordered[place - 1] > new:
                ordered[place] = ordered[place - 1]
                place -= 1
        ordered[place] = new


put_in_cells_compiled = numba.njit(cache=True, nogil=True, error_model="numpy")(put_in_cells)


def pick_ranks(ordered: Ints, known: Ints, late: Ints, quantiles: Ints, found: NDArray[np.float64]) -> None:
    """The value of each quantile's nearest rank among a cell's ``known`` values and ``late`` infinite ones.

    ``ordered`` holds the cells one after the other; ``found`` has shape (quantiles, cells), NaN for an empty cell.
    """
    first = 0
    for of in range(len(known)):
        n = known[of] + late[of]
        for place in range(len(quantiles)):
            rank = (quantiles[place] * n + 99) // 100
            if n == 0:
                found[place, of] = np.nan
            elif rank <= known[of]:
                found[place, of] = ordered[first + rank - 1]
            else:
                found[place, of] = np.inf
        first += known[of]


pick_ranks_compiled = numba.njit(cache=True, nogil=True, error_model="numpy", _nrt=False)(pick_ranks)
