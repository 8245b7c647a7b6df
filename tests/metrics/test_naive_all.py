"""Every figure of every window, tenant and type against ``naive``, under options drawn at random."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.config.load import parse_config
from fairreplay.metrics import measure as fast
from fairreplay.metrics.measure import Measured, measure, measure_windows
from fairreplay.metrics.options import measure_options
from tests.metrics import naive
from tests.sandbox.frames import canonical

SLO = {50: 2.0, 90: 5.0, 99: 9.0}
ASKED = {"arrived_at": None, "scheduled_at": None, "first_token_at": None, "finished_at": None}


def maybe(values: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    return st.one_of(values, values, values, st.none())


@st.composite
def requests(draw: st.DrawFn) -> naive.Row:
    arrived = draw(st.integers(0, 60))
    row: naive.Row = ASKED | {
        "tenant": draw(st.sampled_from("abcd")),
        "type": draw(st.sampled_from(["chat", "embed", "long"])),
        "arrived_at": arrived,
        "prompt_tokens": draw(maybe(st.integers(0, 60))),
        "output_tokens": draw(maybe(st.integers(0, 40))),
        "cached_tokens": draw(maybe(st.integers(0, 20))),
        "recomputed_tokens": draw(maybe(st.integers(0, 20))),
        "status": draw(st.sampled_from(["ok", "ok", "ok", "ok", "rejected", "failed", "cancelled", "unfinished"])),
    }
    step = arrived
    for name, longest in (("scheduled_at", 15), ("first_token_at", 12), ("finished_at", 25)):
        step += draw(st.integers(0, longest))
        refused = row["status"] == "rejected" and name != "finished_at"
        running = row["status"] == "unfinished" and name == "finished_at"
        if not (refused or running) and draw(st.integers(0, 4)):
            row[name] = step
    return row


@st.composite
def rule_sets(draw: st.DrawFn) -> naive.Rules:
    pick = draw
    return naive.Rules(
        window=pick(st.sampled_from([7, 10, 30])),
        spread=pick(st.sampled_from(["phases", "decode"])),
        refusals=pick(st.sampled_from(["miss", "drop"])),
        samples=pick(st.sampled_from([{50: 1, 90: 1, 99: 1}, {50: 2, 90: 3, 99: 4}])),
        slo=SLO,
        price=pick(
            st.sampled_from(
                [{"prompt": 1.0, "cached": 0.0, "output": 2.0}, {"prompt": 0.5, "cached": 0.25, "output": 3.0}]
            )
        ),
        committed=pick(st.sampled_from([{}, {"a": 300, "b": 100}, {"a": 5, "quiet": 5}])),
        weight=pick(st.sampled_from([{}, {"c": 2.5}])),
        floor=pick(st.sampled_from(["cv", "eta", "inverse-sigma"])),
        reserve=pick(st.sampled_from([0.4, 0.9])),
        eta=pick(st.sampled_from([0.5, 2.0])),
    )


def config_text(rules: naive.Rules) -> str:
    lines = ["[defaults]", "slo_ttft_ms = { p50 = 2000, p90 = 5000, p99 = 9000 }"]
    lines += ["[cost]", *(f"{kind} = {price}" for kind, price in rules.price.items())]
    lines += ["[floor]", f'rule = "{rules.floor}"', f"reserve = {rules.reserve}", f"eta = {rules.eta}"]
    lines += ["[window]", "min_samples = { " + ", ".join(f"p{q} = {n}" for q, n in rules.samples.items()) + " }"]
    for name in sorted(rules.committed | rules.weight):
        lines.append(f"[tenants.{name}]")
        if name in rules.committed:
            lines.append(f"committed_tokens_per_month = {rules.committed[name]}")
        if name in rules.weight:
            lines.append(f"weight = {rules.weight[name]}")
    return "\n".join(lines) + "\n"


def fast_tables(rows: list[naive.Row], rules: naive.Rules) -> Measured:
    config = parse_config(config_text(rules), "test")
    options = measure_options(config, window=f"{rules.window}s", spread=rules.spread, refusals=rules.refusals)
    result = measure(canonical(rows), config, options, "logged")
    assert result.windows.equals(measure_windows(canonical(rows), config, options, "logged", result.slo))
    return result


def near(value: float | None) -> Any:
    return None if value is None else pytest.approx(value, rel=1e-9, abs=1e-9)


def compare(result: Measured, expected: list[dict[str, Any]]) -> None:
    assert len(result.windows) == len(expected)
    for window, other in zip(result.windows.iter_rows(named=True), expected, strict=True):
        for name in ("requests", "failing", "tenants_insufficient", "drain"):
            assert window[name] == other[name], name
        for name in (
            "scr", "scr_weighted", "jfi", "jfi_raw", "min_x", "service_gap", "tfr", "tfr_raw", "recompute_tax",
        ):  # fmt: skip
            assert window[name] == near(other[name]), name
        tenants = {row["tenant"]: row for row in result.tenants.filter(start=window["start"]).iter_rows(named=True)}
        for tenant, plain in other["tenants"].items():
            if tenant not in tenants:
                assert plain["demand"] == 0
                assert tenant not in other["pass"]
                continue
            row = tenants[tenant]
            for name in ("served", "demand", "entitlement", "x"):
                assert row[name] == near(plain[name]), (tenant, name)
            assert row["backlog"] == plain["backlog"]
            assert row["pass"] == other["pass"].get(tenant)
            for q, value in other["ttft"].get(tenant, dict.fromkeys((50, 90, 99))).items():
                finite = None if value is None or value == float("inf") else 1000 * value
                assert row[f"ttft_p{q}_ms"] == near(finite)
        types = {row["type"]: row for row in result.types.filter(start=window["start"]).iter_rows(named=True)}
        assert types.keys() == other["types"].keys()
        for kind, plain in other["types"].items():
            for name in ("share", "floor", "ratio", "ratio_raw", "leak"):
                assert types[kind][name] == near(plain[name]), (kind, name)


@settings(max_examples=250, derandomize=True, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=16), rule_sets())
def test_every_figure_agrees_with_the_naive_one(rows: list[naive.Row], rules: naive.Rules) -> None:
    compare(fast_tables(rows, rules), naive.measure(rows, rules))


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=16), rule_sets())
def test_windows_measured_in_parts_agree_too(rows: list[naive.Row], rules: naive.Rules) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "CELLS_MAX", 8)  # two windows of four tenants at once
        in_parts = fast_tables(rows, rules)
    compare(in_parts, naive.measure(rows, rules))
    whole = fast_tables(rows, rules)
    assert in_parts.windows.equals(whole.windows)
    assert in_parts.tenants.equals(whole.tenants)
    assert in_parts.types.equals(whole.types)
