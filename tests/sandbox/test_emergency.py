"""Emergency modes: the controller's integers against the metrics, when modes begin and end, what they do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairreplay.config.model import Floor
from fairreplay.metrics.alerts import emergency_modes
from fairreplay.metrics.entitlement import entitlements
from fairreplay.metrics.jfi import jain
from fairreplay.metrics.types import floors as metric_floors
from fairreplay.sandbox import compiled, reference
from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.controls.build import build
from fairreplay.sandbox.controls.emergency import close_window
from fairreplay.sandbox.controls.shares import (
    PART_ONE,
    jain_below,
    root_of,
    set_floors,
    share_out,
    type_below,
    verdict_on,
)
from fairreplay.sandbox.engine import FLOOR_SCALE, PS_PER_SECOND, Controls, Emergency, StepTime
from tests.sandbox.scenarios import plan, workload

ENGINES = [reference, compiled]
S = PS_PER_SECOND
LOOSE = (10**6 * S, 10**6 * S, 10**6 * S)


def rows_of(tenants: int, types: int = 1, **emergency: Any) -> Any:
    names = [chr(ord("a") + number) for number in range(max(tenants, types))]
    work = workload(
        [(names[n % tenants], 0.0, 1, 1) for n in range(len(names))],
        types=[names[n % types] for n in range(len(names))],
    )
    spec = Emergency(**{"targets_ps": tuple(LOOSE for _ in range(tenants)), **emergency})
    rows = build(Controls(emergency=spec), work, room=1000)
    for tenant in range(tenants):
        rows.c[at.tenant_at(tenant) + at.WEIGHT] = 1024
    return rows


def give(rows: Any, served: list[int], waiting: list[int] | None = None) -> None:
    for tenant, tokens in enumerate(served):
        rows.c[at.tenant_at(tenant) + at.SERVED] = tokens
        rows.c[at.tenant_at(tenant) + at.WAITING_COST] = (waiting or [0] * len(served))[tenant]


def test_entitlements_by_hand() -> None:
    """Capacity 1000, weights 2:1:1:1, demand 100/900/900/0: entitled to 100/450/450/0, x = 1, 10/9, 8/9."""
    rows = rows_of(4)
    rows.c[at.tenant_at(0) + at.WEIGHT] = 2048
    give(rows, [100_000, 500_000, 400_000, 0], [0, 400_000, 500_000, 0])
    share_out(rows.c)
    found = [(rows.c[at.tenant_at(n) + at.SHARE], rows.c[at.tenant_at(n) + at.RATIO]) for n in range(4)]
    assert found == [(100_000, 1024), (450_000, 1137), (450_000, 910), (0, -1)]


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 50_000)), min_size=1, max_size=12)
)
def test_shares_and_jain_are_those_of_the_metrics(tenants: list[tuple[int, int, int]]) -> None:
    rows = rows_of(len(tenants))
    give(rows, [one[0] for one in tenants], [one[1] for one in tenants])
    for number, (_, _, weight) in enumerate(tenants):
        rows.c[at.tenant_at(number) + at.WEIGHT] = weight
    share_out(rows.c)
    served = np.array([[float(one[0]) for one in tenants]])
    demand = served + np.array([[float(one[1]) for one in tenants]])
    entitled = entitlements(served.sum(axis=1), np.array([float(one[2]) for one in tenants]), demand)
    ours = [rows.c[at.tenant_at(number) + at.SHARE] for number in range(len(tenants))]
    assert ours == pytest.approx(entitled[0].tolist(), abs=len(tenants) + 1)
    counted = np.array([[share > 10**5 for share in ours]])
    if (entitled > 0).all() and counted.all() and (served / entitled < 60).all():
        x = served / entitled
        index = float(jain(x, counted)[0])
        for hundredths in (50, 80, 90):
            if abs(index - hundredths / 100) > 0.01:
                assert jain_below(rows.c, hundredths) == (index < hundredths / 100)


@given(st.integers(0, 2**62))
def test_the_root(number: int) -> None:
    assert root_of(number) ** 2 <= number < (root_of(number) + 1) ** 2


def test_floors_by_hand() -> None:
    """Shares .60/.25/.10/.05, cv 2/2/2/2.5, R = .4, eta = .5: .08208 .09485 .10162 .12145 of what is served."""
    rows = rows_of(1, 4, reserve=round(0.4 * FLOOR_SCALE), eta=round(0.5 * FLOOR_SCALE))
    mean = 1000
    for kind, (count, cv) in enumerate([(600, 2.0), (250, 2.0), (100, 2.0), (50, 2.5)]):
        place = at.type_at(1, kind)
        rows.c[place + at.K_ARRIVALS] = count
        rows.c[place + at.K_SUM] = count * mean
        rows.c[place + at.K_SQUARES] = round(count * mean * mean * (1 + cv * cv))
    set_floors(rows.c)
    found = [rows.c[at.type_at(1, kind) + at.K_FLOOR] / FLOOR_SCALE for kind in range(4)]
    exact = [Fraction(5166, 62939), Fraction(29848, 314695), Fraction(6396, 62939), Fraction(7644, 62939)]
    assert found == pytest.approx([float(one) for one in exact], abs=2e-5)
    share, cv = np.array([[0.6, 0.25, 0.1, 0.05]]), np.array([[2.0, 2.0, 2.0, 2.5]])
    assert found == pytest.approx(metric_floors(share, cv, cv, Floor())[0].tolist(), abs=2e-5)


@pytest.mark.parametrize(
    ("served", "backlog", "below"),
    [(30_000, 170_000, True), (20_000, 0, False), (39_000, 161_000, True), (40_000, 160_000, False)],
)
def test_a_type_below_its_floor(served: int, backlog: int, below: bool) -> None:
    """Floor .10 of 1,000,000 tokens: 30,000 of 200,000 are 0.3; all of 20,000 are enough."""
    rows = rows_of(1, 2, floors=(round(0.1 * PART_ONE), 0))
    rows.c[at.type_at(1, 0) + at.K_SERVED] = served
    rows.c[at.type_at(1, 0) + at.K_WAITING_COST] = backlog
    rows.c[at.type_at(1, 1) + at.K_SERVED] = 1_000_000 - served
    assert type_below(rows.c, 40) == below


@pytest.mark.parametrize(
    ("count", "missed", "verdict"),
    [
        (4, (4, 4, 4), -1),
        (5, (2, 0, 0), 1),
        (5, (3, 0, 0), 0),
        (10, (5, 1, 0), 1),
        (10, (5, 2, 0), 0),
        (99, (0, 0, 99), 1),
        (100, (50, 10, 1), 1),
        (100, (50, 10, 2), 0),
    ],
)
def test_a_tenant_is_judged_by_counts(count: int, missed: tuple[int, int, int], verdict: int) -> None:
    rows = rows_of(1)
    place = at.tenant_at(0)
    rows.c[place + at.COUNT] = count
    for number in range(3):
        rows.c[place + at.MISSED_50 + number] = missed[number]
    assert verdict_on(rows.c, 0) == verdict


# ---- modes ----


def x_after(rows: Any, served: list[int]) -> list[float]:
    """x of three equal tenants in the next window, what the throttled leave shared equally by the others."""
    caps = [rows.c[at.tenant_at(number) + at.CAP] for number in range(3)]
    got = [min(tokens, cap) for tokens, cap in zip(served, caps, strict=True)]
    return [tokens / 1_000_000 for tokens in got]


@pytest.mark.parametrize(
    ("low_weight", "after", "index"), [(False, (0.9, 0.6, 0.6), 0.9950), (True, (1.8, 0.3, 0.3), 0.5614)]
)
def test_throttling_by_hand(low_weight: bool, after: tuple[float, ...], index: float) -> None:
    """x = (1.8, .6, .6): JFI 25/33. Our throttle halves the first, the others take what it leaves: (.9, 1.05, 1.05).
    The literal one halves the two of low weight, which are starved already: (1.8, .3, .3)."""
    rows = rows_of(3, low_weight=low_weight)
    weights = [3, 2, 2]
    for number, weight in enumerate(weights):
        rows.c[at.tenant_at(number) + at.WEIGHT] = 1024 * weight if low_weight else 1024
    rows.c[at.MODE] = at.THROTTLE
    served = [1_800_000, 600_000, 600_000]
    give(rows, served, [10**7] * 3)
    share_out(rows.c)
    if not low_weight:
        assert [rows.c[at.tenant_at(n) + at.RATIO] for n in range(3)] == [1843, 614, 614]
    close_window(rows.c, rows.w, S)
    assert x_after(rows, served) == list(after)
    x = np.array(after)
    if not low_weight:
        x[1:] += (1.8 - after[0]) / 2
    assert jain(x[None], np.ones((1, 3), bool))[0] == pytest.approx(index, abs=5e-5)


def windows(rows: Any, states: str) -> list[int]:
    """The mode after each window; s, j, t: SCR, JFI, TFR in emergency; y: all between yellow and that; o: all well."""
    modes = []
    for state in states:
        c = rows.c
        place = at.tenant_at(0)
        c[place + at.COUNT] = 5
        for number in range(3):
            c[place + at.MISSED_50 + number] = 5 if state == "s" else 0
        other = at.tenant_at(1)
        c[other + at.COUNT] = 0
        give(rows, {"j": [1000, 10], "y": [1000, 350]}.get(state, [500, 500]), [10**4, 10**4])
        for kind, tokens in enumerate({"t": [999, 1], "y": [910, 90]}.get(state, [500, 500])):
            c[at.type_at(2, kind) + at.K_SERVED] = tokens
            c[at.type_at(2, kind) + at.K_WAITING_COST] = 10**4
        if state == "-":
            c[place + at.COUNT] = 0
            give(rows, [0, 0])
        close_window(c, rows.w, S)
        modes.append(c[at.MODE])
    return modes


@pytest.mark.parametrize(
    ("states", "modes"),
    [
        ("sss", [0, 1, 1]),
        ("sos", [0, 0, 0]),
        ("jj", [0, 2]),
        ("tttt", [0, 0, 3, 3]),
        ("s-s", [0, 0, 0]),  # a window that says nothing ends a row of bad ones
        ("jjss", [0, 2, 2, 1]),  # SCR goes before JFI
        ("ssjj", [0, 1, 1, 1]),
        ("tttjj", [0, 0, 3, 3, 2]),
        ("jjoooo", [0, 2, 2, 2, 2, 2]),
        ("jjooooo", [0, 2, 2, 2, 2, 2, 0]),
        ("jjooooyooooo", [0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0]),  # yellow begins the count anew
        ("jjooo-oo", [0, 2, 2, 2, 2, 2, 2, 0]),
        ("ssooooo", [0, 1, 1, 1, 1, 1, 0]),
        ("tttooooo", [0, 0, 3, 3, 3, 3, 3, 0]),
    ],
)
def test_modes_begin_and_end(states: str, modes: list[int]) -> None:
    rows = rows_of(2, 2, floors=(0, round(0.2 * PART_ONE)), min_samples=(5, 10, 100))
    assert windows(rows, states) == modes


@given(st.text("sssjjjttyooooo-", max_size=40))
def test_modes_are_those_that_the_metrics_would_have_fired(states: str) -> None:
    values = {
        "s": (0.5, 1.0, 1.0),
        "j": (1.0, 0.7, 1.0),
        "t": (1.0, 1.0, 0.1),
        "y": (1.0, 0.85, 0.45),
        "o": (1.0, 1.0, 1.0),
        "-": (None, None, None),
    }
    start = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=n) for n in range(len(states))]
    frame = pl.DataFrame(
        {
            "start": pl.Series(start, dtype=pl.Datetime("us", "UTC")),
            "end": pl.Series([at + timedelta(minutes=1) for at in start], dtype=pl.Datetime("us", "UTC")),
            "drain": pl.Series([False] * len(states), dtype=pl.Boolean),
            **{
                name: pl.Series([values[state][place] for state in states], dtype=pl.Float64)
                for place, name in enumerate(("scr", "jfi", "tfr"))
            },
        }
    )
    tenants = pl.DataFrame(schema={"start": pl.Datetime("us", "UTC"), "tenant": pl.String, "x": pl.Float64})
    expected = [0] * len(states)
    number = {"scr": at.SINGLE_P99, "jfi": at.THROTTLE, "tfr": at.ISOLATION}
    for mode in emergency_modes(frame, tenants):
        for place, begin in enumerate(start):
            if mode.start <= begin + timedelta(minutes=1) < mode.end:
                expected[place] = number[mode.metric]
    rows = rows_of(2, 2, floors=(0, round(0.2 * PART_ONE)))
    modes = windows(rows, states)
    assert modes[:-1] == expected[:-1]


# ---- in the engine ----


def served_in(result: Any, work: Any, begin_s: int, end_s: int) -> list[int]:
    """Requests of each tenant that were scheduled in a span."""
    inside = (result.scheduled_ps >= begin_s * S) & (result.scheduled_ps < end_s * S)
    return [int((work.tenant[inside] == tenant).sum()) for tenant in range(len(work.tenants))]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_over_served_are_held_back(engine: Any) -> None:
    """a floods; b sends steadily. In windows of 10 s at a request a second b gets nothing until a is held to a half."""
    rows = [("a", 0.0, 1, 1)] * 400 + [("b", 1.0 + n, 1, 1) for n in range(80)]
    work = workload(rows)
    emergency = Emergency(targets_ps=(LOOSE, LOOSE))
    controls = Controls(emergency=emergency, window_ps=10 * S)
    the_plan = plan(work, controls=controls, step_time=StepTime(S, 0, 0, 0), max_num_seqs=1)
    result = engine.run(work, the_plan)
    assert served_in(result, work, 0, 20) == [20, 0]
    assert served_in(result, work, 20, 30) == [5, 5]
    modes = [(int(e[0]) // S, int(e[2])) for e in result.events.tolist() if e[1] == at.MODE_SET]
    assert modes[0] == (20, at.THROTTLE)
    free = engine.run(work, plan(work, step_time=StepTime(S, 0, 0, 0), max_num_seqs=1))
    assert served_in(free, work, 0, 100) == [100, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_types_are_isolated(engine: Any) -> None:
    """Sorted by type, chat before long: after three windows of 10 s long has its floor of 3 requests in 10."""
    rows = [("a", 0.0, 1, 1)] * 400
    work = workload(rows, types=["chat"] * 300 + ["long"] * 100)
    emergency = Emergency(targets_ps=(LOOSE,), floors=(round(0.3 * PART_ONE), round(0.3 * PART_ONE)))
    controls = Controls(emergency=emergency, window_ps=10 * S)
    the_plan = plan(work, controls=controls, step_time=StepTime(S, 0, 0, 0), max_num_seqs=1)
    result = engine.run(work, the_plan)
    started = [int(((result.scheduled_ps // (10 * S) == window) & (work.type == 1)).sum()) for window in range(10)]
    assert started == [0, 0, 0, 3, 3, 3, 3, 3, 0, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_earliest_deadline_goes_first_while_targets_are_missed(engine: Any) -> None:
    """Under fcfs b, whose target is 3 s, waits behind a's backlog; from the second bad window on it goes first."""
    rows = [("a", 0.0, 1, 1)] * 60 + [("b", 1.0 + 2 * n, 1, 1) for n in range(30)]
    work = workload(rows)
    emergency = Emergency(targets_ps=((S, S, 500 * S), (S, S, 3 * S)), min_samples=(1, 1, 1))
    controls = Controls(emergency=emergency, window_ps=10 * S)
    the_plan = plan(work, controls=controls, step_time=StepTime(S, 0, 0, 0), max_num_seqs=1)
    result = engine.run(work, the_plan)
    assert served_in(result, work, 0, 20) == [20, 0]
    assert served_in(result, work, 20, 30) == [0, 10]
    modes = [(int(e[0]) // S, int(e[2])) for e in result.events.tolist() if e[1] == at.MODE_SET]
    assert modes[0] == (20, at.SINGLE_P99)
