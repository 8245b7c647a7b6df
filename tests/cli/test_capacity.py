"""``fairreplay capacity`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairreplay.store.ingest import IngestOptions, ingest
from tests.cli.logs import SETTINGS, fairreplay, write_log

HOSTILE = "[/x]\u202e"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("capacity")
    (folder / "fairreplay.toml").write_text(SETTINGS)
    write_log(folder / "a.jsonl", tenants=["calm", HOSTILE])
    ingest([str(folder / "a.jsonl")], folder / "fairreplay-store", IngestOptions())
    return folder


def test_the_tables_fit_and_hostile_names_are_shown(place: Path) -> None:
    done = fairreplay("capacity", "--load", "2", "--min-samples", "1", cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 replica can deliver ")
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "[/x]\\u202e" in done.stdout
    assert "The largest load with SCR of at least 0.99 under fcfs: " in done.stdout
    assert "Replicas that 2 times the load needs: 1 (SCR 1.0000)." in done.stdout
    assert "a load of x: the same requests in the same order" in done.stderr


def test_json_is_the_same_bytes_every_time(place: Path) -> None:
    arguments = ("capacity", "--min-samples", "1", "--scr", "0.9", "--json")
    first, second = (fairreplay(*arguments, cwd=place, env={"PYTHONHASHSEED": seed}) for seed in "01")
    assert first.stdout == second.stdout
    document = json.loads(first.stdout)
    assert list(document) == [
        "store_digest",
        "since",
        "until",
        "window_s",
        "policy",
        "scr_target",
        "load_target",
        "assumed_slo",
        "assumptions",
        "costs",
        "groups",
    ]
    (group,) = document["groups"]
    assert document["scr_target"] == 0.9
    assert [one["name"] for one in group["bounds"]] == ["compute", "step_time", "hbm", "kv", "cpu_offload", "network"]
    assert sum(one["allocated"] for one in group["tenants"]) == pytest.approx(group["b_alloc"])
    assert group["load"]["answer"]["scr"] >= 0.9


def test_without_the_search_nothing_is_asked_of_other_loads(place: Path) -> None:
    done = fairreplay("capacity", "--no-search", cwd=place)
    assert done.returncode == 0
    assert "largest load" not in done.stdout
    assert json.loads(fairreplay("capacity", "--no-search", "--json", cwd=place).stdout)["groups"][0]["load"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "vct"], "policy 'vct' is unknown; did you mean 'vtc'?"),
        (["--model", "x"], "model 'x' is not in the period"),
        (["--window", "0"], "capacity counts tokens of a window"),
        (["--since", "2030-01-01"], "the store holds no requests in this period"),
    ],
)
def test_mistakes_are_one_line(place: Path, arguments: list[str], message: str) -> None:
    done = fairreplay("capacity", *arguments, cwd=place)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_document_goes_into_a_report(place: Path) -> None:
    done = fairreplay("capacity", "--no-search", "-o", "capacity.json", cwd=place)
    assert done.returncode == 0
    assert "written: capacity.json" in done.stderr
    assert (place / "capacity.json").read_text() == fairreplay("capacity", "--no-search", "--json", cwd=place).stdout
    done = fairreplay("report", "--capacity", "capacity.json", "-o", "out.html", cwd=place)
    assert done.returncode == 0, done.stderr
    assert json.loads((place / "out.json").read_text())["capacity"] == json.loads((place / "capacity.json").read_text())
    assert '<section id="capacity"' in (place / "out.html").read_text(encoding="utf-8")
    done = fairreplay("capacity", "-o", "nowhere/capacity.json", cwd=place)
    assert (done.returncode, done.stderr) == (2, "fairreplay: -o nowhere/capacity.json: there is no folder nowhere\n")
