"""Estimated costs: the compiled engine against the plain one, to the bit, in combination with all else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.sandbox import compiled, reference
from fairreplay.sandbox.compiled.engine import needed_parts
from fairreplay.sandbox.engine import EngineResult, PolicySpec
from fairreplay.sandbox.estimation import Estimation
from fairreplay.sandbox.extras import MICRO
from fairreplay.sandbox.policies import ESTIMATE
from tests.sandbox.random_cases import case, controlled
from tests.sandbox.scenarios import plan, workload
from tests.sandbox.test_estimation import estimated, with_estimates
from tests.sandbox.test_extras_compiled import differences, extra_case

ERRORS = st.sampled_from([0, 100_000, 300_000, 990_000])
ALPHAS = st.sampled_from([0, 50_000, 500_000, MICRO])
OF = st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans())
MIXED = (*ESTIMATE, *ESTIMATE, "fcfs", "vtc", "quantile", "drr")
"""Estimating policies, and some that they take turns with in mid-run."""


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.integers(0, 10**9), ERRORS, ALPHAS)
def test_random_cases_are_equal_to_the_bit(seed: int, error: int, alpha: int) -> None:
    work, the_plan = with_estimates(*case(seed, most_requests=24, policies=MIXED), seed, error, alpha)
    assert differences(reference.run(work, the_plan), compiled.run(work, the_plan)) == []


@settings(max_examples=80, derandomize=True, deadline=None)
@given(st.integers(0, 10**9), ERRORS, ALPHAS)
def test_random_cases_under_controls_are_equal_to_the_bit(seed: int, error: int, alpha: int) -> None:
    work, the_plan = with_estimates(*controlled(seed, policies=MIXED), seed, error, alpha)
    assert differences(reference.run(work, the_plan), compiled.run(work, the_plan)) == []


@settings(max_examples=80, derandomize=True, deadline=None)
@given(st.integers(0, 10**9), OF, st.booleans(), ERRORS, ALPHAS)
def test_random_cases_with_extras_are_equal_to_the_bit(
    seed: int, of: tuple[bool, bool, bool, bool], controls: bool, error: int, alpha: int
) -> None:
    work, the_plan = with_estimates(*extra_case(seed, of=of, controls=controls), seed, error, alpha)
    assert differences(reference.run(work, the_plan), compiled.run(work, the_plan)) == []


def busy(policy: str, seed: int, error: int, alpha: int, requests: int = 400) -> tuple[EngineResult, EngineResult]:
    """One run in both engines: a queue that is long most of the time, a cache that is often full."""
    rng = np.random.default_rng(seed)
    rows = [
        (str(rng.choice(["a", "b", "c"])), float(at), int(rng.integers(1, 80)), int(rng.integers(0, 12)))
        for at in np.cumsum(rng.exponential(3.0, requests))
    ]
    work = workload(rows, types=rng.choice(["x", "y"], requests).tolist())
    slo = tuple((target, target, target) for target in (10**13, 10**14, 10**15))
    spec = PolicySpec(policy, slo_ps=slo, alpha_ps=10**12, slack_ps=10**12)
    settled = plan(work, spec, max_num_seqs=6, num_gpu_blocks=14, block_size=8)
    work, settled = with_estimates(work, settled, seed, error, alpha)
    return reference.run(work, settled), compiled.run(work, settled)


@pytest.mark.parametrize("alpha", [0, 50_000])
@pytest.mark.parametrize("policy", ESTIMATE)
def test_long_queues_are_equal_to_the_bit_and_estimates_matter(policy: str, alpha: int) -> None:
    plain, fast = busy(policy, 3, 300_000, alpha)
    assert differences(plain, fast) == []
    right, _ = busy(policy, 3, 0, 0)
    assert (plain.scheduled_ps != right.scheduled_ps).mean() > 0.1
    assert plain.preemptions.sum() > 0


def test_many_tenants_are_equal_to_the_bit() -> None:
    rng = np.random.default_rng(5)
    rows = [(f"t{rng.integers(100)}", float(at // 4), int(rng.integers(1, 80)), 3) for at in range(400)]
    for policy in ESTIMATE:
        work = workload(rows)
        slo = ((10**13,) * 3,) * len(work.tenants)
        settled = plan(work, PolicySpec(policy, slo_ps=slo, alpha_ps=10**12), max_num_seqs=4)
        for alpha in (0, 100_000):
            some = with_estimates(work, settled, 5, 300_000, alpha)
            assert differences(reference.run(*some), compiled.run(*some)) == []


def test_without_correction_it_still_leaps() -> None:
    """A million output tokens: stepped one by one they would take minutes in plain Python."""
    work = estimated(workload([("a", 0, 10, 10**6), ("b", 1, 20, 10**6), ("b", 1, 30, 10**6)]), [1.1, 0.9, 1.0])
    settled = plan(work, PolicySpec("wfq", estimation=Estimation()), max_num_seqs=2, max_model_len=2 * 10**6)
    settled = replace(
        settled,
        settings=tuple((at, replace(state, num_gpu_blocks=10**6)) for at, state in settled.settings),
    )
    assert compiled.run(work, settled).status.tolist() == [0, 0, 0]


def test_parts_are_needed_only_where_costs_are_estimated() -> None:
    assert needed_parts(["sjf"]) == ["kernel", "stepper", "decider"]
    assert needed_parts(["vtc"], estimates=True) == ["kernel", "stepper", "decider"]
    assert "estimating_decider" in needed_parts(["wfq"], estimates=True)


def test_estimates_without_factors_are_refused() -> None:
    work = workload([("a", 0, 1, 1)])
    with pytest.raises(ValueError, match=r"needs Workload\.estimate"):
        compiled.run(work, plan(work, PolicySpec("sjf", estimation=Estimation())))
