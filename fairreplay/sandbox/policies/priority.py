"""Lowest priority number first, then arrival (vLLM's ``--scheduling-policy priority``)."""

from __future__ import annotations

from fairreplay.sandbox.policies.base import Policy


class Priority(Policy):
    """Also takes its victims by priority: the running request of the largest (priority, arrival)."""

    preempts_by_priority = True

    def rank(self, request: int) -> int:
        return int(self.workload.priority[request])
