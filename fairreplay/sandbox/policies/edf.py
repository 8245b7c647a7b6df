"""Earliest deadline first: by ``arrival + s_q`` for one quantile q of the tenant's TTFT targets."""

from __future__ import annotations

from fairreplay.sandbox.policies.base import Policy


class Edf(Policy):
    """Reads ``spec.slo_ps`` and ``spec.quantile``."""

    threshold_unit = 10**9  # milliseconds

    def rank(self, request: int) -> int:
        target = self.spec.slo_ps[int(self.workload.tenant[request])][self.spec.quantile]
        return int(self.workload.arrival_ps[request]) + target
