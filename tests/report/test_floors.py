"""A starvation incident replayed with floors: every type gets its share, and the report says what the others paid."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from fairreplay.cli.app import app
from fairreplay.report import text

POLICY = "type-priority"
# hard floors are parts of window_tokens, below: no more than what the replica serves in a window of the incident
STARVED, AHEAD = ("long", "batch"), ("embed", "chat", "completion")
FLOORS = "".join(f"\n[types.{kind}]\nfloor = {0.15 if kind in STARVED else 0.1}\n" for kind in (*STARVED, *AHEAD))


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | None], tuple[list[float], dict[str, Any]]]:
    """By floor mode: TFR of the incident's windows, and the report's rows of types, under the policy that starves."""
    folder = tmp_path_factory.mktemp("starvation")
    run("synth", "-o", folder / "made", "--seed", 3, "--duration", "1h", "--incident", "starvation", "--quiet")
    made = (folder / "made" / "fairreplay.toml").read_text()
    label = json.loads((folder / "made" / "labels.json").read_text())["incidents"][0]
    place = ("--store", folder / "store")
    run("ingest", folder / "made" / "trace.parquet", *place, "--quiet")

    def under(mode: str | None) -> tuple[list[float], dict[str, Any]]:
        config = folder / f"{mode}.toml"
        enforced = "" if mode is None else f'\n[floor]\nenforce = "{mode}"\nwindow_tokens = 60_000\n'
        config.write_text(made + FLOORS + enforced)
        run("replay", *place, "--config", config, "--policy", POLICY, "--quiet")
        windows = json.loads(run("metrics", *place, "--config", config, "--json"))["windows"]
        incident = [one["tfr"] for one in windows if one["source"] == POLICY and in_incident(one["start"])]
        run("report", *place, "--config", config, "-o", folder / f"report-{mode}", "--quiet")
        document = json.loads((folder / f"report-{mode}" / "report.json").read_text())
        rows = {
            row["type"]: next(side for side in row["under"] if side["source"] == POLICY) for row in document["types"]
        }
        page = (folder / f"report-{mode}" / "report.html").read_text()
        for row in rows.values():
            assert f"<td>{text.seconds(row['ttft_ms']['p90'])}</td>" in page
        return incident, rows

    def in_incident(start: str) -> bool:
        return bool(label["start"][:16] < start[:16].replace(" ", "T") < label["end"][:16])

    return under


def test_floors_end_a_starvation_and_the_report_says_what_others_paid(
    replayed: Callable[[str | None], tuple[list[float], dict[str, Any]]],
) -> None:
    before, starved = replayed(None)
    assert len(before) >= 8
    assert max(before) < 0.1
    for mode in ("soft", "hard"):
        tfr, rows = replayed(mode)
        assert min(tfr) > 0.9, mode
        for kind in STARVED:
            assert starved[kind]["windows_below"] >= 8
            assert rows[kind]["windows_below"] == 0
            assert rows[kind]["leak_tokens"] < starved[kind]["leak_tokens"] / 20
            assert rows[kind]["ttft_ms"]["p99"] < starved[kind]["ttft_ms"]["p99"]
        # the bill of the types that had gone before all others
        assert rows["chat"]["ttft_ms"]["p90"] > 2 * starved["chat"]["ttft_ms"]["p90"]
