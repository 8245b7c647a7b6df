"""Requests a second on one core, against the step loop in the same run.

Targets: fcfs without memory pressure 5 M requests/s and 6 times the step loop; vtc over 32 tenants 2 M and at most 3
times the time of fcfs; steady preemption 0.5 M and not slower than the step loop. CPU time of the one thread counts,
the best of three runs; the results of both engines are compared before anything is timed. Then every policy, without
memory pressure: at most 3 times the time of fcfs with 32 tenants, 10 times with 1,000.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import step_loop

from fairreplay.sandbox import compiled
from fairreplay.sandbox.engine import PS_PER_SECOND, EngineResult, Plan, PolicySpec, Workload
from fairreplay.sandbox.policies import POLICIES

RUNS = 3
ROUNDS = 7
POLICY_REQUESTS = 300_000
STEPPED = 30
"""The step loop gets one request in so many, so that the benchmark ends while one watches."""


def speed(run: Callable[[Workload, Plan], EngineResult], work: Workload, plan: Plan, runs: int = RUNS) -> float:
    """Million requests a second."""
    times = []
    for _ in range(runs):
        started = time.thread_time()
        run(work, plan)
        times.append(time.thread_time() - started)
    return len(work) / min(times) / 1e6


def check_equal(work: Workload, plan: Plan) -> int:
    """Preemptions, after comparing every number that both engines return."""
    leapt, stepped = compiled.run(work, plan), step_loop.run(work, plan)
    for field in fields(EngineResult):
        assert np.array_equal(getattr(leapt, field.name), getattr(stepped, field.name)), field.name
    return int(leapt.preemptions.sum())


def main() -> None:
    started = time.perf_counter()
    compiled.run(step_loop.load(10, 1.0), step_loop.settings(step_loop.load(10, 1.0)))
    print(f"first run, compilation or its cache included: {time.perf_counter() - started:.2f} s")
    fcfs = 0.0
    for name, policy, tenants, blocks, asynchronous, per_s, count, target in (
        ("fcfs, no memory pressure", "fcfs", 1, 200_000, False, 20.0, 1_000_000, 5.0),
        ("fcfs, light load", "fcfs", 1, 200_000, False, 5.0, 1_000_000, 0.0),
        ("fcfs, async scheduling", "fcfs", 1, 200_000, True, 20.0, 1_000_000, 0.0),
        ("vtc, 32 tenants", "vtc", 32, 200_000, False, 20.0, 1_000_000, 2.0),
        ("fcfs, steady preemption", "fcfs", 1, 6_000, False, 20.0, 300_000, 0.5),
        ("fcfs, preemption, async", "fcfs", 1, 6_000, True, 20.0, 300_000, 0.0),
    ):
        work = step_loop.load(count, per_s, tenants)
        small = step_loop.load(count // STEPPED, per_s, tenants)
        plan = step_loop.settings(work, policy, blocks, asynchronous)
        preemptions = check_equal(small, plan)
        leapt = speed(compiled.run, work, plan)
        stepped = speed(step_loop.run, small, plan, runs=1)
        fcfs = fcfs or leapt
        print(
            f"{name:26} {leapt:6.2f} M requests/s"
            + (f" (target {target:g})" if target else "")
            + f", step loop {stepped:.3f}, {leapt / stepped:.0f} times; {fcfs / leapt:.2f} times the time of fcfs"
            + (f"; {preemptions / len(small):.2f} preemptions a request" if preemptions else "")
        )
    print()
    for tenants, most in ((32, 3), (1000, 10)):
        work = step_loop.load(POLICY_REQUESTS, 20.0, tenants)
        times = policy_times_us(work)
        for name, time_us in times.items():
            slower = time_us / times["fcfs"]
            print(f"{name:14} {tenants:5} tenants {1 / time_us:6.2f} M requests/s, {slower:5.2f} times (most {most})")


def policy_times_us(work: Workload) -> dict[str, float]:
    """Each policy's time for a request, the best of some rounds: in each round all of them run one after the other, so
    that a machine which is busy for a while is so for all."""
    plans = {name: with_policy(work, name) for name in POLICIES}
    rounds = [{name: 1 / speed(compiled.run, work, plan, 1) for name, plan in plans.items()} for _ in range(ROUNDS)]
    return {name: min(times[name] for times in rounds) for name in plans}


def with_policy(work: Workload, name: str) -> Plan:
    """Three kinds of tenants by their targets; nothing is refused."""
    seconds = PS_PER_SECOND
    slos = tuple((kind * seconds, 2 * kind * seconds, 5 * kind * seconds) for kind in (1, 2, 3))
    spec = PolicySpec(
        name,
        slo_ps=tuple(slos[number % 3] for number in range(len(work.tenants))),
        gamma_ps=seconds // 1000,
        alpha_ps=seconds // 10_000,
        slack_ps=seconds // 10,
        rpm=10**6,
    )
    plan = step_loop.settings(work)
    return replace(plan, settings=tuple((at_ps, replace(state, policy=spec)) for at_ps, state in plan.settings))


if __name__ == "__main__":
    main()
