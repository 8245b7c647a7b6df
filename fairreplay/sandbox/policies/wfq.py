"""Start-time fair queueing over tenants, made of ``finish = start + cost / weight``.

Goyal, Vin and Cheng, "Start-time fair queuing", SIGCOMM 1996. A request starts at ``S = max(v, F of its tenant)``, its
tenant's F becomes ``S + cost / weight``, and the smallest S is served; v is the largest S served so far. The output
that a request will have is unknown: it counts as the mean of its tenant's finished requests, and what was wrong about
that is corrected when it finishes, at the weight that it was charged with; so is what was estimated wrong.
"""

from __future__ import annotations

from fairreplay.sandbox.engine import PolicySpec, Workload
from fairreplay.sandbox.extras import MICRO
from fairreplay.sandbox.policies.base import Policy


class Wfq(Policy):
    """Reads ``prompt_cost``, ``output_cost`` and ``predicted_output``.

    Tags count tokens times cost times scaled inverse weight. A preempted request keeps its S.
    """

    ranks_tenants = True

    def __init__(self, spec: PolicySpec, workload: Workload) -> None:
        super().__init__(spec, workload)
        self._virtual = 0
        self._tag = [0] * len(workload.tenants)
        """S of the tenant's next request."""
        self._waiting: set[int] = set()
        self._finished = [0] * len(workload.tenants)
        self._outputs = [0] * len(workload.tenants)
        self._charged: dict[int, tuple[int, int, int]] = {}
        """By request: its S, and the cost and the inverse weight that it was charged with."""

    def rank(self, request: int) -> int:
        charged = self._charged.get(request)
        return charged[0] if charged else self._tag[int(self.workload.tenant[request])]

    def on_arrival(self, request: int) -> None:
        tenant = int(self.workload.tenant[request])
        if tenant not in self._waiting:
            self._tag[tenant] = max(self._tag[tenant], self._virtual)

    def on_queue_filled(self, tenant: int) -> None:
        self._waiting.add(tenant)

    def on_queue_empty(self, tenant: int) -> None:
        self._waiting.discard(tenant)

    def on_admit(self, request: int, cached: int) -> None:
        tenant = int(self.workload.tenant[request])
        cost = self.estimated(request, self._cost(request, self._expected(request)))
        inverse = self.inverse_weight(request)
        if not self.out_of_turn(request):
            self._virtual = max(self._virtual, self._tag[tenant])
        self._charged[request] = (self._tag[tenant], cost, inverse)
        self._tag[tenant] += cost * inverse

    def on_finish(self, request: int, outputs: int) -> None:
        super().on_finish(request, outputs)
        tenant = int(self.workload.tenant[request])
        if outputs:
            self._finished[tenant] += 1
            self._outputs[tenant] += outputs
        if request in self._charged:
            _start, cost, inverse = self._charged[request]
            self._tag[tenant] += (self._cost(request, outputs) - cost) * inverse

    def out_of_turn(self, request: int) -> bool:
        """Whether ``request`` goes first for another reason than its S, which then does not move v."""
        return False

    def _cost(self, request: int, outputs: int) -> int:
        prompt = self.prompt_cost(request) // (MICRO if self.spec.by_cost else 1)
        return self.spec.prompt_cost * prompt + self.spec.output_cost * outputs

    def _expected(self, request: int) -> int:
        """Output tokens; a request for embeddings is known to have none."""
        tenant = int(self.workload.tenant[request])
        if not self.workload.output_tokens[request]:
            return 0
        finished = self._finished[tenant]
        return self._outputs[tenant] // finished if finished else self.spec.predicted_output
