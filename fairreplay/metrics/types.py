"""Type fairness: the floor of each request type, and what it got of it."""

from __future__ import annotations

import numpy as np

from fairreplay.config.model import Floor
from fairreplay.metrics.entitlement import Floats

SMALL_FLOOR = 0.005
"""A type whose floor is smaller part of a window's tokens than this is never below it."""


def floors(share: Floats, cv: Floats, sigma: Floats, floor: Floor) -> Floats:
    """Minimum share ``rho_k`` of each type, by the configured rule; rows add up to ``floor.reserve``.

    Args:
        share: p_k, the type's share of arrivals, shape (W, K); ``cv``, ``sigma`` of its service cost likewise.

    ``cv``: ``g = (1 + cv) / (1 + eta p)``. ``eta``: the essay's first form, scaled. ``inverse-sigma``: its second,
    ``g = 1 / (sigma p)``; a type without arrivals or without spread gets the largest g of its row.
    """
    if floor.rule == "cv":
        g = (1 + cv) / (1 + floor.eta * share)
    elif floor.rule == "eta":
        g = eta_form(share, floor.eta)
    else:
        product = sigma * share
        g = np.where(product > 0, 1 / np.where(product > 0, product, 1.0), -np.inf)
        largest = g.max(axis=1, keepdims=True)
        g = np.where(np.isinf(g), np.where(np.isinf(largest), 1.0, largest), g)
    return np.asarray(floor.reserve * g / g.sum(axis=1, keepdims=True), np.float64)


def eta_form(share: Floats, eta: float) -> Floats:
    """The essay's first form as written: ``1/|T| * 1/(1 + eta p)``; its floors add up to most of the capacity."""
    return np.asarray(1 / share.shape[-1] / (1 + eta * share), np.float64)


def ratios(
    served: Floats, demand: Floats, rho: Floats, unmet: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
) -> Floats:
    """``ratio_k = share of served tokens / min(rho_k, demand_k / tokens served)``, shape (W, K).

    Below 1 only where a request of the type waits or was refused (``unmet``) and its floor is not tiny, else at least
    1. NaN without demand, and where nothing was served.
    """
    total = served.sum(axis=1, keepdims=True)
    known = (total > 0) & (demand > 0)
    floor = np.minimum(rho, demand / np.where(total > 0, total, 1.0))
    ratio = served / np.where(total > 0, total, 1.0) / np.where(known & (floor > 0), floor, 1.0)
    may_fall = unmet & (floor >= SMALL_FLOOR)
    return np.asarray(np.where(known, np.where(may_fall, ratio, np.maximum(1.0, ratio)), np.nan), np.float64)


def leaks(served: Floats, demand: Floats, rho: Floats) -> Floats:
    """Tokens of each type's floor that went to other types: ``max(0, min(rho * served, demand_k) - served_k)``."""
    total = served.sum(axis=1, keepdims=True)
    return np.asarray(np.maximum(0.0, np.minimum(rho * total, demand) - served), np.float64)
