"""Speculative decoding: what drafts give, what rejected ones cost, and whom they hold up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairreplay.sandbox import reference
from fairreplay.sandbox.engine import EngineResult, Plan, Step, StepTime
from fairreplay.sandbox.extras import CERTAIN, Speculation, accepted_drafts, draw, tokens_a_step
from tests.sandbox.random_cases import case
from tests.sandbox.scenarios import plan, workload


def speculation(
    acceptance: float, drafts: int = 4, draft_ps: int = 0, verify_ps: int = 0, types: int = 3
) -> Speculation:
    return Speculation(drafts, (round(acceptance * CERTAIN),) * types, draft_ps, verify_ps)


def speculating(the_plan: Plan, how: Speculation) -> Plan:
    states = tuple((at, replace(state, speculation=how)) for at, state in the_plan.settings)
    return replace(the_plan, settings=states)


def seeded(work, seed: int = 0):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    return replace(work, draw=rng.integers(-(2**63), 2**63 - 1, len(work)))


def test_mean_tokens_of_a_target_step() -> None:
    assert tokens_a_step(0.7, 4) == pytest.approx(2.7731)
    assert tokens_a_step(1.0, 4) == 5
    assert tokens_a_step(0.0, 4) == tokens_a_step(0.3, 0) == 1


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("drafts", [1, 4, 8])
def test_drawn_acceptances_have_that_mean(acceptance: float, drafts: int) -> None:
    how = speculation(acceptance, drafts)
    taken = [
        1 + accepted_drafts(how, 0, seed * 7919, position) for seed in range(200) for position in range(0, 2000, 20)
    ]
    assert np.mean(taken) == pytest.approx(tokens_a_step(acceptance, drafts), rel=0.01)


def test_draws_are_those_of_splitmix64() -> None:
    # the published sequence from state 1234567: its first output, without the low 11 bits
    assert draw(1234567, 1) == 6457827717110365317 >> 11
    assert draw(1234567, 2) == 3203168211198807973 >> 11


def test_a_run_gives_that_many_tokens_a_step() -> None:
    work = seeded(workload([("a", 0, 1, 3000)] * 40))
    the_plan = speculating(plan(work, max_model_len=10**6, num_gpu_blocks=10**6), speculation(0.7))
    result = reference.run(work, the_plan)
    # the last step of a request may give more than it still needs
    steps = result.details["decode_steps"]
    assert (40 * 2999) / steps.sum() == pytest.approx(2.7731, rel=0.01)
    assert (result.details["drafted"] == 4 * steps).all()
    assert (result.details["drafted"] - result.details["rejected"] + steps == 2999).all()


@pytest.mark.parametrize("seed", range(100))
def test_without_acceptance_a_run_costs_exactly_the_drafts(seed: int) -> None:
    """All arrive at once, so that what is later does not change who meets whom: step by step the same."""
    work, the_plan = case(seed, most_requests=20)
    work = seeded(replace(work, arrival_ps=np.zeros_like(work.arrival_ps)))
    the_plan = replace(the_plan, settings=((0, the_plan.settings[0][1]),), weights=the_plan.weights[:1])
    spec = replace(the_plan.settings[0][1].policy, floors=None)
    the_plan = replace(the_plan, settings=((0, replace(the_plan.settings[0][1], policy=spec)),))
    if spec.name in ("user", "qoserve", "wfq+edf", "quantile"):
        return  # their ranks know the time of day
    plain = reference.run(work, the_plan)
    drafting = reference.run(work, speculating(the_plan, speculation(0.0, 3, draft_ps=5, verify_ps=2)))
    assert drafting.steps == plain.steps
    assert drafting.end_ps - plain.end_ps == 7 * int(drafting.details["drafted"].sum())
    assert (drafting.details["rejected"] == drafting.details["drafted"]).all()
    assert (drafting.preemptions == plain.preemptions).all()


def test_certain_acceptance_gives_k_plus_one_tokens_a_step() -> None:
    # 11 output tokens: the prefill's, then two steps of 5
    work = seeded(workload([("a", 0, 10, 11)]))
    how = speculation(1.0, 4, draft_ps=3, verify_ps=2)
    steps: list[Step] = []
    result = reference.run(work, speculating(plan(work, step_time=StepTime(100, 0, 10, 0)), how), steps.append)
    assert [step.scheduled for step in steps] == [[(0, 10, 1)], [(0, 5, 0)], [(0, 5, 0)]]
    assert result.finished_ps.tolist() == [100 + 2 * (110 + 4 * 5)]
    assert result.details["rejected"].tolist() == [0]


def test_rejected_drafts_hold_other_tenants_up() -> None:
    # type 0 accepts nothing, type 1 everything; a and b decode together: a's 2 rejected drafts a step take 2 * 7 ps
    work = seeded(workload([("a", 0, 1, 3), ("b", 0, 1, 7)], types=["chat", "long"]))
    how = Speculation(2, (0, CERTAIN), 5, 2)
    result = reference.run(work, speculating(plan(work, step_time=StepTime(100, 0, 0, 0)), how))
    assert result.details["decode_steps"].tolist() == [2, 2]
    assert result.details["rejected"].tolist() == [4, 0]
    assert result.details["held_up_ps"].tolist() == [0, 2 * 2 * 7]
    assert result.details["imposed_ps"].tolist() == [2 * 2 * 7, 0]
    assert result.finished_ps.tolist() == [100 + 2 * (100 + 4 * 7)] * 2


@pytest.mark.parametrize("seed", range(100, 160))
def test_what_is_imposed_is_what_is_suffered(seed: int) -> None:
    work, the_plan = case(seed, most_requests=20)
    work = seeded(work, seed)
    result: EngineResult = reference.run(work, speculating(the_plan, speculation(0.5, 3, 4, 3)))
    assert result.details["held_up_ps"].sum() == result.details["imposed_ps"].sum()
    assert (result.details["rejected"] <= result.details["drafted"]).all()
    if len(set(work.tenant.tolist())) == 1:
        assert not result.details["held_up_ps"].any()
