"""Batches of one precision, and what a switch does to the prefix cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairreplay.sandbox import reference
from fairreplay.sandbox.engine import OK, PS_PER_SECOND, EngineResult, Plan, Step, StepTime, Workload
from tests.sandbox.random_cases import case
from tests.sandbox.scenarios import plan, workload

SECOND = PS_PER_SECOND


def precise(work: Workload, precision: list[int]) -> Workload:
    return replace(work, precision=np.array(precision, np.int64))


def switching(the_plan: Plan, how: str) -> Plan:
    return replace(
        the_plan, settings=tuple((at, replace(state, precision_switch=how)) for at, state in the_plan.settings)
    )


def same_prompt(times: list[float], precision: list[int]) -> Workload:
    """Requests of 9 tokens; those of one precision share their prefix of 8, in blocks of 4."""
    work = workload([("a", at, 9, 1) for at in times])
    ids = [number + 100 * of for of in precision for number in (1, 2)]
    starts = np.arange(len(times) + 1) * 2
    return precise(
        replace(work, prefix_ids=np.array(ids, np.int64), prefix_start=starts, prefix_block_tokens=4), precision
    )


def served(work: Workload, how: str, **settings: object) -> EngineResult:
    the_plan = plan(work, block_size=4, enable_prefix_caching=True, step_time=StepTime(SECOND, 0, 0, 0), **settings)
    return reference.run(work, switching(the_plan, how))


def test_a_batch_of_another_precision_drops_the_cache() -> None:
    # one at a time: fp8, fp16, fp8 again, fp8: with drops the third finds nothing, the fourth what the third left
    work = same_prompt([0, 10, 20, 30], [1, 0, 1, 1])
    kept, dropped = served(work, "keep"), served(work, "drop")
    assert kept.cached_tokens.tolist() == [0, 0, 8, 8]
    assert dropped.cached_tokens.tolist() == [0, 0, 0, 8]
    assert kept.details["switched"].tolist() == dropped.details["switched"].tolist() == [0, 1, 1, 0]


def test_a_head_of_another_precision_waits_until_nobody_runs() -> None:
    work = precise(workload([("a", 0, 1, 3), ("b", 0, 1, 1), ("a", 0, 1, 1)]), [0, 1, 0])
    result = served(work, "drop")
    assert (result.scheduled_ps // SECOND).tolist() == [0, 3, 4]  # the third stands behind the second


def test_one_precision_is_no_precision() -> None:
    work = same_prompt([0, 10, 20, 30], [0, 0, 0, 0])
    assert served(work, "drop").cached_tokens.tolist() == served(work, "").cached_tokens.tolist() == [0, 8, 8, 8]


@pytest.mark.parametrize("seed", range(120))
def test_every_batch_has_one_precision(seed: int) -> None:
    work, the_plan = case(seed, most_requests=20, enable_prefix_caching=True)
    states = [replace(state.policy, preemption_threshold=None) for _, state in the_plan.settings]
    the_plan = replace(
        the_plan,
        settings=tuple(
            (at, replace(state, policy=spec)) for (at, state), spec in zip(the_plan.settings, states, strict=True)
        ),
    )
    work = precise(work, np.random.default_rng(seed).integers(0, 2, len(work)).tolist())
    steps: list[Step] = []
    result = reference.run(work, switching(the_plan, "drop"), steps.append)
    assert work.precision is not None
    last, switches = None, 0
    for step in steps:
        found = {int(work.precision[request]) for request, _, _ in step.scheduled}
        assert len(found) <= 1
        switches += last is not None and bool(found) and found != last
        last = found or last
    assert result.details["switched"].sum() == switches
    assert set(result.status.tolist()) <= {OK, 1}
