"""The preemption audit, worked by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from fairreplay.config.load import parse_config
from fairreplay.report.audit import audited
from fairreplay.trace.schema import SCHEMA

AT = datetime(2026, 1, 1, tzinfo=UTC)


def rows(*given: dict[str, Any]) -> pl.DataFrame:
    """Requests of 1,000 prompt tokens and one output token, scheduled at once and served in ``life`` seconds."""
    made = []
    for index, row in enumerate(given):
        row = {"life": 10.0, **row}
        life = row.pop("life")
        made.append(
            {"request_id": str(index), "tenant": "a", "type": "chat", "status": "ok", "seq": index, "source": "s"}
            | {"arrived_at": AT, "scheduled_at": AT, "first_token_at": AT + timedelta(seconds=1)}
            | {"finished_at": AT + timedelta(seconds=life), "prompt_tokens": 1000, "output_tokens": 1}
            | row
        )
    return pl.DataFrame(made, schema=SCHEMA)


# 8,500 tokens a second of prefill: 850 tokens are 100 ms
CONFIG = parse_config(f"[cluster.step_time]\nprefill_token = {1 / 8500!r}\n", "test")


def test_bands_by_hand() -> None:
    log = rows(
        {"preemptions": 0, "batch_utilization": 0.0},
        {"preemptions": 2, "batch_utilization": 0.49},
        {"preemptions": 1, "batch_utilization": 0.5},
        {"preemptions": 3, "batch_utilization": 0.8},
        {"preemptions": 1, "batch_utilization": 1.0},
        {"preemptions": 5},
        {"batch_utilization": 0.6},
    )
    found = audited("logged", None, log, CONFIG, logged=True)["bands"]
    assert found is not None
    assert [(one["low"], one["requests"], one["preempted_requests"], one["preemptions"]) for one in found] == [
        (0.0, 2, 1, 2),
        (0.5, 1, 1, 1),
        (0.7, 0, 0, 0),
        (0.8, 1, 1, 3),
        (0.9, 0, 0, 0),
        (0.95, 1, 1, 1),
    ]
    assert audited("fcfs", None, log, CONFIG, logged=False)["bands"] is None


def test_recovery_by_hand() -> None:
    log = rows(
        {"preemptions": 1, "recomputed_tokens": 850},  # 100 ms: not over it
        {"preemptions": 2, "recomputed_tokens": 2 * 4096},  # 481.9 ms each time
        {"preemptions": 1, "recomputed_tokens": 85},  # 10 ms
        {"preemptions": 1},  # does not say
        *({"preemptions": 0} for _ in range(6)),
    )
    found = audited("logged", None, log, CONFIG, logged=True)["recovery"]
    assert found is not None
    assert (found["requests"], found["over_100ms"]) == (3, 1)
    assert found["p50_ms"] == pytest.approx(100.0)
    assert found["p99_ms"] == pytest.approx(481.882353)
    assert found["prefill_tokens_per_s"] == pytest.approx(8500)
    # 4 of 10 requests preempted, on average (100 + 481.88 + 10) / 3 ms
    assert found["marginal_loss_ms"] == pytest.approx(0.4 * 591.882353 / 3)


def test_thrashing_by_hand() -> None:
    log = rows(
        {"preemptions": 3, "life": 1000.0},  # three in all
        {"preemptions": 2, "life": 60.0},  # both within 60 s, whenever they were
        {"preemptions": 2, "life": 61.0},  # perhaps
        {"preemptions": 2, "finished_at": None},  # perhaps
        {"preemptions": 1, "life": 1.0},
        {"preemptions": 0},
        {},
    )
    found = audited("logged", None, log, CONFIG, logged=True)
    assert (found["thrashing_requests"], found["thrashing_unknown"]) == (2, 2)
    assert (found["preempted_requests"], found["preempted_once"], found["preemptions"]) == (5, 1, 10)


def test_a_source_that_says_nothing_is_unknown() -> None:
    found = audited("logged", None, rows({}, {"batch_utilization": 0.9}), CONFIG, logged=True)
    unknown = ("preempted_requests", "preempted_once", "preemptions", "recomputed_tokens", "recompute_tax")
    assert [found[key] for key in (*unknown, "thrashing_requests", "thrashing_unknown", "bands", "recovery")] == [
        None
    ] * 9  # type: ignore[literal-required]
