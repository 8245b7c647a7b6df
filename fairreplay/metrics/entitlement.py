"""What each tenant is entitled to: the weighted max-min (water-filling) share of what was delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from fairreplay.config.model import BEFORE_ALL, Config
from fairreplay.trace.values import epoch_us

Floats = NDArray[np.float64]


def entitlements(capacity: Floats, weights: Floats, demand: Floats) -> Floats:
    """Weighted max-min shares of ``capacity``, capped by demand.

    Args:
        capacity: shape (W,): tokens delivered in each window.
        weights: shape (T,) or (W, T): positive.
        demand: shape (W, T).

    Returns:
        shape (W, T): row sums are min(capacity, total demand). Where capacity covers all demand, exactly the demand.
    """
    if demand.shape[1] == 0:
        return demand.copy()
    ratio = demand / weights
    order = np.argsort(ratio, axis=1, kind="stable")
    sorted_demand = np.take_along_axis(demand, order, axis=1)
    sorted_weights = weights[order] if weights.ndim == 1 else np.take_along_axis(weights, order, axis=1)
    below_demand = np.cumsum(sorted_demand, axis=1) - sorted_demand
    from_here = np.cumsum(sorted_weights[:, ::-1], axis=1)[:, ::-1]
    level = (capacity[:, None] - below_demand) / from_here
    # The water stops at the first tenant whose demand a fair share of the rest does not cover.
    stops: NDArray[np.bool_] = np.less(level, np.take_along_axis(ratio, order, axis=1))
    runs_out: NDArray[np.bool_] = np.any(stops, axis=1, keepdims=True)
    first = np.where(runs_out[:, 0], stops.argmax(axis=1), demand.shape[1] - 1)
    water = np.maximum(0.0, np.take_along_axis(level, first[:, None], axis=1))
    return np.where(runs_out, np.minimum(demand, water * weights), demand)


def fair_weights(config: Config, tenants: Sequence[str], at: datetime | None = None) -> Floats:
    """Weights that entitlements follow, by tenant: what was promised, not what happens to be in force.

    A commitment weighs ``committed / mean commitment``; a tenant without one has its configured weight, else 1. ``at``
    is the instant whose commitments count; null: the latest ones.
    """
    committed = config.commitments(at)
    mean = sum(committed.values()) / len(committed) if committed else 1.0

    def weight(name: str) -> float:
        if name in committed:
            return committed[name] / mean
        tenant = config.tenants.get(name)
        return (tenant.weight if tenant else None) or 1.0

    return np.array([weight(name) for name in tenants], np.float64)


def over_time(config: Config, starts_us: NDArray[np.int64], at: Callable[[datetime | None], Floats]) -> Floats:
    """What depends on commitments, at each of ``starts_us``: ``at(instant)`` once where no commitment has a date.

    Shape of ``at``'s arrays, or (len(starts_us), *that shape*) where commitments change.
    """
    instants = config.commitment_instants()
    if not instants:
        return at(None)
    states = np.searchsorted(np.array([epoch_us(one) for one in instants], np.int64), starts_us, side="right")
    known = {state: at(instants[state - 1] if state else BEFORE_ALL) for state in np.unique(states).tolist()}
    return np.stack([known[state] for state in states.tolist()])


def protected_weights(committed: Floats, used: Floats, passed: float, low: float = 0.5, alpha: float = 1.5) -> Floats:
    """The essay's protection: ``(C_j / sum C) * clip(C_j * tau / U_j, lo, alpha)``, renormalised; U = 0 gives alpha.

    ``passed`` is tau, the part of the billing period that has passed; all arrays have shape (T,).
    """
    with np.errstate(divide="ignore"):
        factor = np.where(used > 0, np.clip(committed * passed / np.where(used > 0, used, 1.0), low, alpha), alpha)
    weights = committed / committed.sum() * factor
    return np.asarray(weights / weights.sum(), np.float64)
