"""``fairreplay compare``: who is best by which metric, and what it costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fairreplay.cli.compare import compare
from fairreplay.config.load import load_config
from fairreplay.errors import UsageError
from fairreplay.report.compare import METRICS, Candidate, best
from fairreplay.sandbox.replay import find_replays
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import open_store
from tests.cli.logs import SETTINGS, write_log

SAMPLE = Path(__file__).parents[2] / "sample_traces"
app = typer.Typer()
app.command()(compare)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


def values(**given: float | None) -> dict[str, float | None]:
    return dict.fromkeys(METRICS) | given


def test_the_best_and_what_it_costs_by_hand() -> None:
    """Slow is fair: a .9, b .6. It pays with P99 3 s against 2 s (half as much again) and with 5 % refused."""
    a = Candidate("a", None, 10, True, values(scr=0.9, tfr=2.5, ttft_p99_ms=3000.0, refused_share=0.05, jfi=1.0))
    b = Candidate("b", None, 10, True, values(scr=0.6, tfr=1.0, ttft_p99_ms=2000.0, refused_share=0.0, jfi=1.0))
    log = Candidate("logged", None, 10, False, values(scr=1.0, ttft_p99_ms=1.0))
    found = {one.metric: one for one in best([log, a, b])}
    assert {metric: one.names for metric, one in found.items() if one.names} == {
        "scr": ("a",),
        "ttft_p99_ms": ("b",),
        "refused_share": ("b",),
    }  # both have TFR enough (1) and equal JFI: nobody is best
    costs = [(cost.metric, cost.value, cost.best, cost.of, cost.gap) for cost in found["scr"].costs["a"]]
    assert costs == [("ttft_p99_ms", 3000.0, 2000.0, "b", 0.5), ("refused_share", 0.05, 0.0, "b", 0.05)]
    assert [cost.metric for cost in found["ttft_p99_ms"].costs["b"]] == ["scr"]
    assert found["scr"].costs["a"][0].gap == 0.5


def test_several_may_be_best_and_the_unknown_never_is() -> None:
    one, two, three = (
        Candidate(name, "m", 1, True, values(jfi=jfi)) for name, jfi in (("x", 0.8), ("y", 0.8), ("z", None))
    )
    four = Candidate("w", "m", 1, True, values(jfi=0.5))
    found = next(entry for entry in best([one, two, three, four]) if entry.metric == "jfi")
    assert found.names == ("x", "y")


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arena")
    ingest([str(SAMPLE / "vtc_arena.fcfs.jsonl")], folder / "store", IngestOptions())
    return folder


def options(arena: Path) -> list[str]:
    return ["--store", str(arena / "store"), "--config", str(SAMPLE / "vtc_arena.toml")]


def test_policies_of_the_sample(arena: Path) -> None:
    """What the README says of the sandbox, and who wins by it; the missing replays are made and kept."""
    document = json.loads(run("fcfs", "vtc", "--json", *options(arena)).stdout)
    assert document["kind"] == "policies"
    rows = {row["name"]: row for row in document["candidates"]}
    assert list(rows) == ["logged", "fcfs", "vtc"]
    assert [rows[name]["ranked"] for name in rows] == [False, True, True]
    seconds = {name: round(rows[name]["ttft_p99_ms"] / 1000, 1) for name in rows}
    assert seconds == {"logged": 136.9, "fcfs": 133.3, "vtc": 213.2}
    winners = {entry["metric"]: entry["names"] for entry in document["best"]}
    assert winners["scr"] == winners["jfi"] == winners["ttft_p50_ms"] == ["vtc"]
    assert winners["ttft_p99_ms"] == winners["ttft_p90_ms"] == ["fcfs"]
    assert winners["refused_share"] == []
    config = load_config(SAMPLE / "vtc_arena.toml")
    assert set(find_replays(open_store(arena / "store"), config)) == {"fcfs", "vtc"}
    text = run(*options(arena)).stdout  # all that is there
    assert max(map(len, text.splitlines())) <= 100
    assert "vtc is best by SCR, JFI, TTFT P50. It costs TTFT P99 213.168 s against 133.303 s (fcfs)" in text


def test_two_configs_each_with_its_baseline(arena: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as fast a cluster: every first token is later."""
    monkeypatch.chdir(tmp_path)
    text = (SAMPLE / "vtc_arena.toml").read_text()
    (tmp_path / "now.toml").write_text(text)
    (tmp_path / "slow.toml").write_text(text.replace("[cluster]", "[cluster]\nspeed = 0.5", 1))
    document = json.loads(run("now.toml", "slow.toml", "--json", "--store", arena / "store").stdout)
    assert [row["name"] for row in document["candidates"]] == ["logged", "now.toml", "slow.toml"]
    winners = {entry["metric"]: entry["names"] for entry in document["best"]}
    assert winners["ttft_p50_ms"] == winners["scr"] == winners["tokens_per_s"] == ["now.toml"]


def test_two_periods_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SCR: minutes 1, 1/2, 1 of the first day, three whole ones of the second."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fairreplay.toml").write_text(SETTINGS)
    write_log(tmp_path / "a.jsonl", late=[1])
    write_log(tmp_path / "b.jsonl", day=1)
    ingest(["a.jsonl", "b.jsonl"], tmp_path / "fairreplay-store", IngestOptions())
    document = json.loads(run("2026-05-28..2026-05-29", "2026-05-29..", "--json").stdout)
    first, second = document["candidates"]
    assert [first["requests"], first["scr"]] == [90, pytest.approx(2.5 / 3)]
    assert [second["requests"], second["scr"]] == [90, 1.0]
    assert next(one["names"] for one in document["best"] if one["metric"] == "scr") == ["2026-05-29.."]
    text = run("2026-05-28..2026-05-29", "2026-05-29..").stdout
    assert "It costs nothing in the others." in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fcfs", "a.toml"], "of different kinds"),
        (["a.toml"], "two or more configs"),
        (["2026-05-28..2026-05-29"], "two or more periods"),
        (["vct"], "did you mean 'vtc'?"),
        (["2026..soon", "2026-05-29.."], "2026"),
        (["2026-05-28..", "2026-05-29..", "--since", "2026-05-01"], "do not go with periods"),
        (["1999-01-01..1999-01-02", "2026-05-29.."], "no request arrived in this period"),
    ],
)
def test_mistakes(arena: Path, arguments: list[str], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        run(*arguments, *options(arena))
    assert says in str(caught.value)
