"""``fairreplay replay`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
import typer
from typer.testing import CliRunner

from fairreplay.cli.replay import replay
from fairreplay.errors import StoreError, UsageError
from fairreplay.store.ingest import IngestOptions, ingest

SETTINGS = """
    [cluster]
    async_scheduling = false
    enable_prefix_caching = false
    num_gpu_blocks = 11
    [cluster.step_time]
    base = 1.0
    prefill_token = 0.0
    decode_sequence = 0.0
    context_token = 0.0
    """

app = typer.Typer()
app.command()(replay)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    rows = [
        {
            "request_id": f"r{number}",
            "tenant": "\u202eevil\x1b[31m",
            "arrived_at": f"2026-01-01T00:00:{number:02}Z",
            "first_token_at": f"2026-01-01T00:00:{number + 1:02}Z",
            "finished_at": f"2026-01-01T00:00:{number + 4:02}Z",
            "prompt_tokens": 170 if number == 3 else 20,
            "output_tokens": 4,
        }
        for number in range(0, 30, 3)
    ]
    rows.append(
        {"request_id": "refused", "tenant": "t", "arrived_at": "2026-01-01T00:00:05Z", "status": "rejected"}
        | {"prompt_tokens": None, "output_tokens": None}
    )
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    ingest([str(log)], tmp_path / "store", IngestOptions())
    (tmp_path / "c.toml").write_text(SETTINGS)
    return ["--store", str(tmp_path / "store"), "--config", str(tmp_path / "c.toml")]


def test_the_table_and_what_the_baseline_is_worth(place: list[str]) -> None:
    result = run("--policy", "fcfs", "--policy", "vtc", *place)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split("  ")[0] == "policy"
    assert lines[2].split() == ["fcfs", "10", "9", "1", "0", "1.000", "1.000", "1.000", "7.0"]  # 9 * 24 in 31 s
    assert lines[3].split()[0] == "vtc"
    assert lines[4].startswith("Baseline fcfs against the log: TTFT P50 +0.0%")
    assert all(len(line) <= 100 for line in lines)
    assert result.stderr.startswith("left out as no load: 1 (")


def test_json_has_the_documented_keys(place: list[str]) -> None:
    result = run("--json", *place)
    document = json.loads(result.stdout)
    assert list(document) == ["replays", "fidelity"]
    (only,) = document["replays"]
    assert list(only) == [
        "policy",
        "config_hash",
        "requests",
        "ok",
        "rejected",
        "preemptions",
        "ttft_ms",
        "tokens_per_s",
        "engine_s",
        "requests_per_s",
        "wall_s",
    ]
    assert (only["policy"], only["requests"], only["ok"], only["rejected"]) == ("fcfs", 10, 9, 1)
    assert list(only["ttft_ms"]) == ["p50", "p90", "p99"]
    assert {"ttft_p50_error", "ttft_p99_error"} <= set(document["fidelity"])


def test_a_policy_other_than_the_baseline_says_what_is_missing(place: list[str]) -> None:
    assert "Baseline fcfs is not replayed yet" in run("--policy", "vtc", *place).stdout
    assert json.loads(run("--policy", "vtc", "--json", *place).stdout)["fidelity"] is None
    assert run("--policy", "vtc", "--quiet", *place).stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "vct"], "policy 'vct' is unknown; did you mean 'vtc'?"),
        (["--since", "yesterday"], "--since 'yesterday': not an ISO 8601 instant"),
        (["--since", "2026-01-02", "--until", "2026-01-01"], "--until 2026-01-01 is not after --since 2026-01-02"),
        (["--since", "2027-01-01"], "nothing to replay"),
    ],
)
def test_wrong_usage_is_one_line(place: list[str], arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        run(*arguments, *place)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        run("--store", str(tmp_path / "none"))
