"""The baseline of ``replay_speed``: the same rules under Numba, stepped one by one, every running request at each step.

It is the compiled engine with its leaps turned off: the same arrays, the same admission and preemption.
"""

from __future__ import annotations

import time

import numpy as np

from fairreplay.sandbox import compiled
from fairreplay.sandbox.engine import (
    WEIGHT_SCALE,
    EngineResult,
    EngineSettings,
    Int64s,
    Plan,
    PolicySpec,
    StepTime,
    Workload,
)

STEP_TIME = StepTime(base=5 * 10**9, prefill_token=3 * 10**7, decode_sequence=3 * 10**7, context_token=2 * 10**4)
"""The clock of the golden decision logs."""


def load(count: int, per_s: float, tenants: int = 1) -> Workload:
    """Lengths like the Azure chat trace's: log-normal around 1,000 prompt and 200 output tokens, Poisson arrivals."""
    rng = np.random.default_rng(1)
    nothing = np.zeros(count, np.int64)

    def tokens(median: int, sigma: float, most: int) -> Int64s:
        return np.clip(rng.lognormal(np.log(median), sigma, count), 1, most).astype(np.int64)

    return Workload(
        arrival_ps=np.cumsum(rng.exponential(1e12 / per_s, count)).astype(np.int64),
        prompt_tokens=tokens(1000, 1.0, 8000),
        output_tokens=tokens(200, 0.8, 2000),
        priority=nothing,
        tenant=rng.integers(0, tenants, count),
        type=nothing,
        request_weight=nothing,
        prefix_start=np.zeros(count + 1, np.int64),
        prefix_ids=nothing[:0],
        prefix_block_tokens=0,
        tenants=tuple(f"t{number:02d}" for number in range(tenants)),
        types=("chat",),
    )


def settings(work: Workload, policy: str = "fcfs", blocks: int = 200_000, asynchronous: bool = False) -> Plan:
    """256 sequences; 200,000 blocks of 16 tokens are more than they ever need."""
    state = EngineSettings(
        STEP_TIME, PolicySpec(policy), max_num_seqs=256, num_gpu_blocks=blocks, async_scheduling=asynchronous
    )
    return Plan(settings=((0, state),), weights=((0, np.full(len(work.tenants), WEIGHT_SCALE, np.int64)),))


def run(work: Workload, plan: Plan) -> EngineResult:
    return compiled.run(work, plan, leap=False)


def main() -> None:
    work = load(30_000, 20.0)
    plan = settings(work)
    run(load(100, 20.0), plan)
    started = time.thread_time()
    run(work, plan)
    print(f"step loop, fcfs, no memory pressure: {len(work) / (time.thread_time() - started) / 1e6:.2f} M requests/s")


if __name__ == "__main__":
    main()
