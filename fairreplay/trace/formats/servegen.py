"""ServeGen (alibaba/ServeGen): a file per client with windows of 600 s, their rate and distribution. Not requests."""

from __future__ import annotations

from fairreplay.trace.fields import Sample
from fairreplay.trace.nested import number_of

_COLUMNS = ("c0", "c1", "c2", "c3", "c4", "c5")
"""No header: window start, mean rate, coefficient of variation, distribution, two shape parameters."""
_DISTRIBUTIONS = ("Gamma", "Weibull", "")


def holds_rates(sample: Sample) -> bool:
    """A table without header whose every row is such a window."""
    if sample.container != "csv" or sample.columns != _COLUMNS:
        return False
    return all(
        record["c3"] in _DISTRIBUTIONS and number_of(record["c0"]) is not None and number_of(record["c1"]) is not None
        for record in sample.records
    )
