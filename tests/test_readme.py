"""The README's promises: its commands run, its tables name what exists."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairreplay.cli.evaluate import rates, summary
from fairreplay.cli.fail_on import FAILED
from fairreplay.cli.verify import DIFFERENT
from fairreplay.config.load import load_config, parse_config
from fairreplay.errors import BadInputError, ClusterError, FairReplayError, StoreBusyError, StoreError, UsageError
from fairreplay.sandbox.policies import POLICIES
from fairreplay.sandbox.policies.user import HEAD_FIELDS
from fairreplay.trace.formats import FORMATS
from tests.cli.logs import fairreplay

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_cells(text: str) -> set[str]:
    return set(re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE))


def test_the_commands_of_the_readme_run_and_end_in_a_report(tmp_path: Path) -> None:
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    block = README.split("<!-- executed by tests/test_readme.py -->\n```sh\n")[1].split("```")[0]
    commands = block.strip().splitlines()
    assert len(commands) == 5
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "fairreplay"
        code = "from fairreplay.cli.app import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True, env=os.environ
        )
        assert done.returncode == 0, (command, done.stderr)
    page = (tmp_path / "arena-report.html").read_text(encoding="utf-8")
    assert "Verdict" in page
    document = json.loads((tmp_path / "arena-report.json").read_text())
    assert [source["name"] for source in document["sources"]] == ["logged", "fcfs", "vtc"]


@pytest.mark.parametrize(
    ("log", "tenants"),
    [("formats/litellm/spend_logs.json", 7), ("vllm_requests/RTXPRO6000_Llama-3.1-8B.requests.jsonl", 1)],
)
def test_a_newcomer_ends_with_a_report(tmp_path: Path, log: str, tenants: int) -> None:
    """The second block, with the log of a LiteLLM proxy and of a vLLM engine."""
    block = README.split("on a LiteLLM and a vLLM log -->\n```sh\n")[1].split("```")[0]
    shutil.copy(ROOT / "tests" / "data" / log, tmp_path / "your.log")
    for command in block.strip().splitlines():
        done = fairreplay(*shlex.split(command)[1:], cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
    assert "Verdict" in (tmp_path / "reports" / "report.html").read_text(encoding="utf-8")
    document = json.loads((tmp_path / "reports" / "report.json").read_text())
    assert {"logged", "fcfs"} <= {source["name"] for source in document["sources"]}
    assert document["period"]["tenants"] == tenants
    assert len(load_config(tmp_path / "fairreplay.toml").tenants) == tenants
    assert "is best by" in done.stdout or "All are equal" in done.stdout


def test_every_command_is_in_the_readme() -> None:
    commands = {cell.split()[0] for cell in first_cells(section("With your own log"))}
    files = {path.stem for path in (ROOT / "fairreplay" / "cli").glob("*.py")}
    assert commands == files - {"__init__", "app", "console", "options", "period", "fail_on"}


def test_every_field_of_a_head_is_in_the_readme() -> None:
    said = section("Policies and metrics").split("`head` has ")[1].split("all integers")[0]
    assert re.findall(r"`(\w+)`", said) == list(HEAD_FIELDS)


def test_every_format_and_policy_is_in_the_readme() -> None:
    assert first_cells(section("What it reads")) == set(FORMATS)
    policies, metrics = section("Policies and metrics").split("| metric |")
    assert first_cells(policies) == set(POLICIES)
    assert all(name in metrics for name in ("SCR", "JFI", "TFR"))


def test_the_settings_of_the_readme_are_valid() -> None:
    text = section("Settings").split("```toml\n")[1].split("```")[0]
    assert parse_config(text, "README").cluster.replicas == 2


def test_the_confusion_matrix_of_the_readme_is_that_of_the_stored_figures() -> None:
    runs = json.loads((ROOT / "docs" / "evaluation.json").read_text(encoding="utf-8"))
    assert [run["sandbox_error"] for run in runs] == [0.0, 0.2]
    shown = section("Are the causes right?").split("```text\n")[1].split("```")[0]
    for line in (*summary(runs[0]["seed"], 0.0, runs[0]).splitlines(), *rates(runs[1])):
        assert line in shown


def test_the_exit_codes_of_the_readme() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", section("Exit codes"), flags=re.MULTILINE)}
    errors = (UsageError, BadInputError, StoreError, ClusterError, FairReplayError, StoreBusyError)
    assert listed == {0, DIFFERENT, FAILED, 130} | {error.exit_code for error in errors}


def test_every_option_of_ingest_is_in_the_readme() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from fairreplay.cli.app import main; main()", "ingest", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"},
    )
    options = set(re.findall(r"(?<![\w-])--[a-z0-9][a-z0-9-]+", done.stdout)) - {"--no-quiet", "--no-json"}
    assert {option for option in options if option not in README} == set()
