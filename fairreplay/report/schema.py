"""The JSON document behind the report, version 2. The page shows nothing that does not stand in it.

Units stand in the key names. Instants are ISO 8601 in UTC with six digits. Floats are rounded once, to ``DIGITS``
decimals. Null means "not known" or "not judged", never 0. ``model`` is null where the trace names none.
Names of tenants, types, models and files are the raw names of the log: hostile until escaped.
"""

from __future__ import annotations

from typing import Final, Literal, NotRequired

from typing_extensions import TypedDict

SCHEMA_VERSION: Final = 2
DIGITS: Final = 6

Level = Literal["ok", "yellow", "red", "emergency"]
Role = Literal["logged", "baseline", "policy"]
Metric = Literal["scr", "jfi", "tfr"]


class Source(TypedDict):
    """One outcome of the same load: what production logged, or what the sandbox did under a policy."""

    name: str
    role: Role
    policy: str | None
    config_hash: str | None
    requests: int


class Period(TypedDict):
    since: str | None
    until: str | None
    zone: str
    window_s: float | None
    """Null: the whole period is one window."""
    requests: int
    tenants: int
    types: int
    models: list[str | None]


class Figure(TypedDict):
    """One figure of the verdict: the mean over the judged windows, the drain left out."""

    metric: Metric
    value: float | None
    level: Level | None
    windows: int
    worst: float | None
    worst_at: str | None
    minutes_yellow: float
    minutes_red: float
    minutes_emergency: float


class Worst(TypedDict):
    value: float
    tenant: str
    at: str


class CauseCount(TypedDict):
    cause: str
    episodes: int


class Flooded(TypedDict):
    """A tenant that asked for more than its fair share in degraded windows, and got it (``causes.flooding``)."""

    tenant: str
    share: float
    """Part of all that was asked for beyond fair shares."""
    attained: float
    """Service over entitlement."""


class GroupVerdict(TypedDict):
    """The verdict on one model group, from the logged source."""

    model: str | None
    source: str
    sentence: str
    requests: int
    tenants: int
    types: int
    windows: int
    windows_judged: int
    windows_degraded: int
    figures: list[Figure]
    min_x: Worst | None
    episodes: int
    causes: list[CauseCount]
    flooded: list[Flooded]


class Verdict(TypedDict):
    sentence: str
    assumed_slo: bool
    simulated_baseline: bool
    groups: list[GroupVerdict]


class Series(TypedDict):
    """The windows of one model group and source, by column, in time order; ``drain``: after the last arrival."""

    model: str | None
    source: str
    start: list[str]
    end: list[str]
    drain: list[bool]
    degraded: list[bool]
    requests: list[int]
    scr: list[float | None]
    scr_weighted: list[float | None]
    jfi: list[float | None]
    jfi_raw: list[float | None]
    min_x: list[float | None]
    min_x_tenant: list[str | None]
    tfr: list[float | None]
    tfr_raw: list[float | None]
    service_gap: list[float | None]


class Errors(TypedDict):
    """Relative errors of the baseline replay against the log: (replay - log) / log."""

    model: str | None
    requests: int
    logged_ttft_ms: dict[str, float | None]
    replayed_ttft_ms: dict[str, float | None]
    error: dict[str, float | None]
    tenants: int
    tenant_error_p50: float | None
    tenant_error_max: float | None
    windows: int
    windows_same: int
    """Windows that are degraded in both, or in neither."""


class Comparison(TypedDict):
    """One source beside the others, on one model group."""

    model: str | None
    source: str
    requests: int
    ok: int
    rejected: int
    failed: int
    unfinished: int
    scr: float | None
    jfi: float | None
    tfr: float | None
    min_x: float | None
    windows_degraded: int
    period_judged: int
    period_passing: int
    ttft_ms: dict[str, float | None]
    preemptions: int | None
    recompute_tax: float | None
    tokens_per_s: float | None


class Curve(TypedDict):
    """TTFT quantiles, nearest rank, over the requests with a first token."""

    model: str | None
    source: str
    requests: int
    without_first_token: int
    q: list[float]
    ttft_ms: list[float]


class TenantUnder(TypedDict):
    """A tenant over the whole period under one source."""

    source: str
    requests: int
    n: int
    ttft_ms: dict[str, float | None]
    passes: bool | None
    tail_ratio: float | None
    served: float | None
    entitlement: float | None
    x: float | None
    min_x: float | None


class TenantRow(TypedDict):
    """A tenant of one model group; rows stand in order of harm in the log."""

    model: str | None
    tenant: str
    slo_ttft_ms: dict[str, float] | None
    weight: float | None
    commitment_share: float | None
    weight_in_force: float | None
    """Mean over the log's windows of the weight that the rows or the config name."""
    skew: float | None
    """Weight in force over commitment, both as shares: that of the window furthest from 1; null without commitment."""
    skewed: bool | None
    under: list[TenantUnder]


class TypeUnder(TypedDict):
    source: str
    share: float | None
    floor: float | None
    ratio: float | None
    ratio_min: float | None
    ratio_raw: float | None
    leak_tokens: float | None
    ttft_ms: NotRequired[dict[str, float | None]]
    """P50, P90 and P99 of its answered requests: what floors of other types cost it."""
    windows: int
    """Windows in which the type had demand."""
    windows_below: int
    """Those of them in which it got less than half of its floor."""


class TypeRow(TypedDict):
    model: str | None
    type: str
    requests: int
    under: list[TypeUnder]


class Band(TypedDict):
    """Requests by the utilisation of the batch that first scheduled them, ``low`` <= u < ``high`` (the last: <= 1)."""

    low: float
    high: float
    requests: int
    preempted_requests: int
    preemptions: int


class Recovery(TypedDict):
    """What a preemption costs its request: recomputed tokens a preemption, over the prefill throughput."""

    requests: int
    """Preempted requests whose recomputed tokens are known."""
    over_100ms: int
    p50_ms: float | None
    p99_ms: float | None
    prefill_tokens_per_s: float
    """Of the config's step time."""
    marginal_loss_ms: float | None
    """Share of requests preempted times the mean recovery."""


class Preemption(TypedDict):
    """Preemptions of one source; every count is null where the source does not say."""

    model: str | None
    source: str
    requests: int
    preempted_requests: int | None
    preempted_once: int | None
    preemptions: int | None
    recomputed_tokens: int | None
    recompute_tax: float | None
    thrashing_requests: int | None
    """Three preemptions or more, or two in a service of at most 60 s."""
    thrashing_unknown: int | None
    """Two preemptions in a longer service: whether they lie within 60 s is not known."""
    bands: list[Band] | None
    """Null where batch utilisation or preemptions are not known, and for replays (no utilisation of theirs)."""
    recovery: Recovery | None


class TenantChange(TypedDict):
    """A tenant under another policy; TTFT over the requests that both sides answered."""

    tenant: str
    requests: int
    answered: int
    production_ttft_ms: dict[str, float | None]
    replay_ttft_ms: dict[str, float | None]
    mean_change_ms: float | None
    production_refused: int
    replay_refused: int


class Matrix(TypedDict):
    """Who went ahead of whom under the replay that was behind in production.

    ``tokens[i][j]``: tokens of tenant i served ahead of requests of tenant j, once for each of these. The last row and
    column are the tenants that have none of their own, if ``others``.
    """

    tenants: list[str]
    others: bool
    pairs: list[list[int]]
    tokens: list[list[int]]


class WindowChange(TypedDict):
    start: str
    model: str | None
    requests: int
    moved_ms: float
    """Sum of the absolute changes of TTFT."""
    mean_change_ms: float | None
    refused_otherwise: int


class RequestChange(TypedDict):
    """One request on both sides; times since its arrival, null where a side does not know it."""

    request_id: str
    tenant: str
    type: str
    model: str | None
    arrived_at: str
    tokens: int
    production_wait_ms: float | None
    replay_wait_ms: float | None
    production_ttft_ms: float | None
    replay_ttft_ms: float | None
    production_finish_ms: float | None
    replay_finish_ms: float | None
    production_refused: bool
    replay_refused: bool


class Decisions(TypedDict):
    """What one replay decided otherwise than production, over the requests that both hold."""

    policy: str
    production: str
    simulated: bool
    sentence: str
    """Who would gain and who would pay. Holds tenants' names."""
    requests: int
    only_production: int
    only_replay: int
    refused_only_production: int
    refused_only_replay: int
    preemptions_production: int | None
    preemptions_replay: int | None
    ordered_by: str
    ordered: int
    pairs: int
    inversions: int
    tenants_gain: int
    tenants_pay: int
    tenants_same: int
    gains: list[TenantChange]
    """Whose mean TTFT falls, most first; likewise ``pays``, whose rises. Of an episode the first few."""
    pays: list[TenantChange]
    matrix: Matrix
    windows: list[WindowChange]
    largest: list[RequestChange]


class Heat(TypedDict):
    """Attainment (service over entitlement) of tenants over time: the least x of a tenant's windows in each bin.

    Tenants worst first; null: the tenant was owed nothing in the bin.
    """

    model: str | None
    source: str
    bin_windows: int
    start: list[str]
    end: str
    tenants: list[str]
    left_out: int
    """Tenants that are not shown, all of them better served."""
    x: list[list[float | None]]


class CostPart(TypedDict):
    """One of the equal parts of the period."""

    start: str
    requests: int
    p50: float | None


class CostEstimate(TypedDict):
    """Ratios of actual to estimated cost of one model, type and size class (``metrics.costs.Estimate``)."""

    model: str | None
    type: str
    size: str
    """Prompt and output tokens."""
    requests: int
    mean: float
    p10: float
    p50: float
    p90: float
    p99: float
    correction: float
    error: float
    error_corrected: float
    drift: float | None
    drifted: bool
    parts: list[CostPart]


class EstimateEffect(TypedDict):
    """A policy that goes by estimates of costs, replayed with one kind of them (``sandbox.replay.ESTIMATES``)."""

    model: str | None
    policy: str
    estimates: str
    """``exact``, ``uncorrected`` or ``corrected``."""
    scr: float | None
    """Mean over the windows of the period."""
    windows: int
    """Windows with a judged SCR."""
    ttft_ms: dict[str, float | None]
    """P50, P90 and P99 of the period."""


class Costs(TypedDict):
    """Estimated against actual cost; ``estimates`` is null where nothing can be compared, and ``reason`` says why."""

    estimates: list[CostEstimate] | None
    reason: str
    error: NotRequired[float | None]
    error_corrected: NotRequired[float | None]
    effects: NotRequired[list[EstimateEffect]]
    """What wrong estimates do to the policies that go by them, where ``[estimation] error`` is set."""
    effects_said: NotRequired[str]


class FigureChange(TypedDict):
    model: str | None
    metric: Metric
    before: float | None
    now: float | None
    change: float | None
    level_before: Level | None
    level_now: Level | None


class PastEpisode(TypedDict):
    id: str
    model: str | None
    start: str
    end: str
    level: Level
    cause: str
    reason: str | None


class Ongoing(TypedDict):
    id: str
    previous: str
    """Its id in the previous report: another one if the episode goes on across the border of the periods."""


class Changes(TypedDict):
    """The difference to an earlier report."""

    since: str | None
    until: str | None
    """Period of the earlier report."""
    same_settings: bool
    """Whether both were made with the same config and window."""
    sentence: str
    figures: list[FigureChange]
    new: list[str]
    ongoing: list[Ongoing]
    resolved: list[PastEpisode]


class Redacted(TypedDict):
    """Names stand under pseudonyms; ``key`` is the fingerprint of the key, which stands nowhere."""

    what: str
    key: str


class EpisodeRow(TypedDict):
    """The keys of ``episodes --json``, and the levels of the metrics."""

    id: str
    model: str | None
    source: str
    start: str
    end: str
    windows: int
    windows_degraded: int
    level: Level
    metrics: dict[str, float | None]
    """The worst value of each metric."""
    means: dict[str, float | None]
    min_x: float | None
    levels: dict[str, Level | None]
    deficits: dict[str, float | None]
    """How far below its threshold, summed over windows, in units of 60 s windows."""
    tenants: list[str]
    types: list[str]
    requests_hurt: int
    tokens_hurt: int
    cause: str
    shares: dict[str, float] | None
    by_metric: dict[str, object]
    confidence: str | None
    reason: str | None
    signatures: dict[str, object]
    recommendation: str | None
    verdict: dict[str, object] | None
    """``causes.verdict.Verdict``: every counterfactual and fix with the inputs that replay it, what was assumed."""
    differences: list[Decisions]
    controls: NotRequired[list[EpisodeControls]]
    """Of every replay that had controls."""


class IngestedSource(TypedDict):
    """One ingested file; ``source`` is its content id, the first 16 hex digits of the SHA-256 of its bytes."""

    file: str
    source: str
    format: str
    rows: int
    accepted: int
    rejected: int
    duplicates: int
    skipped: int
    first_arrival: str | None
    last_arrival: str | None
    unknown_columns: list[str]


class Reject(TypedDict):
    source: str
    reason: str
    rows: int
    example: str


class CapacityBound(TypedDict):
    name: str
    tokens: float | None
    """A window, of the trace's mix."""
    limits: str
    limited: float | None
    source: str


class CapacityTenant(TypedDict):
    """Tokens a window."""

    tenant: str
    weight: float
    allocated: float
    demand: float
    peak: float
    headroom: float
    headroom_peak: float
    phi: dict[str, float] | None


class CapacityType(TypedDict):
    type: str
    floor: float
    allocated: float
    demand: float


class CapacityCell(TypedDict):
    tenant: str
    type: str
    demand: float
    allocated: float


class CapacityTried(TypedDict):
    percent: int
    replicas: int
    scr: float | None
    windows: int


class CapacityFound(TypedDict):
    answer: CapacityTried | None
    reason: str | None
    tried: list[CapacityTried]


class CapacityLoad(TypedDict):
    """What the bounds were reckoned with."""

    prompt_share: float
    context_tokens: float
    residence_s: float
    batch: float
    source: str


class CapacityGroup(TypedDict):
    model: str | None
    requests: int
    replicas: int
    b_total: float
    b_total_source: str
    b_alloc: float
    bound_by: str
    bounds: list[CapacityBound]
    facts: CapacityLoad
    tenants: list[CapacityTenant]
    types: list[CapacityType]
    table: list[CapacityCell]
    load: CapacityFound | None
    replicas_needed: CapacityFound | None


class CapacityFacts(TypedDict):
    """What ``fairreplay capacity -o`` wrote."""

    store_digest: str
    since: str
    until: str
    window_s: float
    policy: str
    scr_target: float
    load_target: float
    assumed_slo: bool
    assumptions: list[str]
    costs: Costs
    groups: list[CapacityGroup]


class StageRow(TypedDict):
    """A tenant in both pools, quantiles over its requests."""

    tenant: str
    requests: int
    moved: int
    """Requests whose KV moved: those of more than one output token."""
    prefill_ms: dict[str, float | None]
    """From arrival to first token."""
    transfer_ms: dict[str, float | None]
    """From first token until the KV had come, the wait for the link included."""
    wait_ms: dict[str, float | None]
    """From there until a decode replica had room for it."""
    decode_ms: dict[str, float | None]
    """From first token to finish: transfer and wait included."""
    consistency: dict[str, float | None] | None
    """``(P_q of the prefill stage / its budget) / (P_q of the decode stage / its budget)``; null without budgets."""
    flagged: bool
    """Any of them lies outside 0.5 .. 2."""


class Pools(TypedDict):
    model: str | None
    prefill_replicas: int
    decode_replicas: int
    kv_bytes_most: int
    """KV between the pools at its most: sent or waiting for room."""
    prefill_budget_ms: dict[str, float] | None
    decode_budget_ms: dict[str, float] | None
    tenants: list[StageRow]


class DraftRow(TypedDict):
    tenant: str
    type: str
    requests: int
    drafted: int
    rejected: int
    tokens_a_step: float | None
    wasted_s: float
    """Time of the target on rejected drafts."""
    held_up_s: float
    """Time that other tenants' rejected drafts added to the steps of its requests."""
    imposed_s: float
    """Time that its own added to the steps of other tenants' requests."""
    decoding_s: float
    """From first token to finish, over its requests."""


class Drafts(TypedDict):
    """Equal acceptance imposes what it suffers, so ``imposed - held_up`` shows who holds whom up."""

    model: str | None
    tokens_a_step: float | None
    low: list[str]
    """Tenants that get fewer tokens a step than all together."""
    low_imposed_s: float
    low_held_up_s: float
    rows: list[DraftRow]


class SpreadRow(TypedDict):
    tenant: str
    requests: int
    ttft_ms: dict[str, float | None]
    ttft_ms_without: dict[str, float | None]
    passes: bool | None
    """Null: too few requests to judge any quantile."""
    passes_without: bool | None


class Spread(TypedDict):
    """What the spread of experts' costs does to SCR: the same run with every token at its mean."""

    model: str | None
    scr: float | None
    scr_without: float | None
    tenants: list[SpreadRow]


class PrecisionRow(TypedDict):
    model: str | None
    precision: str
    requests: int
    switches: int
    """Batches of this precision after one of another."""
    prompt_tokens: int
    cached_tokens: int
    hit_rate: float | None
    hit_rate_without_drops: float | None


class ClusterFacts(TypedDict):
    """What a replay says of pools, drafts, experts and precisions; lists of what is not in force are empty."""

    source: str
    pools: list[Pools]
    drafts: list[Drafts]
    spread: list[Spread]
    precisions: list[PrecisionRow]


class ControlShare(TypedDict):
    """What a control did to one tenant, or to one type."""

    tenant: str | None
    type: str | None
    value: float


class ControlDeed(TypedDict):
    """One thing that a control did: ``control`` and ``what`` are those of ``store.replays.CONTROL_SCHEMA``."""

    model: str | None
    control: str
    what: str
    value: float
    """Over all windows, replicas and tenants: the sum; of rates and caps the lowest. ``most`` likewise."""
    most: float
    """In one window, that of ``most_at``."""
    most_at: str
    who: list[ControlShare]
    """Whom it was done to, most first; empty where that is nobody in particular."""
    start: list[str]
    """The windows in which it was done; ``values`` are those of each."""
    values: list[float]


class ControlFacts(TypedDict):
    """What the controls of a replay did; no deeds: nobody was held back."""

    source: str
    window_s: float
    """Of the config, by which controls are told; the report may be measured in others."""
    deeds: list[ControlDeed]


class ControlSum(TypedDict):
    control: str
    what: str
    value: float


class EpisodeControls(TypedDict):
    """What the controls of a replay did in the windows of an episode."""

    source: str
    deeds: list[ControlSum]


class DataQuality(TypedDict):
    sources: list[IngestedSource]
    rejects: list[Reject]
    assumptions: list[str]
    idle_share: float | None
    """Share of the windows in which nobody waited under any source: there policies cannot differ."""


class Setting(TypedDict):
    key: str
    value: str


class Method(TypedDict):
    refusals: str
    spread: str
    min_samples: dict[str, int]
    slo_source: str
    thresholds: dict[str, dict[str, float]]
    settings: list[Setting]
    config_digest: str
    store_digest: str
    rounding: str


class HeldOutSide(TypedDict):
    """A real log, or the sandbox's answer for it, over the requests that all four hold."""

    judged: int
    passing: int
    ttft_ms: dict[str, float | None]


class HeldOutTenant(TypedDict):
    tenant: str
    requests: int
    logged_before_ms: float
    logged_after_ms: float
    replayed_before_ms: float
    replayed_after_ms: float
    real_change_ms: float
    predicted_change_ms: float


class Validation(TypedDict):
    """The sandbox against reality: a change of policy predicted from one log, and a second log that shows it."""

    before: str
    after: str
    requests: int
    slo_ttft_ms: dict[str, float]
    before_logged: HeldOutSide
    before_replayed: HeldOutSide
    after_logged: HeldOutSide
    after_replayed: HeldOutSide
    before_error: dict[str, float | None]
    after_error: dict[str, float | None]
    spearman: float | None
    tenants: list[HeldOutTenant]


class Document(TypedDict):
    schema_version: int
    title: str
    versions: dict[str, str]
    period: Period
    sources: list[Source]
    redacted: Redacted | None
    verdict: Verdict
    previous: Changes | None
    validation: Validation | None
    timeline: list[Series]
    heat: list[Heat]
    fidelity: list[Errors]
    comparison: list[Comparison]
    curves: list[Curve]
    differences: list[Decisions]
    episodes: list[EpisodeRow]
    preemption: list[Preemption]
    tenants: list[TenantRow]
    types: list[TypeRow]
    costs: Costs
    data_quality: DataQuality
    method: Method
    capacity: NotRequired[CapacityFacts]
    """Where one was given."""
    cluster: NotRequired[list[ClusterFacts]]
    """Where any replay has such facts."""
    controls: NotRequired[list[ControlFacts]]
    """Where any replay had controls."""
