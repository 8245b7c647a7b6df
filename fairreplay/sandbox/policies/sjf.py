"""Shortest prompt first, or the one expected to cost least: a rule that starves long requests."""

from __future__ import annotations

from fairreplay.sandbox.policies.base import Policy


class Sjf(Policy):
    threshold_unit = 1

    def rank(self, request: int) -> int:
        return self.prompt_cost(request)
