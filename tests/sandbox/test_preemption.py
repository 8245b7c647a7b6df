"""Preemption for a head and its limits, victims in host memory, and long contexts near KV saturation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairreplay.sandbox import compiled, reference
from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.engine import (
    OK,
    PREEMPTION_DENIED,
    PS_PER_SECOND,
    REFUSED,
    Controls,
    EngineResult,
    LongAdmission,
    PolicySpec,
    Preemption,
    StepTime,
)
from tests.sandbox.scenarios import plan, workload

ENGINES = [reference, compiled]
S = PS_PER_SECOND
A_SECOND_A_STEP = StepTime(S, 0, 0, 0)
A_SECOND_A_TOKEN = StepTime(0, S, S, 0)
NO_LIMIT = Preemption(utilisation_max=10**9, recovery_max_ps=10**6 * S)


def seconds(column: np.ndarray[Any, np.dtype[np.int64]]) -> list[int]:
    return (column // S).tolist()


def told(result: EngineResult, what: int) -> list[tuple[int, int, int]]:
    """(second, who, value) of the events of a kind."""
    return [(e[0] // S, e[2], e[3]) for e in result.events.tolist() if e[1] == what]


# ---- who gives way ----


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "threshold", "gives_way"),
    [
        ("fcfs", 0, False),
        ("vtc", 11, True),  # a has been served 1 * 8 + 2 * 2 when b comes
        ("vtc", 30, False),
        ("sjf", 6, True),  # prompts of 8 and 1
        ("sjf", 7, False),
        ("edf", 5499, True),  # deadlines at 10 s and 1.5 + 3 s
        ("edf", 5500, False),
        ("type-priority", 0, True),
        ("type-priority", 1, False),
    ],
)
def test_who_is_behind_by_the_policys_rank_gives_way(engine: Any, name: str, threshold: int, gives_way: bool) -> None:
    work = workload([("a", 0.0, 8, 9), ("b", 1.5, 1, 2)], types=["long", "chat"])
    spec = PolicySpec(
        name,
        preemption_threshold=threshold,
        type_rank=(0, 1),
        lift=False,
        slo_ps=((10 * S,) * 3, (3 * S,) * 3) if name == "edf" else (),
    )
    result = engine.run(work, plan(work, spec, step_time=A_SECOND_A_STEP, max_num_seqs=1))
    assert seconds(result.scheduled_ps) == ([0, 2] if gives_way else [0, 9])
    assert result.preemptions.tolist() == [int(gives_way), 0]


def urgent(engine: Any, preemption: Preemption, **settings: Any) -> EngineResult:
    """a of priority 5 runs from 0 on, 9 tokens at a second each; b of priority 0 comes at 2.5 s and needs its seat."""
    work = workload([("a", 0.0, 1, 9), ("b", 2.5, 1, 2)], priorities=[5, 0])
    spec = PolicySpec("priority", preemption_threshold=1)
    chosen = {"step_time": A_SECOND_A_STEP, "max_num_seqs": 1, **settings}
    controls = Controls(preemption=preemption, retries=1, retry_after_ps=S)
    result: EngineResult = engine.run(work, plan(work, spec, controls=controls, **chosen))
    return result


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("limits", "budget", "starts"),
    [
        ({}, 8192, [0, 3]),
        ({"utilisation_max": 500_000}, 3, [0, 3]),  # a token of three is less than a half
        ({"utilisation_max": 500_000}, 2, [0, 9]),  # of two it is not
        ({"recovery_max_ps": S + 1}, 8192, [0, 3]),  # three tokens are computed again in one step
        ({"recovery_max_ps": S}, 8192, [0, 9]),
        ({"recovery_max_ps": 3 * S}, 2, [0, 3]),  # or in two
        ({"recovery_max_ps": 2 * S}, 2, [0, 9]),
    ],
)
def test_the_limits_of_preemption_for_a_head(
    engine: Any, limits: dict[str, int], budget: int, starts: list[int]
) -> None:
    spec = Preemption(**{"utilisation_max": 10**9, "recovery_max_ps": 10**6 * S, **limits})
    result = urgent(engine, spec, max_num_batched_tokens=budget)
    assert seconds(result.scheduled_ps) == starts
    assert bool(told(result, at.VOLUNTARY_PREEMPTED)) == (starts == [0, 3])
    assert bool(told(result, at.PREEMPTION_DENIED_SEEN)) == (starts == [0, 9])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_denied_head_is_refused_and_comes_back(engine: Any) -> None:
    """Denied at 3 s, back at 4 s, denied again, and refused for good."""
    result = urgent(engine, Preemption(utilisation_max=0, refuse=True))
    assert (result.status[1], result.reason[1], result.attempts[1]) == (REFUSED, PREEMPTION_DENIED, 2)
    assert [row[2] // S for row in result.refusals.tolist()] == [3, 4]


# ---- swap ----


def tight(engine: Any, preemption: Preemption | None, **settings: Any) -> EngineResult:
    """Two requests of 3 + 5 tokens in 10 blocks of one: when both grow the second gives its blocks up."""
    work = workload([("a", 0.0, 3, 5), ("b", 0.0, 3, 5)])
    chosen = {"step_time": A_SECOND_A_TOKEN, "block_size": 1, "num_gpu_blocks": 11, "max_num_seqs": 2, **settings}
    controls = Controls(preemption=preemption) if preemption else None
    result: EngineResult = engine.run(work, plan(work, controls=controls, **chosen))
    return result


@pytest.mark.parametrize("engine", ENGINES)
def test_a_victim_in_host_memory_computes_nothing_again(engine: Any) -> None:
    """6 prefill tokens take 6 s, then 2 s a step: b is preempted at 10 s with 5 of its 6 tokens computed.

    Computed anew they cost 5 s of prefill. From host memory they come back at half a second each, out and in.
    """
    anew = tight(engine, None)
    assert anew.preemptions.tolist() == [0, 1]
    assert anew.recomputed_tokens.tolist() == [0, 5]
    swapped = tight(engine, Preemption(swap=True, host_tokens=5, swap_token_ps=S // 2))
    assert swapped.preemptions.tolist() == [0, 1]
    assert swapped.recomputed_tokens.tolist() == [0, 0]
    assert told(swapped, at.SWAPPED_OUT) == [(10, 1, 5)]
    assert [event[1:] for event in told(swapped, at.SWAPPED_IN)] == [(1, 5)]
    # a: two steps left at a second each, and 2.5 s for the way out
    assert (swapped.finished_ps - anew.finished_ps)[0] == 5 * S // 2
    # b: in instead of computed, 2.5 s instead of 5 s, and the way out before
    assert (swapped.finished_ps - anew.finished_ps)[1] == 0
    free = tight(engine, Preemption(swap=True, host_tokens=5))
    assert (free.finished_ps - anew.finished_ps).tolist() == [0, -5 * S]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_finds_no_room_in_host_memory_is_computed_again(engine: Any) -> None:
    result = tight(engine, Preemption(swap=True, host_tokens=4))
    assert result.recomputed_tokens.tolist() == [0, 5]
    assert told(result, at.SWAP_FULL) == [(10, 1, 5)]
    assert told(result, at.SWAPPED_OUT) == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_swapping_loses_no_token(engine: Any, caching: bool, asynchronous: bool) -> None:
    work = workload([("ab"[n % 2], n / 3, 3 + n % 5, 4 + n % 7) for n in range(30)])
    options: dict[str, Any] = {"block_size": 2, "num_gpu_blocks": 12, "max_num_seqs": 6}
    options |= {"enable_prefix_caching": caching, "async_scheduling": asynchronous}
    limits = Preemption(swap=True, host_tokens=40, swap_token_ps=S // 100)
    result = engine.run(work, plan(work, controls=Controls(preemption=limits), step_time=A_SECOND_A_STEP, **options))
    assert result.status.tolist() == [OK] * 30
    moved = {what: sum(value for _, _, value in told(result, what)) for what in (at.SWAPPED_OUT, at.SWAPPED_IN)}
    assert 0 < moved[at.SWAPPED_IN] <= moved[at.SWAPPED_OUT]
    if not caching and not told(result, at.SWAP_FULL):
        assert result.recomputed_tokens.sum() == 0


# ---- long contexts ----


@pytest.mark.parametrize("engine", ENGINES)
def test_near_saturation_long_contexts_come_in_one_by_one(engine: Any) -> None:
    """Of 40 blocks 20 are in use: from a half on, a long one every 4 s, and short ones meanwhile."""
    rows = [("a", 0.0, 19, 60)] + [("b", 1.0, 6, 2)] * 3 + [("c", 1.0, 1, 2)] * 3
    work = workload(rows)
    options: dict[str, Any] = {"block_size": 1, "num_gpu_blocks": 201, "step_time": A_SECOND_A_STEP}
    longs = LongAdmission(tokens=5, rate=250, saturation=100_000)
    result = engine.run(work, plan(work, controls=Controls(longs=longs), **options))
    assert seconds(result.scheduled_ps) == [0, 1, 5, 9, 1, 1, 1]
    assert [who for _, who, _ in told(result, at.LONG_ADMITTED)] == [1, 2, 3]
    free = engine.run(work, plan(work, controls=Controls(longs=LongAdmission(5, 250, 900_000)), **options))
    assert seconds(free.scheduled_ps) == [0, 1, 1, 1, 1, 1, 1]
    assert not told(free, at.LONG_ADMITTED)
