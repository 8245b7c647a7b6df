"""``explain`` and ``episodes`` as a user runs them: on a real log, and with hostile names."""

from __future__ import annotations

import json
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
