"""The store as a folder: what it gives back, what it refuses to open, and that a kill leaves it as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fairreplay.errors import StoreBusyError, StoreError, UsageError
from fairreplay.store.manifest import Segment
from fairreplay.store.outcomes import outcome
from fairreplay.store.replays import REPLAY_SCHEMA, STEP_SCHEMA
from fairreplay.store.store import Store, create_store, open_store
from fairreplay.trace.reject import Reject
from fairreplay.trace.schema import SCHEMA

T0 = datetime(2026, 3, 2, 8, tzinfo=UTC)


def second(number: float) -> datetime:
    return T0 + timedelta(seconds=number)


def frame_of(source: str, arrivals: list[float]) -> pl.DataFrame:
    rows = len(arrivals)
    values: dict[str, Any] = {name: [None] * rows for name in SCHEMA}
    values |= {
        "request_id": [f"{source[0]}{index}" for index in range(rows)],
        "tenant": ["a"] * rows,
        "type": ["chat"] * rows,
        "arrived_at": [second(item) for item in arrivals],
        "prompt_tokens": [5] * rows,
        "output_tokens": [7] * rows,
        "status": ["ok"] * rows,
        "seq": list(range(rows)),
        "source": [source] * rows,
    }
    return pl.DataFrame(values, schema=SCHEMA)


def segment_of(source: str, rows: int, **more: Any) -> Segment:
    counts: dict[str, Any] = {"accepted": rows, "rejected": 0, "duplicates": 0} | more
    read = counts["accepted"] + counts["rejected"] + counts["duplicates"]
    return Segment(
        source=source, name=f"{source[0]}.jsonl", format="native", rows=read, file_bytes=0, file_sha256="", **counts
    )


A, B = "a" * 16, "b" * 16


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = create_store(tmp_path / "[prod]")
    store.add_segment(segment_of(B, 3), frame_of(B, [2, 0, 1]), [])
    store.add_segment(segment_of(A, 2), frame_of(A, [1, 0]), [])
    return store


def content(path: Path) -> dict[str, bytes]:
    files = (item for item in path.rglob("*") if item.is_file() and item.name != "lock")
    return {str(item.relative_to(path)): item.read_bytes() for item in files}


def test_an_empty_store_has_no_requests(tmp_path: Path) -> None:
    store = create_store(tmp_path / "new" / "store")
    assert store.requests().schema == pl.Schema(SCHEMA)
    assert (store.requests().height, store.rejects().height, store.replay_names()) == (0, 0, [])
    assert open_store(store.path).digest() == store.digest()


def test_requests_come_in_the_total_order(store: Store) -> None:
    """Arrival, then the order in the source, then the content id."""
    assert open_store(store.path).requests()["request_id"].to_list() == ["a1", "b1", "a0", "b2", "b0"]
    assert [segment.source for segment in store.manifest.segments] == [A, B]


def test_a_period_is_half_open_and_naive_bounds_are_utc(store: Store) -> None:
    assert store.requests(second(1), second(2))["request_id"].to_list() == ["a0", "b2"]
    naive = second(1).replace(tzinfo=None)
    assert store.requests(until=naive)["request_id"].to_list() == ["a1", "b1"]
    assert store.requests(second(9)).height == 0


def test_the_digest_names_the_content_and_not_the_order_of_ingest(store: Store, tmp_path: Path) -> None:
    other = create_store(tmp_path / "other")
    other.add_segment(segment_of(A, 2), frame_of(A, [1, 0]), [])
    assert other.digest() != store.digest()
    other.add_segment(segment_of(B, 3), frame_of(B, [2, 0, 1]), [])
    assert other.digest() == store.digest()
    assert content(other.path) == content(store.path)


def test_rejects_name_their_file(store: Store) -> None:
    reject = Reject(3, "x", None, "missing_time", '{"é": 1}')
    store.add_segment(segment_of("c" * 16, 0, rejected=1), frame_of("c" * 16, []), [reject])
    assert open_store(store.path).rejects().to_dicts() == [{"file": "c.jsonl", "source": "c" * 16, **reject.as_dict()}]


def test_a_missing_store_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no store here .*'fairreplay ingest'"):
        open_store(tmp_path)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (b"{", "damaged manifest"),
        (b"[]", "damaged manifest"),
        (b'{"version": "1", "segments": []}', "damaged manifest"),
        (b'{"version": 1, "segments": [{"source": 5}]}', r"damaged manifest at segments\.0\.source"),
        (b'{"version": 1, "segments": [], "more": 1}', "damaged manifest at more"),
        (b'{"version": 2, "anything": 1}', "store version 2 is newer than 1; use a newer fairreplay"),
    ],
)
def test_a_manifest_that_cannot_be_trusted_is_refused(tmp_path: Path, manifest: bytes, message: str) -> None:
    (tmp_path / "manifest.json").write_bytes(manifest)
    for attempt in (open_store, create_store):
        with pytest.raises(StoreError, match=message):
            attempt(tmp_path)


@pytest.mark.parametrize("damage", ["gone", "cut", "one bit", "other bytes"])
def test_a_damaged_segment_is_named(store: Store, damage: str) -> None:
    path = store.segment_path(B)
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(whole[:-1])
    elif damage == "one bit":
        path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    else:
        path.write_bytes(b"x" * len(whole))
    with pytest.raises(StoreError, match=rf"{B}\.parquet: (cannot be read|damaged)"):
        open_store(store.path).requests()


def test_a_folder_of_other_files_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="holds other files"):
        create_store(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be a store"):
        create_store(tmp_path / "file")


def test_the_lock_names_its_holder_and_is_free_afterwards(store: Store) -> None:
    def another_run() -> None:
        with store.lock():
            pass

    with store.lock(), ThreadPoolExecutor(1) as thread:
        with store.lock():  # a step of the run that holds it
            pass
        with pytest.raises(StoreBusyError, match=f"process {os.getpid()} holds the store"):
            thread.submit(another_run).result()
    with store.lock():
        pass
    assert (store.path / "lock").read_bytes() == b""


def test_another_process_holds_the_lock(store: Store) -> None:
    program = (
        "import sys, pathlib; from fairreplay.store.store import open_store\n"
        "with open_store(pathlib.Path(sys.argv[1])).lock(): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(store.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreBusyError, match=f"process {holder.pid} holds the store"), store.lock():
            pass
        holder.communicate()
    with store.lock():
        pass


class Killed(BaseException):
    pass


@pytest.mark.parametrize(
    "moment", ["draft.RowGroups.close", "draft.sync", "rejects.sync", "store.sha256_of", "store.write_manifest"]
)
def test_a_kill_at_any_write_leaves_the_old_store(store: Store, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    before, digest = store.requests(), store.digest()

    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(f"fairreplay.store.{moment}", die)
    rejects = [Reject(0, None, None, "unparsable_record", "x")]
    with pytest.raises(Killed):
        store.add_segment(segment_of("c" * 16, 1, rejected=1), frame_of("c" * 16, [5]), rejects)
    monkeypatch.undo()
    after = open_store(store.path)
    assert after.digest() == digest
    assert after.requests().equals(before)
    after.remove_leftovers()
    assert not list(after.path.rglob("*c*.parquet"))
    assert not list(after.path.rglob("*c*.jsonl"))


def replayed(ids: list[str], statuses: list[str] | None = None) -> pl.DataFrame:
    rows = len(ids)
    values = {
        "request_id": ids,
        "replica": ["0"] * rows,
        "scheduled_at": [second(10 + index) for index in range(rows)],
        "first_token_at": [second(20 + index) for index in range(rows)],
        "finished_at": [second(30 + index) for index in range(rows)],
        "status": statuses or ["ok"] * rows,
        "reason": [""] * rows,
        "preemptions": [1] * rows,
        "recomputed_tokens": [2] * rows,
        "cached_tokens": [3] * rows,
        "computed_tokens": [4] * rows,
    }
    return pl.DataFrame(values, schema=REPLAY_SCHEMA)


STEPS = pl.DataFrame(schema=STEP_SCHEMA)
META: dict[str, object] = {"policy": "vtc", "config_hash": "0123456789ab"}
NAME = "vtc-0123456789ab"


def test_a_replay_comes_back_and_replaces_one_of_its_name(store: Store) -> None:
    store.write_replay(META, replayed(["a0"]), STEPS)
    store.write_replay(META | {"n": 2}, replayed(["a0", "b0"]), STEPS)
    again = open_store(store.path)
    assert again.replay_names() == [NAME]
    assert again.replay_meta(NAME) == META | {"n": 2}
    assert again.replay_requests(NAME).equals(replayed(["a0", "b0"]))
    assert again.replay_steps(NAME).schema == pl.Schema(STEP_SCHEMA)
    assert again.digest() == store.digest()  # a replay is no part of what was ingested


def test_a_kill_inside_the_swap_of_a_replay_brings_the_old_one_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write_replay(META, replayed(["a0"]), STEPS)
    folder = store.path / "replays" / NAME
    folder.rename(folder.with_name(NAME + ".old.tmp"))
    folder.with_name(NAME + ".tmp").mkdir()
    store.remove_leftovers()
    assert open_store(store.path).replay_requests(NAME).equals(replayed(["a0"]))
    assert [item.name for item in folder.parent.iterdir()] == [NAME]


def test_unknown_and_damaged_replays(store: Store) -> None:
    with pytest.raises(UsageError, match="run 'fairreplay replay' first"):
        store.replay_requests(NAME)
    store.write_replay(META, replayed(["a0"]), STEPS)
    with pytest.raises(UsageError, match=f"did you mean '{NAME}'"):
        store.replay_meta(NAME[:-1])
    (store.path / "replays" / NAME / "requests.parquet").write_bytes(b"PAR1")
    with pytest.raises(StoreError, match=r"requests\.parquet: missing or damaged"):
        store.replay_requests(NAME)
    (store.path / "replays" / NAME / "replay.json").write_bytes(b"[]")
    with pytest.raises(StoreError, match=r"replay\.json: damaged"):
        store.replay_meta(NAME)


def test_a_policy_name_is_no_path(store: Store) -> None:
    with pytest.raises(UsageError, match="policy name"):
        store.write_replay(META | {"policy": "../../x"}, replayed([]), STEPS)
    with pytest.raises(TypeError):
        store.write_replay(META, STEPS, STEPS)


def test_the_outcome_of_a_replay_replaces_what_was_logged(store: Store) -> None:
    store.write_replay(META, replayed(["b0", "a1"], ["rejected", "ok"]), STEPS)
    assert outcome(store, "logged").equals(store.requests())
    frame = outcome(store, NAME)
    assert frame.schema == pl.Schema(SCHEMA)
    assert frame.select("request_id", "status", "output_tokens", "replica", "preemptions", "cached_tokens").rows() == [
        ("a1", "ok", 7, "0", 1, 3),
        ("b0", "rejected", 0, "0", 1, 3),
    ]
    assert frame["first_token_at"].to_list() == [second(21), second(20)]
    assert outcome(store, NAME, until=second(1))["request_id"].to_list() == ["a1"]


def test_the_manifest_holds_no_path_and_no_time(store: Store) -> None:
    document = json.loads((store.path / "manifest.json").read_text())
    assert list(document) == ["version", "segments"]
    assert str(store.path.parent) not in json.dumps(document)
