"""What is said about an episode: the causes, how sure that is, what would have helped, and how to recompute it.

Two judges stand beside each other: ``signatures`` come from the log alone, ``counterfactuals`` from replays in which a
cause is taken away. Everything here turns into JSON (``document``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

CAUSES: Final = ("burst", "preemption_thrash", "type_starvation", "weight_skew", "capacity_shortfall")
"""What a counterfactual can take away. Besides these an episode is ``low_demand``, ``minor`` or ``unexplained``."""
UNEXPLAINED: Final = "unexplained"
LOW_DEMAND: Final = "low_demand"
NATIVE: Final = {"jfi": "weight_skew", "tfr": "type_starvation"}
"""Load makes contention, the rule makes it unfair: this close to the largest share, a metric's own cause is primary."""
NATIVE_WITHIN: Final = 0.1
FURTHER_SHARE: Final = 0.2

Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Signature:
    """What the log alone says about one cause."""

    cause: str
    found: bool | None
    """None: this log cannot tell; ``says`` states why."""
    suspected: bool
    """Hints without proof (thrashing in a log without preemption counts). Never counts as found."""
    measure: str
    """What ``number`` is."""
    number: float | None
    threshold: float
    baseline: float | None
    """The same number in the healthy windows of the hour before."""
    says: str
    """One sentence; names of tenants stay out of it."""
    tenants: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further numbers; JSON-able."""


@dataclass(frozen=True)
class Counterfactual:
    """One replay of the episode without some of the causes, and what was left of the deficits."""

    without: tuple[str, ...]
    """Causes that were taken away; () is the baseline replay."""
    deficits: Mapping[str, float]
    values: Mapping[str, float | None]
    """By metric: part of the baseline replay's deficit that is gone (null where it had none)."""
    metrics: Mapping[str, float | None]
    """Mean over the episode's windows of scr, jfi, tfr, and the least min_x."""
    inputs: Mapping[str, Any]
    """All that ``counterfactual.recompute`` needs beside store and config; JSON-able."""


@dataclass(frozen=True)
class MetricVerdict:
    """The causes of one metric's deficit. ``shares`` and ``unexplained`` add up to 1; null if not reproduced."""

    metric: str
    cause: str
    further: tuple[str, ...]
    shares: Mapping[str, float] | None
    """Cause -> share, ``unexplained`` among them. A negative share made it worse and is never ranked."""
    confidence: Confidence
    logged_deficit: float
    baseline_deficit: float
    """Of the baseline replay, with the inferred change if there is one."""


@dataclass(frozen=True)
class Inferred:
    """The one unlisted change that makes the sandbox match the logged times."""

    what: Literal["speed", "kv"]
    factor: float
    start: str
    end: str
    """ISO instants."""
    loss_before: float
    loss_after: float


@dataclass(frozen=True)
class Recommendation:
    """A fix and what the sandbox measured of it, on the episode and on the whole period."""

    cause: str | None
    """The cause it answers; null for a listed change that is merely reverted."""
    title: str
    """One sentence without names from the data."""
    snippet: str | None
    """In the engine's or gateway's own words. Holds names from the data: escape it."""
    before: Mapping[str, float | None]
    after: Mapping[str, float | None]
    """Means over the episode's windows (scr, jfi, tfr), the least min_x, and ``deficit_scr`` etc."""
    metrics: tuple[str, ...]
    """The metrics that it is there for: those whose primary cause it answers, else all with a deficit."""
    removed: float
    """Part of the summed deficit of ``metrics`` that is gone; negative: it makes them worse."""
    removed_all: float
    """The same over all metrics with a deficit of at least .5."""
    period_before: Mapping[str, float | None] | None = None
    period_after: Mapping[str, float | None] | None = None
    hurts_period: bool | None = None
    """Helps this episode and makes the period's summed deficit larger; null where the period was not replayed."""
    inputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The causes of one episode."""

    episode: str
    """Its id."""
    cause: str
    """The primary cause of the whole: one of ``CAUSES``, ``unexplained``, ``low_demand`` or ``minor``."""
    further: tuple[str, ...]
    """Other causes with a share of at least .2 of the whole, largest first, then those primary for a metric."""
    shares: Mapping[str, float] | None
    """Equal-weight mean over the metrics with a deficit of at least .5; adds up to 1 with ``unexplained``."""
    by_metric: Mapping[str, MetricVerdict]
    """Only metrics with a deficit of at least .5."""
    confidence: Confidence | None
    reason: str
    """One sentence with numbers. Holds tenants' names: escape it."""
    signatures: Mapping[str, Signature]
    counterfactuals: tuple[Counterfactual, ...]
    """The baseline replay first."""
    recommendations: tuple[Recommendation, ...] = ()
    """Of the primary cause first; reverted changes last."""
    inferred: Inferred | None = None
    assumptions: tuple[str, ...] = ()
    """What a reader must know, e.g. ``simulated baseline``, no preemption counts, no baseline windows."""


def document(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON, every number unrounded: what ``counterfactual.recompute`` and a reader's doubt need."""
    return asdict(verdict)
