"""``explain`` and ``episodes`` as a user runs them: on a real log, and with hostile names."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fairreplay.causes.counterfactual import recompute
from fairreplay.cli.app import app
from fairreplay.cli.explain import pick
from fairreplay.config.load import load_config
from fairreplay.errors import UsageError
from fairreplay.store.store import open_store
from tests.causes.scenes import ONE_BY_ONE, SLO, asked, config, found, served

ARENA = Path(__file__).parents[2] / "sample_traces"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    store = tmp_path_factory.mktemp("arena") / "store"
    run("ingest", ARENA / "vtc_arena.fcfs.jsonl", "--store", store, "--quiet")
    return ("--store", store, "--config", ARENA / "vtc_arena.toml")


def test_the_arena_names_who_flooded_the_queue(arena: tuple[object, ...]) -> None:
    """Four tenants send 15 to 75 times what they sent in the first minutes; under vtc the others would be in time."""
    (episode,) = json.loads(run("episodes", "--json", *arena))["episodes"]
    assert (episode["cause"], episode["confidence"]) == ("burst", "high")
    assert episode["by_metric"]["scr"]["cause"] == episode["by_metric"]["jfi"]["cause"] == "burst"
    flooders = episode["signatures"]["burst"]["tenants"]
    assert sorted(name.rpartition("-")[2] for name in flooders) == ["10", "20", "3", "4"]
    assert flooders[0] in episode["reason"]
    assert sum(episode["shares"].values()) == pytest.approx(1, abs=1e-9)
    assert episode["recommendation"].startswith("Share the cluster among tenants (vtc)")


def test_the_explanation_in_the_terminal(arena: tuple[object, ...]) -> None:
    text = run("explain", "ep-e79b", *arena)
    assert "Tenant dummy-lora-7b-rank-8-10 sent 74.6x its usual requests" in text
    assert "Cause: burst, confidence high" in text
    assert "preemption_thrash: the log has no preemption counts" in text
    assert "Recommended against burst: Share the cluster among tenants (vtc)" in text
    assert max(len(line) for line in text.splitlines() if line.startswith(("-", "burst  ", "SCR"))) <= 100


def mean_change_of_the_real_logs(since_s: float, until_s: float) -> dict[str, float]:
    """By tenant: mean TTFT of the real VTC run minus that of the FCFS run, over the arrivals of a span."""
    runs = []
    for policy in ("fcfs", "vtc"):
        rows = json.loads((ARENA / f"vtc_arena.{policy}.jsonl").read_text())["result"]["responses"]
        runs.append(sorted(rows, key=lambda row: (row["req_time"], row["adapter_dir"])))
    changes: dict[str, list[float]] = {}
    for before, after in zip(*runs, strict=True):
        assert (before["adapter_dir"], before["req_time"]) == (after["adapter_dir"], after["req_time"])
        if since_s <= before["req_time"] < until_s:
            later = after["first_token_latency"] - before["first_token_latency"]
            changes.setdefault(before["adapter_dir"], []).append(later)
    return {tenant: sum(some) / len(some) for tenant, some in changes.items()}


def test_who_would_gain_and_who_would_pay(tmp_path: Path) -> None:
    """Under vtc whoever flooded the queue most waits longer, and those who stood behind do not."""
    store = tmp_path / "store"
    place = ("--store", store, "--config", ARENA / "vtc_arena.toml")
    run("ingest", ARENA / "vtc_arena.fcfs.jsonl", "--store", store, "--quiet")
    run("replay", "--policy", "vtc", "--quiet", *place)
    told = json.loads(run("explain", "ep-e79b", "--json", *place))
    (vtc,) = told["differences"]
    assert (vtc["production"], vtc["policy"], vtc["simulated"]) == ("logged", "vtc", False)
    # the same by hand: means over the requests that arrived in the episode
    opened = open_store(store)
    (name,) = opened.replay_names()
    start, end = (datetime.fromisoformat(told["episode"][key]) for key in ("start", "end"))
    production = {row["request_id"]: row for row in opened.requests(start, end).to_dicts()}
    replayed = {row["request_id"]: row for row in opened.replay_requests(name).to_dicts()}
    changes: dict[str, list[float]] = {}
    for request, row in production.items():
        later = (replayed[request]["first_token_at"] - row["first_token_at"]).total_seconds()
        changes.setdefault(row["tenant"], []).append(later)
    means = {tenant: sum(some) / len(some) for tenant, some in changes.items()}
    assert vtc["requests"] == len(production)
    for row in vtc["tenants"]:
        assert row["ttft_mean_change_us"] / 1e6 == pytest.approx(means[row["tenant"]], abs=1e-6)
    assert max(means, key=means.__getitem__) == told["episode"]["signatures"]["burst"]["tenants"][0]
    # and a real VTC scheduler, which served the same requests, made the same two pay, within three seconds
    real = mean_change_of_the_real_logs(120, 660)
    assert {name for name, mean in means.items() if mean > 0} == {name for name, mean in real.items() if mean > 0}
    assert all(abs(means[name] - mean) < 3 for name, mean in real.items() if mean > 0)
    text = run("explain", "ep-e79b", *place)
    assert f"Under vtc against logged: {len(production)} requests that both hold" in text
    lines = [line for line in text.splitlines() if line.startswith(("gains  ", "pays   "))]
    gainer, payer = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    assert lines[0].split()[1] == gainer
    assert next(line for line in lines if line.startswith("pays")).split()[1] == payer
    assert max(map(len, lines)) <= 100


def test_explain_as_json_and_markdown(arena: tuple[object, ...], tmp_path: Path) -> None:
    told = json.loads(run("explain", "e79b0afe13", "--json", "-o", tmp_path / "new", *arena))
    assert told["episode"]["id"] == told["verdict"]["episode"] == "ep-e79b0afe13"
    assert [one["without"] for one in told["verdict"]["counterfactuals"]] == [
        [],
        ["burst"],
        ["burst", "capacity_shortfall"],
    ]
    assert told["verdict"]["counterfactuals"][1]["inputs"]["interventions"][0]["kind"] == "thin"
    written = (tmp_path / "new" / "episode-ep-e79b0afe13.md").read_text()
    assert "`dummy-lora-7b-rank-8-10`" in written
    run("explain", "ep-e79b", "-o", tmp_path / "mine.md", "--quiet", *arena)
    assert (tmp_path / "mine.md").read_text() == written


def test_each_counterfactual_of_the_report_can_be_replayed(arena: tuple[object, ...], tmp_path: Path) -> None:
    run("report", "-o", tmp_path / "report.html", "--quiet", *arena)
    document = json.loads((tmp_path / "report.json").read_text())
    verdict = document["episodes"][0]["verdict"]
    store, config = open_store(Path(str(arena[1]))), load_config(Path(str(arena[3])))
    assert len(verdict["counterfactuals"]) == 3
    for told in verdict["counterfactuals"]:
        assert recompute(told["inputs"], store, config).deficits == pytest.approx(told["deficits"], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [("ep-e79b0afe14", "did you mean 'ep-e79b0afe13'"), ("nonsense", "unknown")],
)
def test_an_unknown_episode_names_the_nearest(arena: tuple[object, ...], name: str, message: str) -> None:
    result = CliRunner().invoke(app, ["explain", name, *map(str, arena)])
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)


def test_an_id_may_be_short_but_not_ambiguous() -> None:
    calm = [{"first": 0, "last": 60, "rate": 40, "tenant": tenant} for tenant in "ab"]
    bursts = [{"first": at, "last": at + 3, "rate": 300, "tenant": "b"} for at in (10, 40)]
    episodes, _, _ = found(served(asked(*calm, *bursts), config()), config())
    assert len(episodes) == 2
    assert pick(episodes, episodes[1].id[:8]) is episodes[1]
    with pytest.raises(UsageError, match="could be any of"):
        pick(episodes, "ep-")
    with pytest.raises(UsageError, match="no episode in this period"):
        pick([], "ep-1")


def test_a_hostile_tenant_prints_as_text(tmp_path: Path) -> None:
    name = "\x1b[31m[/x]\n`rm -rf`|<img src=x>"
    calm: list[dict[str, Any]] = [{"first": 0, "last": 30, "rate": 40, "tenant": tenant} for tenant in "ab"]
    log = served(asked(*calm, {"first": 20, "last": 23, "rate": 400, "tenant": name}), config())
    log.write_parquet(tmp_path / "log.parquet")
    (tmp_path / "fr.toml").write_text(ONE_BY_ONE + SLO)
    where = ("--store", tmp_path / "store", "--config", tmp_path / "fr.toml")
    run("ingest", tmp_path / "log.parquet", "--store", tmp_path / "store", "--quiet")
    text = run("explain", "ep-", *where)
    assert "\x1b" not in text
    assert "Tenant \\u001b[31m[/x]\\u000a`rm -rf`|<img src=x> sent" in text
