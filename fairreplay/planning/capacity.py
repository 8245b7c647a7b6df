"""What a cluster can deliver, how that is shared out, how much more load it takes, and how many replicas it needs.

Bounds are tokens of the trace's own mix (prompt and output) in a window, by the formulas of ``metrics.capacity``. A
bound on decode or prompt tokens alone is brought to tokens of the mix by their share in it. The cluster is taken as it
is at the end of the period.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import polars as pl
from pydantic import ValidationError

from fairreplay.causes.review import has_decisions, period_of
from fairreplay.config.model import QUANTILES, Cluster, ClusterTable, Config, Engine, Hardware, SloTtft, resolve_cluster
from fairreplay.config.model import Capacity as Targets
from fairreplay.errors import UsageError, nearest
from fairreplay.metrics import capacity as formulas
from fairreplay.metrics.costs import CostEstimates, cost_estimates, sentence
from fairreplay.metrics.entitlement import Floats, fair_weights
from fairreplay.metrics.load import NEEDED
from fairreplay.metrics.measure import models, slos_of
from fairreplay.metrics.options import WHOLE_PERIOD, MeasureOptions
from fairreplay.metrics.types import floors
from fairreplay.planning.allocation import allocate
from fairreplay.planning.as_of import as_of
from fairreplay.planning.config_file import write_atomically
from fairreplay.planning.load_search import Found, Question, largest_load, least_replicas, outcome
from fairreplay.sandbox.plan import Choice, baseline_policy, choose, columns_needed, policy_name, shards, take_load
from fairreplay.sandbox.replay import run_shards
from fairreplay.store.outcome_rows import of_model
from fairreplay.store.outcomes import DECIDED
from fairreplay.store.store import Store

SCALING: Final = (
    "the same requests in the same order, each arriving after 1/x of its time since the first one; SCR is the mean "
    "over the windows up to the last arrival"
)
FULL_PERCENT: Final = 100


@dataclass(frozen=True)
class Bound:
    """One limit on what all replicas deliver in a window."""

    name: str
    tokens: float | None
    """Of the trace's mix; null: not known."""
    limits: str
    """What it limits: ``all tokens``, ``decode tokens`` or ``prompt tokens``."""
    limited: float | None
    """So many of these."""
    source: str
    """What it was reckoned from, or what is missing."""


@dataclass(frozen=True)
class Facts:
    """What the bounds need to know of the load, per request of the mean."""

    prompt_share: float
    """Of all tokens."""
    context_tokens: float
    """KV tokens of a running request, mean over its time."""
    residence_s: float
    """From admission to finish, weighted by tokens."""
    batch: float
    """Requests that run at once on a full replica: ``max_num_seqs``, or what the KV cache holds of such contexts."""
    source: str
    """``log`` or ``baseline replay``."""


@dataclass(frozen=True)
class TenantShare:
    tenant: str
    weight: float
    """Part of all weights, by commitment, else weight, else 1."""
    allocated: float
    """Tokens a window; likewise all below."""
    demand: float
    """That arrives in the mean window of the period."""
    peak: float
    """In the tenant's busiest window."""
    headroom: float
    """Allocated minus demand."""
    headroom_peak: float
    phi: dict[str, float] | None
    """How tight each TTFT target is (``metrics.capacity.tightness``); null without targets."""


@dataclass(frozen=True)
class TypeShare:
    type: str
    floor: float
    """Part of the whole that it gets at least."""
    allocated: float
    demand: float


@dataclass(frozen=True)
class Cell:
    tenant: str
    type: str
    demand: float
    allocated: float


@dataclass(frozen=True)
class Group:
    """One model's replicas."""

    model: str | None
    requests: int
    replicas: int
    b_total: float
    """Tokens a window that compute allows: by ``[cluster.hardware]``, else by the step times."""
    b_total_source: str
    b_alloc: float
    """The least bound."""
    bound_by: str
    bounds: tuple[Bound, ...]
    facts: Facts
    tenants: tuple[TenantShare, ...]
    types: tuple[TypeShare, ...]
    table: tuple[Cell, ...]
    load: Found | None
    """The largest load; null if it was not asked for."""
    replicas_needed: Found | None


@dataclass(frozen=True)
class Capacity:
    since: datetime | None
    until: datetime | None
    """First and last arrival."""
    window_s: float
    policy: str
    scr_target: float
    load_target: float
    assumed_slo: bool
    costs: CostEstimates | None
    """Whether the estimates hold: the log against the baseline replay."""
    costs_said: str
    groups: tuple[Group, ...]
    assumptions: tuple[str, ...]


def capacity(
    store: Store,
    config: Config,
    options: MeasureOptions,
    *,
    model: str | None = None,
    policy: str | None = None,
    search: bool = True,
    on_replay: Callable[[], None] = lambda: None,
) -> Capacity:
    """The capacity of each model's cluster over the period of ``options``.

    Args:
        model: only this one.
        policy: of the searched replays; the baseline if none is named.
        search: look for the largest load and the replicas, which takes some twenty replays a model.
        on_replay: called after each replay.

    Raises:
        UsageError: no such model, nothing to replay, windows of no length, or floors that cannot be kept.
    """
    if options.window_us == WHOLE_PERIOD:
        raise UsageError('capacity counts tokens of a window: give --window a size, such as "60s"')
    options = period_of(store, options)
    rows = store.requests(options.since, options.until, _columns(config))
    if rows.is_empty():
        raise UsageError("the store holds no requests in this period: nothing to plan for")
    groups = models(rows)
    if model is not None:
        if model not in groups:
            raise UsageError(f"model {model!r} is not in the period; {nearest(model, [one or '' for one in groups])}")
        groups = [model]
    first, last = _instant(rows["arrived_at"].min()), _instant(rows["arrived_at"].max())
    settled = as_of(config, last)
    chosen = choose(policy or baseline_policy(settled))
    anytime = replace(options, since=None, until=None)
    baselines = {one: _baseline(of_model(rows, one), settled) for one in groups}
    targets, assumed = slos_of(rows, settled, anytime)
    if not targets:
        targets, assumed = slos_of(pl.concat(baselines.values()), settled, anytime)
    costs = cost_estimates(rows, pl.concat(baselines.values()), settled.cost.correction)
    made = [
        _group(of_model(rows, one), baselines[one], settled, anytime, targets, one, len(groups) > 1, chosen, search,
               on_replay)
        for one in groups
    ]  # fmt: skip
    return Capacity(
        since=first,
        until=last,
        window_s=options.window_us / 1e6,
        policy=policy_name(chosen),
        scr_target=settled.capacity.scr,
        load_target=settled.capacity.load,
        assumed_slo=assumed,
        costs=costs,
        costs_said=sentence(costs, settled.cost.correction),
        groups=tuple(made),
        assumptions=_assumptions(rows, settled, config, assumed, groups, search),
    )


def _columns(config: Config) -> tuple[str, ...]:
    """What a replay and its metrics read."""
    return tuple(dict.fromkeys([*columns_needed(config), *NEEDED, *DECIDED, "finished_at"]))


def _instant(value: object) -> datetime:
    assert isinstance(value, datetime)
    return value


def _baseline(rows: pl.DataFrame, config: Config) -> pl.DataFrame:
    """The load of one model under production's policy."""
    load = take_load(rows, ordered=True)
    return outcome(load, run_shards(load, shards(load, config, baseline_policy(config))))


def _group(
    rows: pl.DataFrame,
    replayed: pl.DataFrame,
    config: Config,
    options: MeasureOptions,
    targets: dict[str, SloTtft],
    model: str | None,
    is_one_of_several: bool,
    policy: Choice,
    search: bool,
    on_replay: Callable[[], None],
) -> Group:
    cluster = resolve_cluster(config, model)
    window_s = options.window_us / 1e6
    tenants, types = (tuple(sorted(rows[name].unique().to_list())) for name in ("tenant", "type"))
    asked, peak = _demand(rows, tenants, types, options.window_us)
    facts = _facts(rows, replayed, cluster.engine)
    hardware = _hardware(config, model)
    bounds = _bounds(cluster, hardware, facts, window_s)
    known = {one.name: one.tokens for one in bounds if one.tokens is not None}
    b_alloc, bound_by = formulas.allocatable(known)
    total = next(one for one in bounds if one.name in ("compute", "step_time") and one.tokens is not None)
    share = fair_weights(config, tenants)
    minimum = _floors(rows, config, types)
    table = allocate(asked, share, minimum, b_alloc, types)
    found = needed = None
    if search:
        table_of = model if is_one_of_several or model in config.models else None
        question = Question(take_load(rows, ordered=True), config, table_of, policy, options, targets, on_replay)
        found = largest_load(question, cluster.replicas, config.capacity.scr)
        if cluster.disaggregated is None:
            needed = least_replicas(question, round(config.capacity.load * FULL_PERCENT), config.capacity.scr)
        else:
            needed = Found(None, "replicas of two pools are not counted: change [cluster.disaggregated]", ())
    return Group(
        model=model,
        requests=len(rows),
        replicas=cluster.replicas,
        b_total=total.tokens or 0.0,
        b_total_source=total.source,
        b_alloc=b_alloc,
        bound_by=bound_by,
        bounds=bounds,
        facts=facts,
        tenants=tuple(
            TenantShare(
                tenant=name,
                weight=float(share[place] / share.sum()),
                allocated=float(table[place].sum()),
                demand=float(asked[place].sum()),
                peak=float(peak[place]),
                headroom=float(table[place].sum() - asked[place].sum()),
                headroom_peak=float(table[place].sum() - peak[place]),
                phi=_phi(targets.get(name)),
            )
            for place, name in enumerate(tenants)
        ),
        types=tuple(
            TypeShare(name, float(minimum[place]), float(table[:, place].sum()), float(asked[:, place].sum()))
            for place, name in enumerate(types)
        ),
        table=tuple(
            Cell(tenant, kind, float(asked[row, column]), float(table[row, column]))
            for row, tenant in enumerate(tenants)
            for column, kind in enumerate(types)
        ),
        load=found,
        replicas_needed=needed,
    )


def _phi(slo: SloTtft | None) -> dict[str, float] | None:
    return None if slo is None else formulas.tightness({name: getattr(slo, name) for name in QUANTILES})


def _demand(rows: pl.DataFrame, tenants: Sequence[str], types: Sequence[str], window_us: int) -> tuple[Floats, Floats]:
    """Tokens that arrived in a window: the mean by tenant and type, and each tenant's largest.

    The mean is over the time from the first arrival to the last, at least one window; refused requests are demand too.
    """
    tokens = pl.sum_horizontal(pl.col("prompt_tokens", "output_tokens").cast(pl.Int64).fill_null(0)).sum()
    arrived = pl.col("arrived_at").to_physical()
    first, last = rows.select(arrived.min().alias("first"), arrived.max().alias("last")).row(0)
    per_window = window_us / max(last - first, window_us)
    mean, peak = np.zeros((len(tenants), len(types))), np.zeros(len(tenants))
    row_of, column_of = {name: at for at, name in enumerate(tenants)}, {name: at for at, name in enumerate(types)}
    for tenant, kind, total in rows.group_by("tenant", "type").agg(tokens).iter_rows():
        mean[row_of[tenant], column_of[kind]] = total * per_window
    by_window = rows.group_by("tenant", (arrived // window_us).alias("window")).agg(tokens.alias("tokens"))
    for tenant, most in by_window.group_by("tenant").agg(pl.max("tokens")).iter_rows():
        peak[row_of[tenant]] = most
    return mean, peak


def _floors(rows: pl.DataFrame, config: Config, types: Sequence[str]) -> Floats:
    """``rho_k``: those of ``[types.NAME] floor`` where any is set, else by ``[floor] rule`` over the period."""
    set_ones = {name: own.floor for name in types if (own := config.types.get(name)) and own.floor is not None}
    if set_ones:
        return np.array([set_ones.get(name, 0.0) for name in types])
    cost = pl.col("prompt_tokens").fill_null(0) * config.cost.prompt + pl.col("output_tokens").fill_null(0) * (
        config.cost.output
    )
    parts = rows.select("type", cost.alias("cost")).partition_by("type", as_dict=True)
    costs = [parts[name,]["cost"].to_numpy() for name in types]
    n = np.array([len(own) for own in costs], np.float64)
    mean, sigma = np.array([own.mean() for own in costs]), np.array([own.std() for own in costs])
    cv = sigma / np.where(mean > 0, mean, 1.0)
    return np.asarray(floors((n / n.sum())[None], cv[None], sigma[None], config.floor)[0])


def _facts(rows: pl.DataFrame, replayed: pl.DataFrame, engine: Engine) -> Facts:
    """From the log where it says when requests were served, else from the baseline replay."""
    source = "log" if has_decisions(rows) and rows["finished_at"].null_count() < len(rows) else "baseline replay"
    served = (rows if source == "log" else replayed).select(
        pl.col("prompt_tokens").cast(pl.Float64).fill_null(0).alias("prompt"),
        pl.col("output_tokens").cast(pl.Float64).fill_null(0).alias("output"),
        (pl.col("finished_at") - pl.coalesce("scheduled_at", "first_token_at", "arrived_at"))
        .dt.total_microseconds()
        .alias("us"),
    )
    served = served.drop_nulls("us").filter(pl.col("prompt") + pl.col("output") > 0)
    if served.is_empty():
        raise UsageError("no request of the period was served, in the log or in the sandbox: nothing to plan with")
    prompt, output = served["prompt"].to_numpy(), served["output"].to_numpy()
    seconds = np.maximum(served["us"].to_numpy() / 1e6, 1e-6)
    tokens = prompt + output
    context = float(((prompt + output / 2) * seconds).sum() / seconds.sum())
    return Facts(
        prompt_share=float(prompt.sum() / tokens.sum()),
        context_tokens=context,
        residence_s=float((tokens * seconds).sum() / tokens.sum()),
        batch=float(max(1.0, min(engine.max_num_seqs, _kv_tokens(engine) / max(context, 1.0)))),
        source=source,
    )


def _kv_tokens(engine: Engine) -> int:
    """One block is reserved."""
    return (engine.num_gpu_blocks - 1) * engine.block_size


def _hardware(config: Config, model: str | None) -> Hardware:
    own = config.models.get(model, ClusterTable()).hardware if model is not None else None
    return own or config.cluster.hardware or Hardware()


def _bounds(cluster: Cluster, hardware: Hardware, facts: Facts, window_s: float) -> tuple[Bound, ...]:
    """All bounds of the replicas together; ``compute`` first.

    Where prefill and decode are apart, memory and its bandwidth are the decode pool's, and the network is the links'.
    """
    engine, pools = cluster.engine, cluster.disaggregated
    decoders = cluster.replicas if pools is None else pools.decode_replicas
    link_bytes_per_s, link_kv_bytes, links = hardware.network_bytes_per_s, hardware.kv_bytes_per_token, cluster.replicas
    if pools is not None:
        engine = engine.model_copy(update={"num_gpu_blocks": pools.decode_num_gpu_blocks or engine.num_gpu_blocks})
        link_kv_bytes, links = float(pools.kv_bytes_per_token), pools.prefill_replicas
        link_bytes_per_s = pools.link_bytes_per_s or link_bytes_per_s
    decode_share = 1 - facts.prompt_share
    set_them = "[cluster.hardware] does not say: set {} or preset"

    def bound(name: str, limits: str, limited: float | None, source: str, replicas: int = cluster.replicas) -> Bound:
        share = {"all tokens": 1.0, "decode tokens": decode_share, "prompt tokens": facts.prompt_share}[limits]
        if limited is not None:
            limited *= replicas
        tokens = limited / share if limited is not None and share > 0 else None
        return Bound(name, tokens, limits, limited, source)

    compute = hbm = network = offload = None
    if hardware.flops_per_s is not None and hardware.flops_per_token is not None:
        compute = formulas.compute_bound(hardware.flops_per_s, hardware.utilization, window_s, hardware.flops_per_token)
    if hardware.bytes_per_s is not None and hardware.weight_bytes is not None and hardware.kv_bytes_per_token:
        hbm = formulas.hbm_bound(
            hardware.bytes_per_s, window_s, hardware.weight_bytes, facts.batch, facts.context_tokens,
            hardware.kv_bytes_per_token,
        )  # fmt: skip
    if hardware.offload_blocks is not None and hardware.offload_residence_s is not None:
        held = hardware.offload_blocks * engine.block_size
        offload = formulas.residence_bound(held, window_s, hardware.offload_residence_s)
    if link_bytes_per_s is not None and link_kv_bytes is not None:
        network = formulas.network_bound(link_bytes_per_s, window_s, link_kv_bytes)
    kv_tokens = _kv_tokens(engine)
    at_once = f"{facts.batch:.0f} requests at once of {facts.context_tokens:.0f} tokens of context"
    return (
        bound(
            "compute",
            "all tokens",
            compute,
            set_them.format("flops_per_s, flops_per_token")
            if compute is None
            else f"{hardware.flops_per_s:.4g} FLOP/s x {hardware.utilization:g} / {hardware.flops_per_token:.4g}",
        ),
        bound("step_time", "all tokens", _by_step_time(cluster, facts, window_s), f"[cluster.step_time], {at_once}", 1),
        bound(
            "hbm",
            "decode tokens",
            hbm,
            set_them.format("bytes_per_s, weight_bytes, kv_bytes_per_token")
            if hbm is None
            else f"{hardware.bytes_per_s:.4g} B/s, weights of {hardware.weight_bytes:.4g} B, {at_once}",
            decoders,
        ),
        bound(
            "kv",
            "all tokens",
            formulas.residence_bound(kv_tokens, window_s, facts.residence_s),
            f"{kv_tokens} KV tokens, {facts.residence_s:.4g} s of residence ({facts.source})",
            decoders,
        ),
        bound(
            "cpu_offload",
            "all tokens",
            offload,
            "no offload: offload_blocks and offload_residence_s are not set"
            if offload is None
            else f"{hardware.offload_blocks} blocks, {hardware.offload_residence_s:.4g} s of residence",
        ),
        bound(
            "network",
            "prompt tokens",
            network,
            "no link between prefill and decode is known"
            if network is None
            else f"{link_bytes_per_s:.4g} B/s, {link_kv_bytes:.6g} B of KV a token",
            links,
        ),
    )


def _by_step_time(cluster: Cluster, facts: Facts, window_s: float) -> float | None:
    """Tokens that the step times allow replicas whose batches are always full; None if steps cost nothing.

    Replicas share prompts and decoding, or each pool does its part and the slower one counts.
    """
    engine, time, pools = cluster.engine, cluster.engine.step_time, cluster.disaggregated
    decode_s = time.base / facts.batch + time.decode_sequence + facts.context_tokens * time.context_token
    parts = (facts.prompt_share * time.prefill_token, (1 - facts.prompt_share) * decode_s)
    if pools is None:
        token_s = sum(parts) / cluster.replicas
    else:
        token_s = max(parts[0] / pools.prefill_replicas, parts[1] / pools.decode_replicas)
    return window_s * engine.speed / token_s if token_s > 0 else None


def _assumptions(
    rows: pl.DataFrame, settled: Config, config: Config, assumed: bool, groups: Sequence[str | None], search: bool
) -> tuple[str, ...]:
    said = []
    if settled != config:
        said.append("engine settings, weights and commitments are those in force at the end of the period")
    if assumed:
        said.append("assumed SLO: no TTFT targets are set for every tenant")
    unknown = rows["output_tokens"].null_count() + rows["prompt_tokens"].null_count()
    if unknown:
        said.append(f"{unknown} unknown token counts are no demand")
    if search and any(resolve_cluster(settled, one).placement == "logged" for one in groups):
        said.append("placement is round-robin where the load is searched: a log cannot say where other loads would go")
    if search:
        said.append(f"a load of x: {SCALING}")
    return tuple(said)


# The document.


def with_targets(config: Config, scr: float | None, load: float | None) -> Config:
    """``config`` with the targets of the command line over those of ``[capacity]``.

    Raises:
        UsageError: one is out of range.
    """
    given = {name: value for name, value in (("scr", scr), ("load", load)) if value is not None}
    try:
        targets = Targets.model_validate(config.capacity.model_dump() | given)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise UsageError(f"--{fault['loc'][0]} {fault['input']}: {fault['msg']}") from None
    return config.model_copy(update={"capacity": targets})


def document(found: Capacity, store: Store) -> dict[str, Any]:
    """The documented keys of ``capacity --json``; ``store_digest`` says of which content. Floats have six decimals."""
    parts = _plain(asdict(found))
    groups, costs, said = (parts.pop(name) for name in ("groups", "costs", "costs_said"))
    costs = {"estimates": None} if costs is None else {key: costs[key] for key in costs if key != "requests"}
    return {"store_digest": store.digest(), **parts, "costs": {"reason": said, **costs}, "groups": groups}


def write_document(made: dict[str, Any], path: Path) -> None:
    """The document as a file, whole or not at all, for ``report --capacity``.

    Raises:
        UsageError: it cannot be written there.
    """
    write_atomically(path, orjson.dumps(made, option=orjson.OPT_INDENT_2).decode() + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) + 0.0
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
