"""Weights in force against what was promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import numpy as np

from fairreplay.config.model import Config
from fairreplay.metrics.entitlement import Floats, over_time
from fairreplay.metrics.load import Ints
from fairreplay.trace.values import epoch_us

SKEW: Final = 1.5
"""A weight this many times the committed share, or below its inverse, is reported as a skew."""


def configured(config: Config, tenants: Sequence[str], starts_us: Ints) -> Floats:
    """Weight of each tenant at each instant as the config states it, shape (instants, tenants).

    The latest of its ``changes``, else its ``weight``, else its committed share scaled so that the mean commitment
    weighs 1, else 1: what the baseline replay runs with, where the rows name no weight.
    """
    promised = np.broadcast_to(committed(config, tenants, starts_us), (len(starts_us), len(tenants)))
    mean = over_time(config, starts_us, lambda at: np.array(_mean(config.commitments(at)), np.float64))
    found = np.where(promised > 0, promised / mean[..., None], 1.0)
    for place, name in enumerate(tenants):
        tenant = config.tenants.get(name)
        if tenant is not None and tenant.weight is not None:
            found[:, place] = tenant.weight
        for change in sorted(tenant.changes if tenant else (), key=lambda change: change.at):
            found[starts_us >= epoch_us(change.at), place] = change.weight
    return found


def _mean(tokens: Mapping[str, int]) -> float:
    return sum(tokens.values()) / len(tokens) if tokens else 1.0


def committed(config: Config, tenants: Sequence[str], starts_us: Ints) -> Floats:
    """Committed tokens a month, 0 = none: shape (tenants,), or (instants, tenants) where commitments have dates."""

    def at(instant: datetime | None) -> Floats:
        tokens = config.commitments(instant)
        return np.array([tokens.get(name, 0) for name in tenants], np.float64)

    return over_time(config, starts_us, at)


def skews(weights: Floats, committed: Floats) -> Floats:
    """Weight in force over committed share, both as parts of their sums over the tenants with a commitment.

    Args:
        weights: shape (windows, tenants).
        committed: tokens a month, 0 = none; shape (tenants,) or (windows, tenants).

    Returns:
        shape (windows, tenants): 1 = as promised; NaN without a commitment.
    """
    promised = committed > 0
    if not promised.any():
        return np.full(weights.shape, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):  # a window of no commitment at all: NaN
        in_force = weights / np.where(promised, weights, 0.0).sum(axis=1, keepdims=True)
        share = np.where(promised, committed, np.nan) / committed.sum(axis=-1, keepdims=True)
        return np.asarray(in_force / share, np.float64)


def is_skewed(skew: float) -> bool:
    """Whether a skew is worth a word: from 1.5 or below 1/1.5."""
    return skew >= SKEW or skew < 1 / SKEW


def committed_weights(committed: Floats) -> Floats:
    """Rule ``committed``: ``C / sum C``."""
    return np.asarray(committed / committed.sum(), np.float64)
