"""Where logs come from: pipes, object stores, patterns, names that look like patterns."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairreplay.errors import BadInputError, UsageError
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.sources import expand, single
from fairreplay.store.store import open_store
from tests.s3 import put_object, s3_server

ROW = {"arrived_at_ms": 1772438400000, "prompt_tokens": 9, "output_tokens": 1}
NOWHERE = Path("no-store")


def line(name: str) -> bytes:
    return json.dumps(ROW | {"request_id": name, "tenant": name}).encode() + b"\n"


OBJECTS = {
    "prod/a.jsonl": line("a"),
    "prod/[ab].jsonl": line("brackets"),
    "prod/b.jsonl": line("b"),
    "prod/deep/c.jsonl.gz": gzip.compress(line("c"), mtime=0),
    "prod/.hidden": b"x",
    "prod/a.jsonl.rejects.jsonl": b"x",
    "bad.jsonl": b"x\n",
}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A local server that speaks S3, with a bucket ``logs`` of ``OBJECTS``; its address is in the environment."""
    with s3_server() as address:
        for path, content in OBJECTS.items():
            put(path, content)
        yield address


def put(path: str, content: bytes) -> None:
    put_object("logs", path, content)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("s3://logs/prod/a.jsonl", ["prod/a.jsonl"]),
        ("s3://logs/prod/[ab].jsonl", ["prod/[ab].jsonl"]),  # literal first
        ("s3://logs/prod/[a-b].jsonl", ["prod/a.jsonl", "prod/b.jsonl"]),
        ("s3://logs/*/*.jsonl", ["prod/[ab].jsonl", "prod/a.jsonl", "prod/b.jsonl"]),
        ("s3://logs/**/*.gz", ["prod/deep/c.jsonl.gz"]),
        ("s3://logs/prod/", ["prod/[ab].jsonl", "prod/a.jsonl", "prod/b.jsonl", "prod/deep/c.jsonl.gz"]),
    ],
)
def test_objects_folders_and_patterns(s3: str, name: str, found: list[str]) -> None:
    assert [source.shown for source in expand([name], NOWHERE)] == [f"s3://logs/{path}" for path in found]


def test_a_bucket_is_ingested_as_a_folder_is(s3: str, tmp_path: Path) -> None:
    summary = ingest(["s3://logs/prod"], tmp_path / "store", IngestOptions())
    assert summary.tenants == {"a": 1, "b": 1, "brackets": 1, "c": 1}
    assert [source.path for source in summary.sources][-1] == "s3://logs/prod/deep/c.jsonl.gz"
    store = open_store(tmp_path / "store")
    assert sorted(segment.name for segment in store.manifest.segments) == [
        "[ab].jsonl",
        "a.jsonl",
        "b.jsonl",
        "c.jsonl.gz",
    ]
    (tmp_path / "a.jsonl").write_bytes(OBJECTS["prod/a.jsonl"])
    assert ingest([str(tmp_path / "a.jsonl")], tmp_path / "store", IngestOptions()).sources[0].already


def test_an_address_may_say_where_its_server_is_and_its_keys_are_not_shown(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    server = s3.removeprefix("http://")
    name = f"s3://who:hidden@logs/prod/a.jsonl?endpoint_override={server}&scheme=http&region=us-east-1"
    (source,) = ingest([name], tmp_path / "store", IngestOptions()).sources
    assert source.path == "s3://logs/prod/a.jsonl"


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("s3://logs/nope.jsonl", UsageError, "s3://logs/nope.jsonl: no such object"),
        ("s3://logs/*.nope", UsageError, "no object matches"),
        ("s3://", UsageError, "names no bucket"),
        ("s3://*/a", UsageError, "a bucket has one name"),
        ("az://logs/a", UsageError, "set AZURE_STORAGE_ACCOUNT_NAME"),
        ("s3://logs/bad.jsonl", BadInputError, "^s3://logs/bad.jsonl: 1 of 1|^s3://logs/bad.jsonl: no known format"),
    ],
)
def test_what_is_wrong_with_an_object_is_said_by_its_name(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: type[Exception], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(error, match=said) as caught:
        ingest([name], tmp_path / "store", IngestOptions())
    assert "fairreplay-" not in str(caught.value)  # no name of a temporary folder
    assert not (tmp_path / "store").exists()


def test_rejects_of_an_object_are_left_in_the_working_folder(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = OBJECTS["prod/a.jsonl"] + json.dumps(ROW | {"prompt_tokens": 0}).encode()
    put("half.jsonl", content)
    with pytest.raises(BadInputError, match=r"s3://logs/half\.jsonl: 1 of 2 rows rejected .*see half\.jsonl\.rejects"):
        ingest(["s3://logs/half.jsonl"], tmp_path / "store", IngestOptions())
    assert json.loads((tmp_path / "half.jsonl.rejects.jsonl").read_text())["reason"] == "zero_prompt"


def test_standard_input_is_a_source_like_any_other(tmp_path: Path) -> None:
    program = "from fairreplay.cli.app import main; main()"
    command = [sys.executable, "-c", program, "ingest", "-", "--store", str(tmp_path / "store"), "--json"]
    done = subprocess.run(command, input=gzip.compress(line("piped")), capture_output=True, check=True)
    (source,) = json.loads(done.stdout)["sources"]
    assert (source["path"], source["format"], source["by_tenant"]) == ("-", "native", {"piped": 1})
    assert open_store(tmp_path / "store").manifest.segments[0].name == "stdin"


def test_a_pattern_without_a_match_and_a_name_that_stands_for_two(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file matches; check the pattern"):
        expand([str(tmp_path / "*.jsonl")], NOWHERE)
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(line(name))
    with pytest.raises(UsageError, match="2 files; name one"):
        single(str(tmp_path / "*.jsonl"), NOWHERE)


def test_the_same_name_twice_is_one_source(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(line("a"))
    names = [str(tmp_path), str(tmp_path / "a.jsonl"), str(tmp_path / "*.jsonl")]
    assert len(expand(names, NOWHERE)) == 1
    assert os.fspath(expand(names, NOWHERE)[0].path) == str(tmp_path / "a.jsonl")
