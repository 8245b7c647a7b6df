"""Every exit code of the README's table, provoked for real; stdout, stderr, pipes and locales as a process has them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import lock_folder
from tests.cli.logs import SETTINGS, fairreplay, write_log

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "vllm"
HOSTILE = "[/x]\u202e"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an episode, and a decision log that was tampered with."""
    folder = tmp_path_factory.mktemp("codes")
    (folder / "fairreplay.toml").write_text(SETTINGS)
    write_log(folder / "a.jsonl", late=[1], tenants=["calm", HOSTILE])
    ingest([str(folder / "a.jsonl")], folder / "fairreplay-store", IngestOptions())
    (folder / "bad.jsonl").write_text("no log\n")
    scenario = json.loads((GOLDEN / "s1_fcfs_ample.scenario.json").read_text())
    scenario["requests"][0]["prompt_tokens"] += 1
    (folder / "other").mkdir()
    (folder / "other" / "s1.scenario.json").write_text(json.dumps(scenario))
    (folder / "other" / "s1.steps.jsonl.gz").write_bytes((GOLDEN / "s1_fcfs_ample.steps.jsonl.gz").read_bytes())
    return folder


INTERRUPT = """
import os, signal
from fairreplay.store import store
def interrupted(path):
    os.kill(os.getpid(), signal.SIGINT)
store.open_store = interrupted
"""
BUG = "from fairreplay.store import store; store.open_store = lambda path: 1 / 0"
NO_CLUSTER = "import os; os.environ['RAY_ADDRESS'] = '127.0.0.1:1'"
CODES = {
    0: (["episodes"], "", ""),
    1: (["verify", "other"], "", ""),
    2: (["metrics", "--window", "soon"], "", "fairreplay: --window 'soon': must be a number with a unit"),
    3: (["ingest", "bad.jsonl"], "", "fairreplay: bad.jsonl: "),
    4: (["episodes", "--fail-on", "red"], "", "--fail-on red: SCR fell to 0.50: emergency"),
    5: (["metrics", "--store", "nowhere"], "", "fairreplay: nowhere: no store here"),
    69: (["replay", "--engine", "ray", "-q"], NO_CLUSTER, "fairreplay: --engine ray: no cluster at 127.0.0.1:1 ("),
    70: (["metrics"], BUG, "fairreplay: internal error: ZeroDivisionError: division by zero"),
    75: (["ingest", "a.jsonl"], "", f"fairreplay: fairreplay-store: process {os.getpid()} holds the store"),
    130: (["metrics"], INTERRUPT, "fairreplay: interrupted; what was complete before is kept"),
}


def test_the_table_of_the_readme_is_this_one() -> None:
    table = README.split("\n## Exit codes\n")[1].split("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, flags=re.MULTILINE)] == list(CODES)


@pytest.mark.parametrize("code", list(CODES))
def test_provoked(place: Path, code: int) -> None:
    arguments, before, says = CODES[code]
    if code == 75:
        with lock_folder(place / "fairreplay-store"):
            done = fairreplay(*arguments, cwd=place, code=before)
    else:
        done = fairreplay(*arguments, cwd=place, code=before)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith(says) if says else True
    assert len(done.stderr.splitlines()) <= 1


def test_a_traceback_with_debug_alone(place: Path) -> None:
    done = fairreplay("--debug", "metrics", cwd=place, code=BUG)
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize(
    ("command", "level", "code"),
    [
        ("metrics", "yellow", 4),
        ("metrics", "emergency", 4),
        ("report", "red", 4),
        ("metrics --since 2026-05-28T20:29:00Z", "yellow", 0),
        ("episodes --since 2026-05-28T20:29:00Z", "yellow", 0),
        ("report --since 2026-05-28T20:29:00Z", "yellow", 0),
    ],
)
def test_fail_on(place: Path, command: str, level: str, code: int) -> None:
    """The second minute has SCR 1/2; the third is fair."""
    done = fairreplay(*command.split(), "--fail-on", level, "--json", cwd=place)
    assert done.returncode == code, done.stderr
    json.loads(done.stdout)
    assert done.stderr.startswith("--fail-on") == (code == 4)


def test_json_is_one_document_and_quiet_is_quiet(place: Path) -> None:
    for command in ("metrics", "episodes", "check", "compare", "report", "replay", "ingest a.jsonl"):
        done = fairreplay(*command.split(), "--json", cwd=place)
        assert done.returncode == 0, (command, done.stderr)
        assert isinstance(json.loads(done.stdout), dict), command
        hushed = fairreplay(*command.split(), "--quiet", cwd=place)
        assert (hushed.returncode, hushed.stdout, hushed.stderr) == (0, "", ""), command


@pytest.mark.parametrize("arguments", ["episodes", "episodes --json", "check", "metrics --json"])
def test_an_ascii_terminal_shows_hostile_names(place: Path, arguments: str) -> None:
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", "from fairreplay.cli.app import main; main()", *arguments.split()],
        cwd=place,
        env={**os.environ, **env},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if "--json" in arguments:
        assert HOSTILE in json.dumps(json.loads(done.stdout.decode("utf-8")), ensure_ascii=False)
    else:
        done.stdout.decode("ascii")


@pytest.mark.parametrize(
    ("arguments", "code"), [("metrics --json", 0), ("metrics", 0), ("metrics --fail-on red", 4), ("--help", 0)]
)
def test_a_reader_that_goes_away_is_no_error(place: Path, arguments: str, code: int) -> None:
    program = f"{sys.executable} -c 'from fairreplay.cli.app import main; main()' {arguments}"
    done = subprocess.run(
        ["bash", "-c", f"{program} | true; exit ${{PIPESTATUS[0]}}"],
        cwd=place,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "BrokenPipe" not in done.stderr


def test_environment_variables_stand_in_for_options(place: Path, tmp_path: Path) -> None:
    env = {"FAIRREPLAY_STORE": str(place / "fairreplay-store"), "FAIRREPLAY_CONFIG": str(place / "fairreplay.toml")}
    done = fairreplay("check", "--json", cwd=tmp_path, env=env)
    found = json.loads(done.stdout)
    assert [found["store"], found["config"]] == list(env.values())


def test_shell_completion(tmp_path: Path) -> None:
    words = {"_FAIRREPLAY_COMPLETE": "complete_bash", "COMP_WORDS": "fairreplay rev", "COMP_CWORD": "1"}
    code = "import sys; sys.argv[0] = 'fairreplay'"
    assert fairreplay(cwd=tmp_path, code=code, env=words).stdout == "review\n"
    shown = fairreplay("--show-completion", "bash", cwd=tmp_path, code=code)
    assert "complete -o default -F _fairreplay_completion fairreplay" in shown.stdout
