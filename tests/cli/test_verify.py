"""``verify`` as a sceptic runs it."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairreplay.cli.app import app
from fairreplay.errors import BadInputError, FairReplayError, UsageError

MICRO = Path(__file__).parents[1] / "data" / "golden" / "vllm" / "micro"
NAME = "m10_preempt_fcfs"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    for path in MICRO.glob(f"{NAME}.*"):
        shutil.copy(path, tmp_path)
    return tmp_path / f"{NAME}.scenario.json"


def test_the_micro_logs_are_equal() -> None:
    result = CliRunner().invoke(app, ["verify", str(MICRO), "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    scenarios = json.loads(result.stdout)["scenarios"]
    assert len(scenarios) == 26
    assert all(one["equal"] and one["first_difference"] is None for one in scenarios)


def test_a_log_broken_in_one_number_is_exit_1_with_step_and_field(log: Path) -> None:
    steps = log.with_name(f"{NAME}.steps.jsonl.gz")
    lines = [json.loads(line) for line in gzip.decompress(steps.read_bytes()).splitlines()]
    lines[3]["free_blocks"] += 1
    steps.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    result = CliRunner().invoke(app, ["verify", str(log), "--json"])
    assert result.exit_code == 1
    (scenario,) = json.loads(result.stdout)["scenarios"]
    wanted = {
        "step": 3,
        "field": "free_blocks",
        "logged": lines[3]["free_blocks"],
        "sandbox": lines[3]["free_blocks"] - 1,
    }
    assert scenario["first_difference"] == wanted
    text = CliRunner().invoke(app, ["verify", str(log)]).stdout
    assert "0 of 1 logs equal" in text


@pytest.mark.parametrize("case", ["missing", "no log in folder", "other file", "no steps", "no json", "no key", "cut"])
def test_bad_logs(log: Path, tmp_path: Path, case: str) -> None:
    steps = log.with_name(f"{NAME}.steps.jsonl.gz")
    path = log
    wanted: type[FairReplayError] = UsageError
    if case == "missing":
        path = tmp_path / "nothing.scenario.json"
    elif case == "no log in folder":
        path = tmp_path / "empty"
        path.mkdir()
    elif case == "other file":
        path = steps
    elif case == "no steps":
        steps.unlink()
    else:
        wanted = BadInputError
        if case == "no json":
            log.write_text("{")
        elif case == "no key":
            scenario = json.loads(log.read_text())
            del scenario["scheduler"]["block_size"]
            log.write_text(json.dumps(scenario))
        else:
            steps.write_bytes(steps.read_bytes()[:-20])
    result = CliRunner().invoke(app, ["verify", str(path)])
    assert isinstance(result.exception, wanted)
    assert "\n" not in str(result.exception)
