"""Commands on ``s3://``: the same files as in a folder, and the same words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fairreplay
from fairreplay.cli.app import app
from fairreplay.store import objects
from fairreplay.store import store as stores
from fairreplay.store.objects import ObjectPath, place
from tests.cli.logs import SETTINGS, digest, write_log
from tests.s3 import put_object, s3_server


@pytest.fixture(scope="module")
def bucket() -> Iterator[ObjectPath]:
    with s3_server():
        put_object("bucket", "x", b"x")
        found = place("s3://bucket/team")
        assert isinstance(found, ObjectPath)
        yield found


def run(*arguments: object, code: int = 0) -> str:
    """Each command is another process: it has no copy of the store."""
    stores._copy_of.cache_clear()
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    if code == 0 and done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert getattr(done.exception, "exit_code", done.exit_code) == code, done.output
    return done.stdout if code == 0 else str(done.exception)


def files(folder: ObjectPath) -> dict[str, str]:
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name, _ in folder.below() if name != "lock"
    }


def test_review_in_a_bucket_leaves_the_files_of_a_folder(
    bucket: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fairreplay.toml").write_text(SETTINGS)
    put_object("bucket", "team/logs/a.jsonl", write_log(tmp_path / "a.jsonl", late=[1]).read_bytes())
    (tmp_path / "logs").mkdir()
    write_log(tmp_path / "logs" / "a.jsonl", late=[1])
    said: list[dict[str, Any]] = []
    for where in (Path(), bucket):
        places = ("--store", str(where / "store"), "-o", str(where / "reports"), "--since", "last", "--json")
        said.append(json.loads(run("review", str(where / "logs"), *places)))
        name, content = "b.jsonl", write_log(tmp_path / "b.jsonl", day=1).read_bytes()
        if isinstance(where, Path):
            (where / "logs" / name).write_bytes(content)
        else:
            put_object("bucket", f"team/logs/{name}", content)
        said.append(json.loads(run("review", str(where / "logs"), *places)))
    for here, there in zip(said[:2], said[2:], strict=True):
        assert there["report"] == f"{bucket}/{here['report']}"
        assert there["ingest"]["store"] == f"{bucket}/store"
        assert there["verdict"] == here["verdict"]
        assert there["previous_report"] == (here["previous_report"] and f"{bucket}/{here['previous_report']}")
    assert said[3]["previous_report"]
    assert files(bucket / "store") == digest(Path("store"))
    assert files(bucket / "reports") == digest(Path("reports"))
    said_of = run("ingest", bucket / "store", "--store", bucket / "store", code=2)
    assert "no object matches but those of the store" in said_of
    assert "No review is due" in run(
        "review", bucket / "logs", "--store", bucket / "store", "-o", bucket / "reports", "--every", "14d"
    )


def test_every_reading_command_takes_an_address(bucket: ObjectPath, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(SETTINGS)
    store = bucket / "other"
    run("ingest", write_log(tmp_path / "a.jsonl", late=[1]), "--store", store)
    common = ("--store", store, "--config", tmp_path / "c.toml")
    run("replay", *common, "--policy", "vtc")
    run("report", *common, "-o", bucket / "page" / "p.html", "--previous", bucket / "reports" / "report.json")
    assert (bucket / "page" / "p.html").read_bytes()[:15].lower() == b"<!doctype html>"
    for command in (
        ("metrics", "--json"),
        ("episodes", "--json"),
        ("sql", "SELECT count(*) FROM replay_vtc"),
        ("export", "windows", "--to", "csv"),
        ("check",),
    ):
        assert run(*command, *common)
    assert len(fairreplay.sql("FROM requests", str(store))) == 90
    assert (
        str(fairreplay.report(f"{bucket}/api", str(store), config=tmp_path / "c.toml")) == f"{bucket}/api/report.html"
    )


def test_a_store_that_another_run_holds_ends_with_75(bucket: ObjectPath, tmp_path: Path) -> None:
    store = bucket / "held"
    with objects.lease(store, "lock"):
        said = run("ingest", write_log(tmp_path / "a.jsonl"), "--store", store, code=75)
    assert said.startswith(f"{store}: process ")
    assert "is none" not in run("metrics", "--store", "s3://bucket/nowhere", code=5)
    assert "write it as s3://bucket/path" in run("metrics", "--store", "s3:///nowhere", code=2)
