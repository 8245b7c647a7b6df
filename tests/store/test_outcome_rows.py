"""Parts of outcome frames: slices where order allows it, and the same rows where it does not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from fairreplay.store.outcome_rows import are_same_requests, arrived_between, beside, of_model

START = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)


def frame(seconds: list[int], models: list[str | None] | None = None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "request_id": [f"r{number}" for number in range(len(seconds))],
            "arrived_at": [START + timedelta(seconds=one) for one in seconds],
            "model": models or ["m"] * len(seconds),
        },
        schema={"request_id": pl.String, "arrived_at": pl.Datetime("us", "UTC"), "model": pl.String},
    )


ends = st.none() | st.integers(-2, 12)


@given(st.lists(st.integers(0, 10), max_size=12), st.booleans(), ends, ends)
def test_arrivals_in_a_period(seconds: list[int], is_sorted: bool, since: int | None, until: int | None) -> None:
    rows = frame(sorted(seconds) if is_sorted else seconds)
    found = arrived_between(
        rows,
        None if since is None else START + timedelta(seconds=since),
        None if until is None else START + timedelta(seconds=until),
    )
    kept = [
        name
        for name, at in zip(rows["request_id"], sorted(seconds) if is_sorted else seconds, strict=True)
        if (since is None or at >= since) and (until is None or at < until)
    ]
    assert found["request_id"].to_list() == kept


def test_rows_of_a_model_the_group_without_a_name_too() -> None:
    rows = frame([1, 2, 3, 4], ["a", None, "b", None])
    assert of_model(rows, None)["request_id"].to_list() == ["r1", "r3"]
    assert of_model(rows, "b")["request_id"].to_list() == ["r2"]
    assert of_model(rows, "c").is_empty()
    assert of_model(frame([1, 2]), "m")["request_id"].to_list() == ["r0", "r1"]
    assert of_model(frame([1, 2], [None, None]), None).height == 2
    assert of_model(frame([]), "m").is_empty()


def test_two_outcomes_beside_each_other_in_any_order() -> None:
    left = pl.DataFrame({"request_id": ["a", "b", "c"], "x": [1, 2, 3]})
    same = pl.DataFrame({"request_id": ["a", "b", "c"], "y": [4, 5, 6]})
    other = pl.DataFrame({"request_id": ["d", "c", "a"], "y": [7, 6, 4]})
    assert are_same_requests(left, same)
    assert not are_same_requests(left, other)
    assert beside(left, same).to_dict(as_series=False) == {
        "request_id": ["a", "b", "c"],
        "x": [1, 2, 3],
        "y": [4, 5, 6],
    }
    assert beside(left, other).to_dict(as_series=False) == {"request_id": ["a", "c"], "x": [1, 3], "y": [4, 6]}
