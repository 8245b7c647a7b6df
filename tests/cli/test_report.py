"""``fairreplay report`` as a user meets it, on a small log with hostile names that was replayed under two policies."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fairreplay.cli.report import report
from fairreplay.config.load import load_config
from fairreplay.errors import BadInputError, StoreError, UsageError
from fairreplay.sandbox.replay import replay
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import open_store
from tests.cli.logs import START_S, iso, write_log
from tests.report.documents import Page, opened

SETTINGS = """
    [cluster]
    async_scheduling = false
    enable_prefix_caching = false
    [cluster.step_time]
    base = 0.5
    prefill_token = 0.0
    decode_sequence = 0.0
    context_token = 0.0
    [defaults]
    slo_ttft_ms = { p50 = 2000, p90 = 4000, p99 = 9000 }
    """
EVIL = "</script><img src=x onerror=alert(1)>\u202e\x1b[31m"

app = typer.Typer()
app.command()(report)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tenants for three minutes: in the second, one waits 30 s for each answer. One row is refused, one broken."""
    folder = tmp_path_factory.mktemp("report")
    refused = {"request_id": "no", "tenant": "calm", "arrived_at": iso(START_S + 1), "status": "rejected"}
    broken = {
        "request_id": "bad",
        "tenant": "calm",
        "arrived_at": iso(START_S + 2),
        "first_token_at": iso(START_S + 1),
    }
    more = [refused | {"prompt_tokens": 9, "output_tokens": 0}, broken | {"prompt_tokens": 9, "output_tokens": 1}]
    log = write_log(folder / "log.jsonl", late=[1], tenants=("calm", EVIL), more=more)
    ingest([str(log)], folder / "store", IngestOptions(max_reject_rate=0.5))
    (folder / "c.toml").write_text(SETTINGS)
    replay(open_store(folder / "store"), load_config(folder / "c.toml"), ["fcfs", "vtc"])
    return folder


def options(place: Path, output: Path) -> list[str]:
    return ["--store", str(place / "store"), "--config", str(place / "c.toml"), "-o", str(output)]


def test_terminal_says_verdict_figures_episodes_path(place: Path, tmp_path: Path) -> None:
    done = run(*options(place, tmp_path / "r.html"))
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines[0].startswith("Unfair in ")
    assert [line.split()[0] for line in lines[1:6]] == ["figure", "------", "SCR", "JFI", "TFR"]
    assert lines[6].startswith("episode")
    assert lines[8].startswith("ep-")
    assert lines[-1] == f"Report: {tmp_path / 'r.html'} (numbers: {tmp_path / 'r.json'})"
    assert max(len(line) for line in lines[1:-1]) <= 100
    assert "\x1b" not in done.stdout


def test_page_and_document_hold_the_log_and_its_replays(place: Path, tmp_path: Path) -> None:
    run(*options(place, tmp_path), "--quiet")
    document = json.loads((tmp_path / "report.json").read_bytes())
    assert [source["role"] for source in document["sources"]] == ["logged", "logged", "baseline", "policy"]
    # the refused row is no load: the log stands there once whole, once over the rows that the replays hold
    assert [source["requests"] for source in document["sources"]] == [91, 90, 90, 90]
    assert {row["source"]: row["rejected"] for row in document["comparison"]} == {
        "logged": 1,
        "logged, rows replayed": 0,
        "fcfs": 0,
        "vtc": 0,
    }
    assert document["fidelity"][0]["requests"] == 90
    assert [row["rows"] for row in document["data_quality"]["rejects"]] == [1]
    assert document["tenants"][0]["tenant"] == EVIL  # hurt most
    assert document["tenants"][0]["under"][0]["passes"] is False
    episode = document["episodes"][0]
    assert episode["tenants"] == [EVIL]
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert document["verdict"]["sentence"] in page.text
    assert "</script><img" in page.text
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert str(place) not in json.dumps(document)


def test_json_has_the_paths_and_the_verdict(place: Path, tmp_path: Path) -> None:
    done = run(*options(place, tmp_path / "r.html"), "--json")
    found = json.loads(done.stdout)
    assert found["report"] == str(tmp_path / "r.html")
    assert found["verdict"]["groups"][0]["figures"][0]["metric"] == "scr"
    assert list(found) == ["report", "document", "schema_version", "verdict", "episodes", "tickets", "previous"]
    assert found["previous"] is None


def test_a_ticket_of_each_episode_stands_beside_the_page(place: Path, tmp_path: Path) -> None:
    found = json.loads(run(*options(place, tmp_path / "r.html"), "--json").stdout)
    document = json.loads((tmp_path / "r.json").read_bytes())
    wanted = [str(tmp_path / f"episode-{episode['id']}.md") for episode in document["episodes"]]
    assert found["tickets"] == wanted
    text = Path(wanted[0]).read_text(encoding="utf-8")
    assert text.startswith(f"# Episode {document['episodes'][0]['id']}\n")
    assert "## Who would gain and who would pay" in text
    assert "<img" not in text.replace("`</script><img", "")  # the name stands in a code span
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_difference_to_a_previous_report(place: Path, tmp_path: Path) -> None:
    run(*options(place, tmp_path / "first"), "--until", "2026-05-28T20:28:00Z", "--quiet")
    done = run(*options(place, tmp_path / "then"), "--previous", str(tmp_path / "first" / "report.json"))
    document = json.loads((tmp_path / "then" / "report.json").read_bytes())
    assert document["previous"]["until"] < document["period"]["until"]
    lines = done.stdout.splitlines()
    assert lines[2] == f"Since the previous report: {document['previous']['sentence']}"
    page = Page((tmp_path / "then" / "report.html").read_text(encoding="utf-8"))
    assert document["previous"]["sentence"] in page.text
    with pytest.raises(UsageError, match="cannot be read"):
        run(*options(place, tmp_path), "--previous", str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(BadInputError, match="no report document"):
        run(*options(place, tmp_path), "--previous", str(tmp_path / "bad.json"))


def test_a_redacted_report_has_a_key_of_its_own(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "apart" / "who.key"
    done = run(*options(place, tmp_path / "a"), "--redact", "tenant", "--redact-key", str(key))
    assert "keep it apart" in done.stderr
    assert key.stat().st_mode & 0o777 == 0o600
    files = list((tmp_path / "a").iterdir())
    assert {path.suffix for path in files} == {".html", ".json", ".md"}
    for path in files:
        text = opened(path.read_text(encoding="utf-8"))
        assert "calm" not in text
        assert "onerror" not in text
        assert key.read_text().strip() not in text
    again = run(*options(place, tmp_path / "b"), "--redact", "tenant", "--redact-key", str(key))
    assert "new key" not in again.stderr
    assert (tmp_path / "b" / "report.json").read_bytes() == (tmp_path / "a" / "report.json").read_bytes()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    run(*options(place, tmp_path / "c"), "--redact", "tenant", "--quiet")
    assert (tmp_path / "home" / "fairreplay" / "redact.key").exists()
    assert (tmp_path / "c" / "report.json").read_bytes() != (tmp_path / "a" / "report.json").read_bytes()


def test_wrong_redaction_is_refused(place: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.key"
    short.write_text("secret")
    for arguments, said in (
        (["--redact", "type"], "only 'tenant'"),
        (["--redact-key", "k"], "give both"),
        (["--redact", "tenant", "--redact-key", str(short)], "6 bytes, not 16 to 64"),
        (["--redact", "tenant", "--redact-key", str(tmp_path)], "cannot be read"),
        (["--redact", "tenant", "--redact-key", "/proc/none/k"], "cannot be made"),
    ):
        with pytest.raises(UsageError, match=said):
            run(*options(place, tmp_path / "x"), *arguments)


def test_period_without_requests(place: Path, tmp_path: Path) -> None:
    done = run(*options(place, tmp_path), "--since", "2030-01-01")
    assert done.stdout.startswith("No requests in the period: nothing to judge.")
    assert (tmp_path / "report.html").exists()


def test_errors_name_what_to_do(place: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="fairreplay ingest"):
        run("--store", str(tmp_path / "nowhere"))
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        run(*options(place, blocked / "r.html"))


def test_a_failed_write_leaves_the_last_report(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(*options(place, tmp_path), "--quiet")
    before = (tmp_path / "report.html").read_bytes()

    def full(_: Path, __: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UsageError, match="No space left"):
        run(*options(place, tmp_path), "--since", "2030-01-01")
    assert (tmp_path / "report.html").read_bytes() == before
    assert not list(tmp_path.glob("*.tmp"))


def test_same_bytes_under_any_hash_seed(place: Path, tmp_path: Path) -> None:
    digests = set()
    for seed in ("0", "1"):
        output = tmp_path / seed
        subprocess.run(
            [
                sys.executable,
                "-c",
                "from fairreplay.cli.app import main; main()",
                "report",
                *options(place, output),
                "--quiet",
            ],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
        )
        digests.add(
            tuple(hashlib.sha256((output / f"report.{kind}").read_bytes()).hexdigest() for kind in ("html", "json"))
        )
    assert len(digests) == 1
