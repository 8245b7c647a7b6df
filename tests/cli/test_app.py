"""The command line as a process: exit codes, one-line errors, byte-equal reruns, help."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairreplay import __version__

DATA = Path(__file__).parents[1] / "data"
SAMPLE = Path(__file__).parents[2] / "sample_traces"


def fairreplay(*arguments: object, cwd: Path, seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from fairreplay.cli.app import main; main()", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONHASHSEED": seed, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )


def digest(folder: Path) -> dict[str, str]:
    """Every file below ``folder`` but the lock, with its hash."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def test_version_and_help(tmp_path: Path) -> None:
    assert fairreplay("--version", cwd=tmp_path).stdout == f"fairreplay {__version__}\n"
    help_text = fairreplay("--help", cwd=tmp_path).stdout
    for command in ("ingest", "replay", "metrics", "episodes", "report", "calibrate", "synth", "demo"):
        assert command in help_text


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arena")
    done = fairreplay("ingest", SAMPLE / "vtc_arena.fcfs.jsonl", "--store", "store", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def bad_inputs(folder: Path) -> dict[str, tuple[Path, int, str]]:
    import polars as pl

    made = {
        "missing": folder / "nothing.jsonl",
        "empty": folder / "empty.jsonl",
        "truncated gzip": folder / "cut.jsonl.gz",
        "other parquet": folder / "other.parquet",
        "no arrival": DATA / "llmperf" / "lepton_13b.json",
        "first token before arrival": folder / "early.jsonl",
    }
    made["empty"].write_bytes(b"")
    packed = gzip.compress((SAMPLE / "vtc_arena.fcfs.jsonl").read_bytes(), mtime=0)
    made["truncated gzip"].write_bytes(packed[: len(packed) // 2])
    pl.DataFrame({"colour": ["red"], "size": [1]}).write_parquet(made["other parquet"])
    row = {"arrived_at": "2026-01-01T00:00:02Z", "first_token_at": "2026-01-01T00:00:01Z"}
    made["first token before arrival"].write_text(json.dumps(row | {"prompt_tokens": 5, "output_tokens": 5}) + "\n")
    codes = {"missing": 2}
    says = {
        "missing": "nothing.jsonl",
        "empty": "empty",
        "truncated gzip": "cut.jsonl.gz",
        "other parquet": "colour",
        "no arrival": "no arrival time; FairReplay cannot replay it",
        "first token before arrival": "first_token_before_arrival",
    }
    return {name: (path, codes.get(name, 3), says[name]) for name, path in made.items()}


@pytest.mark.parametrize(
    "name", ["missing", "empty", "truncated gzip", "other parquet", "no arrival", "first token before arrival"]
)
def test_bad_input_is_one_line_its_exit_code_and_an_unchanged_store(arena: Path, tmp_path: Path, name: str) -> None:
    path, code, says = bad_inputs(tmp_path)[name]
    before = digest(arena / "store")
    done = fairreplay("ingest", path, "--store", arena / "store", cwd=tmp_path)
    assert done.returncode == code
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert digest(arena / "store") == before


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("replay", "--policy", "fcsf", "--store", "store"), 2, "did you mean 'fcfs'?"),
        (("metrics", "--store", "nowhere"), 5, "nowhere"),
        (("report", "--store", "store", "--config", "none.toml"), 2, "none.toml: no such file"),
        (("ingest",), 2, "Missing argument"),
        (("metrics", "--store", "store", "--window", "x"), 2, "--window 'x'"),
    ],
)
def test_mistakes_have_their_exit_code(arena: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = fairreplay(*arguments, cwd=arena)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_same_bytes_again_are_a_no_op_that_says_so(arena: Path) -> None:
    before = digest(arena / "store")
    done = fairreplay("ingest", SAMPLE / "vtc_arena.fcfs.jsonl", "--store", "store", cwd=arena)
    assert done.returncode == 0
    assert "already" in done.stderr + done.stdout
    assert digest(arena / "store") == before


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The demo run twice, under two hash seeds."""
    place = tmp_path_factory.mktemp("demos")
    for seed in ("0", "1"):
        done = fairreplay("demo", "-o", f"run{seed}", cwd=place, seed=seed)
        assert done.returncode == 0, done.stderr
        assert "25 of 27" in done.stdout
        assert "report.html" in done.stdout.strip().splitlines()[-1]
    return {seed: place / f"run{seed}" for seed in ("0", "1")}


def test_two_runs_give_the_same_bytes(demos: dict[str, Path]) -> None:
    """Stores, replays and reports."""
    assert digest(demos["0"]) == digest(demos["1"])
    assert {"report.html", "report.json", "store/manifest.json"} <= digest(demos["0"]).keys()
    assert (demos["0"] / "report.html").stat().st_size < 3_000_000


def test_the_example_report_is_what_the_demo_writes(demos: dict[str, Path]) -> None:
    """Less its versions block; ``make example`` writes it anew."""
    example = json.loads((SAMPLE.parent / "reports" / "example" / "report.json").read_text())
    made = json.loads((demos["0"] / "report.json").read_text())
    del example["versions"], made["versions"]
    assert made == example


def test_the_demo_names_who_flooded_the_queue_and_who_would_pay(demos: dict[str, Path]) -> None:
    """The two tenants that wait longer under the real VTC scheduler than under the real FCFS one."""
    page = re.sub("<[^>]*>", "", (demos["0"] / "report.html").read_text())
    said = page[page.index("Flooded the queue") :][:1500]
    flooders = ("dummy-lora-7b-rank-8-10 (40 % of what was asked", "dummy-lora-7b-rank-8-2 (36 % of what was asked")
    assert all(flooder in said for flooder in flooders), said
    assert "and 2 tenants would pay (dummy-lora-7b-rank-8-10: mean TTFT +" in said
    assert "; dummy-lora-7b-rank-8-2: mean TTFT +" in said


def test_the_sandbox_predicts_a_log_that_it_never_saw(demos: dict[str, Path]) -> None:
    """Fitted on the FCFS log alone: the figures that the README and the report show first."""
    found = json.loads((demos["0"] / "report.json").read_text())["validation"]
    assert (found["before_logged"]["passing"], found["after_logged"]["passing"]) == (7, 25)
    assert abs(found["before_replayed"]["passing"] - 7) <= 1
    assert abs(found["after_replayed"]["passing"] - 25) <= 1
    before, after = found["before_replayed"]["ttft_ms"], found["after_replayed"]["ttft_ms"]
    assert before["p50"] == pytest.approx(39_070, rel=0.05)
    assert before["p90"] == pytest.approx(112_760, rel=0.05)
    assert before["p99"] == pytest.approx(136_940, rel=0.05)
    assert after["p90"] == pytest.approx(148_400, rel=0.05)
    assert after["p99"] == pytest.approx(211_500, rel=0.05)
    assert found["spearman"] >= 0.95
