"""``fairreplay evaluate`` as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fairreplay.cli.evaluate import evaluate
from fairreplay.errors import UsageError

app = typer.Typer()
app.command()(evaluate)
FEW = ["--seed", "4", "-n", "5"]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("--json", "-q", *FEW).stdout)
    return found


def test_the_document_adds_up(document: dict[str, Any]) -> None:
    assert (document["seed"], document["incidents"], document["sandbox_error"]) == (4, 5, 0.0)
    assert document["families"] == {"pair": 1, "quiet": 1, "single": 3}
    cases = document["cases"]
    assert [case["number"] for case in cases] == list(range(5))
    for metric in ("scr", "jfi", "tfr"):
        hit = [case for case in cases if case["family"] == "single" and metric in case["truth"]]
        right = [case for case in hit if case["named"][metric] in case["truth"][metric]["right"]]
        cells = document["confusion"][metric]
        assert sum(sum(row.values()) for row in cells.values()) == len(hit)
        assert sum(row.get(true, 0) for true, row in cells.items()) == len(right)
        assert (document["top1"][metric]["right"], document["top1"][metric]["of"]) == (len(right), len(hit))
    assert document["delay_s"]["incidents"] == sum(bool(case["truth"]) for case in cases)


def test_the_causes_of_a_handful_are_right(document: dict[str, Any]) -> None:
    assert document["top1"]["scr"]["of"] >= 2
    assert document["top1"]["scr"]["rate"] == 1.0
    assert document["periods"]["rate"] == 1.0


def test_same_cases_whatever_the_hash_seed_and_the_jobs(document: dict[str, Any]) -> None:
    command = "from fairreplay.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, "evaluate", "--json", "-q", "--seed", "4", "-n", "2", "--jobs", "2"],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        check=True,
        capture_output=True,
    )
    assert json.loads(done.stdout)["cases"] == document["cases"][:2]


def test_text_shows_a_matrix_and_the_goals() -> None:
    done = run("--seed", "4", "-n", "1")
    assert done.exit_code == 0
    assert "SCR: true \\ named" in done.stdout
    assert ">= 0.95" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_a_wrong_number_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"--sandbox-error 1\.5: must be 0 to 0\.9"):
        run("--sandbox-error", "1.5")
