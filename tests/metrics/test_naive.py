"""The windowed tables against a naive implementation in plain Python that shares no code with them."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.config.load import parse_config
from fairreplay.metrics.measure import measure
from fairreplay.metrics.options import measure_options
from tests.sandbox.frames import canonical

SLO = {50: 2.0, 90: 5.0, 99: 9.0}
CONFIG = "[defaults]\nslo_ttft_ms = { p50 = 2000, p90 = 5000, p99 = 9000 }\n[tenants.a]\nweight = 2.0\n"
WEIGHT = {"a": 2, "b": 1, "c": 1}
WINDOW = 10


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    arrived = draw(st.integers(0, 40))
    row: dict[str, Any] = {
        "tenant": draw(st.sampled_from("abc")),
        "type": draw(st.sampled_from(["chat", "embed"])),
        "arrived_at": arrived,
        "prompt_tokens": draw(st.integers(1, 50)),
        "output_tokens": draw(st.integers(1, 30)),
    }
    kind = draw(st.sampled_from(["ok", "ok", "ok", "no schedule", "rejected", "unfinished"]))
    if kind == "rejected":
        return row | {"status": "rejected", "finished_at": arrived + draw(st.integers(0, 5))}
    if kind == "unfinished":
        return row | {"status": "unfinished"}
    scheduled = arrived + draw(st.integers(0, 15))
    first = scheduled + draw(st.integers(0, 12))
    finished = first + draw(st.integers(1, 20))
    times: dict[str, Any] = {"first_token_at": first, "finished_at": finished}
    return row | times | ({} if kind == "no schedule" else {"scheduled_at": scheduled})


def naive(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    instants = ("arrived_at", "scheduled_at", "first_token_at", "finished_at")
    end = max(row[name] for row in rows for name in instants if name in row)
    first_window = min(row["arrived_at"] for row in rows) // WINDOW
    windows = []
    for number in range(first_window, int(end) // WINDOW + 1):
        low, high = number * WINDOW, (number + 1) * WINDOW
        got: dict[str, Fraction] = defaultdict(Fraction)
        lack: dict[str, Fraction] = defaultdict(Fraction)
        for row in rows:
            tenant, size = row["tenant"], row["prompt_tokens"] + 2 * row["output_tokens"]
            if row.get("status") == "rejected":
                if low <= row["finished_at"] < high or row["arrived_at"] < high <= row["finished_at"] - Fraction(
                    1, 10**9
                ):
                    lack[tenant] += row["prompt_tokens"] + 2 * usual_output(rows, tenant)
                continue
            if row.get("status") == "unfinished":
                if row["arrived_at"] < high:
                    lack[tenant] += size
                continue
            begin = row.get("scheduled_at", row["arrived_at"])
            parts = [
                (row["prompt_tokens"], begin, row["first_token_at"]),
                (2 * row["output_tokens"], row["first_token_at"], row["finished_at"]),
            ]
            got[tenant] += sum(amount_until(part, high) - amount_until(part, low) for part in parts)
            if row["arrived_at"] < high < row.get("scheduled_at", row["first_token_at"]):
                lack[tenant] += size - (0 if "scheduled_at" in row else amount_until(parts[0], high))
        windows.append({"x": attainment(got, lack), "served": got} | compliance(rows, low, high, end))
    return windows


def usual_output(rows: list[dict[str, Any]], tenant: str) -> int:
    known = sorted(r["output_tokens"] for r in rows if r["tenant"] == tenant and r.get("status") != "rejected")
    if not known:
        return 0
    return (known[(len(known) - 1) // 2] + known[len(known) // 2]) // 2


def amount_until(part: tuple[int, float, float], instant: float) -> Fraction:
    amount, begin, end = part
    if instant <= begin:
        return Fraction(0)
    return Fraction(amount) if instant >= end else Fraction(amount) * Fraction(instant - begin) / Fraction(end - begin)


def attainment(got: dict[str, Fraction], lack: dict[str, Fraction]) -> dict[str, Fraction]:
    demand = {tenant: got[tenant] + lack[tenant] for tenant in sorted(set(got) | set(lack))}
    left, open_, entitled = sum(got.values()), {t for t in demand if demand[t] > 0}, {}
    while open_:
        level = Fraction(left, sum(WEIGHT[t] for t in open_))
        full = {t for t in open_ if demand[t] <= level * WEIGHT[t]}
        for tenant in full or open_:
            entitled[tenant] = demand[tenant] if full else level * WEIGHT[tenant]
            left -= entitled[tenant]
        open_ -= full or set(open_)
    return {t: got[t] / entitled[t] for t in entitled if entitled[t] > 0}


def compliance(rows: list[dict[str, Any]], low: float, high: float, end: float) -> dict[str, Any]:
    verdicts = {}
    inside = [row for row in rows if low <= row["arrived_at"] < high]
    for tenant in sorted({row["tenant"] for row in inside}):
        passes = True
        judged = False
        for q, target in SLO.items():
            samples = []
            for row in inside:
                if row["tenant"] != tenant:
                    continue
                if row.get("status") == "unfinished":
                    if end - row["arrived_at"] > target:
                        samples.append(float("inf"))
                elif row.get("status") == "rejected":
                    samples.append(float("inf"))
                else:
                    samples.append(row["first_token_at"] - row["arrived_at"])
            if samples:
                judged = True
                passes = passes and sorted(samples)[-(-q * len(samples) // 100) - 1] <= target
        if judged:
            verdicts[tenant] = passes
    scr = sum(verdicts.values()) / len(verdicts) if verdicts else None
    return {"scr": scr, "failing": [t for t, ok in verdicts.items() if not ok], "requests": len(inside)}


@settings(max_examples=250, derandomize=True, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=14))
def test_tables_agree_with_the_naive_ones(rows: list[dict[str, Any]]) -> None:
    config = parse_config(CONFIG, "test")
    result = measure(canonical(rows), config, measure_options(config, window=f"{WINDOW}s", min_samples=1), "logged")
    expected = naive(rows)
    assert len(result.windows) == len(expected)
    for window, other in zip(result.windows.iter_rows(named=True), expected, strict=True):
        assert window["requests"] == other["requests"]
        assert window["scr"] == (None if other["scr"] is None else pytest.approx(other["scr"]))
        assert window["failing"] == other["failing"]
        table = result.tenants.filter(start=window["start"])
        served = {row["tenant"]: row["served"] for row in table.iter_rows(named=True) if row["served"]}
        assert served == pytest.approx({t: float(v) for t, v in other["served"].items() if v}, abs=0.2)
        x = {row["tenant"]: row["x"] for row in table.iter_rows(named=True) if row["x"] is not None}
        assert x.keys() == other["x"].keys()
        assert x == pytest.approx({t: float(v) for t, v in other["x"].items()}, abs=2e-2)
        values = [float(v) for v in other["x"].values()]
        if values and any(values):
            assert window["jfi"] == pytest.approx(sum(values) ** 2 / len(values) / sum(v * v for v in values), abs=2e-2)
        else:
            assert window["jfi"] is None


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=14), st.sampled_from(["phases", "decode"]))
def test_windows_add_up_to_the_whole_exactly(rows: list[dict[str, Any]], spread: str) -> None:
    config = parse_config(CONFIG, "test")
    frame = canonical(rows)
    parts = (
        measure(frame, config, measure_options(config, window="7s", spread=spread), "logged").tenants["served"].sum()
    )
    whole = measure(frame, config, measure_options(config, window="0", spread=spread), "logged").tenants["served"].sum()
    served = [row for row in rows if row.get("status") not in ("rejected", "unfinished")]
    assert round(parts, 6) == round(whole, 6) == sum(r["prompt_tokens"] + 2 * r["output_tokens"] for r in served)
