"""``metrics`` and ``episodes`` as a user runs them, on real logs with published values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fairreplay.cli.app import app

DATA = Path(__file__).parents[1] / "data"
SLO = "[defaults]\nslo_ttft_ms = { p50 = 10_000, p90 = 30_000, p99 = 60_000 }\n"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    (tmp_path / "fr.toml").write_text(SLO)
    return tmp_path


def windows(workplace: Path, log: str, *options: object) -> list[dict[str, Any]]:
    store = workplace / "store"
    run("ingest", DATA / log, "--store", store, "--quiet")
    text = run("metrics", "--json", "--store", store, "--config", workplace / "fr.toml", *options)
    found: list[dict[str, Any]] = json.loads(text)["windows"]
    return found


@pytest.mark.parametrize(
    ("log", "refusals", "passing"),
    [
        ("FCFS.all_results_real", "miss", 7),
        ("VTC.all_results_real", "miss", 25),
        ("LShare_rpm20.all_results_real", "miss", 21),
        ("LShare_rpm20.all_results_real", "drop", 25),
    ],
)
def test_scr_of_the_arena_logs(workplace: Path, log: str, refusals: str, passing: int) -> None:
    options = ("--window", 0, "--min-samples", 1, "--refusals", refusals)
    (window,) = windows(workplace, f"vtc_arena/{log}.jsonl", *options)
    assert window["source"] == "logged"
    assert window["scr"] == pytest.approx(passing / 27, abs=1e-12)
    assert len(window["failing"]) == 27 - passing
    assert sum(tenant["pass"] for tenant in window["tenants"].values()) == passing


def test_weighted_service_of_the_overload_log(workplace: Path) -> None:
    (window,) = windows(
        workplace, "vtc_overload/WVTC.all_results_overload-weighted.jsonl", "--window", 0, "--spread", "decode",
        "--since", "1970-01-01T00:01:00Z", "--until", "1970-01-01T00:06:00Z",
    )  # fmt: skip
    served = sorted(tenant["served"] for tenant in window["tenants"].values())
    assert served == pytest.approx([40581.3, 81158.3, 121764.3, 162345.2], abs=0.1)


@pytest.mark.parametrize(("log", "index"), [("FCFS", 0.315), ("VTC", 0.315), ("LShare_rpm20", 0.455)])
def test_published_jain_index_of_tokens_served(workplace: Path, log: str, index: float) -> None:
    (workplace / "fr.toml").write_text(SLO + "[cost]\nprompt = 1\noutput = 1\n")
    (window,) = windows(workplace, f"vtc_arena/{log}.all_results_real.jsonl", "--window", 0)
    served = [tenant["served"] for tenant in window["tenants"].values()]
    assert sum(served) ** 2 / len(served) / sum(x * x for x in served) == pytest.approx(index, abs=5e-4)


def test_the_documented_keys_of_metrics(workplace: Path) -> None:
    rows = windows(workplace, "vtc_arena/FCFS.all_results_real.jsonl")
    documented = (
        "start end model source requests scr scr_weighted failing tenants_insufficient jfi jfi_raw min_x min_x_tenant "
        "service_gap tfr tfr_raw tfr_type tenants types recompute_tax"
    )
    assert set(documented.split()) <= set(rows[0])
    assert set(next(iter(rows[0]["tenants"].values()))) == {"requests", "served", "entitlement", "x", "pass"}
    assert set(next(iter(rows[0]["types"].values()))) == {"share", "floor", "ratio", "ratio_raw", "leak"}
    assert [row["start"] for row in rows] == sorted(row["start"] for row in rows)
    assert rows[0]["start"] == "1970-01-01T00:00:00.000000Z"


def test_sliding_windows_overlap_and_hold_the_tumbling_ones(workplace: Path) -> None:
    tumbling = windows(workplace, "vtc_arena/FCFS.all_results_real.jsonl")
    sliding = windows(workplace, "vtc_arena/FCFS.all_results_real.jsonl", "--hop", "20s")
    starts = [row["start"] for row in sliding]
    assert starts == sorted(starts)
    assert {start[17:19] for start in starts} == {"00", "20", "40"}
    assert [row for row in sliding if row["start"][17:19] == "00"] == tumbling
    (workplace / "fr.toml").write_text(SLO + '[window]\nhop = "20s"\n')
    assert windows(workplace, "vtc_arena/FCFS.all_results_real.jsonl") == sliding


def test_episodes_of_the_fcfs_log(workplace: Path) -> None:
    store = workplace / "store"
    run("ingest", DATA / "vtc_arena/FCFS.all_results_real.jsonl", "--store", store, "--quiet")
    text = run("episodes", "--json", "--store", store, "--config", workplace / "fr.toml")
    (episode,) = json.loads(text)["episodes"]
    documented = (
        "id start end source model metrics tenants types cause shares by_metric confidence reason signatures "
        "recommendation"
    )
    assert set(documented.split()) <= set(episode)
    # the default cluster is nothing like the one behind this log, so the log alone says why
    assert (episode["cause"], episode["shares"], episode["source"]) == ("burst", None, "logged")
    assert "rests on the log alone" in episode["reason"]
    assert (episode["start"][11:16], episode["end"][11:16]) == ("00:02", "00:11")
    assert episode["metrics"]["scr"] == 0
    table = run("episodes", "--store", store, "--config", workplace / "fr.toml")
    assert episode["id"] in table
    assert max(map(len, table.splitlines()[:3])) <= 100
    table = run("metrics", "--store", store, "--config", workplace / "fr.toml")
    assert max(map(len, table.splitlines())) <= 100


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--window", "60"), "--window '60'"),
        (("--refusals", "maybe"), "--refusals 'maybe'"),
        (("--spread", "even"), "--spread 'even'"),
        (("--min-samples", "1", "--strict-samples"), "does not go with"),
        (("--since", "yesterday"), "--since 'yesterday'"),
        (("--hop", "7s"), "--hop '7s': must be a whole part of the window's size, 60 s"),
        (("--window", "0", "--hop", "1s"), "--hop '1s'"),
    ],
)
def test_a_wrong_option_is_named(workplace: Path, options: tuple[str, ...], says: str) -> None:
    store = workplace / "store"
    run("ingest", DATA / "vtc_arena/FCFS.all_results_real.jsonl", "--store", store, "--quiet")
    result = CliRunner().invoke(app, ["metrics", "--store", str(store), *options])
    assert says in str(result.exception)
    assert getattr(result.exception, "exit_code", None) == 2
