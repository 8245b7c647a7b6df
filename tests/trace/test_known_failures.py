"""Faults seen in public in tools that do this job, each with the smallest input that shows it, through the command.

The name of a test ends in the source; what belongs to metrics, replays and reports is tested there.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fairreplay.cli.app import app
from fairreplay.errors import FairReplayError
from fairreplay.store.store import lock_folder, open_store

T0 = 1772438400
"""2026-03-02T08:00:00Z."""


def row(number: int = 0, **change: Any) -> dict[str, Any]:
    """A request that arrives ``number`` seconds after T0; a column given as None is left out."""
    record: dict[str, Any] = {"request_id": f"r{number}", "arrived_at_s": T0 + number, "tenant": "a", "type": "chat"}
    record |= {"prompt_tokens": 5, "output_tokens": 7} | change
    return {name: value for name, value in record.items() if value is not None}


def lines(path: Path, *records: dict[str, Any] | str) -> Path:
    path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in records))
    return path


def ingest(path: Path, *arguments: str, store: Path | None = None) -> dict[str, Any]:
    """What ``ingest --json`` says of one log, whatever part of it is rejected."""
    where = store or path.with_name("store")
    given = ["ingest", str(path), "--store", str(where), "--json", "--max-reject-rate", "1", *arguments]
    result = CliRunner().invoke(app, given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    source: dict[str, Any]
    (source,) = json.loads(result.stdout)["sources"]
    assert source["rows"] == source["accepted"] + source["rejected"] + source["duplicates"]
    return source


def refused(path: Path, *arguments: str) -> str:
    """Why it cannot be ingested, in one line."""
    with pytest.raises(FairReplayError) as caught:
        ingest(path, *arguments)
    assert not path.with_name("store").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def stored(path: Path) -> pl.DataFrame:
    return open_store(path.with_name("store")).requests()


def rejects(path: Path) -> list[dict[str, Any]]:
    return open_store(path.with_name("store")).rejects().to_dicts()


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    code = "import sys; from fairreplay.cli.app import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


# -- times ------------------------------------------------------------------------------------------------------------


def test_a_first_token_at_time_0_is_none_guidellm_216(tmp_path: Path) -> None:
    log = lines(tmp_path / "log", row(first_token_at_s=0), row(1, first_token_at_s=T0))
    source = ingest(log)
    assert stored(log)["first_token_at"].to_list() == [None]
    assert source["rejects"] == {"first_token_before_arrival": 1}
    assert rejects(log)[0]["value"] == str(T0)


def test_an_aborted_request_was_never_scheduled_vllm_32162(tmp_path: Path) -> None:
    record = {"input_toks": 5, "output_toks": 0, "arrival_time": T0 + 0.25, "queued_ts": 51.2, "scheduled_ts": 0.0}
    log = lines(tmp_path / "log", record | {"first_token_ts": 0.0, "last_token_ts": 53.7})
    ingest(log)
    assert stored(log)["scheduled_at"].to_list() == stored(log)["first_token_at"].to_list() == [None]
    assert stored(log)["finished_at"].to_list() == [datetime.fromtimestamp(T0 + 2.75, UTC)]
    aborted = lines(tmp_path / "other", row(status="cancelled", scheduled_at_s=0, output_tokens=0))
    ingest(aborted, store=tmp_path / "second")
    assert open_store(tmp_path / "second").requests()["scheduled_at"].to_list() == [None]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_wall_clock_and_monotonic_clock_in_one_row_vllm_3220(tmp_path: Path, kind: str) -> None:
    records = [row(number, arrived_at_s=1710000000.1, scheduled_at_s=51234.5) for number in range(3)]
    log = lines(tmp_path / "log", *records)
    if kind == "parquet":
        pl.DataFrame(records).write_parquet(log)
    said = refused(log)
    assert "arrived_at_s and scheduled_at_s are 54 years apart: two clocks" in said
    assert "row 0" in said


def test_an_empty_answer_is_no_success_vllm_5895(tmp_path: Path) -> None:
    log = lines(tmp_path / "log", row(output_tokens=0, first_token_at_s=T0), row(1))
    assert ingest(log)["rejects"] == {"contradictory": 1}


def test_an_end_before_its_start_is_a_reject_openobserve_14367(tmp_path: Path) -> None:
    log = lines(tmp_path / "log", row(arrived_at_s=T0 + 2, finished_at_s=T0 + 1), row(1))
    assert ingest(log)["rejects"] == {"finish_before_arrival": 1}
    assert rejects(log)[0] | {"line": "", "file": "", "source": ""} == {
        **{"file": "", "source": "", "row": 0, "column": "finished_at_s", "value": str(T0 + 1)},
        **{"reason": "finish_before_arrival", "line": ""},
    }


UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@pytest.mark.parametrize("declared", list(UNITS))
@pytest.mark.parametrize("other", list(UNITS))
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_two_units_in_one_column_datasets_8459_polars_2543(
    tmp_path: Path, declared: str, other: str, kind: str
) -> None:
    numbers = [T0 * UNITS[declared], T0 * UNITS[declared] + 1, T0 * UNITS[other]]
    records = [
        row(number, **({"arrived_at_s": None} | {f"arrived_at_{declared}": at})) for number, at in enumerate(numbers)
    ]
    log = lines(tmp_path / "log", *records)
    if kind == "parquet":
        pl.DataFrame(records).write_parquet(log)
    if declared == other:
        assert ingest(log)["accepted"] == 3
        return
    low, high = sorted([numbers[0] + (other < declared), numbers[2]])
    assert f"column arrived_at_{declared} mixes magnitudes" in refused(log)
    assert high > 100 * low


def test_local_times_over_the_change_of_the_clocks_polars_25410(tmp_path: Path) -> None:
    """2024-03-10 in New York has no 02:30, and 2024-11-03 has two 01:30; instants are UTC."""
    times = ["2024-03-10 01:59:59", "2024-03-10 02:30:00", "2024-03-10 03:00:00", "2024-11-03 01:30:00"]
    times.append("2024-11-03 02:00:00")
    log = tmp_path / "log.csv"
    log.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{time},5,7\n" for time in times))
    said = ingest(log, "--tz", "America/New_York")["assumptions"]
    assert "TIMESTAMP without zone, read as America/New_York (--tz)" in said
    utc = ["2024-03-10T06:59:59", "2024-03-10T07:30:00", "2024-03-10T07:00:00", "2024-11-03T05:30:00"]
    utc.append("2024-11-03T07:00:00")
    by_record = stored(log).sort("seq")["arrived_at"].to_list()
    assert by_record == [datetime.fromisoformat(f"{time}+00:00") for time in utc]


def test_unsorted_rows_are_sorted_and_counted_cache_trace_8(tmp_path: Path) -> None:
    log = lines(tmp_path / "log", row(2), row(1), row(3), row(0))
    result = CliRunner().invoke(app, ["ingest", str(log), "--store", str(tmp_path / "store")])
    assert "2 of 4 rows stood after a later arrival; sorted" in result.stdout
    assert stored(log)["request_id"].to_list() == ["r0", "r1", "r2", "r3"]


# -- values -----------------------------------------------------------------------------------------------------------

NOT_FINITE = ["NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("column", ["finished_at_s", "prompt_tokens", "weight"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "quoted"])
def test_what_is_not_finite_stays_outside_polars_28368_duckdb_17725(
    tmp_path: Path, value: str, column: str, kind: str
) -> None:
    records = [row(number, **{column: T0 + 9.0 if column == "finished_at_s" else 2.0}) for number in range(3)]
    log = tmp_path / "log"
    if kind == "parquet":
        records[1][column] = float(value)
        pl.DataFrame(records).write_parquet(log)
    else:
        spelt = f'"{value}"' if kind == "quoted" else value
        text = "\n".join(map(json.dumps, [records[0], records[1] | {column: "@"}, records[2]]))
        log.write_text(text.replace('"@"', spelt))
    reason = "unparsable_time" if column == "finished_at_s" else "unparsable_number"
    assert ingest(log)["rejects"] == {reason: 1}
    assert [(item["row"], item["column"], item["reason"]) for item in rejects(log)] == [(1, column, reason)]
    assert stored(log)["request_id"].to_list() == ["r0", "r2"]


@pytest.mark.parametrize("value", [*NOT_FINITE, "nan", "inf"])
def test_nor_in_csv_polars_28368(tmp_path: Path, value: str) -> None:
    log = tmp_path / "log.csv"
    log.write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,3,4\n1.5,{value},4\n{value},3,4\n")
    assert ingest(log)["rejects"] == {"unparsable_time": 1, "unparsable_number": 1}


def test_nothing_is_rounded_to_a_whole_number_duckdb(tmp_path: Path) -> None:
    log = lines(tmp_path / "log", *(row(number) for number in range(20_000)), row(20_000, output_tokens=1.9))
    assert ingest(log)["rejects"] == {"fractional_tokens": 1}


def test_half_a_surrogate_pair_is_no_nul_polars(tmp_path: Path) -> None:
    log = lines(tmp_path / "log", row(), json.dumps(row(1)).replace('"a"', '"\\ud83d"'))
    assert ingest(log)["rejects"] == {"unparsable_record": 1}


def test_failures_are_rows_and_not_left_out_guidellm_444(tmp_path: Path) -> None:
    log = lines(tmp_path / "log", row(), row(1, status="failed", prompt_tokens=0, output_tokens=None))
    assert ingest(log)["by_status"] == {"failed": 1, "ok": 1}
    assert stored(log)["prompt_tokens"].to_list() == [5, None]


def test_rows_without_tokens_and_an_idle_head_burstgpt_11(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    log.write_text(head + "5,GPT-4,0,0,0,API log\n86405,GPT-4,9,3,12,API log\n86406,GPT-4,9,,9,API log\n")
    source = ingest(log)
    assert (source["by_status"], source["rejects"]) == ({"failed": 1, "ok": 1}, {"missing_tokens": 1})
    assert stored(log)["prompt_tokens"].to_list() == [None, 9]


# -- files ------------------------------------------------------------------------------------------------------------


def test_rows_after_a_bad_one_are_kept_polars_10041(tmp_path: Path) -> None:
    records: list[dict[str, Any] | str] = [row(number) for number in range(201)]
    records[100] = '{"request_id": "r100", "arrived_at_s": 177243'
    source = ingest(lines(tmp_path / "log", *records))
    assert (source["rows"], source["accepted"], source["rejects"]) == (201, 200, {"unparsable_record": 1})


def test_columns_of_later_parquet_files_stay_polars_23399(tmp_path: Path) -> None:
    first = pl.DataFrame([row(number) for number in range(3)])
    second = pl.DataFrame([row(number, model="m", output_tokens=7.0) for number in range(3, 6)])
    (tmp_path / "in").mkdir()
    first.write_parquet(tmp_path / "in" / "1.parquet")
    second.write_parquet(tmp_path / "in" / "2.parquet")
    result = CliRunner().invoke(app, ["ingest", str(tmp_path / "in"), "--store", str(tmp_path / "store"), "--json"])
    assert [source["accepted"] for source in json.loads(result.stdout)["sources"]] == [3, 3]
    assert open_store(tmp_path / "store").requests()["model"].to_list() == [None] * 3 + ["m"] * 3


def test_a_clash_of_schemas_names_both_files_and_nothing_is_rounded_duckdb(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pl.DataFrame([row()]).write_parquet(tmp_path / "in" / "1.parquet")
    pl.DataFrame([row(1, prompt_tokens="many")]).write_parquet(tmp_path / "in" / "2.parquet")
    with pytest.raises(FairReplayError, match=r"2\.parquet: column prompt_tokens holds text, but numbers in .*1\.par"):
        CliRunner().invoke(
            app, ["ingest", str(tmp_path / "in"), "--store", str(tmp_path / "s")], catch_exceptions=False
        )
    pl.DataFrame([row(1, prompt_tokens=1.5)]).write_parquet(tmp_path / "in" / "2.parquet")
    arguments = ["ingest", str(tmp_path / "in"), "--store", str(tmp_path / "s"), "--json", "--max-reject-rate", "1"]
    result = CliRunner().invoke(app, arguments)
    assert [source["rejects"] for source in json.loads(result.stdout)["sources"]] == [{}, {"fractional_tokens": 1}]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "array"])
def test_a_byte_order_mark_is_stripped_duckdb_16568(tmp_path: Path, kind: str) -> None:
    texts = {"jsonl": json.dumps(row()), "array": json.dumps([row()], indent=1)}
    texts["csv"] = "arrived_at,num_prefill_tokens,num_decode_tokens\r\n0.5,5,7"
    log = tmp_path / "log"
    log.write_bytes(b"\xef\xbb\xbf" + texts[kind].encode())
    assert (ingest(log)["accepted"], stored(log)["prompt_tokens"].to_list()) == (1, [5])


def test_the_same_bytes_under_another_name_change_nothing_sleeper_930(tmp_path: Path) -> None:
    log = lines(tmp_path / "log", row(), row(1, request_id=None))
    assert ingest(log)["changed"]
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    log.rename(tmp_path / "renamed")
    assert not ingest(tmp_path / "renamed")["changed"]
    (tmp_path / "log.gz").write_bytes(gzip.compress(lines(tmp_path / "again", row()).read_bytes()))
    assert not ingest(tmp_path / "log.gz")["changed"]
    after = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.parametrize("name", ["[prod].jsonl", "{a,b}.jsonl", "p*.jsonl", "a?.jsonl"])
def test_a_name_like_a_pattern_is_a_name(tmp_path: Path, name: str) -> None:
    for other in ("p.jsonl", "a.jsonl", "ab.jsonl", "prod.jsonl"):
        lines(tmp_path / other, row(tenant="other"))
    log = lines(tmp_path / name, row(tenant="right"))
    ingest(log)
    assert stored(log)["tenant"].to_list() == ["right"]


HOSTILE = [
    *("</script><img src=x onerror=alert(1)>", '<a href="https://example.org">x</a>', "[/x]", "[red]x[/red]"),
    *("../../x'; --", "x'; DROP TABLE requests; --", "\x1b[31mred\x1b[0m", "a\nb", "‮abc", "=1+1", "%s%n{0}", "é" * 300),
]


@pytest.mark.parametrize("tenant", HOSTILE)
def test_names_are_data_scalene_629_rich_212_and_injection(tmp_path: Path, tenant: str) -> None:
    log = lines(tmp_path / "log", row(tenant=tenant, model=tenant, type="chat"))
    assert ingest(log)["by_tenant"] == {tenant: 1}
    assert stored(log)["tenant"].to_list() == [tenant]
    names = {path.name for path in tmp_path.rglob("*")}
    content = ingest(log)["source"]
    assert names == {"log", "store", "segments", f"{content}.parquet", "manifest.json", "lock"}
    shown = CliRunner().invoke(app, ["ingest", str(log), "--store", str(tmp_path / "s"), "--dry-run"])
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout


def test_an_ascii_terminal_is_no_obstacle_metis_39(tmp_path: Path) -> None:
    log = lines(tmp_path / "log", row(tenant="[/x] é"))
    arguments = ["ingest", str(log), "--store", str(tmp_path / "s"), "--dry-run"]
    done = process(*arguments, LANG="C", PYTHONUTF8="0", LC_ALL="C")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


# -- limits -----------------------------------------------------------------------------------------------------------

MEMORY_MAX = 1 << 30


def limited(path: Path, *arguments: str) -> dict[str, Any]:
    """The command as a process that may take up to a gigabyte more than it starts with."""
    code = (
        "import sys, json, resource\n"
        "from pathlib import Path\n"
        "from fairreplay.store.ingest import IngestOptions, ingest\n"
        "start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "done = ingest([sys.argv[1]], Path(sys.argv[2]), IngestOptions(max_reject_rate=1.0)).sources[0].segment\n"
        "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(json.dumps({'grown': 1024 * (peak - start), 'accepted': done.accepted, 'rejects': done.rejects}))\n"
    )
    command = [sys.executable, "-c", code, str(path), str(path.with_name("store")), *arguments]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


@pytest.mark.parametrize("column", ["note", "tenant"])
def test_a_parquet_bomb(tmp_path: Path, column: str) -> None:
    """100 kB that stand for 1.2 GB."""
    rows = 1200
    table = pa.table(
        {
            "arrived_at_s": pa.array(range(T0, T0 + rows)),
            "prompt_tokens": pa.array([5] * rows),
            "output_tokens": pa.array([7] * rows),
            column: pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * 2**20])),
        }
    )
    pq.write_table(table, tmp_path / "log.parquet")
    assert (tmp_path / "log.parquet").stat().st_size < 200_000
    found = limited(tmp_path / "log.parquet")
    assert found["accepted"] == rows
    assert found["grown"] < MEMORY_MAX


def test_a_gzip_bomb_is_a_reject(tmp_path: Path) -> None:
    """A few hundred kB that hold one line of 150 MB."""
    with gzip.open(tmp_path / "log.gz", "wb", compresslevel=1) as stream:
        stream.write(json.dumps(row()).encode() + b'\n{"tenant": "')
        for _ in range(150):
            stream.write(b" " * 10**6)
        stream.write(b'"}\n' + json.dumps(row(1)).encode())
    found = limited(tmp_path / "log.gz")
    assert (found["accepted"], found["rejects"]) == (2, {"unparsable_record": 1})
    assert found["grown"] < MEMORY_MAX


def test_a_zstd_bomb_is_a_reject(tmp_path: Path) -> None:
    with pa.CompressedOutputStream(str(tmp_path / "log.zst"), "zstd") as stream:
        stream.write(json.dumps(row()).encode() + b'\n{"tenant": "')
        for _ in range(150):
            stream.write(b" " * 10**6)
        stream.write(b'"}\n' + json.dumps(row(1)).encode())
    found = limited(tmp_path / "log.zst")
    assert (found["accepted"], found["rejects"]) == (2, {"unparsable_record": 1})
    assert found["grown"] < MEMORY_MAX


@pytest.mark.parametrize("opening", ['{"a":', "["])
@pytest.mark.parametrize("where", [0, 1])
def test_deep_json_is_a_reject_like_any_other(tmp_path: Path, opening: str, where: int) -> None:
    depth = 100_000
    deep = '{"note": ' + opening * depth + "1" + ("}" if opening[0] == "{" else "]") * depth + "}"
    records: list[dict[str, Any] | str] = [row(), row(1)]
    records.insert(where, deep)
    assert ingest(lines(tmp_path / "log", *records))["rejects"] == {"unparsable_record": 1}


@pytest.mark.parametrize("digits", [5_000, 500_000])
@pytest.mark.parametrize(
    ("column", "reason"), [("prompt_tokens", "unparsable_number"), ("arrived_at_s", "unparsable_time"), ("note", None)]
)
def test_a_number_of_5000_digits(tmp_path: Path, digits: int, column: str, reason: str | None) -> None:
    long = json.dumps(row(1) | {column: "@"}).replace('"@"', "7" * digits)
    source = ingest(lines(tmp_path / "log", row(), long, row(2)))
    assert source["rejects"] == ({reason: 1} if reason else {})


# -- the store --------------------------------------------------------------------------------------------------------


def test_two_runs_at_once_diffengine_4(tmp_path: Path) -> None:
    log = lines(tmp_path / "log", row())
    (tmp_path / "store").mkdir()
    with lock_folder(tmp_path / "store"):
        done = process("ingest", str(log), "--store", str(tmp_path / "store"))
    assert done.returncode == 75
    assert f"process {os.getpid()} holds the store" in done.stderr
    assert ingest(log)["accepted"] == 1


def test_a_kill_half_way_leaves_the_last_good_store_strix_829(tmp_path: Path) -> None:
    ingest(lines(tmp_path / "log", row()))
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*.parquet")}
    code = (
        "import os, signal, sys; from fairreplay.store.store import Store; from fairreplay.cli.app import main\n"
        "Store.commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.exit(main())"
    )
    more = lines(tmp_path / "more", row(5))
    killed = subprocess.run(
        [sys.executable, "-c", code, "ingest", str(more), "--store", str(tmp_path / "store")], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert stored(tmp_path / "log")["request_id"].to_list() == ["r0"]
    assert ingest(more)["accepted"] == 1
    assert {path: path.read_bytes() for path in before} == before
    assert not list((tmp_path / "store").rglob("*.tmp"))


def test_memory_is_bounded_by_the_block_duckdb_15865(tmp_path: Path) -> None:
    """Far more rows than a block holds; what they would take together is more than is taken."""
    log = tmp_path / "log"
    with log.open("w") as stream:
        stream.writelines(json.dumps(row(number, note="x" * 900)) + "\n" for number in range(80_000))
    found = limited(log)
    assert found["accepted"] == 80_000
    assert found["grown"] < 4 * log.stat().st_size
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < MEMORY_MAX
