"""Replicas on a Ray cluster of two nodes on loopback: the bytes of a local replay, also when a worker dies."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fairreplay.cli.app import app
from fairreplay.config.load import parse_config
from fairreplay.errors import ClusterError, UsageError
from fairreplay.sandbox import on_ray
from fairreplay.sandbox.pool import run_all
from fairreplay.sandbox.replay import replay
from fairreplay.sandbox.served import serve
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import Store, open_store
from tests.cli.logs import digest, write_log
from tests.report import scene

SETTINGS = """
[cluster]
replicas = 2
async_scheduling = false
[cluster.step_time]
base = 0.5
prefill_token = 0.001
decode_sequence = 0.0
context_token = 0.0
"""
PATIENT = {
    "health_check_initial_delay_ms": "60000",
    "health_check_timeout_ms": "60000",
    "health_check_failure_threshold": "10",
    "memory_monitor_refresh_ms": "0",
}
"""A machine that is busy with other things is not a lost one: where Ray thinks so, it ends this process too."""
RANK = "def rank(prompt_tokens, tenant):\n    return prompt_tokens + tenant\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two nodes of one core each, reachable from this machine alone, and this process connected as a replay does it:
    once, since workers start anew for each connection."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # by this name: nodes have the address of loopback
        for name, value in PATIENT.items():
            patch.setenv(f"RAY_{name}", value)
        import ray._private.ray_constants
        from ray.cluster_utils import Cluster

        # what Ray made of the variable if another test has imported it before
        patch.setattr(ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False)
        node = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80_000_000}
        made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        try:
            made.add_node(**node)
            patch.setenv("RAY_ADDRESS", made.address)
            with on_ray.connected():
                yield
        finally:
            made.shutdown()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    log = write_log(tmp_path / "log.jsonl", minutes=4, tenants=("a", "b", "c"))
    ingest([str(log)], tmp_path / "store", IngestOptions())
    return open_store(tmp_path / "store")


def test_the_bytes_are_those_of_a_local_replay(cluster: None, store: Store, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(RANK)
    config, policies = parse_config(SETTINGS, "test"), ["fcfs", "vtc", f"{tmp_path}/own.py:rank"]
    replay(store, config, policies)
    local = digest(store.path)
    for name in store.replay_names():
        store.remove_replay(name)
    told: list[tuple[int, int]] = []
    made = replay(store, config, policies, engine="ray", progress=lambda *so_far: told.append(so_far))
    assert digest(store.path) == local
    assert [one.policy for one in made] == ["fcfs", "vtc", "own.py:rank"]
    assert told
    assert all(arrived <= total == 3 * 180 for arrived, total in told)
    assert [arrived for arrived, _ in told] == sorted(arrived for arrived, _ in told)


REVIEWED = (
    scene.SETTINGS.replace("[cluster]", "[cluster]\nqueue_time_limit_ms = 8000", 1)
    + """
[retry]
attempts = 1
[policies.vtc]
"""
)


def test_a_whole_review_writes_the_files_of_a_local_one(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ingest, replays under controls, counterfactuals, page, document, tickets and state, byte by byte."""
    rows = scene.log()
    places = {}
    for engine in ("local", "ray"):
        place = places[engine] = tmp_path / engine
        place.mkdir()
        monkeypatch.chdir(place)
        (place / "fairreplay.toml").write_text(REVIEWED)
        scene.write_log(place / "prod.jsonl", rows)
        done = CliRunner().invoke(app, ["review", "prod.jsonl", "--engine", engine, "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        told = json.loads(done.stdout)
        assert told["replayed"] == ["fcfs", "vtc"]
    found = digest(places["ray"])
    assert found == digest(places["local"])
    assert any(name.startswith("fairreplay-store/replays/vtc-") for name in found)
    assert any(name.startswith("reports/") and name.endswith(".md") for name in found)
    document = json.loads((places["ray"] / "reports" / "report.json").read_bytes())
    (episode,) = document["episodes"]
    assert len(episode["verdict"]["counterfactuals"]) > 1
    assert [facts["source"] for facts in document["controls"]] == ["fcfs", "vtc"]


def test_a_worker_that_is_killed_in_mid_run_costs_time_only(
    cluster: None, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse_config(SETTINGS, "test")
    replay(store, config, ["fcfs"])
    local = digest(store.path)
    store.remove_replay(store.replay_names()[0])
    begun = tmp_path / "begun"

    def stuck(shard: Any, start_us: int, version: str, counter: Any, number: int) -> Any:
        """The engine of the second replica, which says who it is in mid-run and goes no further, but for once."""

        def watch(count: int) -> None:
            if number == 1 and not begun.exists():
                begun.with_suffix(".part").write_text(str(os.getpid()))
                begun.with_suffix(".part").rename(begun)
                time.sleep(600)

        return serve(shard, start_us, watch)

    monkeypatch.setattr(on_ray, "_serve", stuck)
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 300
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        killed.append(int(begun.read_text()))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    replay(store, config, ["fcfs"], engine="ray")
    killer.join()
    assert killed[0] != os.getpid()
    assert digest(store.path) == local


def test_an_error_of_a_worker_is_told_as_a_local_one(cluster: None, store: Store, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def rank(now_ps, waiting):\n    return now_ps // (2 - waiting)\n")
    config, policy = parse_config(SETTINGS, "test"), f"{tmp_path}/bad.py:rank"
    said = []
    for engine in ("local", "ray"):
        with pytest.raises(UsageError) as error:
            replay(store, config, [policy], engine=engine)
        said.append(str(error.value))
    assert said[0] == said[1]
    assert "rank" in said[0]
    assert store.replay_names() == []


def test_a_worker_of_another_version_is_refused(cluster: None, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "__version__", "9.9")
    with pytest.raises(UsageError, match=r"a worker has FairReplay .*, this machine 9\.9; install the same there"):
        replay(store, parse_config(SETTINGS, "test"), ["fcfs"], engine="ray")


def test_a_replica_that_is_lost_again_and_again_is_given_up(
    cluster: None, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ray, "RETRIES", 1)
    monkeypatch.setattr(on_ray, "_serve", lambda *_arguments: os._exit(1))
    with pytest.raises(ClusterError, match=r"a replica was lost 2 times \(WorkerCrashedError\)"):
        replay(store, parse_config(SETTINGS, "test"), ["fcfs"], engine="ray")


def test_without_ray_or_a_cluster_one_line_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_config(SETTINGS, "test")
    with pytest.raises(UsageError, match="unknown; did you mean 'ray'"):
        replay(store, config, ["fcfs"], engine="rays")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"Ray is not installed; pip install 'fairreplay\[ray\]'"):
        replay(store, config, ["fcfs"], engine="ray")


def test_work_of_any_kind_gives_what_threads_give(cluster: None) -> None:
    """As counterfactuals do: a closure over arrays, which it also writes to; an error of its is that of a thread."""
    kept = np.zeros(1000, np.int64)

    def work(task: int) -> int:
        if task == 7:
            raise UsageError("seven")
        own = kept.copy() if task % 2 else kept
        own[:] = task
        return int(own.sum())

    expected = [0, 1000, 2000, 3000]
    assert run_all(work, range(4), 2) == expected
    assert run_all(work, range(4), 2, "ray") == expected
    with pytest.raises(UsageError, match=r"^seven$"):
        run_all(work, [6, 7], 1, "ray")
