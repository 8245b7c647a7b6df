"""The sandbox against a held-out log: hand-worked rows, then the real pair of logs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from fairreplay.config.model import SloTtft
from fairreplay.errors import BadInputError
from fairreplay.report.validation import held_out
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.outcomes import outcome
from fairreplay.store.store import open_store
from fairreplay.trace.schema import SCHEMA

LOGS = Path(__file__).parents[1] / "data" / "vtc_arena"
T0 = datetime(2026, 1, 1, tzinfo=UTC)
GIVEN = {"request_id", "tenant", "type", "arrived_at", "prompt_tokens", "output_tokens", "first_token_at",
         "finished_at", "status", "seq", "source"}  # fmt: skip
SLO = SloTtft(p50=200, p90=500, p99=2000)


def frame(ttfts_ms: dict[str, list[int | None]], first_seq: int = 0) -> pl.DataFrame:
    """Rows a second apart; null = no first token."""
    rows = [(tenant, ttft) for tenant, found in ttfts_ms.items() for ttft in found]
    arrivals = [T0 + timedelta(seconds=index) for index in range(len(rows))]
    tokens = [
        None if ttft is None else at + timedelta(milliseconds=ttft)
        for (_, ttft), at in zip(rows, arrivals, strict=True)
    ]
    count = len(rows)
    return pl.DataFrame(
        {
            "request_id": [str(index) for index in range(count)],
            "tenant": [tenant for tenant, _ in rows],
            "type": ["chat"] * count,
            "arrived_at": arrivals,
            "prompt_tokens": [10] * count,
            "output_tokens": [0 if ttft is None else 1 for _, ttft in rows],
            "first_token_at": tokens,
            "finished_at": tokens,
            "status": ["failed" if ttft is None else "ok" for _, ttft in rows],
            "seq": list(range(first_seq, first_seq + count)),
            "source": ["s"] * count,
            **{name: [None] * count for name in SCHEMA if name not in GIVEN},
        },
        schema_overrides=SCHEMA,
    ).select(list(SCHEMA))


def test_by_hand() -> None:
    real_before = frame({"a": [100, 100, 300], "b": [900, 1000, 1100], "c": [50, 60, 70]})
    real_after = frame({"a": [100, 400, 400], "b": [100, 100, 100], "c": [50, 60, None]})
    before = frame({"a": [110, 110, 310], "b": [900, 900, 900], "c": [50, 60, 70]})
    after = frame({"a": [100, 310, 310], "b": [100, 150, 200], "c": [50, 60, 70]})
    found = held_out(
        before="fcfs",
        after="vtc",
        before_logged=real_before,
        after_logged=real_after,
        before_replayed=before,
        after_replayed=after,
        slo=SLO,
    )
    # a: P90 of 3 is the largest, 300 <= 500. b: P50 1000 > 200. After: a P50 400 > 200; c's missing answer misses P90.
    assert (found["before_logged"]["passing"], found["before_logged"]["judged"]) == (2, 3)
    assert found["after_logged"]["passing"] == 1
    assert found["after_replayed"]["passing"] == 2
    assert found["before_logged"]["ttft_ms"] == {"p50": 100.0, "p90": 1100.0, "p99": 1100.0}
    assert found["before_error"] == {"p50": 0.1, "p90": -0.181818, "p99": -0.181818}
    changes = {row["tenant"]: (row["real_change_ms"], row["predicted_change_ms"]) for row in found["tenants"]}
    assert changes == {"a": (300.0, 200.0), "b": (-900.0, -750.0), "c": (-10.0, 0.0)}
    assert found["spearman"] == 1.0


def test_only_requests_that_all_hold() -> None:
    whole = frame({"a": [100, 200, 300, 400]})
    part = whole.head(2)
    found = held_out(before="x", after="y", before_logged=whole, after_logged=whole, before_replayed=part,
                     after_replayed=whole, slo=SLO)  # fmt: skip
    assert found["requests"] == 2
    assert found["after_logged"]["ttft_ms"]["p99"] == 200.0
    assert found["spearman"] is None
    other = frame({"a": [100]}, first_seq=9)
    with pytest.raises(BadInputError, match="share no request"):
        held_out(before="x", after="y", before_logged=whole, after_logged=other, before_replayed=whole,
                 after_replayed=whole, slo=SLO)  # fmt: skip


def test_real_logs_have_the_published_compliance(tmp_path: Path) -> None:
    logs = {}
    for policy in ("FCFS", "VTC"):
        ingest([str(LOGS / f"{policy}.all_results_real.jsonl")], tmp_path / policy, IngestOptions())
        logs[policy] = outcome(open_store(tmp_path / policy), "logged")
    found = held_out(
        before="fcfs",
        after="vtc",
        before_logged=logs["FCFS"],
        after_logged=logs["VTC"],
        before_replayed=logs["FCFS"],
        after_replayed=logs["VTC"],
        slo=SloTtft(p50=10_000, p90=30_000, p99=60_000),
    )
    assert found["requests"] == 1500
    assert (found["before_logged"]["passing"], found["before_logged"]["judged"]) == (7, 27)
    assert (found["after_logged"]["passing"], found["after_logged"]["judged"]) == (25, 27)
    assert found["before_logged"]["ttft_ms"] == pytest.approx({"p50": 39070, "p90": 112760, "p99": 136940}, abs=60)
    assert (found["after_logged"]["ttft_ms"]["p90"], found["after_logged"]["ttft_ms"]["p99"]) == pytest.approx(
        (148_400, 211_500), abs=100
    )
    assert found["spearman"] == 1.0
    assert len(found["tenants"]) == 27
