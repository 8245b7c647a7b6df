"""Experts: the ranked cost of prompts, the drawn cost of steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairreplay.sandbox import reference
from fairreplay.sandbox.engine import EngineResult, Plan, PolicySpec, StepTime
from fairreplay.sandbox.extras import MICRO, Moe, drawn_cost, ranked_cost
from tests.sandbox.random_cases import case
from tests.sandbox.scenarios import admission_order, plan, workload
from tests.sandbox.test_speculation import seeded


def with_moe(the_plan: Plan, moe: Moe) -> Plan:
    return replace(the_plan, settings=tuple((at, replace(state, moe=moe)) for at, state in the_plan.settings))


def dense(types: int = 3) -> Moe:
    return Moe((MICRO,) * types, (0,) * types, independent=True)


@pytest.mark.parametrize(("independent", "cost"), [(True, 205), (False, 250)])
def test_ranked_cost_of_100_tokens(independent: bool, cost: int) -> None:
    assert ranked_cost(100, 2 * MICRO, MICRO // 2, MICRO, independent=independent) == cost * MICRO


@pytest.mark.parametrize(
    ("tokens", "risk", "independent", "cost"),
    [
        (0, 1, True, 0),
        (1, 1, True, 2_500_000),
        (2, 1, True, 4_707_105),  # 4 + sqrt(2)/2 = 4.70710678...: the root is cut after 18 bits
        (10_000, 3, True, 20_150 * MICRO),
        (10_000, 3, False, 35_000 * MICRO),
        (10_000, 0, False, 20_000 * MICRO),
    ],
)
def test_ranked_costs_are_integers(tokens: int, risk: int, independent: bool, cost: int) -> None:
    assert ranked_cost(tokens, 2 * MICRO, MICRO // 2, risk * MICRO, independent=independent) == cost


@pytest.mark.parametrize("independent", [True, False])
@pytest.mark.parametrize("tokens", [1, 25, 1024])
def test_drawn_costs_have_mean_and_spread(independent: bool, tokens: int) -> None:
    moe = Moe((2 * MICRO,), (MICRO // 2,), independent)
    costs = np.array([drawn_cost(moe, 0, seed * 104_729, 7, tokens) for seed in range(20_000)]) / MICRO
    assert costs.mean() == pytest.approx(2 * tokens, rel=0.01)
    assert costs.std() == pytest.approx(0.5 * (tokens**0.5 if independent else tokens), rel=0.02)
    assert costs.min() >= 0


def test_the_same_experts_stay_with_a_request_and_others_are_drawn_anew() -> None:
    moe = Moe((2 * MICRO,), (MICRO // 2,), independent=False)
    assert len({drawn_cost(moe, 0, 5, position, 1) for position in range(50)}) == 1
    assert len({drawn_cost(replace(moe, independent=True), 0, 5, position, 1) for position in range(50)}) > 3


@pytest.mark.parametrize("seed", range(40))
def test_a_token_that_always_costs_one_is_a_dense_token(seed: int) -> None:
    work, the_plan = case(seed)
    plain, with_one = reference.run(work, the_plan), reference.run(seeded(work), with_moe(the_plan, dense()))
    assert (plain.finished_ps == with_one.finished_ps).all()


def test_a_step_takes_what_its_tokens_cost() -> None:
    # 3 prompt tokens of type long at 2 each, then a decode at 2; chat costs 1: no spread
    moe = Moe((MICRO, 2 * MICRO), (0, 0), independent=True)
    work = seeded(workload([("a", 0, 3, 2), ("b", 0, 3, 2)], types=["long", "chat"]))
    result = reference.run(work, with_moe(plan(work, step_time=StepTime(1, 10, 100, 0)), moe))
    assert result.first_token_ps.tolist() == [1 + 60 + 30] * 2
    assert result.finished_ps.tolist() == [91 + 1 + 200 + 100] * 2


def costed(policy: str, risk: int) -> EngineResult:
    """Prompts of 90 tokens of type long (mean 1, spread 2) and of 100 of type chat (1, 0)."""
    work = workload([("a", 0, 50, 2), ("a", 0, 90, 2), ("b", 0, 100, 2)], types=["chat", "long", "chat"])
    moe = Moe((MICRO, MICRO), (0, 2 * MICRO), independent=True)
    costs = [
        ranked_cost(int(tokens), moe.mean[kind], moe.spread[kind], risk * MICRO, independent=True)
        for tokens, kind in zip(work.prompt_tokens, work.type, strict=True)
    ]
    work = replace(work, cost=np.array(costs, np.int64))
    return reference.run(work, plan(work, PolicySpec(policy, by_cost=True), max_num_seqs=1))


def test_sjf_on_the_safe_side_serves_the_sure_cost_first() -> None:
    # 90 + sqrt(90) * 2 = 108.97 > 100
    work = workload([("a", 0, 50, 2), ("a", 0, 90, 2), ("b", 0, 100, 2)])
    assert admission_order(work, costed("sjf", 0)) == "a1 a2 b1"
    assert admission_order(work, costed("sjf", 1)) == "a1 b1 a2"


@pytest.mark.parametrize("policy", ["wfq", "wfq+edf"])
def test_wfq_charges_the_cost(policy: str) -> None:
    """One tenant's prompts of one token cost 5, the other's 1: five of the latter for one of the former."""
    work = workload([("a", 0, 1, 0)] * 3 + [("b", 0, 1, 0)] * 12)
    work = replace(work, cost=np.where(work.tenant == 0, 5, 1) * MICRO)
    spec = PolicySpec(policy, by_cost=True, slo_ps=((1, 1, 1),) * 2, slack_ps=-(2**60))
    result = reference.run(work, plan(work, spec, max_num_seqs=1, step_time=StepTime(1, 0, 0, 0)))
    # equal tags go by name: a1 b1..b5, then at tag 5 a2 before b6
    assert admission_order(work, result) == "a1 b1 b2 b3 b4 b5 a2 b6 b7 b8 b9 b10 a3 b11 b12"
