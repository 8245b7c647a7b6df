"""What a replay decided otherwise: by hand, and the order against all pairs one by one."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.causes.differences import MATRIX_TENANTS_MAX, Differences, differences, review
from fairreplay.causes.overtaking import overtakes
from fairreplay.causes.review import has_decisions, sources
from fairreplay.config.load import parse_config
from fairreplay.config.model import Config
from fairreplay.metrics.options import measure_options
from fairreplay.sandbox.replay import replay
from fairreplay.store.store import open_store
from tests.causes.test_review import SETTINGS, stored
from tests.sandbox.frames import canonical


def compare(production: list[dict[str, Any]], other: list[dict[str, Any]], **options: Any) -> Differences:
    return differences(canonical(production), canonical(other), measure_options(Config(), **options))


def served(at: float, scheduled: float | None, first: float, **more: Any) -> dict[str, Any]:
    return {"arrived_at": at, "scheduled_at": scheduled, "first_token_at": first, "finished_at": first + 1} | more


# ---- order ----


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3), st.integers(0, 50)), max_size=40))
def test_overtaking_is_that_of_all_pairs(requests: list[tuple[int, int, int, int]]) -> None:
    pairs: Counter[tuple[int, int]] = Counter()
    tokens: Counter[tuple[int, int]] = Counter()
    for one, other in combinations(requests, 2):
        for behind, ahead in ((one, other), (other, one)):
            if behind[0] < ahead[0] and behind[1] > ahead[1]:
                pairs[ahead[2], behind[2]] += 1
                tokens[ahead[2], behind[2]] += ahead[3]
    columns = [np.array([request[place] for request in requests], np.int64) for place in range(4)]
    total, found, sizes = overtakes(*columns, tenants=4)
    assert total == sum(pairs.values())
    assert {(a, b): int(found[a, b]) for a, b in np.argwhere(found)} == dict(pairs)
    assert {(a, b): int(sizes[a, b]) for a, b in np.argwhere(sizes)} == {k: v for k, v in tokens.items() if v}


def test_a_reversed_order_of_a_hundred_thousand_has_all_pairs() -> None:
    n = 100_000
    up = np.arange(n, dtype=np.int64)
    ones = np.ones(n, np.int64)
    total, pairs, tokens = overtakes(up, n - up, up % 2, ones, 2)
    assert total == n * (n - 1) // 2
    assert pairs.tolist() == tokens.tolist()
    assert pairs.sum() == total
    assert pairs[0, 0] == pairs[1, 1] == (n // 2) * (n // 2 - 1) // 2
    assert overtakes(up, up, up % 2, ones, 2)[0] == 0


# ---- by hand ----

PRODUCTION = [
    served(0, 1, 2, tenant="a", prompt_tokens=10, output_tokens=5, preemptions=0),
    served(0, 2, 3, tenant="a", prompt_tokens=20, output_tokens=5, preemptions=2),
    served(0, 3, 6, tenant="b", prompt_tokens=7, output_tokens=1, preemptions=0),
]
REPLAY = [
    served(0, 2, 4, tenant="a", prompt_tokens=10, output_tokens=5, preemptions=1),
    served(0, 3, 5, tenant="a", prompt_tokens=20, output_tokens=5, preemptions=0),
    served(0, 1, 2, tenant="b", prompt_tokens=7, output_tokens=1, preemptions=0),
]


def test_three_requests_by_hand() -> None:
    found = compare(PRODUCTION, REPLAY)
    assert (found.requests, found.only_production, found.only_replay) == (3, 0, 0)
    assert (found.ordered_by, found.ordered, found.pairs, found.inversions) == ("scheduled_at", 3, 3, 2)
    # b, with 8 tokens, went ahead of both requests of a
    assert found.overtaking.rows() == [("b", "a", 2, 16)]
    table = found.table
    assert table["wait_us_change"].to_list() == [1_000_000, 1_000_000, -2_000_000]
    assert table["ttft_us_change"].to_list() == [2_000_000, 2_000_000, -4_000_000]
    assert table["finish_us_change"].to_list() == [2_000_000, 2_000_000, -4_000_000]
    assert table["preemptions_change"].to_list() == [1, -2, 0]
    assert (found.preemptions_production, found.preemptions_replay) == (2, 1)
    gains = found.tenants.select("tenant", "requests", "ttft_mean_change_us").rows()
    assert gains == [("b", 1, -4_000_000.0), ("a", 2, 2_000_000.0)]
    assert found.windows.select("requests", "ttft_moved_us", "ttft_mean_change_us").rows() == [(3, 8_000_000, 0.0)]
    assert found.largest["request_id"].to_list() == ["r2", "r0", "r1"]


def test_the_same_decisions_differ_in_nothing() -> None:
    found = compare(PRODUCTION, PRODUCTION)
    assert (found.inversions, len(found.overtaking), len(found.windows), len(found.largest)) == (0, 0, 0, 0)


def test_only_requests_of_both_sides_are_compared_and_the_rest_are_counted() -> None:
    refused = {"arrived_at": 0, "status": "rejected", "finished_at": 0, "tenant": "c"}
    found = compare([*PRODUCTION, refused | {"request_id": "lost"}], [*REPLAY[:2], refused | {"request_id": "new"}])
    assert (found.requests, found.only_production, found.only_replay) == (2, 2, 1)
    assert found.inversions == 0


def test_refusals_on_one_side() -> None:
    refused = {"arrived_at": 0, "status": "rejected", "finished_at": 0, "tenant": "b", "preemptions": None}
    found = compare(PRODUCTION, [*REPLAY[:2], refused])
    assert (found.refused_only_production, found.refused_only_replay) == (0, 1)
    assert (found.ordered, found.pairs, found.inversions) == (2, 1, 0)
    assert found.table["ttft_us_change"].to_list() == [2_000_000, 2_000_000, None]
    assert found.table["finish_us_change"].to_list()[2] is None  # the instant of a refusal is no finish
    assert found.windows["refused_otherwise"].to_list() == [1]
    back = compare([*PRODUCTION[:2], refused], REPLAY)
    assert (back.refused_only_production, back.refused_only_replay) == (1, 0)


def test_without_schedules_the_first_token_orders() -> None:
    def without(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"scheduled_at": None} for row in rows]

    found = compare(without(PRODUCTION), REPLAY)
    assert (found.ordered_by, found.inversions) == ("first_token_at", 2)
    assert found.table["wait_us_change"].null_count() == 3


def test_without_preemption_counts_they_are_unknown() -> None:
    found = compare([row | {"preemptions": None} for row in PRODUCTION], REPLAY)
    assert (found.preemptions_production, found.preemptions_replay) == (None, None)


def test_models_do_not_overtake_each_other() -> None:
    def two(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"model": "m" if row["tenant"] == "a" else "n"} for row in rows]

    found = compare(two(PRODUCTION), two(REPLAY))
    assert (found.pairs, found.inversions) == (1, 0)


def test_requests_that_share_an_instant_have_no_order() -> None:
    together = [served(0, 1, 2), served(0, 1, 2)]
    apart = [served(0, 2, 3), served(0, 1, 2)]
    assert compare(together, apart).inversions == compare(apart, together).inversions == 0


def test_the_ten_windows_and_requests_with_the_largest_change() -> None:
    rows = [served(60 * minute, None, 60 * minute + 1) for minute in range(15)]
    moved = [served(60 * minute, None, 60 * minute + 1 + minute) for minute in range(15)]
    found = compare(rows, moved)
    assert found.windows["start"].dt.minute().to_list() == list(range(14, 4, -1))
    assert found.largest["request_id"].to_list() == [f"r{minute}" for minute in range(14, 4, -1)]
    whole = compare(rows, moved, window="0").windows
    assert whole.select("requests", "ttft_moved_us").rows() == [(15, sum(range(15)) * 1_000_000)]


def test_tenants_without_a_row_of_their_own_share_one() -> None:
    few = MATRIX_TENANTS_MAX + 5
    rows = [served(0, number, number + 1, tenant=f"t{number:03}") for number in range(few)]
    back = [served(0, few - number, few - number + 1, tenant=f"t{number:03}") for number in range(few)]
    found = compare(rows, back)
    assert found.inversions == found.overtaking["pairs"].sum() == few * (few - 1) // 2
    shared = [row[2] for row in found.overtaking.rows() if row[0] is None and row[1] is None]
    assert shared == [10]  # 5 * 4 / 2


def test_nothing_in_common() -> None:
    found = compare([], [])
    assert (found.requests, found.pairs, found.inversions, len(found.tenants)) == (0, 0, 0, 0)


# ---- from a store ----


@pytest.fixture
def settings_of() -> Config:
    return parse_config(SETTINGS, "test")


def test_every_replay_against_the_log(tmp_path: Path, settings_of: Config) -> None:
    store = stored(tmp_path, first_token_at=2, finished_at=4)
    replay(store, settings_of, ["fcfs", "vtc"])
    options = measure_options(settings_of)
    found = review(sources(open_store(store.path), settings_of, options), options)
    assert [(one.production, one.policy, one.assumption) for one in found] == [
        ("logged", "fcfs", None),
        ("logged", "vtc", None),
    ]
    assert [(one.requests, one.only_production, one.only_replay) for one in found] == [(20, 1, 0)] * 2


def test_arrivals_alone_are_compared_with_the_baseline(tmp_path: Path, settings_of: Config) -> None:
    store = stored(tmp_path)
    replay(store, settings_of, ["fcfs", "vtc"])
    options = measure_options(settings_of)
    made = sources(open_store(store.path), settings_of, options)
    assert not has_decisions(made[0].outcome)
    found = review(made, options)
    assert [(one.production, one.policy, one.assumption) for one in found] == [("fcfs", "vtc", "simulated baseline")]
    assert review([made[0]], options) == []
