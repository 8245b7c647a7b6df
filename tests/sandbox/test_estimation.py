"""What a wrong estimate of costs does to the policies that go by one, and what its correction makes good."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from fairreplay.sandbox import reference
from fairreplay.sandbox.engine import PS_PER_SECOND, EngineResult, Plan, PolicySpec, StepTime, Workload
from fairreplay.sandbox.estimation import NANO, Estimation, Estimator, factors, size_classes
from fairreplay.sandbox.extras import MICRO
from fairreplay.sandbox.policies import ESTIMATE, POLICIES
from tests.sandbox.random_cases import case
from tests.sandbox.scenarios import Row, admission_order, plan, workload

ONE_BY_ONE = {"max_num_seqs": 1, "step_time": StepTime(0, PS_PER_SECOND, 0, 0)}
"""A prompt token takes a second; one request at a time."""


def estimated(work: Workload, factor: list[float], classes: list[int] | None = None) -> Workload:
    """``work``, whose requests are taken for ``factor`` times what they cost."""
    millionths = [round(Fraction(repr(one)) * MICRO) for one in factor]
    return replace(
        work, estimate=np.array(millionths, np.int64), cost_class=np.array(classes or [0] * len(work), np.int64)
    )


def served(
    rows: list[Row],
    policy: str,
    factor: list[float],
    alpha: float = 0,
    classes: list[int] | None = None,
    **knobs: object,
) -> str:
    work = estimated(workload(rows), factor, classes)
    spec = PolicySpec(policy, estimation=Estimation(round(alpha * MICRO)), **knobs)  # type: ignore[arg-type]
    return admission_order(work, reference.run(work, plan(work, spec, **ONE_BY_ONE)))


# ---- factors and corrections ----


def test_factors_lie_between_one_minus_and_one_plus_the_error() -> None:
    # u is the remainder by 2,000,001 less a million: the two ends and the middle
    ends = np.array([0, 2 * MICRO, MICRO])
    of_class, of_request = (grid.ravel() for grid in np.meshgrid(ends, ends, indexing="ij"))
    found = factors(200_000, of_class, of_request).tolist()
    assert found == [800_000, 1_000_000, 900_000, 1_000_000, 1_200_000, 1_100_000, 900_000, 1_100_000, 1_000_000]
    bits = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, (2, 100_000))
    some = factors(300_000, *bits)
    assert 700_000 <= some.min() < 705_000
    assert 1_295_000 < some.max() <= 1_300_000
    assert some.mean() == pytest.approx(MICRO, rel=1e-3)
    assert some.std() == pytest.approx(0.15 * MICRO * (2 / 3) ** 0.5, rel=0.01)  # two even spreads of sd 1/sqrt(3)
    assert factors(0, *bits).tolist() == [MICRO] * 100_000


def test_size_classes_are_those_of_the_report_by_the_prompt() -> None:
    tokens = np.array([1, 511, 512, 4095, 4096, 32_767, 32_768])
    assert size_classes(tokens).tolist() == [0, 0, 1, 1, 2, 2, 3]


def test_a_correction_by_hand() -> None:
    """Class 0 is taken for 1.25 of what it costs: ratio .8, halfway there at each finish. Class 1 has its own."""
    estimator = Estimator(Estimation(alpha=500_000), [1_250_000, 1_250_000, 500_000], [0, 0, 1])
    assert estimator.estimated(1, 1000) == 1250
    estimator.learn(0)
    assert estimator.corrections == [900_000_000, NANO]
    assert estimator.estimated(1, 1000) == 1125
    estimator.learn(0)
    assert estimator.corrections == [850_000_000, NANO]
    assert estimator.estimated(1, 1000) == 1062  # 1062.5, rounded down
    assert estimator.estimated(2, 1000) == 500
    estimator.learn(2)
    assert estimator.corrections == [850_000_000, 1_500_000_000]
    assert estimator.estimated(2, 1000) == 750


def test_without_correction_nothing_is_learnt() -> None:
    estimator = Estimator(Estimation(), [1_250_000], [0])
    estimator.learn(0)
    assert (estimator.corrections, estimator.estimated(0, 1000)) == ([NANO], 1250)


@pytest.mark.parametrize("error", [0.1, 0.2, 0.3])
def test_a_correction_takes_away_what_a_class_has_in_common_and_no_more(error: float) -> None:
    """Mean of corrected over actual tends to 1 in every class; the spread within a class stays."""
    rng = np.random.default_rng(7)
    count, classes = 40_000, 8
    kind = rng.integers(0, classes, count)
    of_class = rng.integers(-(2**63), 2**63 - 1, classes)[kind]
    of_request = rng.integers(-(2**63), 2**63 - 1, count)
    found = factors(round(error * MICRO), of_class, of_request)
    estimator = Estimator(Estimation(alpha=50_000), found.tolist(), kind.tolist())
    taken = np.zeros(count)
    for request in range(count):
        taken[request] = estimator.estimated(request, 10**9) / 10**9
        estimator.learn(request)
    late = np.arange(count) > count // 4
    before = np.array([(found[late & (kind == one)] / MICRO).mean() for one in range(classes)])
    after = np.array([taken[late & (kind == one)].mean() for one in range(classes)])
    spread = np.array([taken[late & (kind == one)].std() for one in range(classes)])
    assert np.abs(before - 1).max() > 0.3 * error
    # the mean of actual / estimated is a little above actual / mean estimated: by error^2 / 12 for a class without bias
    assert np.abs(after - 1).max() < 0.02
    assert np.abs(after - 1 - error**2 / 12).max() < 0.008
    # the request's part, an even spread of error / 2, about the class's mean
    assert spread == pytest.approx(error / 2 / 3**0.5 / before, rel=0.1)


# ---- by policy ----


def test_sjf_takes_the_shorter_for_the_longer() -> None:
    rows: list[Row] = [("a", 0, 50, 0), ("a", 1, 100, 0), ("b", 1, 110, 0)]
    assert served(rows, "sjf", [1, 1, 1]) == "a1 a2 b1"
    assert served(rows, "sjf", [1, 1.2, 1.05]) == "a1 b1 a2"  # 120 and 115.5
    assert served(rows, "sjf", [1, 1.1, 1.0]) == "a1 a2 b1"  # equal: by arrival and source
    assert served(rows, "sjf", [1, 1.1, 0.999999]) == "a1 b1 a2"  # counted in millionths


def test_sjf_learns_what_its_class_costs() -> None:
    """a is class 0 and taken for half; b is class 1 and right: b2 (60) against a2, which costs 100.

    a1's finish makes the correction 1 + 1/2 * (2 - 1) = 1.5, so a2 is 75 and b2 goes first; uncorrected it is 50.
    """
    rows: list[Row] = [("a", 0, 10, 0), ("a", 1, 100, 0), ("b", 1, 60, 0)]
    assert served(rows, "sjf", [0.5, 0.5, 1], 0.0, [0, 0, 1]) == "a1 a2 b1"
    assert served(rows, "sjf", [0.5, 0.5, 1], 0.5, [0, 0, 1]) == "a1 b1 a2"
    assert served(rows, "sjf", [0.5, 0.5, 1], 0.1, [0, 0, 1]) == "a1 a2 b1"  # 1.1 * 50 = 55


def test_whoever_waits_is_ranked_anew_after_each_finish() -> None:
    """All wait from the start on: a3 costs 100 and is taken for 50, 75, 87.5 as a1 and a2 finish; b1 costs 80."""
    rows: list[Row] = [("a", 0, 10, 0), ("a", 0, 20, 0), ("a", 0, 100, 0), ("b", 0, 80, 0)]
    assert served(rows, "sjf", [0.5, 0.5, 0.5, 1], 0.0, [0, 0, 0, 1]) == "a1 a2 a3 b1"
    assert served(rows, "sjf", [0.5, 0.5, 0.5, 1], 0.5, [0, 0, 0, 1]) == "a1 a2 b1 a3"


def test_sjf_by_cost_estimates_the_cost() -> None:
    work = estimated(workload([("a", 0, 1, 0), ("a", 1, 100, 0), ("b", 1, 50, 0)]), [1, 0.8, 1])
    work = replace(work, cost=np.array([1, 205, 170], np.int64) * MICRO)
    spec = PolicySpec("sjf", by_cost=True)
    assert admission_order(work, reference.run(work, plan(work, spec, **ONE_BY_ONE))) == "a1 b1 a2"
    wrong = replace(spec, estimation=Estimation())  # 205 * .8 = 164
    assert admission_order(work, reference.run(work, plan(work, wrong, **ONE_BY_ONE))) == "a1 a2 b1"


@pytest.mark.parametrize("policy", ["wfq", "wfq+edf"])
def test_wfq_charges_the_estimate_and_makes_it_good_at_the_finish(policy: str) -> None:
    """Equal prompts of 100. One at a time, every charge is made good before the next choice: no estimate matters."""
    rows: list[Row] = [("a", 0, 100, 0)] * 4 + [("b", 0, 100, 0)] * 4
    knobs = {"slo_ps": ((1, 1, 1),) * 2, "slack_ps": -(2**60), "output_cost": 0}
    assert served(rows, policy, [1] * 8, **knobs) == "a1 b1 a2 b2 a3 b3 a4 b4"
    assert served(rows, policy, [0.5] * 4 + [1] * 4, **knobs) == "a1 b1 a2 b2 a3 b3 a4 b4"

    def at_once(factor: list[float]) -> EngineResult:
        work = estimated(workload(rows), factor)
        spec = PolicySpec(policy, estimation=Estimation(), **knobs)  # type: ignore[arg-type]
        time = StepTime(PS_PER_SECOND, 0, 0, 0)
        return reference.run(work, plan(work, spec, max_num_seqs=3, max_num_batched_tokens=300, step_time=time))

    # three at a time. Right: a1 b1 a2 (tags 0 0 100 by name), then b2 a3 b3, then a4 b4
    assert at_once([1.0] * 8).scheduled_ps.tolist() == [t * PS_PER_SECOND for t in (0, 0, 1, 2, 0, 1, 1, 2)]
    # a for a third: a1 b1 a2 with a's next tag 66, made good to 200: b2 (100), a3 (200), b3 (200), then a4 b4
    third = at_once([1 / 3] * 4 + [1.0] * 4)
    assert third.scheduled_ps.tolist() == [t * PS_PER_SECOND for t in (0, 0, 1, 2, 0, 1, 1, 2)]
    # b for a third: a1 (0) b1 (0) b2 (33), next tags a 100 and b 66, made good to 200: a2 (100) a3 (200) b3 (200)
    other = at_once([1.0] * 4 + [1 / 3] * 4)
    assert other.scheduled_ps.tolist() == [t * PS_PER_SECOND for t in (0, 1, 1, 2, 0, 0, 1, 2)]


def test_wfq_estimates_prompt_and_expected_output_together() -> None:
    """Prompt 10, expected output 20 at cost 2: 50 at start, taken for 75; the finish after 30 outputs makes it 70."""
    work = estimated(workload([("a", 0, 10, 30), ("a", 0, 10, 30)]), [1.5, 1.5])
    policy = POLICIES["wfq"](PolicySpec("wfq", predicted_output=20, estimation=Estimation()), work)
    policy.weights = np.array([1])
    for request in range(2):
        policy.on_arrival(request)
    policy.on_queue_filled(0)
    policy.on_admit(0, 0)
    assert policy.rank(1) == 75
    policy.on_finish(0, 30)
    assert policy.rank(1) == 70


def test_qoserve_estimates_the_prefill() -> None:
    """Deadlines at 100 s; a second of alpha for a token; a prompt token takes a second.

    a2 (40) goes before b1 (50) unless it is taken for more. A prompt of 60 at 45 s is late if taken for 1.2 of it.
    """
    rows: list[Row] = [("a", 0, 5, 0), ("a", 1, 40, 0), ("b", 1, 50, 0)]
    knobs = {"slo_ps": ((100 * PS_PER_SECOND,) * 3,) * 2, "alpha_ps": PS_PER_SECOND}
    assert served(rows, "qoserve", [1, 1, 1], **knobs) == "a1 a2 b1"
    assert served(rows, "qoserve", [1, 1.3, 1], **knobs) == "a1 b1 a2"  # 52
    late: list[Row] = [("a", 0, 30, 0), ("a", 0, 60, 0), ("b", 0, 65, 0)]
    assert served(late, "qoserve", [1, 1, 1], **knobs) == "a1 a2 b1"
    assert served(late, "qoserve", [1, 1.2, 1], **knobs) == "a1 b1 a2"  # 30 + 72 > 100: given up


# ---- in all cases ----


def with_estimates(work: Workload, the_plan: Plan, seed: int, error: int, alpha: int) -> tuple[Workload, Plan]:
    """The policies that estimate are off by up to ``error`` millionths and correct with ``alpha``."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, len(work))
    of_class = rng.integers(-(2**63), 2**63 - 1, 3)[kind]
    work = replace(
        work,
        estimate=factors(error, of_class, rng.integers(-(2**63), 2**63 - 1, len(work))),
        cost_class=kind.astype(np.int64),
    )

    def spec(one: PolicySpec) -> PolicySpec:
        if one.name not in ESTIMATE:
            return one
        return replace(one, estimation=Estimation(alpha), preemption_threshold=None)

    states = tuple((at, replace(state, policy=spec(state.policy))) for at, state in the_plan.settings)
    return work, replace(the_plan, settings=states)


@pytest.mark.parametrize("alpha", [0, 50_000, MICRO])
@pytest.mark.parametrize("seed", range(60))
def test_an_error_of_nothing_changes_nothing(seed: int, alpha: int) -> None:
    work, the_plan = case(seed, policies=ESTIMATE)
    known = reference.run(work, the_plan)
    guessed = reference.run(*with_estimates(work, the_plan, seed, 0, alpha))
    for name in ("scheduled_ps", "first_token_ps", "finished_ps", "status", "preemptions"):
        assert getattr(known, name).tolist() == getattr(guessed, name).tolist()


def test_other_policies_do_not_look_at_estimates() -> None:
    for seed in range(60):
        work, the_plan = case(seed, policies=[name for name in POLICIES if name not in (*ESTIMATE, "rpm-limit")])
        forced = replace(
            the_plan,
            settings=tuple(
                (at, replace(state, policy=replace(state.policy, estimation=Estimation(50_000))))
                for at, state in the_plan.settings
                if state.policy.preemption_threshold is None
            ),
        )
        if len(forced.settings) < len(the_plan.settings):
            continue
        work_off, _ = with_estimates(work, the_plan, seed, 900_000, 50_000)
        assert (
            reference.run(work_off, forced).finished_ps.tolist() == reference.run(work, the_plan).finished_ps.tolist()
        )


def test_a_threshold_does_not_go_with_estimates() -> None:
    work = workload([("a", 0, 1, 1)])
    spec = PolicySpec("sjf", preemption_threshold=3, estimation=Estimation())
    with pytest.raises(ValueError, match="preemption_threshold does not go with estimates of costs"):
        reference.run(work, plan(work, spec))
