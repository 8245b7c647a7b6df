"""SQL over a store: numbers of the report again, every way out closed, every type in every kind of output."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from fairreplay.cli import console
from fairreplay.cli.app import app
from fairreplay.config.model import Config
from fairreplay.errors import UsageError
from fairreplay.export.results import Results
from fairreplay.export.sql import answer, interval, tables
from fairreplay.metrics.options import MeasureOptions
from fairreplay.report.gather import report_document
from fairreplay.store.session import session
from fairreplay.store.store import create_store
from fairreplay.trace.schema import COLUMNS
from tests.export.conftest import HOSTILE, Place


def asked(place: Place, query: str) -> pl.DataFrame:
    with answer(place.results, query) as found:
        return pl.concat([pl.DataFrame(schema=found.schema), *found.frames])


def command(place: Place, *arguments: str) -> str:
    options = ("--store", str(place.store.path), "--config", str(place.config_file))
    result = CliRunner().invoke(app, ["sql", *arguments, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


# -- the numbers of a report ------------------------------------------------------------------------------------------


def test_the_three_figures_of_the_report(arena: Place) -> None:
    document = report_document(arena.store, arena.config, arena.options)
    query = "SELECT avg(scr), avg(jfi), avg(tfr) FROM windows WHERE source = 'logged' AND NOT drain"
    (row,) = asked(arena, query).rows()
    stated = {figure["metric"]: figure["value"] for figure in document["verdict"]["groups"][0]["figures"]}
    assert row == pytest.approx((stated["scr"], stated["jfi"], stated["tfr"]), rel=1e-6)


@pytest.mark.parametrize(("source", "policy"), [("logged", None), ("fcfs", "fcfs"), ("vtc", "vtc")])
def test_the_ttft_quantiles_of_the_report(arena: Place, source: str, policy: str | None) -> None:
    """By nearest rank, as everywhere: ``quantile_disc``."""
    document = report_document(arena.store, arena.config, arena.options)
    (stated,) = [row for row in document["comparison"] if row["source"] == source]
    table = (
        "requests"
        if policy is None
        else f"replay_{policy} JOIN (SELECT request_id, arrived_at FROM requests) USING (request_id)"
    )
    ttft_us = "epoch_us(first_token_at) - epoch_us(arrived_at)"
    query = f"SELECT unnest(quantile_disc({ttft_us}, [.5, .9, .99])) / 1000 AS ms FROM {table}"
    assert asked(arena, query)["ms"].to_list() == pytest.approx(list(stated["ttft_ms"].values()), rel=1e-6)


def test_tenants_and_episodes_of_the_report(arena: Place) -> None:
    document = report_document(arena.store, arena.config, arena.options)
    found = asked(arena, "SELECT id, cause, share_burst FROM episodes WHERE source = 'logged'")
    (episode,) = document["episodes"]
    assert found["id"].to_list() == [episode["id"]]
    assert found["cause"].to_list() == [episode["cause"]]
    assert found["share_burst"][0] == pytest.approx(episode["shares"]["burst"], abs=1e-6)


def test_a_replay_beside_the_log(arena: Place) -> None:
    query = """SELECT count(*) FROM replay_vtc v JOIN requests r USING (request_id)
               WHERE v.first_token_at < r.first_token_at"""
    decided = arena.store.replay_requests(arena.results.replays()["vtc"])
    both = arena.store.requests().join(decided, on="request_id")
    assert asked(arena, query).item() == (both["first_token_at_right"] < both["first_token_at"]).sum()


# -- tables -----------------------------------------------------------------------------------------------------------


def test_the_listed_tables_have_the_listed_columns(arena: Place) -> None:
    known = tables(arena.results)
    names = arena.store.replay_names()
    assert list(known)[-4:] == ["replay_fcfs", "replay_vtc", *names]
    for name, table in known.items():
        assert asked(arena, f'FROM "{name}" LIMIT 0').columns == list(table.columns)
    assert set(asked(arena, "SHOW TABLES")["name"]) == set(known)


def test_an_empty_store(tmp_path: Path) -> None:
    place = Place(create_store(tmp_path / "store"), Config(), tmp_path / "none.toml", MeasureOptions())
    assert asked(place, "FROM requests").columns == list(COLUMNS)
    for table in ("rejects", "windows", "tenants", "types", "episodes", "replays"):
        assert asked(place, f"SELECT count(*) FROM {table}").item() == 0


def test_only_what_is_named_is_computed(arena: Place) -> None:
    results = Results(arena.store, arena.config, arena.options)
    with answer(results, "SELECT count(*) AS n FROM requests") as found:
        assert pl.concat(found.frames)["n"].item() == 1500
    assert "sources" not in vars(results)
    with answer(results, "SELECT count(*) FROM Windows") as found:
        list(found.frames)
    assert "sources" in vars(results)
    assert "judged" not in vars(results)


def test_a_replay_of_another_config_is_told_from_none(arena: Place) -> None:
    (stored,) = [name for name in arena.store.replay_names() if name.startswith("vtc-")]
    other = Results(arena.store, Config(), MeasureOptions())
    with pytest.raises(UsageError, match=f'is --config missing.*"{stored}"'), answer(other, "FROM replay_vtc") as found:
        list(found.frames)
    with answer(other, f'FROM "{stored}"') as found:
        assert pl.concat(found.frames).height == 1500


# -- what must fail ---------------------------------------------------------------------------------------------------

READING = [
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/proc/self/environ')",
    "SELECT * FROM read_json('/etc/hosts')",
    "SELECT * FROM read_parquet('{store}/segments/*.parquet')",
    "SELECT * FROM read_text('{store}/../../../../etc/passwd')",
    "SELECT * FROM parquet_metadata('/etc/passwd')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM glob('/etc/*')",
    "FROM '/etc/passwd'",
    "FROM '{store}/manifest.json'",
    "SELECT * FROM read_csv('https://example.com/a.csv')",
    "SELECT * FROM read_parquet('s3://bucket/a.parquet')",
    "SELECT * FROM 'hf://datasets/a/b.parquet'",
]
WRITING = [
    "COPY (SELECT 1) TO '{elsewhere}/evil.csv'",
    "COPY (SELECT 1) TO '{store}/segments/evil.parquet'",
    "COPY requests TO '{store}/manifest.json'",
    "WITH x AS (COPY (SELECT 1) TO '{store}/segments/evil.parquet') FROM x",
    "WITH x AS (COPY (SELECT 1) TO '{elsewhere}/evil.csv') FROM x",
    "SELECT * FROM query('WITH x AS (COPY (SELECT 1) TO ''{store}/evil.csv'') FROM x')",
    "EXPORT DATABASE '{elsewhere}/evil'",
    "ATTACH '{elsewhere}/evil.db'",
    "ATTACH '{store}/evil.db' AS evil",
    "INSERT INTO requests SELECT * FROM requests",
    "WITH x AS (INSERT INTO requests SELECT * FROM requests RETURNING *) FROM x",
    "WITH x AS (DELETE FROM rejects RETURNING *) FROM x",
    "UPDATE requests SET tenant = 'x'",
    "DELETE FROM requests",
    "DROP VIEW requests",
    "CREATE TABLE evil AS SELECT 1",
    "CREATE VIEW evil AS SELECT 1",
    "CREATE MACRO evil() AS 1",
    "TRUNCATE requests",
]
STEERING = [
    "INSTALL httpfs",
    "LOAD httpfs",
    "FORCE INSTALL spatial FROM community",
    "SET lock_configuration = false",
    "SET enable_external_access = true",
    "RESET disabled_filesystems",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "CALL enable_logging(storage = 'file', storage_path = '{elsewhere}/evil.csv')",
    "SELECT * FROM enable_logging(storage = 'file', storage_path = '{elsewhere}/evil.csv')",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{elsewhere}/evil.csv'",
    "BEGIN TRANSACTION",
    "COMMIT; COPY (SELECT 1) TO '{elsewhere}/evil.csv'",
    "SELECT 1; SELECT 2",
    "USE memory",
    "CHECKPOINT",
    "",
    "-- nothing",
    "SELEC 1",
    "SELECT nope FROM requests",
    "SELECT 'two\nlines' + 1 FROM requests",
    "PIVOT requests ON tenant",
]


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("query", [*READING, *WRITING, *STEERING])
def test_every_attack_is_one_clear_line(arena: Place, tmp_path: Path, query: str) -> None:
    before = contents(arena.store.path)
    with pytest.raises(UsageError, match=r"^sql: ") as raised:
        asked(arena, query.format(store=arena.store.path, elsewhere=tmp_path))
    assert "\n" not in str(raised.value)
    assert "root:" not in str(raised.value)
    assert contents(arena.store.path) == before
    assert list(tmp_path.iterdir()) == []


def test_the_session_is_locked_as_designed(arena: Place) -> None:
    settings = dict(asked(arena, "SELECT name, value FROM duckdb_settings()").iter_rows())
    for name in (
        "autoinstall_known_extensions",
        "autoload_known_extensions",
        "allow_community_extensions",
        "python_enable_replacements",
        "enable_external_access",
    ):
        assert settings[name] == "false"
    assert settings["lock_configuration"] == "true"
    assert settings["allowed_directories"] == f"[{arena.store.path}/]"


def test_variables_of_the_program_are_no_tables(arena: Place) -> None:
    frame = pl.DataFrame({"secret": [1]})
    with pytest.raises(UsageError, match="frame does not exist"):
        asked(arena, "FROM frame")
    assert frame.height == 1


def test_a_store_whose_name_is_hostile(tmp_path: Path) -> None:
    folder = tmp_path / "it's [a] * store"
    store = create_store(folder)
    with session(store.path, {"t": pl.DataFrame({"a": [1]}).to_arrow()}) as connection:
        assert connection.sql("SELECT a FROM t").fetchall() == [(1,)]


# -- what comes out ---------------------------------------------------------------------------------------------------

TYPES = """SELECT sum(prompt_tokens) AS s, 1.50 AS d, 99999999999999999999999999999999999999::HUGEINT AS h,
    INTERVAL 1 MONTH AS m, TIMESTAMPTZ '2026-01-02 03:04:05Z' - TIMESTAMPTZ '2026-01-01 03:04:04.5Z' AS i,
    {'a': 1, 'b': [DATE '2020-01-01']} AS st, MAP {'k': 1} AS mp, 'x'::BLOB AS b, DATE '2020-01-01' AS dd,
    TIME '01:02:03' AS t, [1, 2] AS l, ['=a', 'b'] AS la, 'nan'::DOUBLE AS n, NULL AS nu, true AS yes,
    TIMESTAMP '2020-01-01' AS ts, TIMESTAMPTZ '2020-01-01 00:00:00.5Z' AS tz, '' AS e, 1 AS a, 2 AS a, 3 AS a_2,
    'x'::ENUM('x', 'y') AS en, union_value(k := 1) AS un FROM requests"""


def test_every_type_as_json_csv_and_parquet(arena: Place, tmp_path: Path) -> None:
    row = json.loads(command(arena, TYPES, "--json"))["rows"][0]
    assert row["s"] == 204398
    assert (row["d"], row["h"]) == (1.5, 10**38 - 1)
    assert (row["m"], row["i"]) == ("1 month", "1 day 00:00:00.5")
    assert json.loads(row["st"]) == {"a": 1, "b": ["2020-01-01"]}
    assert (row["b"], row["dd"], row["t"], row["l"], row["la"]) == ("78", "2020-01-01", "01:02:03", [1, 2], ["=a", "b"])
    assert (row["n"], row["nu"], row["yes"], row["e"]) == (None, None, True, "")
    assert (row["ts"], row["tz"]) == ("2020-01-01T00:00:00.000000", "2020-01-01T00:00:00.500000Z")
    assert (row["a"], row["a_2"], row["a_2_2"]) == (1, 2, 3)
    assert (row["en"], json.loads(row["un"])) == ("x", 1)
    assert command(arena, TYPES, "--to", "csv").splitlines()[1].startswith("204398,1.5,")
    command(arena, TYPES, "--to", "parquet", "-o", str(tmp_path / "t.parquet"))
    assert pl.read_parquet(tmp_path / "t.parquet")["s"].to_list() == [204398]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((0, 0, 0), "00:00:00"),
        ((14, 0, 0), "1 year 2 months"),
        ((-1, 0, 0), "-1 month"),
        ((0, -2, 0), "-2 days"),
        ((0, 0, -1_500_000_000), "-00:00:01.5"),
        ((0, 0, 90_061_000_001_000), "25:01:01.000001"),
    ],
)
def test_intervals_as_duckdb_writes_them(parts: tuple[int, int, int], text: str) -> None:
    """Checked against ``CAST(... AS VARCHAR)`` of DuckDB itself."""
    import duckdb

    months, days, nanoseconds = parts
    query = f"SELECT CAST(to_months({months}) + to_days({days}) + to_microseconds({nanoseconds // 1000}) AS VARCHAR)"
    assert duckdb.sql(query).fetchall() == [(text,)]
    assert interval(*parts) == text


def test_hostile_names_in_the_terminal(hostile: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = command(hostile, "SELECT DISTINCT tenant FROM requests ORDER BY length(tenant)")
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert r"\u001b[31mred\u001b]0;title\u0007" in shown
    assert "[/x]%{y}" in shown
    assert len(shown.splitlines()) == 2 + len(HOSTILE)
    assert max(map(len, shown.splitlines())) <= console.GRID_CELL_MAX


@pytest.mark.parametrize("to", ["--json", "--to=jsonl"])
def test_hostile_names_are_literal_in_json(hostile: Place, to: str) -> None:
    text = command(hostile, "SELECT DISTINCT tenant FROM requests", to)
    rows: list[dict[str, Any]] = json.loads(text)["rows"] if to == "--json" else [*map(json.loads, text.splitlines())]
    assert {row["tenant"] for row in rows} == set(HOSTILE)


def test_hostile_names_as_values_and_columns(hostile: Place) -> None:
    for name in HOSTILE:
        quoted = name.replace("'", "''")
        assert asked(hostile, f"SELECT count(*) FROM requests WHERE tenant = '{quoted}'").item() == 12
    shown = command(hostile, 'SELECT 1 AS "\x1b[31m[/x]"')
    assert r"\u001b[31m[/x]" in shown


def test_many_rows_are_cut_in_the_terminal_alone(arena: Place) -> None:
    query = "SELECT i FROM range(1500) t(i)"
    assert len(command(arena, query).splitlines()) == 2 + 1000
    assert len(command(arena, query, "--to", "csv").splitlines()) == 1501
    assert len(json.loads(command(arena, query, "--json"))["rows"]) == 1500


def test_without_a_query_the_tables_are_listed(arena: Place) -> None:
    listed = json.loads(command(arena, "--json"))["tables"]
    assert [table["name"] for table in listed] == list(tables(arena.results))
    assert "episodes: episodes and their causes" in command(arena)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("SELECT 1", "--json", "--to", "csv"), "--json does not go with --to"),
        (("SELECT 1", "-o", "x.csv"), "say what to write with --to"),
        (("SELECT 1", "--to", "cvs"), "did you mean 'csv'"),
    ],
)
def test_options_that_do_not_go_together(arena: Place, arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        command(arena, *arguments)
