"""``fairreplay calibrate`` as a user meets it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from fairreplay.cli.calibrate import SIMULATIONS, calibrate
from fairreplay.config.load import load_config, parse_config
from fairreplay.errors import BadInputError, UsageError
from fairreplay.planning.calibrate import SIMULATIONS as DEFAULT_SIMULATIONS
from fairreplay.planning.config_file import moved
from fairreplay.sandbox.plan import shards, take_load
from fairreplay.sandbox.replay import run_shards
from fairreplay.store.ingest import IngestOptions, ingest
from tests.sandbox.frames import canonical

GIVEN = """# ours
[cluster]
policy = "fcfs"  # production
async_scheduling = false
enable_prefix_caching = false
"""

app = typer.Typer()
app.command()(calibrate)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    random = np.random.default_rng(3)
    rows = [
        {
            "arrived_at": number / 10,
            "prompt_tokens": int(random.integers(20, 400)),
            "output_tokens": int(random.integers(5, 40)),
        }
        for number in range(60)
    ]
    load = take_load(canonical(rows))
    true = parse_config(GIVEN + "num_gpu_blocks = 101\n[cluster.step_time]\nbase = 0.02\n", "true.toml")
    done = run_shards(load, shards(load, true, "fcfs")).requests
    log = load.frame.with_columns(done["scheduled_at"], done["first_token_at"], done["finished_at"]).drop(
        "seq", "source"
    )
    log.write_parquet(tmp_path / "log.parquet")
    ingest([str(tmp_path / "log.parquet")], tmp_path / "store", IngestOptions())
    (tmp_path / "given.toml").write_text(GIVEN)
    return ["--store", str(tmp_path / "store"), "--config", str(tmp_path / "given.toml"), "--simulations", "20"]


def test_the_file_is_the_given_config_with_the_values_and_the_errors_are_shown(
    place: list[str], tmp_path: Path
) -> None:
    result = run("-o", str(tmp_path / "fitted.toml"), *place)
    assert result.exit_code == 0
    text = (tmp_path / "fitted.toml").read_text()
    assert text.startswith(GIVEN)
    assert load_config(tmp_path / "fitted.toml").cluster.step_time is not None
    assert "before, held out" in result.stdout
    assert "step_time.base = " in result.stdout
    assert re.search(r"fitted\.toml written after (1\d|2[01]) simulations$", result.stdout.rstrip())
    assert all(len(line) <= 100 for line in result.stdout.splitlines()[:7])
    again = tmp_path / "again.toml"
    run("-o", str(again), "--quiet", *place)
    assert again.read_text() == text


NAMES_FILES = """
[defaults]
openslo = "slo/ours.yaml"  # of the platform team
[weights]
file = "../billing/commitments.csv"
"""
OPENSLO = """apiVersion: openslo/v1
kind: SLO
metadata: {name: ttft}
spec:
  service: llm
  indicator:
    metadata: {name: ttft_ms}
    spec: {thresholdMetric: {metricSource: {type: prometheus, spec: {query: ttft_ms}}}}
  objectives:
    - {displayName: p50, op: lte, value: 700, target: 0.5}
    - {displayName: p90, op: lte, value: 800, target: 0.9}
    - {displayName: p99, op: lte, value: 900, target: 0.99}
"""


@pytest.mark.parametrize("output", ["fitted.toml", "../fitted.toml", "deep/er/fitted.toml", "link/fitted.toml"])
def test_files_that_the_config_names_are_found_from_the_new_place(
    place: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    """Commitments and targets stand relative to the config, wherever calibrate writes it; comments stay."""
    home = tmp_path / "etc" / "fairreplay"
    for folder in (home / "slo", home / "deep" / "er", tmp_path / "etc" / "billing", tmp_path / "far" / "away"):
        folder.mkdir(parents=True)
    (home / "link").symlink_to(tmp_path / "far" / "away")
    (tmp_path / "etc" / "billing" / "commitments.csv").write_text(
        "tenant,committed_tokens_per_month,valid_from\nacme,1000,\n"
    )
    (home / "slo" / "ours.yaml").write_text(OPENSLO)
    (home / "given.toml").write_text(GIVEN + NAMES_FILES)
    place[3] = "given.toml"
    monkeypatch.chdir(home)
    assert run("-o", output, "--quiet", *place).exit_code == 0
    monkeypatch.chdir(tmp_path)
    config, given = load_config(home / output), load_config(home / "given.toml")
    assert config.tenants == given.tenants
    assert config.commitments() == {"acme": 1000}
    assert config.slo_ttft_ms("acme") == given.slo_ttft_ms("acme") is not None
    assert config.cluster.step_time is not None
    text = (home / output).read_text()
    assert "  # of the platform team\n" in text
    assert text.startswith(GIVEN)
    if output == "fitted.toml":
        assert NAMES_FILES in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[weights]\nfile = "c.csv"\n', '[weights]\nfile = "../a/c.csv"\n'),
        ('[weights]\nfile = "/srv/c.csv"\n', '[weights]\nfile = "/srv/c.csv"\n'),
        ("weights.file = 'x/c.csv'  # ours\n", 'weights.file = "../a/x/c.csv"  # ours\n'),
        ('weights = { file = "c.csv" }\n', 'weights = { file = "../a/c.csv" }\n'),
        ('[defaults]\nopenslo = "../b/s.yaml"\n', '[defaults]\nopenslo = "s.yaml"\n'),
        ("# nothing\n[cluster]\n", "# nothing\n[cluster]\n"),
    ],
)
def test_paths_in_a_config_that_moves(tmp_path: Path, text: str, expected: str) -> None:
    assert moved(text, tmp_path / "a", tmp_path / "b") == expected
    assert moved(text, tmp_path / "a", tmp_path / "b" / ".." / "a") == text


def test_json_is_one_document(place: list[str], tmp_path: Path) -> None:
    document = json.loads(run("-o", str(tmp_path / "fitted.toml"), "--json", *place).stdout)
    assert {"output", "values", "before_held_out", "after_held_out", "simulations"} <= set(document)


def test_wrong_usage_is_one_line_and_writes_nothing(place: list[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r'--batching .both.: only "auto"'):
        run("-o", str(tmp_path / "x.toml"), "--batching", "both", *place)
    with pytest.raises(UsageError, match="there is no folder"):
        run("-o", str(tmp_path / "no" / "x.toml"), *place)
    with pytest.raises(UsageError, match="model 'm' is not in the log"):
        run("-o", str(tmp_path / "x.toml"), "--model", "m", *place)
    with pytest.raises(BadInputError, match="only 5 requests"):
        run("-o", str(tmp_path / "x.toml"), "--until", "1970-01-01T00:00:00.5Z", *place)
    assert not list(tmp_path.glob("x.toml*"))


def test_the_default_is_the_librarys() -> None:
    assert SIMULATIONS == DEFAULT_SIMULATIONS
