"""What can be injected into a synthetic trace, one of each kind, and what it does to arrivals, settings and weights.

An incident never moves the requests that would have come anyway: extra demand is a stream of its own, missing demand
is taken out by tenant and time. Leaving the incident out of the same scenario therefore undoes exactly its injection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Injection:
    """How an incident of this kind bends the scenario while it lasts.

    ``demand`` multiplies the arrivals of the ``culprits`` (of everybody where there are none); ``contention`` those of
    everybody, as the load against which a rule becomes unfair. ``settings`` are engine keys that change at the start
    and return at the end; ``shuffled_weights`` puts the weights in force in reverse order of commitment.
    """

    culprits: int = 0
    """How many tenants: from the middle of the size order on."""
    demand: float = 1.0
    contention: float = 1.0
    settings: dict[str, object] = field(default_factory=dict)
    listed: bool = True
    """Whether the change of settings stands in the config, as a deploy that production knows of."""
    shuffled_weights: bool = False
    hits: tuple[str, ...] = ()
    """Metrics that the incident is expected to hit."""
    says: str = ""


KINDS: Final[dict[str, Injection]] = {
    "burst": Injection(
        culprits=2, demand=14.0, hits=("scr", "jfi"), says="two tenants send far more than they usually do"
    ),
    "thrash": Injection(
        settings={"num_gpu_blocks": 120},
        contention=1.5,
        hits=("scr",),
        says="the KV cache is too small for the mix: work is preempted and done again",
    ),
    "starvation": Injection(
        settings={"policy": "type-priority"},
        contention=3.7,
        hits=("tfr", "scr"),
        says="requests are ordered by type while there is more work than capacity",
    ),
    "skew": Injection(
        settings={"policy": "vtc"},
        contention=3.4,
        shuffled_weights=True,
        hits=("jfi",),
        says="the weights in force are not the committed ones, under contention",
    ),
    "overload": Injection(contention=3.3, hits=("scr",), says="everybody sends more: demand exceeds capacity"),
    "slowdown": Injection(
        settings={"speed": 0.33}, hits=("scr",), says="the engine runs at a fraction of its speed after a deploy"
    ),
    "noisy-neighbour": Injection(
        culprits=1, demand=25.0, hits=("scr", "jfi"), says="one tenant floods the queue that all share"
    ),
    "quiet": Injection(culprits=1, demand=0.0, hits=(), says="one tenant sends nothing: only raw metrics may fall"),
}
"""Kind -> what it does. ``hits`` is what to expect, not a label made by a threshold of the classifier."""


@dataclass(frozen=True)
class Incident:
    """One injection at its time; microseconds from the start of the trace."""

    kind: str
    start_us: int
    end_us: int

    @property
    def injection(self) -> Injection:
        return KINDS[self.kind]
