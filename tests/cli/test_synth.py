"""``fairreplay synth`` as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from typer.testing import CliRunner

from fairreplay.cli.synth import synth
from fairreplay.config.load import load_config
from fairreplay.errors import UsageError

app = typer.Typer()
app.command()(synth)
FILES = ["fairreplay.toml", "labels.json", "trace.parquet"]
SMALL = ["--duration", "30m", "--tenants", "4", "--rate", "0.1", "--incident", "burst", "--incident", "skew"]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_three_files_that_say_where_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "trace"
    done = run("-o", str(folder), *SMALL)
    assert done.exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert sorted(path.name for path in folder.parent.iterdir()) == ["trace"]
    assert f"fairreplay ingest {folder}/trace.parquet" in done.stdout
    assert "weights reversed" in done.stdout
    assert max(map(len, done.stdout.splitlines()[:6])) <= 100
    assert load_config(folder / "fairreplay.toml").cluster.policy == "fcfs"
    trace = pl.read_parquet(folder / "trace.parquet")
    assert {"seq", "source", "priority"}.isdisjoint(trace.columns)  # ingest's to give, or never known
    labels = json.loads((folder / "labels.json").read_text())
    assert [(label["id"], label["kind"]) for label in labels["incidents"]] == [("burst-1", "burst"), ("skew-1", "skew")]


def test_json_is_the_only_thing_on_stdout(tmp_path: Path) -> None:
    done = run("-o", str(tmp_path / "out"), "--json", *SMALL)
    document = json.loads(done.stdout)
    assert document["requests"] == len(pl.read_parquet(tmp_path / "out" / "trace.parquet"))
    assert document["injected"]["burst-1"]["added"] > 0
    assert [label["metrics"] for label in document["incidents"]] == [["scr"], ["jfi"]]


def test_same_seed_same_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    for hash_seed in ("0", "1"):
        command = "from fairreplay.cli.app import main; main()"
        subprocess.run(
            [sys.executable, "-c", command, "synth", "-q", "-o", str(tmp_path / hash_seed), *SMALL],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
        )
    assert contents(tmp_path / "0") == contents(tmp_path / "1")
    run("-o", str(tmp_path / "other"), "--seed", "1", *SMALL)
    assert contents(tmp_path / "other")["trace.parquet"] != contents(tmp_path / "0")["trace.parquet"]


def test_own_folder_is_replaced_and_a_foreign_one_is_not_touched(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    healthy = ["--duration", "10m", "--tenants", "4", "--rate", "0.1", "--incident", "none"]
    run("-o", str(folder), *healthy)
    before = contents(folder)
    run("-o", str(folder), "--seed", "5", *healthy)
    assert contents(folder) != before
    (folder / "notes.txt").write_text("mine")
    before = contents(folder)
    with pytest.raises(UsageError, match=r"did not write \(notes.txt\)"):
        run("-o", str(folder), *healthy)
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["trace.parquet", "fairreplay.toml"])
def test_a_folder_with_a_file_of_such_a_name_but_no_labels_is_foreign(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match="did not write"):
        run("-o", str(tmp_path), *SMALL)
    assert contents(tmp_path) == {name: b"mine"}


@pytest.mark.parametrize("text", ["3x", "h", "-1h", "1.5h", "", "9999999m"])
def test_a_duration_without_a_unit_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="--duration"):
        run("-o", str(tmp_path / "out"), f"--duration={text}")
    assert not (tmp_path / "out").exists()
