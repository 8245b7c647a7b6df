"""What every engine takes and gives: integer arrays in, integer arrays out.

The plain engine (``reference``) defines the meaning. A faster engine must return the same result to the bit, so that
callers (``replay``, ``calibrate``, counterfactuals) never know which one ran.

Time is int64 picoseconds from the start of the period; an instant that never came is ``NEVER``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fairreplay.sandbox.estimation import Estimation
from fairreplay.sandbox.extras import Disaggregated, Moe, Speculation

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]

PS_PER_SECOND: Final = 10**12
PS_PER_US: Final = 10**6
NEVER: Final = -1
MAX_PERIOD_PS: Final = 2**63 - 1 - 10 * 86_400 * PS_PER_SECOND
"""Latest arrival that fits with ten days left for the drain (about 96 days)."""

WEIGHT_SCALE: Final = 2**20
"""Service counters count ``tokens * cost * inverse_weight`` where ``inverse_weight = round(WEIGHT_SCALE / weight)``."""

NO_CAP: Final = 2**62
"""Tokens that no type is served in a window."""

FLOOR_SCALE: Final = 2**20
"""A type's floor is its share of the tokens served, times this."""

PASSES_WITHOUT_PROGRESS_MAX: Final = 10_000
"""Passes without a token that was never computed before; then the youngest blocked request is refused."""

OK: Final = 0
REFUSED: Final = 1
UNFINISHED: Final = 2
STATUS_NAMES: Final = {OK: "ok", REFUSED: "rejected", UNFINISHED: "unfinished"}

NO_REASON: Final = 0
NEVER_FITS: Final = 1
LIVELOCK: Final = 2
TOO_LONG: Final = 3
RATE_LIMITED: Final = 4
QUEUE_FULL: Final = 5
TENANT_QUEUE_FULL: Final = 6
QUEUE_TIME: Final = 7
BACKPRESSURE: Final = 8
PREEMPTION_DENIED: Final = 9
REASON_NAMES: Final = {
    NO_REASON: "",
    NEVER_FITS: "never_fits",
    LIVELOCK: "livelock",
    TOO_LONG: "too_long",
    RATE_LIMITED: "rate_limited",
    QUEUE_FULL: "queue_full",
    TENANT_QUEUE_FULL: "tenant_queue_full",
    QUEUE_TIME: "queue_time",
    BACKPRESSURE: "backpressure",
    PREEMPTION_DENIED: "preemption_denied",
}
COME_BACK: Final = (RATE_LIMITED, QUEUE_FULL, TENANT_QUEUE_FULL, QUEUE_TIME, BACKPRESSURE, PREEMPTION_DENIED)
"""Reasons of refusals that name a time to come back at; what was refused for another would be refused again."""

VICTIMS: Final = ("last", "priority", "least-computed")
"""Who loses its KV blocks when they run out: see ``EngineSettings.victim``."""

PRECISION_SWITCHES: Final = ("keep", "drop")
"""What a batch of another precision does to the prefix cache: see ``EngineSettings.precision_switch``."""

QUANTILES: Final = (50, 90, 99)
"""What TTFT targets are given for."""


@dataclass(frozen=True)
class StepTime:
    """Picoseconds of a step: ``base + prefill_token*P + decode_sequence*D + context_token*S``.

    P prefill tokens, D decoding requests, S the sum of computed tokens after the step over all scheduled requests.
    """

    base: int
    prefill_token: int
    decode_sequence: int
    context_token: int


@dataclass(frozen=True)
class UserRank:
    """A ranking of the user's own, for the policy ``user`` (see ``policies.user``)."""

    name: str
    digest: str
    """Of its source: equal text ranks equal."""
    fields: tuple[str, ...]
    """What it is called with, by position: names from ``policies.user.HEAD_FIELDS``."""
    function: Callable[..., int] = field(compare=False, repr=False)


@dataclass(frozen=True)
class TypeFloors:
    """Floors of request types, in tokens since the current window began.

    Soft: heads of a type that was served less than its share go before all others; a type is below its floor while
    ``served * FLOOR_SCALE < share * served by all types``. Hard: heads of a type that has been served ``caps`` tokens
    are barred until the window ends, whether anybody else waits or not. Prompt tokens count at first admission, output
    tokens as they are sampled.
    """

    shares: tuple[int, ...]
    """By type index, scaled by ``FLOOR_SCALE``; types without an entry have no floor."""
    window_ps: int = 60 * PS_PER_SECOND
    """Windows follow each other from instant 0 on."""
    caps: tuple[int, ...] = ()
    """By type index; types without an entry are never barred."""


@dataclass(frozen=True)
class PolicySpec:
    """A policy's name and parameters, as integers; each policy's file says which of them it reads.

    ``type_rank[k]`` orders request types for ``type-priority``; costs are service units a token.
    """

    name: str = "fcfs"
    prompt_cost: int = 1
    output_cost: int = 2
    lift: bool = True
    type_rank: tuple[int, ...] = ()
    rank: UserRank | None = None
    """For the policy ``user`` alone."""
    floors: TypeFloors | None = None
    """Enforced ahead of any policy's rank."""
    slo_ps: tuple[tuple[int, int, int], ...] = ()
    """By tenant index: the TTFT targets of ``QUANTILES``, for the policies that know deadlines."""
    quantile: int = 2
    """Place in ``QUANTILES`` of the one target that a deadline is made of."""
    quantiles: tuple[int, ...] = (0, 1, 2)
    """Places in ``QUANTILES`` of the targets that ``quantile`` weighs, upward."""
    history: int = 100
    """Of how many of a tenant's last requests ``quantile`` counts the misses."""
    gamma_ps: int = 0
    """By how much a deadline of ``quantile`` moves back with each doubling of its tenant's service."""
    alpha_ps: int = 0
    """By how much a deadline of ``qoserve`` moves back with each prompt token."""
    slack_ps: int = 0
    """Under ``wfq+edf`` a head goes first once its deadline is closer than this."""
    quantum: int = 512
    """Tokens that a tenant of weight 1 may spend at each visit of ``drr``."""
    predicted_output: int = 128
    """Output tokens that ``wfq`` expects of a tenant of which none has finished yet."""
    by_cost: bool = False
    """``sjf``, ``wfq`` and ``wfq+edf`` count ``Workload.cost`` instead of prompt tokens."""
    estimation: Estimation | None = None
    """``sjf``, ``wfq``, ``wfq+edf`` and ``qoserve`` go by ``Workload.estimate``; None: they know what requests cost."""
    rpm: int = 20
    """Requests of a tenant that ``rpm-limit`` lets through in any 60 s."""
    preemption_threshold: int | None = None
    """A head that does not fit takes the place of running requests whose rank is larger by more than this; None: nobody
    is preempted for a head. Under ``priority`` (SGLang's rule), ``type-priority`` and ``sjf`` it counts as their ranks
    do, under ``edf`` milliseconds, under ``vtc`` service at weight 1. Other policies have none."""


@dataclass(frozen=True)
class OlderRules:
    """What releases before vLLM 0.33 decide otherwise (``config.engines``); all false: as 0.33."""

    lone_capped: bool = False
    """The long-prefill cap holds for a lone request too."""
    victim_tokens_lost: bool = False
    """Tokens of a victim that was in the batch already do not return to the budget."""
    self_preemption_ends: bool = False
    """A request that preempts itself ends the running phase, whatever the victim rule."""
    frees_to_back: bool = False
    """Every freed block goes to the back of the free list, the last of a request first, cached or not."""


@dataclass(frozen=True)
class EngineSettings:
    """One replica's settings, by vLLM's names; ``num_gpu_blocks`` includes the reserved block."""

    step_time: StepTime
    policy: PolicySpec = PolicySpec()
    max_num_seqs: int = 256
    max_num_active_seqs: int = 0
    """0 = ``max_num_seqs``."""
    max_num_batched_tokens: int = 8192
    max_model_len: int = 131072
    block_size: int = 16
    num_gpu_blocks: int = 20000
    watermark_blocks: int = 0
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    enable_prefix_caching: bool = False
    async_scheduling: bool = False
    scheduler_reserve_full_isl: bool = True
    prefill_first: bool = False
    """Prefill batches run alone and stop decoding; tried after every ``prefill_interval`` decode steps."""
    prefill_interval: int = 10
    reserve_full_kv: bool = False
    """Admission holds the whole KV of a request (prompt and output) from the start."""
    queue_limit: int = 0
    """A request that arrives while so many wait is refused; 0: no limit."""
    tenant_queue_limit: int = 0
    """As ``queue_limit``, of the requests of one tenant that wait for their first batch. Needs ``Plan.controls``."""
    queue_time_ps: int = 0
    """Who has waited so long for its first batch is refused; 0: no limit. Needs ``Plan.controls``."""
    victim: str = ""
    """One of ``VICTIMS``; empty: ``priority`` under the policy of that name, else ``last``, as vLLM does.

    ``last`` is the end of the running list, ``priority`` the largest (priority, arrival), ``least-computed`` the
    fewest computed tokens, of equals the latest of the running list.
    """
    older: OlderRules = OlderRules()
    speculation: Speculation | None = None
    moe: Moe | None = None
    decode_gpu_blocks: int = 0
    """As ``num_gpu_blocks``, of decode replicas where there are two pools; 0: the same."""
    precision_switch: str = ""
    """One of ``PRECISION_SWITCHES``: all that runs has one precision, a head of another one does not fit; where a batch
    has another precision than the last one, ``drop`` forgets the whole prefix cache. Empty: precision is not looked at.
    """

    def has_extras(self) -> bool:
        return bool(self.speculation or self.moe or self.precision_switch)


@dataclass(frozen=True)
class Backpressure:
    """A token bucket for each tenant, see ``controls.pressure``. Rates are thousandths of a request a second."""

    rates: tuple[int, ...]
    """By tenant index: the configured rate, from which it starts; 0: none of this for the tenant."""
    targets_ps: tuple[int, ...]
    """By tenant index: the TTFT that its P99 is held against."""
    rate_min: int = 100
    step: int = 1000
    burst: int = 1
    """Requests that a bucket holds."""
    window_ps: int = 10 * PS_PER_SECOND
    hold_ps: int = 10 * PS_PER_SECOND
    """Least time between two changes of a rate."""
    check_ps: int = PS_PER_SECOND // 10
    delay_ps: int = 0
    """Age of what is seen."""
    literal: bool = False
    """``rate * P99 / target``, as design essays print it."""


@dataclass(frozen=True)
class LongAdmission:
    """Near KV saturation long contexts are let in at a lower rate, see ``controls.longs``."""

    tokens: int
    """A prompt of so many tokens is long."""
    rate: int
    """Thousandths of a long context a second."""
    saturation: int = 850_000
    """Millionths of the KV blocks that are in use."""


@dataclass(frozen=True)
class Preemption:
    """Limits of preemption for a waiting head, and what becomes of victims of any kind."""

    utilisation_max: int = 800_000
    """Millionths of the batch tokens allowed, in the last batch, below which a head may take somebody's place."""
    recovery_max_ps: int = PS_PER_SECOND // 10
    """Whoever would need longer to get back what it had computed is no victim of a head."""
    refuse: bool = False
    """A head that these limits deny a victim is refused, not kept waiting."""
    swap: bool = False
    """Victims' KV goes to host memory while there is room; else it is computed anew."""
    host_tokens: int = 0
    swap_token_ps: int = 0
    """Time that the KV of a token takes between host and device; the next step waits for it."""


@dataclass(frozen=True)
class Emergency:
    """Modes under stress, see ``controls.emergency``."""

    targets_ps: tuple[tuple[int, int, int], ...]
    """By tenant index, for ``QUANTILES``."""
    floors: tuple[int, ...] = ()
    """By type index, scaled by ``FLOOR_SCALE``; empty: from the window before."""
    reserve: int = 419_430
    """Part of what is served that such floors share out, scaled by ``FLOOR_SCALE``."""
    eta: int = 524_288
    low_weight: bool = False
    min_samples: tuple[int, int, int] = (5, 10, 100)
    prompt_cost: int = 1000
    """Thousandths of a unit."""
    output_cost: int = 2000


@dataclass(frozen=True)
class Controls:
    """What holds requests back around the scheduler, the same throughout a run; each part is off where it is None."""

    retries: int = 0
    """How often a refused request comes back, ``retry_after_ps`` after each refusal (``COME_BACK``)."""
    retry_after_ps: int = PS_PER_SECOND
    tenant_limits: tuple[int, ...] = ()
    """By tenant index: its own ``tenant_queue_limit``; 0 or missing: the general one."""
    backpressure: Backpressure | None = None
    longs: LongAdmission | None = None
    preemption: Preemption | None = None
    emergency: Emergency | None = None
    window_ps: int = 60 * PS_PER_SECOND
    offset_ps: int = 0
    """Instant 0 lies so far after the begin of a window."""


@dataclass(frozen=True)
class Plan:
    """What a replica runs with, over time."""

    settings: tuple[tuple[int, EngineSettings], ...]
    """(from ``at_ps`` on, settings), in time order; the first holds from the beginning whatever its instant."""
    weights: tuple[tuple[int, Int64s], ...]
    """(from ``at_ps`` on, inverse weight by tenant index), in time order, same rule."""
    controls: Controls | None = None
    """None: nobody but the engine's own limits decides."""
    disaggregated: Disaggregated | None = None
    """Two pools of replicas serve the workload instead of one replica (``disaggregation``)."""

    def has_extras(self) -> bool:
        """Whether anything of ``extras`` or a precision switch is in force."""
        return self.disaggregated is not None or any(state.has_extras() for _, state in self.settings)

    def estimates(self) -> bool:
        """Whether a policy goes by estimates of costs at any time."""
        return any(state.policy.estimation for _, state in self.settings)

    def corrects(self) -> bool:
        """Whether it corrects them by what it learns."""
        return any(state.policy.estimation and state.policy.estimation.alpha for _, state in self.settings)


@dataclass(frozen=True)
class Workload:
    """The requests of one replica, sorted by (arrival, order in the source). All arrays have length n.

    ``output_tokens`` 0 is a prefill-only request (embeddings). ``request_weight`` is an inverse weight that overrides
    the tenant's, 0 where there is none. Prompt prefix ids of request i are
    ``prefix_ids[prefix_start[i]:prefix_start[i + 1]]``, each covering ``prefix_block_tokens`` tokens.
    """

    arrival_ps: Int64s
    prompt_tokens: Int64s
    output_tokens: Int64s
    priority: Int64s
    tenant: Int64s
    type: Int64s
    request_weight: Int64s
    prefix_start: Int64s
    prefix_ids: Int64s
    prefix_block_tokens: int
    tenants: tuple[str, ...]
    """Sorted by name: some policies break ties by tenant index."""
    types: tuple[str, ...]
    over_limit: Int64s | None = None
    """How many arrivals of each request ``rpm-limit`` refuses before it lets one through; None: reckoned from this
    workload alone."""
    draw: Int64s | None = None
    """64 bits of each request that chance is drawn from, for speculation and experts."""
    cost: Int64s | None = None
    """Cost of each prompt that policies rank ``by_cost``, in millionths of a token."""
    estimate: Int64s | None = None
    """What a scheduler takes each request's cost for, over the true cost, in millionths (``estimation``)."""
    cost_class: Int64s | None = None
    """The class in which that is corrected, from 0 on."""
    precision: Int64s | None = None
    """Index of each request's precision, for ``precision_switch``."""
    precisions: tuple[str, ...] = ()
    placed: Int64s | None = None
    """Prefill replica of each request, for two pools; None: round-robin."""
    handed_over: bool = False
    """Requests arrive with their prompt computed elsewhere and one output token sampled, and need room for the KV."""
    source: Workload | None = None
    """Of the tickets of a run with controls: the workload that they are arrivals of."""
    of: Int64s | None = None
    """And the request of each."""

    def __len__(self) -> int:
        return len(self.arrival_ps)


def _nothing() -> Int64s:
    return np.zeros((0, 4), np.int64)


@dataclass(frozen=True)
class EngineResult:
    """What happened to each request; arrays of length n, instants in ps (``NEVER`` where it did not happen)."""

    scheduled_ps: Int64s
    first_token_ps: Int64s
    finished_ps: Int64s
    status: Int64s
    reason: Int64s
    preemptions: Int64s
    recomputed_tokens: Int64s
    """Tokens computed a second time after a preemption (prefix-cache hits at resumption are not recomputed)."""
    cached_tokens: Int64s
    """Prompt tokens found in the prefix cache at first admission."""
    computed_tokens: Int64s
    """All tokens computed for the request, recomputation included."""
    steps: int
    end_ps: int
    attempts: Int64s = field(default_factory=_nothing)
    """How often each request arrived; empty where nobody can come back."""
    refusals: Int64s = field(default_factory=_nothing)
    """Every refusal, also of requests that came back: rows of (request, attempt, instant, reason), in order of
    arrival. Empty without controls."""
    events: Int64s = field(default_factory=_nothing)
    """What controls did: rows of (instant, what, who, value), see ``controls.places``. Empty without controls."""
    details: Mapping[str, Int64s] = field(default_factory=dict)
    """By request, for what is in force: ``DETAILS_OF_SPECULATION``, ``disaggregation.DETAILS``."""


DETAILS_OF_SPECULATION: Final = ("drafted", "rejected", "decode_steps", "wasted_ps", "held_up_ps", "imposed_ps")
"""Drafts; those that gave no token; target steps that drafts went with; time of the target on rejected drafts; time
that rejected drafts of other tenants added to its steps; time that its own added to the steps of other tenants'
requests, summed over these. The last two count the draft model's time too."""


@dataclass
class Step:
    """One pass of the engine; field meanings are those of the golden decision logs (times in ps)."""

    step: int
    t_ps: int
    dt_ps: int
    start_ps: int
    arrived: list[int]
    admitted: list[tuple[int, int, int]]
    """(request, cached tokens, 1 if resumed after a preemption)"""
    scheduled: list[tuple[int, int, int]]
    """(request, tokens, 1 if prefill)"""
    preempted: list[int]
    finished: list[int]
    free_blocks_scheduled: int
    free_blocks: int
    waiting: int
    running: int


OnStep = Callable[[Step], None]

FIXED: Final = ("block_size", "enable_prefix_caching", "async_scheduling", "precision_switch", "moe")
"""Settings that cannot change while an engine runs; nor can speculation, but for the times of a draft."""


def victim_rule(settings: EngineSettings) -> str:
    """Who loses its blocks under these settings: one of ``VICTIMS``."""
    return settings.victim or ("priority" if settings.policy.name == "priority" else "last")


def check_plan(plan: Plan) -> None:
    """Refuse a plan that no engine can run.

    Raises:
        ValueError: no settings, a limit below 1, async scheduling with prefill-first batching, a feature that lacks
            what it needs, or a change of a setting that a running engine cannot change (``FIXED``).
    """
    if not plan.settings or not plan.weights:
        raise ValueError("a plan needs settings and weights")
    first = plan.settings[0][1]
    for at_ps, settings in plan.settings:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len"):
            if getattr(settings, name) < 1:
                raise ValueError(f"{name} = {getattr(settings, name)}: must be at least 1")
        if settings.num_gpu_blocks < 2:
            raise ValueError(f"num_gpu_blocks = {settings.num_gpu_blocks}: must be at least 2 (one is reserved)")
        if settings.async_scheduling and settings.prefill_first:
            raise ValueError("async_scheduling does not go with prefill-first batching")
        if (settings.policy.name == "user") != (settings.policy.rank is not None):
            raise ValueError(f'policy {settings.policy.name!r}: a user\'s rank goes with the policy "user"')
        if settings.victim and settings.victim not in VICTIMS:
            raise ValueError(f"victim {settings.victim!r}: must be one of {', '.join(VICTIMS)}")
        if settings.policy.floors is not None and settings.policy.floors.window_ps < 1:
            raise ValueError("type floors need a window of at least 1 ps")
        if settings.precision_switch not in ("", *PRECISION_SWITCHES):
            raise ValueError(f"precision_switch {settings.precision_switch!r}: keep or drop")
        if settings.precision_switch and not settings.enable_prefix_caching:
            raise ValueError("precision_switch needs prefix caching")
        if settings.precision_switch and settings.policy.preemption_threshold is not None:
            raise ValueError("precision_switch does not go with preemption_threshold")
        if plan.disaggregated and settings.max_model_len != first.max_model_len:
            raise ValueError("max_model_len cannot change in mid-run of two pools")
        for name in FIXED:
            if getattr(settings, name) != getattr(first, name):
                raise ValueError(f"{name} cannot change in mid-run (at {at_ps} ps)")
        if _drafting(settings) != _drafting(first):
            raise ValueError(f"speculation cannot change in mid-run (at {at_ps} ps)")
        if settings.policy.by_cost and settings.policy.preemption_threshold is not None:
            raise ValueError("preemption_threshold does not go with costs in place of prompt tokens")
        if settings.policy.estimation and settings.policy.preemption_threshold is not None:
            raise ValueError("preemption_threshold does not go with estimates of costs")
        if plan.controls is None and (settings.queue_time_ps or settings.tenant_queue_limit):
            raise ValueError("limits of queue time and of a tenant's queue need Plan.controls")


def _drafting(settings: EngineSettings) -> tuple[int, tuple[int, ...]] | None:
    """What of speculation cannot change; the times of a draft can."""
    speculation = settings.speculation
    return None if speculation is None else (speculation.drafts, speculation.accepted)
