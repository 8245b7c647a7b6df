"""Refusals by queue, by time in it and by tenant, and the return of what was refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairreplay.sandbox import compiled, reference
from fairreplay.sandbox.engine import (
    OK,
    PS_PER_SECOND,
    QUEUE_FULL,
    QUEUE_TIME,
    RATE_LIMITED,
    REFUSED,
    TENANT_QUEUE_FULL,
    Controls,
    EngineResult,
    PolicySpec,
    StepTime,
)
from fairreplay.sandbox.policies.rpm_limit import over_limit
from tests.sandbox.scenarios import plan, workload

ENGINES = [reference, compiled]
ONE_AT_A_TIME = {"step_time": StepTime(PS_PER_SECOND, 0, 0, 0), "max_num_seqs": 1}
"""A step takes a second, one request runs."""
S = PS_PER_SECOND


def seconds(column: np.ndarray[Any, np.dtype[np.int64]]) -> list[int]:
    return (column // S).tolist()


def served(engine: Any, rows: Any, controls: Controls | None = None, **settings: Any) -> EngineResult:
    work = workload(rows)
    result: EngineResult = engine.run(
        work, plan(work, controls=controls or Controls(), **{**ONE_AT_A_TIME, **settings})
    )
    return result


@pytest.mark.parametrize("engine", ENGINES)
def test_who_has_waited_too_long_is_refused(engine: Any) -> None:
    """a1 runs from 0 to 5 s. The others may wait 3 s: those of 1 s and 2 s are refused at 4 s and 5 s, that of 4 s is
    served at once at 5 s."""
    result = served(engine, [("a", at, 1, 5) for at in (0.0, 1.0, 2.0, 4.0)], queue_time_ps=3 * S)
    assert result.status.tolist() == [OK, REFUSED, REFUSED, OK]
    assert result.reason.tolist() == [0, QUEUE_TIME, QUEUE_TIME, 0]
    assert seconds(result.finished_ps) == [5, 4, 5, 10]
    assert result.attempts.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_preempted_request_is_not_refused_for_its_time_in_the_queue(engine: Any) -> None:
    """Of 8 blocks of a token a has 4 and b 4; both grow, b is preempted at once and waits 11 s, with tokens sent."""
    result = served(
        engine,
        [("a", 0.0, 3, 6), ("b", 0.0, 3, 6)],
        max_num_seqs=2,
        block_size=1,
        num_gpu_blocks=9,
        queue_time_ps=1 * S,
    )
    assert result.status.tolist() == [OK, OK]
    assert result.preemptions[1] > 0
    assert seconds(result.finished_ps)[1] - seconds(result.first_token_ps)[1] > 5


@pytest.mark.parametrize("engine", ENGINES)
def test_a_tenant_may_fill_only_its_own_queue(engine: Any) -> None:
    """a1 runs, a2 and a3 wait, a4 is refused; b has its own limit of 1: b2 is refused."""
    rows = [("a", 0.0, 1, 9), ("a", 1.0, 1, 1), ("a", 1.0, 1, 1), ("a", 1.0, 1, 1), ("b", 2.0, 1, 1), ("b", 3.0, 1, 1)]
    result = served(engine, rows, Controls(tenant_limits=(0, 1)), tenant_queue_limit=2)
    assert result.status.tolist() == [OK, OK, OK, REFUSED, OK, REFUSED]
    assert result.reason.tolist() == [0, 0, 0, TENANT_QUEUE_FULL, 0, TENANT_QUEUE_FULL]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("retries", "status", "attempts", "scheduled", "refusals"),
    [
        (0, REFUSED, 1, -1, [(2, 1, 2, QUEUE_FULL)]),
        (1, REFUSED, 2, -1, [(2, 1, 2, QUEUE_FULL), (2, 2, 4, QUEUE_FULL)]),
        (2, OK, 3, 10, [(2, 1, 2, QUEUE_FULL), (2, 2, 4, QUEUE_FULL)]),
    ],
)
def test_a_refused_request_comes_back(
    engine: Any, retries: int, status: int, attempts: int, scheduled: int, refusals: list[tuple[int, ...]]
) -> None:
    """One runs for 5 s, one waits for it; the third finds the queue full at 2 s and 4 s, not at 6 s."""
    rows = [("a", 0.0, 1, 5), ("a", 1.0, 1, 5), ("a", 2.0, 1, 5)]
    result = served(engine, rows, Controls(retries=retries, retry_after_ps=2 * S), queue_limit=1)
    assert (result.status[2], result.attempts[2]) == (status, attempts)
    assert [(*row[:2], row[2] // S, row[3]) for row in result.refusals.tolist()] == refusals
    assert result.scheduled_ps[2] // S == scheduled


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_limiter_refuses_comes_back(engine: Any) -> None:
    """Two a minute: the third comes at 2, 22 and 42 s in vain and is let through at 62 s; the fourth gives up.

    What finds the queue full had been let through: it comes back without the limiter.
    """
    rows = [("a", at, 1, 1) for at in (0.0, 1.0, 2.0, 3.0)]
    work = workload(rows)
    work = replace(work, over_limit=over_limit(work.arrival_ps, work.tenant, 2, 3, 20 * S))
    assert work.over_limit is not None
    assert work.over_limit.tolist() == [0, 0, 3, 3]
    work = replace(work, over_limit=np.array([0, 0, 3, 4]))
    controls = Controls(retries=3, retry_after_ps=20 * S)
    result = engine.run(work, plan(work, PolicySpec("rpm-limit", rpm=2), controls=controls, **ONE_AT_A_TIME))
    assert result.status.tolist() == [OK, OK, OK, REFUSED]
    assert result.attempts.tolist() == [1, 1, 4, 4]
    assert seconds(result.scheduled_ps)[:3] == [0, 1, 62]
    assert sorted((*row[:2], row[2] // S, row[3]) for row in result.refusals.tolist()) == [
        *((2, attempt, 20 * attempt - 18, RATE_LIMITED) for attempt in (1, 2, 3)),
        *((3, attempt, 20 * attempt - 17, RATE_LIMITED) for attempt in (1, 2, 3, 4)),
    ]

    full = workload([("a", 0.0, 1, 9), ("a", 0.5, 1, 1), ("a", 1.0, 1, 1)])
    full = replace(full, over_limit=np.array([0, 0, 1]))
    controls = Controls(retries=2, retry_after_ps=5 * S)
    the_plan = plan(full, PolicySpec("rpm-limit"), controls=controls, queue_limit=1, **ONE_AT_A_TIME)
    result = engine.run(full, the_plan)
    assert [(*row[:2], row[2] // S, row[3]) for row in result.refusals.tolist()] == [
        (2, 1, 1, RATE_LIMITED),
        (2, 2, 6, QUEUE_FULL),
    ]
    assert (result.status[2], result.attempts[2]) == (OK, 3)


@pytest.mark.parametrize("engine", ENGINES)
def test_who_comes_back_stands_behind_those_that_came_meanwhile(engine: Any) -> None:
    """Each runs 5 s, two may wait: the fourth is refused at 2 s and comes back at 10.5 s, after the fifth of 5.5 s."""
    rows = [("a", at, 1, 5) for at in (0.0, 1.0, 1.5, 2.0, 5.5)]
    result = served(engine, rows, Controls(retries=1, retry_after_ps=17 * S // 2), queue_limit=2)
    assert seconds(result.scheduled_ps) == [0, 5, 10, 20, 15]
    assert result.attempts.tolist() == [1, 1, 1, 2, 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_no_request_is_lost(engine: Any) -> None:
    """60 requests a second of which one can be served: all come back ten times, each ends once."""
    rows = [("ab"[at % 2], at / 60, 1, 1) for at in range(240)]
    controls = Controls(retries=10, retry_after_ps=S)
    result = served(engine, rows, controls, queue_limit=2, queue_time_ps=2 * S)
    assert set(result.status.tolist()) == {OK, REFUSED}
    assert (result.finished_ps >= 0).all()
    assert result.attempts.max() == 11
    refused = np.bincount(result.refusals[:, 0], minlength=240)
    assert (refused == result.attempts - (result.status == OK)).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_controls_that_bind_nobody_change_nothing(engine: Any) -> None:
    rows = [("a", 0.0, 1, 5), ("a", 1.0, 1, 5), ("b", 2.0, 1, 5), ("a", 6.0, 1, 5)]
    work = workload(rows)
    free = engine.run(work, plan(work, **ONE_AT_A_TIME))
    held = served(engine, rows, Controls(retries=3), queue_limit=9, queue_time_ps=60 * S, tenant_queue_limit=9)
    for name in ("scheduled_ps", "first_token_ps", "finished_ps", "status", "reason"):
        assert (getattr(free, name) == getattr(held, name)).all()
