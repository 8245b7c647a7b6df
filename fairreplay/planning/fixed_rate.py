"""The linear baseline that a simulation has to beat: one queue, served in order of arrival at a fixed rate.

Such a queue knows how much work stands ahead of a request and nothing of batches, memory or caps on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from scipy.optimize import minimize_scalar

from fairreplay.planning.first_guess import Floats, Observed

GRID: Final = 33
"""Rates tried before the search begins; it has several valleys."""
SPAN: Final = 1000.0
"""From this many times below the rate of the whole log to as many above."""


def queue_ttft(part: Observed, tokens_per_s: float) -> Floats:
    """Time to first token of every request of one replica, in order of arrival; seconds.

    A request's first token comes once the prompts and outputs of all before it, and its own prompt, are done.
    """
    work_s = (part.prompt + part.output) / tokens_per_s
    done_before = np.concatenate([[0.0], np.cumsum(work_s)])
    # start_i = max over j <= i of arrival_j + work of j .. i-1
    start = np.maximum.accumulate(part.arrival - done_before[:-1]) + done_before[:-1]
    found: Floats = start + part.prompt / tokens_per_s - part.arrival
    return found


def fitted_rate(parts: tuple[Observed, ...], loss: Callable[[float], float]) -> float:
    """Tokens a second with the least ``loss``: the best of a grid around the log's own throughput, then refined."""
    tokens = sum(float((part.prompt + part.output).sum()) for part in parts)
    ends = [float(np.nanmax(part.finished)) for part in parts if not np.isnan(part.finished).all()]
    usual = tokens / max(max(ends, default=1.0), 1e-6) / len(parts)
    logs = np.log(usual) + np.linspace(-np.log(SPAN), np.log(SPAN), GRID)
    best = int(np.argmin([loss(float(np.exp(value))) for value in logs]))
    low, high = logs[max(best - 1, 0)], logs[min(best + 1, GRID - 1)]
    found = minimize_scalar(lambda value: loss(float(np.exp(value))), bounds=(low, high), method="bounded")
    return float(np.exp(found.x if found.fun < loss(float(np.exp(logs[best]))) else logs[best]))
