"""Worked values of the control laws, of capacity, of weights and of preemption."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairreplay.config.load import parse_config
from fairreplay.metrics import capacity, controls, jfi
from fairreplay.metrics.preemption import marginal_loss_s, thrashes
from fairreplay.metrics.weights import committed_weights, configured, is_skewed, skews
from tests.metrics.test_worked_values import measured, served


def test_backpressure_slows_down_under_overload() -> None:
    def after(p99: float | None, rate: float = 100.0) -> float:
        return controls.backpressure(rate, p99, slo=1.0, rate_max=120.0, rate_min=10.0, step=5.0)

    assert after(1.5) == pytest.approx(66.667, abs=5e-4)
    assert after(4.0) == 50
    assert controls.backpressure_raw(100, 1.5, 1.0) == pytest.approx(150)
    assert after(4.0, rate=15.0) == 10  # never below rate_min
    assert (after(1.0), after(0.2), after(0.2, rate=118.0), after(None)) == (105, 105, 120, 100)


def test_ten_applications_of_one_overload_would_leave_next_to_nothing() -> None:
    rate = 100.0
    for _ in range(10):
        rate = controls.backpressure(rate, 1.5, slo=1.0, rate_max=100.0, rate_min=0.0, step=5.0)
    assert rate == pytest.approx(1.7, abs=0.05)


@pytest.mark.parametrize(("misses", "after"), [((50, 3, 0), 0.2), ((30, 10, 0), 0.5), ((30, 3, 0), 1.0)])
def test_the_tightest_target_whose_budget_is_used_up_must_be_met(misses: tuple[int, ...], after: float) -> None:
    targets = {"p50": 0.2, "p90": 0.5, "p99": 1.0}
    counts = dict(zip(targets, misses, strict=True))
    assert controls.deadline(7.0, targets, counts, n=100) == 7.0 + after


def test_cost_of_a_mixture_of_experts() -> None:
    assert controls.moe_cost(100, 2, 0.5) == 205
    assert controls.moe_cost(100, 2, 0.5, same_experts=True) == 250


def test_the_correction_of_an_estimate_follows_what_was_measured() -> None:
    ratio = 1.0
    for _ in range(200):
        ratio = controls.drift(ratio, estimated=10, actual=15)
    assert controls.corrected(10, ratio) == pytest.approx(15)
    assert controls.drift(1.0, 10, 15, gain=0.1) == pytest.approx(1.05)


def test_capacity_bounds() -> None:
    assert capacity.compute_bound(4e14, 1.0, 1.0, 1.4e10) == pytest.approx(28571.4, abs=0.05)
    kv = capacity.kv_bytes_per_token(layers=32, kv_heads=32, head_dim=128, bytes_per_value=2)
    assert kv == 524_288
    assert 10_000 * kv / 2**30 == pytest.approx(4.8828, abs=5e-5)
    assert capacity.residence_bound(320_000, 60, 8) == 2_400_000
    assert capacity.hbm_bound(2e12, 1, 14e9, 10, 1000, kv) == pytest.approx(2e12 / (1.4e9 + 1000 * kv))
    assert capacity.network_bound(1e9, 60, kv) == pytest.approx(6e10 / kv)
    assert capacity.allocatable({"total": 5.0, "kv": 3.0, "hbm": 3.0}) == (3.0, "hbm")


def test_tightness_of_targets() -> None:
    assert capacity.tightness({"p50": 0.2, "p90": 0.5, "p99": 1.0}) == pytest.approx(
        {"p50": 5 / 8, "p90": 1 / 4, "p99": 1 / 8}
    )


def test_a_request_thrashes_with_two_preemptions_in_a_minute_or_three_in_all() -> None:
    def at(*seconds: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array(seconds, np.int64) * 1_000_000

    assert [thrashes(at(*s)) for s in ((), (5,), (0, 61), (61, 1), (0, 100, 200))] == [False, False, False, True, True]


def test_counts_of_preemptions_by_window_and_unknown_is_not_zero() -> None:
    rows = [served(10, preemptions=count) for count in (0, 1, 3)] + [served(10, preemptions=None)]
    names = ("preemptions", "preempted_requests", "thrashing_requests")
    assert measured(rows).windows.select(names).rows() == [(4, 2, 1)]
    assert measured([served(10, preemptions=None)]).windows.select(names).rows() == [(None, None, None)]


@pytest.mark.parametrize(("recovery", "loss"), [(0.05, 0.005), (0.2, 0.02)])
def test_marginal_loss(recovery: float, loss: float) -> None:
    assert marginal_loss_s(0.1, recovery) == pytest.approx(loss)


def test_tail_ratio_and_quantiles_of_a_tenant() -> None:
    names = ("ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "tail_ratio")
    rows = [served(ms) for ms in range(1, 101)]
    assert measured(rows).tenants.select(names).rows() == [(50, 90, 99, 99 / 50)]
    rows = [served(100)] * 9 + [served(1000)]
    assert measured(rows).tenants.select(names).rows() == [(100, 100, 1000, 10)]
    # One of ten never got a first token: P99 is beyond every bound, P90 is not.
    rows = [served(100)] * 9 + [{"arrived_at": 0, "status": "failed"}]
    assert measured(rows).tenants.select(names).rows() == [(100, 100, None, None)]
    assert measured([{"arrived_at": 0, "status": "failed"}]).tenants.select(names).rows() == [(None,) * 4]


def test_fair_loss_and_the_raw_form_that_prefers_equal_service() -> None:
    weights, proportional, equal = np.array([2.0, 1.0]), np.array([[20.0, 10.0]]), np.array([[15.0, 15.0]])
    everyone = np.ones((1, 2), np.bool_)
    assert float(jfi.fair_loss(proportional / weights, everyone)[0]) == 0
    assert float(jfi.fair_loss(equal / weights, everyone)[0]) == pytest.approx(0.1)  # x = (7.5, 15): JFI .9
    # JFI(w) = 9/10 is a constant: the raw form is least where service is equal, whatever the weights.
    assert float(jfi.fair_loss_raw(weights, proportional)[0]) == pytest.approx(1)
    assert float(jfi.fair_loss_raw(weights, equal)[0]) == pytest.approx(9 / 10)


def test_rules_of_weights() -> None:
    assert committed_weights(np.array([100.0, 100, 200])).tolist() == [0.25, 0.25, 0.5]
    text = (
        "[tenants.a]\nweight = 2.0\n[[tenants.a.changes]]\nat = 1970-01-01T00:01:00Z\nweight = 0.5\n"
        "[tenants.b]\ncommitted_tokens_per_month = 300\n[tenants.c]\ncommitted_tokens_per_month = 100\n"
    )
    at = np.array([0, 59_999_999, 60_000_000], np.int64)
    weights = configured(parse_config(text, "test"), ["a", "b", "c", "d"], at)
    assert weights.tolist() == [[2, 1.5, 0.5, 1], [2, 1.5, 0.5, 1], [0.5, 1.5, 0.5, 1]]


def test_skew_is_weight_in_force_over_committed_share() -> None:
    found = skews(np.array([[1.0, 1.0, 5.0]]), np.array([300.0, 100.0, 0.0]))
    assert found[0, :2].tolist() == pytest.approx([0.5 / 0.75, 0.5 / 0.25])
    assert np.isnan(found[0, 2])
    assert [is_skewed(value) for value in (1.5, 1.49, 1.0, 0.67, 0.66)] == [True, False, False, False, True]


def test_skew_of_a_window_follows_the_logged_weights() -> None:
    text = "[tenants.a]\ncommitted_tokens_per_month = 300\n[tenants.b]\ncommitted_tokens_per_month = 100\n"
    rows = [served(10, tenant="a"), served(10, tenant="b")]
    names = ("tenant", "weight", "skew")
    plain = measured(rows, text).tenants.sort("tenant").select(names)
    assert plain.rows() == [("a", 1.5, 1.0), ("b", 0.5, 1.0)]
    logged = measured([row | {"weight": 1.0} for row in rows], text).tenants.sort("tenant").select(names)
    assert logged.rows() == [("a", 1.0, pytest.approx(2 / 3)), ("b", 1.0, 2.0)]


def test_there_is_a_limit_of_windows_and_it_says_what_to_do() -> None:
    from fairreplay.errors import UsageError

    rows = [served(10), served(10) | {"arrived_at": 2_000_000, "first_token_at": 2_000_001, "finished_at": 2_000_001}]
    with pytest.raises(UsageError, match=r"2000002 windows of 1 s between 1970-01-01.*choose a larger --window"):
        measured(rows, window="1s")
    assert len(measured(rows, window="1h").windows) == 556
