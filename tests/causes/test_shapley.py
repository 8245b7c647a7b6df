"""Games with known answers."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.causes.shapley import Coalition, coalitions, ordered_shapley


def test_an_additive_game_gives_each_its_own() -> None:
    worth = {"a": 0.5, "b": -0.25, "c": 2.0}
    for classes in (["abc"], ["a", "bc"], ["c", "b", "a"]):
        shares = ordered_shapley([list(one) for one in classes], lambda s: sum(worth[player] for player in s))
        assert shares == pytest.approx(worth)


def test_a_symmetric_game_shares_equally() -> None:
    """Majority of three: any two are worth 1."""
    assert ordered_shapley([["a", "b", "c"]], lambda s: float(len(s) >= 2)) == pytest.approx(
        dict.fromkeys("abc", 1 / 3)
    )


def test_a_null_player_gets_nothing() -> None:
    shares = ordered_shapley([["a", "null", "b"]], lambda s: float({"a", "b"} <= s))
    assert shares == pytest.approx({"a": 0.5, "null": 0.0, "b": 0.5})


def gloves(coalition: Coalition) -> float:
    """One left glove, two right ones; a pair is worth 1."""
    return float("left" in coalition and bool(coalition & {"right1", "right2"}))


def test_three_player_gloves() -> None:
    shares = ordered_shapley([["left", "right1", "right2"]], gloves)
    assert shares == pytest.approx({"left": 2 / 3, "right1": 1 / 6, "right2": 1 / 6})


def test_gloves_in_classes() -> None:
    """The left glove first: alone it makes no pair, then the right ones share it; after the right ones it makes all."""
    first = ordered_shapley([["left"], ["right1", "right2"]], gloves)
    assert first == {"left": 0.0, "right1": 0.5, "right2": 0.5}
    last = ordered_shapley([["right1", "right2"], ["left"]], gloves)
    assert last == pytest.approx({"right1": 0.0, "right2": 0.0, "left": 1.0})


def test_substitutes_of_a_later_class_get_nothing() -> None:
    assert ordered_shapley([["changed"], ["mechanism"]], lambda s: float(bool(s))) == {"changed": 1.0, "mechanism": 0.0}
    assert ordered_shapley([["changed", "mechanism"]], lambda s: float(bool(s))) == {"changed": 0.5, "mechanism": 0.5}


def test_nobody_plays() -> None:
    assert ordered_shapley([], lambda s: 1.0) == {}
    assert ordered_shapley([[], []], lambda s: 1.0) == {}
    assert coalitions([[], []]) == [frozenset()]


def test_a_player_plays_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        ordered_shapley([["a"], ["a"]], lambda s: 0.0)


def game(values: list[float]) -> dict[Coalition, float]:
    players = "abcd"
    every = [frozenset(p for n, p in enumerate(players) if number >> n & 1) for number in range(16)]
    return dict(zip(every, [0.0, *values], strict=True))


games = st.lists(st.floats(-1, 1), min_size=15, max_size=15).map(game)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(games)
def test_one_class_is_the_mean_over_all_orders(value: dict[Coalition, float]) -> None:
    shares = ordered_shapley([list("abcd")], value.__getitem__)
    means = dict.fromkeys("abcd", 0.0)
    for order in permutations("abcd"):
        for number, player in enumerate(order):
            means[player] += (value[frozenset(order[: number + 1])] - value[frozenset(order[:number])]) / 24
    assert shares == pytest.approx(means, abs=1e-12)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(games)
def test_single_classes_are_marginal_contributions_in_order(value: dict[Coalition, float]) -> None:
    shares = ordered_shapley([["c"], ["a"], ["d"], ["b"]], value.__getitem__)
    assert shares == {
        "c": value[frozenset("c")],
        "a": value[frozenset("ca")] - value[frozenset("c")],
        "d": value[frozenset("cad")] - value[frozenset("ca")],
        "b": value[frozenset("cadb")] - value[frozenset("cad")],
    }


@settings(max_examples=100, derandomize=True, deadline=None)
@given(games, st.permutations("abcd"), st.lists(st.integers(0, 4), min_size=2, max_size=2))
def test_shares_and_what_is_left_add_up(value: dict[Coalition, float], order: list[str], cuts: list[int]) -> None:
    first, second = sorted(cuts)
    classes = [order[:first], order[first:second], order[second:]]
    asked: list[Coalition] = []

    def told(coalition: Coalition) -> float:
        asked.append(coalition)
        return value[coalition]

    shares = ordered_shapley(classes, told)
    assert sum(shares.values()) == pytest.approx(value[frozenset("abcd")], abs=1e-9)
    assert set(asked) == set(coalitions(classes))  # no replay is missing and none is made in vain
    assert len(coalitions(classes)) == len(set(coalitions(classes))) <= 16
