"""The report's section on pools, drafts, experts and precisions, from a replay's stored tables to the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairreplay.config.load import parse_config
from fairreplay.config.model import SloTtft
from fairreplay.metrics.options import MeasureOptions, measure_options
from fairreplay.report.cluster import cluster_facts, consistency
from fairreplay.report.gather import report_document
from fairreplay.report.html import render
from fairreplay.report.redaction import Redaction
from fairreplay.report.versions import checked
from fairreplay.sandbox.replay import replay
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import open_store
from fairreplay.trace.pseudonyms import Pseudonyms

SETTINGS = """
[defaults]
slo_ttft_ms = { p50 = 150, p90 = 300, p99 = 800 }
[cluster]
num_gpu_blocks = 2000
precision_switch = "drop"
[cluster.disaggregated]
prefill_replicas = 2
decode_replicas = 1
kv_bytes_per_token = 131_072
link_bytes_per_s = 5e9
prefill_budget_ms = { p50 = 150, p90 = 300, p99 = 800 }
decode_budget_ms = { p50 = 10_000, p90 = 20_000, p99 = 40_000 }
[speculative]
types = { code = 0.2 }
[moe]
mean = 1.2
spread = 0.3
[policies.sjf]
by = "cost"
"""


@pytest.mark.parametrize(
    ("prefill_ms", "decode_ms", "expected"), [(200.0, 4000.0, 1.0), (400.0, 4000.0, 2.0), (100.0, 8000.0, 0.25)]
)
def test_consistency_by_hand(prefill_ms: float, decode_ms: float, expected: float) -> None:
    assert consistency(prefill_ms, 200.0, decode_ms, 4000.0) == expected


def stage(prefill: float | None, decode: float | None) -> dict[str, Any]:
    def all_of(value: float | None) -> dict[str, float | None]:
        return dict.fromkeys(("p50", "p90", "p99"), value)

    nothing = all_of(0.0)
    return {
        "model": None, "tenant": "a", "requests": 1, "moved": 1, "prefill_ms": all_of(prefill),
        "transfer_ms": nothing, "wait_ms": nothing, "decode_ms": all_of(decode),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("prefill", "decode", "flagged"),
    [(150.0, 10_000.0, False), (74.0, 10_000.0, True), (75.0, 10_000.0, False), (None, None, False)],
)
def test_stages_are_flagged_below_half_and_above_two(prefill: float, decode: float, flagged: bool) -> None:
    budgets = SETTINGS.replace("p90 = 300", "p90 = 150").replace("p99 = 800", "p99 = 150")
    budgets = budgets.replace("p90 = 20_000", "p90 = 10_000").replace("p99 = 40_000", "p99 = 10_000")
    between = {"model": None, "prefill_replicas": 2, "decode_replicas": 1, "kv_bytes_most": 0}
    said = {"stages": [stage(prefill, decode)], "between": [between]}
    facts = cluster_facts("fcfs", said, parse_config(budgets, "t"), MeasureOptions(), {})
    assert facts["pools"][0]["tenants"][0]["flagged"] is flagged


def test_who_holds_others_up() -> None:
    def row(tenant: str, rejected: int, held: float, imposed: float) -> dict[str, Any]:
        return {
            "model": None, "tenant": tenant, "type": "chat", "requests": 1, "decode_steps": 10, "drafted": 40,
            "rejected": rejected, "tokens_a_step": (50 - rejected) / 10, "wasted_s": 1.0, "held_up_s": held,
            "imposed_s": imposed, "decoding_s": 10.0,
        }  # fmt: skip

    rows = [row("a", 10, 3.0, 1.0), row("b", 30, 1.0, 3.0)]
    (drafts,) = cluster_facts("fcfs", {"drafts": rows}, parse_config("", "t"), MeasureOptions(), {})["drafts"]
    assert drafts["tokens_a_step"] == 3.0
    assert (drafts["low"], drafts["low_imposed_s"], drafts["low_held_up_s"]) == (["b"], 3.0, 1.0)
    assert [one["tenant"] for one in drafts["rows"]] == ["b", "a"]


def test_what_spread_does_to_scr() -> None:
    def row(tenant: str, requests: int, p50: float | None, without: float) -> dict[str, Any]:
        return {
            "model": None, "tenant": tenant, "requests": requests,
            "ttft_ms": {"p50": p50, "p90": 250.0, "p99": 900.0},
            "ttft_ms_without": {"p50": without, "p90": 250.0, "p99": 700.0},
        }  # fmt: skip

    slo = SloTtft(p50=150, p90=300, p99=800)
    # a: its P99 of 99 requests is not judged; b misses P99 with spread; c was refused too often; d has too few
    rows = [row("a", 99, 150.0, 150.0), row("b", 100, 90.0, 90.0), row("c", 50, None, 90.0), row("d", 4, 1.0, 1.0)]
    said = {"spread": rows}
    (spread,) = cluster_facts("x", said, parse_config("", "t"), MeasureOptions(), dict.fromkeys("abcd", slo))["spread"]
    assert [one["passes"] for one in spread["tenants"]] == [True, False, False, None]
    assert [one["passes_without"] for one in spread["tenants"]] == [True, True, True, None]
    assert (spread["scr"], spread["scr_without"]) == (round(1 / 3, 6), 1.0)


def log(path: Path) -> None:
    lines = []
    for number in range(120):
        tenant = ("acme", "globex", "<b>")[number % 3]
        lines.append(
            {
                "request_id": f"r{number}",
                "tenant": tenant,
                "type": "code" if tenant == "globex" else "chat",
                "arrived_at": f"2026-11-02T09:00:{number // 4:02d}.{number % 4}00000Z",
                "prompt_tokens": 64 + 16 * (number % 40),
                "output_tokens": 1 + number % 30,
                "precision": "fp8" if number % 5 else "fp16",
                "prefix_ids": [7] * 4 + [number + 100] * (number % 40),
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_from_the_log_to_the_page(tmp_path: Path) -> None:
    log(tmp_path / "log.jsonl")
    ingest([str(tmp_path / "log.jsonl")], tmp_path / "store", IngestOptions())
    store, config = open_store(tmp_path / "store"), parse_config(SETTINGS, "t")
    replay(store, config, ["fcfs", "sjf"])
    document = report_document(store, config, measure_options(config))
    assert [facts["source"] for facts in document["cluster"]] == ["fcfs", "sjf"]
    facts = document["cluster"][0]
    assert [row["tenant"] for row in facts["pools"][0]["tenants"]] == ["<b>", "acme", "globex"]
    assert sum(row["requests"] for row in facts["drafts"][0]["rows"]) == 120
    assert facts["drafts"][0]["low"] == ["globex"]
    assert [row["precision"] for row in facts["precisions"]] == ["fp16", "fp8"]
    assert all(row["hit_rate"] <= row["hit_rate_without_drops"] for row in facts["precisions"])
    assert checked(json.loads(json.dumps(document)), "report.json") == document
    page = render(document)
    assert '<section id="cluster"' in page
    assert "<b>" not in page
    assert "first token to finish" in page

    redaction = Redaction(Pseudonyms(b"k" * 16))
    hidden = report_document(store, config, measure_options(config), redaction=redaction)
    assert "globex" not in json.dumps(hidden)
    names = {row["tenant"] for row in hidden["cluster"][0]["pools"][0]["tenants"]}
    assert names == {redaction.name(tenant) for tenant in ("<b>", "acme", "globex")}


def test_without_any_of_it_there_is_no_section(tmp_path: Path) -> None:
    log(tmp_path / "log.jsonl")
    ingest([str(tmp_path / "log.jsonl")], tmp_path / "store", IngestOptions())
    store = open_store(tmp_path / "store")
    config = parse_config("[defaults]\nslo_ttft_ms = { p50 = 150, p90 = 300, p99 = 800 }\n", "t")
    replay(store, config, ["fcfs"])
    document = report_document(store, config, measure_options(config))
    assert "cluster" not in document
    assert 'id="cluster"' not in render(document)
