"""Which causes an episode may have, and the interventions that take each of them away.

First class: what changed or is wrong in the world; second: mechanisms; third: a larger cluster. Interventions are
substitutes (with skewed weights, full-KV admission alone removes most of a JFI deficit), so the classes stand in order
and credit goes first to what changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
import polars as pl

from fairreplay.causes.counterfactual import Intervention
from fairreplay.causes.demand import Burst
from fairreplay.causes.episodes import DEFICIT_MINOR
from fairreplay.causes.in_force import (
    ORDERS_REQUESTS,
    USES_WEIGHTS,
    less_kv,
    less_speed,
    starving_policy_changes,
)
from fairreplay.causes.levels import Floats, Levels
from fairreplay.causes.signatures import Evidence, is_skewed, weight_skews
from fairreplay.causes.verdict import Inferred
from fairreplay.metrics.entitlement import fair_weights
from fairreplay.metrics.steady import steady_mean

CLASSES: Final = 3
LARGER: Final = (5, 4)
"""Speed and KV of the larger cluster, as a fraction."""
LASTS_WINDOWS: Final = 2
"""A shortfall that nothing in the log explains lasts at least this long; one window is a chance jam."""


@dataclass(frozen=True)
class Player:
    """One cause, its class (0 to 2), and what takes it away."""

    cause: str
    rank: int
    interventions: tuple[Intervention, ...]
    undoes_inferred: bool = False
    """It also takes away the change that was inferred."""


def players(
    evidence: Evidence,
    logged: Mapping[str, float],
    baseline: Mapping[str, float],
    preempted: int,
    inferred: Inferred | None,
) -> list[Player]:
    """The players of an episode, by class; each cause once.

    Args:
        logged: the episode's deficits; ``baseline`` those of the baseline replay.
        preempted: requests that the baseline replay preempts: where there are none, nothing can thrash.
    """
    found = [
        burst(evidence),
        preemption_thrash(evidence, preempted, inferred),
        type_starvation(evidence, max(logged["tfr"], baseline["tfr"])),
        weight_skew(evidence),
        capacity_shortfall(evidence, inferred),
    ]
    return sorted((player for player in found if player is not None), key=lambda player: player.rank)


def burst(evidence: Evidence) -> Player | None:
    """Every bursting tenant is thinned to its baseline, window by window."""
    thinned = [one for tenant in _loud(evidence.bursts) for one in _thinned(tenant, evidence)]
    return Player("burst", 0, tuple(thinned)) if thinned else None


def capacity_shortfall(evidence: Evidence, inferred: Inferred | None) -> Player | None:
    """Listed decreases are undone and common growth is thinned; with neither, the cluster is a quarter larger.

    A larger cluster helps against any chance jam, so that alone is evidence of nothing: it stands only where the
    trouble outlasted a window, or where no healthy window says that the cluster is large enough.
    """
    done: list[Intervention] = []
    undone = [change.undo(less_speed(change)) for change in evidence.changes if less_speed(change)]
    if undone:
        done.append({"kind": "undo", "changes": undone})
    if evidence.growth.found:
        levels = evidence.levels
        calm = [levels.tenants.index(name) for name in evidence.growth.tenants]
        counts = levels.requests[:, calm].sum(axis=(1, 2))
        except_ = [name for name in levels.tenants if name not in evidence.growth.tenants]
        if windows := _keeps(counts, levels):
            done.append({"kind": "thin", "tenants": None, "except": except_, "types": None, "windows": windows})
        done += _rest_thinned(evidence)
    slower = inferred is not None and inferred.what == "speed"
    if done or slower:
        return Player("capacity_shortfall", 0, tuple(done), undoes_inferred=slower)
    lasted = sum(at >= evidence.start for at in evidence.levels.starts)
    if lasted < LASTS_WINDOWS and evidence.levels.has_baseline:
        return None
    larger = {"kind": "scale", "speed": list(LARGER), "kv": list(LARGER), "since": None, "until": None}
    return Player("capacity_shortfall", 2, (larger,))


def preemption_thrash(evidence: Evidence, preempted: int, inferred: Inferred | None) -> Player | None:
    """A listed decrease of KV is undone; without one, admission holds the whole KV of each request."""
    undone = [change.undo(less_kv(change)) for change in evidence.changes if less_kv(change)]
    fewer = inferred is not None and inferred.what == "kv"
    if undone or fewer:
        done: tuple[Intervention, ...] = ({"kind": "undo", "changes": undone},) if undone else ()
        return Player("preemption_thrash", 0, done, undoes_inferred=fewer)
    return Player("preemption_thrash", 1, ({"kind": "reserve"},)) if preempted else None


def type_starvation(evidence: Evidence, deficit: float) -> Player | None:
    """A listed policy change is undone and the floors go ahead of the policy."""
    shares = floor_shares(evidence)
    if len(shares) < 2:
        return None
    floors: Intervention = {"kind": "floors", "shares": shares}
    if changes := starving_policy_changes(evidence.changes, evidence.begins):
        undone = {"kind": "undo", "changes": [change.undo(["policy"]) for change in changes]}
        return Player("type_starvation", 0, (undone, floors))
    if deficit < DEFICIT_MINOR:
        return None
    orders = any(policy in ORDERS_REQUESTS for policy in evidence.policies)
    return Player("type_starvation", 0 if orders else 1, (floors,))


def weight_skew(evidence: Evidence) -> Player | None:
    """The weights in force are replaced by the committed ones."""
    if not any(policy in USES_WEIGHTS for policy in evidence.policies):
        return None
    if not any(map(is_skewed, weight_skews(evidence).values())):
        return None
    return Player("weight_skew", 0, (committed_weights(evidence),))


def committed_weights(evidence: Evidence) -> Intervention:
    names = sorted(evidence.rows["tenant"].unique().to_list())
    weights = fair_weights(evidence.config, names, evidence.start).tolist()
    return {
        "kind": "weights",
        "weights": {name: max(1e-6, round(x, 6)) for name, x in zip(names, weights, strict=True)},
    }


def floor_shares(evidence: Evidence) -> dict[str, float]:
    """The floors rho_k: of each type, its mean over the episode's windows in the log."""
    here = evidence.types.filter((pl.col("start") >= evidence.start) & (pl.col("start") < evidence.end))
    means = here.group_by("type").agg(steady_mean(pl.col("floor"))).drop_nulls().sort("type")
    return {row["type"]: round(row["floor"], 6) for row in means.to_dicts()}


# ---- thinning ----


def _loud(bursts: Sequence[Burst]) -> dict[str, list[Burst]]:
    found: dict[str, list[Burst]] = {}
    for burst in bursts:
        found.setdefault(burst.tenant, []).append(burst)
    return found


def _thinned(tenant: str, evidence: Evidence) -> list[Intervention]:
    """The types that burst, each to its own level; the rest of the tenant's, if it bursts as a whole, to theirs."""
    levels = evidence.levels
    bursts = [burst for burst in evidence.bursts if burst.tenant == tenant]
    kinds = sorted({kind for burst in bursts for kind in burst.types or ()})
    requests = levels.requests[:, levels.tenants.index(tenant)]
    parts = [([kind], requests[:, levels.types.index(kind)]) for kind in kinds]
    if any(burst.types is None for burst in bursts):
        rest = [index for index, kind in enumerate(levels.types) if kind not in kinds]
        parts.append(([levels.types[index] for index in rest], requests[:, rest].sum(axis=1)))
    found: list[Intervention] = []
    for types, counts in parts:
        if windows := _keeps(counts, levels):
            every = len(types) == len(levels.types)
            found.append(
                {
                    "kind": "thin",
                    "tenants": [tenant],
                    "except": [],
                    "types": None if every else types,
                    "windows": windows,
                }
            )
    return found


def _rest_thinned(evidence: Evidence) -> list[Intervention]:
    """Of tenants of which only some types burst, the other types: they grew with everybody."""
    levels = evidence.levels
    found: list[Intervention] = []
    for tenant, bursts in _loud(evidence.bursts).items():
        if any(burst.types is None for burst in bursts):
            continue
        loud = {kind for burst in bursts for kind in burst.types or ()}
        rest = [index for index, kind in enumerate(levels.types) if kind not in loud]
        counts = levels.requests[:, levels.tenants.index(tenant)][:, rest].sum(axis=1)
        if windows := _keeps(counts, levels):
            types = [levels.types[index] for index in rest]
            found.append({"kind": "thin", "tenants": [tenant], "except": [], "types": types, "windows": windows})
    return found


def _keeps(counts: Floats, levels: Levels) -> list[dict[str, Any]]:
    """Window by window the part to keep, as a fraction, so that the usual number is left; only where more came."""
    usual = Fraction(int(counts[levels.usual].sum()), int(levels.usual.sum()))
    kept = []
    for window in np.flatnonzero(levels.judged).tolist():
        came = int(counts[window])
        if came > usual:
            keep = usual / came
            kept.append(
                {
                    "since": levels.starts[window].isoformat(),
                    "until": levels.ends[window].isoformat(),
                    "keep": [keep.numerator, keep.denominator],
                }
            )
    return kept
