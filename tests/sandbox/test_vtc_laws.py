"""What virtual token counters promise: a bound between backlogged tenants, and a fair share after an absence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.sandbox import compiled, reference
from fairreplay.sandbox.engine import PS_PER_SECOND, EngineResult, PolicySpec, Step, StepTime, Workload
from tests.sandbox.scenarios import Row, plan, workload

A_SECOND_A_STEP = StepTime(PS_PER_SECOND, 0, 0, 0)
W_IN, W_OUT = 1, 2


class Backlogs:
    """Service of each tenant and who waits, after every pass."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self._waiting: list[set[int]] = [set() for _ in work.tenants]
        self._served = [0 for _ in work.tenants]
        self._known: dict[int, int] = {}
        self.passes: list[tuple[tuple[bool, ...], tuple[int, ...]]] = []

    def __call__(self, step: Step) -> None:
        assert not step.preempted
        for request in step.arrived:
            self._waiting[self._work.tenant[request]].add(request)
        for request, _, _ in step.admitted:
            self._waiting[self._work.tenant[request]].discard(request)
            self._served[self._work.tenant[request]] += W_IN * int(self._work.prompt_tokens[request])
            self._known[request] = int(self._work.prompt_tokens[request])
        for request, tokens, _ in step.scheduled:
            self._known[request] -= tokens
            if self._known[request] <= 0:  # its prompt is computed: every further pass samples a token
                self._served[self._work.tenant[request]] += W_OUT
        waits = tuple(bool(requests) for requests in self._waiting)
        self.passes.append((waits, tuple(self._served)))

    def widest_gap(self, one: int, other: int) -> int:
        """Largest change of the difference of service within a span in which both wait throughout."""
        widest, low, high = 0, None, None
        for waits, served in self.passes:
            difference = served[one] - served[other]
            if not (waits[one] and waits[other]):
                low = high = None
                continue
            low = difference if low is None else min(low, difference)
            high = difference if high is None else max(high, difference)
            widest = max(widest, high - low)
        return widest


@settings(max_examples=150, derandomize=True, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.integers(1, 40), st.integers(1, 25)),
        min_size=20,
        max_size=70,
    ),
    st.integers(5, 12),
    st.integers(2, 8),
)
def test_backlogged_tenants_stay_within_the_bound(rows: list[Row], blocks: int, seqs: int) -> None:
    """Two backlogged tenants' service differs by at most ``2 * max(w_in * L_in, w_out * M)``, M the KV's tokens."""
    size = 16
    work = workload(rows)
    seen = Backlogs(work)
    the_plan = plan(
        work,
        PolicySpec("vtc", prompt_cost=W_IN, output_cost=W_OUT),
        step_time=A_SECOND_A_STEP,
        block_size=size,
        num_gpu_blocks=blocks + 1,
        max_num_seqs=seqs,
        reserve_full_kv=True,
    )
    result = reference.run(work, the_plan, seen)
    assert np.array_equal(result.finished_ps, compiled.run(work, the_plan).finished_ps)
    bound = 2 * max(W_IN * int(work.prompt_tokens.max()), W_OUT * blocks * size)
    for one in range(len(work.tenants)):
        for other in range(one):
            assert seen.widest_gap(one, other) <= bound


def test_the_bound_is_not_empty_words() -> None:
    """First come, first served breaks it: a flood that came first is served alone while the other tenant waits."""
    rows = [("a", 0.0, 10, 10)] * 60 + [("b", 1.0, 10, 10)] * 60
    work = workload(rows)
    gaps = {}
    for policy in ("fcfs", "vtc"):
        seen = Backlogs(work)
        options = {"block_size": 16, "num_gpu_blocks": 9, "max_num_seqs": 4, "reserve_full_kv": True}
        reference.run(work, plan(work, policy, step_time=A_SECOND_A_STEP, **options), seen)
        gaps[policy] = seen.widest_gap(0, 1)
    bound = 2 * max(W_IN * 10, W_OUT * 8 * 16)
    assert gaps["vtc"] <= bound < gaps["fcfs"]


def share_after_returning(policy: PolicySpec, engine: object) -> int:
    """One request at a time, 100 tokens in and 100 out. B sends 400 at 0; A one at 0, and 100 after 200 were served.

    Gives A's part of the next 100 admissions.
    """
    served_200_s = 200 * 100.0  # 100 passes a request, a second each
    rows = [("a", 0.0, 100, 100)] + [("b", 0.0, 100, 100)] * 400 + [("a", served_200_s, 100, 100)] * 100
    work = workload(rows)
    run = engine.run(work, plan(work, policy, step_time=A_SECOND_A_STEP, max_num_seqs=1))  # type: ignore[attr-defined]
    result: EngineResult = run
    after = np.flatnonzero(result.scheduled_ps >= served_200_s * PS_PER_SECOND)
    following = after[np.argsort(result.scheduled_ps[after], kind="stable")][:100]
    return int((work.tenant[following] == 0).sum())


@pytest.mark.parametrize("engine", [reference, compiled])
def test_a_tenant_that_returns_gets_close_to_half(engine: object) -> None:
    assert 45 <= share_after_returning(PolicySpec("vtc"), engine) <= 55
    assert share_after_returning(PolicySpec("vtc", lift=False), engine) > 75
    assert share_after_returning(PolicySpec("fcfs"), engine) < 10
