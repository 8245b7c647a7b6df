"""Controls beside the policies: hard type floors, room made for urgent requests, limits of the queue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairreplay.sandbox import compiled, reference
from fairreplay.sandbox.engine import PS_PER_SECOND, QUEUE_FULL, REFUSED, PolicySpec, StepTime, TypeFloors
from tests.sandbox.scenarios import plan, workload

ENGINES = [reference, compiled]
A_SECOND_A_STEP = StepTime(PS_PER_SECOND, 0, 0, 0)


def started_s(engine: Any, work: Any, policy: PolicySpec, **settings: Any) -> list[int]:
    """When each request was scheduled, in seconds."""
    the_plan = plan(work, policy, **{"step_time": A_SECOND_A_STEP, "max_num_seqs": 1, **settings})
    return [int(ps) for ps in engine.run(work, the_plan).scheduled_ps // PS_PER_SECOND]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fcfs", "drr"])
def test_a_hard_floor_lends_nothing(engine: Any, name: str) -> None:
    """Of 10 tokens in 10 s 6 are kept for chat: long gets 4, two requests of 1 + 1, then waits although nobody runs."""
    floors = TypeFloors((), 10 * PS_PER_SECOND, caps=(10, 4))
    work = workload([("a", 0.0, 1, 1)] * 5 + [("b", 23.0, 1, 1)], types=["long"] * 5 + ["chat"])
    assert started_s(engine, work, PolicySpec(name, floors=floors)) == [0, 1, 10, 11, 20, 23]
    assert started_s(engine, work, PolicySpec(name)) == [0, 1, 2, 3, 4, 23]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("threshold", "starts", "preempted"), [(4, [0, 3], 1), (5, [0, 9], 0), (None, [0, 9], 0)])
def test_a_much_more_urgent_request_takes_the_seat(
    engine: Any, threshold: int | None, starts: list[int], preempted: int
) -> None:
    """Priorities 5 and 0 differ by more than 4 and not by more than 5. The other one goes on afterwards."""
    work = workload([("a", 0.0, 1, 9), ("b", 2.5, 1, 2)], priorities=[5, 0])
    spec = PolicySpec("priority", preemption_threshold=threshold)
    the_plan = plan(work, spec, step_time=A_SECOND_A_STEP, max_num_seqs=1)
    result = engine.run(work, the_plan)
    assert (result.scheduled_ps // PS_PER_SECOND).tolist() == starts
    assert result.preemptions.tolist() == [preempted, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_nobody_gives_way_if_that_would_not_be_enough(engine: Any) -> None:
    """Of 22 blocks c needs 20: a and b together have them and the seat, b alone has not and keeps its own."""
    work = workload([("a", 0.0, 2, 20), ("b", 0.0, 2, 20), ("c", 1.5, 20, 1)], priorities=[2, 9, 0])
    found = {}
    for threshold in (1, 5):
        spec = PolicySpec("priority", preemption_threshold=threshold)
        options = {"step_time": A_SECOND_A_STEP, "block_size": 1, "num_gpu_blocks": 23, "max_num_seqs": 2}
        result = engine.run(work, plan(work, spec, **options))
        found[threshold] = int(result.scheduled_ps[2] // PS_PER_SECOND), int(result.preemptions[0])
    assert found[1] == (2, 1)
    assert found[5] == (20, 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_whoever_finds_the_queue_full_is_refused(engine: Any) -> None:
    """One runs, two wait; the fourth is refused at its arrival, the fifth comes when one of them has begun."""
    work = workload([("a", at, 1, 5) for at in (0.0, 1.5, 2.5, 3.5, 5.5)])
    result = engine.run(work, plan(work, step_time=A_SECOND_A_STEP, max_num_seqs=1, queue_limit=2))
    assert np.flatnonzero(result.status == REFUSED).tolist() == [3]
    assert (result.reason[3], result.finished_ps[3] // PS_PER_SECOND) == (QUEUE_FULL, 4)
    free = engine.run(work, plan(work, step_time=A_SECOND_A_STEP, max_num_seqs=1))
    assert (free.status != REFUSED).all()
