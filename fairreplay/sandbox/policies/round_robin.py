"""Round robin: one request of each tenant in turn, whatever it costs (common in gateways)."""

from __future__ import annotations

from fairreplay.sandbox.engine import PolicySpec, Workload
from fairreplay.sandbox.policies.base import Policy
from fairreplay.sandbox.policies.ring import next_visit


class RoundRobin(Policy):
    """A preempted request has had its turn and goes first."""

    def __init__(self, spec: PolicySpec, workload: Workload) -> None:
        super().__init__(spec, workload)
        self._visit = -1
        self._since = [-1] * len(workload.tenants)
        """The visit after which the tenant waits for its turn."""

    def rank(self, request: int) -> int:
        if self.head_state(request).preemptions:
            return -1
        tenant = int(self.workload.tenant[request])
        return next_visit(tenant, len(self._since), self._since[tenant])

    def on_admit(self, request: int, cached: int) -> None:
        tenant = int(self.workload.tenant[request])
        served = next_visit(tenant, len(self._since), self._since[tenant])
        self._since[tenant] = served
        self._visit = max(self._visit, served)

    def on_queue_filled(self, tenant: int) -> None:
        self._since[tenant] = max(self._since[tenant], self._visit)
