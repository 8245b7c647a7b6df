"""From config and canonical trace to what the engine takes: one shard per (model, replica).

All real numbers end here. Seconds become integer picoseconds and weights become integer inverse weights, each from
the decimal that the config states and rounded once, so every machine simulates the same integers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from typing import Final, Protocol, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fairreplay.config.durations import window_us
from fairreplay.config.engines import rules
from fairreplay.config.model import BEFORE_ALL, QUANTILES, Cluster, Config, Engine, EngineChange, Moe, resolve_cluster
from fairreplay.config.size_classes import SIZES
from fairreplay.errors import UsageError, nearest
from fairreplay.sandbox import estimation, extras
from fairreplay.sandbox.controls.configured import controls_of, picoseconds_of_ms
from fairreplay.sandbox.engine import (
    FIXED,
    FLOOR_SCALE,
    MAX_PERIOD_PS,
    PS_PER_SECOND,
    PS_PER_US,
    WEIGHT_SCALE,
    EngineSettings,
    Int64s,
    OlderRules,
    Plan,
    PolicySpec,
    StepTime,
    TypeFloors,
    UserRank,
    Workload,
    check_plan,
)
from fairreplay.sandbox.policies import ESTIMATE, KNOW_DEADLINES, POLICIES
from fairreplay.sandbox.policies.rpm_limit import over_limit
from fairreplay.sandbox.policies.user import load_rank
from fairreplay.trace.schema import ORDER
from fairreplay.trace.values import epoch_us

DEFAULT_POLICY: Final = "fcfs"
MAX_STEP_PS: Final = 86_400 * PS_PER_SECOND
"""A step time model whose largest step takes longer than a day is a mistake of units."""
DAY_PS: Final = 86_400 * PS_PER_SECOND
HOUR_US: Final = 3_600_000_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LEAST_PROTECTED: Final = Fraction(1, 2)
MOST_PROTECTED: Final = Fraction(3, 2)
POOLS: Final = "pools"
"""Stands for the replicas of a disaggregated group, which are simulated together."""
CONTROLS: Final = "controls"
"""Who asks for targets where no policy does."""
RESERVED_TYPE: Final = "chat"
"""Whose tokens ``[floor] reserve_tokens`` keeps."""
BY_COST: Final = ("sjf", "wfq", "wfq+edf")
"""Policies that can count what prompts are expected to cost."""
MIN_WEIGHT: Final = Fraction(1, 10**6)
MAX_WEIGHT: Final = Fraction(10**6)

_ALWAYS: Final = (
    "request_id",
    "tenant",
    "type",
    "model",
    "arrived_at",
    "prompt_tokens",
    "output_tokens",
    "priority",
    "status",
    "weight",
)

MAY_BE_ABSENT: Final = ("model", "priority", "weight", "prefix_ids")
"""Columns that a load's frame may lack where they are null in every row."""

State = TypeVar("State")

Rows = NDArray[np.uint32]
"""Row numbers in ``Load.frame``, upward."""

Choice = str | UserRank
"""A policy of the sandbox by its name, or a ranking of the user's own."""


class Names(Protocol):
    """What settings depend on of a workload."""

    @property
    def tenants(self) -> tuple[str, ...]: ...

    @property
    def types(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Named:
    """Tenants and types without their requests."""

    tenants: tuple[str, ...]
    types: tuple[str, ...]


@dataclass(frozen=True)
class Load:
    """The rows of a trace that load the cluster, and the clock they share."""

    frame: pl.DataFrame
    """Canonical columns, sorted by (arrival, seq, source)."""
    left_out: int
    """Rows that are no load: refused by production, or of unknown prompt length."""
    start_us: int
    """Instant 0 of the sandbox: the first arrival, microseconds since the epoch."""


@dataclass(frozen=True)
class Part:
    """One replica's part of the load, the same under every policy. Its requests stay in the load: ``Task.shard``."""

    model: str | None
    cluster: Cluster
    replica: str
    rows: Rows
    tenants: tuple[str, ...]
    types: tuple[str, ...]
    """Sorted by name."""
    placed: Int64s | None = None
    """Of ``POOLS``: the replica of the prefill pool that serves each row."""


@dataclass(frozen=True)
class Shard:
    """One replica's part of the load and what it runs with."""

    model: str | None
    replica: str
    rows: Rows
    workload: Workload
    plan: Plan


@dataclass(frozen=True)
class Task:
    """A shard to be made: one replica under one policy. Until then it takes no memory but that of its rows' numbers."""

    part: Part
    plan: Plan
    weighs_rows: bool
    """The rows' own ``weight`` counts."""
    over_limit: Int64s | None = None
    """By row of the load: how often the gateway before all replicas refuses it."""
    error: int = 0
    """How far off estimates of costs are, in millionths."""

    def shard(self, load: Load, config: Config) -> Shard:
        """The replica with its requests, taken out of ``load``."""
        part = self.part
        frame = load.frame if len(part.rows) == len(load.frame) else load.frame[part.rows]
        work = _workload(frame, part, config, load.start_us)
        if self.weighs_rows:
            work = replace(work, request_weight=_row_weights(frame))
        if self.over_limit is not None:
            work = replace(work, over_limit=self.over_limit[part.rows])
        if self.plan.estimates():
            work = _with_estimates(work, frame, self.error, part.model)
        return Shard(model=part.model, replica=part.replica, rows=part.rows, workload=work, plan=self.plan)


def picoseconds(seconds: float, speed: float = 1.0) -> int:
    """``seconds / speed`` in picoseconds: exact in the decimals as written, rounded once, half to even."""
    return round(Fraction(repr(seconds)) * PS_PER_SECOND / Fraction(repr(speed)))


def inverse_weight(weight: Fraction, whose: str) -> int:
    """``WEIGHT_SCALE / weight`` rounded to an integer, half to even.

    Raises:
        UsageError: the weight lies outside 1e-6 .. 1e6, where integer counters lose their meaning.
    """
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise UsageError(f"weight of {whose} is {float(weight):g}: weights must lie between 1e-6 and 1e6")
    return round(WEIGHT_SCALE / weight)


def baseline_policy(config: Config) -> str:
    """What production runs: ``[cluster] policy``."""
    return config.cluster.policy or DEFAULT_POLICY


def check_policy(policy: str) -> str:
    """``policy`` if the sandbox knows it.

    Raises:
        UsageError: it does not; names the nearest that it knows.
    """
    if policy not in POLICIES:
        raise UsageError(f"policy {policy!r} is unknown; {nearest(policy, sorted(POLICIES))}")
    return policy


def with_known_policies(config: Config) -> tuple[Config, dict[datetime, str]]:
    """``config`` without policies in ``changes`` that the sandbox does not know, and a warning for each such instant.

    Such a change did happen, but what it did is not known: it is treated as unlisted.
    """
    warnings: dict[datetime, str] = {}

    def known(changes: Sequence[EngineChange], where: str) -> tuple[EngineChange, ...]:
        kept = []
        for change in changes:
            if change.policy is not None and change.policy not in POLICIES:
                warnings[change.at] = (
                    f"policy {change.policy!r} of the {where} change at {change.at:%Y-%m-%dT%H:%M:%SZ} is unknown to "
                    "the sandbox: what it did counts as an unlisted change"
                )
                change = change.model_copy(update={"policy": None})
            kept.append(change)
        return tuple(kept)

    cluster = config.cluster.model_copy(update={"changes": known(config.cluster.changes, "[cluster]")})
    models = {
        name: table.model_copy(update={"changes": known(table.changes, f"[models.{name}]")})
        for name, table in config.models.items()
    }
    return config.model_copy(update={"cluster": cluster, "models": models}), warnings


def choose(text: str) -> Choice:
    """The policy that ``text`` names: one of the sandbox's own, or ``path/file.py:function``.

    Raises:
        UsageError: there is none; see ``check_policy`` and ``policies.user.load_rank``.
    """
    return load_rank(text) if ":" in text or text.endswith(".py") else check_policy(text)


def policy_name(policy: Choice) -> str:
    """What its replay is called: its name, or ``file.py:function``."""
    return policy if isinstance(policy, str) else policy.name


def columns_needed(config: Config) -> tuple[str, ...]:
    """Canonical columns that a replay reads; the wide ones only where a setting asks for them."""
    clusters = [resolve_cluster(config, name) for name in (None, *config.models)]
    wide = {
        "replica": any(cluster.placement == "logged" for cluster in clusters),
        "session_id": any(cluster.placement == "session" for cluster in clusters),
        "prefix_ids": any(cluster.engine.enable_prefix_caching for cluster in clusters),
        "precision": any(cluster.engine.precision_switch for cluster in clusters),
    }
    return (*_ALWAYS, *(name for name, is_needed in wide.items() if is_needed))


def ids_needed(config: Config) -> bool:
    """Whether placement or the drawing of lots looks at the requests' ids."""
    clusters = [resolve_cluster(config, name) for name in (None, *config.models)]
    return (
        config.moe is not None
        or config.estimation.error > 0
        or any(
            cluster.placement != "round-robin" or cluster.engine.speculative or cluster.engine.moe
            for cluster in clusters
        )
    )


IS_LOAD: Final = (pl.col("status") != "rejected") & (pl.col("prompt_tokens").fill_null(0) > 0)
"""Rows that load the cluster."""


def take_load(frame: pl.DataFrame, *, ordered: bool = False) -> Load:
    """The rows of ``frame`` (canonical columns, at least ``columns_needed``) that load the cluster.

    ``ordered``: the rows stand in the order of ``ORDER`` already, and need not have its columns.

    Rows that production refused (``rejected``) and rows without a known, positive prompt length are left out and
    counted. An unknown output length (rows that did not end ``ok``) counts as none.

    Raises:
        UsageError: no row is left, or the arrivals span more time than int64 picoseconds hold.
    """
    load = frame.filter(IS_LOAD)
    load = load if ordered else load.sort(ORDER)
    return load_of(load, len(frame) - len(load))


def load_of(load: pl.DataFrame, left_out: int) -> Load:
    """As ``take_load``, of rows that load the cluster and stand in order."""
    if load.is_empty():
        raise UsageError(f"nothing to replay: none of the {left_out} requests of the period loads the cluster")
    arrivals = load["arrived_at"].to_physical()
    start_us, end_us = int(arrivals[0]), int(arrivals[-1])
    if (end_us - start_us) * PS_PER_US > MAX_PERIOD_PS:
        raise UsageError(
            f"the period spans {(end_us - start_us) // 86_400_000_000} days, "
            f"the sandbox holds at most {MAX_PERIOD_PS // PS_PER_SECOND // 86_400}: narrow it with --since and --until"
        )
    return Load(frame=load, left_out=left_out, start_us=start_us)


def parts(load: Load, config: Config) -> tuple[Part, ...]:
    """The replicas that serve ``load``, by model name (none first), then replica.

    Raises:
        UsageError: placement ``logged`` over rows without a replica.
    """
    config, _ = with_known_policies(config)
    made: list[Part] = []
    models = _models(load.frame)
    for model in models:
        is_all = len(models) == 1
        of_model = None if is_all else _rows(load.frame, pl.col("model").eq_missing(pl.lit(model, dtype=pl.String)))
        group = load.frame if of_model is None else load.frame[of_model]
        cluster = resolve_cluster(config, model)
        if cluster.disaggregated:
            made.append(_pools(load, group, of_model, model, cluster))
            continue
        names, placed = place(group, cluster)
        for name, own in zip(names, placed, strict=True):
            if len(own) == 0:
                continue
            of_part = group.select("tenant", "type")
            of_part = of_part if len(own) == len(group) else of_part[own]
            rows = own if of_model is None else of_model[own]
            made.append(Part(model, cluster, name, rows, _names(of_part["tenant"]), _names(of_part["type"])))
    return tuple(made)


def _pools(load: Load, group: pl.DataFrame, of_model: Rows | None, model: str | None, cluster: Cluster) -> Part:
    """A disaggregated group, in one: requests of all prefill replicas meet in the decode pool."""
    assert cluster.disaggregated is not None
    prefill = cluster.model_copy(update={"replicas": cluster.disaggregated.prefill_replicas})
    placed = np.zeros(len(group), np.int64)
    for index, own in enumerate(place(group, prefill)[1]):
        placed[own] = index
    rows = np.arange(len(load.frame), dtype=np.uint32) if of_model is None else of_model
    return Part(model, cluster, POOLS, rows, _names(group["tenant"]), _names(group["type"]), placed)


def tasks(load: Load, config: Config, policy: Choice, planned: Sequence[Part] | None = None) -> tuple[Task, ...]:
    """``parts(load, config)`` (or those ``planned`` before, for several policies) with what they run under ``policy``.

    The policy that the config names as what production runs (``baseline_policy``) takes each model's own policy and
    every ``[[cluster.changes]] policy``, and the weights in force (the row's ``weight``, else the tenant's changes,
    weight, committed share, 1). Every other policy holds from the start on and takes the weights of ``[weights] rule``.

    Raises:
        UsageError: an unknown policy, a policy or a weight rule that lacks its settings, a step of over a day, or
            placement ``logged`` over rows without a replica.
    """
    config, _ = with_known_policies(config)
    name = policy_name(policy)
    is_baseline = name == baseline_policy(config)
    weights = _weigher(config, is_baseline)
    if not is_baseline and config.weights.rule == "protected":
        weights = protected(weights, config, load)
    if weights.by_row:
        _check_row_weights(load.frame)
    planned = parts(load, config) if planned is None else planned
    limits: dict[str | None, Int64s] = {}
    made: list[Task] = []
    for part in planned:
        over_limit = None
        if policy_limits(part.cluster, policy, is_baseline=is_baseline):
            limits = limits or _over_limits(load, planned, config)
            over_limit = limits[part.model]
        settings = settings_over_time(part.cluster, config, policy, part, load.start_us)
        plan = Plan(
            settings=settings,
            weights=_weights_over_time(weights, part.tenants, load.start_us),
            controls=controls_of(
                part.cluster,
                config,
                any(state.policy.preemption_threshold is not None for _, state in settings),
                part.tenants,
                part.types,
                load.start_us,
                partial(_targets, config, CONTROLS),
            ),
            disaggregated=_disaggregated(part.cluster),
        )
        try:
            check_plan(plan)
        except ValueError as error:
            raise UsageError(f"cluster: {error}") from None
        made.append(Task(part, plan, weights.by_row, over_limit, _millionths(config.estimation.error)))
    return tuple(made)


def shards(load: Load, config: Config, policy: Choice, planned: Sequence[Part] | None = None) -> tuple[Shard, ...]:
    """As ``tasks``, with every replica's requests at once."""
    return tuple(task.shard(load, config) for task in tasks(load, config, policy, planned))


def policy_limits(cluster: Cluster, policy: Choice, *, is_baseline: bool) -> bool:
    """Whether ``rpm-limit`` is in force at any time."""
    if not is_baseline:
        return policy == "rpm-limit"
    return any(engine.policy == "rpm-limit" for engine in (cluster.engine, *(state for _, state in cluster.changes)))


def _over_limits(load: Load, planned: Sequence[Part], config: Config) -> dict[str | None, Int64s]:
    """By model, for each row of the load: how often the gateway before all replicas refuses it."""
    rpm, retries = config.policy_table("rpm-limit").rpm, config.retry.attempts
    after_ps = picoseconds_of_ms(config.retry.retry_after_ms)
    arrival_ps = (load.frame["arrived_at"].to_physical().to_numpy() - load.start_us) * PS_PER_US
    tenant = load.frame["tenant"].cast(pl.Categorical).to_physical().cast(pl.Int64).to_numpy()
    found = {}
    for model in dict.fromkeys(part.model for part in planned):
        rows = np.sort(np.concatenate([part.rows for part in planned if part.model == model]))
        over = np.zeros(len(load.frame), np.int64)
        over[rows] = over_limit(arrival_ps[rows], tenant[rows], rpm, retries, after_ps)
        found[model] = over
    return found


def _models(frame: pl.DataFrame) -> list[str | None]:
    """No model first, then by name."""
    if "model" not in frame.columns:
        return [None]
    return sorted(frame["model"].unique().to_list(), key=lambda name: (name is not None, name))


# Placement: which replica serves which request.


def place(group: pl.DataFrame, cluster: Cluster) -> tuple[tuple[str, ...], list[Rows]]:
    """Names of the replicas of one model, and the rows of ``group`` that each of them serves.

    ``round-robin``: the i-th arrival goes to replica ``i mod R``. ``session``: by a stable hash of ``session_id``
    (``request_id`` where there is none). ``logged``: as the log says, whatever ``replicas`` is.
    """
    if cluster.placement == "logged":
        if group["replica"].null_count():
            row = group.filter(pl.col("replica").is_null()).row(0, named=True)
            raise UsageError(
                f'placement "logged" needs the replica of every row; request {row["request_id"]!r} has none: '
                'set placement = "round-robin" or "session"'
            )
        names = _names(group["replica"])
        return names, _by_replica(_index(group["replica"], names), len(names))
    names = tuple(str(index) for index in range(cluster.replicas))
    if cluster.placement == "session":
        keys = group["session_id"].fill_null(group["request_id"])
        unique = keys.unique()
        table = pl.DataFrame(
            {"key": unique, "replica": [stable_hash(key) % cluster.replicas for key in unique.to_list()]},
            schema_overrides={"replica": pl.Int64},
        )
        found = pl.DataFrame({"key": keys}).join(table, on="key", how="left", maintain_order="left")
        return names, _by_replica(found["replica"].to_numpy(), len(names))
    return names, [np.arange(first, len(group), len(names), dtype=np.uint32) for first in range(len(names))]


def _by_replica(replica: Int64s, count: int) -> list[Rows]:
    """Where each of ``count`` replicas stands in ``replica``."""
    return [np.flatnonzero(replica == index).astype(np.uint32) for index in range(count)]


def stable_hash(text: str) -> int:
    """64 bits of BLAKE2b: the same in every process, unlike ``hash``."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


# Settings.


def settings_over_time(
    cluster: Cluster, config: Config, policy: Choice, names: Names, start_us: int
) -> tuple[tuple[int, EngineSettings], ...]:
    """The engine's settings from each instant on; what changed before the start is the first state."""
    is_baseline = policy_name(policy) == baseline_policy(config)
    states: list[tuple[int, EngineSettings]] = []
    for at, engine in [(None, cluster.engine), *cluster.changes]:
        for name in FIXED:
            if getattr(engine, name) != getattr(cluster.engine, name):
                raise UsageError(f"cluster.changes: {name} cannot change during a replay: replay the two periods apart")
        spec = _policy_spec(config, engine.policy if is_baseline else policy, names)
        state = _engine_settings(engine, spec, names.types)
        if cluster.disaggregated:
            state = replace(state, decode_gpu_blocks=cluster.disaggregated.decode_num_gpu_blocks or 0)
        _put(states, at, start_us, state)
    return tuple(states)


def _put(states: list[tuple[int, State]], at: datetime | None, start_us: int, state: State) -> None:
    """Add a state to a timeline; one from before the start replaces the first, one past the end of time is dropped."""
    at_ps = 0 if at is None else max(0, (epoch_us(at) - start_us) * PS_PER_US)
    if at_ps >= 2**63:
        return
    while states and states[-1][0] >= at_ps:
        states.pop()
    states.append((at_ps, state))


def _policy_spec(config: Config, policy: Choice, names: Names) -> PolicySpec:
    table = config.policy_table(policy_name(policy))
    floors = type_floors(config, names.types)
    if isinstance(policy, UserRank):
        return PolicySpec(
            name="user", prompt_cost=table.prompt_cost, output_cost=table.output_cost, rank=policy, floors=floors
        )
    check_policy(policy)
    if table.by == "cost" and policy not in BY_COST:
        raise UsageError(f'[policies.{policy}] by = "cost": only {", ".join(BY_COST)} can count costs')
    if table.by == "cost" and config.moe is None:
        raise UsageError(f'[policies.{policy}] by = "cost" needs [moe] mean and spread')
    rank: tuple[int, ...] = ()
    if policy == "type-priority":
        if not table.order:
            raise UsageError('policy "type-priority" needs [policies.type-priority] order = ["first type", ...]')
        rank = tuple(table.order.index(name) if name in table.order else len(table.order) for name in names.types)
    return PolicySpec(
        name=policy,
        prompt_cost=table.prompt_cost,
        output_cost=table.output_cost,
        lift=table.lift,
        type_rank=rank,
        slo_ps=tuple(_targets(config, policy, name) for name in names.tenants) if policy in KNOW_DEADLINES else (),
        quantile=QUANTILES.index(table.quantile),
        quantiles=tuple(sorted({QUANTILES.index(name) for name in table.quantiles})),
        history=table.history,
        gamma_ps=_picoseconds_of_ms(table.gamma_ms),
        alpha_ps=_picoseconds_of_ms(table.alpha_ms),
        slack_ps=_picoseconds_of_ms(table.slack_ms),
        quantum=table.quantum,
        predicted_output=table.predicted_output,
        rpm=table.rpm,
        by_cost=table.by == "cost",
        estimation=_estimation(config) if policy in ESTIMATE else None,
        preemption_threshold=_threshold(policy, table.preemption_threshold),
        floors=floors,
    )


def _estimation(config: Config) -> estimation.Estimation | None:
    table = config.estimation
    if not table.error:
        return None
    return estimation.Estimation(max(1, _millionths(config.estimation_alpha())) if table.correction else 0)


def _threshold(policy: str, threshold: int | None) -> int | None:
    if threshold is not None and not POLICIES[policy].threshold_unit:
        preempting = ", ".join(name for name, kind in POLICIES.items() if kind.threshold_unit)
        raise UsageError(f"policies.{policy}.preemption_threshold: only {preempting} preempt for a head")
    return threshold


def type_floors(config: Config, types: Sequence[str]) -> TypeFloors | None:
    """The floors that ``[floor] enforce`` puts in force, None if it does not.

    Hard: of the ``window_tokens`` of a window each type may take all but what is kept for the others.

    Raises:
        UsageError: no type has a floor, or they add up to more than there is.
    """
    floor = config.floor
    if floor.enforce is None:
        return None
    share = {name: Fraction(repr(own.floor)) for name, own in config.types.items() if own.floor}
    if not share and not floor.reserve_tokens:
        raise UsageError(f'[floor] enforce = "{floor.enforce}" needs floors: set [types.NAME] floor = 0.1')
    kept = {name: int(part * (floor.window_tokens or 0)) for name, part in share.items()}
    if floor.enforce == "hard" and floor.reserve_tokens is not None:
        kept[RESERVED_TYPE] = floor.reserve_tokens
    if sum(share.values()) > 1 or sum(kept.values()) > (floor.window_tokens or sum(kept.values())):
        raise UsageError(f"the floors of types {', '.join(sorted({*share, *kept}))} add up to more than is served")
    window_ps = window_us(config.window.size, "window.size") * PS_PER_US
    if floor.enforce == "soft":
        return TypeFloors(tuple(int(share.get(name, 0) * FLOOR_SCALE) for name in types), window_ps)
    others = {name: sum(kept.values()) - kept.get(name, 0) for name in types}
    return TypeFloors((), window_ps, tuple((floor.window_tokens or 0) - others[name] for name in types))


def _targets(config: Config, policy: str, tenant: str) -> tuple[int, int, int]:
    """The tenant's TTFT targets in picoseconds; what lies a day or more away is as good as a day."""
    slo = config.slo_ttft_ms(tenant)
    if slo is None:
        who = "backpressure and emergency modes need" if policy == CONTROLS else f"policy {policy!r} needs"
        raise UsageError(
            f"{who} TTFT targets, and tenant {tenant!r} has none: set [defaults] slo_ttft_ms = "
            "{ p50 = ..., p90 = ..., p99 = ... }"
        )
    p50, p90, p99 = (min(_picoseconds_of_ms(getattr(slo, q)), DAY_PS) for q in QUANTILES)
    return p50, p90, p99


def _picoseconds_of_ms(ms: float) -> int:
    return picoseconds(ms, 1000.0)


def _older(version: str) -> OlderRules:
    known = rules(version)
    return OlderRules(
        lone_capped=not known.lone_uncapped,
        victim_tokens_lost=not known.victim_tokens_return,
        self_preemption_ends=not known.self_preemption_goes_on,
        frees_to_back=not known.uncached_first,
    )


def _engine_settings(engine: Engine, policy: PolicySpec, types: Sequence[str]) -> EngineSettings:
    time = engine.step_time
    step_time = StepTime(
        base=picoseconds(time.base, engine.speed),
        prefill_token=picoseconds(time.prefill_token, engine.speed),
        decode_sequence=picoseconds(time.decode_sequence, engine.speed),
        context_token=picoseconds(time.context_token, engine.speed),
    )
    speculation, moe = _speculation(engine, types), _moe(engine.moe, types)
    dearest = (
        max((mean + 4 * spread for mean, spread in zip(moe.mean, moe.spread, strict=True)), default=0) if moe else 0
    )
    largest_ps = (
        step_time.base
        + step_time.prefill_token * engine.max_num_batched_tokens * max(1, dearest // extras.MICRO)
        + step_time.decode_sequence * engine.max_num_seqs * max(1, dearest // extras.MICRO)
        + step_time.context_token * engine.num_gpu_blocks * engine.block_size
    )
    if speculation:
        each = (speculation.draft_ps + speculation.verify_ps) * speculation.drafts
        largest_ps += each * engine.max_num_seqs
    if largest_ps > MAX_STEP_PS:
        raise UsageError(
            f"cluster.step_time: a full step would take {largest_ps / PS_PER_SECOND:.3g} s; the unit is seconds"
        )
    return EngineSettings(
        step_time=step_time,
        policy=policy,
        max_num_seqs=engine.max_num_seqs,
        max_num_active_seqs=engine.max_num_active_seqs or 0,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=engine.max_model_len,
        block_size=engine.block_size,
        num_gpu_blocks=engine.num_gpu_blocks,
        watermark_blocks=int(Fraction(repr(engine.watermark)) * engine.num_gpu_blocks),
        enable_chunked_prefill=engine.enable_chunked_prefill,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=engine.long_prefill_token_threshold_adaptive,
        enable_prefix_caching=engine.enable_prefix_caching,
        async_scheduling=engine.async_scheduling and engine.batching == "mixed",  # a matter of vLLM V1 alone
        scheduler_reserve_full_isl=engine.scheduler_reserve_full_isl,
        prefill_first=engine.batching == "prefill-first",
        prefill_interval=engine.prefill_interval,
        reserve_full_kv=engine.admission == "reserve",
        victim=engine.victim or "",
        queue_limit=engine.queue_limit or 0,
        older=_older(engine.version),
        tenant_queue_limit=engine.tenant_queue_limit or 0,
        queue_time_ps=_picoseconds_of_ms(engine.queue_time_limit_ms or 0.0),
        speculation=speculation,
        moe=moe,
        precision_switch=engine.precision_switch or "",
    )


def _speculation(engine: Engine, types: Sequence[str]) -> extras.Speculation | None:
    table = engine.speculative
    if table is None:
        return None
    verify = engine.step_time.prefill_token if table.verify_token is None else table.verify_token
    chances = (Fraction(repr(table.types.get(name, table.acceptance))) for name in types)
    return extras.Speculation(
        drafts=table.draft_tokens,
        accepted=tuple(round(chance * extras.CERTAIN) for chance in chances),
        draft_ps=picoseconds(table.draft_token, engine.speed),
        verify_ps=picoseconds(verify, engine.speed),
    )


def _moe(table: Moe | None, types: Sequence[str]) -> extras.Moe | None:
    if table is None:
        return None
    own = [table.types.get(name) for name in types]
    mean = [table.mean if one is None or one.mean is None else one.mean for one in own]
    spread = [table.spread if one is None or one.spread is None else one.spread for one in own]
    return extras.Moe(
        mean=tuple(_millionths(value) for value in mean),
        spread=tuple(_millionths(value) for value in spread),
        independent=table.experts == "independent",
    )


def _millionths(value: float) -> int:
    return round(Fraction(repr(value)) * extras.MICRO)


def _disaggregated(cluster: Cluster) -> extras.Disaggregated | None:
    table = cluster.disaggregated
    if table is None:
        return None
    return extras.Disaggregated(
        prefill_replicas=table.prefill_replicas,
        decode_replicas=table.decode_replicas,
        kv_bytes_per_token=table.kv_bytes_per_token,
        link_bytes_per_s=None if table.link_bytes_per_s is None else Fraction(repr(table.link_bytes_per_s)),
    )


# Weights.


@dataclass(frozen=True)
class _Weigher:
    by_row: bool
    """The row's own ``weight`` goes before the tenant's."""
    at: Callable[[str, datetime | None], Fraction]
    """Weight of a tenant at an instant (None = before any change)."""
    instants: tuple[datetime, ...]
    """When a weight changes."""


def _weigher(config: Config, is_baseline: bool) -> _Weigher:
    """Where weights come from. They are relative: only their ratios matter.

    A committed share is scaled so that the mean commitment weighs 1. Under rule ``committed`` a tenant without a
    commitment has its configured weight, else 1 (as in ``metrics``).
    """
    dated = config.commitment_instants()
    promised = {at: config.commitments(at or BEFORE_ALL) for at in (None, *dated)}

    def share(tenant: str, at: datetime | None) -> Fraction | None:
        """The part of a mean commitment; null without one."""
        committed = promised[max((one for one in dated if at is not None and one <= at), default=None)]
        if tenant not in committed:
            return None
        return Fraction(committed[tenant] * len(committed), sum(committed.values()))

    def static(tenant: str, at: datetime | None) -> Fraction | None:
        table = config.tenants.get(tenant)
        if table is None:
            return None
        weight = table.weight
        if at is not None:
            for change in sorted(table.changes, key=lambda change: change.at):
                if change.at <= at:
                    weight = change.weight
        return None if weight is None else Fraction(repr(weight))

    changes = {change.at for tenant in config.tenants.values() for change in tenant.changes}
    instants = tuple(sorted(changes | set(dated)))
    if is_baseline:
        return _Weigher(
            by_row=True, at=lambda tenant, at: static(tenant, at) or share(tenant, at) or Fraction(1), instants=instants
        )
    rule = config.weights.rule
    by_promise = rule in ("committed", "protected")
    return _Weigher(
        by_row=rule == "logged",
        at=lambda tenant, at: (share(tenant, at) if by_promise else None) or static(tenant, at) or Fraction(1),
        instants=instants,
    )


def protected(base: _Weigher, config: Config, load: Load) -> _Weigher:
    """Committed shares times ``clip(C tau / U, 1/2, 3/2)``, brought back to their sum, anew every hour.

    C are the tenant's committed tokens of the calendar month (UTC), U its prompt and output tokens that arrived since
    the month began, or the load if that began later; tau the part of the month that has passed since then. U = 0 gives
    3/2. Tenants without a commitment keep their weight.
    """
    arrived_us = load.frame["arrived_at"].to_physical().to_numpy()
    tokens = load.frame["prompt_tokens"].cast(pl.Int64) + load.frame["output_tokens"].cast(pl.Int64).fill_null(0)
    names = load.frame["tenant"].cast(pl.String).to_numpy()
    spent: dict[str, tuple[Int64s, Int64s]] = {}
    for name in config.commitments():
        own = names == name
        spent[name] = arrived_us[own], np.concatenate([np.zeros(1, np.int64), np.cumsum(tokens.to_numpy()[own])])
    weights: dict[datetime, dict[str, Fraction]] = {}

    def paced(at: datetime) -> dict[str, Fraction]:
        begins = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        month_us = epoch_us((begins + timedelta(days=32)).replace(day=1)) - epoch_us(begins)
        now_us, since_us = epoch_us(at), max(epoch_us(begins), load.start_us)
        found = {}
        for name, promised in config.commitments(at).items():
            instants, total = spent.get(name, (arrived_us[:0], np.zeros(1, np.int64)))
            used = int(total[np.searchsorted(instants, now_us)] - total[np.searchsorted(instants, since_us)])
            pace = Fraction(promised * (now_us - since_us), month_us * used) if used else MOST_PROTECTED
            found[name] = base.at(name, at) * min(max(pace, LEAST_PROTECTED), MOST_PROTECTED)
        whole = sum((base.at(name, at) for name in found), Fraction(0))
        scale = whole / sum(found.values()) if found else Fraction(1)
        return {name: weight * scale for name, weight in found.items()}

    def weight(tenant: str, at: datetime | None) -> Fraction:
        if at is None:
            return base.at(tenant, at)
        if at not in weights:
            weights[at] = paced(at)
        return weights[at].get(tenant) or base.at(tenant, at)

    start = EPOCH + timedelta(microseconds=load.start_us)
    hours = (int(arrived_us[-1]) - load.start_us) // HOUR_US + 1
    hourly = {start + timedelta(hours=hour) for hour in range(1, hours + 1)}
    return _Weigher(by_row=False, at=weight, instants=tuple(sorted(hourly | set(base.instants))))


def weight_in_force(config: Config, tenant: str, at: datetime) -> Fraction:
    """What production weighs a tenant with at an instant, where its rows carry no weight of their own."""
    return _weigher(config, is_baseline=True).at(tenant, at)


def _weights_over_time(weights: _Weigher, tenants: Sequence[str], start_us: int) -> tuple[tuple[int, Int64s], ...]:
    states: list[tuple[int, Int64s]] = []
    for at in (None, *weights.instants):
        inverse = [inverse_weight(weights.at(name, at), f"tenant {name!r}") for name in tenants]
        _put(states, at, start_us, np.array(inverse, dtype=np.int64))
    return tuple(states)


# Requests.


def _workload(rows: pl.DataFrame, part: Part, config: Config, start_us: int) -> Workload:
    """``rows`` as the engine takes them; ``request_weight`` is left at 0."""
    tenant = _index(rows["tenant"], part.tenants)
    default_priority = np.array(
        [(config.tenants[name].priority or 0) if name in config.tenants else 0 for name in part.tenants],
        dtype=np.int64,
    )
    priority = default_priority[tenant] if default_priority.any() else np.zeros(len(rows), np.int64)
    if "priority" in rows.columns:
        own = rows["priority"].cast(pl.Int64)
        priority = np.where(own.is_not_null().to_numpy(), own.fill_null(0).to_numpy(), priority)
    starts, ids = _prefixes(rows)
    kind, prompt = _index(rows["type"], part.types), rows["prompt_tokens"].cast(pl.Int64).to_numpy()
    engine = part.cluster.engine
    precision: Int64s | None = None
    precisions: tuple[str, ...] = ()
    if engine.precision_switch:
        spoken = rows["precision"].fill_null("")
        precisions = _names(spoken)
        precision = _index(spoken, precisions)
        # what one precision has cached is of no use to another
        apart = np.array([stable_hash(name) for name in precisions], np.uint64).view(np.int64)
        ids = ids ^ np.repeat(apart[precision], np.diff(starts))
    moe = _moe(config.moe, part.types)
    return Workload(
        arrival_ps=(rows["arrived_at"].to_physical().to_numpy() - start_us) * PS_PER_US,
        prompt_tokens=prompt,
        output_tokens=rows["output_tokens"].cast(pl.Int64).fill_null(0).to_numpy(),
        priority=priority,
        tenant=tenant,
        type=kind,
        request_weight=np.zeros(len(rows), dtype=np.int64),
        prefix_start=starts,
        prefix_ids=ids,
        prefix_block_tokens=prefix_block_tokens(rows) if len(ids) else 0,
        tenants=part.tenants,
        types=part.types,
        draw=_draws(rows) if moe or engine.speculative else None,
        cost=_costs(moe, _millionths(config.moe.risk), kind, prompt) if moe and config.moe else None,
        precision=precision,
        precisions=precisions,
        placed=part.placed,
    )


def _draws(part: pl.DataFrame) -> Int64s:
    """64 bits of each request: the same in every replay of it."""
    return np.array([stable_hash(name) for name in part["request_id"].to_list()], np.uint64).view(np.int64)


def _costs(moe: extras.Moe, risk: int, kind: Int64s, prompt: Int64s) -> Int64s:
    """What each prompt is expected to cost, on the safe side by ``risk`` spreads; millionths of a token."""
    pairs, place = np.unique(np.stack([kind, prompt]), axis=1, return_inverse=True)
    costs = [
        extras.ranked_cost(tokens, moe.mean[of], moe.spread[of], risk, independent=moe.independent)
        for of, tokens in pairs.T.tolist()
    ]
    return np.array(costs, np.int64)[place.reshape(-1)]


def _with_estimates(work: Workload, rows: pl.DataFrame, error: int, model: str | None) -> Workload:
    """``work`` with what a scheduler takes its costs for, and the classes in which it corrects that."""
    sizes = len(SIZES) + 1
    kind = work.type * sizes + estimation.size_classes(work.prompt_tokens)
    names = [f"{model or ''}\0{name}\0{size}" for name in work.types for size in range(sizes)]
    of_class = np.array([stable_hash(name) for name in names], np.uint64).view(np.int64)[kind]
    of_request = _draws(rows) if work.draw is None else work.draw
    return replace(work, estimate=estimation.factors(error, of_class, of_request), cost_class=kind)


def _prefixes(part: pl.DataFrame) -> tuple[Int64s, Int64s]:
    """Where each row's prefix ids start in the array of all, and that array."""
    if "prefix_ids" not in part.columns or part["prefix_ids"].null_count() == len(part):
        return np.zeros(len(part) + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    ids = part["prefix_ids"]
    lengths = ids.list.len().fill_null(0).cast(pl.Int64).to_numpy()
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    return starts, ids.explode().drop_nulls().to_numpy().view(np.int64)


def _has_weights(frame: pl.DataFrame) -> bool:
    return "weight" in frame.columns and frame["weight"].null_count() < len(frame)


def _check_row_weights(frame: pl.DataFrame) -> None:
    """Every logged weight is one that the sandbox counts with."""
    if _has_weights(frame):
        _inverse_row_weights(frame["weight"])


def _inverse_row_weights(weights: pl.Series) -> dict[float, int]:
    return {
        weight: inverse_weight(Fraction(repr(weight)), "a logged row")
        for weight in weights.drop_nulls().unique().cast(pl.Float64).to_list()
    }


def _row_weights(frame: pl.DataFrame) -> Int64s:
    """Inverse weight of each row, 0 where the log has none."""
    if not _has_weights(frame):
        return np.zeros(len(frame), dtype=np.int64)
    weights = frame["weight"].cast(pl.Float64)
    table = _inverse_row_weights(weights)
    return weights.replace_strict(table, default=0, return_dtype=pl.Int64).fill_null(0).to_numpy()


def prefix_block_tokens(part: pl.DataFrame) -> int:
    """Tokens that one prefix id covers, which the canonical trace does not state; 0 where no row has ids.

    The power of two that explains the number of ids of most prompts, the last block counted whether full or not;
    of equals the smallest.
    """
    rows = part.select(
        tokens=pl.col("prompt_tokens").cast(pl.Int64), ids=pl.col("prefix_ids").list.len().cast(pl.Int64)
    ).filter(pl.col("ids") > 0)
    tokens, ids = rows["tokens"].to_numpy(), rows["ids"].to_numpy()
    if len(ids) == 0:
        return 0
    sizes = [1 << power for power in range(13)]
    explained = [int(np.sum((ids == -(-tokens // size)) | (ids == tokens // size))) for size in sizes]
    return sizes[explained.index(max(explained))]


def _rows(frame: pl.DataFrame, predicate: pl.Expr) -> Rows:
    """Numbers of the rows where ``predicate`` holds."""
    return np.flatnonzero(frame.select(predicate).to_series().to_numpy()).astype(np.uint32)


def _names(column: pl.Series) -> tuple[str, ...]:
    return tuple(column.unique().cast(pl.String).sort().to_list())


def _index(column: pl.Series, names: Sequence[str]) -> Int64s:
    """Position of each value in ``names``."""
    if column.dtype == pl.Categorical:
        found = column.unique()
        place = {name: index for index, name in enumerate(names)}
        table = np.zeros(int(found.to_physical().max()) + 1, np.int64)  # type: ignore[arg-type]
        table[found.to_physical().to_numpy()] = [place[name] for name in found.to_list()]
        index: Int64s = table[column.to_physical().to_numpy()]
        return index
    return column.cast(pl.Enum(list(names))).to_physical().cast(pl.Int64).to_numpy()
