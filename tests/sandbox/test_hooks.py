"""What counterfactuals change, on loads small enough to reckon by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from fairreplay.sandbox import compiled, hooks, reference
from fairreplay.sandbox.engine import (
    FLOOR_SCALE,
    PS_PER_SECOND,
    WEIGHT_SCALE,
    EngineSettings,
    Plan,
    PolicySpec,
    StepTime,
    TypeFloors,
)
from tests.sandbox.random_cases import case
from tests.sandbox.scenarios import admission_order, plan, workload

DAY_PS = 86_400 * PS_PER_SECOND


def test_prefixes_stay_with_their_requests() -> None:
    work, _plan = case(3)
    rows = np.arange(len(work)) % 2 == 1
    half = hooks.select(work, rows)
    for place, row in enumerate(np.flatnonzero(rows)):
        own = half.prefix_ids[half.prefix_start[place] : half.prefix_start[place + 1]]
        assert own.tolist() == work.prefix_ids[work.prefix_start[row] : work.prefix_start[row + 1]].tolist()


def test_speed_and_kv_scale_at_every_instant() -> None:
    work = workload([("a", 0, 100, 3)])
    slow = plan(work, step_time=StepTime(10, 2, 5, 1), num_gpu_blocks=101, watermark_blocks=4)
    both = replace(slow, settings=(*slow.settings, (5, slow.settings[0][1])))
    scaled = hooks.scaled(both, speed=Fraction(5, 4), kv=Fraction(5, 4))
    for _at, state in scaled.settings:
        assert state.step_time == StepTime(8, 2, 4, 1)  # 1.6 and 0.8 are rounded
        assert (state.num_gpu_blocks, state.watermark_blocks) == (126, 5)
    assert hooks.scaled(both) == both
    with pytest.raises(ValueError, match="above 0"):
        hooks.scaled(both, speed=Fraction(0))


def test_reserve_ends_preemption() -> None:
    work = workload([("a", 0, 2, 3), ("b", 0, 2, 2)])
    tight = plan(work, block_size=1, num_gpu_blocks=6)
    assert compiled.run(work, tight).preemptions.sum() == 1
    assert compiled.run(work, hooks.with_reserve(tight)).preemptions.sum() == 0


def test_weights_are_replaced_for_tenants_and_requests() -> None:
    work = workload([("a", 0, 10, 5)] * 4 + [("b", 0, 2, 2)] * 6)
    work = replace(work, request_weight=np.full(10, 77, np.int64))
    equal = plan(work, "vtc", max_num_seqs=1)
    heavy = np.array([WEIGHT_SCALE // 2, WEIGHT_SCALE], np.int64)
    result = compiled.run(hooks.without_own_weights(work), hooks.with_weights(equal, heavy))
    assert admission_order(work, result) == "a1 b1 b2 a2 b3 b4 a3 b5 a4 b6"


def test_a_type_below_its_floor_goes_first() -> None:
    """Chat before long by policy; with a floor of a quarter, long goes whenever it was served less than that.

    Every request is 1 + 1 tokens, one is served a second. Long has 0 of 2 tokens after a1, so a7 goes; then 2 of 4, of
    6, of 8 (a quarter, not less), 2 of 10 after a4: a8 goes; 4 of 12, of 14, of 16.
    """
    work = workload([("a", 0, 1, 1)] * 9, types=["chat"] * 6 + ["long"] * 3)
    one_a_second = StepTime(PS_PER_SECOND, 0, 0, 0)
    strict = plan(work, PolicySpec("type-priority", type_rank=(0, 1)), max_num_seqs=1, step_time=one_a_second)
    floored = hooks.with_floors(strict, TypeFloors(shares=(0, FLOOR_SCALE // 4), window_ps=DAY_PS))
    for engine in (reference, compiled):
        assert admission_order(work, engine.run(work, strict)) == "a1 a2 a3 a4 a5 a6 a7 a8 a9"
        assert admission_order(work, engine.run(work, floored)) == "a1 a7 a2 a3 a4 a8 a5 a6 a9"
    assert hooks.with_floors(floored, None) == strict


def test_floors_count_anew_in_each_window() -> None:
    """As above with windows of 3 s: at 3 s nothing has been served yet, so a3 goes, not a7's successor; then a8."""
    work = workload([("a", 0, 1, 1)] * 9, types=["chat"] * 6 + ["long"] * 3)
    one_a_second = StepTime(PS_PER_SECOND, 0, 0, 0)
    strict = plan(work, PolicySpec("type-priority", type_rank=(0, 1)), max_num_seqs=1, step_time=one_a_second)
    floors = TypeFloors(shares=(0, FLOOR_SCALE // 4), window_ps=3 * PS_PER_SECOND)
    result = compiled.run(work, hooks.with_floors(strict, floors))
    assert admission_order(work, result) == "a1 a7 a2 a3 a8 a4 a5 a9 a6"


def test_a_factor_holds_in_its_span_only() -> None:
    """Settings change at 10; the factor holds from 5 to 15: four states, 5 and 10 of them scaled."""
    first = EngineSettings(StepTime(100, 10, 4, 2), num_gpu_blocks=101, watermark_blocks=10)
    second = replace(first, num_gpu_blocks=201)
    whole = Plan(settings=((0, first), (10, second)), weights=((0, np.ones(1, np.int64)),))
    half = hooks.scaled(whole, Fraction(1, 2), Fraction(1, 4), 5, 15)
    assert [
        (at, state.step_time.base, state.num_gpu_blocks, state.watermark_blocks) for at, state in half.settings
    ] == [
        (0, 100, 101, 10),
        (5, 200, 26, 2),
        (10, 200, 51, 2),
        (15, 100, 201, 10),
    ]
    assert hooks.scaled(whole, Fraction(2), since_ps=10).settings[0] == (0, first)
    assert hooks.scaled(whole, Fraction(2), since_ps=7, until_ps=7).settings[1:] == ((7, first), (10, second))
