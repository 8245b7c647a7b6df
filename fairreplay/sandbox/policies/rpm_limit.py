"""A limit of requests a minute for each tenant, then first come, first served (common in gateways).

A request is refused while ``rpm`` of its tenant were let through in the 60 s before it, as the limiter of the VTC
artifact does. What it refuses follows from the arrivals alone.
"""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.engine import NO_REASON, PS_PER_SECOND, RATE_LIMITED, Int64s, PolicySpec, Workload
from fairreplay.sandbox.policies.base import Policy

MINUTE_PS = 60 * PS_PER_SECOND


class RpmLimit(Policy):
    """Reads ``spec.rpm``."""

    def __init__(self, spec: PolicySpec, workload: Workload) -> None:
        super().__init__(spec, workload)
        self._over_limit = limited(workload.source or workload, spec.rpm)

    def rank(self, request: int) -> int:
        return 0

    def refuses(self, request: int) -> int:
        if self.workload.of is not None:  # of a ticket the request counts
            request = int(self.workload.of[request])
        return RATE_LIMITED if self._over_limit[request] else NO_REASON


def limited(workload: Workload, rpm: int) -> Int64s:
    """1 for requests that are refused: as the workload says, else reckoned from it."""
    if workload.over_limit is not None:
        return workload.over_limit
    return over_limit(workload.arrival_ps, workload.tenant, rpm)


def over_limit(arrival_ps: Int64s, tenant: Int64s, rpm: int) -> Int64s:
    """1 for each request that comes while ``rpm`` of its tenant were let through in the 60 s before it.

    ``arrival_ps`` is sorted; the window is open at its start: a request 60 s after another does not see it.
    """
    over = np.zeros(len(arrival_ps), np.int64)
    order = np.argsort(tenant, kind="stable")
    begins = np.flatnonzero(np.diff(tenant[order], prepend=-1))
    for rows in np.split(order, begins[1:]):
        at = arrival_ps[rows]
        # whoever has fewer than rpm arrivals before it within the minute is let through whatever became of them
        crowded = np.arange(len(at)) - np.searchsorted(at, at - MINUTE_PS, side="right") >= rpm
        if not crowded.any():
            continue
        passed: list[int] = []
        for row, at_ps in zip(rows.tolist(), at.tolist(), strict=True):
            if len(passed) >= rpm and passed[-rpm] > at_ps - MINUTE_PS:
                over[row] = 1
            else:
                passed.append(at_ps)
    return over
