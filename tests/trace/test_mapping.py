"""Mapping files: what every key of the form does, and what an error in one says."""

from __future__ import annotations

import copy
import json
import tempfile
import tomllib
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fairreplay.cli.ingest import ingest
from fairreplay.errors import BadInputError, FairReplayError, UsageError
from fairreplay.trace.formats import FORMATS
from fairreplay.trace.map_reader import split_path
from fairreplay.trace.mapping import draft, load_mapping, parse_mapping
from fairreplay.trace.read import SourceRead, read_source
from fairreplay.trace.reject import REASONS
from fairreplay.trace.rules import Reading
from tests.trace.test_nested_fuzz import ODD, places

DATA = Path(__file__).parents[1] / "data"

GATEWAY = r"""
version = 1
name = "acme-gateway"                     # becomes the format's name in the summary

[read]
kind = "jsonl"
keep = [{ column = "event", in = ["done"] }]        # the rest is skipped: not_a_request

[clock.wall]
kind = "wall"
format = "%d/%m/%Y %H:%M:%S%.f"
tz = "Europe/Berlin"
[clock.mono]
kind = "relative"
unit = "ns"

[columns]
request_id     = "req.id"
arrived_at     = { column = "ts", clock = "wall" }
scheduled_at   = { column = "queue_ms", unit = "ms", after = "arrived_at" }
first_token_at = { column = "ttft", unit = "s", after = "arrived_at", null = ["0", "-1"] }
finished_at    = { column = "t_end", clock = "mono", minus = "t_start", after = "arrived_at" }
prompt_tokens  = { sum = ["usage.input", "usage.cached"] }
output_tokens  = "usage.output"
cached_tokens  = { column = "usage.cached" }
priority       = { column = "prio", negate = true }
session_id     = { column = "conv", default = "none" }
tenant         = { column = "headers.authorization", regex = '^Bearer sk-([a-z0-9]+)-', else = ["team", "user"] }

[constants]
model = "small-8b"
precision = "fp8"

[status]
column = "code"
map = { "200" = "ok", "429" = "rejected", "503" = "rejected", "499" = "cancelled" }
default = "failed"

[[type]]
when = { column = "path", regex = "/embeddings$" }
is = "embed"
[[type]]
when = { column = "usage.input", min = 8192 }
is = "long"
[[type]]
is = "chat"
"""

FIRST = {
    "event": "done",
    "req": {"id": "a1"},
    "ts": "02/03/2026 09:00:00.1234567",
    "queue_ms": 12.5,
    "ttft": 0.25,
    "t_start": 9_007_199_254_740_993,
    "t_end": 9_007_199_254_740_993 + 1_500_000_500,
    "usage": {"input": 100, "cached": 28, "output": 40},
    "prio": 3,
    "conv": "c9",
    "headers": {"authorization": "Bearer sk-acme7-XYZ", "accept": "*/*"},
    "team": "team-a",
    "user": "u",
    "code": 200,
    "path": "/v1/chat/completions",
}


def log(tmp_path: Path, *records: Any) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(path: Path, mapping: str, **reading: Any) -> SourceRead:
    return read_source(path, Reading(**reading), parse_mapping(mapping, "map.toml"))


def first_row(path: Path, mapping: str, **reading: Any) -> dict[str, Any]:
    result = read(path, mapping, **reading)
    assert not result.rejects, result.rejects
    return result.frame.row(0, named=True)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_every_key_of_the_form(tmp_path: Path) -> None:
    row = first_row(log(tmp_path, FIRST), GATEWAY)
    assert {name: value for name, value in row.items() if name != "source"} == {
        "request_id": "a1",
        "tenant": "acme7",
        "type": "chat",
        "model": "small-8b",
        "replica": None,
        "arrived_at": at("2026-03-02T08:00:00.123457"),  # Berlin, seven digits, half to even
        "prompt_tokens": 128,
        "output_tokens": 40,
        "cached_tokens": 28,
        "priority": -3,
        "scheduled_at": at("2026-03-02T08:00:00.135957"),  # .1234567 + .0125, summed before it is rounded
        "first_token_at": at("2026-03-02T08:00:00.373457"),
        "finished_at": at("2026-03-02T08:00:01.623457"),  # marks beyond 2**53 keep their last digits
        "status": "ok",
        "preemptions": None,
        "recomputed_tokens": None,
        "weight": None,
        "batch_utilization": None,
        "precision": "fp8",
        "session_id": "c9",
        "prefix_ids": None,
        "seq": 0,
    }


@pytest.mark.parametrize(
    ("change", "column", "value"),
    [
        ({"headers": {"authorization": "Bearer other"}}, "tenant", "team-a"),
        ({"headers": {}}, "tenant", "team-a"),
        ({"headers": '{"authorization": "Bearer sk-inside-1"}'}, "tenant", "inside"),
        ({"headers": None, "team": "", "user": 7}, "tenant", "7"),
        ({"headers": None, "team": None, "user": "-"}, "tenant", "default"),
        ({"conv": None}, "session_id", "none"),
        ({"ttft": 0}, "first_token_at", None),
        ({"ttft": "-1"}, "first_token_at", None),
        ({"ttft": 0.0}, "first_token_at", None),
        ({"t_start": 0}, "finished_at", None),
        ({"queue_ms": -1}, "scheduled_at", None),
        ({"prio": None}, "priority", None),
        ({"prio": "-2"}, "priority", 2),
        ({"code": "429"}, "status", "rejected"),
        ({"code": 503.0}, "status", "rejected"),
        ({"code": 418}, "status", "failed"),
        ({"code": None}, "status", "failed"),
        ({"path": "/v1/embeddings"}, "type", "embed"),
        ({"usage": {"input": 8192, "cached": 0, "output": 1}}, "type", "long"),
        ({"usage": {"input": "8192", "cached": None, "output": 1}}, "prompt_tokens", 8192),
        ({"usage": '{"input": 5, "cached": 2, "output": 1}'}, "prompt_tokens", 7),
    ],
)
def test_values_that_are_not_as_usual(tmp_path: Path, change: dict[str, Any], column: str, value: Any) -> None:
    result = read(log(tmp_path, FIRST, FIRST | {"req": {"id": "a2"}} | change), GATEWAY)
    assert not result.rejects
    assert result.frame[column][1] == value


@pytest.mark.parametrize(
    ("change", "reject"),
    [
        ({"ts": "2026-03-02T08:00:00Z"}, ("unparsable_time", "ts", "2026-03-02T08:00:00Z")),
        ({"ts": "31/02/2026 08:00:00"}, ("unparsable_time", "ts", "31/02/2026 08:00:00")),
        ({"ts": None}, ("missing_time", "ts", None)),
        ({"usage": {"input": 1, "output": "x"}}, ("unparsable_number", "usage.output", "x")),
        ({"usage": {"cached": 1, "output": 1}}, ("missing_tokens", "usage.input + usage.cached", None)),
        ({"usage": {"input": 5, "cached": -1, "output": 1}}, ("negative_tokens", "usage.input + usage.cached", "-1")),
        ({"usage": {"input": "x", "output": 1}}, ("unparsable_number", "usage.input + usage.cached", "x")),
        ({"usage": {"input": 1, "output": 1.5}}, ("fractional_tokens", "usage.output", "1.5")),
        ({"usage": {"input": 0, "output": 1}}, ("zero_prompt", "usage.input + usage.cached", "0")),
        ({"prio": "high"}, ("unparsable_number", "prio", "high")),
        ({"queue_ms": -2}, ("scheduled_before_arrival", "queue_ms", "-2")),
        ({"t_end": 1}, ("finish_before_arrival", "t_end", "1")),
    ],
)
def test_rejects_name_what_the_mapping_names(tmp_path: Path, change: dict[str, Any], reject: Any) -> None:
    (found,) = read(log(tmp_path, FIRST, FIRST | change), GATEWAY).rejects
    assert (found.reason, found.column, found.value) == reject
    assert found.row == 1


def test_records_that_are_not_kept_are_skipped(tmp_path: Path) -> None:
    result = read(log(tmp_path, {"event": "start"}, FIRST, {"event": None}, {"no": "event"}), GATEWAY)
    assert (result.skipped, result.rows, result.frame["seq"].to_list()) == ({"not_a_request": 3}, 1, [1])


def test_what_is_kept_of_a_reject_has_the_order_of_its_record(tmp_path: Path) -> None:
    (reject,) = read(log(tmp_path, FIRST | {"ts": "?"}), GATEWAY).rejects
    as_they_stand = ("ts", "queue_ms", "t_start", "t_end", "conv", "team", "user")
    assert tuple(name for name in json.loads(reject.line) if name in as_they_stand) == as_they_stand


def test_a_relative_clock_under_a_path_is_an_assumption(tmp_path: Path) -> None:
    path = log(tmp_path, {"a": {"t": 1500}, "p": 1, "o": 1})
    said = read(path, plain(arrived="a.t", clock='kind = "relative"\nunit = "ms"')).assumptions
    assert said[0] == "a.t counts ms from the log's own start, taken as 1970-01-01T00:00:00.000000Z (--t0)"


def test_no_text_that_is_not_mapped_is_kept_of_a_reject(tmp_path: Path) -> None:
    path = log(tmp_path, FIRST, FIRST | {"ts": "?", "prompt": "my secret", "body": {"messages": ["my secret"]}})
    path.write_text(path.read_text() + '{"ts": "x", "prompt": "my secret and no end\n')
    rejects = read(path, GATEWAY).rejects
    assert [item.reason for item in rejects] == ["unparsable_time", "unparsable_record"]
    assert not any("secret" in f"{item.line}{item.value}" for item in rejects)


PLAIN = """
version = 1
name = "plain"
[read]
kind = "{kind}"
{read}
[clock.c]
{clock}
[columns]
arrived_at = {{ column = "{arrived}", clock = "c" }}
prompt_tokens = "{prompt}"
output_tokens = "{output}"
{more}
"""


def plain(kind: str = "jsonl", clock: str = 'kind = "wall"', read: str = "", more: str = "", **names: str) -> str:
    return PLAIN.format(
        kind=kind, clock=clock, read=read, more=more, **({"arrived": "t", "prompt": "p", "output": "o"} | names)
    )


@pytest.mark.parametrize(
    ("clock", "value", "arrived"),
    [
        ('kind = "wall"', "2026-03-02T08:00:00.5+01:00", "2026-03-02T07:00:00.5"),
        ('kind = "wall"', "2026-03-02 08:00:00", "2026-03-02T13:00:00"),  # --tz of the test: New York
        ('kind = "wall"\ntz = "Asia/Tokyo"', "2026-03-02 08:00:00", "2026-03-01T23:00:00"),
        ('kind = "wall"\nformat = "%d/%b/%Y:%H:%M:%S %z"', "02/Mar/2026:08:00:00 +0100", "2026-03-02T07:00:00"),
        ('kind = "wall"\nformat = "%Y%m%d%H%M%S%3f"', "20260302080000250", "2026-03-02T13:00:00.25"),
        ('kind = "epoch"\nunit = "s"', Decimal("1772438400.0000005"), "2026-03-02T08:00:00"),  # half to even
        ('kind = "epoch"\nunit = "ns"', 1_772_438_400_000_001_500, "2026-03-02T08:00:00.000002"),
        ('kind = "epoch"\nunit = "ms"', "1772438400001", "2026-03-02T08:00:00.001"),
        ('kind = "relative"\nunit = "ms"', 1500, "1970-01-01T00:00:01.5"),
        ('kind = "relative"\nunit = "us"', 0, "1970-01-01T00:00:00"),
    ],
)
def test_clocks(tmp_path: Path, clock: str, value: Any, arrived: str) -> None:
    from zoneinfo import ZoneInfo

    path = tmp_path / "log"
    text = str(value) if isinstance(value, Decimal) else json.dumps(value)
    path.write_text(f'{{"t": {text}, "p": 1, "o": 1}}\n')
    row = first_row(path, plain(clock=clock), zone=ZoneInfo("America/New_York"), zone_name="America/New_York")
    assert row["arrived_at"] == at(arrived)


def test_the_mapping_of_the_readme(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    mapping = next(block for block in readme.split("```toml\n") if block.startswith("version = 1")).split("```")[0]
    row = first_row(log(tmp_path, FIRST), mapping)
    assert (row["tenant"], row["type"], row["prompt_tokens"]) == ("acme7", "chat", 128)
    assert row["arrived_at"] == at("2026-03-02T08:00:00.123457")


def test_a_zone_of_the_mapping_is_no_assumption(tmp_path: Path) -> None:
    path = log(tmp_path, {"t": "2026-03-02 08:00:00", "p": 1, "o": 1})
    assert any("--tz" in line for line in read(path, plain()).assumptions)
    assert not any("--tz" in line for line in read(path, plain(clock='kind = "wall"\ntz = "UTC"')).assumptions)


def test_a_duration_may_count_from_an_earlier_time(tmp_path: Path) -> None:
    """vLLM's ``time_to_first_token_ms`` counts from scheduling; where the queue is unknown, so is the first token."""
    mapping = plain(
        more="""
        scheduled_at = { column = "queue_time_ms", unit = "ms", after = "arrived_at" }
        first_token_at = { column = "time_to_first_token_ms", unit = "ms", after = "scheduled_at" }
        finished_at = { sum = ["queue_time_ms", "run_ms"], unit = "ms", after = "arrived_at" }
        """
    )
    record = {"t": "2026-03-02T08:00:00Z", "p": 1, "o": 1, "queue_time_ms": 40, "time_to_first_token_ms": 60.25}
    rows = read(log(tmp_path, record | {"run_ms": 100}, record | {"queue_time_ms": -1, "run_ms": 100}), mapping).frame
    assert rows["first_token_at"].to_list() == [at("2026-03-02T08:00:00.100250"), None]
    assert rows["finished_at"].to_list() == [at("2026-03-02T08:00:00.140"), None]


def test_csv_with_another_delimiter_and_without_header(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text('2026-03-02T08:00:00Z;"a;b";512;7\r\n2026-03-02T08:00:01Z;c,d;"513";"8"')
    mapping = plain("csv", arrived="c0", prompt="c2", output="c3", read='delimiter = ";"\nheader = false')
    frame = read(path, mapping + 'tenant = "c1"\n').frame
    assert frame.select("tenant", "prompt_tokens", "output_tokens", "seq").rows() == [
        ("a;b", 512, 7, 0),
        ("c,d", 513, 8, 1),
    ]


def test_csv_with_a_header_and_json_in_a_cell(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text('t\tp\to\tmeta\n2026-03-02T08:00:00Z\t1\t2\t"{""team"": {""id"": 5}}"\n')
    assert first_row(path, plain("csv", read='delimiter = "\\t"') + 'tenant = "meta.team.id"\n')["tenant"] == "5"


def test_a_path_into_a_document(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    rows = [{"t": "2026-03-02T08:00:00Z", "p": n, "o": 1} for n in (1, 2)]
    path.write_text(json.dumps({"result": {"items": rows}}, indent=1))
    mapping = plain("json", read='records = "result.items"')
    assert read(path, mapping).frame["prompt_tokens"].to_list() == [1, 2]
    path.write_text(json.dumps({"result": {"items": rows}}))
    assert read(path, mapping).frame["seq"].to_list() == [0, 1]
    with pytest.raises(UsageError, match=r"read.records: no array at 'result.itms'; did you mean 'result.items'"):
        read(path, plain("json", read='records = "result.itms"'))
    path.write_text(json.dumps(rows))
    assert read(path, plain("json")).frame.height == 2


@pytest.mark.parametrize("indent", [None, 1])
def test_data_is_a_key_like_any_other(tmp_path: Path, indent: int | None) -> None:
    """Only formats whose API has pages look for rows in ``data``."""
    rows = [{"t": "2026-03-02T08:00:00Z", "p": n, "o": 1} for n in (1, 2)]
    path = tmp_path / "page.json"
    path.write_text(json.dumps({"data": rows, "total": 2}, indent=indent))
    assert read(path, plain("json", read='records = "data"')).frame["prompt_tokens"].to_list() == [1, 2]
    path.write_text(json.dumps(rows[0] | {"data": [{"p": 5}]}, indent=indent))
    assert read(path, plain("json")).frame["prompt_tokens"].to_list() == [1]


def test_parquet_with_structs_and_typed_times(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    times = pa.array([1_772_438_400_000_000_500], pa.timestamp("ns", "UTC"))
    usage = pa.array([{"input": 7, "output": Decimal("2")}])
    pq.write_table(pa.table({"t": times, "usage": usage, "code": ["200"]}), path)
    row = first_row(path, plain("parquet", prompt="usage.input", output="usage.output"))
    assert (row["arrived_at"], row["prompt_tokens"], row["output_tokens"]) == (at("2026-03-02T08:00:00"), 7, 2)


@pytest.mark.parametrize("key", ["gen_ai\\\\.in", "gen_ai.in"])
def test_keys_with_dots(tmp_path: Path, key: str) -> None:
    """``a\\.b`` is one key; a key that is spelt like a whole path is found too."""
    path = log(tmp_path, {"t": "2026-03-02T08:00:00Z", "gen_ai.in": 3, "a": {"b.c": 4}})
    row = first_row(path, plain(prompt=key, output="a.b\\\\.c"))
    assert (row["prompt_tokens"], row["output_tokens"]) == (3, 4)
    assert split_path(r"a.b\.c\\d") == ("a", r"b.c\d")


def test_two_uses_of_one_key(tmp_path: Path) -> None:
    """Plain here, cut by an expression there: neither stands in the other's way."""
    columns = {"tenant": "{ column = 'key', regex = '^(.)' }", "replica": "{ column = 'key', regex = '(.)$' }"}
    more = "session_id = 'key'\n" + "\n".join(f"{name} = {table}" for name, table in columns.items())
    row = first_row(log(tmp_path, {"t": "2026-03-02T08:00:00Z", "p": 1, "o": 1, "key": "abc"}), plain(more=more))
    assert (row["tenant"], row["session_id"], row["replica"]) == ("a", "abc", "c")


def test_a_status_without_default_must_be_one(tmp_path: Path) -> None:
    mapping = plain() + '[status]\ncolumn = "s"\nmap = { "done" = "ok" }\n'
    record = {"t": "2026-03-02T08:00:00Z", "p": 1, "o": 1}
    result = read(log(tmp_path, *(record | {"s": state} for state in ("done", "failed", None, "odd"))), mapping)
    assert result.frame["status"].to_list() == ["ok", "failed", "ok"]
    assert [(item.row, item.reason, item.column, item.value) for item in result.rejects] == [
        (3, "unparsable_record", "s", "odd")
    ]


def test_prefix_ids_and_their_block(tmp_path: Path) -> None:
    mapping = plain(more='prefix_ids = { column = "blocks", block_tokens = 64 }')
    record = {"t": "2026-03-02T08:00:00Z", "p": 1, "o": 1}
    result = read(log(tmp_path, record | {"blocks": [2**64 - 1, 0]}, record | {"blocks": [-1]}), mapping)
    assert result.frame["prefix_ids"].to_list() == [[2**64 - 1, 0]]
    assert (result.rejects[0].column, result.format.prefix_block_tokens) == ("blocks", 64)


def test_a_log_without_counts_is_refused(tmp_path: Path) -> None:
    mapping = plain().replace('prompt_tokens = "p"\n', "")
    with pytest.raises(BadInputError, match=r"plain: no token counts; .* --join FILE.* columns found: t, o"):
        read(log(tmp_path, {"t": "2026-03-02T08:00:00Z", "o": 1}), mapping)


# -- names that must exist -----------------------------------------------------------------------------------


def test_a_column_that_is_in_no_record_is_named_with_the_nearest(tmp_path: Path) -> None:
    record = {"t": "2026-03-02T08:00:00Z", "o": 1, "usage": {"prompt": 1}}
    with pytest.raises(UsageError) as error:
        read(log(tmp_path, record), plain(prompt="usage.promt"))
    assert str(error.value).endswith(
        "map map.toml: columns.prompt_tokens: no record has 'usage.promt'; did you mean 'usage.prompt'?"
    )
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ('tenant = { column = "t", else = ["nobody"] }', "columns.tenant: no record has 'nobody'"),
        ('[status]\ncolumn = "cod"\nmap = {}', "status: no record has 'cod'"),
        ('[[type]]\nwhen = { column = "pth" }\nis = "chat"', "type: no record has 'pth'"),
        ('cached_tokens = { sum = ["p", "q"] }', "columns.cached_tokens: no record has 'q'"),
    ],
)
def test_every_name_must_exist(tmp_path: Path, more: str, where: str) -> None:
    with pytest.raises(UsageError, match=where):
        read(log(tmp_path, {"t": "2026-03-02T08:00:00Z", "p": 1, "o": 1}), plain(more=more))


def test_some_record_is_enough_wherever_it_stands(tmp_path: Path) -> None:
    """The first records are all failures without a first token: the column comes much later."""
    record = {"t": "2026-03-02T08:00:00Z", "p": 1, "o": 1}
    mapping = plain(more='first_token_at = { column = "m.ttft", unit = "s", after = "arrived_at" }')
    result = read(log(tmp_path, *[record] * 200, record | {"m": {"ttft": None}}), mapping)
    assert result.frame["first_token_at"].null_count() == 201
    optional = mapping.replace('"m.ttft",', '"m.ttft", optional = true,')
    assert read(log(tmp_path, record), optional).frame.height == 1


def test_the_header_of_an_empty_table_has_the_names(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("t,p,o\n")
    assert read(path, plain("csv")).rows == 0
    with pytest.raises(UsageError, match=r"no record has 'x'"):
        read(path, plain("csv", prompt="x"))


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("t,p,o\n")
    with pytest.raises(BadInputError, match="not plain, which is jsonl or document with t, p, o; columns found"):
        read(path, plain())


# -- errors of the file --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("version = 1", "version = 2", r"line 2: version = 2: Input should be 1"),
        ('name = "acme-gateway"', "", r"map.toml: name is missing"),
        ('unit = "ns"', 'unit = "min"', r"clock.mono.unit = 'min': Input should be 's', 'ms', 'us' or 'ns'"),
        ('unit = "ns"', "", r"line 13: clock.mono: a relative clock needs unit"),
        ('tz = "Europe/Berlin"', 'tz = "Europe/Berln"', r"line 12: clock.wall.tz: 'Europe/Berln': no such zone"),
        ("%d/%m/%Y %H:%M:%S%.f", "%d/%Q", r"line 11: clock.wall.format: '%d/%Q': unknown directive %Q"),
        ("%d/%m/%Y %H:%M:%S%.f", "%H:%M", r"clock.wall.format: '%H:%M': it names no day and year"),
        ('kind = "jsonl"', 'kind = "jsnl"', r"line 6: read.kind = 'jsnl': Input should be"),
        (
            "output_tokens  =",
            "outptu_tokens  =",
            r"columns.outptu_tokens: no canonical column; did you mean 'output_tokens'",
        ),
        (
            '{ column = "usage.cached" }',
            '{ colunm = "usage.cached" }',
            r"unknown key '.*colunm'; did you mean 'column'",
        ),
        ('clock = "wall" }', 'clock = "wal" }', r"columns.arrived_at.clock: 'wal': no such clock; did you mean 'wall'"),
        (
            '{ column = "ts", clock = "wall" }',
            '"ts"',
            r"line 19: columns.arrived_at: a time names its clock \(wall, mono\)",
        ),
        (
            '{ column = "ts", clock = "wall" }',
            '{ column = "ts", unit = "s" }',
            "the arrival is an instant; name its clock",
        ),
        ('unit = "ms", after = "arrived_at"', 'after = "arrived_at"', r"columns.scheduled_at: a duration needs unit"),
        (
            'unit = "ms", after = "arrived_at"',
            'unit = "ms"',
            r'scheduled_at.unit: is for durations; .* after = "arrived_at"',
        ),
        (
            'unit = "ms", after = "arrived_at"',
            'unit = "ms", after = "finished_at"',
            r"'finished_at': one of arrived_at",
        ),
        ('clock = "mono", minus', 'clock = "wall", minus', r"marks are read from clocks that count"),
        ("'^Bearer sk-([a-z0-9]+)-'", "'^Bearer'", r"columns.tenant.regex: '\^Bearer' has 0 groups, not one"),
        ("'^Bearer sk-([a-z0-9]+)-'", "'(a'", r"columns.tenant.regex: '\(a': missing \)"),
        ("'^Bearer sk-([a-z0-9]+)-'", r"'(a)\1'", r"columns.tenant.regex: .*invalid escape sequence"),
        ('regex = "/embeddings$"', 'regex = "["', r"type.when.regex: '\[': missing \]"),
        ('"499" = "cancelled"', '"499" = "canceled"', r"status.map.499 = 'canceled': Input should be 'ok'"),
        ('model = "small-8b"', 'request_id = "x"', r"constants.request_id: cannot be the same for all requests"),
        ('model = "small-8b"', 'tenant = "x"', r"constants.tenant: is in \[columns\] too"),
        ('model = "small-8b"', 'status = "ok"', r"constants.status: is decided by \[status\] too"),
        ('model = "small-8b"', 'weight = "heavy"', r"constants.weight: must be a number"),
        ('"usage.output"', '"usage..output"', r"columns.output_tokens: 'usage..output': an empty name in the path"),
        ("negate = true", 'unit = "s"', r"columns.priority.unit: is for times"),
        ('{ sum = ["usage.input", "usage.cached"] }', "{ sum = [] }", r"columns.prompt_tokens.sum"),
        (
            '{ sum = ["usage.input", "usage.cached"] }',
            "{ null = [] }",
            r"columns.prompt_tokens: needs either column or sum",
        ),
        ("[columns]", "[colums]", r"line 17: unknown key 'colums'; did you mean 'columns'"),
        ("[constants]", "[constant]", r"unknown key 'constant'; did you mean 'constants'"),
        ("version = 1", "version == 1", r"not TOML: .* \(at line 2"),
    ],
)
def test_errors_name_the_key_and_what_would_be_right(old: str, new: str, said: str) -> None:
    assert old in GATEWAY
    with pytest.raises(UsageError, match=said) as error:
        parse_mapping(GATEWAY.replace(old, new), "map.toml")
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("map map.toml")


def test_a_mapping_without_arrivals_is_refused() -> None:
    text = "\n".join(line for line in GATEWAY.splitlines() if not line.startswith("arrived_at"))
    with pytest.raises(UsageError, match="no arrived_at; FairReplay cannot replay a log without arrival times"):
        parse_mapping(text, "map.toml")


def test_expressions_take_linear_time(tmp_path: Path) -> None:
    """The classic catastrophe of backtracking: 2**40 steps, or a few microseconds."""
    more = 'tenant = { column = "k", regex = \'^((?:a+)+)$\', default = "none" }'
    row = first_row(log(tmp_path, {"t": "2026-03-02T08:00:00Z", "p": 1, "o": 1, "k": "a" * 40 + "!"}), plain(more=more))
    assert row["tenant"] == "none"


@settings(max_examples=100, derandomize=True, deadline=None)
@given(data=st.data())
def test_odd_values_under_a_mapping(data: st.DataObject) -> None:
    """Whatever stands there, every record is accepted, rejected, skipped or the file refused: no traceback."""
    changed = [copy.deepcopy(FIRST) for _ in range(3)]
    for _ in range(data.draw(st.integers(1, 4))):
        container, key = data.draw(st.sampled_from(list(places(changed))))
        container[key] = copy.deepcopy(data.draw(ODD))
    with tempfile.TemporaryDirectory() as folder:
        path = log(Path(folder), *changed)
        try:
            result = read(path, GATEWAY)
        except FairReplayError:
            return
    assert result.rows + sum(result.skipped.values()) == 3
    assert {item.reason for item in result.rejects} <= set(REASONS)


# -- the command ---------------------------------------------------------------------------------------------

APP = typer.Typer(pretty_exceptions_enable=False)
APP.command()(ingest)


def test_the_command_takes_a_mapping(tmp_path: Path) -> None:
    mapping = tmp_path / "acme.toml"
    mapping.write_text(GATEWAY)
    arguments = [str(log(tmp_path, FIRST)), "--map", str(mapping), "--store", str(tmp_path / "s"), "--json"]
    result = CliRunner().invoke(APP, arguments)
    assert result.exit_code == 0, result.output
    (source,) = json.loads(result.stdout)["sources"]
    assert (source["format"], source["accepted"]) == ("acme-gateway", 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--map", "missing.toml"], "map missing.toml: no such file"),
        (["--map", "m.toml", "--format", "azure"], "--map m.toml and --format azure: give one of them"),
        (["--map", "taken.toml"], "name = 'azure' is a format of its own; choose another name"),
    ],
)
def test_the_command_refuses(tmp_path: Path, monkeypatch: Any, arguments: list[str], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.toml").write_text(GATEWAY)
    Path("taken.toml").write_text(GATEWAY.replace("acme-gateway", "azure"))
    log(tmp_path, FIRST)
    with pytest.raises(UsageError, match=said):
        raise CliRunner().invoke(APP, ["log.jsonl", *arguments]).exception  # type: ignore[misc]
    assert "fairreplay" not in {path.name for path in tmp_path.iterdir()}


def test_a_mapping_may_be_anything_but_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    for content in (b"\xff\xfe", b"", b"columns = 5", b"a = " + b"[" * 5000, b"x" * (1 << 20) + b"xx"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"^map "):
            load_mapping(path)


# -- packaged mapping files ----------------------------------------------------------------------------------

PACKAGED = sorted((Path(__file__).parents[2] / "fairreplay" / "trace" / "formats").glob("*.toml"))


@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: path.stem)
def test_packaged_formats_are_of_the_same_form_as_a_persons_own(path: Path) -> None:
    """A copy under another name is a mapping like any other, and reads the format's logs alike."""
    assert FORMATS[path.stem].name == path.stem
    text = path.read_text().replace(f'name = "{path.stem}"', 'name = "mine"')
    assert tomllib.loads(text)["version"] == 1
    folder = {"vllm-requests": "vllm_requests", "lmbench": "lmbenchmark", "azure": "azure2023"}.get(
        path.stem, path.stem
    )
    for source in sorted((DATA / folder).iterdir()) if (DATA / folder).exists() else []:
        own = read_source(source, Reading(), parse_mapping(text, path.name))
        assert own.frame.equals(read_source(source, Reading()).frame)


# -- drafts --------------------------------------------------------------------------------------------------


def test_a_draft_of_a_gateway_log_reads_it(tmp_path: Path) -> None:
    records = [
        {
            "requestId": f"r{number}",
            "created": 1_772_438_400_000 + number,
            "queueTimeMs": 4,
            "ttft_ms": 20.5,
            "e2e_latency_s": 1.5,
            "usage": {"prompt_tokens": 10, "completion_tokens": 5},
            "meta": {"team": "acme", "prompt": "do not show me"},
            "status_code": 200 if number else 429,
        }
        for number in range(3)
    ]
    path = log(tmp_path, *records)
    text = draft(path)
    assert "do not show me" not in text
    assert '"meta.prompt"' in text
    frame = read_source(path, Reading(), parse_mapping(text, "draft")).frame
    assert frame["tenant"].to_list() == ["acme"] * 3
    assert frame["status"].to_list() == ["rejected", "ok", "ok"]
    assert frame["request_id"].to_list() == ["r0", "r1", "r2"]
    assert frame["scheduled_at"][0] == at("2026-03-02T08:00:00.004")
    assert frame["first_token_at"][1] == at("2026-03-02T08:00:00.0215")
    assert frame["finished_at"][2] == at("2026-03-02T08:00:01.502")


@pytest.mark.parametrize(
    ("name", "content", "has"),
    [
        ("a.csv", "time;prompt_tokens;output_tokens\n02/03/2026 08:00;5;6\n", ['delimiter = ";"', "# format = "]),
        ("b.json", '{"run": {"rows": [{"ts": 1.5, "input_len": 5, "output_len": 6}]}}', ['records = "run.rows"']),
        (
            "c.jsonl",
            '{"ts": 1772438400, "a\\nb": "x", "scheduled_ts": 5.5}\n',
            ["# prompt_tokens = ", r"a\nb", "# a mark"],
        ),
        ("d.csv", "1,2,3\n4,5,6\n", ["header = false", "# arrived_at = "]),
    ],
)
def test_drafts_are_toml_and_say_what_is_missing(tmp_path: Path, name: str, content: str, has: list[str]) -> None:
    path = tmp_path / name
    path.write_text(content)
    text = draft(path)
    assert tomllib.loads(text)["version"] == 1
    assert all(part in text for part in has), text
