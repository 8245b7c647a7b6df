"""From a store to the document where the log says little: arrivals alone, no replay, the whole period as one window."""

from __future__ import annotations

import polars as pl
import pytest

from fairreplay.metrics.options import measure_options
from fairreplay.report.gather import report_document
from fairreplay.report.html import render
from fairreplay.sandbox.replay import replay
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import Store, open_store
from tests.report import scene
from tests.report.documents import Page


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The scene's arrivals, without a word on what became of them, for two models."""
    folder = tmp_path_factory.mktemp("arrivals")
    rows = scene.log().select(
        "request_id",
        "tenant",
        "type",
        "prompt_tokens",
        "output_tokens",
        pl.col("arrived_at").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"),
        pl.when(pl.col("tenant") == "umbrella").then(pl.lit("small")).alias("model"),
    )
    (folder / "log.jsonl").write_text(rows.write_ndjson(), encoding="utf-8")
    ingest([str(folder / "log.jsonl")], folder / "store", IngestOptions())
    return open_store(folder / "store")


def test_arrivals_alone_are_not_called_fair(store: Store) -> None:
    document = report_document(store, scene.config(), measure_options(scene.config()))
    assert document["verdict"]["sentence"] == (
        "Nothing could be judged: the log holds arrivals only, and no replay of the baseline policy stands for "
        "production."
    )
    assert document["verdict"]["simulated_baseline"] is True
    assert (document["differences"], document["heat"], document["episodes"]) == ([], [], [])
    assert "Simulated baseline" in Page(render(document)).text


@pytest.mark.parametrize("window", ["60s", "0"])
def test_the_baseline_replay_stands_for_production(store: Store, window: str) -> None:
    settings = scene.config()
    replay(store, settings, ["fcfs", "vtc"])
    document = report_document(store, settings, measure_options(settings, window=window))
    # the verdict judges what the episodes come from
    assert {group["source"] for group in document["verdict"]["groups"]} == {"fcfs"}
    assert all(group["windows_judged"] for group in document["verdict"]["groups"])
    assert {episode["source"] for episode in document["episodes"]} == {"fcfs"}
    (vtc,) = document["differences"]  # the baseline is not compared with itself
    assert (vtc["production"], vtc["policy"], vtc["simulated"]) == ("fcfs", "vtc", True)
    page = Page(render(document)).text
    assert "the baseline replay, which stands for production (simulated baseline)" in page
    assert page.count("Model small") >= 4
