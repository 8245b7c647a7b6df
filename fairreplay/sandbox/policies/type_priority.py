"""A configured order of request types: a rule that starves the types at its end."""

from __future__ import annotations

from fairreplay.sandbox.policies.base import Policy


class TypePriority(Policy):
    """``spec.type_rank[k]`` is the place of type k; types without a place come last, all equal."""

    threshold_unit = 1

    def rank(self, request: int) -> int:
        ranks = self.spec.type_rank
        kind = int(self.workload.type[request])
        return ranks[kind] if kind < len(ranks) else len(ranks)
