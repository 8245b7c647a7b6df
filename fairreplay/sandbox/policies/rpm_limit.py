"""A limit of requests a minute for each tenant, then first come, first served (common in gateways).

A request is refused while ``rpm`` of its tenant were let through in the 60 s before it, as the limiter of the VTC
artifact does. Where refused requests come back they come back to the limiter, which stands before all replicas: what it
refuses follows from the first arrivals and from these returns. What a replica refuses has been let through already.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from fairreplay.sandbox.engine import NO_REASON, PS_PER_SECOND, RATE_LIMITED, Int64s, Plan, PolicySpec, Workload
from fairreplay.sandbox.policies.base import Policy

MINUTE_PS = 60 * PS_PER_SECOND
NOBODY, LAST_PS = -1, 2**63 - 1
"""After all arrivals: those that come back still do."""


class RpmLimit(Policy):
    """Reads ``spec.rpm``."""

    def __init__(self, spec: PolicySpec, workload: Workload) -> None:
        super().__init__(spec, workload)
        self._over_limit = limited(workload.source or workload, spec.rpm)

    def rank(self, request: int) -> int:
        return 0

    def refuses(self, request: int, attempt: int) -> int:
        if self.workload.of is not None:  # of a ticket the request counts
            request = int(self.workload.of[request])
        return RATE_LIMITED if attempt <= self._over_limit[request] else NO_REASON


def with_limits(workload: Workload, plan: Plan) -> Workload:
    """``workload`` with ``over_limit``, where requests may come back to a limiter: reckoned if it does not say so."""
    rpms = [state.policy.rpm for _, state in plan.settings if state.policy.name == "rpm-limit"]
    if not rpms or plan.controls is None or workload.over_limit is not None:
        return workload
    retries, after_ps = plan.controls.retries, plan.controls.retry_after_ps
    return replace(workload, over_limit=over_limit(workload.arrival_ps, workload.tenant, rpms[0], retries, after_ps))


def limited(workload: Workload, rpm: int) -> Int64s:
    """How many arrivals of each request are refused: as the workload says, else reckoned from its first arrivals."""
    if workload.over_limit is not None:
        return workload.over_limit
    return over_limit(workload.arrival_ps, workload.tenant, rpm)


def over_limit(arrival_ps: Int64s, tenant: Int64s, rpm: int, retries: int = 0, retry_after_ps: int = 0) -> Int64s:
    """How often each request comes while ``rpm`` of its tenant were let through in the 60 s before it.

    Who is refused comes back ``retry_after_ps`` later, ``retries`` times at most: so the count is 0 of who is let
    through at once, and ``1 + retries`` of who never is. ``arrival_ps`` is sorted; the window is open at its start: a
    request 60 s after another does not see it. Of equal instants the one that comes back is first.
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
        back: deque[tuple[int, int]] = deque()  # in order: all wait equally long
        for row, at_ps in [*zip(rows.tolist(), at.tolist(), strict=True), (NOBODY, LAST_PS)]:
            while back and back[0][0] <= at_ps:
                _arrive(*back.popleft(), rpm, retries, retry_after_ps, passed, back, over)
            if row != NOBODY:
                _arrive(at_ps, row, rpm, retries, retry_after_ps, passed, back, over)
    return over


def _arrive(
    at_ps: int,
    row: int,
    rpm: int,
    retries: int,
    retry_after_ps: int,
    passed: list[int],
    back: deque[tuple[int, int]],
    over: Int64s,
) -> None:
    """One arrival at the limiter of its tenant."""
    if len(passed) < rpm or passed[-rpm] <= at_ps - MINUTE_PS:
        passed.append(at_ps)
        return
    over[row] += 1
    if over[row] <= retries:
        back.append((at_ps + retry_after_ps, row))
