"""Deadlines with a bias to short prompts, and no effort for what is lost: ``arrival + deadline + alpha * prefill``.

After QoServe (Niyama), which schedules by deadline plus remaining work and relegates requests that cannot be on time:
a head that would miss its target even if its prompt were computed alone from now on goes behind all others. A preempted
request keeps its rank and is not relegated.
"""

from __future__ import annotations

from fairreplay.sandbox.policies.base import Policy

BEFORE_ALL = -(2**63)


class Qoserve(Policy):
    """Reads ``slo_ps``, ``quantile`` and ``alpha_ps``."""

    def rank(self, request: int) -> int:
        state = self.head_state(request)
        prompt = int(self.workload.prompt_tokens[request])
        target = self.spec.slo_ps[int(self.workload.tenant[request])][self.spec.quantile]
        deadline = int(self.workload.arrival_ps[request]) + target
        place = deadline + self.estimated(request, self.spec.alpha_ps * prompt)
        takes_ps = self.estimated(request, prompt * state.prefill_token_ps)
        is_lost = not state.preemptions and state.now_ps + takes_ps > deadline
        return place if is_lost else BEFORE_ALL + place
