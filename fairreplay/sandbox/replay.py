"""Replay a period of the store under one policy after another, and find what was replayed before.

A replay is a function of the load, the config and the policy. What it writes holds no wall clock; the seconds that
the engine took are for the terminal alone.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fairreplay.config.model import ClusterTable, Config, Tenant, resolve_cluster
from fairreplay.errors import UsageError, nearest
from fairreplay.sandbox.controls.configured import asked_for, needs_targets
from fairreplay.sandbox.engine import OK, REFUSED, UserRank
from fairreplay.sandbox.plan import (
    IS_LOAD,
    MAY_BE_ABSENT,
    Choice,
    Load,
    Shard,
    Task,
    baseline_policy,
    choose,
    columns_needed,
    ids_needed,
    load_of,
    parts,
    policy_name,
    tasks,
)
from fairreplay.sandbox.policies import ESTIMATE, KNOW_DEADLINES
from fairreplay.sandbox.policies.user import try_rank
from fairreplay.sandbox.pool import Progress, Watch, run_tasks
from fairreplay.sandbox.served import Outcomes, Served, serve, step_rows
from fairreplay.store.ahead import one_ahead
from fairreplay.store.store import BLOCK_ROWS, LARGE_ROWS, Store

if TYPE_CHECKING:
    from fairreplay.sandbox.accounts import Account

ENGINES: Final = ("local", "ray")
"""Where replicas are simulated: by threads of this process, or on a Ray cluster."""
ESTIMATES: Final = ("exact", "uncorrected", "corrected")
"""What a policy that estimates costs is replayed with where ``[estimation] error`` is set: each beside the others."""
AHEAD_ROWS: Final = 1 << 21
"""Requests whose outcome may be at hand before the policy's turn to be written has come."""
JUDGED: Final = {"disaggregated": {"prefill_budget_ms", "decode_budget_ms"}}
"""What a cluster's results are only held against."""
SEMANTICS: Final = 1
"""Raised whenever the same load and config would replay differently, so that older replays are stale."""


@dataclass(frozen=True)
class ReplaySummary:
    """What one policy did to the load. Quantiles are nearest rank over the requests with a first token."""

    name: str
    policy: str
    config_hash: str
    requests: int
    left_out: int
    """Rows of the period that are no load (refused by production, unknown prompt length)."""
    ok: int
    rejected: int
    preemptions: int
    ttft_ms: dict[str, float | None]
    tokens_per_s: float
    """Prompt and output tokens of the finished requests over the time from first arrival to last finish."""
    engine_s: float
    """Wall-clock seconds in the engine; never stored."""
    wall_s: float
    """Wall-clock seconds of this replay, reading and writing included; never stored."""
    controls: dict[str, float] | None = None
    """What controls did in all, by ``control.what``; null where there are none."""
    estimates: str | None = None
    """Which of ``ESTIMATES`` the policy went by; null where it goes by none, or by exact ones alone."""


@dataclass(frozen=True)
class Replayed:
    """One policy's outcome before it is written."""

    requests: pl.DataFrame
    steps: pl.DataFrame
    engine_s: float
    accounts: tuple[Account, ...] = ()
    """Of each replica, where pools, drafts, experts or precisions are in force."""


def replay(
    store: Store,
    config: Config,
    policies: Sequence[str],
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    jobs: int = 1,
    engine: str = "local",
    progress: Progress | None = None,
) -> list[ReplaySummary]:
    """Run the load of the period under each policy and write the results into the store, in the order given.

    A policy is one of the sandbox's own by name, or the user's ``path/file.py:function``.

    With ``[estimation] error`` a policy that estimates costs is replayed once with each of ``ESTIMATES``; which of the
    replays is the config's own says ``[estimation] correction``.

    ``jobs`` threads share the replicas of all policies; with ``engine="ray"`` they are tasks of a Ray cluster
    (``on_ray``). The results depend on neither. Each policy's result is written whole when it is there, so what an
    interrupt leaves is a store with fewer replays.

    Raises:
        UsageError: see ``plan.take_load`` and ``plan.tasks``, or Ray is not installed; nothing is written then.
        ClusterError: the Ray cluster cannot be reached, or lost a replica again and again.
        StoreBusyError: another run holds the store.
    """
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine!r} is unknown; {nearest(engine, list(ENGINES))}")
    chosen = _distinct([choose(policy) for policy in policies])
    summaries = []
    with store.lock():
        started = time.perf_counter()
        load = read_load(store, config, since, until, ids=ids_needed(config))
        arrived_us = load.frame["arrived_at"].to_physical().to_numpy()
        replicas = parts(load, config)
        todo: list[Task] = []
        runs = [(policy, *run) for policy in chosen for run in _runs(config, policy_name(policy))]
        for policy, _, settings in runs:
            todo += tasks(load, settings, policy, replicas)
            if isinstance(policy, UserRank):
                from fairreplay.sandbox.compiled.user_rank import compile_rank

                compile_rank(policy)
                try_rank(policy, todo[-1].shard(load, config).workload)
        with closing(_served(load, config, todo, jobs, engine, progress)) as done:
            for policy, estimates, settings in runs:
                name, digest = policy_name(policy), policy.digest if isinstance(policy, UserRank) else None
                hash_ = config_hash(store, settings, name, since, until, digest)
                outcomes = Outcomes(arrived_us, replicas)
                with store.replay_draft(name, hash_) as draft:
                    for part in replicas:
                        served = next(done)
                        outcomes.put(part, served)
                        draft.add_steps(step_rows(part, load.start_us, served.sums))
                        del served  # before the next one
                    meta = _meta(store, settings, policy, since, until, load, outcomes)
                    draft.finish(meta, _frames(store, since, until, load, outcomes), outcomes.controls())
                if isinstance(policy, UserRank):
                    _remove_older(store, policy)
                wall_s, started = time.perf_counter() - started, time.perf_counter()
                summaries.append(replace(_summary(meta, load, outcomes, wall_s), estimates=estimates))
                del outcomes  # before the next policy's
    return summaries


def with_estimates(config: Config) -> dict[str, Config]:
    """``config`` with each of ``ESTIMATES``; none without ``[estimation] error``."""
    table = config.estimation
    if not table.error:
        return {}
    changes: tuple[dict[str, object], ...] = ({"error": 0.0}, {"correction": False}, {"correction": True})
    return {
        name: config.model_copy(update={"estimation": table.model_copy(update=change)})
        for name, change in zip(ESTIMATES, changes, strict=True)
    }


def goes_by_estimates(config: Config, policy: str) -> bool:
    """Whether a policy that estimates costs is in force at any time of its replay, and they are off."""
    return config.estimation.error > 0 and not _in_force(config, policy).isdisjoint(ESTIMATE)


def _runs(config: Config, policy: str) -> list[tuple[str | None, Config]]:
    return list(with_estimates(config).items()) if goes_by_estimates(config, policy) else [(None, config)]


def _served(
    load: Load, config: Config, todo: list[Task], jobs: int, engine: str, progress: Progress | None
) -> Generator[Served]:
    """The outcome of each task, in their order."""

    def made(task: Task) -> Shard:
        return task.shard(load, config)

    def size(task: Task) -> int:
        return len(task.part.rows)

    if engine == "ray":
        from fairreplay.sandbox.on_ray import run_on_ray

        return run_on_ray(todo, made, size, load.start_us, AHEAD_ROWS, progress)

    def work(task: Task, watch: Watch) -> Served:
        return serve(made(task), load.start_us, watch)

    return run_tasks(todo, work, size, jobs, progress, ahead=AHEAD_ROWS)


def _frames(
    store: Store, since: datetime | None, until: datetime | None, load: Load, outcomes: Outcomes
) -> pl.DataFrame | Iterator[pl.DataFrame]:
    """The rows of a replay: a frame, or blocks of one that is large."""
    frames = outcomes.frames(_ids(store, since, until, load))
    return next(frames) if len(load.frame) + load.left_out <= LARGE_ROWS else frames


def _ids(store: Store, since: datetime | None, until: datetime | None, load: Load) -> Iterator[pl.Series]:
    """The ids of the load's requests, in its order and in blocks: read again, rather than held all the time."""
    if "request_id" in load.frame.columns:
        height = len(load.frame) if len(load.frame) <= LARGE_ROWS else BLOCK_ROWS
        for block in load.frame.select("request_id").iter_slices(height):
            yield block["request_id"]
        return
    for block in store.in_order(since, until, ("request_id", "status", "prompt_tokens")):
        kept = block.filter(IS_LOAD)["request_id"]
        if len(kept):
            yield kept


def read_load(
    store: Store, config: Config, since: datetime | None = None, until: datetime | None = None, *, ids: bool = True
) -> Load:
    """The load of a period as the store holds it: only the columns that a replay reads, names as categories.

    Without ``ids`` it has no ``request_id``, which takes more memory than all the rest.

    Raises:
        UsageError: see ``plan.take_load``.
    """
    stored = store.manifest.segments
    columns = [
        name
        for name in columns_needed(config)
        if (name not in MAY_BE_ABSENT or not all(name in segment.empty_columns for segment in stored))
        and (ids or name != "request_id")
    ]
    blocks, left_out = [], 0
    for block in one_ahead(store.in_order(since, until, columns)):
        kept = block.filter(IS_LOAD).drop("status")
        left_out += len(block) - len(kept)
        blocks.append(kept.with_columns(pl.col("tenant", "type").cast(pl.Categorical)))
    return load_of(_in_one(blocks), left_out)


def _in_one(blocks: list[pl.DataFrame]) -> pl.DataFrame:
    """One frame of contiguous columns; ``blocks`` is emptied column by column, so that nothing is there twice."""
    if len(blocks) == 1:
        return blocks.pop()
    columns = []
    for name in blocks[0].columns:
        columns.append(pl.concat([block[name] for block in blocks], rechunk=True))
        for number, block in enumerate(blocks):
            blocks[number] = block.drop(name)
    return pl.DataFrame(columns)


def _distinct(policies: Sequence[Choice]) -> list[Choice]:
    """Each policy once; two files of one name would be one replay."""
    chosen: dict[str, Choice] = {}
    for policy in policies:
        other = chosen.setdefault(policy_name(policy), policy)
        if other != policy:
            raise UsageError(f"two policies are called {policy_name(policy)!r}: rename one of the files")
    return list(chosen.values())


def _remove_older(store: Store, rank: UserRank) -> None:
    """Of a user's policy the store keeps what its file says now, not what it said before an edit."""
    for name in store.replay_names():
        if name.rpartition("-")[0] == rank.name and store.replay_meta(name).get("rank_digest") != rank.digest:
            store.remove_replay(name)


def find_replays(
    store: Store, config: Config, since: datetime | None = None, until: datetime | None = None
) -> dict[str, str]:
    """Policy -> name of its replay, for each that belongs to exactly this config, store content and period.

    The baseline comes first, then by name. Other replays in the store are stale and are not named.
    """
    found = {}
    for name in store.replay_names():
        policy, _, hash_ = name.rpartition("-")
        digest = store.replay_meta(name).get("rank_digest") if ":" in policy else None
        if hash_ == config_hash(store, config, policy, since, until, digest):
            found[policy] = name
    baseline = baseline_policy(config)
    return {policy: found[policy] for policy in sorted(found, key=lambda policy: (policy != baseline, policy))}


def config_hash(
    store: Store,
    config: Config,
    policy: str,
    since: datetime | None = None,
    until: datetime | None = None,
    rank_digest: str | None = None,
) -> str:
    """12 hex digits over everything that decides a replay: settings, weights, priorities, policy, period, content.

    ``rank_digest`` is that of a user's own ranking.
    """
    decides = {
        "semantics": SEMANTICS,
        "store": store.digest(),
        "since": _iso(since),
        "until": _iso(until),
        "policy": policy,
        "is_baseline": policy == baseline_policy(config),
        "clusters": {
            name: resolve_cluster(config, name or None).model_dump(mode="json", exclude=JUDGED)
            for name in ["", *sorted(name for name, table in config.models.items() if table != ClusterTable())]
        },
        "tenants": {
            name: tenant.model_dump(mode="json", exclude={"slo_ttft_ms"})
            for name, tenant in sorted(config.tenants.items())
            if tenant != Tenant(slo_ttft_ms=tenant.slo_ttft_ms)  # an empty table says nothing
        },
        "weights": config.weights.model_dump(mode="json"),
        **_targets(config, policy),
        **_enforced_floors(config),
        **asked_for(config),
        **_estimation(config, policy),
        "parameters": config.policy_table(policy).model_dump(mode="json"),
    }
    if rank_digest is not None:
        decides["rank"] = rank_digest
    text = json.dumps(decides, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _in_force(config: Config, policy: str) -> set[str]:
    """The policies that the replay of ``policy`` may run: those of changes and models, if it is the baseline."""
    policies = {policy}
    if policy == baseline_policy(config):
        for name in (None, *config.models):
            cluster = resolve_cluster(config, name)
            policies |= {engine.policy for engine in (cluster.engine, *(state for _, state in cluster.changes))}
    return policies


def _estimation(config: Config, policy: str) -> dict[str, object]:
    """How far off estimates are, where a policy goes by them."""
    if not goes_by_estimates(config, policy):
        return {}
    table = config.estimation
    return {"estimation": {"error": table.error, "correction": config.estimation_alpha() if table.correction else None}}


def _targets(config: Config, policy: str) -> dict[str, object]:
    """TTFT targets, where a policy that can be in force makes deadlines of them."""
    if not _in_force(config, policy) & KNOW_DEADLINES and not needs_targets(config):
        return {}
    own = {name: tenant.slo_ttft_ms for name, tenant in sorted(config.tenants.items())} | {
        "": config.defaults.slo_ttft_ms
    }
    return {"targets": {name: None if slo is None else slo.model_dump(mode="json") for name, slo in own.items()}}


def _enforced_floors(config: Config) -> dict[str, object]:
    """Type floors, where they are in force."""
    if config.floor.enforce is None:
        return {}
    shares = {name: own.floor for name, own in sorted(config.types.items())}
    return {"floors": [config.floor.model_dump(mode="json"), shares, config.window.size]}


def run_shards(load: Load, planned: Sequence[Shard]) -> Replayed:
    """Simulate every replica and gather the rows in the trace's order."""
    outcomes, steps = Outcomes(load.frame["arrived_at"].to_physical().to_numpy(), planned), []
    for shard in planned:
        served = serve(shard, load.start_us, None)
        outcomes.put(shard, served)
        steps.append(step_rows(shard, load.start_us, served.sums))
    (requests,) = outcomes.frames([load.frame["request_id"]])
    return Replayed(requests, pl.concat(steps), outcomes.engine_s, tuple(outcomes.accounts))


def _meta(
    store: Store,
    config: Config,
    policy: Choice,
    since: datetime | None,
    until: datetime | None,
    load: Load,
    outcomes: Outcomes,
) -> dict[str, object]:
    """What ``replay.json`` holds: identity and totals. ``rank_digest`` for a user's policy alone, ``estimation`` where
    the policy goes by estimates that are off."""
    status = outcomes.of("status")
    name = policy_name(policy)
    digest = policy.digest if isinstance(policy, UserRank) else None
    return {
        "policy": name,
        "config_hash": config_hash(store, config, name, since, until, digest),
        **({} if digest is None else {"rank_digest": digest}),
        "is_baseline": name == baseline_policy(config),
        "store_digest": store.digest(),
        "since": _iso(since),
        "until": _iso(until),
        "requests": len(status),
        "left_out": load.left_out,
        "ok": int(np.count_nonzero(status == OK)),
        "rejected": int(np.count_nonzero(status == REFUSED)),
        "preemptions": int(outcomes.of("preemptions").sum(dtype=np.int64)),
        **_estimation(config, name),
        **_cluster(outcomes.accounts),
        **_controlled(outcomes.controls()),
    }


def _controlled(rows: pl.DataFrame | None) -> dict[str, object]:
    if rows is None:
        return {}
    from fairreplay.sandbox.controls.record import totals

    return {"controls": totals(rows)}


def _cluster(accounts: Sequence[Account]) -> dict[str, object]:
    if not accounts:
        return {}
    from fairreplay.sandbox.accounts import tables

    return {"cluster": tables(accounts)}


def _summary(meta: dict[str, Any], load: Load, outcomes: Outcomes, wall_s: float) -> ReplaySummary:
    ok = outcomes.of("status") == OK
    tokens = sum(_total(load.frame[name], ok) for name in ("prompt_tokens", "output_tokens"))
    end_us = outcomes.end_us()
    span_s = 0.0 if end_us is None else (end_us - load.start_us) / 1e6
    return ReplaySummary(
        name=f"{meta['policy']}-{meta['config_hash']}",
        policy=meta["policy"],
        config_hash=meta["config_hash"],
        requests=meta["requests"],
        left_out=meta["left_out"],
        ok=meta["ok"],
        rejected=meta["rejected"],
        preemptions=meta["preemptions"],
        ttft_ms=_nearest_ranks_ms(outcomes.waits_us()),
        tokens_per_s=tokens / span_s if span_s > 0 else 0.0,
        engine_s=outcomes.engine_s,
        wall_s=wall_s,
        controls=meta.get("controls"),
    )


def _total(tokens: pl.Series, wanted: NDArray[np.bool_]) -> int:
    return int(np.sum(tokens.fill_null(0).to_numpy(), dtype=np.int64, where=wanted))


def _nearest_ranks_ms(ttft_us: NDArray[Any]) -> dict[str, float | None]:
    count = len(ttft_us)
    places = {f"p{q}": (q * count + 99) // 100 - 1 for q in (50, 90, 99)}
    if count == 0:
        return dict.fromkeys(places)
    ttft_us.partition(sorted(set(places.values())))
    return {name: int(ttft_us[place]) / 1000 for name, place in places.items()}


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
