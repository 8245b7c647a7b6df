"""Capacity: the worked values, bounds, the shared-out table, and the search whose answer is known by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from fairreplay.config.load import parse_config
from fairreplay.config.model import Config
from fairreplay.errors import UsageError
from fairreplay.metrics import capacity as formulas
from fairreplay.metrics.options import measure_options
from fairreplay.planning import load_search
from fairreplay.planning.as_of import as_of
from fairreplay.planning.capacity import Bound, Capacity, capacity, document
from fairreplay.planning.load_search import Found, Question, Tried, largest_load, least_replicas
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import Store, open_store

# The worked values.


def test_compute_bound() -> None:
    assert formulas.compute_bound(4e14, 1.0, 1.0, 1.4e10) == pytest.approx(28571.4, abs=0.05)
    assert formulas.compute_bound(8e14, 0.5, 60.0, 1.4e10) == pytest.approx(60 * 28571.4286, abs=0.1)


def test_kv_bytes() -> None:
    assert formulas.kv_bytes_per_token(32, 32, 128, 2) == 524_288
    assert pytest.approx(4.8828, abs=5e-5) == 10_000 * 524_288 / 2**30


def test_bounds_by_hand() -> None:
    # 1 TB/s for 60 s; a decode token reads 10 GB / 50 of weights and 1,000 tokens of 131,072 B
    assert formulas.hbm_bound(1e12, 60.0, 10e9, 50, 1000, 131_072) == pytest.approx(6e13 / (2e8 + 131_072_000))
    assert formulas.residence_bound(40_000, 60.0, 12.0) == 200_000
    assert formulas.network_bound(50e9, 1.0, 131_072) == pytest.approx(381_469.7, abs=0.1)
    assert formulas.allocatable({"kv": 3.0, "hbm": 2.0, "compute": 2.0}) == (2.0, "compute")


def test_tightness() -> None:
    found = formulas.tightness({"p50": 0.2, "p90": 0.5, "p99": 1.0})
    assert found == pytest.approx({"p50": 5 / 8, "p90": 1 / 4, "p99": 1 / 8})


# One server, one request at a time, half a second each; one arrives every second.

SERVER = """
[cluster]
async_scheduling = false
enable_prefix_caching = false
max_num_seqs = 1
num_gpu_blocks = 101
[cluster.step_time]
base = 0.5
prefill_token = 0.0
decode_sequence = 0.0
context_token = 0.0
[window]
size = "0"
[defaults]
slo_ttft_ms = { p50 = 600, p90 = 600, p99 = 600 }
[tenants.acme]
committed_tokens_per_month = 3_000_000
[tenants.globex]
committed_tokens_per_month = 1_000_000
[types.chat]
floor = 0.25
"""


def stored(folder: Path, requests: int = 200) -> Store:
    """Two tenants in turn, 100 prompt tokens and one output token; every fourth is a chat."""
    second = pl.int_range(requests, eager=True)
    rows = pl.DataFrame(
        {
            "request_id": second.cast(pl.String),
            "tenant": [("acme", "globex")[at % 2] for at in second],
            "type": ["chat" if at % 4 == 0 else "batch" for at in second],
            "arrived_at": (pl.Series(second * 1_000_000 + 1_780_000_020_000_000).cast(pl.Datetime("us", "UTC"))),
            "prompt_tokens": [99] * requests,
            "output_tokens": [1] * requests,
        }
    ).with_columns(pl.col("arrived_at").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"))
    folder.mkdir(exist_ok=True)
    (folder / "log.jsonl").write_text(rows.write_ndjson(), encoding="utf-8")
    ingest([str(folder / "log.jsonl")], folder / "store", IngestOptions())
    return open_store(folder / "store")


def found(folder: Path, text: str = SERVER, window: str = "60s", load: float = 1.0, search: bool = True) -> Capacity:
    config = parse_config(text + f"[capacity]\nload = {load}\n", "fr.toml")
    options = measure_options(config, window=window, min_samples=1)
    return capacity(stored(folder), config, options, search=search)


def test_the_largest_load_and_the_replicas_by_hand(tmp_path: Path) -> None:
    """Up to twice the load nobody waits; at 201 % the queue grows by 2.5 ms a request, beyond 0.1 s."""
    (group,) = found(tmp_path, load=3.9).groups
    assert group.load is not None
    assert group.load.answer == Tried(200, 1, 1.0, group.load.answer.windows if group.load.answer else 0)
    assert [one.percent for one in group.load.tried][:3] == [100, 200, 400]
    assert {one.percent for one in group.load.tried} >= {201}
    # 3.9 times the load on two replicas: 1.95 times on each
    assert group.replicas_needed is not None
    assert group.replicas_needed.answer is not None
    assert group.replicas_needed.answer.replicas == 2
    assert [one.replicas for one in group.replicas_needed.tried] == [1, 2]


def test_bounds_table_and_headroom(tmp_path: Path) -> None:
    (group,) = found(tmp_path, search=False).groups
    bounds = {one.name: one for one in group.bounds}
    # one request of 100 tokens in each half second; its last token is never computed
    assert bounds["step_time"].tokens == pytest.approx(60 / (0.5 * 0.01))
    assert bounds["kv"].tokens == pytest.approx(100 * 16 * 60 / 0.5)
    missing = "[cluster.hardware] does not say: set flops_per_s, flops_per_token or preset"
    assert bounds["compute"] == Bound("compute", None, "all tokens", None, missing)
    assert (group.b_alloc, group.bound_by) == (bounds["step_time"].tokens, "step_time")
    assert group.b_total == bounds["step_time"].tokens
    acme, globex = group.tenants
    assert (acme.weight, globex.weight) == (0.75, 0.25)
    assert acme.allocated == pytest.approx(0.75 * group.b_alloc, rel=1e-6)
    assert acme.demand == pytest.approx(100 * 100 * 60 / 199)
    assert acme.peak == 30 * 100
    assert acme.headroom == pytest.approx(acme.allocated - acme.demand)
    assert acme.phi == pytest.approx(dict.fromkeys(("p50", "p90", "p99"), 1 / 3))
    floors = {one.type: one for one in group.types}
    assert (floors["batch"].floor, floors["chat"].floor) == (0.0, 0.25)
    assert floors["chat"].allocated >= 0.25 * group.b_alloc - 1e-3
    assert sum(cell.allocated for cell in group.table) == pytest.approx(group.b_alloc, rel=1e-6)
    assert group.load is None


def test_hardware_by_its_figures(tmp_path: Path) -> None:
    hardware = """
[cluster.hardware]
flops_per_s = 4e14
flops_per_token = 1.4e10
bytes_per_s = 1e12
weight_bytes = 10e9
kv_bytes_per_token = 131072
offload_blocks = 1000
offload_residence_s = 16
network_bytes_per_s = 50e9
"""
    text = SERVER.replace("[window]", hardware + "[window]").replace("max_num_seqs", "replicas = 2\nmax_num_seqs")
    (group,) = found(tmp_path, text, search=False).groups
    bounds = {one.name: one for one in group.bounds}
    assert bounds["compute"].tokens == pytest.approx(2 * 60 * 28571.4286, abs=1)
    assert group.b_total == bounds["compute"].tokens
    assert bounds["hbm"].limited == pytest.approx(2 * 6e13 / (10e9 + 99.5 * 131_072))
    assert bounds["hbm"].tokens == pytest.approx((bounds["hbm"].limited or 0) * 100)  # one token in 100 is decoded
    assert bounds["cpu_offload"].tokens == 2 * 1000 * 16 * 60 / 16
    assert bounds["network"].limited == pytest.approx(2 * 50e9 * 60 / 131_072)
    assert bounds["network"].tokens == pytest.approx((bounds["network"].limited or 0) / 0.99)


def test_two_pools_have_bounds_of_their_own(tmp_path: Path) -> None:
    pools = """
[cluster.disaggregated]
prefill_replicas = 2
decode_replicas = 3
kv_bytes_per_token = 131072
link_bytes_per_s = 50e9
decode_num_gpu_blocks = 51
"""
    text = SERVER.replace("[window]", pools + "[window]").replace("prefill_token = 0.0", "prefill_token = 0.01")
    (group,) = found(tmp_path, text).groups
    bounds = {one.name: one for one in group.bounds}
    assert bounds["network"].limited == pytest.approx(2 * 60 * 381_469.7, rel=1e-6)
    assert bounds["step_time"].tokens == pytest.approx(60 / (0.99 * 0.01 / 2))  # two prefill, the slower pool
    assert bounds["kv"].tokens == pytest.approx(3 * 50 * 16 * 60 / group.facts.residence_s)
    assert group.replicas == 5
    assert group.replicas_needed is not None
    assert group.replicas_needed.answer is None
    assert group.load is not None


def test_floors_beyond_the_whole_are_an_error(tmp_path: Path) -> None:
    text = SERVER + "[types.batch]\nfloor = 0.8\n"
    with pytest.raises(UsageError, match=r"add up to 1.05 of the capacity \(batch 0.8, chat 0.25\)"):
        found(tmp_path, text, search=False)


@pytest.mark.parametrize(
    ("hardware", "message"),
    [
        ("flops_per_s = 1e12\n", "flops_per_s and flops_per_token go together"),
        ("network_bytes_per_s = 1e9\n", "network_bytes_per_s needs kv_bytes_per_token"),
        ('preset = "llama-2-7b/h10"\n', "did you mean 'h100'?"),
    ],
)
def test_hardware_that_says_half_is_an_error(hardware: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config("[cluster.hardware]\n" + hardware, "fr.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_published_figures_as_hardware() -> None:
    config = parse_config('[cluster.hardware]\npreset = "llama-2-7b/2xh100"\nutilization = 0.4\n', "fr.toml")
    assert config.cluster.hardware is not None
    assert config.cluster.hardware.kv_bytes_per_token == 524_288
    assert config.cluster.hardware.flops_per_s == 2 * 989.4e12
    assert config.cluster.hardware.utilization == 0.4


def test_what_cannot_be_judged_is_said(tmp_path: Path) -> None:
    config = parse_config(SERVER, "fr.toml")
    (group,) = capacity(stored(tmp_path, 20), config, measure_options(config, window="2s")).groups
    assert group.load is not None
    assert group.load.answer is None
    assert group.load.reason is not None
    assert group.load.reason.startswith("no window has enough requests for SCR")


def test_the_same_inputs_give_the_same_document(tmp_path: Path) -> None:
    first, second = (document(found(tmp_path / name), open_store(tmp_path / name / "store")) for name in "ab")
    assert first == second
    assert list(first["groups"][0]["load"]["answer"]) == ["percent", "replicas", "scr", "windows"]


def test_another_window_or_model_is_asked_for_in_vain(tmp_path: Path) -> None:
    config = parse_config(SERVER, "fr.toml")
    store = stored(tmp_path, 20)
    with pytest.raises(UsageError, match="capacity counts tokens of a window"):
        capacity(store, config, measure_options(config, window="0"))
    with pytest.raises(UsageError, match="model 'x' is not in the period"):
        capacity(store, config, measure_options(config, window="60s"), model="x")


# The search by itself.


def question() -> Question:
    return Question(None, Config(), None, "fcfs", measure_options(Config()), {}, lambda: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [10, 11, 55, 100, 137, 1000, 6400])
def test_the_search_finds_the_last_load_that_holds(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    def run(_: Question, percent: int, replicas: int) -> Tried:
        return Tried(percent, replicas, 1.0 if percent <= limit else 0.5, 9)

    monkeypatch.setattr(load_search, "run", run)
    found = largest_load(question(), 1, 0.99)
    assert found.answer is not None
    assert limit - max(1, limit // 100) < found.answer.percent <= limit
    assert len(found.tried) <= 20


def test_the_search_says_when_it_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_search, "run", lambda _, percent, replicas: Tried(percent, replicas, 0.5, 9))
    assert largest_load(question(), 1, 0.99).reason == "SCR is below 0.99 even at 10 % of the load"
    assert least_replicas(question(), 100, 0.99).reason == "SCR is below 0.99 even with 1024 replicas"


@pytest.mark.parametrize("needed", [1, 2, 3, 5, 24, 1023, 1024])
def test_the_fewest_replicas(monkeypatch: pytest.MonkeyPatch, needed: int) -> None:
    def run(_: Question, percent: int, replicas: int) -> Tried:
        return Tried(percent, replicas, 1.0 if replicas >= needed else 0.9, 9)

    monkeypatch.setattr(load_search, "run", run)
    found: Found = least_replicas(question(), 100, 0.99)
    assert found.answer is not None
    assert found.answer.replicas == needed


def test_a_config_as_of_an_instant() -> None:
    text = """
[cluster]
num_gpu_blocks = 100
[[cluster.changes]]
at = 2026-11-02T00:00:00Z
num_gpu_blocks = 50
[[cluster.changes]]
at = 2026-11-04T00:00:00Z
num_gpu_blocks = 25
[tenants.acme]
weight = 1.0
[[tenants.acme.changes]]
at = 2026-11-01T00:00:00Z
weight = 3.0
"""
    settled = as_of(parse_config(text, "fr.toml"), datetime(2026, 11, 3, tzinfo=UTC))
    assert settled.cluster.num_gpu_blocks == 50
    assert settled.tenants["acme"].weight == 3.0
    assert settled == as_of(settled, datetime(2027, 1, 1, tzinfo=UTC))
