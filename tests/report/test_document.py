"""The document from hand-made facts: two tenants, three windows and a drain, every figure reckoned by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from fairreplay.causes.episodes import Episode
from fairreplay.config.load import parse_config
from fairreplay.config.model import MinSamples, SloTtft
from fairreplay.metrics.options import MeasureOptions
from fairreplay.report.document import build
from fairreplay.report.facts import SourceFacts
from fairreplay.report.heat import bin_windows
from fairreplay.report.html import render
from fairreplay.report.provenance import StoreFacts
from fairreplay.report.schema import Document
from fairreplay.report.write import encode
from fairreplay.store.manifest import Segment
from fairreplay.store.store import REJECT_SCHEMA
from fairreplay.trace.schema import SCHEMA
from tests.report.documents import Page

T0 = datetime(2026, 11, 2, 10, 0, tzinfo=UTC)
SLO = SloTtft(p50=200, p90=500, p99=1000)
OPTIONS = MeasureOptions(min_samples=MinSamples(p50=1, p90=1, p99=1))


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def outcome(rows: list[tuple[str, float, float | None, int | None]]) -> pl.DataFrame:
    """(tenant, arrival s, TTFT s or none = refused, preemptions); prompt 100, output 50, 10 s of decode."""
    return pl.DataFrame(
        [
            {
                "request_id": f"r{index}",
                "tenant": tenant,
                "type": "chat",
                "arrived_at": at(arrival),
                "prompt_tokens": 100,
                "output_tokens": 50 if ttft is not None else 0,
                "first_token_at": None if ttft is None else at(arrival + ttft),
                "finished_at": None if ttft is None else at(arrival + ttft + 10),
                "status": "rejected" if ttft is None else "ok",
                "preemptions": preemptions,
                "recomputed_tokens": None if preemptions is None else 40 * preemptions,
                "seq": index,
                "source": "s",
            }
            for index, (tenant, arrival, ttft, preemptions) in enumerate(rows)
        ],
        schema=SCHEMA,
    )


def measured(scr: list[float | None], jfi: list[float | None], passes: dict[str, bool | None]) -> Any:
    count = len(scr)
    starts = [at(60 * index) for index in range(count)]
    tenants = list(passes)
    return SimpleNamespace(
        windows=pl.DataFrame(
            {
                "model": pl.Series([None] * count, dtype=pl.String),
                "start": starts,
                "end": [start + timedelta(seconds=60) for start in starts],
                "requests": [2] * count,
                "scr": scr,
                "scr_weighted": scr,
                "jfi": jfi,
                "jfi_raw": jfi,
                "min_x": jfi,
                "min_x_tenant": ["b" if value is not None else None for value in jfi],
                "tfr": pl.Series([1.0] * count),
                "tfr_raw": pl.Series([1.0] * count),
                "service_gap": pl.Series([0.0] * count),
                "drain": [index == 3 for index in range(count)],
                "degraded": [value is not None and value < 0.95 for value in scr],
            }
        ),
        tenants=pl.DataFrame(
            {
                "model": pl.Series([None] * count * len(tenants), dtype=pl.String),
                "start": [start for start in starts for _ in tenants],
                "tenant": tenants * count,
                "served": [100.0] * count * len(tenants),
                "demand": [200.0, 0.0] * count,
                "entitlement": [200.0, 0.0] * count,
                "x": [0.5, None] * count,
                "pass": [passes[name] for name in tenants] * count,
                "backlog": [name == "b" and start == at(60) for start in starts for name in tenants],
                # a: 1, 2, .5, 1 times its commitment; b has none
                "weight": [weight for skew in (1.0, 2.0, 0.5, 1.0)[:count] for weight in (skew, 1.0)],
                "skew": [skew for first in (1.0, 2.5, 0.5, 1.0)[:count] for skew in (first, None)],
            }
        ),
        types=pl.DataFrame(
            {
                "model": pl.Series([None] * count, dtype=pl.String),
                "start": starts,
                "type": ["chat"] * count,
                "share": [1.0] * count,
                "floor": [0.4] * count,
                "ratio": [1.0] * count,
                "ratio_raw": [2.5] * count,
                "leak": [0.0] * count,
            }
        ),
        slo=dict.fromkeys(tenants, SLO),
        assumed_slo=False,
        assumptions=("types: every request is a chat",),
    )


def facts(
    name: str, role: Any, rows: pl.DataFrame, scr: list[float | None], passes: dict[str, bool | None]
) -> SourceFacts:
    jfi: list[float | None] = [1.0, 0.85, 0.7, None]
    return SourceFacts(
        name=name,
        role=role,
        policy=None if role == "logged" else name,
        config_hash=None if role == "logged" else "0123456789ab",
        outcome=rows,
        measured=measured(scr, jfi, passes),
        whole=measured(scr[:1], jfi[:1], passes),
    )


STORE = StoreFacts(
    digest="0123456789abcdef",
    segments=(
        Segment(source="ab12", name="day.jsonl", format="native", rows=6, accepted=4, rejected=2, duplicates=0,
                file_bytes=1, file_sha256="00", rejects={"x": 2}, assumptions=("zone: UTC",), out_of_order=1),
    ),
    rejects=pl.DataFrame(
        [
            {"file": "day.jsonl", "source": "ab12", "row": row, "column": "ttft", "value": "-1",
             "reason": "first token before arrival", "line": "{}"}
            for row in (3, 5)
        ],
        schema=REJECT_SCHEMA,
    ),
)  # fmt: skip

LOGGED_ROWS = [("a", 0.0, 0.1, None), ("b", 10.0, 0.4, None), ("a", 70.0, 0.2, None), ("b", 130.0, None, None)]
REPLAYED_ROWS = [("a", 0.0, 0.11, 0), ("b", 10.0, 0.4, 3), ("a", 70.0, 0.2, 1), ("b", 130.0, 0.9, 0)]


def document() -> Document:
    logged = facts("logged", "logged", outcome(LOGGED_ROWS), [1.0, 0.5, 0.8, None], {"a": True, "b": False})
    fcfs = facts("fcfs", "baseline", outcome(REPLAYED_ROWS), [1.0, 0.5, 1.0, None], {"a": True, "b": None})
    episode = Episode(
        id="ep-1",
        start=at(60),
        end=at(180),
        source="logged",
        model=None,
        windows=2,
        degraded_windows=2,
        metrics={"scr": 0.5, "jfi": 0.7, "tfr": 1.0},
        min_x=0.7,
        deficits={"scr": 0.6, "jfi": 0.3, "tfr": 0.0},
        tenants=("b",),
        types=(),
        requests_hurt=1,
        tokens_hurt=100,
        cause="unclassified",
        reason="SCR fell to 0.50",
    )
    return build(
        config=parse_config("[defaults]\nslo_ttft_ms = { p50 = 200, p90 = 500, p99 = 1000 }\n", "test"),
        options=OPTIONS,
        store=STORE,
        sources=[logged, fcfs],
        episodes=[episode],
    )


def test_verdict_by_hand() -> None:
    group = document()["verdict"]["groups"][0]
    # the fourth window starts after the last arrival (130 s): drain, in no figure
    assert (group["windows"], group["windows_judged"], group["windows_degraded"]) == (3, 3, 2)
    scr, jfi, tfr = group["figures"]
    assert (scr["value"], scr["level"], scr["worst"]) == (0.766667, "emergency", 0.5)
    assert scr["worst_at"] == "2026-11-02T10:01:00.000000Z"
    assert (scr["minutes_yellow"], scr["minutes_red"], scr["minutes_emergency"]) == (2.0, 2.0, 2.0)
    assert (jfi["value"], jfi["level"]) == (0.85, "yellow")
    assert (jfi["minutes_yellow"], jfi["minutes_red"], jfi["minutes_emergency"]) == (2.0, 1.0, 0.0)
    assert (tfr["value"], tfr["level"]) == (1.0, "ok")
    assert group["min_x"] == {"value": 0.7, "tenant": "b", "at": "2026-11-02T10:02:00.000000Z"}
    assert group["causes"] == [{"cause": "unclassified", "episodes": 1}]
    assert group["sentence"] == (
        "Unfair in 2 of 3 judged windows (1 episode): on average SCR 0.77 (emergency), JFI 0.85 (yellow), over 3 min."
    )


def test_sources_side_by_side_by_hand() -> None:
    logged, fcfs = document()["comparison"]
    assert (logged["requests"], logged["ok"], logged["rejected"]) == (4, 3, 1)
    assert (logged["period_passing"], logged["period_judged"]) == (1, 2)
    assert (fcfs["period_passing"], fcfs["period_judged"]) == (1, 1)  # too few samples decide nothing
    assert logged["ttft_ms"] == {"p50": 200.0, "p90": 400.0, "p99": 400.0}
    assert logged["preemptions"] is None  # unknown, not 0
    assert fcfs["preemptions"] == 4
    assert fcfs["recompute_tax"] == pytest.approx(160 / (4 * 149 + 160), abs=1e-6)
    # three requests of 150 tokens finished, the last at 80.2 s
    assert logged["tokens_per_s"] == pytest.approx(450 / 80.2, abs=1e-6)
    assert [row["thrashing_requests"] for row in document()["preemption"]] == [None, 1]


def test_fidelity_over_what_both_answered() -> None:
    (row,) = document()["fidelity"]
    assert row["requests"] == 3
    assert row["error"] == {"p50": 0.0, "p90": 0.0, "p99": 0.0}
    # medians: a 100 -> 110 ms (+10 %), b 400 -> 400 ms
    assert (row["tenant_error_p50"], row["tenant_error_max"]) == (0.0, 0.1)
    # degraded: log no, yes, yes; sandbox no, yes, no
    assert (row["windows_same"], row["windows"]) == (2, 3)


def test_tenants_are_ordered_by_harm() -> None:
    rows = document()["tenants"]
    assert [row["tenant"] for row in rows] == ["b", "a"]
    under = rows[1]["under"][0]
    assert (under["requests"], under["n"], under["tail_ratio"]) == (2, 2, 2.0)
    assert (under["served"], under["entitlement"], under["x"], under["min_x"]) == (400.0, 800.0, 0.5, 0.5)
    assert rows[0]["under"][0]["x"] is None  # owed nothing: no share
    # weights 1, 2, .5, 1; of the skews 1, 2.5, .5, 1 the first of the two furthest from 1 is 2.5
    assert (rows[1]["weight_in_force"], rows[1]["skew"], rows[1]["skewed"]) == (1.125, 2.5, True)
    assert (rows[0]["skew"], rows[0]["skewed"]) == (None, None)


def test_types_count_the_windows_below_half_their_floor() -> None:
    under = document()["types"][0]["under"][0]
    assert (under["windows"], under["windows_below"]) == (4, 0)


def test_the_map_holds_the_least_x_of_each_bin() -> None:
    logged, fcfs = document()["heat"]
    assert (logged["source"], logged["bin_windows"], logged["left_out"]) == ("logged", 1, 0)
    assert logged["tenants"] == ["a"]  # b was owed nothing
    assert logged["x"] == [[0.5, 0.5, 0.5]]  # the drain is left out
    assert logged["start"][0] == "2026-11-02T10:00:00.000000Z"
    assert logged["end"] == "2026-11-02T10:03:00.000000Z"
    assert fcfs["tenants"] == logged["tenants"]


def test_bins_begin_at_round_times() -> None:
    assert [bin_windows(count) for count in (1, 96, 97, 1440, 20160)] == [1, 1, 2, 15, 240]
    assert bin_windows(1_000_000) == 10_417


def test_episode_has_the_worst_of_its_windows() -> None:
    (row,) = document()["episodes"]
    assert row["windows"] == 2
    assert row["metrics"] == {"scr": 0.5, "jfi": 0.7, "tfr": 1.0}
    assert row["means"] == {"scr": 0.65, "jfi": 0.775, "tfr": 1.0}
    assert row["levels"] == {"scr": "emergency", "jfi": "red", "tfr": "ok"}
    assert row["level"] == "emergency"


def test_where_the_numbers_come_from() -> None:
    quality = document()["data_quality"]
    assert quality["rejects"] == [
        {"source": "day.jsonl", "reason": "first token before arrival", "rows": 2, "example": "row 3, ttft"}
    ]
    assert quality["assumptions"] == [
        "zone: UTC",
        "1 row stood after a later arrival and was sorted",
        "types: every request is a chat",
    ]
    assert document()["method"]["settings"] == [
        {"key": "defaults.slo_ttft_ms.p50", "value": "200.0"},
        {"key": "defaults.slo_ttft_ms.p90", "value": "500.0"},
        {"key": "defaults.slo_ttft_ms.p99", "value": "1000.0"},
    ]


def test_document_holds_no_nan_and_renders() -> None:
    content = encode(document())
    assert b"NaN" not in content
    page = Page(render(document()))
    assert document()["verdict"]["sentence"] in page.text
    # tenant b waits at the end of the second of three windows
    assert "Load below capacity in 67 % of the windows" in page.text


def test_empty_period() -> None:
    nothing = outcome([])
    empty = SimpleNamespace(
        windows=measured([1.0], [1.0], {"a": True, "b": True}).windows.clear(),
        tenants=measured([1.0], [1.0], {"a": True, "b": True}).tenants.clear(),
        types=measured([1.0], [1.0], {"a": True, "b": True}).types.clear(),
        slo={},
        assumed_slo=False,
        assumptions=(),
    )
    logged = SourceFacts("logged", "logged", None, None, nothing, empty, empty)  # type: ignore[arg-type]
    found = build(
        config=parse_config("", "test"),
        options=OPTIONS,
        store=StoreFacts("0", (), pl.DataFrame(schema=REJECT_SCHEMA)),
        sources=[logged],
        episodes=[],
    )
    assert found["verdict"]["sentence"] == "No requests in the period: nothing to judge."
    assert found["period"]["since"] is None
    text = Page(render(found)).text
    assert "no requests in the period" in text
    assert "None: no window of the log was below a threshold." in text
    assert "No tenants: the period holds no requests." in text
