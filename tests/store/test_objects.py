"""A store in a bucket, on a local server that speaks S3: what readers see, who may write, what a killed run leaves."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairreplay.config.load import parse_config
from fairreplay.errors import StoreBusyError, StoreError, UsageError
from fairreplay.sandbox.replay import find_replays, replay
from fairreplay.store import objects
from fairreplay.store import store as stores
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.manifest import read_manifest
from fairreplay.store.objects import ChangedError, ObjectPath, place
from fairreplay.store.outcomes import outcome
from fairreplay.store.store import claimed, lock_folder, open_store
from tests.cli.logs import SETTINGS, digest, write_log
from tests.s3 import put_object, s3_server

CONFIG = parse_config(SETTINGS, "test")
numbers = itertools.count()


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server():
        put_object("bucket", "other.txt", b"not of a store")
        yield "s3://bucket"


@pytest.fixture
def there(bucket: str, monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    """A prefix of its own, which this process has no copy of."""
    stores._copy_of.cache_clear()
    found = place(f"{bucket}/of/test-{next(numbers)}")
    assert isinstance(found, ObjectPath)
    return found


def files(folder: ObjectPath) -> dict[str, str]:
    """As ``digest``, of objects."""
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name, _ in folder.below() if name != "lock"
    }


def anew(folder: ObjectPath) -> stores.Store:
    """The store as another process opens it: without a copy."""
    stores._copy_of.cache_clear()
    return open_store(folder)


def test_a_bucket_holds_the_bytes_of_a_folder(there: ObjectPath, tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_bytes(log.read_bytes().replace(b" 0 ", b" 1 ") + b'{"request_id": "bad"}\n')
    for where in (tmp_path / "store", there):
        for name in ("a", "b"):
            ingest([str(tmp_path / f"{name}.jsonl")], where, IngestOptions(max_reject_rate=0.5))
        replay(open_store(where), CONFIG, ["fcfs", "vtc"])
    assert files(there) == digest(tmp_path / "store")
    assert not (there / "lock").exists()
    here, remote = open_store(tmp_path / "store"), anew(there)
    assert remote.digest() == here.digest()
    assert remote.requests().equals(here.requests())
    assert remote.rejects().equals(here.rejects())
    assert remote.replay_names() == here.replay_names()
    name = find_replays(remote, CONFIG)["vtc"]
    assert outcome(remote, name).equals(outcome(here, name))
    assert remote.replay_steps(name).equals(here.replay_steps(name))
    assert remote.faults() == []
    again = ingest([str(log)], there, IngestOptions())
    assert again.sources[0].already
    assert again.store == str(there)
    with remote.lock():
        remote.remove_replay(name)
    assert anew(there).replay_names() == [other for other in here.replay_names() if other != name]


def test_a_reader_fetches_what_it_reads(there: ObjectPath, tmp_path: Path) -> None:
    for name, day in (("a", 0), ("b", 1)):
        ingest([str(write_log(tmp_path / f"{name}.jsonl", day=day))], there, IngestOptions())
    store = anew(there)
    assert sorted(path.name for path in store.path.rglob("*") if path.is_file()) == []
    first = store.manifest.segments[0].source
    assert len(store.requests_of([first])) == 90
    assert [path.stem for path in store.path.rglob("*.parquet")] == [first]


def test_a_damaged_object_is_named(there: ObjectPath, tmp_path: Path) -> None:
    ingest([str(write_log(tmp_path / "a.jsonl"))], there, IngestOptions())
    (name,) = [name for name, _ in there.below() if name.startswith("segments/")]
    content = (there / name).read_bytes()
    (there / name).write_bytes(content[:-9] + b"x" * 9)
    with pytest.raises(StoreError, match=rf"^{there}/{name}: damaged"):
        anew(there).requests()
    (there / name).unlink()
    with pytest.raises(StoreError, match=rf"^{there}/{name}: cannot be read \(no such object or bucket\)"):
        anew(there).requests()


# ---- one writer ----


def test_a_second_writer_is_told_who_is_there(there: ObjectPath, tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.jsonl")
    held = objects.lease(there, "lock")
    with held, pytest.raises(StoreBusyError, match=rf"^{there}: process \d+ on \S+ holds the store; try again"):
        ingest([str(log)], there, IngestOptions())
    with lock_folder(there), claimed(there):  # the steps of one run do not lock each other out
        ingest([str(log)], there, IngestOptions())
    assert not (there / "lock").exists()


def test_a_lock_that_nobody_renews_goes_to_the_next_run(there: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    (there / "lock").write_bytes(b"process 1 on gone 00\n7\n")
    with pytest.raises(StoreBusyError, match="process 1 on gone holds the store"), lock_folder(there):
        pass
    now = objects._now_s(there)
    monkeypatch.setattr(objects, "_now_s", lambda folder: now + objects.LEASE_S - 5)
    with pytest.raises(StoreBusyError), lock_folder(there):
        pass
    monkeypatch.setattr(objects, "_now_s", lambda folder: now + objects.LEASE_S + 5)
    with lock_folder(there):
        assert (there / "lock").read_bytes().startswith(b"process ")
        assert b"gone" not in (there / "lock").read_bytes()
    assert [name for name, _ in there.below()] == []


def test_a_holder_renews_its_lock_and_notices_when_it_lost_it(
    there: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "RENEW_S", 0.05)
    log = write_log(tmp_path / "a.jsonl")
    with objects.lease(there, "lock") as held:
        seen = {(there / "lock").read_bytes() for _ in range(200) if not objects.threading.Event().wait(0.01)}
        assert len(seen) > 2, "its content changes, and with it its tag"
        held.check()
    with lock_folder(there):
        stores._LEASES.get()[str(there)]._end.set()  # a run that is held up: it renews no more
        stores._LEASES.get()[str(there)]._thread.join()
        (there / "lock").write_bytes(b"another\n")
        objects.threading.Event().wait(0.1)
        with pytest.raises(StoreBusyError, match="the lock was lost to another run"):
            ingest([str(log)], there, IngestOptions())
    assert not (there / "manifest.json").exists()
    assert (there / "lock").read_bytes() == b"another\n"


def test_a_manifest_that_another_run_wrote_is_not_overwritten(
    there: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even without any lock: what was read is what may be replaced, and nothing else."""
    ingest([str(write_log(tmp_path / "a.jsonl"))], there, IngestOptions())
    ingest([str(write_log(tmp_path / "b.jsonl", day=1))], tmp_path / "other", IngestOptions())
    late = open_store(there)
    ingest([str(write_log(tmp_path / "c.jsonl", day=2))], there, IngestOptions())
    (segment,) = open_store(tmp_path / "other").manifest.segments
    frame = open_store(tmp_path / "other").requests()
    with pytest.raises(StoreBusyError, match="another run has changed the store meanwhile; run this again"):
        late.add_segment(segment, frame, [])
    assert [one.name for one in sorted(read_manifest(there).segments, key=lambda one: one.name)] == [
        "a.jsonl",
        "c.jsonl",
    ]


def test_writing_is_conditional_and_a_lost_answer_does_not_matter(there: ObjectPath) -> None:
    tag = (there / "x").write(b"1", new=True)
    with pytest.raises(ChangedError):
        (there / "x").write(b"2", new=True)
    assert (there / "x").write(b"1", new=True) == tag, "it is there as asked: sent again after the answer was lost"
    newer = (there / "x").write(b"3", replaces=tag)
    with pytest.raises(ChangedError):
        (there / "x").write(b"4", replaces=tag)
    assert (there / "x").read() == (b"3", newer)


def test_a_server_without_conditions_is_refused(there: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    write = ObjectPath.write
    monkeypatch.setattr(ObjectPath, "write", lambda self, content, **_conditions: write(self, content))
    with pytest.raises(StoreError, match="overwrites where it is told not to"), lock_folder(there):
        pass
    assert not (there / "lock").exists()


# ---- killed runs ----


@pytest.mark.parametrize("after", range(3))
def test_a_run_that_dies_between_two_uploads_changes_nothing(
    there: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Segment, rejects, manifest: whichever is the last that went up but the manifest, the store is as it was."""
    ingest([str(write_log(tmp_path / "a.jsonl"))], there, IngestOptions())
    before = anew(there).digest()
    log = write_log(tmp_path / "b.jsonl", day=1)
    log.write_bytes(log.read_bytes() + b'{"request_id": "bad"}\n')
    write, left = ObjectPath.write, iter(range(after))

    def dies(self: ObjectPath, content: bytes | Path, **conditions: object) -> str:
        if self.name != "lock" and next(left, None) is None:
            raise KeyboardInterrupt
        return write(self, content, **conditions)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ObjectPath, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            ingest([str(log)], there, IngestOptions(max_reject_rate=0.5))
    store = anew(there)
    assert (store.digest(), store.faults()) == (before, [])
    assert ingest([str(log)], there, IngestOptions(max_reject_rate=0.5)).sources[0].changed
    assert anew(there).faults() == []


def test_a_replay_counts_with_its_last_file(there: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest([str(write_log(tmp_path / "a.jsonl"))], there, IngestOptions())
    write = ObjectPath.write

    def dies(self: ObjectPath, content: bytes | Path, **conditions: object) -> str:
        if self.name == "replay.json":
            raise KeyboardInterrupt
        return write(self, content, **conditions)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ObjectPath, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            replay(open_store(there), CONFIG, ["fcfs"])
    assert sum(name.startswith("replays/") for name, _ in there.below()) == 2
    assert anew(there).replay_names() == []
    replay(anew(there), CONFIG, ["fcfs"])
    assert len(anew(there).replay_names()) == 1


def test_what_a_killed_run_left_goes_after_a_day(
    there: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest([str(write_log(tmp_path / "a.jsonl"))], there, IngestOptions())
    replay(open_store(there), CONFIG, ["fcfs"])
    kept = files(there)
    left = ("segments/0123456789abcdef.parquet", "rejects/0123456789abcdef.jsonl", "replays/vtc-1/requests.parquet")
    for name in left:
        (there / name).write_bytes(b"x")
    with lock_folder(there):
        anew(there).remove_leftovers()
    assert files(there).keys() == kept.keys() | set(left), "another run may be at work on them"
    monkeypatch.setattr(stores, "LEFTOVER_S", -1)
    with lock_folder(there):
        anew(there).remove_leftovers()
    assert files(there) == kept


# ---- names ----


@pytest.mark.parametrize(
    "text", ["s3://", "s3:///a", "ftp://bucket/a", "s3://me:key@bucket/a", "s3://bucket/a?region=x"]
)
def test_an_address_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"write it as s3://bucket/path"):
        place(text)


def test_addresses_are_places() -> None:
    found = place("s3://bucket/a/b.html")
    assert isinstance(found, ObjectPath)
    assert str(found.parent / "c") == "s3://bucket/a/c"
    assert (found.name, found.suffix, str(found.with_suffix(".json"))) == ("b.html", ".html", "s3://bucket/a/b.json")
    assert str(place("s3://bucket/")) == "s3://bucket"
    assert place("a/b") == Path("a/b")


def test_a_prefix_that_is_no_store_and_a_bucket_that_is_none(bucket: str, tmp_path: Path) -> None:
    log = str(write_log(tmp_path / "a.jsonl"))
    with pytest.raises(StoreError, match=r"^s3://bucket: holds other files and is no store"):
        ingest([log], place("s3://bucket"), IngestOptions())
    with pytest.raises(StoreError, match=r"^s3://bucket/nothing: no store here \(no manifest.json\)"):
        open_store(place("s3://bucket/nothing"))
    with pytest.raises(StoreError, match=r"^s3://no-such-bucket/x"):
        ingest([log], place("s3://no-such-bucket/x"), IngestOptions())
