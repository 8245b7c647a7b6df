"""The baseline replay against the log: worked errors."""

from __future__ import annotations

import pytest

from fairreplay.metrics.fidelity import fidelity
from tests.sandbox.frames import canonical


def outcome(ttft_s: dict[str, float | None], tenants: dict[str, str] | None = None) -> object:
    tenants = tenants or {}
    return canonical(
        [
            {"request_id": name, "first_token_at": ttft, "finished_at": ttft, "tenant": tenants.get(name, "t")}
            for name, ttft in ttft_s.items()
        ]
    )


def test_errors_are_relative_to_the_log_over_the_requests_that_both_answered() -> None:
    logged = outcome({"a": 1, "b": 2, "c": 10, "only logged": 99, "unanswered": None})
    replayed = outcome({"c": 5, "b": 3, "a": 1, "unanswered": 7})
    found = fidelity(logged, replayed)  # type: ignore[arg-type]
    assert found is not None
    assert found.requests == 3
    # P50 2 -> 3, P90 and P99 are the third of three: 10 -> 5
    assert (found.ttft_p50_error, found.ttft_p90_error, found.ttft_p99_error) == (0.5, -0.5, -0.5)


def test_a_tenants_error_is_the_size_of_that_of_its_median() -> None:
    tenants = {"a": "x", "b": "y", "c": "z"}
    found = fidelity(
        outcome({"a": 1, "b": 2, "c": 4}, tenants),  # type: ignore[arg-type]
        outcome({"a": 1.5, "b": 1.5, "c": 1}, tenants),  # type: ignore[arg-type]
    )
    assert found is not None
    assert found.tenant_p50_error_median == pytest.approx(0.5)  # 50 %, 25 %, 75 %
    assert found.tenant_p50_error_max == pytest.approx(0.75)


def test_the_log_against_itself_has_no_error_and_a_ttft_of_zero_has_no_relative_one() -> None:
    same = outcome({"a": 1, "b": 2})
    found = fidelity(same, same)  # type: ignore[arg-type]
    assert found is not None
    assert (found.ttft_p50_error, found.tenant_p50_error_max) == (0, 0)
    zero = fidelity(outcome({"a": 0}), outcome({"a": 1}))  # type: ignore[arg-type]
    assert zero is not None
    assert zero.ttft_p50_error is None


def test_nothing_to_compare() -> None:
    assert fidelity(outcome({"a": 1}), outcome({"b": 1})) is None  # type: ignore[arg-type]
    assert fidelity(outcome({"a": None}), outcome({"a": 1})) is None  # type: ignore[arg-type]
