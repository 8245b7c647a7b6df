"""Sources that do not say everything: each figure that suffers is null or assumed, and an assumption says so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.metrics.test_worked_values import measured, slo

SLO = f"[defaults]\nslo_ttft_ms = {slo(1000, 1000, 1000)}\n[tenants.a]\nweight = 1.0\n"
FULL = {"scheduled_at": 1, "first_token_at": 2, "finished_at": 3, "preemptions": 0, "recomputed_tokens": 0}


def rows(count: int = 6, **more: Any) -> list[dict[str, Any]]:
    return [
        FULL | {"tenant": "ab"[n % 2], "type": ["chat", "long"][n % 2], "arrived_at": 0} | more for n in range(count)
    ]


def said(given: list[dict[str, Any]], text: str = SLO) -> str:
    return "\n".join(measured(given, text, min_samples=1).assumptions)


def test_a_source_that_says_everything_needs_no_assumption() -> None:
    assert said(rows()) == ""


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"preemptions": None, "recomputed_tokens": None}, "preemptions are unknown"),
        ({"scheduled_at": None}, "scheduled_at is unknown: a request is taken to wait until its first token"),
        ({"type": "completion"}, "all requests are of one type"),
        ({"output_tokens": None}, "sizes are unknown in 6 rows"),
        ({"scheduled_at": None, "first_token_at": None, "finished_at": None}, "simulated baseline"),
    ],
)
def test_what_is_unknown_is_said(more: dict[str, Any], words: str) -> None:
    assert words in said(rows(**more))
    assert words not in said(rows())


def test_without_preemption_data_nothing_is_zero() -> None:
    result = measured(rows(preemptions=None, recomputed_tokens=None), SLO)
    names = ("recompute_tax", "preemptions", "preempted_requests", "thrashing_requests")
    assert set(result.windows.select(names).row(0)) == {None}


def test_without_an_slo_one_is_assumed_and_named() -> None:
    result = measured(rows(), "[tenants.a]\nweight = 1.0\n")
    assert result.assumed_slo
    assert "assumed SLO: TTFT P50 3000 ms" in result.assumptions[0]


def test_without_types_type_fairness_never_degrades() -> None:
    starved = [{"tenant": "a", "arrived_at": 0, "scheduled_at": 70, "first_token_at": 71, "finished_at": 72}]
    window = measured(rows(type="completion") + starved, SLO).windows.row(0, named=True)
    assert window["tfr"] >= 1
    assert window["tfr_type"] == "completion"


def test_without_decisions_nothing_is_judged() -> None:
    bare = rows(scheduled_at=None, first_token_at=None, finished_at=None)
    window = measured(bare, SLO).windows.row(0, named=True)
    assert [window[name] for name in ("scr", "jfi", "min_x", "tfr")] == [None] * 4
    assert window["degraded"] is False


def test_without_commitments_or_weights_everyone_is_equal() -> None:
    assert "every tenant is entitled to the same share" in said(rows(), SLO.split("[tenants")[0])
