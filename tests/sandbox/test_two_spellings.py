"""One trace, two spellings: the Azure chat trace with wall times and with relative seconds gives one replay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
from polars.testing import assert_frame_equal

from fairreplay.config.model import Config
from fairreplay.sandbox.plan import shards, take_load
from fairreplay.sandbox.replay import run_shards
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import open_store
from fairreplay.trace.rules import Reading

DATA = Path(__file__).parents[1] / "data"
REQUESTS = 2000
REPLAYED = 700
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = datetime(2023, 11, 16, 18, 15, 46, 680590, UTC)


def rows(tmp_path: Path, log: str, reading: Reading) -> pl.DataFrame:
    store = tmp_path / log.replace("/", "-")
    ingest([str(DATA / log)], store, IngestOptions(reading=reading))
    return open_store(store).requests().head(REQUESTS)


def test_azure_and_vidur_spellings_give_the_same_rows_and_the_same_replay(tmp_path: Path) -> None:
    wall = rows(tmp_path, "azure2023/AzureLLMInferenceTrace_conv.head5000.csv", Reading())
    relative = rows(
        tmp_path, "vidur/splitwise_conv.head2000.csv", Reading(t0_us=(FIRST - EPOCH) // timedelta(microseconds=1))
    )
    own = ["request_id", "source"]
    assert len(wall) == REQUESTS
    assert_frame_equal(wall.drop(own), relative.drop(own))
    replays = []
    for frame in (wall, relative):
        load = take_load(frame.head(REPLAYED))
        replays.append(run_shards(load, shards(load, Config(), "fcfs")))
    assert_frame_equal(replays[0].requests.drop("request_id"), replays[1].requests.drop("request_id"))
    assert_frame_equal(replays[0].steps, replays[1].steps)
    assert replays[0].requests["status"].unique().to_list() == ["ok"]
