"""Backpressure: the update of rates, what it sees and when, and how a late signal overshoots."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairreplay.metrics.controls import backpressure, backpressure_raw
from fairreplay.sandbox import compiled, reference
from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.controls.build import build
from fairreplay.sandbox.controls.pressure import (
    NO_SIGNAL,
    RATE_CEILING,
    gentle_rate,
    literal_rate,
    queue_up,
    sample,
    signal,
)
from fairreplay.sandbox.engine import (
    BACKPRESSURE,
    NO_REASON,
    PS_PER_SECOND,
    Backpressure,
    Controls,
    EngineResult,
    StepTime,
)
from tests.sandbox.scenarios import plan, workload

ENGINES = [reference, compiled]
S = PS_PER_SECOND
MS = S // 1000


@pytest.mark.parametrize(("p99_ms", "rate"), [(1500, 66_666), (4000, 50_000), (1000, 100_500), (10, 100_500)])
def test_the_rate_by_hand(p99_ms: int, rate: int) -> None:
    """Target 1 s, rate 100 a second, step 0.5 a second."""
    assert gentle_rate(100_000, p99_ms * 1000, 10**6, 1000, 200_000, 500) == rate


def test_the_bounds_of_the_rate() -> None:
    assert gentle_rate(1500, 5 * 10**6, 10**6, 1000, 200_000, 500) == 1000
    assert gentle_rate(199_800, 1, 10**6, 1000, 200_000, 500) == 200_000
    assert literal_rate(100_000, 1_500_000, 10**6) == 150_000
    assert literal_rate(RATE_CEILING // 2, 5 * 10**6, 10**6) == RATE_CEILING


@given(st.integers(1, 10**8), st.integers(1, 10**10), st.integers(1000, 10**10), st.integers(0, 10**6))
def test_the_rate_is_that_of_the_metrics_to_a_thousandth(rate: int, p99_us: int, target_us: int, step: int) -> None:
    ours = gentle_rate(rate, p99_us, target_us, min(rate, 100), 10**8, step)
    assert ours == pytest.approx(backpressure(rate, p99_us, target_us, 10**8, min(rate, 100), step), abs=1.01)
    literal = literal_rate(rate, p99_us, target_us)
    assert literal == pytest.approx(min(RATE_CEILING, backpressure_raw(rate, p99_us, target_us)), rel=1e-6, abs=1.01)


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 900)), max_size=150), st.integers(1, 3000))
def test_the_signal_is_the_nearest_rank_p99_of_the_window_or_the_oldest_wait(
    requests: list[tuple[int, int]], width: int
) -> None:
    """Against a sort; each request arrives at a millisecond and has its first token some later, or waits yet."""
    requests.sort()
    pressure = Backpressure((10**6,), (S,), window_ps=width * MS)
    work = workload([("a", arrived / 1000, 1, 1) for arrived, _ in requests] or [("a", 0.0, 1, 1)])
    rows = build(Controls(backpressure=pressure), work, room=10)
    never = 700
    for ticket, (arrived, ttft) in enumerate(requests):
        rows.t[ticket * at.TICKET + at.ARRIVED] = arrived * MS
        for field in (at.NEXT_SAMPLE, at.NEXT_WAITING, at.FIRST_TOKEN):
            rows.t[ticket * at.TICKET + field] = at.NONE
        rows.t[ticket * at.TICKET + at.LEFT] = at.FOREVER if ttft > never else (arrived + ttft // 2) * MS
        queue_up(rows.c, rows.t, 0, ticket)
    for ticket, (arrived, ttft) in sorted(enumerate(requests), key=lambda each: sum(each[1])):
        if ttft <= never:
            sample(rows.c, rows.t, 0, ticket, (arrived + ttft) * MS)
    for seen in range(0, 5000, 250):
        done = sorted(b for a, b in requests if b <= never and seen - width < a + b <= seen)
        waits = [seen - a for a, b in requests if a <= seen and (b > never or a + b // 2 > seen)]
        p99 = done[(99 * len(done) + 99) // 100 - 1] if done else NO_SIGNAL
        expected = max([p99, *waits])
        assert signal(rows.c, rows.t, 0, seen * MS) == (NO_SIGNAL if expected == NO_SIGNAL else expected * 1000)


def flood(
    engine: Any, delay_ms: int, *, backlog: int = 0, target_ms: int = 500, literal: bool = False, seconds: int = 60
) -> tuple[list[float], list[tuple[float, float]]]:
    """One tenant sends 1.6 times what the machine serves: 40 requests a second of 1 + 1 tokens, 25 ms each.

    ``backlog`` requests of another tenant, for which there is no gate, come before them. Window and hold are 1 s.
    Gives the TTFTs in order of arrival and the rates by their seconds.
    """
    rows = [("b", 0.0, 1, 1)] * backlog + [("a", number / 64, 1, 1) for number in range(64 * seconds)]
    work = workload(rows)
    pressure = Backpressure(
        rates=(100_000, 0),
        targets_ps=(target_ms * MS, S),
        rate_min=1000,
        step=4000,
        window_ps=S,
        hold_ps=S,
        delay_ps=delay_ms * MS,
        literal=literal,
    )
    controls = Controls(backpressure=pressure)
    result: EngineResult = engine.run(
        work, plan(work, controls=controls, step_time=StepTime(25 * MS, 0, 0, 0), max_num_seqs=1)
    )
    assert set(result.reason.tolist()) <= {NO_REASON, BACKPRESSURE}
    known = result.first_token_ps >= 0
    ttft_s = (result.first_token_ps - work.arrival_ps)[known] / S
    return ttft_s.tolist(), [(e[0] / S, e[3] / 1000) for e in result.events.tolist() if e[1] == at.RATE_SET]


def overshoot_s(engine: Any, delay_ms: int) -> float:
    """How far beyond the target the worst TTFT went."""
    return max(flood(engine, delay_ms)[0]) - 0.5


@pytest.mark.parametrize("engine", ENGINES)
def test_a_late_signal_overshoots(engine: Any) -> None:
    """The queue grows by 24 requests a second, 0.6 s of work, until the rate falls: late by 1.4 s more."""
    prompt, late = overshoot_s(engine, 100), overshoot_s(engine, 1500)
    assert late >= 1.5 * prompt > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_the_literal_update_diverges(engine: Any) -> None:
    """Under overload it lets in ever more, and TTFT grows to the end; ours comes back to the target and about it."""
    ours, rates = flood(engine, 150, backlog=60, target_ms=50, seconds=40)
    literal, up = flood(engine, 150, backlog=60, target_ms=50, literal=True, seconds=40)
    assert max(rate for _, rate in rates) <= 100
    assert [rate for _, rate in up] == sorted(rate for _, rate in up)
    assert up[-1][1] == RATE_CEILING / 1000
    assert max(ours) < 4
    assert literal[-1] == max(literal) > 15
