"""Jain's fairness index over tenants."""

from __future__ import annotations

import numpy as np

from fairreplay.metrics.entitlement import Floats

SMALL_SHARE = 0.005
"""A tenant entitled to less than this part of a window's tokens does not set ``min_x``."""


def jain(x: Floats, counted: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Floats:
    """``(sum x)^2 / (n sum x^2)`` of each row of ``x`` over its ``counted`` entries; shape (W, T) to (W,).

    In (0, 1]; 1 = all equal. NaN where nobody counts or all that count are 0: no demand is not unfair.
    Jain, Chiu, Hawe, "A quantitative measure of fairness", DEC-TR-301, 1984.
    """
    values = np.where(counted, x, 0.0)
    largest = values.max(axis=1, keepdims=True, initial=0.0)
    values = values / np.where(largest > 0, largest, 1.0)  # equal values then give exactly 1
    total, squares, n = values.sum(axis=1), (values**2).sum(axis=1), counted.sum(axis=1)
    known = squares > 0
    return np.asarray(
        np.where(known, np.minimum(1.0, total**2 / np.where(known, n * squares, 1.0)), np.nan), np.float64
    )


def attainment(served: Floats, entitled: Floats) -> Floats:
    """``x_j = served_j / entitlement_j``; NaN where the entitlement is 0."""
    return np.asarray(np.where(entitled > 0, served / np.where(entitled > 0, entitled, 1.0), np.nan), np.float64)


def least_served(x: Floats, entitled: Floats) -> tuple[Floats, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Smallest x of each row and whose it is (column number, -1 = nobody), small entitlements left out."""
    total = entitled.sum(axis=1, keepdims=True)
    counted = (entitled > 0) & (entitled >= SMALL_SHARE * total)
    values = np.where(counted, x, np.inf)
    if x.shape[1] == 0:
        return np.full(len(x), np.nan), np.full(len(x), -1, np.int64)
    whose = values.argmin(axis=1)
    least = values[np.arange(len(x)), whose]
    return np.where(np.isinf(least), np.nan, least), np.where(np.isinf(least), -1, whose)


def service_gap(per_weight: Floats, through: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Floats:
    """VTC's measure: largest difference of service per weight between two tenants backlogged ``through`` the window."""
    enough = through.sum(axis=1) >= 2
    most = np.where(through, per_weight, -np.inf).max(axis=1, initial=-np.inf)
    least = np.where(through, per_weight, np.inf).min(axis=1, initial=np.inf)
    return np.where(enough, np.where(enough, most, 0.0) - np.where(enough, least, 0.0), np.nan)


def fair_loss(x: Floats, counted: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Floats:
    """What is lost to unfairness: ``1 - JFI(x)``, 0 where all are served in proportion."""
    return 1 - jain(x, counted)


def fair_loss_raw(weights: Floats, served: Floats) -> Floats:
    """The essay's ``JFI(w) / JFI(service)`` over all tenants, shape (W, T) to (W,): it prefers equal service."""
    everyone = np.ones_like(served, np.bool_)
    return np.asarray(jain(np.broadcast_to(weights, served.shape), everyone) / jain(served, everyone), np.float64)
