"""The worked values of the definitions, each reckoned by hand in the comment or the name."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from fairreplay.config.load import parse_config
from fairreplay.config.model import STRICT_SAMPLES, Config, Floor
from fairreplay.errors import UsageError
from fairreplay.metrics import jfi, types
from fairreplay.metrics.entitlement import entitlements, protected_weights
from fairreplay.metrics.measure import Measured, measure
from fairreplay.metrics.options import measure_options, window_us
from fairreplay.metrics.preemption import recompute_tax, recovery_s
from fairreplay.metrics.quantiles import nearest_rank
from tests.sandbox.frames import canonical


def row(at: np.ndarray[Any, Any] | list[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([at], np.float64)


def jain(*x: float) -> float:
    return float(jfi.jain(row(list(x)), np.ones((1, len(x)), np.bool_))[0])


def measured(rows: list[dict[str, Any]], text: str = "", **options: Any) -> Measured:
    config = parse_config(text, "test")
    return measure(canonical(rows), config, measure_options(config, **options), "logged")


def slo(p50: float, p90: float, p99: float) -> str:
    return f"{{ p50 = {p50}, p90 = {p90}, p99 = {p99} }}"


def served(ttft_ms: float, **more: Any) -> dict[str, Any]:
    at = ttft_ms / 1000
    return {"arrived_at": 0, "first_token_at": at, "finished_at": at} | more


# ---- quantiles ----


@pytest.mark.parametrize(
    ("values", "expected"),
    [(list(range(1, 101)), (50, 90, 99)), ([100] * 9 + [1000], (100, 100, 1000)), ([7], (7, 7, 7))],
)
def test_nearest_rank(values: list[int], expected: tuple[int, int, int]) -> None:
    series = pl.Series(values, dtype=pl.Int64)
    assert tuple(nearest_rank(series, q) for q in (50, 90, 99)) == expected


def test_no_values_no_quantile() -> None:
    assert nearest_rank(pl.Series([], dtype=pl.Int64), 50) is None


# ---- SCR ----

HUNDRED = [served(ms) for ms in range(1, 101)]


def test_scr_two_of_three_and_a_tenant_without_requests_does_not_count() -> None:
    rows = (
        [r | {"tenant": "A"} for r in HUNDRED]
        + [r | {"tenant": "B"} for r in HUNDRED]
        + [served(100, tenant="C")] * 9
        + [served(1000, tenant="C")]
    )
    text = (
        f"[tenants.A]\nslo_ttft_ms = {slo(50, 90, 99)}\n[tenants.B]\nslo_ttft_ms = {slo(50, 90, 98)}\n"
        f"[tenants.C]\nslo_ttft_ms = {slo(200, 500, 2000)}\n[tenants.D]\nslo_ttft_ms = {slo(1, 1, 1)}\n"
    )
    window = measured(rows, text).windows.row(0, named=True)
    assert window["scr"] == pytest.approx(2 / 3, abs=1e-15)
    assert window["failing"] == ["B"]
    assert window["tenants_insufficient"] == 0


def test_scr_weighted_by_commitment() -> None:
    rows = [served(10, tenant="A")] * 5 + [served(999, tenant="B")] * 5
    text = (
        f"[defaults]\nslo_ttft_ms = {slo(100, 100, 100)}\n[tenants.A]\ncommitted_tokens_per_month = 300\n"
        "[tenants.B]\ncommitted_tokens_per_month = 100\n"
    )
    window = measured(rows, text).windows.row(0, named=True)
    assert (window["scr"], window["scr_weighted"]) == (0.5, 0.75)


def test_what_counts_as_a_ttft_eight_on_time_one_refused_one_waiting() -> None:
    # P50: n 10, 8 ok, needs 5: pass. P90: n 9 (the waiting one is younger than 500 ms), 8 ok, needs 9: fail.
    rows = [served(100)] * 8 + [
        {"arrived_at": 1, "status": "rejected", "finished_at": 1.3},
        {"arrived_at": 1, "status": "unfinished"},  # age 300 ms at the trace's end, 1.3 s
    ]

    def passes(targets: str, **options: Any) -> object:
        text = f"[defaults]\nslo_ttft_ms = {targets}\n"
        return measured(rows, text, min_samples=1, **options).tenants["pass"].to_list()[0]

    assert passes(slo(200, 500, 2000)) is False
    assert passes(slo(200, 500, 2000), refusals="drop") is True
    # one quantile at a time; 1e9 ms is met by all that have a first token
    only_p50 = [*rows[:8], *[{"arrived_at": 1, "status": "rejected", "finished_at": 1.3}] * 8]
    text = (
        f"[defaults]\nslo_ttft_ms = {slo(200, 1e9, 1e9)}\n[window]\nmin_samples = {{ p50 = 1, p90 = 99, p99 = 999 }}\n"
    )
    assert measured(rows, text).tenants["pass"].to_list() == [True]  # 8 >= 5 of n = 10
    assert measured(only_p50, text).tenants["pass"].to_list() == [True]  # 8 >= 8 of n = 16
    assert measured([*only_p50, only_p50[-1]], text).tenants["pass"].to_list() == [False]  # 8 < 9 of n = 17


def test_failed_and_cancelled_before_the_first_token_are_misses_and_after_it_are_not() -> None:
    text = f"[defaults]\nslo_ttft_ms = {slo(200, 200, 200)}\n"
    for status in ("failed", "cancelled", "rejected"):
        rows = [served(100), {"arrived_at": 0, "status": status}, {"arrived_at": 0, "status": status}]
        assert measured(rows, text, min_samples=1).tenants["pass"].to_list() == [False]
    rows = [served(100), served(100, status="cancelled"), served(100, status="failed")]
    assert measured(rows, text, min_samples=1).tenants["pass"].to_list() == [True]


@pytest.mark.parametrize(("count", "judged"), [(4, None), (5, True), (9, True)])
def test_too_few_samples_decide_nothing(count: int, judged: bool | None) -> None:
    text = f"[defaults]\nslo_ttft_ms = {slo(200, 1, 1)}\n"  # P90 and P99 would fail, were they judged
    result = measured([served(100)] * count, text)
    assert result.tenants["pass"].to_list() == [judged]
    assert result.windows["scr"].to_list() == [None if judged is None else 1.0]
    assert result.windows["tenants_insufficient"].to_list() == [1 if judged is None else 0]


def test_one_miss_is_forgiven_at_the_smallest_judged_size() -> None:
    text = f"[defaults]\nslo_ttft_ms = {slo(200, 200, 200)}\n"
    for count, misses, passes in ((10, 1, True), (10, 2, False), (100, 1, True), (100, 2, False)):
        rows = [served(100)] * (count - misses) + [served(300)] * misses
        assert measured(rows, text).tenants["pass"].to_list() == [passes], (count, misses)


def test_strict_samples() -> None:
    options = measure_options(Config(), strict_samples=True)
    assert options.min_samples == STRICT_SAMPLES
    assert (STRICT_SAMPLES.p50, STRICT_SAMPLES.p90, STRICT_SAMPLES.p99) == (5, 29, 299)
    with pytest.raises(UsageError, match="does not go with"):
        measure_options(Config(), min_samples=1, strict_samples=True)


# ---- JFI and entitlement ----


@pytest.mark.parametrize(
    ("x", "value"),
    [
        ((10, 10, 10), 1),
        ((30, 10, 20), 6 / 7),
        ((100, 0), 1 / 2),
        ((2, 1, 1), 8 / 9),
        ((5,), 1),
        ((1.8, 0.6, 0.6), 25 / 33),
    ],
)
def test_jain(x: tuple[float, ...], value: float) -> None:
    assert jain(*x) == pytest.approx(value, abs=1e-15)


def test_jain_of_nobody_or_of_no_demand_is_not_judged() -> None:
    assert np.isnan(jain(0, 0, 0))
    assert np.isnan(float(jfi.jain(row([1.0]), np.zeros((1, 1), np.bool_))[0]))


def test_throttling_the_over_served_helps_and_the_low_weighted_hurts() -> None:
    assert jain(1.8, 0.3, 0.3) == pytest.approx(0.5614, abs=5e-5)
    assert jain(0.9, 1.05, 1.05) == pytest.approx(0.9950, abs=5e-5)


def test_water_filling_by_weight_capped_by_demand() -> None:
    # capacity 1000, weights 2:1:1:1, demand 100/900/900/0: the first is covered, the rest share 900.
    entitled = entitlements(np.array([1000.0]), np.array([2.0, 1, 1, 1]), row([100, 900, 900, 0]))
    assert entitled.tolist() == [[100, 450, 450, 0]]
    x = jfi.attainment(row([100, 500, 400, 0]), entitled)
    assert x[0, :3].tolist() == [1, 10 / 9, 8 / 9]
    assert np.isnan(x[0, 3])
    index = float(jfi.jain(np.nan_to_num(x), entitled > 0)[0])
    assert index == pytest.approx(243 / 245, abs=1e-15)
    # served / weight with the idle tenant would say 361/660
    assert jain(50, 500, 400, 0) == pytest.approx(361 / 660, abs=1e-15)


def test_where_all_demand_is_met_the_entitlement_is_the_demand() -> None:
    demand = row([3.3, 1.1, 7.7])
    assert entitlements(demand.sum(axis=1), np.ones(3), demand).tolist() == demand.tolist()


def test_a_small_entitlement_does_not_set_min_x() -> None:
    least, whose = jfi.least_served(row([0.1, 0.9]), row([0.4, 99.6]))
    assert (float(least[0]), int(whose[0])) == (0.9, 1)
    least, whose = jfi.least_served(row([0.1, 0.9]), row([0.6, 99.4]))
    assert (float(least[0]), int(whose[0])) == (0.1, 0)


def test_nobody_waits_so_jfi_is_one_however_unequal_the_service() -> None:
    rows = [
        {
            "tenant": "a",
            "scheduled_at": 0,
            "first_token_at": 1,
            "finished_at": 2,
            "prompt_tokens": 1000,
            "output_tokens": 50,
        },
        {
            "tenant": "b",
            "scheduled_at": 0,
            "first_token_at": 1,
            "finished_at": 2,
            "prompt_tokens": 1,
            "output_tokens": 1,
        },
    ]
    window = measured(rows).windows.row(0, named=True)
    assert (window["jfi"], window["min_x"]) == (1.0, 1.0)


def test_waiting_and_refused_cost_is_demand() -> None:
    # Window 0: a is served 100 + 2*50 = 200. b waits with the same cost until 90 s, c was refused with 80 in.
    rows = [
        {
            "tenant": "a",
            "scheduled_at": 0,
            "first_token_at": 1,
            "finished_at": 2,
            "prompt_tokens": 100,
            "output_tokens": 50,
        },
        {
            "tenant": "b",
            "scheduled_at": 90,
            "first_token_at": 91,
            "finished_at": 92,
            "prompt_tokens": 100,
            "output_tokens": 50,
        },
        {"tenant": "c", "status": "rejected", "finished_at": 3, "prompt_tokens": 80, "output_tokens": 0},
    ]
    table = measured(rows).tenants.filter(pl.col("start").dt.epoch("s") == 0).sort("tenant")
    assert table["served"].to_list() == [200, 0, 0]
    assert table["demand"].to_list() == [200, 200, 80]
    # 200 tokens, demands 200/200/80: equal shares of 66.67
    assert table["entitlement"].to_list() == pytest.approx([200 / 3] * 3)
    assert table["x"].to_list() == pytest.approx([3, 0, 0])
    assert table["backlog"].to_list() == [False, True, True]


def test_what_the_spread_has_served_is_not_waiting_again() -> None:
    # No schedule: 120 prompt tokens lie over 0..120 s, so at 60 s 60 are served and 60 wait (there is no output).
    rows = [{"first_token_at": 120, "finished_at": 120, "prompt_tokens": 120, "output_tokens": 0, "type": "embed"}]
    table = measured(rows).tenants.sort("start")
    assert table["served"].to_list() == [60, 60]
    assert table["demand"].to_list() == [120, 60]


def test_cached_tokens_cost_what_the_config_says() -> None:
    rows = [{"first_token_at": 1, "finished_at": 2, "prompt_tokens": 100, "cached_tokens": 40, "output_tokens": 10}]
    assert measured(rows).tenants["served"].to_list() == [80]
    assert measured(rows, "[cost]\ncached = 0.5\n").tenants["served"].to_list() == [100]


def test_jfi_raw_sees_a_quiet_tenant() -> None:
    rows = [{"tenant": "a", "first_token_at": 1, "finished_at": 2, "prompt_tokens": 100}]
    text = "[tenants.a]\ncommitted_tokens_per_month = 10\n[tenants.b]\ncommitted_tokens_per_month = 10\n"
    window = measured(rows, text).windows.row(0, named=True)
    assert (window["jfi"], window["jfi_raw"]) == (1.0, 0.5)
    assert measured(rows).windows["jfi_raw"].to_list() == [None]


def test_service_gap_of_two_tenants_backlogged_through_the_window() -> None:
    def late(tenant: str, tokens: int) -> list[dict[str, Any]]:
        running = {"tenant": tenant, "scheduled_at": 60, "first_token_at": 120, "finished_at": 120, "output_tokens": 0}
        waiting = {"tenant": tenant, "scheduled_at": 130, "first_token_at": 131, "finished_at": 131, "output_tokens": 0}
        return [running | {"prompt_tokens": tokens}, waiting]

    table = measured(late("a", 300) + late("b", 100)).windows
    assert table["service_gap"].to_list() == [0.0, 200.0, None]
    assert measured(late("a", 300)).windows["service_gap"].to_list() == [None, None, None]


# ---- types ----

SHARES, CV = row([0.60, 0.25, 0.10, 0.05]), row([2, 2, 2, 2.5])


def test_floors_by_cv() -> None:
    rho = types.floors(SHARES, CV, CV, Floor())
    assert rho[0].tolist() == pytest.approx([5166 / 62939, 29848 / 314695, 6396 / 62939, 7644 / 62939], abs=1e-15)
    assert float(rho.sum()) == pytest.approx(2 / 5, abs=1e-15)


def test_floors_by_the_essay_forms() -> None:
    p = row([0, 0.05, 0.2, 1, 0])
    assert types.eta_form(p, 0.5)[0, :4].tolist() == pytest.approx([1 / 5, 8 / 41, 2 / 11, 2 / 15], abs=1e-15)
    assert float(types.floors(p, p, p, Floor(rule="eta")).sum()) == pytest.approx(0.4)
    sigma = row([1, 2, 4])
    rho = types.floors(row([0.5, 0.25, 0.25]), sigma, sigma, Floor(rule="inverse-sigma"))
    # 1/(sigma p) = 2, 2, 1: the most variable type gets the least, against the essay's own text
    assert rho[0].tolist() == pytest.approx([0.16, 0.16, 0.08])


def test_type_ratio_against_floor_and_demand() -> None:
    # rho .10 of 1,000,000 tokens: 30,000 served of 200,000 demanded: 0.3; 20,000 of 20,000: 1.0
    rho = row([0.10, 0.10, 0.10])
    served_tokens = row([30_000, 20_000, 950_000])
    demand = row([200_000, 20_000, 950_000])
    unmet = np.array([[True, False, False]])
    ratio = types.ratios(served_tokens, demand, rho, unmet)
    assert ratio[0].tolist() == pytest.approx([0.3, 1.0, 9.5])
    assert types.leaks(served_tokens, demand, rho)[0].tolist() == [70_000, 0, 0]


def test_type_ratio_below_one_only_with_unmet_demand_and_a_floor_worth_the_name() -> None:
    served_tokens, rho = row([0, 1000]), row([0.1, 0.1])
    assert types.ratios(served_tokens, row([4, 1000]), rho, np.array([[True, False]]))[0, 0] == 1.0  # floor 0.4 %
    assert types.ratios(served_tokens, row([5, 1000]), rho, np.array([[True, False]]))[0, 0] == 0.0  # floor 0.5 %
    assert np.isnan(types.ratios(row([0, 0]), row([5, 5]), rho, np.array([[True, True]]))).all()
    assert np.isnan(types.ratios(served_tokens, row([0, 1000]), rho, np.array([[False, False]]))[0, 0])


# ---- weights, preemption ----


def test_protected_weights() -> None:
    weights = protected_weights(np.array([100.0, 100, 200]), np.array([25.0, 100, 100]), 0.5)
    assert weights.tolist() == pytest.approx([3 / 8, 1 / 8, 1 / 2], abs=1e-15)
    unused = protected_weights(np.array([1.0, 1.0]), np.array([0.0, 1.0]), 1.0)
    assert unused.tolist() == pytest.approx([0.6, 0.4])  # U = 0 gives alpha = 1.5


def test_recompute_tax_and_recovery() -> None:
    assert recompute_tax(3 * 400, 12_000) == 0.1
    assert recompute_tax(0, 0) is None
    assert recovery_s(4096, 0, 0, 8500) == pytest.approx(0.4819, abs=5e-5)
    assert recovery_s(850, 0, 0, 8500) == pytest.approx(0.1)


def test_recompute_tax_of_a_window_and_unknown_is_not_zero() -> None:
    known = served(10, prompt_tokens=900, output_tokens=101, recomputed_tokens=250, preemptions=1)
    assert measured([known]).windows["recompute_tax"].to_list() == [250 / 1250]
    assert measured([served(10)]).windows["recompute_tax"].to_list() == [None]


# ---- windows ----


def test_a_stalled_minute_is_a_window() -> None:
    windows = measured(
        [served(10), served(10) | {"arrived_at": 180, "first_token_at": 181, "finished_at": 181}]
    ).windows
    assert windows["requests"].to_list() == [1, 0, 0, 1]
    assert (
        windows["scr"].to_list()[1:3] == windows["jfi"].to_list()[1:3] == windows["tfr"].to_list()[1:3] == [None, None]
    )


def test_windows_are_aligned_to_the_epoch_and_the_drain_is_marked() -> None:
    rows = [{"arrived_at": 70, "scheduled_at": 70, "first_token_at": 71, "finished_at": 200}]
    windows = measured(rows).windows
    assert windows["start"].dt.epoch("s").to_list() == [60, 120, 180]
    assert windows["drain"].to_list() == [False, True, True]
    assert windows["degraded"].to_list() == [False, False, False]


def test_models_are_measured_apart() -> None:
    rows = [served(10, model=model) for model in ("m", None, "m")]
    assert measured(rows).windows.select("model", "requests").rows() == [(None, 1), ("m", 2)]


@pytest.mark.parametrize("text", ["", "60", "1.5h", "-1s", "0s", "5 parsecs"])
def test_a_window_needs_a_number_and_a_unit(text: str) -> None:
    with pytest.raises(UsageError, match="--window"):
        window_us(text, "--window")


def test_window_sizes() -> None:
    assert [window_us(text, "--window") for text in ("0", "500ms", "60s", "5m", "1h", "1d")] == [
        0, 500_000, 60_000_000, 300_000_000, 3_600_000_000, 86_400_000_000,
    ]  # fmt: skip


def test_no_requests_no_tables() -> None:
    result = measured([])
    assert len(result.windows) == len(result.tenants) == len(result.types) == 0


# ---- assumed SLO ----


def test_assumed_slo_is_from_the_calmer_half_of_the_windows() -> None:
    # Window medians 100, 100, 900 ms: the third is above the median window's and does not count.
    rows = [
        served(100) | {"arrived_at": at, "first_token_at": at + 0.1, "finished_at": at + 1} for at in (0, 1, 60, 61)
    ]
    rows += [served(900) | {"arrived_at": 120, "first_token_at": 120.9, "finished_at": 122}]
    result = measured(rows)
    assert result.assumed_slo
    assert result.slo["default"].model_dump() == {"p50": 150, "p90": 150, "p99": 150}
    assert any(said.startswith("assumed SLO") for said in result.assumptions)
    assert not measured(rows, f"[defaults]\nslo_ttft_ms = {slo(1, 2, 3)}\n").assumed_slo


def test_a_log_of_arrivals_alone_is_not_judged() -> None:
    result = measured([{"arrived_at": 0}, {"arrived_at": 1}])
    window = result.windows.row(0, named=True)
    assert (window["scr"], window["jfi"], window["tfr"]) == (None, None, None)
    assert any("no SLO" in said for said in result.assumptions)


def test_a_tenant_without_a_target_is_not_judged() -> None:
    """No first token in the log, so no SLO can be assumed for b, whose refusals would else fail nothing."""
    rows = [{"tenant": name, "arrived_at": 0, "status": "rejected"} for name in "ab" for _ in range(5)]
    result = measured(rows, f"[tenants.a]\nslo_ttft_ms = {slo(1, 1, 1)}\n")
    assert result.tenants.sort("tenant")["pass"].to_list() == [False, None]
    assert result.windows["failing"].to_list() == [["a"]]


# ---- faults that were found and must not come back ----

ONE_SECOND = f"[defaults]\nslo_ttft_ms = {slo(1000, 1000, 1000)}\n"


def test_a_hung_model_is_judged_by_the_end_of_the_whole_trace() -> None:
    rows: list[dict[str, Any]] = [{"model": "m", "status": "unfinished"}] * 6
    rows += [served(100, model="n"), {"model": "n", "arrived_at": 600, "first_token_at": 601, "finished_at": 601}]
    hung = measured(rows, ONE_SECOND, min_samples=1).windows.filter(model="m")
    assert hung["scr"].to_list()[0] == 0.0


def test_a_log_of_finish_times_alone_does_not_wait_until_the_finish() -> None:
    sizes = {"prompt_tokens": 100, "output_tokens": 50}
    rows = [
        {"tenant": "a", "arrived_at": 0, "finished_at": 110} | sizes,
        {"tenant": "b", "arrived_at": 50, "finished_at": 160} | sizes,
    ]
    windows = measured(rows).windows
    assert windows["jfi"].to_list() == windows["min_x"].to_list() == [1.0, 1.0, 1.0]


def test_no_reserve_no_floor() -> None:
    window = measured([served(10)], "[floor]\nreserve = 0.0\n").windows.row(0, named=True)
    assert (window["tfr"], window["tfr_raw"]) == (1.0, None)


def test_equal_values_are_exactly_even() -> None:
    assert jain(*[0.1] * 7) == 1.0
    assert jain(*[1 / 3] * 11) == 1.0
