"""``fairreplay schedule``: what it prints is what the scheduler's own tools read."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from fairreplay.cli.app import app as whole
from fairreplay.cli.schedule import schedule
from fairreplay.errors import UsageError
from tests.cli.logs import fairreplay

app = typer.Typer()
app.command()(schedule)
HOSTILE = ["/logs/*.jsonl", '/a b/50%/it\'s $HOME `x` "q"\\$(y).jsonl', "-dash.jsonl", "größe.jsonl"]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


def command_of(done: Any) -> list[str]:
    found: list[str] = json.loads(done.stdout)["command"]
    return found


def test_cron_is_weekly_and_the_shell_gives_the_words_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("cron", "--with", "--fail-on red", "--", *HOSTILE)
    comment, line = done.stdout.splitlines()
    assert comment.startswith("#")
    assert line.startswith("0 3 * * 0 cd ")
    assert "%" not in line.replace("\\%", "")  # cron's line break
    words = shlex.split(line.replace("\\%", "%").split(" ", 5)[5])
    assert words[:3] == ["cd", str(tmp_path), "&&"]
    assert words[4:9] == ["review", "--every", "14d", "--since", "last"]
    assert words[-5:] == ["--", *(str(tmp_path / name) for name in HOSTILE)]
    assert words[9:15] == ["--store", f"{tmp_path}/fairreplay-store", "-o", f"{tmp_path}/reports", "--fail-on", "red"]
    shell = f"printf '%s\\n' {line.replace(chr(92) + '%', '%').split(' && ', 1)[1]}"
    out = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out == words[3:]


@pytest.mark.parametrize(
    ("every", "fields", "calendar"),
    [
        ("14d", "30 4 * * 1", "Mon *-*-* 04:30:00"),
        ("1w", "30 4 * * 1", "Mon *-*-* 04:30:00"),
        ("1d", "30 4 * * *", "*-*-* 04:30:00"),
        ("6h", "30 * * * *", "*-*-* *:30:00"),
    ],
)
def test_how_often(every: str, fields: str, calendar: str) -> None:
    options = ["--every", every, "--at", "4:30", "--day", "Monday"]
    assert run("cron", "logs", *options).stdout.splitlines()[1].startswith(fields + " cd ")
    assert f"OnCalendar={calendar}\n" in run("systemd", "logs", *options).stdout


def test_systemd_reads_the_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = json.loads(run("systemd", "--json", "--", *HOSTILE).stdout)["files"]
    assert list(files) == ["fairreplay-review.service", "fairreplay-review.timer"]
    start = next(line for line in files["fairreplay-review.service"].splitlines() if line.startswith("ExecStart="))
    words = [f"{tmp_path}/-dash.jsonl", f'"{tmp_path}/größe.jsonl"']
    quoted = '"/logs/*.jsonl" "/a b/50%%/it\'s $$HOME `x` \\"q\\"\\\\$$(y).jsonl"'
    assert start.endswith(f" -- {quoted} {' '.join(words)}")
    verifier = shutil.which("systemd-analyze")
    if verifier is not None:
        for name, text in files.items():
            (tmp_path / name).write_text(text.replace(start.split()[0], "ExecStart=/bin/true"))
        done = subprocess.run(
            [verifier, "verify", "--man=no", *(str(tmp_path / name) for name in files)], capture_output=True, text=True
        )
        assert "fairreplay-review" not in done.stderr, done.stderr


def test_kubernetes_job_is_yaml_and_never_runs_twice_at_once() -> None:
    text = run("k8s", "--image", "registry.example/fr:1", "--", *HOSTILE).stdout
    job = yaml.safe_load(text)
    assert job["kind"] == "CronJob"
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    assert job["spec"]["schedule"] == "0 3 * * 0"
    container = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "registry.example/fr:1"
    assert container["command"] == ["fairreplay"]
    expected = ["review", "--every", "14d", "--since", "last", "--store", "fairreplay-store", "-o", "reports", "--"]
    assert container["args"] == [*expected, *(name.replace("$(", "$$(") for name in HOSTILE)]


def test_the_command_is_one_that_review_understands(tmp_path: Path) -> None:
    command = command_of(run("k8s", "none.jsonl", "--with", "--fail-on red --policy vtc", "--json"))
    done = fairreplay(*command[1:], cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "fairreplay: none.jsonl: no such file or folder; check the path\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["corn", "logs"], "did you mean 'cron'?"),
        (["cron", "-"], "no standard input"),
        (["cron", "a\nb"], "control character"),
        (["cron", "logs", "--at", "25:00"], "--at '25:00'"),
        (["cron", "logs", "--day", "holiday"], "--day 'holiday'"),
        (["cron", "logs", "--with", "'"], "--with"),
        (["cron", "logs", "--image", "x"], "--image goes with"),
    ],
)
def test_mistakes(arguments: list[str], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        run(*arguments)
    assert says in str(caught.value)


def test_it_is_a_command() -> None:
    assert "schedule" in {command.name for command in whole.registered_commands}
