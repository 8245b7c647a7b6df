"""What rejected drafts cost: the plain engine's account of speculative decoding.

A request that decodes has ``drafts`` tokens drafted and checked at each step, however few it still needs: nobody knows
where its output ends. Those accepted in a row become output tokens together with the target's own next one. Rejected
ones take time, but neither room in the step nor KV blocks, so with no acceptance at all a run takes the time of the
drafts longer and nothing else. No drafts go with the step of a prefill or an admission. With async scheduling the next
step is scheduled as if it were known what is accepted in the one that executes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fairreplay.sandbox.engine import DETAILS_OF_SPECULATION, Int64s, Workload
from fairreplay.sandbox.extras import Speculation


class Drafting:
    """Sums by request over the steps that it was in: see ``DETAILS_OF_SPECULATION``."""

    def __init__(self, workload: Workload) -> None:
        self._tenant = workload.tenant  # it may still grow
        self._sums = {name: np.zeros(len(workload), np.int64) for name in DETAILS_OF_SPECULATION}

    def step_ps(self, speculation: Speculation, batch: Sequence[tuple[int, int, int]]) -> int:
        """Time that the drafts of a step add to it; ``batch``: (request, drafts, tokens that it gets)."""
        requests_of = Counter(self._of(request) for request, _, _ in batch)
        rejected_of: Counter[int] = Counter()
        for request, drafts, tokens in batch:
            if drafts:
                rejected = drafts - (tokens - 1)
                self._sums["drafted"][request] += drafts
                self._sums["rejected"][request] += rejected
                self._sums["decode_steps"][request] += 1
                self._sums["wasted_ps"][request] += rejected * speculation.verify_ps
                rejected_of[self._of(request)] += rejected
                others = len(batch) - requests_of[self._of(request)]
                self._sums["imposed_ps"][request] += rejected * others * _draft_ps(speculation)
        total = sum(rejected_of.values())
        for request, _, _ in batch:
            of_others = total - rejected_of[self._of(request)]
            self._sums["held_up_ps"][request] += of_others * _draft_ps(speculation)
        return _draft_ps(speculation) * sum(drafts for _, drafts, _ in batch)

    def _of(self, request: int) -> int:
        return int(self._tenant[request])

    def details(self) -> dict[str, Int64s]:
        return dict(self._sums)


def _draft_ps(speculation: Speculation) -> int:
    return speculation.draft_ps + speculation.verify_ps
