"""Type fairness: the floor of each request type, and what it got of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fairreplay.config.model import Config, Floor
from fairreplay.metrics import kernel
from fairreplay.metrics.entitlement import Floats
from fairreplay.metrics.load import Ints
from fairreplay.metrics.service import Sums

SMALL_FLOOR = 0.005
"""A type whose floor is smaller part of a window's tokens than this is never below it."""


@dataclass(frozen=True)
class Arrivals:
    """What floors follow from: each type's share of a window's arrivals, and the spread of its service cost."""

    any: np.ndarray[tuple[int], np.dtype[np.bool_]]
    """Shape (windows,): whether anything arrived; the others have shape (windows, types)."""
    share: Floats
    cv: Floats
    sigma: Floats

    def before(self, earlier: Arrivals | None) -> Arrivals:
        """By window, the last one before it that had arrivals; ``earlier`` (one window) where there is none here.

        A floor follows the window before, so that a starved type's floor does not chase its own decline. The first
        window that has arrivals uses its own, and so does one before it.
        """
        number = np.arange(len(self.any))
        last = np.maximum.accumulate(np.where(self.any, number, -1))
        before = np.concatenate([[-1], last[:-1]])
        own = self.at(np.where(before >= 0, before, number))
        if earlier is None:
            return own
        known = (before >= 0)[:, None]
        return Arrivals(
            own.any,
            *(np.where(known, ours, theirs) for ours, theirs in zip(own.values(), earlier.values(), strict=True)),
        )

    def last(self, earlier: Arrivals | None) -> Arrivals | None:
        """The last window that had arrivals."""
        there = np.flatnonzero(self.any)
        return self.at(there[-1:]) if len(there) else earlier

    def at(self, windows: Ints) -> Arrivals:
        return Arrivals(self.any[windows], *(values[windows] for values in self.values()))

    def values(self) -> tuple[Floats, Floats, Floats]:
        return self.share, self.cv, self.sigma


def arrivals(costs: Floats) -> Arrivals:
    """Shares and spread from the sums of ``service.Sums.costs``."""
    n, mean = costs[:, :, kernel.COUNT], costs[:, :, kernel.MEAN]
    sigma = np.sqrt(costs[:, :, kernel.SQUARES] / np.maximum(n, 1))
    total = n.sum(axis=1, keepdims=True)
    return Arrivals(
        any=total[:, 0] > 0,
        share=n / np.maximum(total, 1),
        cv=sigma / np.where(mean > 0, mean, 1.0),
        sigma=sigma,
    )


@dataclass(frozen=True)
class TypesMeasured:
    """Type fairness by window, and the columns of the type table, shape (windows, types)."""

    tfr: Floats
    tfr_raw: Floats
    whose: Ints
    """Whose ratio TFR is (place among the types, -1 = nobody's)."""
    demand: Floats
    columns: Mapping[str, Floats]
    last: Arrivals | None
    """What the floors of the next window follow from."""


def measured(sums: Sums, config: Config, earlier: Arrivals | None) -> TypesMeasured:
    """Floors, ratios and leaks; ``earlier`` is the last window with arrivals before those of ``sums``."""
    got = sums.types.served(config.cost)
    demand = got + sums.types.unmet(config.cost)
    came = arrivals(sums.costs)
    follows = came.before(earlier)
    rho = floors(follows.share, follows.cv, follows.sigma, config.floor)
    ratio = ratios(got, demand, rho, sums.types.backlog())
    total = got.sum(axis=1, keepdims=True)
    actual = np.where(total > 0, got / np.where(total > 0, total, 1.0), np.nan)
    raw = np.where(rho > 0, actual / np.where(rho > 0, rho, 1.0), np.nan)
    known = ~np.isnan(ratio)
    least = np.where(known, ratio, np.inf)
    judged = known.any(axis=1)
    return TypesMeasured(
        tfr=np.where(judged, least.min(axis=1), np.nan),
        tfr_raw=raw.min(axis=1),
        whose=np.where(judged, least.argmin(axis=1), -1),
        demand=demand,
        columns={"share": actual, "floor": rho, "ratio": ratio, "ratio_raw": raw, "leak": leaks(got, demand, rho)},
        last=came.last(earlier),
    )


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
