"""What to change, with what the sandbox measured of it: on the episode, and on the whole period.

A fix is measured like a counterfactual, but honestly: what a rate limit refuses counts as refused, and a larger
cluster is one of whole replicas. Listed changes are reverted one by one ("the deploy at 10:02 explains it").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil
from typing import Any, Final

import polars as pl

from fairreplay.causes.counterfactual import Intervention, Judged, Scene, inputs, judge, simulate
from fairreplay.causes.in_force import (
    USES_WEIGHTS,
    Listed,
    in_force,
    less_kv,
    less_speed,
    listed_changes,
    starving_policy_changes,
)
from fairreplay.causes.players import committed_weights
from fairreplay.causes.signatures import Evidence
from fairreplay.causes.verdict import Recommendation
from fairreplay.config.model import STEP_TIME_KEYS, Config, resolve_cluster
from fairreplay.errors import UsageError
from fairreplay.metrics.entitlement import fair_weights
from fairreplay.metrics.steady import steady_mean

LIMIT_RATIO: Final = 2.0
"""A gateway's limit over a tenant's usual rate: where a burst begins."""
MORE_REPLICAS: Final = 1.25
FAIR_POLICY: Final = "vtc"


@dataclass(frozen=True)
class Fix:
    """A change to try."""

    cause: str | None
    title: str
    snippet: str | None
    interventions: tuple[Intervention, ...]
    is_revert: bool = False


def recommendations(
    causes: Mapping[str, Sequence[str]],
    evidence: Evidence,
    scene: Scene,
    base: Sequence[Intervention],
    baseline: Judged,
    hit: Sequence[str],
    period: Callable[[Sequence[Intervention]], Judged | None],
    all_over_period: bool = False,
) -> tuple[Recommendation, ...]:
    """Fixes for ``causes``, the best of each cause first; then the other listed changes, reverted.

    A fix that does not help the metrics of its cause is left out; a reverted change never is.

    Args:
        causes: cause -> metrics of which it is the primary one (none: of the whole alone), the whole's first.
        base: what the baseline replay holds besides the config (a calibration, an inferred change).
        hit: metrics whose deficits count.
        period: replays the whole period with some interventions; () is its baseline. The best fix of each cause is
            tried on it.
        all_over_period: try every fix of a cause on it.
    """
    fixes = [fix for cause in causes if cause in FIXES for fix in FIXES[cause](evidence)]
    fixes += reverts(evidence, causes)
    measured: list[tuple[Recommendation, Fix]] = []
    for fix in fixes:
        try:
            own = tuple(causes.get(fix.cause or "", ())) or tuple(hit)
            made = _measured(fix, scene, base, baseline, own, hit)
        except UsageError:
            continue  # the sandbox cannot hold this fix
        if made.removed > 0 or fix.is_revert:
            measured.append((made, fix))
    order = {cause: number for number, cause in enumerate(causes)}
    measured.sort(key=lambda one: (order.get(one[0].cause or "", len(order)), -one[0].removed))
    tried: set[str] = set()
    found = []
    for made, fix in measured:
        if made.cause in order and made.removed > 0 and (all_over_period or made.cause not in tried):
            tried.add(made.cause or "")
            made = _over_period(made, fix, period)
        found.append(made)
    return tuple(found)


def _measured(
    fix: Fix,
    scene: Scene,
    base: Sequence[Intervention],
    baseline: Judged,
    own: tuple[str, ...],
    hit: Sequence[str],
) -> Recommendation:
    interventions = (*base, *fix.interventions)
    after = judge(scene, simulate(scene, interventions))

    def removed(metrics: Sequence[str]) -> float:
        whole = sum(baseline.deficits[metric] for metric in metrics)
        return 1 - sum(after.deficits[metric] for metric in metrics) / whole if whole > 0 else 0.0

    return Recommendation(
        cause=fix.cause,
        title=fix.title,
        snippet=fix.snippet,
        before=effect(baseline),
        after=effect(after),
        metrics=own,
        removed=removed(own),
        removed_all=removed(hit),
        inputs=inputs(scene, interventions),
    )


def _over_period(
    made: Recommendation, fix: Fix, period: Callable[[Sequence[Intervention]], Judged | None]
) -> Recommendation:
    before, after = period(()), period(fix.interventions)
    if before is None or after is None:
        return made
    return replace(
        made,
        period_before=effect(before),
        period_after=effect(after),
        hurts_period=made.removed > 0 and sum(after.deficits.values()) > sum(before.deficits.values()),
    )


def effect(judged: Judged) -> dict[str, float | None]:
    """Means over the windows, the least min_x, and the deficits."""
    return {**judged.metrics, **{f"deficit_{name}": value for name, value in judged.deficits.items()}}


# ---- the fixes of each cause ----


def burst(evidence: Evidence) -> list[Fix]:
    """A limit at the gateway for the tenants that burst, and a policy that shares among tenants."""
    if not evidence.bursts:
        return []
    levels = evidence.levels
    minutes = (levels.ends[0] - levels.starts[0]).total_seconds() / 60
    loud = sorted({one.tenant for one in evidence.bursts})
    usual = levels.requests[levels.usual].sum(axis=2).mean(axis=0)
    limits = {name: max(1, ceil(LIMIT_RATIO * float(usual[levels.tenants.index(name)]) / minutes)) for name in loud}
    lines = ["# at the gateway: requests a minute", *(f"{json.dumps(name)} = {limits[name]}" for name in loud)]
    fixes = [
        Fix(
            cause="burst",
            title=f"Limit the {len(loud)} bursting tenant{'s' if len(loud) > 1 else ''} at the gateway to "
            f"{LIMIT_RATIO:g} times the usual requests a minute",
            snippet="\n".join(lines),
            interventions=({"kind": "limit", "per_minute": limits},),
        )
    ]
    if not set(evidence.policies) & USES_WEIGHTS:
        fixes.append(
            Fix(
                cause="burst",
                title=f"Share the cluster among tenants ({FAIR_POLICY}) instead of serving by arrival",
                snippet=f'[cluster]\npolicy = "{FAIR_POLICY}"',
                interventions=({"kind": "policy", "policy": FAIR_POLICY},),
            )
        )
    return fixes


def capacity_shortfall(evidence: Evidence) -> list[Fix]:
    """More replicas, by a quarter and at least one; of two pools nobody can say which needs them."""
    if resolve_cluster(evidence.config, evidence.model).disaggregated:
        return []
    replicas = _replicas(evidence)
    more = max(replicas + 1, ceil(MORE_REPLICAS * replicas))
    return [
        Fix(
            cause="capacity_shortfall",
            title=f"Run {more} replicas instead of {replicas}",
            snippet=f"vLLM: --data-parallel-size {more}\nSGLang: --dp-size {more}",
            interventions=({"kind": "engine", "keys": {"replicas": more, "placement": "round-robin"}},),
        )
    ]


def preemption_thrash(evidence: Evidence) -> list[Fix]:
    """Fewer sequences at once, so that they fit; admission that reserves."""
    cluster = resolve_cluster(evidence.config, evidence.model)
    engines = [cluster.engine, *(engine for at, engine in cluster.changes if at < evidence.end)]
    engine = engines[-1]
    tokens = evidence.rows.select(
        steady_mean(pl.col("prompt_tokens").cast(pl.Float64) + pl.col("output_tokens").cast(pl.Float64))
    ).item()
    fixes = [
        Fix(
            cause="preemption_thrash",
            title="Admit a request only when its whole KV fits",
            snippet='[cluster]\nadmission = "reserve"',
            interventions=({"kind": "reserve"},),
        )
    ]
    blocks = min(
        engine.num_gpu_blocks, *(change.after.num_gpu_blocks for change in evidence.changes), engine.num_gpu_blocks
    )
    if tokens:
        fits = max(1, int((blocks - 1) / ceil(tokens / engine.block_size)))
        if fits < engine.max_num_seqs:
            fixes.append(
                Fix(
                    cause="preemption_thrash",
                    title=f"Run at most {fits} sequences at once instead of {engine.max_num_seqs}",
                    snippet=f"vLLM: --max-num-seqs {fits}\nSGLang: --max-running-requests {fits}",
                    interventions=({"kind": "engine", "keys": {"max_num_seqs": fits}},),
                )
            )
    return fixes


def type_starvation(evidence: Evidence) -> list[Fix]:
    """Serve by arrival; share among tenants."""
    return [
        Fix(
            cause="type_starvation",
            title=f"Serve by {words} ({policy})",
            snippet=snippet,
            interventions=({"kind": "policy", "policy": policy},),
        )
        for policy, words, snippet in (
            ("fcfs", "arrival", "vLLM: --scheduling-policy fcfs\nSGLang: --schedule-policy fcfs"),
            (FAIR_POLICY, "fair share among tenants", f'[cluster]\npolicy = "{FAIR_POLICY}"'),
        )
        if policy not in evidence.policies
    ]


def weight_skew(evidence: Evidence) -> list[Fix]:
    """The committed weights."""
    names = sorted(evidence.rows["tenant"].unique().to_list())
    weights = fair_weights(evidence.config, names, evidence.start).tolist()
    lines = [
        f"[tenants.{json.dumps(name)}]\nweight = {weight:.4g}" for name, weight in zip(names, weights, strict=True)
    ]
    return [
        Fix(
            cause="weight_skew",
            title="Put the committed weights in force",
            snippet="\n".join(lines),
            interventions=(committed_weights(evidence),),
        )
    ]


FIXES: Final[Mapping[str, Callable[[Evidence], list[Fix]]]] = {
    "burst": burst,
    "capacity_shortfall": capacity_shortfall,
    "preemption_thrash": preemption_thrash,
    "type_starvation": type_starvation,
    "weight_skew": weight_skew,
}


# ---- listed changes, reverted ----


def reverts(evidence: Evidence, causes: Collection[str]) -> list[Fix]:
    """Each ``changes`` entry in force, taken back on its own; an answer to a cause if it took away what that lacks."""
    fixes = []
    starving = starving_policy_changes(evidence.changes, evidence.begins)
    for change in in_force(listed_changes(evidence.config, evidence.model), evidence.begins, evidence.end):
        answers = [
            cause
            for cause, does in (
                ("preemption_thrash", less_kv(change)),
                ("capacity_shortfall", less_speed(change)),
                ("type_starvation", change in starving),
            )
            if does and cause in causes
        ]
        fixes.append(
            Fix(
                cause=answers[0] if answers else None,
                title=f"Take back the change of {change.at:%Y-%m-%d %H:%M} ({', '.join(change.keys)})",
                snippet=_engine_words(change),
                interventions=({"kind": "undo", "changes": [change.undo(change.keys)]},),
                is_revert=True,
            )
        )
    for at in _weight_changes(evidence.config, evidence.end):
        fixes.append(
            Fix(
                cause="weight_skew" if "weight_skew" in causes else None,
                title=f"Take back the tenants' weights of {at:%Y-%m-%d %H:%M}",
                snippet=None,
                interventions=({"kind": "undo_weights", "at": at.isoformat()},),
                is_revert=True,
            )
        )
    return fixes


def _weight_changes(config: Config, end: datetime) -> list[datetime]:
    """Instants at which weights changed that still held at ``end``."""
    latest = set()
    for tenant in config.tenants.values():
        before = [change.at for change in tenant.changes if change.at < end]
        if before:
            latest.add(max(before))
    return sorted(latest)


def _engine_words(change: Listed) -> str:
    """The values before the change, as an engine's flags where it has one."""
    lines = []
    for key in change.keys:
        value: Any = getattr(change.before, key)
        if key == "step_time":
            value = "{ " + ", ".join(f"{name} = {getattr(value, name)!r}" for name in STEP_TIME_KEYS) + " }"
        flag = VLLM_FLAGS.get(key)
        if flag is not None and (key != "policy" or value in VLLM_POLICIES):
            lines.append(f"vLLM: {flag} {value}")
        elif isinstance(value, bool):
            lines.append(f"{key} = {str(value).lower()}")
        else:
            lines.append(f"{key} = {json.dumps(value) if isinstance(value, str) and key != 'step_time' else value}")
    return "\n".join(lines)


VLLM_FLAGS: Final = {
    "num_gpu_blocks": "--num-gpu-blocks-override",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "max_model_len": "--max-model-len",
    "policy": "--scheduling-policy",
    "block_size": "--block-size",
    "long_prefill_token_threshold": "--long-prefill-token-threshold",
}


VLLM_POLICIES: Final = ("fcfs", "priority")


def _replicas(evidence: Evidence) -> int:
    cluster = resolve_cluster(evidence.config, evidence.model)
    if cluster.placement == "logged":
        return int(evidence.rows["replica"].n_unique())
    return cluster.replicas
