"""Whether preemption for a head oscillates at high utilisation: the figures of ``docs/controls.md``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairreplay.sandbox import compiled
from fairreplay.sandbox.engine import PS_PER_SECOND, Controls, EngineResult, PolicySpec, Preemption, StepTime
from tests.sandbox.scenarios import plan, workload

REQUESTS = 300
UNLIMITED = Preemption(utilisation_max=10**9, recovery_max_ps=10**18)
STEP = StepTime(6 * 10**9, 400 * 10**6, 30 * 10**6, 30_000)


def served(rate: int, threshold: int | None, limits: Preemption | None) -> tuple[EngineResult, Any]:
    """Three tenants of equal demand, ``rate`` requests a second, under ``vtc``."""
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.exponential(1 / rate, REQUESTS))
    rows = [
        ("abc"[int(rng.integers(3))], float(at), int(rng.integers(20, 120)), int(rng.integers(20, 80)))
        for at in arrivals
    ]
    work = workload(rows)
    options: dict[str, Any] = {"block_size": 8, "num_gpu_blocks": 121, "max_num_seqs": 16, "max_num_batched_tokens": 64}
    controls = None if limits is None else Controls(preemption=limits)
    spec = PolicySpec("vtc", preemption_threshold=threshold)
    return compiled.run(work, plan(work, spec, controls=controls, step_time=STEP, **options)), work


@pytest.mark.parametrize(
    ("rate", "threshold", "limits", "preemptions", "thrashing", "tax", "p50_s", "p99_s"),
    [
        (6, 0, UNLIMITED, 0, 0, 0.0, 0.05, 0.12),
        (12, None, None, 56, 8, 0.099, 0.07, 0.71),
        (12, 100, Preemption(), 120, 26, 0.198, 0.16, 1.37),
        (12, 100, UNLIMITED, 140, 32, 0.222, 0.30, 1.86),
        (12, 0, Preemption(), 584, 194, 0.576, 5.58, 14.70),
        (12, 0, UNLIMITED, 798, 254, 0.650, 8.99, 21.90),
    ],
)
def test_high_utilisation_oscillates(
    rate: int,
    threshold: int | None,
    limits: Preemption | None,
    preemptions: int,
    thrashing: int,
    tax: float,
    p50_s: float,
    p99_s: float,
) -> None:
    result, work = served(rate, threshold, limits)
    ttft_s = np.sort(result.first_token_ps - work.arrival_ps) / PS_PER_SECOND
    assert int(result.preemptions.sum()) == preemptions
    assert int((result.preemptions >= 2).sum()) == thrashing
    assert result.recomputed_tokens.sum() / result.computed_tokens.sum() == pytest.approx(tax, abs=6e-4)
    assert (ttft_s[150], ttft_s[-4]) == pytest.approx((p50_s, p99_s), abs=6e-3)
