"""Outcomes that share columns are those that are read one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from polars.testing import assert_frame_equal

from fairreplay.config.load import parse_config
from fairreplay.sandbox.replay import find_replays, replay
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.outcomes import LOGGED, outcome, outcomes
from fairreplay.store.store import Store, open_store

START = datetime(2026, 6, 1, tzinfo=UTC)
CONFIG = parse_config("[cluster]\nmax_model_len = 500\n", "c")
"""Requests of more than 500 tokens are refused in the sandbox."""


@pytest.fixture(params=[False, True], ids=["all are load", "some are refused in the log"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    rows = []
    for number in range(60):
        at = START + timedelta(hours=number)
        refused = request.param and number % 7 == 3
        row = {
            "request_id": f"r{number}",
            "tenant": "a",
            "arrived_at": at.isoformat(),
            "prompt_tokens": 10 * number + 1,
        }
        rows.append(row | {"output_tokens": 0 if refused else 5, "status": "rejected" if refused else "ok"})
    (tmp_path / "a.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    ingest([str(tmp_path / "a.jsonl")], tmp_path / "s", IngestOptions())
    found = open_store(tmp_path / "s")
    replay(found, CONFIG, ["fcfs", "sjf"])
    replay(found, CONFIG, ["vtc"], START + timedelta(hours=20), START + timedelta(hours=40))
    return found


@pytest.mark.parametrize("since", [None, START + timedelta(hours=10), START + timedelta(hours=30)])
def test_as_one_by_one(store: Store, since: datetime | None) -> None:
    names = store.replay_names()
    assert len(names) == 3
    assert list(find_replays(store, CONFIG)) == ["fcfs", "sjf"]
    found = outcomes(store, names, since)
    for name, frame in zip([LOGGED, *names], found, strict=True):
        assert_frame_equal(frame, outcome(store, name, since), categorical_as_str=True)
    assert any((frame["status"] == "rejected").any() for frame in found)
