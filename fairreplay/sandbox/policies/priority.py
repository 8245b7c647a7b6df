"""Lowest priority number first, then arrival (vLLM's ``--scheduling-policy priority``)."""

from __future__ import annotations

from fairreplay.sandbox.policies.base import Policy


class Priority(Policy):
    """Victims, too, are chosen by priority unless the settings say otherwise (``engine.victim_rule``)."""

    threshold_unit = 1

    def rank(self, request: int) -> int:
        return int(self.workload.priority[request])
