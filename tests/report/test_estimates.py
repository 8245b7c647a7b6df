"""What wrong estimates do to SCR: from the replays to the document, the page and the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from fairreplay.cli.app import app
from fairreplay.config.load import parse_config
from fairreplay.metrics.measure import measure
from fairreplay.metrics.options import measure_options
from fairreplay.planning.check import of_store
from fairreplay.report.gather import report_document
from fairreplay.report.html import render
from fairreplay.report.redaction import Redaction
from fairreplay.report.versions import checked
from fairreplay.sandbox.replay import find_replays, replay, with_estimates
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.outcomes import outcome
from fairreplay.store.store import Store, open_store
from fairreplay.trace.pseudonyms import Pseudonyms
from tests.report.documents import Page

SETTINGS = """
[window]
size = "10s"
[defaults]
slo_ttft_ms = { p50 = 900, p90 = 2500, p99 = 6000 }
[cluster]
max_num_seqs = 2
async_scheduling = false
enable_prefix_caching = false
[cluster.step_time]
base = 0.01
prefill_token = 0.0005
"""
OFF = "[estimation]\nerror = 0.3\nalpha = 0.2\n"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Prompts around a border of size classes, of several tenants and on two models: more than a replica can serve."""
    rows = [
        {
            "request_id": f"r{number}",
            "tenant": ("acme", "globex", "t3", "t4", "t5", "t6", "t7")[number * number % 7],
            "model": ("globex-7b", "m")[number // 3 % 2],
            "type": ("chat", "code", "long")[number % 3],
            "arrived_at": f"2026-01-01T00:00:{number // 8:02}.{number % 8}Z",
            "prompt_tokens": 150 + 97 * number % 701,
            "output_tokens": 1 + number % 9,
        }
        for number in range(320)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ingest([str(tmp_path / "log.jsonl")], tmp_path / "store", IngestOptions())
    return open_store(tmp_path / "store")


def test_the_document_holds_what_each_replay_measures(store: Store) -> None:
    config = parse_config(SETTINGS + OFF, "t")
    replay(store, config, ["fcfs", "sjf", "wfq"])
    options = measure_options(config)
    document = report_document(store, config, options)
    effects = document["costs"]["effects"]
    assert [(row["policy"], row["estimates"], row["model"]) for row in effects] == [
        (policy, kind, model)
        for policy in ("sjf", "wfq")
        for kind in ("exact", "uncorrected", "corrected")
        for model in ("globex-7b", "m")
    ]
    for row, (_, given) in zip(
        effects, [pair for _ in range(2) for pair in with_estimates(config).items() for _ in range(2)], strict=True
    ):
        rows = outcome(store, find_replays(store, given)[row["policy"]])
        windows = measure(rows, given, options, "x").windows
        own = windows.filter(pl.col("model") == row["model"], ~pl.col("drain"))["scr"].drop_nulls()
        mean: Any = own.mean()
        assert (row["scr"], row["windows"]) == (pytest.approx(mean, abs=1e-6), len(own))
        waits = rows.filter(pl.col("model") == row["model"]).select(
            wait=(pl.col("first_token_at") - pl.col("arrived_at")).dt.total_microseconds()
        )
        ordered = waits["wait"].sort().to_list()
        assert row["ttft_ms"]["p90"] == pytest.approx(ordered[-(-9 * len(ordered) // 10) - 1] / 1000)
    assert len({row["scr"] for row in effects if row["model"] == "m"}) > 2  # estimates matter here
    assert document["costs"]["effects_said"] == (
        "estimates of costs off by up to 30%, half of it in common to a model, type and size class; corrected: by a "
        "moving average of weight 0.2 a class"
    )
    assert checked(json.loads(json.dumps(document)), "report.json") == document
    page = Page(render(document))
    assert "What wrong estimates do to SCR" in page.text
    assert "Estimates of costs off by up to 30%, half of it in common" in page.text
    shown = [f"{row['model']} {row['policy']} {row['estimates']} {row['scr']:.3f} {row['windows']}" for row in effects]
    assert all(line in page.cells for line in shown)
    # nothing that is compared counts as made with another config
    assert [one.text for one in of_store(store, config) if "another config" in one.text] == []


def test_without_an_error_nothing_is_said(store: Store) -> None:
    config = parse_config(SETTINGS, "t")
    replay(store, config, ["fcfs", "sjf"])
    document = report_document(store, config, measure_options(config))
    assert "effects" not in document["costs"]
    assert "What wrong estimates do" not in render(document)


def test_what_was_not_replayed_is_not_compared(store: Store) -> None:
    config = parse_config(SETTINGS + OFF, "t")
    replay(store, config, ["fcfs"])
    document = report_document(store, config, measure_options(config))
    assert document["costs"]["effects"] == []
    assert "no policy that goes by estimates is replayed with them: fairreplay replay --policy sjf" in (
        Page(render(document)).text
    )


def test_a_tenant_in_the_name_of_a_model_is_hidden(store: Store) -> None:
    config = parse_config(SETTINGS + OFF, "t")
    replay(store, config, ["sjf"])
    redaction = Redaction(Pseudonyms(b"k" * 16))
    document = report_document(store, config, measure_options(config), redaction=redaction)
    named = {row["model"] for row in document["costs"]["effects"]}
    assert named == set(document["period"]["models"])
    assert "globex" not in json.dumps(document)


# ---- the terminal ----


def run(store: Store, *arguments: str) -> Any:
    (store.path.parent / "c.toml").write_text(SETTINGS)
    where = ["--store", str(store.path), "--config", str(store.path.parent / "c.toml")]
    return CliRunner().invoke(app, ["replay", *arguments, *where], catch_exceptions=False)


def test_the_option_compares_at_once(store: Store) -> None:
    done = run(store, "--policy", "sjf", "--policy", "vtc", "--estimation-error", "0.3")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[2:6]] == ["sjf, exact", "sjf, uncorrected", "sjf, corrected", "vtc"]
    below = lines[next(number for number, line in enumerate(lines) if line.startswith("Estimates of costs off")) :]
    assert " ".join(below[:2]) == (
        "Estimates of costs off by up to 30%, half of it in common to a model, type and size class; "
        "corrected: by a moving average of weight 0.05 a class:"
    )
    assert [line.split()[:3] for line in below[4:10]] == [
        ["sjf,", kind, model] for kind in ("exact", "uncorrected", "corrected") for model in ("globex-7b", "m")
    ]
    given = json.loads(run(store, "--policy", "sjf", "--estimation-error", "0.3", "--json").stdout)
    assert [one["estimates"] for one in given["replays"]] == ["exact", "uncorrected", "corrected"]
    assert [f"{row['scr']:.3f}" for row in given["estimates"]] == [line.split()[3] for line in below[4:10]]


def test_policies_that_know_are_replayed_as_ever(store: Store) -> None:
    done = run(store, "--policy", "vtc", "--estimation-error", "0.3")
    assert "no policy replayed goes by estimates of costs: sjf, wfq, wfq+edf and qoserve do" in done.output
    assert json.loads(run(store, "--policy", "vtc", "--json").stdout).get("estimates") is None
