"""The first judge: what the log alone says about each cause, with number, threshold and baseline.

Nothing here simulates. What a log does not hold (preemption counts, a healthy hour before, commitments) is not judged,
and the signature says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import polars as pl

from fairreplay.causes.demand import Burst, Growth, find_bursts, find_growth, highest_ratio
from fairreplay.causes.in_force import ORDERS_REQUESTS, USES_WEIGHTS, Listed, less_kv, less_speed
from fairreplay.causes.levels import Levels
from fairreplay.causes.verdict import Signature
from fairreplay.config.model import Config, resolve_cluster
from fairreplay.metrics.entitlement import fair_weights
from fairreplay.metrics.measure import TFR_DEGRADED
from fairreplay.metrics.preemption import recompute_tax
from fairreplay.metrics.steady import mean_of, steady_mean, steady_sum, total_of
from fairreplay.sandbox.plan import weight_in_force
from fairreplay.store.outcome_rows import arrived_between
from fairreplay.trace.schema import TIMESTAMP

THRASH_PREEMPTIONS: Final = 2
THRASH_SHARE: Final = 0.02
"""Part of the requests preempted twice or more; .4 % in the healthy reference of ``metrics.md``."""
THRASH_TAX: Final = 0.05
STALL_RATIO: Final = 1.5
"""Median time per output token over the usual one, from which a full cache is suspected of thrashing."""
KV_FULL: Final = 0.9
SKEW: Final = 1.5
OUT_OF_PROPORTION: Final = 0.1
QUIET_SHARE: Final = 0.03
QUIET_RATIO: Final = 0.25
QUIET_Z: Final = -2.5


@dataclass(frozen=True)
class Evidence:
    """An episode's log, cut out and tabulated."""

    rows: pl.DataFrame
    """Canonical, of the episode's model, from an hour before to its end."""
    levels: Levels
    bursts: tuple[Burst, ...]
    growth: Growth
    begins: datetime
    """Two windows before ``start``."""
    start: datetime
    end: datetime
    tenants: pl.DataFrame
    """``Measured.tenants`` of this model."""
    types: pl.DataFrame
    config: Config
    model: str | None
    changes: tuple[Listed, ...]
    """In force, recent."""
    policies: tuple[str, ...]
    """In force during the episode."""
    policy_changed: bool


def demand_of(levels: Levels) -> tuple[tuple[Burst, ...], Growth]:
    bursts = tuple(find_bursts(levels))
    return bursts, find_growth(levels, bursts)


def signatures(evidence: Evidence) -> dict[str, Signature]:
    """Every signature, by cause."""
    return {
        "burst": burst(evidence),
        "preemption_thrash": preemption_thrash(evidence),
        "type_starvation": type_starvation(evidence),
        "weight_skew": weight_skew(evidence),
        "capacity_shortfall": capacity_shortfall(evidence),
        "low_demand": low_demand(evidence),
    }


def burst(evidence: Evidence) -> Signature:
    """Tenants far above their own recent level."""
    levels, bursts = evidence.levels, evidence.bursts
    worst = max(bursts, key=lambda one: one.ratio, default=None)
    number = worst.ratio if worst else highest_ratio(levels)
    if not levels.has_baseline:
        says = "no healthy window in the hour before: bursts cannot be judged from this log"
    elif worst is None:
        most = "" if number is None else f"; the largest factor of any tenant is {number:.1f}"
        says = f"no tenant stands out from its own level of the hour before{most}"
    else:
        who = _count(len({one.tenant for one in bursts}), "tenant")
        says = f"{who} sent up to {worst.ratio:.1f} times the usual number of requests (z {worst.z:.0f})"
    return Signature(
        cause="burst",
        found=bool(bursts) if levels.has_baseline else None,
        suspected=False,
        measure="requests over usual requests, of the tenant that stands out most",
        number=number,
        threshold=worst.needed if worst else 2.0,
        baseline=1.0 if levels.has_baseline else None,
        says=says,
        tenants=tuple(dict.fromkeys(one.tenant for one in bursts)),
        types=tuple(dict.fromkeys(kind for one in bursts for kind in one.types or ())),
        details={
            "bursts": [
                {
                    "tenant": one.tenant,
                    "types": None if one.types is None else list(one.types),
                    "ratio": one.ratio,
                    "z": one.z,
                    "needed": one.needed,
                    "usual_requests_per_window": one.usual,
                    "start": levels.starts[one.windows[0]].isoformat(),
                    "end": levels.ends[one.windows[-1]].isoformat(),
                    "windows": len(one.windows),
                }
                for one in bursts
            ],
            "usual_windows": int(levels.usual.sum()),
        },
    )


def capacity_shortfall(evidence: Evidence) -> Signature:
    """Growth common to the tenants that do not burst, or a listed decrease of speed or limits."""
    growth = evidence.growth
    decreases = [change for change in evidence.changes if less_speed(change)]
    offered = evidence.levels.tokens[evidence.levels.judged].sum(axis=(1, 2))
    said = []
    if growth.found:
        said.append(f"the tenants that do not burst sent {growth.ratio:.2f} times their usual total (z {growth.z:.0f})")
    said += [f"a listed change at {change.at:%H:%M} lowered {', '.join(less_speed(change))}" for change in decreases]
    if not said and not evidence.levels.has_baseline:
        said.append("no healthy window in the hour before: growth cannot be judged, and no decrease is listed")
    elif not said:
        factor = "an unknown factor of" if growth.ratio is None else f"{growth.ratio:.2f} times"
        said.append(f"the tenants that do not burst sent {factor} their usual total, and no decrease is listed")
    return Signature(
        cause="capacity_shortfall",
        found=bool(growth.found or decreases) if evidence.levels.has_baseline or decreases else None,
        suspected=False,
        measure="requests of the tenants that do not burst over their usual total",
        number=growth.ratio,
        threshold=1.25,
        baseline=1.0 if evidence.levels.has_baseline else None,
        says="; ".join(said),
        details={
            "usual_requests_per_window": growth.usual,
            "z": growth.z,
            "windows": len(growth.windows),
            "offered_tokens_per_window": float(offered.mean()) if len(offered) else None,
            "served_over_offered": _served_over_offered(evidence),
            "batch_utilization": _mean(_arrived(evidence), "batch_utilization"),
            "decreases": [{"at": change.at.isoformat(), "keys": list(less_speed(change))} for change in decreases],
        },
    )


def preemption_thrash(evidence: Evidence) -> Signature:
    """Work evicted and redone faster than it advances."""
    now, usual = _arrived(evidence), _usual_rows(evidence)
    share, usual_share = _thrashing(now), _thrashing(usual)
    tax, usual_tax = _tax(now), _tax(usual)
    stalls = _ratio(_time_per_token(now), _time_per_token(usual))
    kv = _kv_use(evidence)
    decreases = [change for change in evidence.changes if less_kv(change)]
    details: dict[str, Any] = {
        "recompute_tax": tax,
        "usual_recompute_tax": usual_tax,
        "time_per_token_over_usual": stalls,
        "estimated_kv_use": kv,
        "decreases": [{"at": change.at.isoformat(), "keys": list(less_kv(change))} for change in decreases],
    }
    full_and_slow = stalls is not None and stalls >= STALL_RATIO and kv is not None and kv >= KV_FULL
    found: bool | None
    if share is None:
        found = None
        says = "the log has no preemption counts" + (
            f"; a full KV cache (about {kv:.0%}) and output tokens {stalls:.1f} times as slow as usual make it suspect"
            if full_and_slow
            else ""
        )
    else:
        found = share >= THRASH_SHARE or (tax is not None and tax >= THRASH_TAX)
        says = f"{share:.1%} of the requests were preempted twice or more" + (
            "" if tax is None else f", and {tax:.1%} of all computed tokens were computed again"
        )
    return Signature(
        cause="preemption_thrash",
        found=found,
        suspected=share is None and (full_and_slow or bool(decreases)),
        measure="part of the requests preempted at least twice",
        number=share,
        threshold=THRASH_SHARE,
        baseline=usual_share,
        says=says + "".join(f"; a listed change at {change.at:%H:%M} took KV blocks away" for change in decreases),
        details=details,
    )


def type_starvation(evidence: Evidence) -> Signature:
    """A type with waiting requests that got less than its floor, under a rule that can starve."""
    here = evidence.types.filter((pl.col("start") >= evidence.start) & (pl.col("start") < evidence.end))
    least = here.group_by("type").agg(
        pl.col("ratio").min(), steady_sum(pl.col("leak")), (pl.col("ratio") < TFR_DEGRADED).sum().alias("windows")
    )
    starved = least.filter(pl.col("windows") > 0).sort("ratio", "type")
    ratio = None if here["ratio"].null_count() == len(here) else float(here["ratio"].min())  # type: ignore[arg-type]
    starts = [at for at, usual in zip(evidence.levels.starts, evidence.levels.usual, strict=True) if usual]
    before = evidence.types.filter(pl.col("start").is_in(starts))["ratio"].drop_nulls()
    orders = [policy for policy in evidence.policies if policy in ORDERS_REQUESTS]
    may = bool(orders) or evidence.policy_changed
    if starved.is_empty():
        says = "no type with waiting requests got less than half of its floor"
    else:
        says = (
            f"{_count(len(starved), 'type')} got less than half of the floor, at worst {starved['ratio'][0]:.2f} of it"
        )
        says += "" if may else ", but the policy in force orders neither by type, size nor priority, and did not change"
    return Signature(
        cause="type_starvation",
        found=may and not starved.is_empty(),
        suspected=False,
        measure="least share of a type's floor that it got while it waited",
        number=ratio,
        threshold=TFR_DEGRADED,
        baseline=float(before.min()) if len(before) else None,  # type: ignore[arg-type]
        says=says,
        types=tuple(starved["type"].to_list()),
        details={
            "policies": list(evidence.policies),
            "policy_changed": evidence.policy_changed,
            "leak_tokens": {row["type"]: row["leak"] for row in starved.iter_rows(named=True)},
            "oldest_waiting_s": _oldest_waiting(evidence),
        },
    )


def weight_skew(evidence: Evidence) -> Signature:
    """Weights in force that are not those committed, and tenants served out of proportion with them."""
    skews = weight_skews(evidence)
    uses = [policy for policy in evidence.policies if policy in USES_WEIGHTS]
    here = evidence.tenants.filter(pl.col("start").is_in(_skewed_windows(evidence)))
    attained = {
        row["tenant"]: row["x"]
        for row in here.filter(pl.col("entitlement") > 0).group_by("tenant").agg(steady_mean(pl.col("x"))).to_dicts()
    }
    far = {name: skew for name, skew in skews.items() if is_skewed(skew)}
    served_so = {
        name: skew
        for name, skew in far.items()
        if (x := attained.get(name)) is not None
        and (x > 1 + OUT_OF_PROPORTION if skew > 1 else x < 1 - OUT_OF_PROPORTION)
    }
    worst = max(served_so or far or skews, key=lambda name: (_away(skews[name]), name), default=None)
    if not skews:
        says = "no commitments or weights are set: there is nothing that the weights in force could differ from"
    elif not uses:
        says = "the policy in force does not use weights"
    elif not far:
        says = f"every weight in force is within a factor {SKEW:g} of the commitment"
    else:
        says = f"the weights of {_count(len(far), 'tenant')} are {SKEW:g} times off their commitments or more" + (
            f", and {_count(len(served_so), 'of them')} served accordingly" if served_so else ", but are not served so"
        )
    return Signature(
        cause="weight_skew",
        found=bool(uses and served_so) if skews else (False if not uses else None),
        suspected=False,
        measure="share of the weights in force over the committed share, of the tenant furthest off",
        number=None if worst is None else skews[worst],
        threshold=SKEW,
        baseline=1.0 if skews else None,
        says=says,
        tenants=tuple(sorted(served_so)),
        details={
            "policies": list(evidence.policies),
            "skews": {name: {"skew": skew, "x": attained.get(name)} for name, skew in sorted(far.items())},
        },
    )


def low_demand(evidence: Evidence) -> Signature:
    """Tenants that hardly sent. It explains a low raw index, never a deficit of the demand-capped metrics."""
    levels = evidence.levels
    quiet = quiet_tenants(levels)
    least = min(quiet.values(), default=None)
    return Signature(
        cause="low_demand",
        found=False if levels.has_baseline else None,
        suspected=False,
        measure="requests over usual requests, of the tenant that fell most",
        number=least,
        threshold=QUIET_RATIO,
        baseline=1.0 if levels.has_baseline else None,
        says=(
            "no healthy window in the hour before: fallen demand cannot be judged"
            if not levels.has_baseline
            else "no larger tenant fell to a quarter of its usual requests"
            if least is None
            else f"{_count(len(quiet), 'tenant')} fell to a quarter of the usual requests or less; that hurts nobody"
        ),
        tenants=tuple(sorted(quiet)),
    )


# ---- parts ----


def weight_skews(evidence: Evidence) -> dict[str, float]:
    """Weight in force over committed weight, both as shares of the tenants present; empty where nothing is set.

    Over the episode's windows in which some tenant is skewed, if there are any: its tail would dilute the skew.
    """
    config = evidence.config
    if not config.says_weights():
        return {}
    return _skews_in(evidence, _skewed_windows(evidence))


def _skewed_windows(evidence: Evidence) -> list[datetime]:
    """Starts of the episode's windows in which the weights of what arrived are skewed; of all, if none are."""
    windows = [at for at in evidence.levels.starts if at >= evidence.start]
    skewed = [at for at in windows if any(map(is_skewed, _skews_in(evidence, [at]).values()))]
    return skewed or windows


def _skews_in(evidence: Evidence, windows: Sequence[datetime]) -> dict[str, float]:
    rows = _rows_in(evidence, windows)
    names = sorted(rows["tenant"].unique().to_list())
    logged = {
        row["tenant"]: row["weight"]
        for row in rows.group_by("tenant").agg(steady_mean(pl.col("weight").cast(pl.Float64))).to_dicts()
    }
    force = np.array(
        [
            logged[name] if logged[name] is not None else float(weight_in_force(evidence.config, name, windows[0]))
            for name in names
        ]
    )
    committed = fair_weights(evidence.config, names, windows[0])
    if not names or not force.sum():
        return {}
    ratios = force / force.sum() / (committed / committed.sum())
    return dict(zip(names, ratios.tolist(), strict=True))


def is_skewed(skew: float) -> bool:
    return _away(skew) >= SKEW


def quiet_tenants(levels: Levels) -> dict[str, float]:
    """Tenants with at least 3 % of the usual requests that fell to a quarter (z <= -2.5) over the judged windows."""
    if not levels.has_baseline or not levels.judged.any():
        return {}
    counts = levels.requests.sum(axis=2)
    usual, now = counts[levels.usual].mean(axis=0), counts[levels.judged].mean(axis=0)
    own = counts[levels.usual].var(axis=0, ddof=1) if levels.usual.sum() > 1 else np.zeros_like(usual)
    z = (now - usual) / np.sqrt(np.maximum(np.maximum(own, usual), 1.0))
    quiet = (usual >= QUIET_SHARE * usual.sum()) & (now <= QUIET_RATIO * usual) & (z <= QUIET_Z) & (usual > 0)
    return {levels.tenants[index]: float(now[index] / usual[index]) for index in np.flatnonzero(quiet)}


def _away(skew: float) -> float:
    return max(skew, 1 / skew) if skew > 0 else np.inf


def _arrived(evidence: Evidence) -> pl.DataFrame:
    return arrived_between(evidence.rows, evidence.start, evidence.end)


def _usual_rows(evidence: Evidence) -> pl.DataFrame:
    """What arrived in the windows of the baseline."""
    levels = evidence.levels
    return _rows_in(evidence, [at for at, usual in zip(levels.starts, levels.usual, strict=True) if usual])


def _rows_in(evidence: Evidence, windows: Sequence[datetime]) -> pl.DataFrame:
    """What arrived in the windows that start then."""
    if not windows:
        return evidence.rows.clear()
    levels = evidence.levels
    size = levels.ends[0] - levels.starts[0]
    origin = levels.starts[0]
    window = origin + (pl.col("arrived_at") - origin).dt.total_microseconds().floordiv(
        int(size.total_seconds() * 1_000_000)
    ) * pl.lit(size)
    return evidence.rows.filter(window.is_in(pl.Series(windows).implode()))


def _thrashing(rows: pl.DataFrame) -> float | None:
    known = rows["preemptions"].drop_nulls()
    return float((known >= THRASH_PREEMPTIONS).mean()) if len(known) else None  # type: ignore[arg-type]


def _tax(rows: pl.DataFrame) -> float | None:
    known = rows.filter(pl.col("recomputed_tokens").is_not_null() & pl.col("first_token_at").is_not_null())
    redone, prompt, cached, output = (
        int(known[name].cast(pl.Int64).fill_null(0).sum())
        for name in ("recomputed_tokens", "prompt_tokens", "cached_tokens", "output_tokens")
    )
    return recompute_tax(redone, prompt - cached + output + redone) if len(known) else None


def _time_per_token(rows: pl.DataFrame) -> float | None:
    """Median seconds per output token after the first."""
    value = rows.filter(pl.col("output_tokens") > 1).select(
        (
            (pl.col("finished_at") - pl.col("first_token_at")).dt.total_microseconds()
            / (pl.col("output_tokens").cast(pl.Int64) - 1)
        ).median()
    )
    return None if value.item() is None else float(value.item()) / 1e6


def _kv_use(evidence: Evidence) -> float | None:
    """About which part of the KV cache the running requests filled, on average over the episode."""
    cluster = resolve_cluster(evidence.config, evidence.model)
    engine = cluster.engine
    for at, state in cluster.changes:
        if at <= evidence.start:
            engine = state
    blocks = min([engine.num_gpu_blocks, *(change.after.num_gpu_blocks for change in evidence.changes)])
    replicas = evidence.rows["replica"].n_unique() if evidence.rows["replica"].null_count() == 0 else cluster.replicas
    start, end = (pl.lit(at).cast(TIMESTAMP) for at in (evidence.start, evidence.end))
    began = pl.coalesce("scheduled_at", "first_token_at")
    held = (
        (pl.min_horizontal(pl.col("finished_at"), end) - pl.max_horizontal(began, start))
        .dt.total_microseconds()
        .clip(0, None)
    )
    tokens = pl.col("prompt_tokens").cast(pl.Float64) + pl.col("output_tokens").cast(pl.Float64) / 2
    used = evidence.rows.select(steady_sum(held * tokens)).item()
    span_us = (evidence.end - evidence.start).total_seconds() * 1e6
    if not used:
        return None
    return float(used) / span_us / (blocks * engine.block_size * replicas)


def _oldest_waiting(evidence: Evidence) -> dict[str, float]:
    """By type: the longest that a request had waited by the time it was scheduled, or by the episode's end."""
    start, end = (pl.lit(at).cast(TIMESTAMP) for at in (evidence.start, evidence.end))
    gone = pl.when(pl.col("status") == "ok").then("arrived_at").otherwise("finished_at")
    until = pl.min_horizontal(pl.coalesce("scheduled_at", "first_token_at", gone).fill_null(end), end)
    age = (until - pl.col("arrived_at")).dt.total_microseconds().clip(0, None).max() / 1e6
    waiting = evidence.rows.filter((until > start) & (pl.col("arrived_at") < end))
    return {row["type"]: row["age"] for row in waiting.group_by("type").agg(age.alias("age")).sort("type").to_dicts()}


def _served_over_offered(evidence: Evidence) -> float | None:
    """Service delivered in the episode's windows over what was demanded there; 1 = nothing was left waiting."""
    here = evidence.tenants.filter((pl.col("start") >= evidence.start) & (pl.col("start") < evidence.end))
    demand = total_of(here["demand"])
    return total_of(here["served"]) / demand if demand else None


def _mean(rows: pl.DataFrame, column: str) -> float | None:
    return mean_of(rows[column].cast(pl.Float64))


def _ratio(now: float | None, usual: float | None) -> float | None:
    return None if now is None or not usual else now / usual


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 or noun == "of them" else f"{number} {noun}s"


def strongest(found: Mapping[str, Signature], causes: Sequence[str]) -> list[str]:
    """The causes among ``causes`` whose signature is found, furthest beyond the threshold first."""

    def margin(cause: str) -> float:
        one = found[cause]
        if one.number is None:
            return 1.0
        if cause == "type_starvation":
            return one.threshold / max(one.number, 1e-3)
        if cause == "preemption_thrash":
            return max(one.number / one.threshold, (one.details["recompute_tax"] or 0.0) / THRASH_TAX)
        if cause == "weight_skew":
            return _away(one.number) / one.threshold
        return one.number / one.threshold

    return sorted((cause for cause in causes if found[cause].found), key=lambda cause: (-margin(cause), cause))
