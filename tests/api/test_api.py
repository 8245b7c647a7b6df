"""The package as a library: cheap to import, the verbs give what the commands print, the documentation runs."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

import fairreplay
import fairreplay.api
import fairreplay.metrics.alerts
from fairreplay.cli.app import app
from fairreplay.errors import BadInputError, StoreError, UsageError
from fairreplay.export.results import EPISODE_SCHEMA
from fairreplay.metrics.measure import TENANT_SCHEMA, TYPE_SCHEMA, WINDOW_SCHEMA
from tests.api.usage import review
from tests.docs.blocks import run_python

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "fairreplay" / "sample"
VERBS = ("ingest", "replay", "metrics", "episodes", "report", "sql")


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, fairreplay; print([name for name in sys.modules if name.split('.')[0] in %r])"
    heavy = ("polars", "numpy", "pyarrow", "duckdb", "typer", "pydantic", "rich")
    done = subprocess.run([sys.executable, "-c", code % (heavy,)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_verbs_and_folders_share_their_names() -> None:
    """``fairreplay.metrics`` is a folder of the flow and a verb, whatever was imported before."""
    assert fairreplay.metrics.alerts.LEAVE == 5  # type: ignore[attr-defined]
    assert all(callable(getattr(fairreplay, verb)) for verb in VERBS)
    assert set(VERBS) <= set(dir(fairreplay))
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        fairreplay.nope  # type: ignore[attr-defined]  # noqa: B018
    code = (
        "import fairreplay; fairreplay.report.__call__; from fairreplay.metrics import jfi; import fairreplay.api as a"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_typed_program(tmp_path: Path) -> None:
    ingested, replayed, windows, tenants, episodes, answer = review(
        SAMPLE / "vtc_arena.fcfs.jsonl", SAMPLE / "vtc_arena.toml", tmp_path
    )
    assert ingested.schema == pl.Schema(fairreplay.api.INGEST_SCHEMA)
    assert ingested["accepted"].to_list() == [1500]
    assert replayed.schema == pl.Schema(fairreplay.api.REPLAY_SCHEMA)
    assert replayed["policy"].to_list() == ["fcfs", "vtc"]
    assert windows.schema == pl.Schema(WINDOW_SCHEMA)
    assert tenants.schema == pl.Schema(TENANT_SCHEMA)
    assert episodes.schema == pl.Schema(EPISODE_SCHEMA)
    assert answer.rows() == [(1500,)]


def test_the_frames_are_what_the_commands_print(tmp_path: Path) -> None:
    options = ["--store", str(tmp_path / "store"), "--config", str(SAMPLE / "vtc_arena.toml"), "--json"]
    log = str(SAMPLE / "vtc_arena.fcfs.jsonl")
    sources = fairreplay.ingest([log], tmp_path / "store")
    again = json.loads(CliRunner().invoke(app, ["ingest", log, *options], catch_exceptions=False).stdout)
    (known,) = again["sources"]
    assert {**sources.row(0, named=True), "changed": False} == {name: known[name] for name in sources.columns}
    shown = json.loads(CliRunner().invoke(app, ["metrics", *options], catch_exceptions=False).stdout)["windows"]
    windows = fairreplay.metrics(tmp_path / "store", config=SAMPLE / "vtc_arena.toml")
    for name in ("requests", "scr", "jfi", "tfr", "min_x", "failing"):
        assert windows[name].to_list() == [row[name] for row in shown]
    types = fairreplay.metrics(tmp_path / "store", by="types", config=SAMPLE / "vtc_arena.toml")
    assert types.schema == pl.Schema(TYPE_SCHEMA)


def test_the_options_are_those_of_the_commands() -> None:
    """By the same names (``-`` becomes ``_``); what only speaks to a terminal is left out."""
    spoken = {"json", "quiet", "output", "emit", "emit_since", "emit_until", "fail_on", "to", "help"}
    more = {"metrics": {"by"}, "replay": set(), "report": {"output"}}
    for verb in VERBS:
        command = next(one for one in app.registered_commands if one.name == verb)
        assert command.callback is not None
        wanted = {
            name.removeprefix("log_").removesuffix("_") for name in inspect.signature(command.callback).parameters
        }
        wanted = {{"map_file": "map", "policy": "policies"}.get(name, name) for name in wanted} - spoken
        offered = set(inspect.signature(getattr(fairreplay.api, verb)).parameters)
        assert wanted - offered == set(), verb
        assert offered - wanted <= more.get(verb, set()), verb


def test_mistakes_raise_the_errors_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"no": "time"}\n')
    with pytest.raises((UsageError, BadInputError)):
        fairreplay.ingest(tmp_path / "log.jsonl", tmp_path / "store")
    with pytest.raises(StoreError, match="no store here"):
        fairreplay.episodes(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is not after"):
        fairreplay.metrics(tmp_path, since="2026-01-02", until="2026-01-01")


def test_the_page_runs_and_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    monkeypatch.chdir(tmp_path)
    for code, printed, stated in run_python(ROOT / "docs" / "api.md"):
        assert printed == stated, code
