"""Estimated against actual cost: the baseline replay's time in service against the log's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import cast

from fairreplay.config.model import Config
from fairreplay.metrics.costs import NO_BASELINE, cost_estimates, sentence
from fairreplay.report.facts import SourceFacts
from fairreplay.report.rounding import plain, rounded
from fairreplay.report.schema import CostEstimate, Costs


def costs(sources: Sequence[SourceFacts], config: Config) -> Costs:
    """The comparison of the log (the first source) with its baseline replay."""
    baseline = next((facts for facts in sources if facts.role == "baseline"), None)
    if baseline is None:
        return {"estimates": None, "reason": NO_BASELINE}
    alpha = config.cost.correction
    found = cost_estimates(sources[0].outcome, baseline.outcome, alpha)
    if found is None:
        return {"estimates": None, "reason": sentence(None, alpha)}
    return {
        "estimates": cast(list[CostEstimate], [plain(asdict(one)) for one in found.estimates]),
        "reason": sentence(found, alpha),
        "error": rounded(found.error),
        "error_corrected": rounded(found.error_corrected),
    }
