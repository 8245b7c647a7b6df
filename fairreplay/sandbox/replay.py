"""Replay a period of the store under one policy after another, and find what was replayed before.

A replay is a function of the load, the config and the policy. What it writes holds no wall clock; the seconds that
the engine took are for the terminal alone.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import polars as pl

from fairreplay.config.model import Config, resolve_cluster
from fairreplay.errors import UsageError
from fairreplay.sandbox.compiled import KINDS, StepSums, run_with_sums
from fairreplay.sandbox.engine import (
    NEVER,
    PS_PER_US,
    REASON_NAMES,
    STATUS_NAMES,
    EngineResult,
    Int64s,
)
from fairreplay.sandbox.plan import Load, Shard, baseline_policy, check_policy, shards, take_load
from fairreplay.store.replays import REPLAY_SCHEMA, STEP_SCHEMA
from fairreplay.store.store import Store
from fairreplay.trace.schema import TIMESTAMP

US_PER_SECOND: Final = 1_000_000
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


@dataclass(frozen=True)
class Replayed:
    """One policy's outcome before it is written."""

    requests: pl.DataFrame
    steps: pl.DataFrame
    engine_s: float


def replay(
    store: Store, config: Config, policies: Sequence[str], since: datetime | None = None, until: datetime | None = None
) -> list[ReplaySummary]:
    """Run the load of the period under each policy and write the results into the store, in the order given.

    Raises:
        UsageError: see ``plan.take_load`` and ``plan.shards``; nothing is written then.
        StoreBusyError: another run holds the store.
    """
    policies = [check_policy(policy) for policy in dict.fromkeys(policies)]
    summaries = []
    with store.lock():
        started = time.perf_counter()
        load = take_load(store.requests(since, until))
        planned = {policy: shards(load, config, policy) for policy in policies}
        read_s = time.perf_counter() - started
        for policy in policies:
            started = time.perf_counter()
            replayed = run_shards(load, planned[policy])
            meta = _meta(store, config, policy, since, until, load, replayed)
            store.write_replay(meta, replayed.requests, replayed.steps)
            wall_s = read_s + time.perf_counter() - started
            summaries.append(_summary(meta, load, replayed, wall_s))
    return summaries


def find_replays(
    store: Store, config: Config, since: datetime | None = None, until: datetime | None = None
) -> dict[str, str]:
    """Policy -> name of its replay, for each that belongs to exactly this config, store content and period.

    The baseline comes first, then by name. Other replays in the store are stale and are not named.
    """
    found = {}
    for name in store.replay_names():
        policy, _, hash_ = name.rpartition("-")
        if hash_ == config_hash(store, config, policy, since, until):
            found[policy] = name
    baseline = baseline_policy(config)
    return {policy: found[policy] for policy in sorted(found, key=lambda policy: (policy != baseline, policy))}


def config_hash(
    store: Store, config: Config, policy: str, since: datetime | None = None, until: datetime | None = None
) -> str:
    """12 hex digits over everything that decides a replay: settings, weights, priorities, policy, period, content."""
    decides = {
        "semantics": SEMANTICS,
        "store": store.digest(),
        "since": _iso(since),
        "until": _iso(until),
        "policy": policy,
        "is_baseline": policy == baseline_policy(config),
        "clusters": {
            name: resolve_cluster(config, name or None).model_dump(mode="json") for name in ["", *sorted(config.models)]
        },
        "tenants": {
            name: tenant.model_dump(mode="json", exclude={"slo_ttft_ms"})
            for name, tenant in sorted(config.tenants.items())
        },
        "weights": config.weights.model_dump(mode="json"),
        "parameters": config.policy_table(policy).model_dump(mode="json"),
    }
    text = json.dumps(decides, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def run_shards(load: Load, planned: Sequence[Shard]) -> Replayed:
    """Simulate every replica and gather the rows in the trace's order."""
    frames, steps = [], []
    engine_s = 0.0
    for shard in planned:
        started = time.perf_counter()
        offset_ps = load.start_us % US_PER_SECOND * PS_PER_US
        try:
            result, sums = run_with_sums(shard.workload, shard.plan, offset_ps)
        except OverflowError as error:
            raise UsageError(f"the sandbox cannot hold this replay: {error}; narrow the period") from None
        engine_s += time.perf_counter() - started
        frames.append(_request_rows(load, shard, result))
        steps.append(_step_rows(shard, load.start_us, sums))
    requests = pl.concat(frames).sort("row").select(list(REPLAY_SCHEMA))
    return Replayed(requests=requests, steps=pl.concat(steps), engine_s=engine_s)


def _request_rows(load: Load, shard: Shard, result: EngineResult) -> pl.DataFrame:
    """The replay's rows of one replica, with their row number in the load."""
    columns = {
        "row": pl.Series(shard.rows, dtype=pl.Int64),
        "request_id": load.frame["request_id"].gather(shard.rows),
        "replica": pl.Series([shard.replica], dtype=pl.String).new_from_index(0, len(shard.rows)),
        "scheduled_at": _instants(result.scheduled_ps, load.start_us),
        "first_token_at": _instants(result.first_token_ps, load.start_us),
        "finished_at": _instants(result.finished_ps, load.start_us),
        "status": pl.Series([STATUS_NAMES[code] for code in result.status.tolist()], dtype=pl.String),
        "reason": pl.Series([REASON_NAMES[code] for code in result.reason.tolist()], dtype=pl.String),
        "preemptions": pl.Series(result.preemptions).clip(0, 2**16 - 1),
        "recomputed_tokens": pl.Series(result.recomputed_tokens).clip(0, 2**32 - 1),
        "cached_tokens": pl.Series(result.cached_tokens),
        "computed_tokens": pl.Series(result.computed_tokens).clip(0, 2**32 - 1),
    }
    return pl.DataFrame(columns).cast(dict(REPLAY_SCHEMA))  # type: ignore[arg-type]


def _instants(instant_ps: Int64s, start_us: int) -> pl.Series:
    """Picoseconds of the sandbox's clock as canonical instants: whole microseconds, rounded down.

    Down, because arrivals are whole microseconds: no latency can come out negative, and order is kept.
    """
    instant_us = pl.Series(instant_ps // PS_PER_US + start_us, dtype=pl.Int64)
    known = pl.Series(instant_ps != NEVER)
    return pl.select(pl.when(known).then(instant_us.cast(TIMESTAMP))).to_series()


def _step_rows(shard: Shard, start_us: int, sums: StepSums) -> pl.DataFrame:
    """Steps of one replica by (second of their start, class); means from integer sums."""
    kinds = [KINDS[kind] for kind in sums.kind.tolist()]
    columns = {
        "model": pl.Series([shard.model] * len(kinds), dtype=pl.String),
        "replica": pl.Series([shard.replica] * len(kinds), dtype=pl.String),
        "second": sums.second + start_us // US_PER_SECOND,
        "class": pl.Series(kinds, dtype=pl.String),
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
    policy: str,
    since: datetime | None,
    until: datetime | None,
    load: Load,
    replayed: Replayed,
) -> dict[str, object]:
    """What ``replay.json`` holds: identity and totals."""
    status = replayed.requests["status"]
    return {
        "policy": policy,
        "config_hash": config_hash(store, config, policy, since, until),
        "is_baseline": policy == baseline_policy(config),
        "store_digest": store.digest(),
        "since": _iso(since),
        "until": _iso(until),
        "requests": len(replayed.requests),
        "left_out": load.left_out,
        "ok": int((status == "ok").sum()),
        "rejected": int((status == "rejected").sum()),
        "preemptions": int(replayed.requests["preemptions"].cast(pl.Int64).sum()),
    }


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
    )


def _nearest_rank_ms(sorted_us: np.ndarray[Any, np.dtype[np.int64]], q: int) -> float | None:
    return None if len(sorted_us) == 0 else int(sorted_us[(q * len(sorted_us) + 99) // 100 - 1]) / 1000


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
