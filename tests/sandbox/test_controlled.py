"""The compiled engine against the plain one under controls, to the bit, and what must hold under all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairreplay.sandbox import compiled, reference
from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.engine import COME_BACK, OK, REFUSED, PolicySpec
from tests.sandbox.random_cases import case, controlled
from tests.sandbox.test_compiled import differences

CASES = 400
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_random_cases_under_controls_are_equal_to_the_bit(part: int) -> None:
    """All policies and controls in combination; floors, prefix caching, async, prefill first, tight caches, changes."""
    for seed in range(part * CASES // PARTS, (part + 1) * CASES // PARTS):
        work, the_plan = controlled(seed)
        plain = reference.run(work, the_plan)
        assert differences(plain, compiled.run(work, the_plan)) == [], f"case {seed}"
        assert set(plain.status.tolist()) <= {OK, REFUSED}
        returns = plain.refusals[np.isin(plain.refusals[:, 3], COME_BACK)]
        count = np.bincount(returns[:, 0], minlength=len(work))
        assert the_plan.controls is not None
        assert (plain.attempts == np.minimum(1 + count, 1 + the_plan.controls.retries)).all()


def test_many_queues_under_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are kept where there are many queues see what controls do to these."""
    monkeypatch.setattr(compiled.engine, "MANY", 0)
    for seed in range(50_000, 50_100):
        work, the_plan = controlled(seed)
        policy = PolicySpec(("vtc", "sjf")[seed % 2], lift=seed % 3 > 0)
        the_plan = replace(
            the_plan, settings=tuple((at_ps, replace(one, policy=policy)) for at_ps, one in the_plan.settings)
        )
        assert differences(reference.run(work, the_plan), compiled.run(work, the_plan)) == [], f"case {seed}"


def test_everything_happens_in_these_cases() -> None:
    seen: set[int] = set()
    refused: set[int] = set()
    for seed in range(CASES):
        result = compiled.run(*controlled(seed))
        seen |= set(result.events[:, at.E_WHAT].tolist())
        refused |= set(result.refusals[:, 3].tolist())
    everything = {at.RATE_SET, at.VOLUNTARY_PREEMPTED, at.PREEMPTION_DENIED_SEEN, at.SWAPPED_OUT, at.SWAPPED_IN}
    everything |= {at.SWAP_FULL, at.MODE_SET, at.THROTTLED, at.ISOLATED, at.LONG_ADMITTED}
    assert seen == everything
    assert refused >= set(COME_BACK)


def test_controls_that_bind_nobody_change_no_case() -> None:
    for seed in range(9000, 9040):
        work, the_plan = case(seed)
        free = compiled.run(work, the_plan)
        held = compiled.run(work, replace(the_plan, controls=replace(controlled(seed)[1].controls, **IDLE)))  # type: ignore[type-var]
        for name in ("scheduled_ps", "first_token_ps", "finished_ps", "status", "preemptions", "computed_tokens"):
            assert (getattr(free, name) == getattr(held, name)).all(), f"case {seed}"


IDLE = {"retries": 0, "tenant_limits": (), "backpressure": None, "longs": None, "preemption": None, "emergency": None}
