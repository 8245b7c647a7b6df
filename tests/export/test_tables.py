"""Exported tables: every canonical column, explicit nulls, exact times, no spreadsheet formulas, the log's order."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from fairreplay.config.model import Config
from fairreplay.errors import StoreError, UsageError
from fairreplay.export.results import EPISODE_SCHEMA, Results
from fairreplay.export.tables import BLOCK_ROWS, TABLES, WRITERS, decision_schema, export
from fairreplay.metrics.measure import WINDOW_SCHEMA
from fairreplay.metrics.options import MeasureOptions
from fairreplay.sandbox.replay import replay
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import Store, create_store, open_store
from fairreplay.trace.schema import COLUMNS, SCHEMA
from tests.export.conftest import HOSTILE, Place

DATA = Path(__file__).parents[1] / "data"
FIRST = 1772438400000000
"""2026-03-02T08:00:00Z"""


def record(arrived_us: int, **more: Any) -> dict[str, Any]:
    return {"arrived_at_us": FIRST + arrived_us, "prompt_tokens": 5, "output_tokens": 7} | more


def stored(tmp_path: Path, *records: dict[str, Any] | str) -> Store:
    lines = [item if isinstance(item, str) else json.dumps(item) for item in records]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    ingest([str(tmp_path / "log.jsonl")], tmp_path / "store", IngestOptions(max_reject_rate=1))
    return open_store(tmp_path / "store")


def exported(store: Store, table: str, kind: str, config: Config | None = None, **period: Any) -> bytes:
    stream = io.BytesIO()
    export(Results(store, config or Config(), MeasureOptions(**period)), table, kind, stream)
    return stream.getvalue()


def rows_of(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


def test_an_empty_store_gives_empty_tables(tmp_path: Path) -> None:
    store = create_store(tmp_path / "store")
    assert exported(store, "requests", "jsonl") == b""
    assert exported(store, "requests", "csv") == (",".join(COLUMNS) + "\n").encode()
    assert pl.read_parquet(exported(store, "requests", "parquet")).schema == pl.Schema(SCHEMA)


def test_the_rows_of_a_fixture_by_hand(tmp_path: Path) -> None:
    """The nine rows that ``azure2024/expected.json`` lists, every column; the log is not in order of time."""
    folder = DATA / "azure2024"
    expected = json.loads((folder / "expected.json").read_text())["cases"][0]
    ingest([str(next(folder.glob("*.csv")))], tmp_path / "store", IngestOptions(max_reject_rate=1))
    rows = rows_of(exported(open_store(tmp_path / "store"), "requests", "jsonl"))
    assert list(rows[0]) == list(COLUMNS)
    assert {row.pop("source") for row in rows} == {expected["source"]}
    ids = [row.pop("request_id") for row in rows]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    assert rows == [{key: row[key] for key in row if key != "request_id"} for row in expected["rows"]]


def test_every_type_in_every_kind(tmp_path: Path) -> None:
    full = record(
        250_001,
        request_id="r1",
        tenant='acmé, "inc"\n\u2028',
        type="chat",
        first_token_at_us=FIRST + 999_999,
        priority=-3,
        preemptions=0,
        weight=0.1,
        prefix_ids=[1, 2**64 - 1],
    )
    store = stored(tmp_path, full, record(0))
    first, second = rows_of(exported(store, "requests", "jsonl"))
    assert first["tenant"] == full["tenant"]
    assert first["arrived_at"] == "2026-03-02T08:00:00.250001Z"
    assert first["first_token_at"] == "2026-03-02T08:00:00.999999Z"
    assert (first["priority"], first["preemptions"], first["weight"]) == (-3, 0, 0.1)
    assert first["prefix_ids"] == [1, 18446744073709551615]
    assert second["arrived_at"] == "2026-03-02T08:00:00.000000Z"
    assert second["prefix_ids"] is None
    assert second["preemptions"] is None

    cells = list(csv.DictReader(io.StringIO(exported(store, "requests", "csv").decode(), newline="")))
    assert cells[0]["tenant"] == full["tenant"]
    assert cells[0]["prefix_ids"] == "[1,18446744073709551615]"
    assert (cells[0]["priority"], cells[0]["seq"]) == ("-3", "0")
    assert (cells[1]["prefix_ids"], cells[1]["model"]) == ("", "")

    table = pq.read_table(io.BytesIO(exported(store, "requests", "parquet")))
    assert str(table.schema.field("arrived_at").type) == "timestamp[us, tz=UTC]"
    assert str(table.schema.field("tenant").type) == "string"
    assert str(table.schema.field("prefix_ids").type) == "list<element: uint64>"
    assert table.to_pylist()[0]["prefix_ids"] == [1, 2**64 - 1]


def test_a_parquet_export_can_be_ingested_again(tmp_path: Path) -> None:
    store = stored(tmp_path, *(record(index, request_id=f"r{index}", tenant="a") for index in range(5)))
    (tmp_path / "again.parquet").write_bytes(exported(store, "requests", "parquet"))
    ingest([str(tmp_path / "again.parquet")], tmp_path / "other", IngestOptions())
    other = open_store(tmp_path / "other").requests()
    assert other.drop("source").equals(store.requests().drop("source"))


@pytest.mark.parametrize("name", ["=1+1", "+1-1", "-x", "@sum", "\tx", "=cmd|' /C calc'!A0"])
def test_a_name_never_becomes_a_formula(tmp_path: Path, name: str) -> None:
    store = stored(tmp_path, record(0, tenant=name))
    cells = next(csv.DictReader(io.StringIO(exported(store, "requests", "csv").decode(), newline="")))
    assert cells["tenant"] == "'" + name
    assert rows_of(exported(store, "requests", "jsonl"))[0]["tenant"] == name


def test_a_number_is_no_formula(tmp_path: Path) -> None:
    store = stored(tmp_path, record(0, tenant="-17"), record(1, output_tokens=-7))
    assert b",-17," in exported(store, "requests", "csv")
    assert b",output_tokens,-7,negative_tokens," in exported(store, "rejects", "csv")


def test_rejects_name_file_row_column_value_and_reason(tmp_path: Path) -> None:
    store = stored(tmp_path, record(0), record(1, prompt_tokens=0), "{")
    zero, broken = rows_of(exported(store, "rejects", "jsonl"))
    assert zero == {
        "file": "log.jsonl",
        "source": store.manifest.segments[0].source,
        "row": 1,
        "column": "prompt_tokens",
        "value": "0",
        "reason": "zero_prompt",
        "line": json.dumps(record(1, prompt_tokens=0)),
    }
    assert (broken["row"], broken["column"], broken["reason"]) == (2, None, "unparsable_record")


def test_a_period_and_rejects_without_one(tmp_path: Path) -> None:
    store = stored(tmp_path, record(0), record(1_000_000), record(2_000_000))
    since, until = datetime(2026, 3, 2, 8, 0, 1, tzinfo=UTC), datetime(2026, 3, 2, 8, 0, 2, tzinfo=UTC)
    rows = rows_of(exported(store, "requests", "jsonl", since=since, until=until))
    assert [row["seq"] for row in rows] == [1]
    with pytest.raises(UsageError, match="a reject may have no time"):
        exported(store, "rejects", "jsonl", since=since)


@pytest.mark.parametrize(("table", "kind"), [("request", "jsonl"), ("requests", "json")])
def test_unknown_names_are_usage_errors(tmp_path: Path, table: str, kind: str) -> None:
    with pytest.raises(UsageError, match=r"did you mean|known"):
        exported(create_store(tmp_path / "store"), table, kind)


def test_blocks_make_no_difference(tmp_path: Path) -> None:
    """More rows than one block: none lost at the border, still one table of each kind."""
    rows = BLOCK_ROWS + 3
    frame = pl.DataFrame({"arrived_at_us": pl.int_range(FIRST, FIRST + rows, eager=True).reverse()})
    frame = frame.with_columns(prompt_tokens=pl.lit(1), output_tokens=pl.lit(1))
    frame.write_parquet(tmp_path / "log.parquet")
    ingest([str(tmp_path / "log.parquet")], tmp_path / "store", IngestOptions())
    store = open_store(tmp_path / "store")
    assert set(WRITERS) == {"jsonl", "csv", "parquet"}
    assert set(TABLES) == {"requests", "rejects", "windows", "tenants", "types", "episodes", "decisions"}
    assert pl.read_ndjson(exported(store, "requests", "jsonl"))["seq"].to_list() == list(range(rows))
    assert pl.read_csv(exported(store, "requests", "csv"))["seq"].to_list() == list(range(rows))
    assert pl.read_parquet(exported(store, "requests", "parquet"))["seq"].to_list() == list(range(rows))


def exported_of(place: Place, table: str, kind: str) -> bytes:
    stream = io.BytesIO()
    export(place.results, table, kind, stream)
    return stream.getvalue()


def test_decisions_stand_side_by_side(arena: Place) -> None:
    """Every cell against the store: the log's own rows, and those of each replay."""
    table = pl.read_parquet(exported_of(arena, "decisions", "parquet"))
    logged = arena.store.requests().sort("seq")
    assert table["request_id"].equals(logged["request_id"])
    for what in ("scheduled_at", "first_token_at", "finished_at", "status", "preemptions"):
        names = [name for name in table.columns if name.startswith(what)]
        assert names == [f"{what}_logged", f"{what}_fcfs", f"{what}_vtc"]
        assert table[f"{what}_logged"].equals(logged[what])
    for name in arena.store.replay_names():
        policy = name.rpartition("-")[0]
        replayed = logged.select("request_id").join(
            arena.store.replay_requests(name), on="request_id", how="left", maintain_order="left"
        )
        for what in ("scheduled_at", "first_token_at", "finished_at", "status", "preemptions"):
            assert table[f"{what}_{policy}"].equals(replayed[what])


def test_a_request_that_a_replay_left_out_has_nulls(tmp_path: Path) -> None:
    refused = record(1, request_id="refused", status="rejected", prompt_tokens=None, output_tokens=None)
    store = stored(tmp_path, record(0, request_id="served"), refused)
    replay(store, Config(), ["fcfs"])
    served, left_out = rows_of(exported(store, "decisions", "jsonl"))
    assert (served["status_logged"], served["status_fcfs"], served["preemptions_logged"]) == ("ok", "ok", None)
    assert (left_out["status_logged"], left_out["status_fcfs"]) == ("rejected", None)


@pytest.mark.parametrize("keep", [0, 400])
def test_a_damaged_replay_is_an_error_of_the_store(tmp_path: Path, keep: int) -> None:
    store = stored(tmp_path, *(record(index, request_id=f"r{index}") for index in range(9)))
    replay(store, Config(), ["fcfs"])
    file = store.replay_file(store.replay_names()[0])
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(StoreError, match="missing or damaged"):
        exported(store, "decisions", "jsonl")


def test_decisions_without_any_replay(tmp_path: Path) -> None:
    (row,) = rows_of(exported(stored(tmp_path, record(0, request_id="r")), "decisions", "jsonl"))
    assert list(row) == list(decision_schema([]))
    assert row["arrived_at"] == "2026-03-02T08:00:00.000000Z"


def test_windows_are_those_of_metrics(arena: Place) -> None:
    rows = rows_of(exported_of(arena, "windows", "jsonl"))
    assert list(dict.fromkeys(row["source"] for row in rows)) == ["logged", "fcfs", "vtc"]
    for source in arena.results.sources:
        mine = [row for row in rows if row["source"] == source.name]
        assert [row["scr"] for row in mine] == source.measured.windows["scr"].to_list()
        assert [row["failing"] for row in mine] == source.measured.windows["failing"].to_list()
    cells = list(csv.DictReader(io.StringIO(exported_of(arena, "windows", "csv").decode(), newline="")))
    assert [json.loads(cell["failing"]) for cell in cells] == [row["failing"] for row in rows]
    assert pl.read_parquet(exported_of(arena, "windows", "parquet")).schema == pl.Schema(WINDOW_SCHEMA)


def test_episodes_have_their_causes(arena: Place) -> None:
    rows = rows_of(exported_of(arena, "episodes", "jsonl"))
    assert list(rows[0]) == list(EPISODE_SCHEMA)
    (logged,) = [row for row in rows if row["source"] == "logged"]
    (judged,) = arena.results.judged[0].episodes
    assert (logged["id"], logged["cause"], logged["scr"]) == (judged.id, judged.cause, judged.metrics["scr"])
    shares = [logged[name] for name in logged if name.startswith("share_") and logged[name] is not None]
    assert sum(shares) == pytest.approx(1)
    assert logged["start"] == "1970-01-01T00:02:00.000000Z"


def test_empty_results_have_their_columns(tmp_path: Path) -> None:
    store = create_store(tmp_path / "store")
    for table, schema in (("windows", WINDOW_SCHEMA), ("episodes", EPISODE_SCHEMA)):
        assert exported(store, table, "csv") == (",".join(schema) + "\n").encode()


@pytest.mark.parametrize("table", ["requests", "decisions", "windows", "tenants", "types", "episodes"])
def test_hostile_names_stand_literally_and_run_nothing(hostile: Place, table: str) -> None:
    rows = rows_of(exported_of(hostile, table, "jsonl"))
    said = {name for row in rows for name in _texts(row)}
    assert set(HOSTILE) <= said
    text = exported_of(hostile, table, "csv").decode()
    for row in csv.reader(io.StringIO(text, newline="")):
        assert not [cell for cell in row if cell[:1] in ("=", "+", "@", "\t", "\r") and cell not in ("", "-")]
    parquet = pl.read_parquet(exported_of(hostile, table, "parquet"))
    assert parquet.height == len(rows)


def _texts(row: dict[str, Any]) -> list[str]:
    found = [value for value in row.values() if isinstance(value, str)]
    return found + [name for value in row.values() if isinstance(value, list) for name in value]


def test_sorting_on_disk_bounds_the_memory(tmp_path: Path) -> None:
    """A log in no order at all, larger than what a session may hold, comes out in its own order."""
    rows = 200_000
    frame = pl.DataFrame({"arrived_at_us": pl.Series(range(FIRST, FIRST + rows)).shuffle(7)})
    frame = frame.with_columns(prompt_tokens=pl.lit(1), output_tokens=pl.lit(1), session_id=pl.lit("s" * 200))
    frame.write_parquet(tmp_path / "log.parquet")
    ingest([str(tmp_path / "log.parquet")], tmp_path / "store", IngestOptions())
    table = pl.read_parquet(exported(open_store(tmp_path / "store"), "decisions", "parquet"))
    assert table["seq"].to_list() == list(range(rows))
    assert table["arrived_at"].to_physical().to_list() == frame["arrived_at_us"].to_list()
