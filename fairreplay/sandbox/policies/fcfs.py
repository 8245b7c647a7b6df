"""First come, first served: by arrival, then order in the source (vLLM's default)."""

from __future__ import annotations

from fairreplay.sandbox.policies.base import Policy


class Fcfs(Policy):
    """All heads rank equal, so the tie-break (arrival, order in the source) decides."""

    def rank(self, request: int) -> int:
        return 0
