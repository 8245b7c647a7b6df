"""The JSON document behind the report, version 1. The page shows nothing that does not stand in it.

Units stand in the key names. Instants are ISO 8601 in UTC with six digits. Floats are rounded once, to ``DIGITS``
decimals. Null means "not known" or "not judged", never 0. ``model`` is null where the trace names none.
Names of tenants, types, models and files are the raw names of the log: hostile until escaped.
"""

from __future__ import annotations

from typing import Final, Literal, TypedDict

SCHEMA_VERSION: Final = 1
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
    under: list[TenantUnder]


class TypeUnder(TypedDict):
    source: str
    share: float | None
    floor: float | None
    ratio: float | None
    ratio_min: float | None
    ratio_raw: float | None
    leak_tokens: float | None


class TypeRow(TypedDict):
    model: str | None
    type: str
    requests: int
    under: list[TypeUnder]


class Preemption(TypedDict):
    """Preemptions of one source; every count is null where the source does not say."""

    model: str | None
    source: str
    requests: int
    preempted_requests: int | None
    preemptions: int | None
    recomputed_tokens: int | None
    recompute_tax: float | None
    thrashing_requests: int | None


class Hit(TypedDict):
    name: str
    requests: int | None


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
    verdict: Verdict
    validation: Validation | None
    timeline: list[Series]
    fidelity: list[Errors]
    comparison: list[Comparison]
    curves: list[Curve]
    episodes: list[EpisodeRow]
    preemption: list[Preemption]
    tenants: list[TenantRow]
    types: list[TypeRow]
    data_quality: DataQuality
    method: Method
