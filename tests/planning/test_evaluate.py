"""The arithmetic of an evaluation, by hand, and a handful of incidents from end to end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairreplay.causes.verdict import MetricVerdict, Verdict
from fairreplay.config.load import parse_config
from fairreplay.errors import UsageError
from fairreplay.planning.evaluate import Answer, answer, evaluate, figures, named, said, with_step_times
from fairreplay.planning.incidents import KINDS
from fairreplay.planning.oracle import Truth
from fairreplay.planning.suite import PAIRS, SINGLES, case
from fairreplay.planning.synth import check

pytestmark = pytest.mark.xdist_group("synth")

BLANK = Answer(
    number=0,
    family="single",
    name="burst",
    injected=("burst",),
    present=("burst",),
    truth={},
    named={"scr": "none", "jfi": "none", "tfr": "none"},
    said=(),
    before=(),
    delay_s=None,
    victims_p99_ms=None,
)


def truth(metric: str, *right: str, parts: dict[str, float] | None = None) -> Truth:
    return Truth(metric, 5.0, 0.0, parts or dict.fromkeys(right, 1 / len(right)), right)


def hit(metric: str, cause: str, right: tuple[str, ...], **more: Any) -> Answer:
    return replace(BLANK, truth={metric: truth(metric, *right)}, named={**BLANK.named, metric: cause}, **more)


def test_a_confusion_matrix_by_hand() -> None:
    answers = [
        hit("scr", "burst", ("burst",), said=("burst",), delay_s=60.0),
        hit("scr", "burst", ("burst",), said=("burst", "weight_skew"), delay_s=120.0),
        hit("scr", "unexplained", ("burst",), delay_s=300.0),
        hit("scr", "none", ("capacity_shortfall",)),
        # both are right: the one that was named is the row
        hit("scr", "capacity_shortfall", ("burst", "capacity_shortfall"), delay_s=60.0),
        hit("jfi", "burst", ("weight_skew", "burst"), delay_s=60.0),
        # none of the right ones: the likeliest is the row
        hit("jfi", "preemption_thrash", ("weight_skew", "burst"), delay_s=60.0),
        BLANK,  # hurt nothing: judged on nothing
    ]
    found = figures(answers)
    assert found["confusion"] == {
        "scr": {
            "burst": {"burst": 2, "unexplained": 1},
            "capacity_shortfall": {"capacity_shortfall": 1, "none": 1},
        },
        "jfi": {"burst": {"burst": 1}, "weight_skew": {"preemption_thrash": 1}},
        "tfr": {},
    }
    assert found["top1"] == {
        "scr": {"right": 3, "of": 5, "rate": 0.6},
        "jfi": {"right": 1, "of": 2, "rate": 0.5},
        "tfr": {"right": 0, "of": 0, "rate": None},
    }
    assert found["extra_causes"] == {"incidents": 7, "causes": 1}
    # of 60 60 60 60 120 300: ranks 3 and 6
    assert found["delay_s"] == {"incidents": 7, "missed": 1, "p50": 60.0, "p90": 300.0, "max": 300.0}


def test_pairs_are_judged_where_both_causes_matter() -> None:
    matter = {"scr": truth("scr", "burst", parts={"burst": 0.6, "weight_skew": 0.4})}
    # each matters to another metric
    apart = {
        "scr": truth("scr", "burst", parts={"burst": 1.1, "weight_skew": -0.1}),
        "jfi": truth("jfi", "weight_skew", parts={"burst": 0.1, "weight_skew": 0.9}),
    }
    too_weak = {"scr": truth("scr", "burst", parts={"burst": 0.8, "weight_skew": 0.2})}
    pair = replace(BLANK, family="pair", injected=("burst", "weight_skew"), present=("burst", "weight_skew"))
    answers = [
        replace(pair, truth=matter, said=("burst", "weight_skew")),
        replace(pair, truth=matter, said=("burst",)),
        replace(pair, truth=apart, said=("burst", "preemption_thrash", "weight_skew")),
        replace(pair, truth=too_weak, said=("burst",)),
    ]
    found = figures(answers)
    assert found["pairs"] == {"right": 2, "of": 3, "rate": 2 / 3}
    assert found["top1"]["scr"]["of"] == 0  # a pair is no single incident
    assert found["extra_causes"] == {"incidents": 4, "causes": 1}


def test_false_causes_by_hand() -> None:
    answers = [
        replace(BLANK, family="healthy"),
        replace(BLANK, family="healthy", said=("burst",)),
        replace(BLANK, family="quiet"),
        replace(BLANK, family="quiet", before=("capacity_shortfall",)),
        hit("scr", "burst", ("burst",), before=("burst",)),
    ]
    found = figures(answers)
    assert found["periods"] == {"right": 3, "of": 4, "rate": 0.75}
    assert found["false_causes"] == {
        "healthy": {"periods": 2, "with_a_false_cause": 1},
        "quiet": {"periods": 2, "with_a_false_cause": 0},
        "before incidents": {"periods": 5, "with_a_false_cause": 2},
    }


def verdict(cause: str, further: tuple[str, ...] = (), **metrics: tuple[str, float]) -> Verdict:
    by_metric = {
        metric: MetricVerdict(metric, primary, (), None, "low", deficit, deficit)
        for metric, (primary, deficit) in metrics.items()
    }
    return Verdict("ep-0", cause, further, None, by_metric, "low", "", {}, ())


def test_the_episode_with_the_largest_deficit_speaks_for_a_metric() -> None:
    verdicts = [
        verdict("burst", scr=("burst", 2.0), jfi=("weight_skew", 1.0)),
        verdict("unexplained", ("type_starvation",), scr=("unexplained", 7.0)),
        verdict("low_demand"),
    ]
    assert [named(metric, verdicts) for metric in ("scr", "jfi", "tfr")] == ["unexplained", "weight_skew", "none"]
    assert said(verdicts) == ("burst", "type_starvation", "weight_skew")


def test_step_times_are_off_by_the_factor_and_nothing_else_is() -> None:
    text = "[cluster]\nspeed = 2.0\n[cluster.step_time]\nbase = 0.02\nprefill_token = 1e-4\ndecode_sequence = 5e-4\n"
    config = parse_config(text, "test")
    off = with_step_times(config, 1.5)
    assert off.cluster.step_time is not None
    assert off.cluster.step_time.model_dump(exclude={"preset"}) == pytest.approx(
        {"base": 0.03, "prefill_token": 1.5e-4, "decode_sequence": 7.5e-4, "context_token": 4.5e-8}
    )
    assert off.cluster.model_copy(update={"step_time": config.cluster.step_time}) == config.cluster
    assert with_step_times(config, 1.0) is config


# ---- the suite ----


def test_a_case_hangs_on_its_seed_and_number_alone() -> None:
    assert case(5, 7) == case(5, 7)
    assert case(5, 7).scenario != case(6, 7).scenario
    assert case(5, 7).scenario != case(5, 20).scenario


def test_a_suite_holds_every_kind_and_pair_and_each_can_be_made() -> None:
    cases = [case(11, number) for number in range(220)]
    for one in cases:
        check(one.scenario)
    names = {family: {one.name for one in cases if one.family == family} for family in ("single", "pair")}
    assert names == {"single": set(SINGLES), "pair": set(PAIRS)}
    assert {one.family for one in cases[:10]} == {"single", "pair", "quiet", "healthy"}
    assert set(SINGLES) | {"quiet", "healthy"} == set(KINDS)
    for varied in ("tenants", "rate", "policy", "lead_minutes", "incident_minutes"):
        assert len({getattr(one.scenario, varied) for one in cases}) > 1
    assert {one.scenario.world.law for one in cases} == {"lognormal", "gamma", "pareto"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((0, 0), "--incidents 0"), ((0, 1, 2.0), "--sandbox-error 2"), ((0, 1, 0.0, 0), "--jobs 0")],
)
def test_what_cannot_be_evaluated_is_one_line(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        evaluate(*arguments)


# ---- incidents that were once got wrong ----


def test_a_jam_of_one_window_in_a_healthy_period_has_no_cause() -> None:
    """Of ten tenants one waited through a window by chance. A larger cluster would have helped; it explains nothing."""
    found = answer(2, 0.0, 409)
    assert (found.family, found.said) == ("healthy", ())


@pytest.mark.parametrize(
    ("number", "right"),
    [
        # four minutes of slow steps that nobody listed, after a jam that has nothing to do with them
        (31, {"scr": "capacity_shortfall", "jfi": "capacity_shortfall"}),
        # everybody sends more and more; of one large tenant a single type grew even more
        (71, {"scr": "capacity_shortfall", "jfi": "capacity_shortfall", "tfr": "capacity_shortfall"}),
    ],
)
def test_causes_are_right_although_step_times_are_off(number: int, right: dict[str, str]) -> None:
    found = answer(2, 0.2, number)
    assert {metric: found.named[metric] for metric in found.truth} == right
    assert {metric: truth.right for metric, truth in found.truth.items()} == {
        metric: (cause,) for metric, cause in right.items()
    }
