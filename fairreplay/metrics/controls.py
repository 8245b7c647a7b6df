"""Control laws of fair serving: backpressure, the quantile deadline, the price of a mixture-of-experts step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from fairreplay.metrics.quantiles import needed
from fairreplay.metrics.scr import Q

SLOWDOWN_MIN: Final = 0.5
"""At most halve the rate at once."""


def backpressure(rate: float, p99: float | None, slo: float, rate_max: float, rate_min: float, step: float) -> float:
    """The admitted rate after a look at P99, which is max(P99 of the finished, age of the oldest that waits).

    Overload: ``rate * clip(slo/P99, 0.5, 1)``, at least ``rate_min``. Else additive recovery by ``step`` up to
    ``rate_max``. Without samples the rate stays. To be applied at most once per window of the P99.
    """
    if p99 is None:
        return rate
    if p99 > slo:
        return max(rate_min, rate * max(SLOWDOWN_MIN, slo / p99))
    return min(rate_max, rate + step)


def backpressure_raw(rate: float, p99: float, slo: float) -> float:
    """The essay's update, which raises the rate under overload; for comparison."""
    return rate * p99 / slo


def deadline(arrival: float, targets: Mapping[str, float], misses: Mapping[str, int], n: int) -> float:
    """``arrival + min{s_q : c_q >= a_q}``, else ``arrival + s_99``: the tightest target whose budget is used up.

    ``misses`` are c_q over the tenant's last ``n`` requests; the allowance a_q is ``n - ceil(q n / 100)``.
    """
    used_up = [targets[name] for name, q in Q.items() if misses[name] >= n - needed(q, n)]
    return arrival + min(used_up, default=targets["p99"])


def moe_cost(tokens: int, mean: float, sd: float, risk: float = 1.0, same_experts: bool = False) -> float:
    """Cost of a step over ``tokens`` routed to experts of a cost with ``mean`` and ``sd`` per token.

    ``T E[C] + lambda sqrt(T) sd[C]`` where tokens choose experts independently, ``lambda T sd[C]`` where all choose the
    same.
    """
    return tokens * mean + risk * sd * (tokens if same_experts else math.sqrt(tokens))


def corrected(estimate: float, ratio: float) -> float:
    """A cost estimate after the online correction, ``ratio`` from ``drift``."""
    return estimate * ratio


def drift(ratio: float, estimated: float, actual: float, gain: float = 0.1) -> float:
    """The next EWMA of actual over estimated cost of a (model, type, size class)."""
    return ratio + gain * (actual / estimated - ratio)
