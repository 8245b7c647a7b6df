"""Replays in the store: what is written, what is found again, and the real system that the sandbox must predict."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import pytest
from scipy.stats import spearmanr

from fairreplay.config.load import load_config, parse_config
from fairreplay.config.model import Config
from fairreplay.errors import UsageError
from fairreplay.sandbox import reference
from fairreplay.sandbox import replay as replay_module
from fairreplay.sandbox import served as served_module
from fairreplay.sandbox.engine import NEVER
from fairreplay.sandbox.plan import shards, take_load
from fairreplay.sandbox.replay import find_replays, replay, run_shards
from fairreplay.store import store as store_module
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.outcomes import outcome
from fairreplay.store.store import Store, open_store
from tests.sandbox.frames import canonical

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

PLAIN = """
    [cluster]
    async_scheduling = false
    enable_prefix_caching = false
    num_gpu_blocks = 11
    [cluster.step_time]
    base = 1.0
    prefill_token = 0.0
    decode_sequence = 0.0
    context_token = 0.0
    """
"""One second a step, ten usable blocks of 16 tokens."""


def config(text: str = PLAIN) -> Config:
    return parse_config(text, "test.toml")


def native(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def logged(number: int, **keys: Any) -> dict[str, Any]:
    row = {
        "request_id": f"r{number}",
        "tenant": f"t{number % 3}",
        "arrived_at": (EPOCH + timedelta(seconds=number)).isoformat(),
        "prompt_tokens": 20 + number,
        "output_tokens": 5,
        "status": "ok",
    }
    return row | keys


@pytest.fixture
def store(tmp_path: Path) -> Store:
    log = native(tmp_path / "log.jsonl", [logged(number) for number in range(12)])
    ingest([str(log)], tmp_path / "store", IngestOptions())
    return open_store(tmp_path / "store")


def test_one_request_by_hand() -> None:
    load = take_load(canonical([{"arrived_at": 100.25, "prompt_tokens": 20, "output_tokens": 3, "tenant": "a"}]))
    done = run_shards(load, shards(load, config(), "fcfs"))
    (row,) = done.requests.to_dicts()
    assert row == {
        "request_id": "r0",
        "replica": "0",
        "scheduled_at": EPOCH + timedelta(seconds=100.25),
        "first_token_at": EPOCH + timedelta(seconds=101.25),
        "finished_at": EPOCH + timedelta(seconds=103.25),
        "status": "ok",
        "reason": "",
        "preemptions": 0,
        "recomputed_tokens": 0,
        "cached_tokens": 0,
        "computed_tokens": 22,  # the last sampled token is never computed
    }
    columns = ("second", "class", "steps", "batch_tokens", "kv_used_blocks", "preemptions", "waiting")
    assert done.steps.select(columns).rows() == [
        (100, "prefill", 1, 20, 2.0, 0, 0.0),
        (101, "decode", 1, 1, 2.0, 0, 0.0),
        (102, "decode", 1, 1, 2.0, 0, 0.0),
    ]


def test_instants_are_rounded_down_to_microseconds() -> None:
    load = take_load(canonical([{"output_tokens": 1}]))
    quick = config(PLAIN.replace("base = 1.0", "base = 1.999999e-6"))
    done = run_shards(load, shards(load, quick, "fcfs"))
    assert done.requests["first_token_at"].to_physical().to_list() == [1]


def test_a_prompt_that_never_fits_is_refused_with_its_reason() -> None:
    load = take_load(canonical([{"prompt_tokens": 161}, {"prompt_tokens": 159}]))
    done = run_shards(load, shards(load, config(), "fcfs"))
    assert done.requests.select("status", "reason").rows() == [("rejected", "never_fits"), ("ok", "")]
    assert done.requests["first_token_at"].null_count() == 1


def test_rows_come_back_in_the_traces_order_over_models_and_replicas() -> None:
    rows = [{"arrived_at": number, "model": f"m{number % 2}"} for number in range(9)]
    load = take_load(canonical(rows))
    two = config(PLAIN.replace("[cluster]", "[cluster]\nreplicas = 2", 1))
    done = run_shards(load, shards(load, two, "fcfs"))
    assert done.requests["request_id"].to_list() == [f"r{number}" for number in range(9)]
    assert done.requests["replica"].to_list() == ["0", "0", "1", "1", "0", "0", "1", "1", "0"]
    groups = done.steps.select("model", "replica").unique().sort("model", "replica").rows()
    assert groups == [("m0", "0"), ("m0", "1"), ("m1", "0"), ("m1", "1")]


def test_steps_add_up_to_the_tokens_computed() -> None:
    rows = [{"arrived_at": number / 4, "prompt_tokens": 30 + number, "output_tokens": 20} for number in range(10)]
    load = take_load(canonical(rows))
    done = run_shards(load, shards(load, config(), "fcfs"))
    assert done.requests["preemptions"].sum() > 0
    assert done.steps["batch_tokens"].sum() == done.requests["computed_tokens"].sum()
    assert done.steps["preemptions"].sum() == done.requests["preemptions"].sum()
    assert done.steps["kv_used_blocks"].max() <= 10  # type: ignore[operator]


def test_a_replay_is_written_and_summed_up(store: Store) -> None:
    summaries = replay(store, config(), ["fcfs", "vtc", "fcfs"])
    assert [summary.policy for summary in summaries] == ["fcfs", "vtc"]
    assert store.replay_names() == sorted(summary.name for summary in summaries)
    first = summaries[0]
    assert (first.requests, first.ok, first.rejected, first.left_out) == (12, 12, 0, 0)
    rows = store.replay_requests(first.name)
    assert rows["request_id"].to_list() == [f"r{number}" for number in range(12)]
    ttft = sorted((rows["first_token_at"] - outcome(store, "logged")["arrived_at"]).dt.total_milliseconds().to_list())
    assert first.ttft_ms == {"p50": ttft[5], "p90": ttft[10], "p99": ttft[11]}
    end_s = rows["finished_at"].to_physical().max() / 1e6  # type: ignore[operator]
    assert first.tokens_per_s == pytest.approx((sum(range(20, 32)) + 12 * 5) / end_s)
    meta = store.replay_meta(first.name)
    assert (meta["policy"], meta["is_baseline"], meta["requests"]) == ("fcfs", True, 12)
    assert not any("_s" in key for key in meta), "no wall clock in the store"


def test_only_replays_of_this_config_content_and_period_are_found(store: Store, tmp_path: Path) -> None:
    begin = EPOCH + timedelta(seconds=6)
    replay(store, config(), ["vtc", "fcfs"])
    found = find_replays(store, config())
    assert list(found) == ["fcfs", "vtc"], "the baseline first"
    slo = config(PLAIN + "[defaults]\nslo_ttft_ms = { p50 = 1, p90 = 2, p99 = 3 }")
    assert find_replays(store, slo) == found, "an SLO decides nothing in the sandbox"
    for other in (
        PLAIN.replace("11", "12"),
        PLAIN.replace("base = 1.0", "base = 1.5"),
        PLAIN + "[[cluster.changes]]\nat = 1970-01-01T00:00:05Z\nmax_num_seqs = 2",
        PLAIN + "[tenants.t1]\nweight = 3.0",
    ):
        assert find_replays(store, config(other)) == {}
    assert find_replays(store, config(PLAIN + "[policies.vtc]\nlift = false")) == {"fcfs": found["fcfs"]}
    assert find_replays(store, config(), since=begin) == {}
    replay(store, config(), ["fcfs"], since=begin)
    assert list(find_replays(store, config(), since=begin)) == ["fcfs"]
    assert find_replays(store, config()) == found
    more = native(tmp_path / "more.jsonl", [logged(40)])
    ingest([str(more)], store.path, IngestOptions())
    assert find_replays(open_store(store.path), config()) == {}, "the store holds other requests now"


def test_an_unknown_policy_writes_nothing(store: Store) -> None:
    with pytest.raises(UsageError, match="unknown"):
        replay(store, config(), ["fcfs", "fcsf"])
    assert store.replay_names() == []


def test_same_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    rows = [logged(number, model=f"m{number % 2}", session_id=f"s{number % 5}", type="chat") for number in range(60)]
    log = native(tmp_path / "log.jsonl", rows)
    (tmp_path / "c.toml").write_text(
        PLAIN.replace("[cluster]", '[cluster]\nreplicas = 2\nplacement = "session"', 1)
        + "[tenants.t0]\nweight = 3.0\n[weights]\nrule = 'static'\n"
    )
    script = (
        "import sys; from pathlib import Path\n"
        "from fairreplay.config.load import load_config; from fairreplay.sandbox.replay import replay\n"
        "from fairreplay.store.ingest import IngestOptions, ingest; from fairreplay.store.store import open_store\n"
        "log, toml, store = sys.argv[1:]\n"
        "ingest([log], Path(store), IngestOptions())\n"
        "replay(open_store(Path(store)), load_config(Path(toml)), ['fcfs', 'vtc', 'sjf'])\n"
    )
    contents = []
    for seed in ("0", "1"):
        folder = tmp_path / f"store{seed}"
        subprocess.run(
            [sys.executable, "-c", script, str(log), str(tmp_path / "c.toml"), str(folder)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=ROOT,
            check=True,
        )
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
        contents.append({str(path.relative_to(folder)): path.read_bytes() for path in files})
    assert len(contents[0]) == 2 + 3 * 3
    assert contents[0] == contents[1]


# The real system: 1,500 requests of 27 tenants, served by S-LoRA under FCFS and again under VTC. The settings come from
# the FCFS log alone (sample_traces/README.md); the VTC log is what the sandbox must predict.


def quantile(ttft_s: np.ndarray[Any, Any], q: int) -> float:
    return float(np.sort(ttft_s)[(q * len(ttft_s) + 99) // 100 - 1])


def compliant(ttft_s: np.ndarray[Any, Any], tenants: np.ndarray[Any, Any]) -> int:
    """Tenants whose nearest-rank P50/P90/P99 are within 10/30/60 s."""
    return sum(
        all(quantile(ttft_s[tenants == name], q) <= slo for q, slo in ((50, 10), (90, 30), (99, 60)))
        for name in np.unique(tenants)
    )


def medians(ttft_s: np.ndarray[Any, Any], tenants: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.array([quantile(ttft_s[tenants == name], 50) for name in np.unique(tenants)])


def ttft(frame: pl.DataFrame) -> np.ndarray[Any, Any]:
    return (frame["first_token_at"] - frame["arrived_at"]).dt.total_microseconds().to_numpy() / 1e6


def test_the_sandbox_reproduces_the_fcfs_log_and_predicts_the_vtc_log(tmp_path: Path) -> None:
    settings = load_config(ROOT / "sample_traces/vtc_arena.toml")
    ingest([str(ROOT / "sample_traces/vtc_arena.fcfs.jsonl")], tmp_path / "fcfs", IngestOptions())
    ingest([str(DATA / "vtc_arena/VTC.all_results_real.jsonl")], tmp_path / "vtc", IngestOptions())
    store = open_store(tmp_path / "fcfs")
    log = outcome(store, "logged")
    unseen = outcome(open_store(tmp_path / "vtc"), "logged")
    tenants = log["tenant"].to_numpy()
    assert unseen["tenant"].to_list() == log["tenant"].to_list()
    names = {summary.policy: summary.name for summary in replay(store, settings, ["fcfs", "vtc"])}
    fcfs, vtc = ttft(outcome(store, names["fcfs"])), ttft(outcome(store, names["vtc"]))

    assert compliant(ttft(log), tenants) == 7
    assert abs(compliant(fcfs, tenants) - 7) <= 1
    for q, real in ((50, 39.07), (90, 112.76), (99, 136.94)):
        assert quantile(fcfs, q) == pytest.approx(real, rel=0.05)

    assert compliant(ttft(unseen), tenants) == 25
    assert abs(compliant(vtc, tenants) - 25) <= 1
    for q, real in ((90, 148.4), (99, 211.5)):
        assert quantile(vtc, q) == pytest.approx(real, rel=0.05)
    predicted = medians(vtc, tenants) - medians(fcfs, tenants)
    happened = medians(ttft(unseen), tenants) - medians(ttft(log), tenants)
    assert spearmanr(predicted, happened)[0] >= 0.95


# Large loads: block by block.


@pytest.mark.parametrize("overlap", [False, True])
def test_a_large_load_is_written_block_by_block_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    """Three sources, refusals among them, a part of the period, several replicas and models."""
    for source in range(3):
        rows = [
            logged(number, model=f"m{number % 2}")
            | {"request_id": f"{source}-{number}", "status": "rejected" if number % 7 == 0 else "ok"}
            | {"arrived_at": (EPOCH + timedelta(seconds=number + source * (20 if overlap else 100))).isoformat()}
            for number in range(90)
        ]
        ingest([str(native(tmp_path / f"{source}.jsonl", rows))], tmp_path / "store", IngestOptions())
    store = open_store(tmp_path / "store")
    settings = config(PLAIN.replace("[cluster]", "[cluster]\nreplicas = 2", 1))
    since, until = EPOCH + timedelta(seconds=13), EPOCH + timedelta(seconds=95 if overlap else 261)
    contents: list[dict[str, bytes]] = []
    totals = []
    for rows_at_once in (1 << 20, 32):
        for module in (store_module, replay_module, served_module):
            monkeypatch.setattr(module, "BLOCK_ROWS", rows_at_once)
        for module in (store_module, replay_module):
            monkeypatch.setattr(module, "LARGE_ROWS", rows_at_once)
        (summary,) = replay(store, settings, ["fcfs"], since, until)
        folder = store.path / "replays" / summary.name
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
        totals.append((summary.requests, summary.left_out, summary.ttft_ms, summary.tokens_per_s))
    assert contents[0] == contents[1]
    assert totals[0] == totals[1]
    assert totals[0][1] > 0
    taken = outcome(store, summary.name, since, until)
    assert (
        taken["request_id"].to_list()
        == store.requests(since, until).filter(pl.col("status") != "rejected")["request_id"].to_list()
    )


def test_many_step_sums_are_written_as_they_come(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    four = config(PLAIN.replace("[cluster]", "[cluster]\nreplicas = 4", 1))
    (summary,) = replay(store, four, ["fcfs"])
    whole = store.replay_steps(summary.name)
    monkeypatch.setattr("fairreplay.store.replays.STEPS_AT_ONCE", 5)
    replay(store, four, ["fcfs"])
    assert store.replay_steps(summary.name).equals(whole)
    assert store.faults() == []


def test_times_beyond_32_bits_of_microseconds() -> None:
    """One request waits for more than 71 minutes: its replica's times are held in 64 bits, another's in 32."""
    rows = [{"arrived_at": 0, "prompt_tokens": 20, "output_tokens": 5000} for _ in range(3)]
    load = take_load(canonical([*rows, {"arrived_at": 0, "prompt_tokens": 20_000, "output_tokens": 1}]))
    for replicas in (1, 2, 4):
        table = f"[cluster]\nreplicas = {replicas}\nmax_num_seqs = 1"
        slow = config(PLAIN.replace("[cluster]", table, 1).replace("num_gpu_blocks = 11", "num_gpu_blocks = 1000"))
        done = run_shards(load, shards(load, slow, "fcfs")).requests
        for shard in shards(load, slow, "fcfs"):
            result = reference.run(shard.workload, shard.plan)
            for name in ("scheduled", "first_token", "finished"):
                ps = getattr(result, f"{name}_ps")
                expected = [None if at == NEVER else int(at) // 1_000_000 for at in ps]
                assert done[f"{name}_at"].to_physical().gather(shard.rows).to_list() == expected
        assert (done["status"] == "rejected").sum() == 1
