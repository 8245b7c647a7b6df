"""``fairreplay ingest`` as a user meets it: output, documented keys, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import filelock
import pytest
import typer
from typer.testing import CliRunner

from fairreplay.cli.ingest import ingest
from fairreplay.errors import FairReplayError
from fairreplay.store.store import LOCK_NAME, create_store

DATA = Path(__file__).parents[1] / "data"
PROGRAM = "import typer; from fairreplay.cli.ingest import ingest; typer.run(ingest)"
APP = typer.Typer(pretty_exceptions_enable=False)
APP.command()(ingest)


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: object) -> Done:
    """The command in this process, its expected errors as the command line shows them."""
    result = CliRunner().invoke(APP, [str(item) for item in arguments])
    if isinstance(result.exception, FairReplayError):
        return Done(result.exception.exit_code, result.stdout, f"{result.stderr}{result.exception}\n")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def test_the_json_keys_are_the_documented_ones(tmp_path: Path) -> None:
    source = DATA / "vtc_arena" / "FCFS.all_results_real.jsonl"
    done = run(source, "--store", tmp_path / "s", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(document) == ["sources", "tenants", "types", "first_arrival", "last_arrival", "store"]
    (item,) = document["sources"]
    assert list(item["by_tenant"].values()) == list(document["tenants"].values())
    assert len(item.pop("by_tenant")) == 27
    assert "preemptions" in item.pop("unknown")
    assert item.pop("assumptions")[1] == "all rows without type, taken as 'completion' (--type)"
    assert item == {
        "path": str(source),
        "source": "21cd8b32e861bef8",
        "format": "vtc",
        "records": 1500,
        "rows": 1500,
        "accepted": 1500,
        "rejected": 0,
        "duplicates": 0,
        "skipped": 0,
        "rejects": {},
        "skips": {},
        "by_status": {"ok": 1500},
        "join": None,
        "changed": True,
    }
    assert len(document["tenants"]) == 27
    assert document["tenants"]["dummy-lora-7b-rank-8-2"] == 296
    assert document["types"] == {"completion": 1500}
    assert document["last_arrival"] == "1970-01-01T00:10:00.000000Z"
    again = run(source, "--store", tmp_path / "s", "--json")
    expected = json.loads(done.stdout)
    expected["sources"][0]["changed"] = False
    assert json.loads(again.stdout) == expected
    assert "already in the store (same bytes); nothing changed" in again.stderr


def test_the_summary_says_what_was_recognised_assumed_and_left_out(tmp_path: Path) -> None:
    rows = [
        '{"arrived_at": "2026-03-02 09:00:00", "prompt_tokens": 5, "output_tokens": 5, "tenant": "[/x]", "extra": 1}',
        '{"arrived_at": "2026-03-02 09:00:01", "prompt_tokens": 0, "output_tokens": 5}',
    ]
    (tmp_path / "[b]\x1b[31m.jsonl").write_text("\n".join(rows))
    arguments = ("--tz", "Europe/Berlin", "--max-reject-rate", "0.5", "--type", "chat")
    command = [sys.executable, "-c", PROGRAM, tmp_path / "[b]\x1b[31m.jsonl", "--store", tmp_path / "s", *arguments]
    plain = os.environ | {"LANG": "C", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=plain)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    for said in (
        "[b]\\u001b[31m.jsonl",
        "recognised as native (jsonl with arrived_at, prompt_tokens, output_tokens)",
        "arrived_at without zone, read as Europe/Berlin (--tz)",
        "rejected: zero_prompt 1",
        "all rows without type, taken as 'chat' (--type)",
        "columns left out: extra",
        "unknown in this log: ",
        "1 requests of 1 tenants (chat 1), 2026-03-02T08:00:00.000000Z to 2026-03-02T08:00:00.000000Z",
    ):
        assert said in done.stdout


def test_quiet_says_nothing(tmp_path: Path) -> None:
    source = DATA / "vidur" / "splitwise_conv.head2000.csv"
    for _ in range(2):
        done = run(source, "--store", tmp_path / "s", "--quiet")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["missing.jsonl"], 2, "missing.jsonl: no such file or folder"),
        (["empty"], 3, "empty: empty file; nothing to ingest"),
        (["empty", "--tz", "Mars/Olympus"], 2, "--tz Mars/Olympus: no such zone"),
        (["empty", "--tz", "../../etc/passwd"], 2, "--tz ../../etc/passwd: no such zone"),
        (["empty", "--t0", "noon"], 2, "--t0 noon: no instant"),
        (["empty", "--max-skew", "5"], 2, "--max-skew 5: no duration"),
        (["empty", "--max-skew", "-5ms"], 2, "--max-skew -5ms: no duration"),
        (["log", "--format", "natve"], 2, "--format natve: no such format (did you mean 'native'?)"),
        ([str(DATA / "llmperf")], 3, "no arrival time; FairReplay cannot replay it"),
        (["log"], 5, "holds other files and is no store"),
        (["log", "--max-reject-rate", "1.5"], 2, ""),
    ],
)
def test_errors_are_one_line_with_their_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], exit_code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "log").write_text('{"arrived_at_s": 1, "prompt_tokens": 1, "output_tokens": 1}\n')
    store = tmp_path if exit_code == 5 else tmp_path / "s"
    done = run(*arguments, "--store", store)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert said in done.stderr
    assert not said or done.stderr.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_a_busy_store_is_exit_75(tmp_path: Path) -> None:
    store = create_store(tmp_path / "s")
    lock = filelock.FileLock(store.path / LOCK_NAME)  # as another run would hold it: this one's own would let it in
    with lock:
        (store.path / LOCK_NAME).write_text(f"{os.getpid()}\n")
        done = run(DATA / "vidur", "--store", store.path)
    assert done.returncode == 75
    assert f"process {os.getpid()} holds the store" in done.stderr
    assert done.stderr.count("\n") == 1


def test_skew_and_t0(tmp_path: Path) -> None:
    row = '{"arrived_at_s": 1, "first_token_at_ms": 995, "prompt_tokens": 1, "output_tokens": 1}'
    (tmp_path / "log").write_text(row)
    done = run(tmp_path / "log", "--store", tmp_path / "s", "--max-skew", "5ms", "--t0", "2026-03-02T08:00:00Z")
    assert "1 times moved within --max-skew" in done.stdout
    assert "2026-03-02T08:00:01.000000Z" in done.stdout
