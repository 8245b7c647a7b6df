"""Pools, drafts, experts and precisions: the compiled engine against the plain one, to the bit, in combination."""

from __future__ import annotations

from dataclasses import fields, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.sandbox import compiled, reference
from fairreplay.sandbox.engine import EngineResult, EngineSettings, Plan, Workload
from fairreplay.sandbox.extras import CERTAIN, MICRO, Disaggregated, Moe, Speculation, ranked_cost
from tests.sandbox.random_cases import case


def differences(plain: EngineResult, fast: EngineResult) -> list[str]:
    named = [field.name for field in fields(plain) if field.name != "details"]
    found = [name for name in named if not np.array_equal(getattr(plain, name), getattr(fast, name))]
    assert sorted(plain.details) == sorted(fast.details)
    return found + [name for name in plain.details if not np.array_equal(plain.details[name], fast.details[name])]


def extra_case(seed: int, *, of: tuple[bool, bool, bool, bool]) -> tuple[Workload, Plan]:
    """A random case; ``of``: whether there are pools, drafts, experts, precisions."""
    rng = np.random.default_rng(seed + 10**6)
    pools, drafts, experts, precisions = of
    fixed: dict[str, object] = {}
    if precisions:
        fixed["enable_prefix_caching"] = True
    if pools:
        fixed["max_model_len"] = int(rng.choice([40, 400]))
    work, the_plan = case(seed, most_requests=16, **fixed)
    kinds = len(work.types)
    mean = rng.integers(1, 4 * MICRO, kinds)
    moe = Moe(tuple(mean.tolist()), tuple((mean * rng.integers(0, 3, kinds) // 2).tolist()), bool(rng.random() < 0.5))
    speculation = Speculation(
        drafts=int(rng.integers(1, 6)),
        accepted=tuple(int(chance * CERTAIN) for chance in rng.choice([0, 0.3, 0.7, 1], kinds)),
        draft_ps=int(rng.integers(0, 20)),
        verify_ps=int(rng.integers(0, 20)),
    )
    switch = str(rng.choice(["keep", "drop"]))
    decode_blocks = int(rng.choice([0, max(state.num_gpu_blocks for _, state in the_plan.settings)]))
    faster = bool(rng.random() < 0.3)

    def extended(number: int, state: EngineSettings) -> EngineSettings:
        spec = state.policy
        if experts and spec.name in ("sjf", "wfq", "wfq+edf"):
            spec = replace(spec, by_cost=True)
        if precisions:
            spec = replace(spec, preemption_threshold=None)
        drafting = replace(speculation, draft_ps=speculation.draft_ps + number) if faster else speculation
        return replace(
            state,
            policy=spec,
            moe=moe if experts else None,
            speculation=drafting if drafts else None,
            precision_switch=switch if precisions else "",
            decode_gpu_blocks=decode_blocks,
        )

    costs = [
        ranked_cost(int(tokens), moe.mean[kind], moe.spread[kind], MICRO, independent=moe.independent)
        for tokens, kind in zip(work.prompt_tokens, work.type, strict=True)
    ]
    work = replace(
        work,
        draw=rng.integers(-(2**63), 2**63 - 1, len(work)),
        cost=np.array(costs, np.int64),
        precision=rng.integers(0, int(rng.integers(1, 4)), len(work)),
    )
    link = [None, Fraction(10**9), Fraction(10**12), Fraction(10**13, 7)][int(rng.integers(4))]
    disaggregated = Disaggregated(
        prefill_replicas=int(rng.integers(1, 4)),
        decode_replicas=int(rng.integers(1, 4)),
        kv_bytes_per_token=int(rng.integers(1, 100)),
        link_bytes_per_s=link,
    )
    states = tuple((at, extended(number, state)) for number, (at, state) in enumerate(the_plan.settings))
    return work, replace(the_plan, settings=states, disaggregated=disaggregated if pools else None)


@settings(max_examples=500, derandomize=True, deadline=None)
@given(st.integers(0, 10**9), st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()))
def test_random_cases_are_equal_to_the_bit(seed: int, of: tuple[bool, bool, bool, bool]) -> None:
    work, the_plan = extra_case(seed, of=of)
    assert differences(reference.run(work, the_plan), compiled.run(work, the_plan)) == []


@pytest.mark.parametrize("seed", range(20))
def test_steps_of_both_pools_are_summed_together(seed: int) -> None:
    work, the_plan = extra_case(seed, of=(True, False, False, False))
    result, sums = compiled.run_with_sums(work, the_plan, 0)
    assert sums.steps.sum() >= result.steps  # passes that only take output in are counted too
    assert sums.tokens.sum() == result.computed_tokens.sum()
    assert len(set(zip(sums.second.tolist(), sums.kind.tolist(), strict=True))) == len(sums.kind)
