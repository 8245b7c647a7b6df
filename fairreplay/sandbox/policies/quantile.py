"""The multi-quantile scheduler: by a deadline that follows each tenant's error budgets, and its service so far.

``rank = arrival + target + gamma * log2(1 + service)``. The target is the tightest of the tenant's TTFT targets whose
error budget over its last n requests is used up, else the widest (``deadlines.budget_target``). Service is counted and
lifted as under ``vtc``; the mean of all tenants, by which over-service would be divided, is common to all ranks and
moves none. With one quantile, equal weights and gamma 0 it is ``edf`` on that quantile.
"""

from __future__ import annotations

from collections import deque

from fairreplay.sandbox.engine import PolicySpec, Workload
from fairreplay.sandbox.policies.deadlines import LOG_BITS, budget_target, log2_scaled
from fairreplay.sandbox.policies.vtc import Vtc


class Quantile(Vtc):
    """Reads ``slo_ps``, ``quantiles``, ``history``, ``gamma_ps``; with gamma what ``vtc`` reads too."""

    ranks_tenants = False

    def __init__(self, spec: PolicySpec, workload: Workload) -> None:
        super().__init__(spec, workload)
        self._missed: list[deque[tuple[int, ...]]] = [deque(maxlen=spec.history) for _ in workload.tenants]
        """By tenant, of its last requests: 1 for each quantile whose target the first token missed."""

    def rank(self, request: int) -> int:
        tenant = int(self.workload.tenant[request])
        misses = [sum(missed[place] for missed in self._missed[tenant]) for place in range(3)]
        target = budget_target(self.spec.slo_ps[tenant], misses, self.spec.history, self.spec.quantiles)
        over_service = (self.spec.gamma_ps * log2_scaled(self.counter[tenant])) >> LOG_BITS
        return int(self.workload.arrival_ps[request]) + target + over_service

    def on_first_token(self, request: int, ttft_ps: int) -> None:
        tenant = int(self.workload.tenant[request])
        self._missed[tenant].append(tuple(int(ttft_ps > target) for target in self.spec.slo_ps[tenant]))
