"""The tenant x type table: sums, floors, nearness to demand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from fairreplay.errors import UsageError
from fairreplay.planning.allocation import allocate


def test_where_no_floor_binds_each_tenant_keeps_its_mix() -> None:
    demand = np.array([[300.0, 100.0], [10.0, 0.0], [50.0, 800.0]])
    table = allocate(demand, np.array([2.0, 1.0, 1.0]), np.array([0.1, 0.1]), 1000.0)
    expected = np.array([[375.0, 125.0], [250.0, 0.0], [250 * 50 / 850, 250 * 800 / 850]])
    assert table == pytest.approx(expected, abs=1e-3)


def test_a_floor_takes_from_the_types_above_theirs() -> None:
    # equal weights, all ask for chat alone, batch is promised a fifth of 100
    table = allocate(np.array([[40.0, 0.0], [80.0, 0.0]]), np.ones(2), np.array([0.0, 0.2]), 100.0)
    assert table.sum(axis=0) == pytest.approx([80.0, 20.0], abs=1e-3)
    assert table == pytest.approx(np.array([[40.0, 10.0], [40.0, 10.0]]), abs=1e-3)


def test_a_tenant_without_demand_gets_its_share_by_the_mix_of_all() -> None:
    table = allocate(np.array([[30.0, 10.0], [0.0, 0.0]]), np.ones(2), np.zeros(2), 80.0)
    assert table == pytest.approx(np.array([[30.0, 10.0], [30.0, 10.0]]), abs=1e-3)


def test_floors_that_cannot_be_kept_are_named() -> None:
    with pytest.raises(UsageError) as caught:
        allocate(np.ones((2, 3)), np.ones(2), np.array([0.7, 0.0, 0.5]), 10.0, ["chat", "embed", "long"])
    assert str(caught.value) == (
        "the floors of the types add up to 1.2 of the capacity (chat 0.7, long 0.5): they may be 1 at most; lower "
        "[types.NAME] floor or [floor] reserve"
    )


def test_floors_may_be_the_whole() -> None:
    table = allocate(np.array([[5.0, 1.0]]), np.ones(1), np.array([0.25, 0.75]), 8.0)
    assert table == pytest.approx(np.array([[2.0, 6.0]]), abs=1e-6)


@st.composite
def questions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    tenants, types = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    amount = st.integers(0, 500)
    demand = draw(st.lists(amount, min_size=tenants * types, max_size=tenants * types))
    weights = draw(st.lists(st.integers(1, 9), min_size=tenants, max_size=tenants))
    floors = draw(st.lists(st.integers(0, 10), min_size=types, max_size=types))
    part = draw(st.integers(0, 10)) / 10
    scaled = np.array(floors, float) * part / max(sum(floors), 1)
    return np.array(demand, float).reshape(tenants, types), np.array(weights, float), scaled, float(draw(amount) + 1)


def least_distance(demand: np.ndarray, rows: np.ndarray, least: np.ndarray) -> float:
    """The optimum by another formulation: each cell is demand + more - less."""
    tenants, types = demand.shape
    count = tenants * types
    cell = np.arange(count)
    by_row = (cell // types == np.arange(tenants)[:, None]).astype(float)
    by_column = (cell % types == np.arange(types)[:, None]).astype(float)
    found = linprog(
        np.ones(2 * count),
        A_ub=np.vstack([np.hstack([-by_column, by_column]), np.hstack([-np.eye(count), np.eye(count)])]),
        b_ub=np.concatenate([demand.sum(axis=0) - least, demand.ravel()]),
        A_eq=np.hstack([by_row, -by_row]),
        b_eq=rows - demand.sum(axis=1),
    )
    return float(found.fun)


@given(questions())
@settings(max_examples=40, derandomize=True, deadline=None)
def test_sums_floors_and_nearness(question: tuple[np.ndarray, np.ndarray, np.ndarray, float]) -> None:
    demand, weights, floors, total = question
    table = allocate(demand, weights, floors, total)
    rows = weights / weights.sum() * total
    near = 1e-5 * max(total, float(demand.sum()))
    assert (table >= 0).all()
    assert table.sum(axis=1) == pytest.approx(rows, abs=near)
    assert (table.sum(axis=0) >= floors * total - near).all()
    assert np.abs(table - demand).sum() == pytest.approx(least_distance(demand, rows, floors * total), abs=near)
