"""The compiled engine against the plain one, to the bit."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from polars.testing import assert_frame_equal

from fairreplay.sandbox import compiled, reference
from fairreplay.sandbox.decision_log import read_scenario
from fairreplay.sandbox.engine import (
    PS_PER_SECOND,
    PS_PER_US,
    WEIGHT_SCALE,
    EngineResult,
    PolicySpec,
    StepTime,
    Workload,
)
from fairreplay.sandbox.plan import Shard
from fairreplay.sandbox.served import step_rows
from tests.sandbox.plain_sums import StepSeconds
from tests.sandbox.random_cases import case
from tests.sandbox.scenarios import plan, workload

CASES = 1200
PARTS = 12
GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "vllm"


def differences(plain: EngineResult, fast: EngineResult) -> list[str]:
    return [
        field.name
        for field in fields(plain)
        if not np.array_equal(getattr(plain, field.name), getattr(fast, field.name))
    ]


@pytest.mark.parametrize("part", range(PARTS))
def test_random_cases_are_equal_to_the_bit(part: int) -> None:
    """Leaping and step by step; tight caches, preemption, changes in mid-run, all policies, prefixes, async."""
    preempted = 0
    for seed in range(part * CASES // PARTS, (part + 1) * CASES // PARTS):
        work, the_plan = case(seed)
        plain = reference.run(work, the_plan)
        for leap in (True, False):
            assert differences(plain, compiled.run(work, the_plan, leap=leap)) == [], f"case {seed}, leap {leap}"
        preempted += int((plain.preemptions > 0).any())
    assert preempted > CASES // PARTS // 10


def test_the_kernel_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state lies in arrays alone: returning after every few passes changes nothing."""
    cases = [case(seed) for seed in range(7000, 7060)]
    whole = [compiled.run(*each) for each in cases]
    monkeypatch.setattr(compiled.engine, "PASSES_A_CALL", 3)
    for each, before in zip(cases, whole, strict=True):
        assert differences(before, compiled.run(*each)) == []


def test_many_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are many queues ranks are kept, which decides nothing else."""
    monkeypatch.setattr(compiled.engine, "MANY", 0)
    ranked = 0
    for seed in range(20_000, 20_200):
        work, the_plan = case(seed)
        policy = PolicySpec(("vtc", "sjf")[seed % 2], lift=seed % 3 > 0)
        states = tuple((at_ps, replace(state, policy=policy)) for at_ps, state in the_plan.settings[:1])
        the_plan = replace(the_plan, settings=states + the_plan.settings[1:])
        plain = reference.run(work, the_plan)
        for leap in (True, False):
            assert differences(plain, compiled.run(work, the_plan, leap=leap)) == [], f"case {seed}, leap {leap}"
        ranked += len(np.unique(work.tenant)) > 1
    assert ranked > 100


@pytest.mark.parametrize("roomy", [True, False])
def test_prefix_caching_without_common_prefixes(roomy: bool) -> None:
    """Nobody can find anything but its own blocks after a preemption: runs of blocks say as much as every block."""
    preempted = 0
    for seed in range(8000, 8060 if roomy else 8600):
        work, the_plan = case(seed, enable_prefix_caching=True, **({"num_gpu_blocks": 5000} if roomy else {}))
        work = unshared(work)
        plain = reference.run(work, the_plan)
        assert differences(plain, compiled.run(work, the_plan)) == [], f"case {seed}"
        preempted += int((plain.preemptions > 0).any())
    assert preempted == 0 if roomy else preempted > 100


def unshared(work: Workload) -> Workload:
    return replace(work, prefix_ids=work.prefix_ids[:0], prefix_start=np.zeros_like(work.prefix_start))


@pytest.mark.parametrize("blocks", range(4, 9))
def test_a_block_that_was_filled_and_never_computed_is_not_found(blocks: int) -> None:
    """A victim by priority loses a pass that had filled a block: one block too many would be found when it resumes."""
    for prompt in range(1, 9):
        work = workload(
            [("a", 0.0, prompt, 9), ("a", 1.0, 2, 9), ("a", 1.0, 2, 9), ("a", 2.0, 6, 3)], priorities=[3, 0, 1, 2]
        )
        the_plan = plan(work, "priority", block_size=4, num_gpu_blocks=blocks, enable_prefix_caching=True)
        assert differences(reference.run(work, the_plan), compiled.run(work, the_plan)) == []


def test_more_than_104_days_are_refused() -> None:
    work = workload([("a", 0.0, 1, 1000)])
    slow = plan(work, step_time=StepTime(86_400 * PS_PER_SECOND // 2, 0, 0, 0))
    for leap in (True, False):
        with pytest.raises(OverflowError, match="104 days"):
            compiled.run(work, slow, leap=leap)


@pytest.mark.parametrize("seed", range(5000, 5150, 3))
def test_step_sums_are_those_of_the_plain_steps(seed: int) -> None:
    work, the_plan = case(seed, most_requests=6, time_scale=10 ** (9 * (seed % 2)))
    shard = Shard(model="m", replica="0", rows=np.arange(len(work)), workload=work, plan=the_plan)
    start_us = 1_700_000_000_123_456
    plain = StepSeconds(shard, start_us)
    reference.run(work, the_plan, plain.add)
    _result, sums = compiled.run_with_sums(work, the_plan, start_us % 10**6 * PS_PER_US)
    assert_frame_equal(step_rows(shard, start_us, sums), plain.frame())


@pytest.mark.parametrize("name", ["s2_fcfs_tight", "s4_prefix_caching", "s6_large", "s8_priority_tight_async"])
def test_golden_scenarios_are_equal_too(name: str) -> None:
    scenario = read_scenario(GOLDEN / f"{name}.scenario.json")
    plain = reference.run(scenario.workload, scenario.plan)
    assert differences(plain, compiled.run(scenario.workload, scenario.plan)) == []


def test_weights_one_to_four_under_overload_give_service_one_to_four() -> None:
    rows = [(tenant, 0.0, 100, 100) for tenant in "abcd" for _ in range(3000)]
    work = workload(rows)
    the_plan = plan(work, "vtc", weights={"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}, max_num_seqs=4)
    result = compiled.run(work, the_plan)
    while_all_wait = result.finished_ps <= np.sort(result.finished_ps)[5000]
    served = np.bincount(work.tenant[while_all_wait], minlength=4)
    assert served / served[0] == pytest.approx([1, 2, 3, 4], rel=0.01)


def test_counters_that_would_overflow_are_refused() -> None:
    work = workload([("a", 0.0, 10**6, 10**6)] * 50)
    the_plan = plan(work, "vtc", weights={"a": WEIGHT_SCALE / 2**45}, max_model_len=10**7, num_gpu_blocks=10**6)
    with pytest.raises(OverflowError, match="weight"):
        compiled.run(work, the_plan)


def test_seconds_of_a_long_leap() -> None:
    """One request that decodes for a thousand seconds: every second has its step."""
    work = workload([("a", 0.0, 1, 1001)])
    _result, sums = compiled.run_with_sums(work, plan(work))
    assert sums.steps.sum() == 1001
    assert sums.second.max() == 999
    assert sums.second[sums.kind == 0].tolist() == list(range(1000))
    assert int(PS_PER_SECOND) == 10**12
