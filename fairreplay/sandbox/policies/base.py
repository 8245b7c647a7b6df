"""The interface of a policy: one rank, and hooks that see what happens to requests.

Every argument ``request`` is an index into the workload's arrays. Ranks and counters are integers, and k tokens
charged at once equal k times one token: an engine may leap over steps without changing a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairreplay.sandbox.engine import NO_REASON, Int64s, PolicySpec, Workload
from fairreplay.sandbox.estimation import Estimator


@dataclass(frozen=True)
class HeadState:
    """What the engine knows of a waiting request and of itself at this pass."""

    now_ps: int
    known_tokens: int
    preemptions: int
    waiting: int
    running: int
    prefill_token_ps: int = 0
    """Time that a prompt token takes by the settings in force."""


class Policy:
    """A policy without memory; subclasses give ``rank`` and override the hooks they need.

    ``weights`` is the inverse weight by tenant in force now (scaled by ``WEIGHT_SCALE``); the engine replaces it when
    a change of weights takes effect.
    """

    head_state: Callable[[int], HeadState]
    """Set by the engine."""

    cached_tokens: Callable[[int], int]
    """Set by the engine: prompt tokens of a waiting request that the prefix cache holds now."""

    ranks_tenants = False
    """True: equal ranks of two tenants go by tenant name, as in the published sequences; else by arrival."""

    threshold_unit = 0
    """What ``preemption_threshold`` counts in a rank of this policy; 0: nobody is preempted for a head."""

    def __init__(self, spec: PolicySpec, workload: Workload) -> None:
        self.spec = spec
        self.workload = workload
        self.weights: Int64s = workload.tenant[:0]
        self.estimator: Estimator | None = None
        source = workload.source or workload
        if spec.estimation and source.estimate is not None and source.cost_class is not None:
            self.estimator = Estimator(spec.estimation, source.estimate, source.cost_class)

    def rank(self, request: int) -> int:
        """Lowest goes first; asked only about heads of queues, only at admission."""
        raise NotImplementedError

    def refuses(self, request: int, attempt: int) -> int:
        """Why the gateway turns ``request`` away at its arrival (1: the first), NO_REASON if it does not."""
        return NO_REASON

    def on_arrival(self, request: int) -> None:
        """``request`` is about to join its queue for the first time."""

    def on_admit(self, request: int, cached: int) -> None:
        """``request`` is about to leave its queue for its first batch (not again after a preemption).

        ``cached`` of its prompt tokens were found in the prefix cache.
        """

    def on_tokens(self, request: int, k: int) -> None:
        """``request`` was given ``k`` output tokens."""

    def on_first_token(self, request: int, ttft_ps: int) -> None:
        """The first token of ``request`` came this long after its arrival."""

    def on_finish(self, request: int, outputs: int) -> None:
        """``request`` is done, after ``outputs`` output tokens: what it cost is known."""
        if self.estimator:
            self.estimator.learn(self._named(request))

    def on_weights(self) -> None:
        """``weights`` was replaced."""

    def on_queue_empty(self, tenant: int) -> None:
        """The last waiting request of ``tenant`` has left its queue."""

    def on_queue_filled(self, tenant: int) -> None:
        """A request of ``tenant`` has joined its queues, which were all empty."""

    def prompt_cost(self, request: int) -> int:
        """Prompt tokens, or what they are expected to cost in millionths of a token where the policy counts costs."""
        counted = self.workload.cost if self.spec.by_cost else self.workload.prompt_tokens
        assert counted is not None
        return int(counted[request])

    def estimated(self, request: int, cost: int) -> int:
        """What a policy takes ``cost`` of ``request`` for, before it is known."""
        return self.estimator.estimated(self._named(request), cost) if self.estimator else cost

    def _named(self, request: int) -> int:
        """The request of the workload that a ticket stands for."""
        return request if self.workload.of is None else int(self.workload.of[request])

    def inverse_weight(self, request: int) -> int:
        """Scaled inverse weight that this request is charged with: its own if it carries one, else its tenant's."""
        own = int(self.workload.request_weight[request])
        return own if own else int(self.weights[self.workload.tenant[request]])
