"""Schedulers that go by an estimate of what a request costs do not know what it costs.

An estimate is the true cost times ``1 + error * (u_class + u_request) / 2``. Both u lie in [-1, 1]: one is drawn by a
hash of (model, type, size class), the other by one of the request's id, so that every replay draws the same. Factors
are integers, in millionths.

A scheduler that corrects its estimates keeps for each class a moving average of actual over estimated, both of the
same tokens: ``c <- c + alpha * (ratio - c)`` from 1 on, at each finish. What it ranks or charges from then on it
multiplies by it. That takes away what a class has in common, and cannot take away what its requests differ by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fairreplay.config.size_classes import SIZES
from fairreplay.sandbox.extras import MICRO

NANO: Final = 10**9
"""Corrections are kept in billionths."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Estimation:
    """The policy goes by ``Workload.estimate``."""

    alpha: int = 0
    """Weight of the newest ratio in the correction, in millionths; 0: nothing is corrected."""


class Estimator:
    """The estimates of one scheduler, which learns for itself."""

    def __init__(self, estimation: Estimation, factors: Sequence[int] | Ints, classes: Sequence[int] | Ints) -> None:
        self._alpha = estimation.alpha
        self._factors = factors
        self._classes = classes
        self.corrections = [NANO] * (1 + max(map(int, classes), default=0))
        """By class: what actual over estimated was of late, in billionths."""

    def estimated(self, request: int, cost: int) -> int:
        """What a true cost of ``request``, 0 or more, is taken for, rounded down."""
        factor = int(self._factors[request])
        if self._alpha:
            factor = factor * self.corrections[self._classes[request]] // NANO
        return cost * factor // MICRO

    def learn(self, request: int) -> None:
        """``request`` is done, and what it has cost is known."""
        if not self._alpha:
            return
        kind = self._classes[request]
        ratio = NANO * MICRO // int(self._factors[request])
        self.corrections[kind] = (self._alpha * ratio + (MICRO - self._alpha) * self.corrections[kind]) // MICRO


def size_classes(prompt_tokens: Ints) -> Ints:
    """Places in ``SIZE_NAMES`` by the prompt, which is all that is known of a request's size when it is ranked."""
    return np.searchsorted(np.array(SIZES), prompt_tokens, side="right").astype(np.int64)


def factors(error: int, of_class: Ints, of_request: Ints) -> Ints:
    """Estimate over true cost, in millionths; ``error`` in millionths, the others 64 bits that u is drawn from."""
    return MICRO + error * (_unit(of_class) + _unit(of_request)) // (2 * MICRO)


def _unit(bits: Ints) -> Ints:
    """In [-1, 1], in millionths."""
    return (bits.view(np.uint64) % np.uint64(2 * MICRO + 1)).astype(np.int64) - MICRO
