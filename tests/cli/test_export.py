"""``export`` as a user runs it: stdout or a file, the kind by the file's name, options that do not go together."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from fairreplay.cli.app import app
from fairreplay.errors import UsageError
from fairreplay.export.grafana import dashboard, rules

SAMPLE = Path(__file__).parents[2] / "fairreplay" / "sample"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    run("ingest", SAMPLE / "vtc_arena.fcfs.jsonl", "--store", folder / "store", "--quiet")
    return folder / "store"


@pytest.mark.parametrize("name", ["windows.csv", "windows.parquet", "windows.jsonl"])
def test_the_kind_follows_the_name_of_the_file(store: Path, tmp_path: Path, name: str) -> None:
    config = ("--config", SAMPLE / "vtc_arena.toml")
    told = json.loads(run("export", "windows", "-o", tmp_path / name, "--store", store, *config, "--json"))
    assert told["to"] == name.rpartition(".")[2]
    read = {"csv": pl.read_csv, "parquet": pl.read_parquet, "jsonl": pl.read_ndjson}[told["to"]]
    table = read(tmp_path / name)
    assert table.height == told["rows"]
    shown = [json.loads(line) for line in run("export", "windows", "--store", store, *config).splitlines()]
    assert [row["requests"] for row in shown] == table["requests"].to_list()


def test_prometheus_on_stdout_and_in_a_file(store: Path, tmp_path: Path) -> None:
    options = ("--store", store, "--config", SAMPLE / "vtc_arena.toml", "--quiet")
    text = run("export", "prometheus", *options)
    assert 'fairreplay_requests{model="",policy="logged"} 1500\n' in text
    told = json.loads(run("export", "prometheus", "-o", tmp_path / "deep" / "f.prom", "--json", *options))
    assert (tmp_path / "deep" / "f.prom").read_text() == text
    assert told["samples"] == sum(not line.startswith("#") for line in text.splitlines())
    assert not list((tmp_path / "deep").glob("*.tmp"))


def test_grafana_needs_no_store(tmp_path: Path) -> None:
    assert run("export", "grafana", "--quiet").encode() == dashboard()
    assert run("export", "grafana", "--to", "rules").encode() == rules()
    run("export", "grafana", "-o", tmp_path / "folder")
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["dashboard.json", "rules.yml"]
    run("export", "grafana", "-o", tmp_path / "fair.json")
    assert (tmp_path / "fair.rules.yml").read_bytes() == rules()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("episode",), "did you mean 'episodes'"),
        (("requests", "--to", "cvs"), "did you mean 'csv'"),
        (("requests", "--json"), "name a file with -o"),
        (("requests", "--window", "5m"), "takes no --window"),
        (("decisions", "--refusals", "drop"), "takes no --refusals"),
        (("rejects", "--since", "2026-01-01"), "a reject may have no time"),
        (("prometheus", "--to", "csv"), "takes no --to"),
        (("grafana", "--to", "rule"), "did you mean 'rules'"),
    ],
)
def test_what_does_not_go_together_is_one_line(store: Path, arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        CliRunner().invoke(app, ["export", *arguments, "--store", str(store)], catch_exceptions=False)
    assert "\n" not in str(raised.value)
