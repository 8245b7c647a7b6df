"""Virtual token counter: the tenant with the smallest service counter goes next.

Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024. A counter grows by ``prompt_cost * prompt /
weight`` at admission and by ``output_cost / weight`` for each output token. A tenant that returns after its queue was
empty is lifted to the smallest counter among the waiting, so that idle time is no credit.
"""

from __future__ import annotations

from fairreplay.sandbox.engine import WEIGHT_SCALE, PolicySpec, Workload
from fairreplay.sandbox.policies.base import Policy


class Vtc(Policy):
    """``counter`` is service by tenant, in tokens times cost times scaled inverse weight."""

    threshold_unit = WEIGHT_SCALE
    ranks_tenants = True

    def __init__(self, spec: PolicySpec, workload: Workload) -> None:
        super().__init__(spec, workload)
        self.counter = [0] * len(workload.tenants)
        self.waiting: set[int] = set()
        self.last_to_leave: int | None = None

    def rank(self, request: int) -> int:
        return self.counter[int(self.workload.tenant[request])]

    def on_arrival(self, request: int) -> None:
        tenant = int(self.workload.tenant[request])
        if not self.spec.lift or tenant in self.waiting:
            return
        if self.waiting:
            floor = min(self.counter[other] for other in self.waiting)
        elif self.last_to_leave is not None:
            floor = self.counter[self.last_to_leave]
        else:
            return
        self.counter[tenant] = max(self.counter[tenant], floor)

    def on_queue_filled(self, tenant: int) -> None:
        self.waiting.add(tenant)

    def on_queue_empty(self, tenant: int) -> None:
        self.waiting.discard(tenant)
        self.last_to_leave = tenant

    def on_admit(self, request: int, cached: int) -> None:
        tokens = int(self.workload.prompt_tokens[request])
        self._charge(request, self.spec.prompt_cost * tokens)

    def on_tokens(self, request: int, k: int) -> None:
        self._charge(request, self.spec.output_cost * k)

    def _charge(self, request: int, units: int) -> None:
        self.counter[int(self.workload.tenant[request])] += units * self.inverse_weight(request)
