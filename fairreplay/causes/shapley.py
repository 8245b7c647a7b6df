"""Ordered (asymmetric) Shapley values: credit for what players achieve together, class by class.

Players of the first class share what they achieve on their own, by Shapley's rule; those of the second what they add
to all of the first, and so on. One class gives Shapley's value, classes of one player each the marginal contributions
in order. Shapley, "A value for n-person games", 1953; Frye, Rowat, Feige, "Asymmetric Shapley values", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import factorial

Coalition = frozenset[str]
Classes = Sequence[Sequence[str]]


def coalitions(classes: Classes) -> list[Coalition]:
    """Every coalition whose value ``ordered_shapley`` asks for, each once, the empty one first."""
    found: list[Coalition] = [frozenset()]
    before: Coalition = frozenset()
    for players in classes:
        found += [
            before | frozenset(part) for size in range(1, len(players) + 1) for part in combinations(players, size)
        ]
        before |= frozenset(players)
    return found


def ordered_shapley(classes: Classes, value: Callable[[Coalition], float]) -> dict[str, float]:
    """The share of each player, in the order of ``classes``; they add up to ``value(all) - value(none)``.

    Raises:
        ValueError: a player stands in the classes twice.
    """
    players = [player for one in classes for player in one]
    if len(set(players)) < len(players):
        raise ValueError(f"a player stands in the classes twice: {players}")
    shares: dict[str, float] = {}
    before: Coalition = frozenset()
    for one in classes:
        for player in one:
            shares[player] = _within(player, one, before, value)
        before |= frozenset(one)
    return shares


def _within(player: str, players: Sequence[str], before: Coalition, value: Callable[[Coalition], float]) -> float:
    """Shapley's rule among ``players``, all on top of ``before``: the mean over their orders of what it adds."""
    others = [other for other in players if other != player]
    total = 0.0
    for size in range(len(others) + 1):
        orders = factorial(size) * factorial(len(others) - size)
        for part in combinations(others, size):
            there = before | frozenset(part)
            total += orders * (value(there | {player}) - value(there))
    return total / factorial(len(players))
