"""The second judge's tool: an episode replayed with something taken away, and what is left of its deficits.

An intervention is a JSON object, so that every number in a verdict can be recomputed from ``report.json``, the store
and the config alone (``recompute``). A scene is one episode, prepared once; replays of it share nothing that changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fairreplay.causes.episodes import deficits
from fairreplay.config.model import Config, MinSamples, SloTtft, resolve_cluster
from fairreplay.errors import UsageError
from fairreplay.metrics.measure import measure_windows
from fairreplay.metrics.options import WHOLE_PERIOD, MeasureOptions
from fairreplay.metrics.steady import steady_mean
from fairreplay.sandbox import hooks
from fairreplay.sandbox.compiled import run
from fairreplay.sandbox.engine import FLOOR_SCALE, NEVER, PS_PER_US, STATUS_NAMES, Int64s, Plan, TypeFloors
from fairreplay.sandbox.plan import (
    Load,
    Shard,
    baseline_policy,
    inverse_weight,
    settings_over_time,
    shards,
    stable_hash,
    take_load,
    with_known_policies,
)
from fairreplay.sandbox.replay import SEMANTICS
from fairreplay.store.outcome_rows import of_model
from fairreplay.store.store import Store
from fairreplay.trace.schema import SCHEMA, TIMESTAMP
from fairreplay.trace.values import epoch_us

LEAD_IN: Final = timedelta(minutes=5)
DRAIN: Final = timedelta(minutes=1)

Intervention = Mapping[str, Any]
UInt64s = NDArray[np.uint64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Scene:
    """An episode with its lead-in and drain, ready to be replayed."""

    load: Load
    shards: tuple[Shard, ...]
    """Under production's policy, settings and weights, with their changes."""
    config: Config
    model: str | None
    options: MeasureOptions
    """Of the log; ``since`` and ``until`` are not the scene's."""
    slo: tuple[Mapping[str, SloTtft], bool]
    start: datetime
    """Of the windows whose deficits count; ``end`` likewise."""
    end: datetime
    since: datetime | None
    """Of the arrivals that are replayed; null: all of them. ``until`` likewise."""
    until: datetime | None
    seed: int
    """Of the lot by which requests are thinned."""
    lots: UInt64s
    drawn: Bools
    """Where ``lots`` is known already."""


@dataclass(frozen=True)
class Simulated:
    """What happened to the rows of the load; instants in microseconds since the epoch, ``NEVER`` where it did not."""

    stays: Bools
    """Rows that the engine got; the others were thinned or refused."""
    refused: Bools
    """Rows that a gateway refused."""
    scheduled_us: Int64s
    first_token_us: Int64s
    finished_us: Int64s
    status: Int64s
    preemptions: Int64s
    recomputed_tokens: Int64s
    cached_tokens: Int64s


@dataclass(frozen=True)
class Judged:
    """The windows of a replay: their deficits, and means."""

    deficits: Mapping[str, float]
    metrics: Mapping[str, float | None]
    """Means of scr, jfi, tfr, and the least min_x."""
    preempted: int
    """Requests preempted at least once."""


def stage(
    rows: pl.DataFrame,
    config: Config,
    model: str | None,
    start: datetime,
    end: datetime,
    options: MeasureOptions,
    slo: tuple[Mapping[str, SloTtft], bool],
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    seed: int = 0,
) -> Scene:
    """The scene of the windows ``[start, end)``.

    Args:
        rows: canonical; what arrived, of any model.
        since: first arrival to replay; ``until`` the first no more. Default: 5 minutes before and 1 after.

    Raises:
        UsageError: nothing of these rows loads the cluster.
    """
    since, until = since or start - LEAD_IN, until or end + DRAIN
    inside = of_model(rows, model).filter(pl.col("arrived_at").is_between(since, until, closed="left"))
    load = take_load(inside)
    return Scene(
        load=load,
        shards=shards(load, config, baseline_policy(config)),
        config=config,
        model=model,
        options=options,
        slo=slo,
        start=start,
        end=end,
        since=since,
        until=until,
        seed=seed,
        lots=np.zeros(len(load.frame), np.uint64),
        drawn=np.zeros(len(load.frame), np.bool_),
    )


def inputs(scene: Scene, interventions: Sequence[Intervention]) -> dict[str, Any]:
    """What ``recompute`` needs beside store and config; JSON-able."""
    options = scene.options
    assumed = next((slo for name, slo in sorted(scene.slo[0].items()) if not scene.config.slo_ttft_ms(name)), None)
    return {
        "model": scene.model,
        "interval": [_iso(scene.since), _iso(scene.until)],
        "windows": [_iso(scene.start), _iso(scene.end)],
        "policy": baseline_policy(scene.config),
        "interventions": [dict(one) for one in interventions],
        "config_hash": config_hash(scene.config),
        "seed": scene.seed,
        "measure": {
            "window_us": options.window_us,
            "min_samples": options.min_samples.model_dump(),
            "refusals": options.refusals,
            "spread": options.spread,
            "assumed_slo_ttft_ms": assumed.model_dump() if assumed and scene.slo[1] else None,
        },
    }


def recompute(given: Mapping[str, Any], store: Store, config: Config) -> Judged:
    """Replay one counterfactual of a verdict from its ``inputs``, the store and the config.

    Raises:
        UsageError: the config is not the one of the verdict.
    """
    config, _ = with_known_policies(config)
    if config_hash(config) != given["config_hash"]:
        raise UsageError(
            f"the config has hash {config_hash(config)}, the counterfactual was made with {given['config_hash']}"
        )
    since, until = (datetime.fromisoformat(at) for at in given["interval"])
    start, end = (datetime.fromisoformat(at) for at in given["windows"])
    rows = store.requests(since, until)
    measured = given["measure"]
    options = MeasureOptions(
        window_us=measured["window_us"],
        min_samples=MinSamples(**measured["min_samples"]),
        refusals=measured["refusals"],
        spread=measured["spread"],
    )
    assumed = measured["assumed_slo_ttft_ms"]
    targets = {
        name: slo
        for name in sorted(rows["tenant"].unique().to_list())
        if (slo := config.slo_ttft_ms(name) or (SloTtft(**assumed) if assumed else None))
    }
    scene = stage(
        rows, config, given["model"], start, end, options, (targets, assumed is not None),
        since=since, until=until, seed=given["seed"],
    )  # fmt: skip
    return judge(scene, simulate(scene, given["interventions"]))


def config_hash(config: Config) -> str:
    """12 hex digits over the whole config and the sandbox's semantics."""
    text = json.dumps([SEMANTICS, config.model_dump(mode="json")], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# ---- replaying ----


def simulate(scene: Scene, interventions: Sequence[Intervention]) -> Simulated:
    """Replay the scene; interventions combine, in whatever order they stand.

    Raises:
        UsageError: the sandbox cannot hold the replay.
    """
    planned = _planned(scene, interventions)
    count = len(scene.load.frame)
    stays, refused = np.ones(count, np.bool_), np.zeros(count, np.bool_)
    for one in interventions:
        if one["kind"] == "thin":
            stays &= _lets_stay(scene, one)
        elif one["kind"] == "limit":
            refused |= ~_lets_through(scene, one)
    refused &= stays
    stays &= ~refused
    columns = {name: np.full(count, NEVER, np.int64) for name in ("scheduled", "first_token", "finished")}
    totals = {name: np.zeros(count, np.int64) for name in ("status", "preemptions", "recomputed", "cached")}
    for shard in planned:
        sent = stays[shard.rows]
        workload = shard.workload if sent.all() else hooks.select(shard.workload, sent)
        if any(one["kind"] == "weights" for one in interventions):
            workload = hooks.without_own_weights(workload)
        plan = _changed(shard.plan, shard, scene, interventions)
        try:
            result = run(workload, plan)
        except OverflowError as error:
            raise UsageError(f"the sandbox cannot hold this replay: {error}") from None
        rows = shard.rows[sent]
        for name, instants in (
            ("scheduled", result.scheduled_ps),
            ("first_token", result.first_token_ps),
            ("finished", result.finished_ps),
        ):
            columns[name][rows] = np.where(
                instants == NEVER, NEVER, instants // PS_PER_US + scene.load.start_us
            )  # rounded down, as in a stored replay
        totals["status"][rows] = result.status
        totals["preemptions"][rows] = result.preemptions
        totals["recomputed"][rows] = result.recomputed_tokens
        totals["cached"][rows] = result.cached_tokens
    return Simulated(
        stays=stays,
        refused=refused,
        scheduled_us=columns["scheduled"],
        first_token_us=columns["first_token"],
        finished_us=columns["finished"],
        status=totals["status"],
        preemptions=totals["preemptions"],
        recomputed_tokens=totals["recomputed"],
        cached_tokens=totals["cached"],
    )


def judge(scene: Scene, simulated: Simulated) -> Judged:
    """Measure a replay in the scene's windows, as the log was."""
    rows = outcome(scene, simulated)
    size = scene.options.window_us
    # floors follow the window before, so one more is measured than counts
    since = scene.start if size == WHOLE_PERIOD else scene.start - timedelta(microseconds=size)
    options = replace(scene.options, since=since, until=scene.end)
    windows = measure_windows(rows, scene.config, options, "counterfactual", scene.slo[0]).filter(
        pl.col("start") >= scene.start
    )
    means = windows.select(steady_mean(pl.col("scr", "jfi", "tfr")), pl.col("min_x").min()).row(0, named=True)
    return Judged(deficits=deficits(windows), metrics=means, preempted=int((simulated.preemptions > 0).sum()))


def outcome(scene: Scene, simulated: Simulated) -> pl.DataFrame:
    """The replay as canonical rows; thinned requests are gone, refused ones stand as such."""
    names = pl.Series([STATUS_NAMES[code] for code in sorted(STATUS_NAMES)])
    status = names.gather(np.asarray([sorted(STATUS_NAMES).index(code) for code in range(3)])[simulated.status])
    generated = pl.when(pl.col("status") == "rejected").then(0).otherwise("output_tokens")
    columns = {
        "scheduled_at": _instants(simulated.scheduled_us),
        "first_token_at": _instants(simulated.first_token_us),
        "finished_at": _instants(simulated.finished_us),
        "preemptions": pl.Series(simulated.preemptions).clip(0, 2**16 - 1).cast(SCHEMA["preemptions"]),
        "recomputed_tokens": pl.Series(simulated.recomputed_tokens)
        .clip(0, 2**32 - 1)
        .cast(SCHEMA["recomputed_tokens"]),
        "cached_tokens": pl.Series(simulated.cached_tokens).cast(SCHEMA["cached_tokens"]),
        "status": status,
    }
    rows = scene.load.frame.with_columns(**columns)
    if simulated.refused.any():
        at_gateway = pl.Series(simulated.refused)
        rows = rows.with_columns(
            pl.when(at_gateway).then(pl.lit("rejected")).otherwise("status").alias("status"),
            pl.when(at_gateway).then("arrived_at").otherwise("finished_at").alias("finished_at"),
        )
    rows = rows.with_columns(generated.cast(SCHEMA["output_tokens"]).alias("output_tokens"))
    there = simulated.stays | simulated.refused
    return rows if there.all() else rows.filter(pl.Series(there))


def _instants(at_us: Int64s) -> pl.Series:
    known = pl.Series(at_us != NEVER)
    return pl.select(pl.when(known).then(pl.Series(at_us).cast(TIMESTAMP))).to_series()


# ---- what an intervention changes ----


def _planned(scene: Scene, interventions: Sequence[Intervention]) -> tuple[Shard, ...]:
    """The replicas, under another config or policy if that is what changes."""
    config, policy = scene.config, baseline_policy(scene.config)
    for one in interventions:
        if one["kind"] in CONFIG_CHANGES:
            config = CONFIG_CHANGES[one["kind"]](config, one, scene)
        elif one["kind"] == "policy":
            policy = one["policy"]
    if config is scene.config and policy == baseline_policy(scene.config):
        return scene.shards
    if all(one["kind"] not in ("undo_weights", "engine", "policy") for one in interventions):
        # an undone change moves no request and no weight
        cluster = resolve_cluster(config, scene.model)
        return tuple(
            replace(
                shard,
                plan=replace(
                    shard.plan,
                    settings=settings_over_time(cluster, config, policy, shard.workload, scene.load.start_us),
                ),
            )
            for shard in scene.shards
        )
    return shards(scene.load, config, policy)


def _undo(config: Config, one: Intervention, _scene: Scene) -> Config:
    """Listed changes without some of their keys."""
    for entry in one["changes"]:
        table = config.cluster if entry["layer"] is None else config.models[entry["layer"]]
        changes = tuple(
            change.model_copy(update=dict.fromkeys(entry["keys"])) if index == entry["index"] else change
            for index, change in enumerate(table.changes)
        )
        table = table.model_copy(update={"changes": changes})
        if entry["layer"] is None:
            config = config.model_copy(update={"cluster": table})
        else:
            config = config.model_copy(update={"models": config.models | {entry["layer"]: table}})
    return config


def _undo_weights(config: Config, one: Intervention, _scene: Scene) -> Config:
    """``[[tenants.NAME.changes]]`` of one instant never came."""
    at = datetime.fromisoformat(one["at"])
    tenants = {
        name: tenant.model_copy(update={"changes": tuple(change for change in tenant.changes if change.at != at)})
        for name, tenant in config.tenants.items()
    }
    return config.model_copy(update={"tenants": tenants})


def _engine(config: Config, one: Intervention, scene: Scene) -> Config:
    """Engine keys as given at every instant, whatever changes said of them."""
    keys = dict(one["keys"])
    gone = dict.fromkeys(key for key in keys if key != "replicas")

    def with_keys(table: Any) -> Any:
        changes = tuple(change.model_copy(update=gone) for change in table.changes)
        return table.model_copy(update={**keys, "changes": changes})

    if scene.model is not None and scene.model in config.models:
        models = config.models | {scene.model: with_keys(config.models[scene.model])}
        cluster = config.cluster.model_copy(
            update={"changes": tuple(change.model_copy(update=gone) for change in config.cluster.changes)}
        )
        return config.model_copy(update={"models": models, "cluster": cluster})
    return config.model_copy(update={"cluster": with_keys(config.cluster)})


CONFIG_CHANGES: Final = {"undo": _undo, "undo_weights": _undo_weights, "engine": _engine}


def _changed(plan: Plan, shard: Shard, scene: Scene, interventions: Sequence[Intervention]) -> Plan:
    for one in interventions:
        if one["kind"] in PLAN_CHANGES:
            plan = PLAN_CHANGES[one["kind"]](plan, one, shard, scene)
    return plan


def _weights(plan: Plan, one: Intervention, shard: Shard, _scene: Scene) -> Plan:
    inverse = [
        inverse_weight(Fraction(repr(one["weights"][name])), f"tenant {name!r}") for name in shard.workload.tenants
    ]
    return hooks.with_weights(plan, np.array(inverse, np.int64))


def _reserve(plan: Plan, _one: Intervention, _shard: Shard, _scene: Scene) -> Plan:
    return hooks.with_reserve(plan)


def _floors(plan: Plan, one: Intervention, shard: Shard, _scene: Scene) -> Plan:
    shares = tuple(int(one["shares"].get(name, 0.0) * FLOOR_SCALE) for name in shard.workload.types)
    return hooks.with_floors(plan, TypeFloors(shares))


def _scale(plan: Plan, one: Intervention, _shard: Shard, scene: Scene) -> Plan:
    speed, kv = Fraction(*one["speed"]), Fraction(*one["kv"])
    since, until = (
        None if at is None else _ps(scene, datetime.fromisoformat(at)) for at in (one["since"], one["until"])
    )
    return hooks.scaled(plan, speed, kv, since, until)


PLAN_CHANGES: Final = {"weights": _weights, "reserve": _reserve, "floors": _floors, "scale": _scale}


def _ps(scene: Scene, at: datetime) -> int:
    return max(0, (epoch_us(at) - scene.load.start_us) * PS_PER_US)


def _lets_stay(scene: Scene, one: Intervention) -> Bools:
    """Which rows a thinning keeps: by a lot that hangs on the request's id alone."""
    frame = scene.load.frame
    concerned = pl.lit(True)
    for key, column in (("tenants", "tenant"), ("types", "type")):
        if one[key] is not None:
            concerned = concerned & pl.col(column).is_in(one[key])
    if one["except"]:
        concerned = concerned & ~pl.col("tenant").is_in(one["except"])
    spans = sorted(
        (
            epoch_us(datetime.fromisoformat(span["since"])),
            epoch_us(datetime.fromisoformat(span["until"])),
            Fraction(*span["keep"]),
        )
        for span in one["windows"]
    )
    at_us = frame["arrived_at"].to_physical().to_numpy()
    begins = np.array([since for since, _, _ in spans], np.int64)
    ends = np.array([until for _, until, _ in spans], np.int64)
    limits = np.array([min(int(keep * 2**64), 2**64 - 1) for _, _, keep in spans], np.uint64)
    span = np.searchsorted(begins, at_us, side="right") - 1
    if not spans:
        return np.ones(len(frame), np.bool_)
    rows = frame.select(concerned).to_series().to_numpy() if frame.height else np.zeros(0, np.bool_)
    rows = np.broadcast_to(rows, (len(frame),)) & (span >= 0) & (at_us < ends[np.maximum(span, 0)])
    stays = np.ones(len(frame), np.bool_)
    stays[rows] = _lots(scene, rows) < limits[span[rows]]
    return stays


def _lets_through(scene: Scene, one: Intervention) -> Bools:
    """Which rows a gateway lets through that takes so many requests a minute of a tenant, the first that come."""
    limits = one["per_minute"]
    number = pl.int_range(pl.len()).over("tenant", pl.col("arrived_at").dt.truncate("1m"))
    limit = pl.col("tenant").replace_strict(limits, default=None, return_dtype=pl.Int64)
    through = scene.load.frame.select((number < limit).fill_null(True)).to_series()
    return through.to_numpy()


def _lots(scene: Scene, rows: Bools) -> UInt64s:
    """64 bits of each request's id, drawn when they are first needed."""
    missing = np.flatnonzero(rows & ~scene.drawn)
    salt = f"{scene.seed}\0" if scene.seed else ""
    ids = scene.load.frame["request_id"].gather(missing).to_list()
    scene.lots[missing] = np.array([stable_hash(salt + name) for name in ids], np.uint64)
    scene.drawn[missing] = True
    return scene.lots[rows]


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
