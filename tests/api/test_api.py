"""The package as a library: cheap to import, the verbs give what the commands print, the documentation runs."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

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
VERBS = ("ingest", "replay", "metrics", "episodes", "report", "capacity", "sql")


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


def test_capacity_is_what_the_command_prints(tmp_path: Path) -> None:
    store, config, document = tmp_path / "store", SAMPLE / "vtc_arena.toml", tmp_path / "capacity.json"
    fairreplay.ingest(SAMPLE / "vtc_arena.fcfs.jsonl", store)
    options = ["--store", str(store), "--config", str(config), "--scr", "0.5", "--json"]
    told = json.loads(CliRunner().invoke(app, ["capacity", *options], catch_exceptions=False).stdout)
    (group,) = told["groups"]
    frames = {
        part: fairreplay.capacity(
            store, by=part, config=config, scr=0.5, output=document, no_search=part not in ("models", "tried")
        )
        for part in get_args(fairreplay.api.Part)
    }
    for part, frame in frames.items():
        assert frame.schema == pl.Schema(fairreplay.api.CAPACITY_SCHEMAS[part])
        assert frame["model"].to_list() == [group["model"]] * len(frame)
    model = frames["models"].row(0, named=True)
    assert {name: model[name] for name in ("b_total", "b_alloc", "bound_by", "replicas", "requests")} == {
        name: group[name] for name in ("b_total", "b_alloc", "bound_by", "replicas", "requests")
    }
    load, needed = group["load"], group["replicas_needed"]
    assert (model["largest_load"], model["largest_load_scr"], model["largest_load_reason"]) == (
        (load["answer"]["percent"] / 100, load["answer"]["scr"], load["reason"])
        if load["answer"]
        else (None, None, load["reason"])
    )
    assert (model["replicas_needed"], model["replicas_needed_scr"]) == (
        (needed["answer"]["replicas"], needed["answer"]["scr"]) if needed["answer"] else (None, None)
    )
    for part in ("bounds", "types"):
        assert frames[part].drop("model").to_dicts() == group[part]
    assert frames["cells"].drop("model").to_dicts() == group["table"]
    tenants = frames["tenants"].drop("model")
    assert tenants.drop("^phi_.*$").to_dicts() == [
        {name: value for name, value in row.items() if name != "phi"} for row in group["tenants"]
    ]
    assert tenants.select("phi_p50", "phi_p90", "phi_p99").rows() == [
        tuple((row["phi"] or {}).get(q) for q in ("p50", "p90", "p99")) for row in group["tenants"]
    ]
    tried = frames["tried"].drop("model")
    assert tried.filter(pl.col("question") == "load").drop("question").to_dicts() == load["tried"]
    assert tried.filter(pl.col("question") == "replicas").drop("question").to_dicts() == needed["tried"]
    assert json.loads(document.read_bytes())["store_digest"] == told["store_digest"]
    page = fairreplay.report(tmp_path / "page.html", store, config=config, capacity=document)
    assert 'id="capacity"' in page.read_text()


def test_without_a_search_nothing_is_said_of_it(tmp_path: Path) -> None:
    fairreplay.ingest(SAMPLE / "vtc_arena.fcfs.jsonl", tmp_path / "store")
    frame = fairreplay.capacity(tmp_path / "store", config=SAMPLE / "vtc_arena.toml", no_search=True)
    assert frame.select("^(largest_load|replicas_needed).*$").row(0) == (None,) * 6
    assert fairreplay.capacity(tmp_path / "store", by="tried", no_search=True).is_empty()


def test_the_options_are_those_of_the_commands() -> None:
    """By the same names (``-`` becomes ``_``); what only speaks to a terminal is left out."""
    spoken = {"json", "quiet", "output", "emit", "emit_since", "emit_until", "fail_on", "to", "help"}
    more = {"metrics": {"by"}, "replay": set(), "report": {"output"}, "capacity": {"by", "output"}}
    for verb in VERBS:
        command = next(one for one in app.registered_commands if one.name == verb)
        assert command.callback is not None
        wanted = {
            name.removeprefix("log_").removesuffix("_") for name in inspect.signature(command.callback).parameters
        }
        called = {"map_file": "map"} | ({"policy": "policies"} if verb == "replay" else {})
        wanted = {called.get(name, name) for name in wanted} - spoken
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
    with pytest.raises(UsageError, match="did you mean 'tenants'"):
        fairreplay.capacity(tmp_path, by="tenant")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"--scr 1\.5: Input should be less than or equal to 1"):
        fairreplay.capacity(tmp_path, scr=1.5)
    with pytest.raises(UsageError, match="there is no folder"):
        fairreplay.capacity(tmp_path, output=tmp_path / "none" / "capacity.json")


def test_the_page_runs_and_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    monkeypatch.chdir(tmp_path)
    for code, printed, stated in run_python(ROOT / "docs" / "api.md"):
        assert printed == stated, code
