"""The truth about an incident: Shapley values of known games, right answers by hand, injections undone part by part."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import polars as pl
import pytest
from numpy.testing import assert_allclose

from fairreplay.config.load import parse_config
from fairreplay.planning.incidents import KINDS, undone
from fairreplay.planning.oracle import right_answers, shapley, truths
from fairreplay.planning.serving import serve
from fairreplay.planning.synth import Scenario, Synthesis, synthesise

pytestmark = pytest.mark.xdist_group("synth")


def game(names: str, value: dict[str, float]) -> dict[tuple[str, ...], float]:
    """Subset -> value, subsets written as words."""
    subsets = [subset for size in range(len(names) + 1) for subset in combinations(names, size)]
    return {subset: value.get("".join(subset), 0.0) for subset in subsets}


def test_shapley_of_the_gloves_game() -> None:
    """Two left gloves and one right: the right one is worth 2/3, each left one 1/6 (Shapley 1953)."""
    found = shapley("abr", game("abr", {"ar": 1.0, "br": 1.0, "abr": 1.0}))
    assert_allclose([found[name] for name in "abr"], [1 / 6, 1 / 6, 2 / 3])


def test_shapley_of_an_additive_game_is_what_each_adds_and_nothing_for_who_adds_nothing() -> None:
    worth = {"a": 0.5, "b": 0.25, "n": 0.0}
    value = {"".join(subset): sum(worth[name] for name in subset) for subset in game("abn", {})}
    assert shapley("abn", game("abn", value)) == pytest.approx(worth)


def test_substitutes_and_complements_share_evenly() -> None:
    """Either alone does all, or only both do anything."""
    assert shapley("ab", game("ab", {"a": 1.0, "b": 1.0, "ab": 1.0})) == {"a": 0.5, "b": 0.5}
    assert shapley("ab", game("ab", {"ab": 1.0})) == {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize(
    ("metric", "parts", "alone", "right"),
    [
        ("scr", {"burst": 1.0}, {"burst": 1.0}, ("burst",)),
        # one of two does it alone
        ("scr", {"burst": 0.9, "weight_skew": 0.1}, {"burst": 0.95, "weight_skew": 0.05}, ("burst",)),
        # either does: both are right, except where one is the metric's own rule
        ("scr", {"burst": 0.6, "weight_skew": 0.4}, {"burst": 0.9, "weight_skew": 0.7}, ("burst", "weight_skew")),
        ("jfi", {"burst": 0.6, "weight_skew": 0.4}, {"burst": 0.9, "weight_skew": 0.7}, ("weight_skew",)),
        ("tfr", {"burst": 0.6, "weight_skew": 0.4}, {"burst": 0.9, "weight_skew": 0.7}, ("burst", "weight_skew")),
        ("tfr", {"burst": 0.6, "type_starvation": 0.4}, {"burst": 1.0, "type_starvation": 0.8}, ("type_starvation",)),
        # neither does alone
        ("scr", {"burst": 0.7, "preemption_thrash": 0.3}, {"burst": 0.4, "preemption_thrash": 0.0}, None),
        ("scr", {"burst": 0.8, "preemption_thrash": 0.2}, {"burst": 0.4, "preemption_thrash": 0.0}, ("burst",)),
    ],
)
def test_right_answers(
    metric: str, parts: dict[str, float], alone: dict[str, float], right: tuple[str, ...] | None
) -> None:
    assert right_answers(metric, parts, alone) == (right or tuple(parts))


# ---- on served traces ----

SMALL = Scenario(minutes=40, tenants=5, rate=0.8, lead_minutes=20, incident_minutes=8, incidents=("slowdown+skew",))
QUIETLY = {"skew": replace(KINDS["skew"], load=0.0), "slowdown": replace(KINDS["slowdown"], settings={"speed": 0.3})}


@pytest.fixture(scope="module")
def pair() -> Synthesis:
    """Slower steps make the contention under which reversed weights are felt."""
    return synthesise(replace(SMALL, kinds=QUIETLY))


def test_each_metric_of_a_pair_has_its_own_cause(pair: Synthesis) -> None:
    found = truths(pair.trace, parse_config(pair.config, "pair"), pair.labels)
    assert found["scr"].right == ("capacity_shortfall",)
    assert found["jfi"].right == ("weight_skew",)
    for truth in found.values():
        assert_allclose(sum(truth.parts.values()), 1.0)
        assert truth.left < 1.0
        assert truth.deficit > 1.0


def test_one_part_of_an_injection_can_be_undone(pair: Synthesis) -> None:
    config = parse_config(pair.config, "pair")
    requests, without_skew = undone(pair.trace, config, pair.labels, ["skew-1:weights"])
    assert without_skew == config
    assert (requests.group_by("tenant").agg(pl.col("weight").n_unique())["weight"] == 1).all()
    requests, faster = undone(pair.trace, config, pair.labels, ["slowdown-1:settings", "skew-1:traffic"])
    assert requests["weight"].to_list() == pair.trace["weight"].to_list()
    usual = config.cluster.speed
    assert usual is not None
    assert [change.speed for change in config.cluster.changes] == [None, pytest.approx(0.3 * usual, rel=1e-3), usual]
    assert [change.policy for change in faster.cluster.changes] == ["vtc"]


def test_labels_of_a_pair_name_each_other_and_hold_the_causes_of_their_parts(pair: Synthesis) -> None:
    slowdown, skew = pair.labels["incidents"]
    assert (slowdown["with"], skew["with"]) == (["skew-1"], ["slowdown-1"])
    assert (slowdown["start"], slowdown["end"]) == (skew["start"], skew["end"])
    assert slowdown["injection"]["causes"] == {"settings": "capacity_shortfall"}
    assert skew["injection"]["causes"] == {"weights": "weight_skew"}
    assert KINDS["skew"].causes() == {"traffic": "capacity_shortfall", "weights": "weight_skew"}
    assert KINDS["starvation"].causes() == {"traffic": "capacity_shortfall", "settings": "type_starvation"}


@pytest.mark.parametrize("kind", ["unlisted-slowdown", "unlisted-thrash"])
def test_an_unlisted_change_is_in_the_trace_and_the_labels_but_not_in_the_config(kind: str) -> None:
    alone = replace(SMALL, rate=2.0, incidents=(kind,))
    made = synthesise(alone)
    config = parse_config(made.config, "unlisted")
    assert config.cluster.changes == ()
    requests, production = undone(made.trace, config, made.labels, [])
    assert len(production.cluster.changes) == 2
    assert serve(requests, production).equals(made.trace)
    calm = serve(*undone(made.trace, config, made.labels))
    assert calm.equals(serve(*undone(made.trace, config, made.labels, [f"{kind}-1"])))
    assert calm.equals(synthesise(replace(alone, incidents=())).trace)
    listed = synthesise(replace(alone, incidents=(kind.removeprefix("unlisted-"),)))
    assert listed.trace.equals(made.trace)
    assert truths(made.trace, config, made.labels)["scr"].right == (KINDS[kind].cause,)


def test_nothing_injected_has_no_truth() -> None:
    made = synthesise(replace(SMALL, incidents=("healthy",)))
    assert made.labels["incidents"][0]["cause"] is None
    assert truths(made.trace, parse_config(made.config, "healthy"), made.labels) == {}
    assert made.trace.equals(synthesise(replace(SMALL, incidents=())).trace)
