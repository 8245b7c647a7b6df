"""``replay`` with the user's own policies, threads, and every step of an interval."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest
import typer
from typer.testing import CliRunner

from fairreplay.cli.replay import replay
from fairreplay.config.load import load_config
from fairreplay.errors import UsageError
from fairreplay.sandbox import reference
from fairreplay.sandbox.decision_log import step_line
from fairreplay.sandbox.engine import Step
from fairreplay.sandbox.plan import shards
from fairreplay.sandbox.replay import find_replays, read_load
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import Store, open_store

SHORTEST = "def rank(prompt_tokens):\n    return prompt_tokens\n"
SETTINGS = """
    [cluster]
    replicas = {replicas}
    max_num_seqs = 3
    num_gpu_blocks = 12
    enable_prefix_caching = false
    async_scheduling = {asynchronous}
    [cluster.step_time]
    base = 0.25
    prefill_token = 0.001
    """
"""A tight cache: some requests are preempted."""

app = typer.Typer()
app.command()(replay)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def log(path: Path, count: int) -> Path:
    rows = [
        {
            "request_id": f"r{number}",
            "tenant": f"t{number % 3}",
            "arrived_at": f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z",
            "prompt_tokens": 10 + 37 * number % 90,
            "output_tokens": 5 + 11 * number % 40,
        }
        for number in range(count)
    ]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def placed(folder: Path, *, replicas: int = 1, asynchronous: bool = False) -> list[str]:
    ingest([str(log(folder / "log.jsonl", 60))], folder / "store", IngestOptions())
    (folder / "c.toml").write_text(SETTINGS.format(replicas=replicas, asynchronous=str(asynchronous).lower()))
    return ["--store", str(folder / "store"), "--config", str(folder / "c.toml")]


def content(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.glob("replays/*/*"))}


# A policy of the user's own.


def test_a_rank_from_a_file_is_a_policy_like_any_other(tmp_path: Path) -> None:
    """Shortest prompt first, written by the user, decides as ``sjf`` does."""
    place = placed(tmp_path)
    (tmp_path / "rank.py").write_text(SHORTEST)
    result = run("--policy", f"{tmp_path}/rank.py:rank", "--policy", "sjf", *place)
    own, sjf = (line.split() for line in result.stdout.splitlines()[2:4])
    assert own[0] == "rank.py:rank"
    assert own[1:] == sjf[1:]
    store = open_store(tmp_path / "store")
    found = find_replays(store, load_config(tmp_path / "c.toml"))
    assert list(found) == ["rank.py:rank", "sjf"]
    assert store.replay_requests(found["rank.py:rank"]).equals(store.replay_requests(found["sjf"]))


def test_an_edited_rank_takes_the_place_of_what_it_was(tmp_path: Path) -> None:
    place = placed(tmp_path)
    rank = tmp_path / "rank.py"
    rank.write_text(SHORTEST)
    run("--policy", f"{rank}:rank", "--policy", "fcfs", *place)
    store = open_store(tmp_path / "store")
    before = store.replay_names()
    rank.write_text("def rank(head):\n    return -head.prompt_tokens\n")
    run("--policy", f"{rank}:rank", *place)
    after = store.replay_names()
    assert [name.rpartition("-")[0] for name in after] == ["fcfs", "rank.py:rank"]
    assert before[0] == after[0]
    assert before[1] != after[1]
    assert find_replays(store, load_config(tmp_path / "c.toml"))["rank.py:rank"] == after[1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def rank(prompt):\n    return prompt\n", "no field of a head"),
        ("def rank(tenant):\n    return 1 // (tenant - tenant)\n", "raised an error for request number 0"),
        ("def rank(tenant):\n    return str(tenant)\n", "integer"),
        ("def rank(tenant):\n    return tenant.name\n", "does not compile"),
    ],
)
def test_a_rank_that_cannot_run_is_said_before_anything_is_written(tmp_path: Path, source: str, message: str) -> None:
    place = placed(tmp_path)
    (tmp_path / "rank.py").write_text(source)
    with pytest.raises(UsageError, match=message) as error:
        run("--policy", "fcfs", "--policy", f"{tmp_path}/rank.py:rank", *place)
    assert "\n" not in str(error.value)
    assert open_store(tmp_path / "store").replay_names() == []


@pytest.mark.parametrize("name", ["a b.py:rank", "rank.py", "rank.py:", "x;y.py:rank"])
def test_a_name_that_no_replay_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"path/file\.py:function"):
        run("--policy", f"{tmp_path}/{name}", *placed(tmp_path))


def test_two_files_of_one_name_would_be_one_replay(tmp_path: Path) -> None:
    place = placed(tmp_path)
    for folder, text in (("a", SHORTEST), ("b", SHORTEST + "\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rank.py").write_text(text)
    with pytest.raises(UsageError, match="rename one of the files"):
        run("--policy", f"{tmp_path}/a/rank.py:rank", "--policy", f"{tmp_path}/b/rank.py:rank", *place)


# Threads.


def test_results_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    place = placed(tmp_path, replicas=3)
    (tmp_path / "rank.py").write_text(SHORTEST)
    policies = [f"--policy={name}" for name in ("vtc", "fcfs", f"{tmp_path}/rank.py:rank")]
    written = []
    for jobs in ("1", "2", "7"):
        assert run(*policies, "--jobs", jobs, *place).exit_code == 0
        written.append(content(tmp_path / "store"))
    assert written[0] == written[1] == written[2]
    assert len(written[0]) == 9


# Steps.


def plain_steps(folder: Path, policy: str) -> tuple[Store, list[tuple[Step, Any]]]:
    store, config = open_store(folder / "store"), load_config(folder / "c.toml")
    steps: list[tuple[Step, Any]] = []
    for shard in shards(read_load(store, config), config, policy):
        reference.run(shard.workload, shard.plan, lambda step, shard=shard: steps.append((step, shard)))
    return store, steps


@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_are_lines_of_a_decision_log(tmp_path: Path, asynchronous: bool) -> None:
    place = placed(tmp_path, asynchronous=asynchronous)
    out = tmp_path / "steps.jsonl"
    result = run("--policy", "vtc", "--emit", "steps", "-o", str(out), *place)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    _, steps = plain_steps(tmp_path, "vtc")
    assert f"{len(steps)} steps in {out}" in result.stdout
    assert any(step.preempted for step, _ in steps)
    for line, (step, shard) in zip(lines, steps, strict=True):
        expected = step_line(step, shard.plan.settings[0][1])
        assert list(line) == list(expected)
        for key, value in expected.items():
            if key in ("arrived", "preempted", "finished"):
                assert line[key] == [f"r{request}" for request in value]  # type: ignore[attr-defined]
            elif key in ("admitted", "scheduled"):
                assert line[key] == [[f"r{request}", *rest] for request, *rest in value]  # type: ignore[attr-defined]
            else:
                assert line[key] == value


def test_an_interval_of_the_steps_of_several_replicas(tmp_path: Path) -> None:
    place = placed(tmp_path, replicas=2)
    out = tmp_path / "steps.jsonl"
    span = ["--emit-since", "2026-01-01T00:00:10Z", "--emit-until", "2026-01-01T00:00:12Z"]
    run("--emit", "steps", "-o", str(out), *span, *place)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert {(line["model"], line["replica"]) for line in lines} == {(None, "0"), (None, "1")}
    assert all(10 * 10**9 <= line["t_ns"] < 12 * 10**9 for line in lines)
    _, steps = plain_steps(tmp_path, "fcfs")
    assert len(lines) == sum(10 * 10**12 <= step.t_ps < 12 * 10**12 for step, _ in steps)


def test_perfetto_shows_each_request_waiting_and_running(tmp_path: Path) -> None:
    place = placed(tmp_path)
    out = tmp_path / "trace.json"
    assert run("--emit", "perfetto", "-o", str(out), *place).exit_code == 0
    document = json.loads(out.read_text())
    assert document["otherData"] == {"start": "2026-01-01T00:00:00.000000Z"}
    events = document["traceEvents"]
    store, steps = plain_steps(tmp_path, "fcfs")
    assert sum(event["ph"] == "X" for event in events) == sum(bool(step.scheduled) for step, _ in steps)
    (name,) = store.replay_names()
    start = pl.Series(["2026-01-01T00:00:00Z"]).str.to_datetime(time_unit="us")[0]
    preempted = 0
    for row in store.replay_requests(name).to_dicts():
        own = [event for event in events if event.get("id") == row["request_id"]]
        begins = [event for event in own if event["ph"] == "b"]
        ends = [event for event in own if event["ph"] == "e"]
        assert [event["name"] for event in begins] == ["waiting", "running"] * (1 + row["preemptions"])
        assert [event["ts"] for event in begins[1:]] == [event["ts"] for event in ends[:-1]]
        first = (row["scheduled_at"] - start).total_seconds() * 1e6
        assert begins[1]["ts"] == pytest.approx(first, abs=1)
        assert ends[-1]["ts"] == pytest.approx((row["finished_at"] - start).total_seconds() * 1e6, abs=1)
        preempted += row["preemptions"]
    assert preempted > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--emit", "steps"], "name it with -o FILE"),
        (["--emit", "stacks", "-o", "x"], "write steps or perfetto"),
        (["-o", "x"], "go with --emit"),
        (["--emit", "steps", "-o", "x", "--policy", "vtc", "--policy", "fcfs"], "give --policy once"),
        (["--emit", "steps", "-o", "x", "--emit-since", "noon"], "--emit-since 'noon': not an ISO 8601 instant"),
        (["--emit", "steps", "-o", "x", "--emit-since", "2027-01-01"], "no step lies in the interval"),
    ],
)
def test_wrong_use_of_emit_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    place = placed(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        run(*arguments, *place)
    assert not (tmp_path / "x").exists()


# A long replay.


def test_a_long_replay_shows_progress_and_ends_cleanly_when_interrupted(tmp_path: Path) -> None:
    """On a terminal there is a bar; Ctrl-C ends the run with 130 and leaves the replays of before, and no others."""
    place = placed(tmp_path)
    run("--policy", "sjf", *place)
    before = content(tmp_path / "store")
    (tmp_path / "store" / "lock").unlink()
    code = (  # the engine as it is, called again and again: a replay that takes minutes
        "import fairreplay.sandbox.served as served\n"
        "run = served.run_with_sums\n"
        "def long(*arguments, progress):\n"
        "    for arrived in range(4000):\n"
        "        result = run(*arguments)\n"
        "        progress(arrived % 60)\n"
        "    return result\n"
        "served.run_with_sums = long\n"
        "from fairreplay.cli.app import main\n"
        "main()"
    )
    main_end, terminal = pty.openpty()
    arguments = ["replay", "--policy", "fcfs", "--policy", "vtc", *place]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL, stderr=terminal, env=os.environ
    )
    os.close(terminal)
    shown = b""
    deadline = time.monotonic() + 120
    while b"requests/s" not in shown and time.monotonic() < deadline:
        shown += os.read(main_end, 4096)
    assert b"replay" in shown
    process.send_signal(signal.SIGINT)
    rest = b""
    while True:
        try:
            piece = os.read(main_end, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        rest += piece
    assert process.wait(timeout=60) == 130
    os.close(main_end)
    assert b"interrupted" in rest
    assert b"Traceback" not in shown + rest
    assert content(tmp_path / "store") == before
    assert not list((tmp_path / "store" / "replays").glob("*.tmp"))
    assert run("--policy", "vtc", *place).exit_code == 0  # the lock is free again
