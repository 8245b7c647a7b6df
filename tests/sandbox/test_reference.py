"""The plain engine on cases small enough to reckon by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.sandbox.engine import (
    LIVELOCK,
    NEVER,
    NEVER_FITS,
    OK,
    PS_PER_SECOND,
    REFUSED,
    TOO_LONG,
    EngineSettings,
    Plan,
    PolicySpec,
    Step,
    StepTime,
    check_plan,
)
from fairreplay.sandbox.reference import run
from tests.sandbox.scenarios import Row, admission_order, plan, workload

A4_B6: list[Row] = [("a", 0, 10, 5)] * 4 + [("b", 0, 2, 2)] * 6


def seconds(ps: np.ndarray) -> list[float]:
    return [value / PS_PER_SECOND if value != NEVER else -1 for value in ps.tolist()]


def test_step_time_counts_prefill_decodes_and_context() -> None:
    # One request of 100 in, 3 out: prefill 10 + 100*2 + 100*1 = 310, then decodes 10 + 1*5 + 101 and 10 + 5 + 102.
    work = workload([("a", 0, 100, 3)])
    result = run(work, plan(work, step_time=StepTime(10, 2, 5, 1)))
    assert result.scheduled_ps.tolist() == [0]
    assert result.first_token_ps.tolist() == [310]
    assert result.finished_ps.tolist() == [310 + 116 + 117]
    assert result.computed_tokens.tolist() == [102]  # the last sampled token is never computed
    assert result.steps == 3


def test_an_embedding_is_prefill_only() -> None:
    work = workload([("a", 0, 100, 0)])
    result = run(work, plan(work, step_time=StepTime(10, 2, 5, 1)))
    assert result.first_token_ps.tolist() == result.finished_ps.tolist() == [310]
    assert result.status.tolist() == [OK]


def test_a_prompt_over_the_budget_is_prefilled_in_chunks() -> None:
    # 100 tokens by 40: three steps of 40, 40, 20; each takes a second a token here; the first token comes at 100 s.
    work = workload([("a", 0, 100, 1)])
    step_time = StepTime(0, PS_PER_SECOND, 0, 0)
    result = run(work, plan(work, step_time=step_time, max_num_batched_tokens=40))
    assert (seconds(result.first_token_ps), result.steps) == ([100.0], 3)


@pytest.mark.parametrize(
    ("weights", "order"),
    [
        ({}, "a1 b1 b2 b3 b4 a2 b5 b6 a3 a4"),
        ({"a": 2.0}, "a1 b1 b2 a2 b3 b4 a3 b5 a4 b6"),
    ],
)
def test_vtc_worked_sequences(weights: dict[str, float], order: str) -> None:
    work = workload(A4_B6)
    result = run(work, plan(work, "vtc", weights=weights, max_num_seqs=1))
    assert admission_order(work, result) == order


@pytest.mark.parametrize(
    ("lift", "order"),
    [
        (True, "a1 b1 b2 b3 b4 a2 b5 a3 b6 a4 b7 a5 b8"),
        (False, "a1 b1 b2 b3 b4 a2 a3 a4 a5 b5 b6 b7 b8"),
    ],
)
def test_vtc_lifts_a_tenant_that_returns(lift: bool, order: str) -> None:
    # Ties go by name here, so a1 stands before b1 in the source. Two output tokens: one decode second a request.
    rows: list[Row] = [("a", 0, 2, 2), *[("b", 0, 2, 2)] * 8, *[("a", 10, 2, 2)] * 4]
    work = workload(rows)
    two_seconds = StepTime(base=PS_PER_SECOND, prefill_token=0, decode_sequence=0, context_token=0)
    result = run(work, plan(work, PolicySpec("vtc", lift=lift), max_num_seqs=1, step_time=two_seconds))
    assert admission_order(work, result) == order


def test_type_priority_and_sjf_order_the_heads() -> None:
    rows: list[Row] = [("a", 0, 5, 1), ("a", 0, 9, 1), ("a", 0, 7, 1)]
    kinds = ["long", "chat", "embed"]  # sorted: chat, embed, long
    work = workload(rows, types=kinds)
    by_type = PolicySpec("type-priority", type_rank=(1, 0))  # embed, then chat; long is not listed: last
    one_second = StepTime(PS_PER_SECOND, 0, 0, 0)
    result = run(work, plan(work, by_type, max_num_seqs=1, step_time=one_second))
    assert admission_order(work, result) == "a3 a2 a1"
    result = run(work, plan(work, "sjf", max_num_seqs=1, step_time=one_second))
    assert admission_order(work, result) == "a1 a3 a2"


def test_prefill_first_stops_decoding_for_a_batch_that_runs_alone() -> None:
    # a decodes (1 s a step); b arrives at 0.5 s and waits until 3 decode steps have passed, is prefilled alone in 4 s.
    work = workload([("a", 0, 4, 6), ("b", 0.5, 4, 2)])
    steps: list[Step] = []
    step_time = StepTime(0, PS_PER_SECOND, PS_PER_SECOND, 0)
    run(work, plan(work, step_time=step_time, prefill_first=True, prefill_interval=3), steps.append)
    assert [step.scheduled for step in steps] == [
        [(0, 4, 1)],
        [(0, 1, 0)],
        [(0, 1, 0)],
        [(0, 1, 0)],
        [(1, 4, 1)],
        [(0, 1, 0), (1, 1, 0)],
        [(0, 1, 0)],
    ]
    assert [step.t_ps // PS_PER_SECOND for step in steps] == [0, 4, 5, 6, 7, 11, 13]


def test_prefill_first_tries_every_step_once_the_interval_has_passed() -> None:
    # Two seats: b cannot enter until a finishes; then it does at once, whatever the count of decode steps.
    work = workload([("a", 0, 1, 5), ("b", 0, 1, 2)])
    result = run(work, plan(work, prefill_first=True, prefill_interval=2, max_num_seqs=1))
    assert seconds(result.scheduled_ps) == [0.0, 4.0]


def test_reserve_holds_the_whole_kv_from_the_start() -> None:
    # 9 usable blocks of 1 token. a holds 4 + 4 - 1 = 7; b needs 3 + 1 - 1 = 3 > 2, although its prompt alone (3) also
    # fits only after a; with chunk admission a takes 4 first, so b's 3 fit at once.
    work = workload([("a", 0, 4, 4), ("b", 0, 3, 1)])
    held = run(work, plan(work, block_size=1, num_gpu_blocks=10, reserve_full_kv=True))
    assert seconds(held.scheduled_ps) == [0.0, 3.0]
    chunk = run(work, plan(work, block_size=1, num_gpu_blocks=10))
    assert seconds(chunk.scheduled_ps) == [0.0, 0.0]
    assert held.preemptions.tolist() == [0, 0]


def test_preemption_recomputes_prompt_and_output() -> None:
    # 5 usable blocks of 1 token: a (2 in, 3 out) and b (2 in, 2 out) take 4; a's first decode takes the fifth, b's
    # needs a sixth: b is preempted with 1 token sampled, and later recomputes 2 prompt tokens of its 3 known ones.
    work = workload([("a", 0, 2, 3), ("b", 0, 2, 2)])
    result = run(work, plan(work, block_size=1, num_gpu_blocks=6))
    assert result.preemptions.tolist() == [0, 1]
    assert result.recomputed_tokens.tolist() == [0, 2]
    assert result.computed_tokens.tolist() == [4, 2 + 3]
    assert result.status.tolist() == [OK, OK]


def test_settings_change_in_mid_run_and_a_smaller_cache_preempts() -> None:
    # 8 usable blocks hold a and b; at 2 s only 5 remain, b (the last) must go and comes back when a has finished.
    work = workload([("a", 0, 2, 4), ("b", 0, 2, 3)])
    first = plan(work, block_size=1, num_gpu_blocks=9)
    smaller = replace(first.settings[0][1], num_gpu_blocks=6)
    changed = replace(first, settings=(*first.settings, (2 * PS_PER_SECOND, smaller)))
    result = run(work, changed)
    assert result.preemptions.tolist() == [0, 1]
    assert run(work, first).preemptions.tolist() == [0, 0]


def test_a_faster_engine_from_an_instant_on() -> None:
    work = workload([("a", 0, 1, 5)])
    slow = plan(work)
    fast = replace(slow.settings[0][1], step_time=StepTime(0, 0, PS_PER_SECOND // 2, 0))
    result = run(work, replace(slow, settings=(*slow.settings, (2 * PS_PER_SECOND, fast))))
    assert seconds(result.finished_ps) == [3.0]  # two decodes of 1 s, two of 0.5 s


def test_a_policy_change_reorders_who_waits() -> None:
    work = workload([("a", 0, 1, 3), ("a", 0, 9, 1), ("b", 0, 5, 1)])
    slow_prefill = StepTime(0, PS_PER_SECOND, PS_PER_SECOND, 0)
    first = plan(work, max_num_seqs=1, step_time=slow_prefill)
    later = replace(first.settings[0][1], policy=PolicySpec("sjf"))
    result = run(work, replace(first, settings=(*first.settings, (PS_PER_SECOND, later))))
    assert admission_order(work, result) == "a1 b1 a2"


def test_requests_that_no_setting_can_serve_are_refused_with_a_reason() -> None:
    work = workload([("a", 0, 4096, 5), ("a", 0, 100, 900), ("a", 0, 10, 2)])
    result = run(work, plan(work, max_model_len=4096, num_gpu_blocks=11, block_size=16))
    assert result.status.tolist() == [REFUSED, REFUSED, OK]
    assert result.reason.tolist() == [TOO_LONG, NEVER_FITS, 0]
    assert result.scheduled_ps.tolist()[:2] == [NEVER, NEVER]


def test_a_head_that_can_never_be_admitted_does_not_block_the_queue_for_ever() -> None:
    # Without chunked prefill a prompt over the budget is never admitted; the real server would hang here.
    work = workload([("a", 0, 100, 2), ("a", 0, 10, 2)])
    result = run(work, plan(work, enable_chunked_prefill=False, max_num_batched_tokens=50))
    assert result.status.tolist() == [REFUSED, OK]
    assert result.reason.tolist() == [LIVELOCK, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs = 0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens = 0"),
        ({"num_gpu_blocks": 1}, "num_gpu_blocks = 1"),
        ({"async_scheduling": True, "prefill_first": True}, "prefill-first"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(change: dict[str, object], message: str) -> None:
    work = workload([("a", 0, 1, 1)])
    with pytest.raises(ValueError, match=message):
        check_plan(plan(work, **change))


@st.composite
def tight_cases(draw: st.DrawFn) -> tuple[list[Row], dict[str, object], str]:
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from("abc"), st.sampled_from([0.0, 1.0, 2.5, 7.0]), st.integers(1, 40), st.integers(0, 20)
            ),
            min_size=1,
            max_size=10,
        )
    )
    prefill_first = draw(st.booleans())
    options: dict[str, object] = {
        "block_size": draw(st.sampled_from([1, 3, 16])),
        "max_num_seqs": draw(st.integers(1, 5)),
        "max_num_batched_tokens": draw(st.integers(4, 64)),
        "prefill_first": prefill_first,
        "async_scheduling": not prefill_first and draw(st.booleans()),
        "reserve_full_kv": draw(st.booleans()),
        "enable_prefix_caching": draw(st.booleans()),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "prefill_interval": draw(st.integers(0, 4)),
    }
    needed = max(-(-(row[2] + max(0, row[3] - 1)) // int(str(options["block_size"]))) for row in rows)
    options["num_gpu_blocks"] = 1 + needed + draw(st.integers(0, 3))
    return rows, options, draw(st.sampled_from(["fcfs", "priority", "vtc", "sjf"]))


@settings(max_examples=300, derandomize=True, deadline=None)
@given(tight_cases())
def test_laws_under_tight_memory(case: tuple[list[Row], dict[str, object], str]) -> None:
    """Nobody is lost, times are in order, KV never overdrawn, tokens add up."""
    rows, options, policy = case
    work = workload(rows, priorities=[index % 3 for index in range(len(rows))])
    the_plan = plan(work, policy, step_time=StepTime(5, 3, 2, 1), **options)
    usable = the_plan.settings[0][1].num_gpu_blocks - 1
    steps: list[Step] = []
    result = run(work, the_plan, steps.append)
    assert set(result.status.tolist()) <= {OK, REFUSED}
    served = result.status == OK
    assert (result.scheduled_ps[served] >= work.arrival_ps[served]).all()
    assert (result.first_token_ps[served] > result.scheduled_ps[served]).all()
    assert (result.finished_ps[served] >= result.first_token_ps[served]).all()
    needed = work.prompt_tokens + np.maximum(0, work.output_tokens - 1)
    assert (result.computed_tokens[served] + result.cached_tokens[served] >= needed[served]).all()
    assert (result.recomputed_tokens[result.preemptions == 0] == 0).all()
    assert all(0 <= step.free_blocks_scheduled <= usable for step in steps)
    assert all(
        sum(tokens for _, tokens, _ in step.scheduled) <= the_plan.settings[0][1].max_num_batched_tokens
        for step in steps
    )
    assert sorted(index for step in steps for index in step.finished) == np.flatnonzero(served).tolist()
    assert steps[-1].free_blocks == usable
    assert sum(tokens for step in steps for _, tokens, _ in step.scheduled) == result.computed_tokens.sum()


def test_defaults_of_engine_settings_are_a_runnable_plan() -> None:
    check_plan(Plan(settings=((0, EngineSettings(StepTime(1, 1, 1, 1))),), weights=((0, np.ones(1, np.int64)),)))
