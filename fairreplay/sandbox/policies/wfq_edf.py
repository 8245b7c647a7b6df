"""Fair among tenants, earliest deadline inside: ``wfq``, but a head whose deadline is near goes first.

A tenant's requests have one target, so its earliest deadline is its oldest request. A head whose slack (deadline minus
now) falls below ``slack_ps`` goes before all whose slack does not, the earliest deadline first; that does not move v.
"""

from __future__ import annotations

from fairreplay.sandbox.policies.wfq import Wfq

BEFORE_ALL = -(2**63)


class WfqEdf(Wfq):
    """Reads what ``wfq`` reads, ``slo_ps``, ``quantile`` and ``slack_ps``."""

    def rank(self, request: int) -> int:
        return BEFORE_ALL + self._deadline(request) if self.out_of_turn(request) else super().rank(request)

    def out_of_turn(self, request: int) -> bool:
        return self._deadline(request) - self.head_state(request).now_ps < self.spec.slack_ps

    def _deadline(self, request: int) -> int:
        target = self.spec.slo_ps[int(self.workload.tenant[request])][self.spec.quantile]
        return int(self.workload.arrival_ps[request]) + target
