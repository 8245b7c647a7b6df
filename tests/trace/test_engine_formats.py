"""Logs of engines, load generators and public traces: the rules beyond the fixtures, and the real files."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fairreplay.errors import BadInputError
from fairreplay.trace.formats import FORMATS
from fairreplay.trace.read import SourceRead, read_source
from fairreplay.trace.rules import Reading
from fairreplay.trace.schema import check_frame
from fairreplay.trace.values import iso
from tests.trace.test_formats import csv_rows, exact, micros, ttft_s

DATA = Path(__file__).parents[1] / "data"


def read(path: Path, wanted: str = "auto") -> SourceRead:
    result = read_source(path, Reading(), wanted)
    check_frame(result.frame)
    return result


def lines(tmp_path: Path, *records: Any) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def row_of(path: Path) -> dict[str, Any]:
    result = read(path)
    assert not result.rejects, result.rejects
    return result.frame.row(0, named=True)


def reject_of(path: Path) -> tuple[str, str | None, str | None]:
    (reject,) = read(path).rejects
    return reject.reason, reject.column, reject.value


def clock(row: dict[str, Any], *names: str) -> list[str | None]:
    """Seconds since 2026-03-02T08:00:00Z."""
    found = (row[name] for name in names)
    return [None if time is None else f"{time.timestamp() - 1_772_438_400:.6f}" for time in found]


# -- sglang -----------------------------------------------------------------------------------------------------

SGLANG = {
    "id": "r1",
    "request_parameters": "{}",
    "finish_reason": {"type": "stop", "matched": 2},
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "request_received_ts": 1_772_438_400.5,
    "e2e_latency": 2.0,
}


@pytest.mark.parametrize(
    ("parameters", "tenant", "priority", "session"),
    [
        ({}, "default", None, None),
        ({"routing_key": "acme", "lora_path": "a"}, "acme", None, None),
        ({"routing_key": "", "lora_path": "acme", "conversation_id": "c"}, "adapter:acme", None, "c"),
        ({"session_id": "s", "conversation_id": "c", "priority": -7}, "default", 7, "s"),
        ({"lora_path": ["a", "b"], "priority": "3"}, "default", -3, None),
    ],
)
def test_sglang_parameters(tmp_path: Path, parameters: Any, tenant: str, priority: Any, session: Any) -> None:
    row = row_of(lines(tmp_path, SGLANG | {"request_parameters": json.dumps(parameters)}))
    assert (row["tenant"], row["priority"], row["session_id"]) == (tenant, priority, session)


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ({"type": "length", "length": 5}, "ok"),
        ("stop", "ok"),
        (None, "ok"),
        ("abort", "cancelled"),
        ({"type": "abort"}, "cancelled"),
        ({"type": "abort", "status_code": 429}, "rejected"),
        ({"type": "abort", "status_code": "503"}, "rejected"),
        ({"type": "abort", "status_code": 400}, "failed"),
    ],
)
def test_sglang_finish_reasons(tmp_path: Path, reason: Any, status: str) -> None:
    assert row_of(lines(tmp_path, SGLANG | {"finish_reason": reason}))["status"] == status


def test_sglang_times(tmp_path: Path) -> None:
    """``queue_time`` adds up over requeues: the first schedule is ``forward_entry_time``."""
    times = {"forward_entry_time": 1_772_438_400.625, "queue_time": 9.5, "first_token_latency": 0.25}
    row = row_of(lines(tmp_path, SGLANG | times | {"dp_rank": 3, "num_retractions": 2}))
    names = ("arrived_at", "scheduled_at", "first_token_at", "finished_at")
    assert clock(row, *names) == ["0.500000", "0.625000", "0.750000", "2.500000"]
    assert (row["replica"], row["preemptions"], row["cached_tokens"], row["model"]) == ("dp3", 2, None, None)
    row = row_of(lines(tmp_path, SGLANG | {"request_finished_ts": 1_772_438_403, "forward_entry_time": 0.0}))
    assert clock(row, *names) == ["0.500000", None, None, "3.000000"]
    assert row["preemptions"] is None


@pytest.mark.parametrize(
    ("stream", "tokens", "arrived"),
    [(False, 5, ["1.000000"]), (True, 0, ["1.000000"]), (True, 5, None)],
)
def test_sglang_without_metrics(tmp_path: Path, stream: bool, tokens: int, arrived: Any) -> None:
    """The answer's time of a stream is that of its first chunk: with tokens in it, it cannot be placed."""
    record = SGLANG | {
        "request_parameters": json.dumps({"stream": stream}),
        "completion_tokens": tokens,
        "request_received_ts": None,
        "response_sent_to_client_ts": 1_772_438_403,
    }
    path = lines(tmp_path, record)
    if arrived is None:
        assert reject_of(path) == ("missing_time", "request_received_ts", None)
    else:
        assert clock(row_of(path), "arrived_at") == arrived


def test_sglang_keeps_no_prompt(tmp_path: Path) -> None:
    secret = json.dumps({"text": "my secret", "sampling_params": {}})
    path = lines(tmp_path, SGLANG, SGLANG | {"id": "r2", "request_parameters": secret, "prompt_tokens": 0})
    broken = json.dumps(SGLANG | {"request_parameters": secret})
    path.write_text(path.read_text() + broken[: broken.index("secret") + 6] + "\n")
    rejects = read(path).rejects
    assert [item.reason for item in rejects] == ["zero_prompt", "unparsable_record"]
    assert not any("secret" in f"{item.line}{item.value}" for item in rejects)


def test_sglang_parameters_that_are_no_object(tmp_path: Path) -> None:
    path = lines(tmp_path, SGLANG | {"request_parameters": "{oops"})
    assert reject_of(path) == ("unparsable_record", "request_parameters", "{oops")


# -- dynamo ------------------------------------------------------------------------------------------------------


def dynamo(request: Any, **event: Any) -> dict[str, Any]:
    return {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request} | event


DYNAMO = {"request_id": "q1", "request_received_ms": 1_772_438_400_500, "input_tokens": 10, "output_tokens": 5}


def test_dynamo_bare_and_wrapped_records_are_alike(tmp_path: Path) -> None:
    record = dynamo(DYNAMO | {"total_time_ms": 1000.25}, event_time_unix_ms=1_772_438_409_000)
    bare = read(lines(tmp_path, record)).frame.drop("source")
    assert bare.equals(read(lines(tmp_path, {"timestamp": 5, "event": record})).frame.drop("source"))
    assert clock(bare.row(0, named=True), "finished_at") == ["1.500250"]


def test_dynamo_several_gzip_members(tmp_path: Path) -> None:
    path = tmp_path / "trace.000000.jsonl.gz"
    members = [json.dumps({"timestamp": n, "event": dynamo(DYNAMO | {"request_id": str(n)})}) for n in range(5)]
    path.write_bytes(b"".join(gzip.compress(f"{member}\n".encode()) for member in members))
    assert read(path).frame["request_id"].to_list() == list("01234")


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ({"X-Tenant-ID": "acme", "x-team-id": "t"}, "acme"),
        ({"x-tenant-id": "", "X-TEAM-Id": "t", "x-tenant": "z"}, "t"),
        ({"x-tenant": ["z"]}, "z"),
        ({"authorization": "x"}, "default"),
        (None, "default"),
    ],
)
def test_dynamo_tenants_of_payload_records(tmp_path: Path, before: bool, headers: Any, tenant: str) -> None:
    payload = {"request_id": "q1", "endpoint": "openai.chat_completion", "http_request_headers": headers}
    told = {"schema": "dynamo.request.trace.v1", "event_type": "request_payload", "payload": payload}
    records = [told, dynamo(DYNAMO)] if before else [dynamo(DYNAMO), told]
    result = read(lines(tmp_path, *records, dynamo(DYNAMO | {"request_id": "q2"})))
    assert result.frame.select("tenant", "type").rows() == [(tenant, "chat"), ("default", "completion")]
    assert result.skipped == {"not_a_request": 1}


@pytest.mark.parametrize(
    ("change", "column", "value"),
    [
        ({"input_tokens": None, "replay": {"input_length": 77}}, "prompt_tokens", 77),
        ({"worker": {"prefill_worker_id": 2**64 - 1}}, "replica", "18446744073709551615"),
        ({"worker": {"prefill_worker_id": 1, "decode_worker_id": 2**63}}, "replica", "9223372036854775808"),
        ({"finish_reason_metadata": {"backend_finish_reason": "cancelled"}}, "status", "cancelled"),
        ({"finish_reason_metadata": {"backend_finish_reason": "error: worker"}}, "status", "failed"),
        ({"finish_reason_metadata": {"backend_finish_reason": "eos"}}, "status", "ok"),
        ({"replay": {"input_sequence_hashes": [2**64 - 1]}}, "prefix_ids", [2**64 - 1]),
    ],
)
def test_dynamo_fields(tmp_path: Path, change: Any, column: str, value: Any) -> None:
    assert row_of(lines(tmp_path, dynamo(DYNAMO | change)))[column] == value


def test_dynamo_arrival_from_the_end(tmp_path: Path) -> None:
    request = DYNAMO | {"request_received_ms": None, "total_time_ms": 750.5}
    row = row_of(lines(tmp_path, dynamo(request, event_time_unix_ms=1_772_438_402_000)))
    assert clock(row, "arrived_at", "finished_at") == ["1.249500", "2.000000"]
    path = lines(tmp_path, dynamo(request | {"total_time_ms": None}, event_time_unix_ms=1_772_438_402_000))
    assert reject_of(path) == ("missing_time", "request.request_received_ms", None)


@pytest.mark.parametrize(
    ("sizes", "block"), [([64, 64], 64), ([64, 16], None), ([None, None], None), (["x", []], None)]
)
def test_dynamo_block_size_if_there_is_one(tmp_path: Path, sizes: list[Any], block: int | None) -> None:
    requests = [DYNAMO | {"request_id": str(n), "replay": {"trace_block_size": size}} for n, size in enumerate(sizes)]
    assert read(lines(tmp_path, *map(dynamo, requests))).format.prefix_block_tokens == block


# -- aiperf ------------------------------------------------------------------------------------------------------


def test_aiperf_real_file_of_the_old_layout() -> None:
    path = DATA / "aiperf" / "profile_export.head30.jsonl"
    records = [json.loads(line, parse_float=str) for line in path.read_text().splitlines()]
    frame = read(path).frame
    assert frame["status"].to_list() == ["cancelled"] * 11 + ["ok"] * 19
    starts = [record["metadata"]["timestamp_ns"] for record in records]
    assert max(starts) > 2**53
    assert micros(frame, "arrived_at") == [round(Fraction(start, 1000)) for start in starts]
    for index, record in enumerate(records):
        row, metrics = frame.row(index, named=True), record["metrics"]
        assert row["request_id"] == record["metadata"]["x_request_id"]
        assert row["session_id"] == record["metadata"]["conversation_id"]
        if "ttft" not in metrics:
            unknown = ("prompt_tokens", "output_tokens", "first_token_at", "finished_at")
            assert [row[name] for name in unknown] == [None] * 4
            continue
        assert row["prompt_tokens"] == int(float(metrics["input_sequence_length"]["value"]))
        assert row["output_tokens"] == int(float(metrics["output_sequence_length"]["value"]))
        for column, name in (("first_token_at", "ttft"), ("finished_at", "request_latency")):
            exact_us = Fraction(starts[index], 1000) + Fraction(metrics[name]["value"]) * 1000
            assert micros(frame, column)[index] == round(exact_us)
    late = (frame["arrived_at"].diff().dt.total_microseconds() < 0).sum()
    assert late > 0  # not in time order


AIPERF_META = {"x_request_id": "a", "request_start_ns": 1_772_438_400_000_000_500, "benchmark_phase": "profiling"}
AIPERF = {
    "metadata": AIPERF_META,
    "metrics": {
        "input_sequence_length": {"value": 10, "unit": "tokens"},
        "output_sequence_length": {"value": 5, "unit": "tokens"},
        "output_token_count": {"value": 2, "unit": "tokens"},
        "usage_prompt_cache_read_tokens": {"value": 4, "unit": "tokens"},
        "time_to_first_token": {"value": 20.5, "unit": "ms"},
        "request_latency": {"value": 1.5, "unit": "sec"},
    },
    "error": None,
}


def test_aiperf_new_layout_and_units(tmp_path: Path) -> None:
    row = row_of(lines(tmp_path, AIPERF))
    assert clock(row, "arrived_at", "first_token_at", "finished_at") == ["0.000000", "0.020500", "1.500000"]
    assert (row["prompt_tokens"], row["output_tokens"], row["cached_tokens"], row["status"]) == (10, 5, 4, "ok")
    ended = AIPERF | {"metadata": AIPERF_META | {"request_end_ns": 1_772_438_402_000_000_000}}
    assert clock(row_of(lines(tmp_path, ended)), "finished_at") == ["2.000000"]


@pytest.mark.parametrize(("unit", "ttft"), [("us", "0.000021"), ("ns", "0.000001"), ("s", "20.500000")])
def test_aiperf_reads_the_unit(tmp_path: Path, unit: str, ttft: str) -> None:
    """The start stands half a microsecond after the second: the sum is rounded, not its parts."""
    metrics = AIPERF["metrics"] | {  # type: ignore[operator]
        "time_to_first_token": {"value": 20.5, "unit": unit},
        "request_latency": {"value": 21, "unit": "s"},
    }
    assert clock(row_of(lines(tmp_path, AIPERF | {"metrics": metrics})), "first_token_at") == [ttft]


@pytest.mark.parametrize("unit", ["tokens", None])
def test_aiperf_a_duration_without_unit_is_no_number(tmp_path: Path, unit: Any) -> None:
    metrics = AIPERF["metrics"] | {"time_to_first_token": {"value": 20.5, "unit": unit}}  # type: ignore[operator]
    reason, column, _ = reject_of(lines(tmp_path, AIPERF | {"metrics": metrics}))
    assert (reason, column) == ("unparsable_number", "metrics.time_to_first_token")


@pytest.mark.parametrize(
    ("meta", "error", "status"),
    [
        ({"was_cancelled": True}, None, "cancelled"),
        ({}, {"code": 499}, "cancelled"),
        ({}, {"code": 429}, "rejected"),
        ({}, {"code": "503"}, "rejected"),
        ({}, {"code": 500}, "failed"),
        ({}, {"type": "TimeoutError"}, "failed"),
    ],
)
def test_aiperf_failures_without_metrics(tmp_path: Path, meta: Any, error: Any, status: str) -> None:
    failed = {"metadata": AIPERF_META | meta | {"x_request_id": "b"}, "metrics": None, "error": error}
    frame = read(lines(tmp_path, failed, AIPERF)).frame
    assert frame["status"].to_list() == [status, "ok"]
    assert (frame["prompt_tokens"][0], frame["first_token_at"][0]) == (None, None)


@pytest.mark.parametrize("key", ["benchmark_phase", "credit_phase"])
def test_aiperf_warm_up_is_skipped(tmp_path: Path, key: str) -> None:
    result = read(lines(tmp_path, AIPERF | {"metadata": AIPERF_META | {key: "warmup"}}, AIPERF))
    assert (result.skipped, result.rows) == ({"not_a_request": 1}, 1)


# -- trtllm ------------------------------------------------------------------------------------------------------


def trtllm(record: dict[str, Any]) -> dict[str, Any]:
    prepare = FORMATS["trtllm"].prepare
    assert prepare is not None
    prepared = prepare(record)
    assert isinstance(prepared, dict)
    return prepared


def test_trtllm_internal_form_is_the_flat_one() -> None:
    flat = {"request_id": 5, "perf_metrics": {"timing_metrics": {"arrival_time": 1.5, "last_token_time": 0.0}}}
    inner = trtllm({"schema_version": 1, "phases": {"server": flat}, "status": "complete"})
    for prepared in (inner, trtllm(flat | {"status": "complete"})):
        assert prepared["perf_metrics.timing_metrics.arrival_time"] == 1.5
        assert (prepared["request_id"], prepared["last_token_time"], prepared["status"]) == (5, None, "ok")
    assert trtllm(flat | {"status": "error"})["status"] == "failed"


def test_trtllm_disaggregated_id_falls_back_on_the_context_server() -> None:
    record = {"ctx_perf_metrics": {"request_id": 8}, "gen_perf_metrics": {"request_id": 9}, "gen_server": "g:1"}
    assert (trtllm(record)["request_id"], trtllm(record)["replica"]) == (8, "g:1")
    assert trtllm(record | {"disagg_request_id": 0})["request_id"] == 0


def test_trtllm_alone_has_no_counts() -> None:
    (path,) = (DATA / "formats" / "trtllm").glob("perf_metrics*")
    with pytest.raises(BadInputError, match=r"trtllm: no token counts; give a log that has them with --join FILE"):
        read(path)


# -- inferencex ----------------------------------------------------------------------------------------------------


def test_inferencex_cells_beyond_the_limit_of_the_csv_module() -> None:
    path = DATA / "inferencex_agentic" / "tp4_conc256_offloadon.detailed_results.row232-field-over-128KiB.csv"
    assert max(map(len, path.read_text().splitlines()[1].split('"'))) == 131_215
    row = row_of(path)
    assert (row["tenant"], row["session_id"], row["status"]) == ("User-123", "trace_0051", "ok")
    assert (row["prompt_tokens"], row["output_tokens"], row["cached_tokens"]) == (54321, 6714, None)
    assert micros(read(path).frame, "first_token_at") == [exact("1776782356.4346213", "296.8303825855255")]


@pytest.mark.parametrize(
    "name",
    ["tp4_conc256_offloadon.detailed_results.rows300-537", "tp8_conc256_offloadoff.detailed_results.head12"],
)
def test_inferencex_failures_are_not_the_fastest_requests(name: str) -> None:
    csv.field_size_limit(sys.maxsize)
    rows = csv_rows(f"inferencex_agentic/{name}.csv")
    frame = read(DATA / "inferencex_agentic" / f"{name}.csv").frame
    assert frame.height == len(rows)
    for index, row in enumerate(rows):
        failed = row["success"] == "False"
        assert frame["status"][index] == ("failed" if failed else "ok")
        assert (frame["first_token_at"][index] is None) == failed
        assert frame["tenant"][index] == row["user_id"]
    ends = [
        (row["timestamp"],) if row["success"] == "False" else (row["request_start_time"], row["ttlt"]) for row in rows
    ]
    assert micros(frame, "finished_at") == [exact(*end) for end in ends]
    assert micros(frame, "arrived_at") == [exact(row["request_start_time"]) for row in rows]
    if "rows300" in name:
        assert set(frame["status"]) == {"failed"}
        waited = (frame["finished_at"] - frame["arrived_at"]).dt.total_seconds()
        assert ((waited > 595) & (waited < 605)).sum() == 233


def test_inferencex_success_without_anything_is_contradictory(tmp_path: Path) -> None:
    source = DATA / "inferencex_agentic" / "tp4_conc256_offloadon.detailed_results.rows300-537.csv"
    header, first = source.read_text().splitlines()[:2]
    path = tmp_path / "detailed_results.csv"
    path.write_text(f"{header}\n{first.replace('False', 'True')}\n")
    assert reject_of(path) == ("contradictory", "ttft", "0.0")


# -- ragpulse ------------------------------------------------------------------------------------------------------


def test_ragpulse_clock_restarts_once() -> None:
    path = DATA / "ragpulse" / "0_trace.lines3751-3850-clock-restarts.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    result = read(path)
    assert micros(result.frame, "arrived_at") == [int(record["timestamp"]) * 1_000_000 for record in records]
    (restart,) = [
        n for n in range(1, 100) if records[n]["timestamp"] == "0" and records[n - 1]["timestamp"] == "604453"
    ]
    assert result.runs == (f"row {restart}: 1970-01-01T00:00:00.000000Z",)
    kinds = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")
    assert result.frame["prefix_ids"].to_list() == [
        [block for kind in kinds for block in record["hash_ids"][kind]] for record in records
    ]
    assert result.frame["session_id"].to_list() == [record["session_id"] for record in records]
    assert result.format.prefix_block_tokens is None


def test_ragpulse_blank_last_line_and_odd_sessions() -> None:
    tail = DATA / "ragpulse" / "0_trace.tail-blank-last-line.jsonl"
    assert tail.read_text().endswith("\n\n") or tail.read_text().splitlines()[-1].strip() == ""
    assert read(tail).rows == 20
    head = read(DATA / "ragpulse" / "0_trace.head600.jsonl")
    assert (head.rows, head.frame.height, head.runs) == (600, 600, ())


# -- bailian -------------------------------------------------------------------------------------------------------


def bailian(tmp_path: Path, *pairs: tuple[Any, Any]) -> dict[str, str]:
    records = [
        {"chat_id": chat, "parent_chat_id": parent, "timestamp": 1.5, "input_length": 5, "output_length": 5}
        for chat, parent in pairs
    ]
    frame = read(lines(tmp_path, *records)).frame
    return dict(frame.select("request_id", "session_id").iter_rows())


@pytest.mark.parametrize(
    ("pairs", "sessions"),
    [
        ([(1, -1), (2, 1), (3, 2)], {"1": "1", "2": "1", "3": "1"}),
        ([(3, 2), (2, 1), (1, -1)], {"3": "1", "2": "1", "1": "1"}),  # children before their parents
        ([(2, 1)], {"2": "1"}),  # a parent outside the file stands as root
        ([(1, None), (2, "1")], {"1": "1", "2": "1"}),
        ([(5, 5), (6, 5)], {"5": "5", "6": "5"}),
        ([(7, 9), (9, 8), (8, 7), (10, 9)], {"7": "7", "9": "7", "8": "7", "10": "7"}),  # a circle has one session
        ([(0, -1), (1, 0)], {"0": "0", "1": "0"}),
    ],
)
def test_bailian_sessions(tmp_path: Path, pairs: list[Any], sessions: dict[str, str]) -> None:
    assert bailian(tmp_path, *pairs) == sessions


def test_bailian_a_long_chat_takes_linear_time(tmp_path: Path) -> None:
    chain = [(number, number - 1) for number in range(20_000, 0, -1)]
    assert set(bailian(tmp_path, *chain).values()) == {"0"}


def test_bailian_types_stay_as_they_are(tmp_path: Path) -> None:
    record = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0, "input_length": 5, "output_length": 5}
    row = row_of(lines(tmp_path, record | {"type": "thinking"}))
    assert (row["type"], iso(int(row["arrived_at"].timestamp()))) == ("thinking", "1970-01-01T00:00:00.000000Z")


# -- burstgpt, azure, mooncake ----------------------------------------------------------------------------------------


def test_burstgpt_is_read_by_name(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(
        "Log Type,Response tokens,Request tokens,Timestamp,Model,Elapsed time\n"
        "API log,3.0,7,1.5,GPT-4,2\nConversation log,0.0,7,2,ChatGPT,-1\nAPI log,,7,3,ChatGPT,\n"
    )
    result = read(path)
    assert result.frame.select("type", "status", "output_tokens", "prompt_tokens").rows() == [
        ("completion", "ok", 3, 7),
        ("chat", "failed", 0, 7),
    ]
    assert micros(result.frame, "finished_at") == [3_500_000, None]
    assert [(item.reason, item.column) for item in result.rejects] == [("missing_tokens", "Response tokens")]
    assert result.rejects[0].line == "API log,,7,3,ChatGPT,"


def test_azure_2025_has_one_more_column(tmp_path: Path) -> None:
    path = tmp_path / "AzureLMMInferenceTrace_multimodal.csv"
    path.write_text("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\r\n2024-10-15 00:00:00.5,2,512,7")
    result = read(path)
    assert (result.format.name, result.ignored_columns) == ("azure", ("NumImages",))
    assert result.frame.select("prompt_tokens", "output_tokens").row(0) == (512, 7)


def test_mooncake_variant_of_dynamo(tmp_path: Path) -> None:
    """Rows of a later turn have a delay after the turn before, and no time of their own."""
    first = {
        "timestamp": 27_482,
        "input_length": 5,
        "output_length": 5,
        "session_id": "s",
        "priority": 2,
        "hash_ids": [1],
    }
    later = {"session_id": "s", "input_length": 5, "output_length": 5, "delay_ms": 10, "strict_priority": 1}
    result = read(lines(tmp_path, first, later))
    assert result.frame.select("session_id", "priority", "prefix_ids").row(0) == ("s", 2, [1])
    assert [(item.reason, item.column) for item in result.rejects] == [("missing_time", "timestamp")]


def test_every_ttft_of_the_real_files_is_possible() -> None:
    for path in (*(DATA / "aiperf").iterdir(), *(DATA / "inferencex_agentic").iterdir()):
        ttft = ttft_s(read(path).frame).drop_nulls()
        assert ttft.is_between(pl.lit(0, dtype=pl.Float64), 3600, closed="right").all()
