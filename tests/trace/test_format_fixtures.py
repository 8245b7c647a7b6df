"""Every folder of ``tests/data/formats``: a log in a foreign format and the canonical rows that it must give.

``expected.json`` is compared whole: rows, rejects, what was skipped, duplicates, counts, what ``auto`` decides.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from typer.testing import CliRunner

from fairreplay.cli.ingest import ingest
from fairreplay.errors import BadInputError
from fairreplay.store.store import open_store
from fairreplay.trace.containers import inspect
from fairreplay.trace.detect import detect
from fairreplay.trace.formats import FORMATS
from fairreplay.trace.schema import COLUMNS, TIME_COLUMNS

FIXTURES = Path(__file__).parents[1] / "data" / "formats"
CASES = [
    pytest.param(path.parent, case, id=f"{path.parent.name}: {case['name'].split(' (')[0][:60]}")
    for path in sorted(FIXTURES.glob("*/expected.json"))
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]
]
READABLE = [item for item in CASES if "refused" not in item.values[1]]
REFUSED = [item for item in CASES if "refused" in item.values[1]]
SAID = {"no_arrival_time": "no arrival time", "no_token_counts": "no token counts"}

APP = typer.Typer(pretty_exceptions_enable=False)
APP.command()(ingest)


def run(folder: Path, case: dict[str, Any], store: Path, *, auto: bool = False) -> dict[str, Any]:
    """``ingest --json`` of the case's log, with its arguments."""
    arguments = list(case["args"])
    if auto:
        at = arguments.index("--format")
        arguments[at + 1] = "auto"
    arguments = [str(folder / item) if item in case["inputs"] else item for item in arguments]
    result = CliRunner().invoke(APP, [str(folder / case["inputs"][0]), *arguments, "--store", str(store), "--json"])
    if result.exception is not None:
        raise result.exception
    (source,) = json.loads(result.stdout)["sources"]
    return source  # type: ignore[no-any-return]


def stored(store: Path) -> pl.DataFrame:
    return open_store(store).requests().sort("seq")


def instant(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def shown(value: object) -> object:
    """A rejected value, numbers by value: a log may write 0.0 for 0."""
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return value


def test_no_folder_is_passed_over() -> None:
    assert {path.name for path in FIXTURES.iterdir() if path.is_dir()} == {item.values[0].name for item in CASES}


@pytest.mark.parametrize(("folder", "case"), READABLE)
def test_every_record_becomes_what_it_must(folder: Path, case: dict[str, Any], tmp_path: Path) -> None:
    source = run(folder, case, tmp_path / "s")
    counts = case["counts"]
    assert source["source"] == case["source"]
    assert source["format"] == case["args"][case["args"].index("--format") + 1]
    assert {name: source[name] for name in ("rows", "accepted", "rejected", "duplicates", "skipped")} == {
        name: counts[name] for name in ("rows", "accepted", "rejected", "duplicates", "skipped")
    }
    assert source["rejects"] == counts["rejects"]
    assert source["rows"] == source["accepted"] + source["rejected"] + source["duplicates"]
    assert source["rows"] + source["skipped"] == counts["records"]

    store = open_store(tmp_path / "s")
    (segment,) = store.manifest.segments
    assert segment.skipped == dict(Counter(item["reason"] for item in case["skipped"]))
    assert set(case["unknown"]) == set(segment.empty_columns)

    rejects = store.rejects().sort("row").to_dicts()
    assert [(item["row"], item["reason"], item["column"], shown(item["value"])) for item in rejects] == [
        (item["record"], item["reason"], item["column"], shown(item["value"])) for item in case["rejects"]
    ]
    frame = stored(tmp_path / "s")
    left_out = {item["record"] for item in (*case["skipped"], *case["duplicates"])}
    assert left_out == set(range(counts["records"])) - set(frame["seq"]) - {item["row"] for item in rejects}


@pytest.mark.parametrize(("folder", "case"), READABLE)
def test_rows_are_the_expected_ones(folder: Path, case: dict[str, Any], tmp_path: Path) -> None:
    run(folder, case, tmp_path / "s")
    frame = stored(tmp_path / "s")
    rows = frame.drop("source").to_dicts()
    for row, expected in zip(rows, case["rows"], strict=True):
        for column in COLUMNS:
            if column == "source" or (column == "request_id" and expected[column] is None):
                continue
            if column in TIME_COLUMNS and expected[column] is not None:
                assert row[column] is not None, (row["seq"], column)
                apart = row[column] - instant(expected[column])
                assert abs(apart.total_seconds()) <= 1e-6, (row["seq"], column)
            else:
                assert row[column] == expected[column], (row["seq"], column)
    assert frame["request_id"].n_unique() == frame.height
    assert not frame["request_id"].is_in([""]).any()
    assert dict(frame["status"].value_counts().iter_rows()) == case["by_status"]
    assert dict(frame["tenant"].value_counts().iter_rows()) == case["by_tenant"]
    run(folder, case, tmp_path / "again")
    assert stored(tmp_path / "again").equals(frame)


@pytest.mark.parametrize(("folder", "case"), READABLE)
def test_rejects_stop_an_ingest_that_does_not_allow_them(folder: Path, case: dict[str, Any], tmp_path: Path) -> None:
    log = tmp_path / case["inputs"][0]
    for name in case["inputs"]:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    arguments = case["args"][: case["args"].index("--max-reject-rate")]
    strict = case | {"args": arguments}
    if case["counts"]["rejected"]:
        with pytest.raises(BadInputError, match="nothing was stored"):
            run(tmp_path, strict, tmp_path / "s")
        assert not (tmp_path / "s").exists()
        assert log.with_name(log.name + ".rejects.jsonl").exists()


@pytest.mark.parametrize(("folder", "case"), READABLE)
def test_auto_decides_for_it_alone(folder: Path, case: dict[str, Any], tmp_path: Path) -> None:
    path = folder / case["inputs"][0]
    sample = inspect(path).sample
    assert [item.name for item in FORMATS.values() if item.recognises(sample)] == [case["auto"]]
    assert detect(path, sample).name == case["auto"]
    assert run(folder, case, tmp_path / "s", auto=True)["format"] == case["auto"]


@pytest.mark.parametrize(("folder", "case"), REFUSED)
@pytest.mark.parametrize("auto", [False, True])
def test_what_cannot_be_replayed_is_refused(folder: Path, case: dict[str, Any], auto: bool, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=SAID[case["refused"]]):
        run(folder, case, tmp_path / "s", auto=auto)
    assert BadInputError.exit_code == 3
    assert not (tmp_path / "s").exists()
    sample = inspect(folder / case["inputs"][0]).sample
    assert [item.name for item in FORMATS.values() if item.recognises(sample)] == [case["auto"]]
