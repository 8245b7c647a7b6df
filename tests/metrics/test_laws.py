"""Laws that hold for every input, and options that must not change what they do not name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.config.load import parse_config
from fairreplay.metrics.entitlement import entitlements
from fairreplay.metrics.measure import Measured, measure, sliding
from fairreplay.metrics.medians import medians_below
from fairreplay.metrics.options import measure_options
from fairreplay.metrics.quantiles import nearest_rank, needed
from fairreplay.metrics.scr import ordered_in_cells
from tests.metrics.test_naive import CONFIG, requests
from tests.sandbox.frames import canonical

LAW = settings(max_examples=100, derandomize=True, deadline=None)
MEASURED = settings(max_examples=15, derandomize=True, deadline=None)
"""Measuring takes tens of milliseconds, whatever the size."""


def measured(rows: list[dict[str, Any]], **options: Any) -> Measured:
    config = parse_config(CONFIG, "test")
    given_options = {"window": "10s", "min_samples": 1} | options
    return measure(canonical(rows), config, measure_options(config, **given_options), "logged")


@LAW
@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1 << 40), st.booleans()), max_size=60))
def test_medians_without_some_rows_are_numpys_rounded_down(keys: int, rows: list[tuple[int, int, bool]]) -> None:
    rows = [(key % keys, value, left_out) for key, value, left_out in rows]
    key, values = (np.array([row[place] for row in rows], np.int64) for place in (0, 1))
    without = np.array([row[2] for row in rows], np.bool_)
    cut = len(rows) // 3
    found = medians_below(*([some[:cut], some[cut:]] for some in (key, values, without)), keys)
    for of in range(keys):
        own = values[(key == of) & ~without]
        assert found[of] == (np.median(own) // 1 if len(own) and without.any() else 0)


@LAW
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1000)), max_size=250))
def test_values_are_sorted_in_their_cells_small_and_large(rows: list[tuple[int, int]]) -> None:
    cell, value = (np.array([row[place] for row in rows], np.int64) for place in (0, 1))
    known = np.bincount(cell, minlength=4)
    ordered = ordered_in_cells(cell, value, known)
    assert ordered.tolist() == [value for _, value in sorted(rows)]


@LAW
@given(st.lists(st.integers(0, 50), min_size=1, max_size=210), st.integers(-1, 51), st.sampled_from([50, 90, 99]))
def test_the_count_test_is_the_nearest_rank(values: list[int], target: int, q: int) -> None:
    within = sum(value <= target for value in values)
    least = pl.DataFrame({"n": [len(values)]}).select(needed(q, pl.col("n"))).item()
    by_rank = nearest_rank(pl.Series(values), q)
    assert by_rank is not None
    assert (within >= least) == (by_rank <= target)


@st.composite
def shares(draw: st.DrawFn) -> tuple[list[float], list[float], float]:
    tenants = draw(st.integers(1, 8))
    weights = draw(st.lists(st.integers(1, 9), min_size=tenants, max_size=tenants))
    demand = draw(st.lists(st.integers(0, 1000), min_size=tenants, max_size=tenants))
    capacity = draw(st.integers(0, sum(demand)))
    return [float(one) for one in weights], [float(one) for one in demand], float(capacity)


@LAW
@given(shares())
def test_water_filling_is_max_min(given_shares: tuple[list[float], list[float], float]) -> None:
    weights, demand, capacity = given_shares
    owed = entitlements(np.array([capacity]), np.array(weights), np.array([demand]))[0]
    assert owed.sum() == pytest.approx(capacity, abs=1e-9)
    assert (owed <= np.array(demand) + 1e-9).all()
    # Nobody who wants more stands below another: raising the poorest would take from a poorer one.
    level = owed / np.array(weights)
    wanting = owed < np.array(demand) - 1e-9
    if wanting.any():
        assert level[wanting].max() == pytest.approx(level[wanting].min(), abs=1e-9)
        assert (level <= level[wanting].min() + 1e-9).all()


@MEASURED
@given(st.lists(requests(), min_size=1, max_size=14))
def test_ranges_and_no_nan(rows: list[dict[str, Any]]) -> None:
    result = measured(rows)
    for table in (result.windows, result.tenants, result.types):
        for column in table.select(pl.selectors.float()).columns:
            values = table[column].drop_nulls()
            assert values.is_finite().all(), column
            assert (values >= 0).all(), column
    for column in ("scr", "scr_weighted", "jfi", "jfi_raw"):
        assert (result.windows[column].drop_nulls() <= 1 + 1e-12).all(), column
    # Whoever got less than it was owed had a request waiting or refused.
    short = result.tenants.filter(pl.col("x") < 1 - 1e-9)
    assert short["backlog"].all()
    owed = result.tenants.group_by("start").agg(pl.col("served", "entitlement").sum())
    assert owed["entitlement"].to_list() == pytest.approx(owed["served"].to_list(), abs=1e-6)
    shares_of = result.types.group_by("start").agg(pl.col("share").sum(), pl.col("share").count().alias("n"))
    assert shares_of.filter(pl.col("n") > 0)["share"].to_list() == pytest.approx([1.0] * (shares_of["n"] > 0).sum())


@MEASURED
@given(st.lists(requests(), min_size=1, max_size=14), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(rows: list[dict[str, Any]], random: Any) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    for name in ("windows", "tenants", "types"):
        ours, other = getattr(measured(rows), name), getattr(measured(shuffled), name)
        keys = [key for key in ("start", "tenant", "type") if key in ours.columns]
        exact = pl.selectors.exclude(pl.selectors.float())
        assert ours.sort(keys).select(exact).equals(other.sort(keys).select(exact)), name
        for column in ours.select(pl.selectors.float()).columns:
            assert ours.sort(keys)[column].to_list() == pytest.approx(other.sort(keys)[column].to_list()), column


def test_sliding_windows_are_those_of_the_same_log_at_another_time_of_day() -> None:
    """A window that begins 4 s after a whole ten is what a tumbling one is to a log that ran 4 s earlier."""
    rows = [
        {
            "request_id": str(number), "tenant": "ab"[number % 2], "type": "xy"[number % 3 == 0],
            "arrived_at": 1_700_000_000 + 1.5 * number, "prompt_tokens": 100 * number, "output_tokens": 9,
            "scheduled_at": 1_700_000_000 + 2.5 * number, "first_token_at": 1_700_000_000 + 2.75 * number,
            "finished_at": 1_700_000_000 + 3.25 * number, "status": "ok",
        }
        for number in range(30)
    ]  # fmt: skip
    config = parse_config(CONFIG, "test")
    options = measure_options(config, window="10s", min_samples=1)
    frame = canonical(rows)
    tumbling = measure(frame, config, options, "logged")
    targets = (tumbling.slo, tumbling.assumed_slo)
    found = sliding(frame, config, options, 2_000_000, "logged", targets)
    assert found.windows["start"].is_sorted()
    assert not found.windows["start"].is_duplicated().any()
    for offset in range(0, 10, 2):
        times = ("arrived_at", "scheduled_at", "first_token_at", "finished_at")
        earlier = canonical([row | {name: row[name] - offset for name in times} for row in rows])
        expected = measure(earlier, config, options, "logged", targets)
        for name in ("windows", "tenants", "types"):
            table, theirs = getattr(found, name), getattr(expected, name)
            own = table.filter(pl.col("start").dt.epoch("s") % 10 == offset)
            moved = theirs.with_columns(
                pl.col(column).dt.offset_by(f"{offset}s") for column in ("start", "end") if column in theirs.columns
            )
            assert own.equals(moved), (name, offset)


@MEASURED
@given(st.lists(requests(), min_size=1, max_size=10))
def test_a_second_model_changes_nothing_for_the_first(rows: list[dict[str, Any]]) -> None:
    # Rows of the other model lie inside the first one's time, so that the trace ends at the same instant.
    last = max(row.get("finished_at", row["arrived_at"]) for row in rows)
    first = [row | {"model": "m"} for row in rows]
    other = [
        {"model": "n", "arrived_at": row["arrived_at"], "first_token_at": last, "finished_at": last} for row in rows
    ]
    alone, beside = measured(first), measured(first + other)
    assert alone.windows.equals(beside.windows.filter(model="m"))
    assert alone.tenants.equals(beside.tenants.filter(model="m"))
    assert alone.types.equals(beside.types.filter(model="m"))


def test_windows_do_not_move_over_a_change_of_clocks() -> None:
    # 2024-03-10 02:00 in New York did not happen, 2024-11-03 01:00 happened twice.
    for day in ((2024, 3, 10), (2024, 11, 3)):
        begin = datetime(*day, tzinfo=ZoneInfo("America/New_York")).astimezone(UTC).timestamp()
        rows = [{"arrived_at": begin + at, "first_token_at": begin + at + 1} for at in range(0, 6 * 3600, 1800)]
        windows = measured(rows, window="1h").windows
        assert windows["requests"].to_list() == [2] * 6
        assert (windows["end"] - windows["start"]).dt.total_seconds().to_list() == [3600] * 6


def test_the_period_cuts_the_windows_and_keeps_what_was_begun_before() -> None:
    # 100 prompt tokens over 0..100 s; the period is 40..60 s: 20 served, none arrived.
    rows = [{"scheduled_at": 0, "first_token_at": 100, "finished_at": 100, "prompt_tokens": 100, "output_tokens": 0}]
    bounds = {"since": datetime.fromtimestamp(40, UTC), "until": datetime.fromtimestamp(60, UTC)}
    result = measured(rows, window="0", **bounds)
    assert result.windows.select("start", "end", "requests").rows() == [(bounds["since"], bounds["until"], 0)]
    assert result.tenants["served"].to_list() == [20]
    assert measured(rows, **bounds).tenants["served"].to_list() == [10, 10]


def test_spread_decode_moves_the_prompt_to_the_decode_phase() -> None:
    rows = [{"scheduled_at": 0, "first_token_at": 10, "finished_at": 20, "prompt_tokens": 100, "output_tokens": 50}]
    assert measured(rows, window="10s").tenants["served"].to_list() == [100, 100]
    decode = measured(rows, window="10s", spread="decode").tenants.filter(pl.col("served") > 0)
    assert decode["start"].dt.epoch("s").to_list() == [10]
    assert decode["served"].to_list() == [200]


def test_floors_follow_the_window_before() -> None:
    # Window 0: chat 3 of 4 arrivals, cv 0 for both: g = 1/(1 + .375), 1/(1 + .125). Window 1 has only chat.
    def minute(at: int, kinds: list[str]) -> list[dict[str, Any]]:
        return [{"type": kind, "arrived_at": at, "first_token_at": at + 1, "finished_at": at + 2} for kind in kinds]

    rows = minute(0, ["chat", "chat", "chat", "embed"]) + minute(10, ["chat"]) + minute(20, ["chat"])
    table = measured(rows).types.filter(type="chat").sort("start")
    g_chat, g_embed = 1 / 1.375, 1 / 1.125
    first = 0.4 * g_chat / (g_chat + g_embed)
    alone = 0.4 * (1 / 1.5) / (1 / 1.5 + 1)
    assert table["floor"].to_list() == pytest.approx([first, first, alone])
    assert table["ratio_raw"].to_list() == pytest.approx([0.75 / first, 1 / first, 1 / alone])


def test_scr_of_a_tenant_that_waits_through_the_window_is_that_of_its_arrivals() -> None:
    # Both arrive in window 0 and are answered in window 1: the miss is window 0's, window 1 has nothing to judge.
    rows = [{"arrived_at": 1, "first_token_at": 19, "finished_at": 19}] * 2
    assert measured(rows).windows.select("requests", "scr").rows() == [(2, 0.0), (0, None)]
