"""Pairs that two schedules serve in opposite order, and whose requests went ahead of whose: merge sort, compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from fairreplay.metrics.load import Ints


def overtakes(first: Ints, second: Ints, tenant: Ints, tokens: Ints, tenants: int) -> tuple[int, Ints, Ints]:
    """Compare two orders of the same requests, in O(n log n) steps that touch up to ``tenants`` counters each.

    A pair counts if one stands strictly before the other in ``first`` and strictly after it in ``second``; requests
    that share an instant have no order. The one that comes earlier in ``second`` has overtaken the other.

    Args:
        first, second: instants of each request in the two orders, shape (n,).
        tenant: 0..tenants-1; ``tokens``: size of each request.

    Returns:
        How many pairs, and with shape (tenants, tenants), overtaker by overtaken: pairs, and tokens of the overtakers
        (a request counts once for each one that it overtook).
    """
    order = np.lexsort((second, first))  # those with the same instant in ``first`` are in the order of ``second``
    pairs, ahead = np.zeros((tenants, tenants), np.int64), np.zeros((tenants, tenants), np.int64)
    total = _merge_all(second[order], tenant[order], tokens[order], pairs, ahead)
    return int(total), pairs, ahead


def _merge(at: Ints, tenant: Ints, tokens: Ints, pairs: Ints, ahead: Ints) -> int:
    n, tenants, total = len(at), len(pairs), 0
    here, there = np.arange(n), np.empty(n, np.int64)
    left = np.zeros(tenants, np.int64)
    width = 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle, high = min(low + width, n), min(low + 2 * width, n)
            if middle == high or at[here[middle - 1]] <= at[here[middle]]:
                there[low:high] = here[low:high]
                continue
            left[:] = 0
            for place in range(low, middle):
                left[tenant[here[place]]] += 1
            i, j = low, middle
            for place in range(low, high):
                if j == high or (i < middle and at[here[i]] <= at[here[j]]):
                    there[place] = here[i]
                    left[tenant[here[i]]] -= 1
                    i += 1
                    continue
                one = here[j]
                there[place] = one
                j += 1
                total += middle - i
                # It has overtaken all that are left of those before it.
                if middle - i < tenants:
                    for other in range(i, middle):
                        pairs[tenant[one], tenant[here[other]]] += 1
                        ahead[tenant[one], tenant[here[other]]] += tokens[one]
                else:
                    for other in range(tenants):
                        pairs[tenant[one], other] += left[other]
                        ahead[tenant[one], other] += left[other] * tokens[one]
        here, there = there, here
        width *= 2
    return total


_merge_all: Any = numba.njit(cache=True, nogil=True)(_merge)
