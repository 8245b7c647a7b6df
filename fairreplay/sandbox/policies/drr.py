"""Deficit round robin: each tenant in turn may spend a quantum by its weight, and saves up what it did not spend.

Shreedhar and Varghese, "Efficient fair queuing using deficit round-robin", SIGCOMM 1995; SGLang-like gateways use it
per tenant. A request costs ``max(1, prompt - cached)`` tokens. The ring carries on with the same tenant while its
deficit lasts; the deficit is dropped when its queue empties. Instead of quanta by weight, costs are multiplied by the
scaled inverse weight.
"""

from __future__ import annotations

from fairreplay.sandbox.engine import WEIGHT_SCALE, PolicySpec, Workload
from fairreplay.sandbox.policies.base import Policy
from fairreplay.sandbox.policies.ring import next_visit


class Drr(Policy):
    """Reads ``spec.quantum``. A preempted request has paid for its turn and goes first."""

    def __init__(self, spec: PolicySpec, workload: Workload) -> None:
        super().__init__(spec, workload)
        self._quantum = spec.quantum * WEIGHT_SCALE
        self._visit = -1
        self._since = [-1] * len(workload.tenants)
        """The visit up to which the tenant's deficit is counted."""
        self._deficit = [0] * len(workload.tenants)

    def rank(self, request: int) -> int:
        if self.head_state(request).preemptions:
            return -1
        return self._served_at(request, self._price(request, self.cached_tokens(request)))[0]

    def on_admit(self, request: int, cached: int) -> None:
        tenant = int(self.workload.tenant[request])
        price = self._price(request, cached)
        served, visits = self._served_at(request, price)
        self._deficit[tenant] += visits * self._quantum - price
        self._since[tenant] = served
        self._visit = max(self._visit, served)

    def on_queue_filled(self, tenant: int) -> None:
        self._since[tenant] = max(self._since[tenant], self._visit)

    def on_queue_empty(self, tenant: int) -> None:
        self._deficit[tenant] = 0

    def _price(self, request: int, cached: int) -> int:
        return max(1, int(self.workload.prompt_tokens[request]) - cached) * self.inverse_weight(request)

    def _served_at(self, request: int, price: int) -> tuple[int, int]:
        """The visit at which the tenant can pay ``price``, and how many visits of its own lie up to there."""
        tenant = int(self.workload.tenant[request])
        missing = price - self._deficit[tenant]
        if missing <= 0:
            return self._since[tenant], 0
        visits = -(-missing // self._quantum)
        first = next_visit(tenant, len(self._since), self._since[tenant])
        return first + (visits - 1) * len(self._since), visits
