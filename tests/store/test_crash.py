"""Whatever happens in the middle of an ingest - kill, full disk, interrupt - the store is as before or as after."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairreplay.errors import StoreError
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import open_store

EVERYTHING = IngestOptions(max_reject_rate=1.0)


def line(index: int, **change: Any) -> str:
    record = {"request_id": f"r{index}", "arrived_at_ms": 1772438400000 + index, "prompt_tokens": 9, "output_tokens": 1}
    return json.dumps(record | change)


def log(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def content(path: Path) -> dict[str, bytes]:
    files = (item for item in path.rglob("*") if item.is_file() and item.name != "lock")
    return {str(item.relative_to(path)): item.read_bytes() for item in files}


WATCHED = """
import os, shutil, signal, sys
from pathlib import Path
from fairreplay.store.ingest import IngestOptions, ingest

source, store, states, fatal = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}
seen, inside = 0, False

def step():
    global seen, inside
    if inside:
        return
    if seen == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    inside = True
    if fatal < 0:
        shutil.copytree(store, states / str(seen)) if store.exists() else (states / str(seen)).mkdir(parents=True)
    inside = False
    seen += 1

def hook(event, arguments):
    if event in EVENTS and isinstance(arguments[0], (str, os.PathLike)) and str(store) in str(arguments[0]):
        step()

fsync = os.fsync
os.fsync = lambda descriptor: (step(), fsync(descriptor))
sys.addaudithook(hook)
ingest([source], store, IngestOptions(max_reject_rate=1.0))
print(seen)
"""
"""An ingest that keeps what is on disk before every file operation, or dies at one of them."""


def watched(source: str, store: Path, states: Path, fatal: int = -1) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WATCHED, source, str(store), str(states), str(fatal)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


OLD, NEW = ["r0", "r1", "r2"], ["r0", "r1", "r2", "r8", "r9"]


def test_a_kill_at_any_step_leaves_the_store_as_before_or_after(tmp_path: Path) -> None:
    """The disk as it is before every single file operation: a sound store, and the next run does all that is left."""
    first = log(tmp_path / "first.jsonl", *(line(index) for index in range(3)))
    second = log(tmp_path / "second.jsonl", line(9), line(1), line(8), "{", line(2, type="x"))
    ingest([first], tmp_path / "store", EVERYTHING)
    before = content(tmp_path / "store")
    done = watched(second, tmp_path / "store", tmp_path / "states")
    assert done.returncode == 0, done.stderr
    after = content(tmp_path / "store")
    steps = int(done.stdout)
    assert steps >= 15
    outcomes = []
    for number in range(steps):
        state = tmp_path / "states" / str(number)
        outcomes.append(open_store(state).requests()["request_id"].to_list())
        assert {name: content(state)[name] for name in before if name != "manifest.json"}.items() <= before.items()
        ingest([second], state, EVERYTHING)
        assert content(state) == after
    switch = outcomes.index(NEW)
    assert outcomes == [OLD] * switch + [NEW] * (steps - switch)
    assert switch > steps / 2  # the manifest is the last write


@pytest.mark.parametrize("fatal", [0, 9, 17])
def test_a_real_kill(tmp_path: Path, fatal: int) -> None:
    first, second = log(tmp_path / "first.jsonl", line(0)), log(tmp_path / "second.jsonl", line(1), "{")
    ingest([first], tmp_path / "store", EVERYTHING)
    assert watched(second, tmp_path / "store", tmp_path / "states", fatal).returncode == -signal.SIGKILL
    assert open_store(tmp_path / "store").requests()["request_id"].to_list() in (["r0"], ["r0", "r1"])
    ingest([second], tmp_path / "store", EVERYTHING)  # the lock of the dead is free
    assert open_store(tmp_path / "store").requests().height == 2


def test_a_kill_while_the_first_store_is_made_is_no_obstacle(tmp_path: Path) -> None:
    source = log(tmp_path / "log.jsonl", line(0), line(1))
    done = watched(source, tmp_path / "store", tmp_path / "states")
    after = content(tmp_path / "store")
    for number in range(int(done.stdout)):
        ingest([source], tmp_path / "states" / str(number), EVERYTHING)
        assert content(tmp_path / "states" / str(number)) == after


LIMITED = """
import resource, signal, sys
from pathlib import Path
from fairreplay.errors import FairReplayError
from fairreplay.store.ingest import IngestOptions, ingest
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
try:
    ingest([sys.argv[1]], Path(sys.argv[2]), IngestOptions(max_reject_rate=1.0))
except FairReplayError as error:
    sys.stderr.write(str(error)); sys.exit(error.exit_code)
"""


@pytest.mark.parametrize("limit", [0, 3, 300, 3000, 20_000])
def test_a_full_disk_is_one_clear_error(tmp_path: Path, limit: int) -> None:
    """Wherever the room ends: in the rows, the rejects, the manifest, the lock."""
    first = log(tmp_path / "first.jsonl", line(0))
    second = log(
        tmp_path / "second.jsonl", *(line(index, session_id=f"{index * 7919:x}") for index in range(9000)), "{"
    )
    ingest([first], tmp_path / "store", EVERYTHING)
    before = content(tmp_path / "store")
    for store in (tmp_path / "store", tmp_path / "new" / "store"):
        command = [sys.executable, "-c", LIMITED, second, str(store), str(limit)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == StoreError.exit_code, done.stderr
        assert done.stderr.startswith(f"{store}: no room to write")
        assert "\n" not in done.stderr
    assert content(tmp_path / "store") == before
    assert not (tmp_path / "new").exists()
    ingest([second], tmp_path / "store", EVERYTHING)
    assert open_store(tmp_path / "store").requests().height == 9000  # row r0 stands in both


def test_an_interrupt_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    """Ctrl-C: exit 130, nothing stored, no leftover, and no traceback."""
    ingest([log(tmp_path / "first.jsonl", line(0))], tmp_path / "store", EVERYTHING)
    before = content(tmp_path / "store")
    program = "from fairreplay.cli.app import main; main()"
    command = [sys.executable, "-c", program, "ingest", "-", "--store", str(tmp_path / "store")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(line(1).encode() * 1000)
        process.stdin.flush()
        lock = tmp_path / "store" / "lock"
        while not lock.read_text().strip():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    assert process.returncode == 130
    assert output == b""
    assert b"Traceback" not in errors
    assert content(tmp_path / "store") == before


def test_an_interrupt_between_the_last_write_and_its_note_keeps_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairreplay.store import store as store_module

    write = store_module.write_manifest

    def interrupted(*arguments: Any) -> None:
        write(*arguments)
        if (tmp_path / "store" / "segments").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(store_module, "write_manifest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ingest([log(tmp_path / "log.jsonl", line(0), line(1))], tmp_path / "store", EVERYTHING)
    assert open_store(tmp_path / "store").requests().height == 2
