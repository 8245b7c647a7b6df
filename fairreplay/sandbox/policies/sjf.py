"""Shortest prompt first, or the one expected to cost least: a rule that starves long requests."""

from __future__ import annotations

from fairreplay.sandbox.extras import MICRO
from fairreplay.sandbox.policies.base import Policy


class Sjf(Policy):
    """Estimates are counted in millionths of a token."""

    threshold_unit = 1

    def rank(self, request: int) -> int:
        cost = self.prompt_cost(request)
        if not self.estimator:
            return cost
        return self.estimated(request, cost if self.spec.by_cost else cost * MICRO)
