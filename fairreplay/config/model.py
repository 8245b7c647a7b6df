"""The keys of ``fairreplay.toml``. Every key is optional; an unknown key or a wrong type is an error.

Units stand in the names (``_ms``, ``_tokens``); step times are seconds, as in the engine's own documentation.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fairreplay.config import engines
from fairreplay.config.step_times import hardware_preset
from fairreplay.config.step_times import preset as step_time_preset

PolicyName = str
Quantile = Literal["p50", "p90", "p99"]
QUANTILES: tuple[Quantile, ...] = ("p50", "p90", "p99")
Victim = Literal["last", "priority", "least-computed"]
"""Who loses its KV blocks when they run out."""


RATE_MOST: Final = 100_000.0
"""Requests a second that a bucket can count."""


def _utc(value: object) -> object:
    """Instants in the config carry a zone, or are UTC."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return value


Instant = Annotated[datetime, BeforeValidator(_utc)]


def _known_engine(value: str) -> str:
    engines.minor(value)
    return value


EngineVersion = Annotated[str, AfterValidator(_known_engine)]


BEFORE_ALL: Final = datetime(1, 1, 1, tzinfo=UTC)
"""An instant before every commitment with a date."""


_CALLED: Final[dict[type, str]] = {bool: "boolean", int: "integer", float: "number"}


@cache
def _scalar(table: type[BaseModel], field: str) -> type | None:
    """``bool``, ``int`` or ``float`` where a field is one, or one or none; else null."""
    annotation = table.model_fields[field].annotation
    kinds = {annotation} if isinstance(annotation, type) else set(get_args(annotation)) - {type(None)}
    return next((kind for kind in _CALLED if kinds == {kind}), None)


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _as_written(cls, value: Any, info: ValidationInfo) -> Any:
        """No text or truth value is taken for a number, and nothing else for a truth value."""
        kind = _scalar(cls, info.field_name or "")
        if kind is None or value is None:
            return value
        if not isinstance(value, bool) if kind is bool else isinstance(value, (bool, str)):
            raise ValueError(f"Input should be a valid {_CALLED[kind]}")
        return value


class SloTtft(Table):
    """TTFT targets in milliseconds for the three judged quantiles."""

    p50: float = Field(gt=0)
    p90: float = Field(gt=0)
    p99: float = Field(gt=0)


class MinSamples(Table):
    """Sample sizes from which a quantile is judged: at least one miss is forgiven (metrics, "too few samples")."""

    p50: int = Field(5, ge=1)
    p90: int = Field(10, ge=1)
    p99: int = Field(100, ge=1)


STRICT_SAMPLES = MinSamples(p50=5, p90=29, p99=299)
"""Sizes that demand 95 % evidence (``--strict-samples``)."""


class Window(Table):
    size: str = "60s"
    hop: str | None = None
    """For ``metrics``: sliding windows that begin so far apart."""
    min_samples: MinSamples = MinSamples()


class Cost(Table):
    """Service units per token: the price at which fairness is weighed."""

    prompt: float = Field(1.0, ge=0)
    output: float = Field(2.0, ge=0)
    cached: float = Field(0.0, ge=0)
    correction: float = Field(0.05, gt=0, le=1)
    """Weight of the newest ratio in the online correction of cost estimates (``metrics.costs``)."""


class Estimation(Table):
    """``[estimation]``: how far off schedulers are that go by what a request is expected to cost.

    An estimate is the true cost times ``1 + error * (u_class + u_request) / 2``, both drawn from [-1, 1] by hash.
    """

    error: float = Field(0.0, ge=0, le=0.99)
    correction: bool = False
    """Estimates are corrected by what requests of their class turned out to cost."""
    alpha: float | None = Field(None, gt=0, le=1)
    """Weight of the newest ratio in that correction; None: ``[cost] correction``."""


STEP_TIME_KEYS: Final = ("base", "prefill_token", "decode_sequence", "context_token")


class StepTime(Table):
    """Seconds of one engine step: ``base + prefill_token*P + decode_sequence*D + context_token*S``."""

    preset: str | None = None
    """``MODEL/GPU`` (``config.step_times``): where the values come from that are not set beside it."""
    base: float = Field(0.006, ge=0)
    prefill_token: float = Field(4e-5, ge=0)
    decode_sequence: float = Field(3e-5, ge=0)
    context_token: float = Field(3e-8, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _of_preset(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("preset"), str):
            return step_time_preset(values["preset"]).values | values
        return values


class EngineKeys(Table):
    """Engine settings by vLLM's names. All optional here: a layer holds only what it overrides."""

    policy: PolicyName | None = None
    max_num_seqs: int | None = Field(None, ge=1)
    max_num_active_seqs: int | None = Field(None, ge=1)
    max_num_batched_tokens: int | None = Field(None, ge=1)
    max_model_len: int | None = Field(None, ge=1)
    block_size: int | None = Field(None, ge=1)
    num_gpu_blocks: int | None = Field(None, ge=2)
    watermark: float | None = Field(None, ge=0, le=1)
    enable_chunked_prefill: bool | None = None
    long_prefill_token_threshold: int | None = Field(None, ge=0)
    long_prefill_token_threshold_adaptive: bool | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    scheduler_reserve_full_isl: bool | None = None
    batching: Literal["mixed", "prefill-first"] | None = None
    prefill_interval: int | None = Field(None, ge=0)
    admission: Literal["chunk", "reserve"] | None = None
    victim: Victim | None = None
    queue_limit: int | None = Field(None, ge=1)
    tenant_queue_limit: int | None = Field(None, ge=1)
    queue_time_limit_ms: float | None = Field(None, gt=0)
    speed: float | None = Field(None, gt=0)
    step_time: StepTime | None = None
    precision_switch: Literal["keep", "drop"] | None = None


class Disaggregated(Table):
    """``[cluster.disaggregated]``: a pool that prefills, a pool that decodes, and what the KV between them takes."""

    prefill_replicas: int = Field(ge=1)
    decode_replicas: int = Field(ge=1)
    kv_bytes_per_token: int = Field(ge=1, le=10**9)
    link_bytes_per_s: float | None = Field(None, ge=1)
    """Of each prefill replica; none: the KV moves in no time."""
    decode_num_gpu_blocks: int | None = Field(None, ge=2)
    """None: as ``num_gpu_blocks``."""
    prefill_budget_ms: SloTtft | None = None
    """From arrival to first token."""
    decode_budget_ms: SloTtft | None = None
    """From first token to finish; consistency of the stages is judged where both budgets are set."""


class Speculative(Table):
    """``[speculative]``: a small model drafts, the model checks; seconds, divided by ``speed`` as all step times."""

    draft_tokens: int = Field(4, ge=0, le=64)
    acceptance: float = Field(0.7, ge=0, le=1)
    """Chance that a draft is accepted if those before it are."""
    types: dict[str, Annotated[float, Field(ge=0, le=1, strict=True)]] = Field(default_factory=dict)
    """Acceptance of types that have one of their own."""
    draft_token: float = Field(0.0, ge=0, le=1)
    verify_token: float | None = Field(None, ge=0, le=1)
    """What a draft adds to the model's step; none: as a prefill token."""


class MoeType(Table):
    mean: float | None = Field(None, gt=0, le=1000)
    spread: float | None = Field(None, ge=0, le=1000)


class Moe(Table):
    """``[moe]``: what a token costs, in units of ``step_time``'s tokens, and how much that varies."""

    mean: float = Field(1.0, gt=0, le=1000)
    spread: float = Field(0.0, ge=0, le=1000)
    """Standard deviation."""
    experts: Literal["independent", "same"] = "independent"
    """Whether the tokens of a request meet experts of their own or all the same ones."""
    risk: float = Field(1.0, ge=0, le=1000)
    """Lambda: by how many spreads a policy that ranks by cost stays on the safe side."""
    types: dict[str, MoeType] = Field(default_factory=dict)


class Hardware(Table):
    """``[cluster.hardware]``: one replica's GPUs and model by their figures, for ``capacity``."""

    preset: str | None = None
    """``MODEL/GPU`` (``config.hardware``): published figures; what is set beside it goes before."""
    flops_per_s: float | None = Field(None, gt=0)
    utilization: float = Field(1.0, gt=0, le=1)
    """The part of ``flops_per_s`` that is attained."""
    flops_per_token: float | None = Field(None, gt=0)
    bytes_per_s: float | None = Field(None, gt=0)
    """Memory bandwidth that is attained."""
    weight_bytes: float | None = Field(None, gt=0)
    kv_bytes_per_token: float | None = Field(None, gt=0)
    offload_blocks: int | None = Field(None, gt=0)
    """KV blocks that the host's memory holds for requests swapped out."""
    offload_residence_s: float | None = Field(None, gt=0)
    """How long a request stays there, on average."""
    network_bytes_per_s: float | None = Field(None, gt=0)
    """Bandwidth between prefill and decode, where they are apart."""

    @model_validator(mode="before")
    @classmethod
    def _of_preset(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("preset"), str):
            return hardware_preset(values["preset"]) | values
        return values

    @model_validator(mode="after")
    def _in_pairs(self) -> Hardware:
        for one, other in (
            ("flops_per_s", "flops_per_token"),
            ("bytes_per_s", "weight_bytes"),
            ("offload_blocks", "offload_residence_s"),
        ):
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                raise ValueError(f"{one} and {other} go together")
        for name in ("bytes_per_s", "network_bytes_per_s"):
            if getattr(self, name) is not None and self.kv_bytes_per_token is None:
                raise ValueError(f"{name} needs kv_bytes_per_token")
        return self


class EngineChange(EngineKeys):
    """A deploy or a rollback: the named settings hold from ``at`` on."""

    at: Instant


class ClusterTable(EngineKeys):
    """``[cluster]`` and ``[models.NAME]``: engine settings, replicas, and what changed when."""

    engine: EngineVersion | None = None
    """The release whose defaults and rules hold (``config.engines``)."""
    replicas: int | None = Field(None, ge=1)
    placement: Literal["round-robin", "logged", "session"] | None = None
    disaggregated: Disaggregated | None = None
    hardware: Hardware | None = None
    changes: tuple[EngineChange, ...] = ()

    @model_validator(mode="after")
    def _pools_have_replicas(self) -> ClusterTable:
        if self.disaggregated and self.replicas is not None:
            raise ValueError("replicas does not go with disaggregated, whose pools have replicas of their own")
        return self


class TenantChange(Table):
    at: Instant
    weight: float = Field(gt=0)


class Commitment(Table):
    """What a tenant is promised from ``valid_from`` on, until the next one; 0 tokens end it."""

    valid_from: Instant
    committed_tokens_per_month: int = Field(ge=0)


class Tenant(Table):
    committed_tokens_per_month: int | None = Field(None, gt=0)
    weight: float | None = Field(None, gt=0)
    priority: int | None = None
    queue_limit: int | None = Field(None, ge=1)
    """Its own ``[cluster] tenant_queue_limit``."""
    rate_per_s: float | None = Field(None, ge=0.001, le=RATE_MOST)
    """Its own ``[backpressure] rate_per_s``."""
    slo_ttft_ms: SloTtft | None = None
    changes: tuple[TenantChange, ...] = ()
    commitments: tuple[Commitment, ...] = ()
    """Those with a date, here or from ``[weights] file``; each goes before ``committed_tokens_per_month``."""

    def committed_at(self, at: datetime | None) -> int | None:
        """Tokens a month that were promised at ``at`` (null: by the latest commitment); null where none were."""
        dated = [one for one in self.commitments if at is None or one.valid_from <= at]
        if dated:
            return max(dated, key=lambda one: one.valid_from).committed_tokens_per_month or None
        return self.committed_tokens_per_month


class Defaults(Table):
    """For tenants without a table of their own. Without an SLO here or there, one is assumed and named as such.

    ``openslo`` is a YAML file with SLOs, relative to the config (``config.openslo``).
    """

    slo_ttft_ms: SloTtft | None = None
    openslo: str | None = Field(None, min_length=1)


class TypeTable(Table):
    """``[types.NAME]`` declares a request type."""

    floor: float | None = Field(None, ge=0, le=1)
    """Its part of the tokens served, where ``[floor] enforce`` is on; none: no floor."""


RuleColumn = Literal[
    "request_id",
    "tenant",
    "type",
    "model",
    "replica",
    "status",
    "precision",
    "session_id",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "recomputed_tokens",
    "priority",
    "preemptions",
]
_COUNTS = frozenset(name for name in get_args(RuleColumn) if name.endswith("_tokens")) | {"priority", "preemptions"}


class TypeCondition(Table):
    """What one canonical column must hold: a number within ``min`` and ``max`` (both included), or a text.

    ``regex`` is searched anywhere in the text, in linear time; a null never holds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)

    column: RuleColumn
    min: float | None = None
    max: float | None = None
    regex: str | None = None
    in_: tuple[str, ...] | None = Field(None, alias="in")

    @model_validator(mode="after")
    def _fits(self) -> TypeCondition:
        numeric, textual = (self.min, self.max), (self.regex, self.in_)
        is_text = self.column not in _COUNTS
        if any(given is not None for given in (numeric if is_text else textual)):
            raise ValueError(f"{self.column} takes {'regex or in' if is_text else 'min or max'}")
        if all(given is None for given in (*numeric, *textual)):
            raise ValueError("says nothing: give min, max, regex or in")
        return self


class TypeRule(Table):
    """``[[type_rules]]``: the first rule that holds names a request's type, whatever the log says.

    ``when`` is one condition or several that must all hold; without it the rule always holds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    when: tuple[TypeCondition, ...] = ()
    is_: str = Field(alias="is", min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _one_or_several(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("when"), dict):
            return values | {"when": [values["when"]]}
        return values


FloorMode = Literal["soft", "hard"]


class Floor(Table):
    rule: Literal["cv", "eta", "inverse-sigma"] = "cv"
    reserve: float = Field(0.4, ge=0, le=1)
    eta: float = Field(0.5, ge=0)
    enforce: FloorMode | None = None
    """In the sandbox: a type below its floor goes first (soft); what is kept for a type is lent to none (hard)."""
    window_tokens: int | None = Field(None, ge=1)
    """``hard``: tokens that a replica serves in a window; floors are parts of these."""
    reserve_tokens: int | None = Field(None, ge=0)
    """``hard``: the tokens of a window that are kept for the type ``chat``, in place of its floor."""

    @model_validator(mode="after")
    def _hard_floors_are_tokens(self) -> Floor:
        if self.enforce == "hard" and self.window_tokens is None:
            raise ValueError('enforce = "hard" needs window_tokens, the tokens that a replica serves in a window')
        return self


class Emergency(Table):
    """What the sandbox does under stress, where ``enabled``. ``jfi``: whom the throttle mode slows down, tenants served
    beyond their share, or (the essay) all but those of the largest weight."""

    enabled: bool = False
    jfi: Literal["over-served", "low-weight"] = "over-served"


class Retry(Table):
    """Requests that were refused come back ``attempts`` times at most, each ``retry_after_ms`` after its refusal."""

    attempts: int = Field(0, ge=0, le=100)
    retry_after_ms: float = Field(1000.0, ge=0.001, le=86_400_000)


class Backpressure(Table):
    """A token bucket of requests for each tenant at each replica, whose rate follows the tenant's TTFT. On where
    ``rate_per_s`` is set, here or for a tenant."""

    rate_per_s: float | None = Field(None, ge=0.001, le=RATE_MOST)
    """Requests a second: the configured rate, from which it starts and up to which it recovers."""
    rate_min_per_s: float = Field(0.1, ge=0.001, le=RATE_MOST)
    recovery_per_s: float | None = Field(None, ge=0.001, le=RATE_MOST)
    """What the rate gains at once while the target is met; none: a twentieth of the largest configured rate."""
    burst: int = Field(10, ge=1, le=10**9)
    """Requests that a bucket holds."""
    window_ms: float = Field(10_000.0, ge=1, le=86_400_000)
    """P99 is that of the first tokens so long back."""
    hold_ms: float | None = Field(None, ge=1, le=86_400_000)
    """Least time between two changes of a rate; none: the window."""
    check_ms: float = Field(100.0, ge=1, le=86_400_000)
    signal_delay_ms: float = Field(0.0, ge=0, le=86_400_000)
    """Age of what is seen."""
    update: Literal["clip", "literal"] = "clip"
    """``literal`` (the essay): ``rate * P99 / target``."""


class KvAdmission(Table):
    """Near KV saturation long contexts are let in at a lower rate. On where ``long_tokens`` is set."""

    long_tokens: int | None = Field(None, ge=1)
    """A prompt of so many tokens is long."""
    saturation: float = Field(0.85, ge=0, le=1)
    """Part of the KV blocks in use."""
    long_rate_per_s: float = Field(1.0, ge=0.001, le=RATE_MOST)
    """Long contexts that a replica lets in then."""


class Preempt(Table):
    """Preemption for a waiting head (``preemption_threshold`` of a policy), and what becomes of every victim."""

    utilization_max: float = Field(0.8, ge=0, le=1000)
    """Only while the last batch held less than this part of the allowed tokens."""
    recovery_ms_max: float = Field(100.0, ge=0, le=86_400_000)
    """Only of requests that would have what they had computed again in less."""
    denied: Literal["wait", "refuse"] = "wait"
    """What becomes of a head that these limits deny a victim."""
    victims: Literal["recompute", "swap"] = "recompute"
    """``swap``: their KV goes to host memory while there is room."""
    host_gb: float = Field(0.0, ge=0, le=10**6)
    """Host memory of a replica, in 1e9 bytes."""
    host_gb_per_s: float = Field(25.0, gt=0, le=10**6)
    """Bandwidth between host and device."""
    kv_bytes_per_token: int = Field(131_072, ge=1, le=10**9)
    """``2 * layers * kv heads * head dim * bytes``; the default is that of Llama-3.1-8B in 16 bits."""

    @model_validator(mode="after")
    def _room_for_swap(self) -> Preempt:
        if self.victims == "swap" and self.host_gb == 0:
            raise ValueError('victims = "swap" needs host_gb, the host memory of a replica')
        return self


class Capacity(Table):
    """What ``capacity`` asks of the sandbox."""

    scr: float = Field(0.99, gt=0, le=1)
    """SCR that must be kept."""
    load: float = Field(1.0, ge=0.1, le=64)
    """The load that the replicas are counted for, in loads of the trace."""


class Weights(Table):
    """``file`` is a CSV of commitments with dates, relative to the config (``config.commitments``)."""

    rule: Literal["committed", "protected", "static", "logged"] = "committed"
    file: str | None = Field(None, min_length=1)


class PolicyTable(Table):
    """``[policies.NAME]``. ``order`` is for ``type-priority``: first type first."""

    order: tuple[str, ...] = ()
    prompt_cost: int = Field(1, ge=0)
    output_cost: int = Field(2, ge=0)
    lift: bool = True
    quantum: int = Field(512, ge=1, le=10**6)
    """``drr``: prompt tokens that a tenant of weight 1 may spend at each visit."""
    predicted_output: int = Field(128, ge=0, le=10**6)
    """``wfq``: output tokens expected of a tenant of which no request has finished yet."""
    quantile: Quantile = "p99"
    """``edf``, ``wfq+edf`` and ``qoserve``: the TTFT target that deadlines are made of."""
    quantiles: tuple[Quantile, ...] = QUANTILES
    """``quantile``: the targets whose error budgets count."""
    history: int = Field(100, ge=1, le=10_000)
    """``quantile``: of how many of a tenant's last requests it counts the misses."""
    gamma_ms: float = Field(0.0, ge=0, le=10_000)
    """``quantile``: by how much each doubling of a tenant's service moves its deadlines back."""
    alpha_ms: float = Field(0.1, ge=0, le=10_000)
    """``qoserve``: by how much each prompt token moves a deadline back."""
    slack_ms: float = Field(0.0, ge=0)
    """``wfq+edf``: a head whose deadline is closer than this goes first."""
    preemption_threshold: int | None = Field(None, ge=0)
    """``priority``: a request that does not fit takes the place of those whose number is larger by more than this.
    Also under ``type-priority`` (places of the order), ``sjf`` (prompt tokens), ``edf`` (milliseconds) and ``vtc``
    (service units at weight 1). Limits: ``[preempt]``."""
    by: Literal["prompt", "cost"] = "prompt"
    """``sjf``, ``wfq`` and ``wfq+edf``: count a prompt's tokens, or what ``[moe]`` expects them to cost."""
    rpm: int = Field(20, ge=1, le=10**9)
    """``rpm-limit``: requests of a tenant that pass in any minute."""

    @model_validator(mode="after")
    def _some_quantile(self) -> PolicyTable:
        if not self.quantiles:
            raise ValueError('quantiles is empty: name at least one of "p50", "p90", "p99"')
        return self


class Config(Table):
    """A whole ``fairreplay.toml``."""

    window: Window = Window()
    cost: Cost = Cost()
    estimation: Estimation = Estimation()
    cluster: ClusterTable = ClusterTable()
    defaults: Defaults = Defaults()
    tenants: dict[str, Tenant] = Field(default_factory=dict)
    models: dict[str, ClusterTable] = Field(default_factory=dict)
    types: dict[str, TypeTable] = Field(default_factory=dict)
    type_rules: tuple[TypeRule, ...] = ()
    floor: Floor = Floor()
    weights: Weights = Weights()
    emergency: Emergency = Emergency()
    speculative: Speculative | None = None
    moe: Moe | None = None
    retry: Retry = Retry()
    backpressure: Backpressure = Backpressure()
    kv_admission: KvAdmission = KvAdmission()
    preempt: Preempt = Preempt()
    capacity: Capacity = Capacity()
    policies: dict[str, PolicyTable] = Field(default_factory=dict)

    def slo_ttft_ms(self, tenant: str) -> SloTtft | None:
        """The tenant's own SLO, else the default one, else none (then one is assumed from the trace)."""
        own = self.tenants.get(tenant)
        return (own.slo_ttft_ms if own else None) or self.defaults.slo_ttft_ms

    def estimation_alpha(self) -> float:
        """Weight of the newest ratio where schedulers correct their estimates."""
        return self.cost.correction if self.estimation.alpha is None else self.estimation.alpha

    def has_extras(self) -> bool:
        """Whether there are pools, drafts, experts or precisions anywhere."""
        tables = (self.cluster, *self.models.values())
        drafts = self.speculative is not None and self.speculative.draft_tokens > 0
        return drafts or self.moe is not None or self.has_pools() or any(one.precision_switch for one in tables)

    def has_pools(self) -> bool:
        return any(table.disaggregated for table in (self.cluster, *self.models.values()))

    def has_controls(self) -> bool:
        """Whether anything may hold requests back around the scheduler: retries, limits, backpressure and so on."""
        tables: list[EngineKeys] = [self.cluster, *self.models.values()]
        tables += [change for table in (self.cluster, *self.models.values()) for change in table.changes]
        limits = any(table.queue_time_limit_ms or table.tenant_queue_limit for table in tables)
        own = any(tenant.queue_limit or tenant.rate_per_s for tenant in self.tenants.values())
        preempts = any(table.preemption_threshold is not None for table in self.policies.values())
        pressed = self.backpressure.rate_per_s is not None or self.kv_admission.long_tokens is not None
        swaps = self.preempt.victims == "swap"
        return bool(limits or own or preempts or pressed or swaps or self.retry.attempts or self.emergency.enabled)

    def commitments(self, at: datetime | None = None) -> dict[str, int]:
        """Committed tokens a month at an instant (null: by the latest commitments) of each tenant that has any."""
        found = {name: tenant.committed_at(at) for name, tenant in self.tenants.items()}
        return {name: tokens for name, tokens in found.items() if tokens is not None}

    def says_weights(self) -> bool:
        """Whether it tells tenants apart: a commitment or a weight is set."""
        return any(
            tenant.committed_tokens_per_month or tenant.weight or tenant.commitments for tenant in self.tenants.values()
        )

    def commitment_instants(self) -> tuple[datetime, ...]:
        """When a commitment begins, in the order of time; empty where none has a date."""
        return tuple(sorted({one.valid_from for tenant in self.tenants.values() for one in tenant.commitments}))

    def policy_table(self, policy: str) -> PolicyTable:
        return self.policies.get(policy, PolicyTable())


class Engine(Table):
    """Engine settings with nothing left open: the defaults under ``[cluster]``, ``[models.NAME]`` and changes."""

    version: EngineVersion = engines.LATEST
    policy: PolicyName = "fcfs"
    max_num_seqs: int = 256
    max_num_active_seqs: int | None = None
    max_num_batched_tokens: int = 8192
    max_model_len: int = 131072
    block_size: int = 16
    num_gpu_blocks: int = 20000
    watermark: float = 0.0
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    """On by default from vLLM 0.14 on; prefill-first engines know no such thing."""
    scheduler_reserve_full_isl: bool = True
    batching: Literal["mixed", "prefill-first"] = "mixed"
    prefill_interval: int = 10
    admission: Literal["chunk", "reserve"] = "chunk"
    victim: Victim | None = None
    """None: the policy's own: by priority under ``priority``, else the last."""
    queue_limit: int | None = None
    """A request that arrives at a replica while so many wait is refused."""
    tenant_queue_limit: int | None = None
    """As ``queue_limit``, of one tenant's requests that wait for their first batch."""
    queue_time_limit_ms: float | None = None
    """Who has waited so long for its first batch is refused."""
    speed: float = 1.0
    step_time: StepTime = StepTime()
    precision_switch: Literal["keep", "drop"] | None = None
    """None: requests of all precisions share batches and cache."""
    speculative: Speculative | None = None
    moe: Moe | None = None

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, values: dict[str, Any]) -> dict[str, Any]:
        settled = {key: value for key, value in values.items() if value is not None}
        lacking = engines.missing(settled.get("version", engines.LATEST), settled)
        if lacking is not None:
            raise ValueError(lacking)
        if settled.get("batching") == "prefill-first":
            settled.setdefault("async_scheduling", False)
        return engines.defaults(settled.get("version", engines.LATEST)) | settled

    @model_validator(mode="after")
    def _agree(self) -> Engine:
        if self.async_scheduling and self.batching == "prefill-first":
            raise ValueError('async_scheduling = true does not go with batching = "prefill-first"')
        if self.precision_switch and not self.enable_prefix_caching:
            raise ValueError("precision_switch needs enable_prefix_caching = true")
        return self


class Cluster(Table):
    """One model's group of replicas: what it starts with, and every later state with its instant."""

    model: str | None
    replicas: int
    placement: Literal["round-robin", "logged", "session"]
    engine: Engine
    changes: tuple[tuple[Instant, Engine], ...]
    """Full settings from each instant on, in time order."""
    disaggregated: Disaggregated | None = None

    @model_validator(mode="after")
    def _agree(self) -> Cluster:
        if self.disaggregated and self.placement == "logged":
            raise ValueError(
                'placement = "logged" does not go with disaggregated: set placement = "round-robin" or "session"'
            )
        return self


def _set_keys(layer: EngineKeys) -> dict[str, Any]:
    return {key: getattr(layer, key) for key in EngineKeys.model_fields if getattr(layer, key) is not None}


def resolve_cluster(config: Config, model: str | None) -> Cluster:
    """The settings of the replicas that serve ``model``: ``[cluster]`` overridden by ``[models.NAME]``."""
    own = config.models.get(model) if model is not None else None
    layers = [config.cluster] if own is None else [config.cluster, own]
    keys: dict[str, Any] = {"moe": config.moe}
    if config.speculative and config.speculative.draft_tokens:
        keys["speculative"] = config.speculative
    for layer in layers:
        keys |= _set_keys(layer)

    def last(name: str, default: Any) -> Any:
        return next((getattr(layer, name) for layer in reversed(layers) if getattr(layer, name) is not None), default)

    keys["version"] = last("engine", engines.LATEST)
    engine = Engine(**keys)
    listed = sorted((change for layer in layers for change in layer.changes), key=lambda change: change.at)
    changes: list[tuple[datetime, Engine]] = []
    for change in listed:
        keys = keys | _set_keys(change)
        changes.append((change.at, Engine(**keys)))
    disaggregated: Disaggregated | None = last("disaggregated", None)
    return Cluster(
        model=model,
        replicas=(
            last("replicas", 1)
            if disaggregated is None
            else disaggregated.prefill_replicas + disaggregated.decode_replicas
        ),
        disaggregated=disaggregated,
        placement=last("placement", "round-robin"),
        engine=engine,
        changes=tuple(changes),
    )
