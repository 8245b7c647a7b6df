"""Replay a period of the store under one policy after another, and find what was replayed before.

A replay is a function of the load, the config and the policy. What it writes holds no wall clock; the seconds that
the engine took are for the terminal alone.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from fairreplay.config.model import ClusterTable, Config, Tenant, resolve_cluster
from fairreplay.errors import UsageError
from fairreplay.sandbox.compiled import KINDS, StepSums, run, run_with_sums
from fairreplay.sandbox.controls.configured import asked_for, needs_targets
from fairreplay.sandbox.engine import (
    NEVER,
    PS_PER_US,
    REASON_NAMES,
    STATUS_NAMES,
    EngineResult,
    Int64s,
    UserRank,
)
from fairreplay.sandbox.plan import (
    MAY_BE_ABSENT,
    Choice,
    Load,
    Shard,
    baseline_policy,
    choose,
    columns_needed,
    parts,
    policy_name,
    shards,
    take_load,
)
from fairreplay.sandbox.policies import KNOW_DEADLINES
from fairreplay.sandbox.policies.user import try_rank
from fairreplay.sandbox.pool import Progress, Watch, run_tasks
from fairreplay.store.replays import ATTEMPTS, REPLAY_SCHEMA, STEP_SCHEMA
from fairreplay.store.store import Store
from fairreplay.trace.schema import TIMESTAMP

if TYPE_CHECKING:
    from fairreplay.sandbox.accounts import Account

US_PER_SECOND: Final = 1_000_000
KEPT_COLUMNS: Final = ("request_id", "arrived_at", "prompt_tokens", "output_tokens")
"""What is still read of the load once its replicas are planned."""
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


@dataclass(frozen=True)
class Replayed:
    """One policy's outcome before it is written."""

    requests: pl.DataFrame
    steps: pl.DataFrame
    engine_s: float
    accounts: tuple[Account, ...] = ()
    """Of each replica, where pools, drafts, experts or precisions are in force."""
    controls: pl.DataFrame | None = None
    """What controls did, where there are any: ``CONTROL_SCHEMA``."""


def replay(
    store: Store,
    config: Config,
    policies: Sequence[str],
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[ReplaySummary]:
    """Run the load of the period under each policy and write the results into the store, in the order given.

    A policy is one of the sandbox's own by name, or the user's ``path/file.py:function``.

    ``jobs`` threads share the replicas of all policies; the results do not depend on their number. Each policy's
    result is written whole when it is there, so what an interrupt leaves is a store with fewer replays.

    Raises:
        UsageError: see ``plan.take_load`` and ``plan.shards``; nothing is written then.
        StoreBusyError: another run holds the store.
    """
    chosen = _distinct([choose(policy) for policy in policies])
    summaries = []
    with store.lock():
        started = time.perf_counter()
        load = read_load(store, config, since, until)
        replicas = parts(load, config)
        tasks: list[Shard] = []
        for policy in chosen:
            tasks += shards(load, config, policy, replicas)
            if isinstance(policy, UserRank):
                from fairreplay.sandbox.compiled.user_rank import compile_rank

                compile_rank(policy)
                try_rank(policy, tasks[-1].workload)
        count = len(replicas)
        del replicas  # what is done is let go
        load = replace(load, frame=load.frame.select(KEPT_COLUMNS))
        done = run_tasks(tasks, lambda shard, watch: _run_shard(load, shard, watch), _size, jobs, progress)
        with closing(done):
            for policy in chosen:
                replayed = _gathered([next(done) for _ in range(count)])
                meta = _meta(store, config, policy, since, until, load, replayed)
                store.write_replay(meta, replayed.requests, replayed.steps, replayed.controls)
                if isinstance(policy, UserRank):
                    _remove_older(store, policy)
                wall_s, started = time.perf_counter() - started, time.perf_counter()
                summaries.append(_summary(meta, load, replayed, wall_s))
    return summaries


def read_load(store: Store, config: Config, since: datetime | None = None, until: datetime | None = None) -> Load:
    """The load of a period as the store holds it: only the columns that a replay reads, names as categories.

    Raises:
        UsageError: see ``plan.take_load``.
    """
    stored = store.manifest.segments
    columns = [
        name
        for name in columns_needed(config)
        if name not in MAY_BE_ABSENT or not all(name in segment.empty_columns for segment in stored)
    ]
    frame = store.requests(since, until, columns)
    load = take_load(frame.with_columns(pl.col("tenant", "type", "status").cast(pl.Categorical)), ordered=True)
    return replace(load, frame=load.frame.drop("status"))


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
        "parameters": config.policy_table(policy).model_dump(mode="json"),
    }
    if rank_digest is not None:
        decides["rank"] = rank_digest
    text = json.dumps(decides, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _targets(config: Config, policy: str) -> dict[str, object]:
    """TTFT targets, where a policy that can be in force makes deadlines of them."""
    policies = {policy}
    if policy == baseline_policy(config):
        for name in (None, *config.models):
            cluster = resolve_cluster(config, name)
            policies |= {engine.policy for engine in (cluster.engine, *(state for _, state in cluster.changes))}
    if not policies & KNOW_DEADLINES and not needs_targets(config):
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
    return _gathered([_run_shard(load, shard, None) for shard in planned])


def _size(shard: Shard) -> int:
    return len(shard.rows)


def _run_shard(load: Load, shard: Shard, watch: Watch | None) -> Replayed:
    """One replica; the rows carry their number in the load."""
    started = time.perf_counter()
    offset_ps = load.start_us % US_PER_SECOND * PS_PER_US
    try:
        result, sums = run_with_sums(shard.workload, shard.plan, offset_ps, progress=watch)
        accounts = (_account(shard, result, watch),) if shard.plan.has_extras() else ()
    except OverflowError as error:
        raise UsageError(f"the sandbox cannot hold this replay: {error}; narrow the period") from None
    engine_s = time.perf_counter() - started
    return Replayed(
        _request_rows(load, shard, result),
        _step_rows(shard, load.start_us, sums),
        engine_s,
        accounts,
        _control_rows(load, shard, result),
    )


def _control_rows(load: Load, shard: Shard, result: EngineResult) -> pl.DataFrame | None:
    if shard.plan.controls is None:
        return None
    from fairreplay.sandbox.controls.record import control_rows

    return control_rows(shard.plan.controls, shard.workload, result, shard.model, shard.replica, load.start_us)


def _account(shard: Shard, result: EngineResult, watch: Watch | None) -> Account:
    """What the replay will say of pools, drafts, experts and precisions; simulates again where that is compared."""
    from fairreplay.sandbox.accounts import account

    return account(shard.model, shard.workload, shard.plan, result, lambda work, plan: run(work, plan, progress=watch))


def _gathered(replicas: Sequence[Replayed]) -> Replayed:
    rows = replicas[0].requests
    if len(replicas) > 1:
        rows = pl.concat((one.requests for one in replicas), how="diagonal").sort("row")
    return Replayed(
        requests=rows.select(
            *(pl.col(name).cast(dtype) for name, dtype in REPLAY_SCHEMA.items()),
            *(pl.col(name).fill_null(1) for name in rows.columns if name == ATTEMPTS),
        ),
        steps=pl.concat(one.steps for one in replicas),
        engine_s=sum(one.engine_s for one in replicas),
        accounts=tuple(account for one in replicas for account in one.accounts),
        controls=pl.concat(told) if (told := [one.controls for one in replicas if one.controls is not None]) else None,
    )


def _request_rows(load: Load, shard: Shard, result: EngineResult) -> pl.DataFrame:
    """The replay's rows of one replica, with their row number in the load where there are others."""
    ids = load.frame["request_id"]
    is_all = len(shard.rows) == len(ids)
    columns = {
        **({} if is_all else {"row": pl.Series(shard.rows, dtype=pl.Int64)}),
        "request_id": ids if is_all else ids.gather(shard.rows),
        "replica": _named([shard.replica], np.zeros(len(shard.rows), np.int64)),
        "scheduled_at": _instants(result.scheduled_ps, load.start_us),
        "first_token_at": _instants(result.first_token_ps, load.start_us),
        "finished_at": _instants(result.finished_ps, load.start_us),
        "status": _named([STATUS_NAMES[code] for code in range(len(STATUS_NAMES))], result.status),
        "reason": _named([REASON_NAMES[code] for code in range(len(REASON_NAMES))], result.reason),
        "preemptions": _counts(result.preemptions, pl.UInt16),
        "recomputed_tokens": _counts(result.recomputed_tokens, pl.UInt32),
        "cached_tokens": _counts(result.cached_tokens, pl.UInt32),
        "computed_tokens": _counts(result.computed_tokens, pl.UInt32),
        **({ATTEMPTS: _counts(result.attempts, pl.UInt16)} if shard.plan.controls else {}),
    }
    return pl.DataFrame(columns)


def _named(names: Sequence[str], codes: Int64s) -> pl.Series:
    """Names by their codes, as categories: a quarter of the memory of text."""
    return pl.Series(names, dtype=pl.Categorical).gather(codes)


def _counts(values: Int64s, dtype: type[pl.UInt16] | type[pl.UInt32]) -> pl.Series:
    """Counts as the column holds them; what is too large for it stands at its limit."""
    limit = 2**16 - 1 if dtype is pl.UInt16 else 2**32 - 1
    return pl.Series(np.minimum(values, limit)).cast(dtype)


def _instants(instant_ps: Int64s, start_us: int) -> pl.Series:
    """Picoseconds of the sandbox's clock as canonical instants: whole microseconds, rounded down.

    Down, because arrivals are whole microseconds: no latency can come out negative, and order is kept.
    """
    instants = pl.Series(instant_ps // PS_PER_US + start_us).cast(TIMESTAMP)
    known = instant_ps != NEVER
    return instants if known.all() else pl.select(pl.when(pl.Series(known)).then(instants)).to_series()


def _step_rows(shard: Shard, start_us: int, sums: StepSums) -> pl.DataFrame:
    """Steps of one replica by (second of their start, class); means from integer sums."""
    count = len(sums.kind)
    columns = {
        "model": pl.Series([shard.model], dtype=pl.String).new_from_index(0, count),
        "replica": pl.Series([shard.replica], dtype=pl.String).new_from_index(0, count),
        "second": sums.second + start_us // US_PER_SECOND,
        "class": pl.Series(KINDS, dtype=pl.String).gather(sums.kind),
        "steps": sums.steps,
        "batch_tokens": sums.tokens,
        "running": sums.running / sums.steps,
        "waiting": sums.waiting / sums.steps,
        "kv_used_blocks": sums.used / sums.steps,
        "preemptions": sums.preempted,
    }
    return pl.DataFrame(columns).cast(dict(STEP_SCHEMA))  # type: ignore[arg-type]


def _meta(
    store: Store,
    config: Config,
    policy: Choice,
    since: datetime | None,
    until: datetime | None,
    load: Load,
    replayed: Replayed,
) -> dict[str, object]:
    """What ``replay.json`` holds: identity and totals. ``rank_digest`` for a user's policy alone."""
    status = replayed.requests["status"]
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
        "requests": len(replayed.requests),
        "left_out": load.left_out,
        "ok": int((status == "ok").sum()),
        "rejected": int((status == "rejected").sum()),
        "preemptions": int(replayed.requests["preemptions"].cast(pl.Int64).sum()),
        **_cluster(replayed.accounts),
        **_controlled(replayed.controls),
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


def _summary(meta: dict[str, Any], load: Load, replayed: Replayed, wall_s: float) -> ReplaySummary:
    rows = replayed.requests
    ttft_us = (rows["first_token_at"] - load.frame["arrived_at"]).drop_nulls().to_physical().sort().to_numpy()
    served = load.frame.filter(rows["status"] == "ok").select("prompt_tokens", "output_tokens").cast(pl.Int64)
    tokens = sum(int(served[column].sum()) for column in served.columns)
    finished = rows["finished_at"].to_physical().max()
    span_s = 0.0 if finished is None else (int(finished) - load.start_us) / 1e6  # type: ignore[arg-type]
    return ReplaySummary(
        name=f"{meta['policy']}-{meta['config_hash']}",
        policy=meta["policy"],
        config_hash=meta["config_hash"],
        requests=meta["requests"],
        left_out=meta["left_out"],
        ok=meta["ok"],
        rejected=meta["rejected"],
        preemptions=meta["preemptions"],
        ttft_ms={f"p{q}": _nearest_rank_ms(ttft_us, q) for q in (50, 90, 99)},
        tokens_per_s=tokens / span_s if span_s > 0 else 0.0,
        engine_s=replayed.engine_s,
        wall_s=wall_s,
        controls=meta.get("controls"),
    )


def _nearest_rank_ms(sorted_us: np.ndarray[Any, np.dtype[np.int64]], q: int) -> float | None:
    return None if len(sorted_us) == 0 else int(sorted_us[(q * len(sorted_us) + 99) // 100 - 1]) / 1000


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
