"""Logs of gateways: LiteLLM, Langfuse, Envoy AI Gateway, and the traps that their fixtures do not show."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairreplay.errors import BadInputError
from fairreplay.trace.read import read_source
from fairreplay.trace.rules import Reading

from .nested import column, outcome

DAY = "2026-03-02T08:00:0"
BERLIN = Reading(zone=ZoneInfo("Europe/Berlin"), zone_name="Europe/Berlin")

# -- LiteLLM ----------------------------------------------------------------------------------------------------------


def spend(**changes: Any) -> dict[str, Any]:
    return {
        "request_id": "r1", "call_type": "acompletion", "startTime": DAY + "0Z", "endTime": DAY + "3Z",
        "completionStartTime": DAY + "1Z", "prompt_tokens": 10, "completion_tokens": 5, "model": "hosted_vllm/m",
        "status": "success", "metadata": {}, "cache_hit": "False", "team_id": "acme",
    } | changes  # fmt: skip


def spend_csv(*records: dict[str, Any]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(records[0]))
    writer.writeheader()
    for record in records:
        cells = {
            key: json.dumps(value, indent=1) if isinstance(value, dict | list) else value
            for key, value in record.items()
        }
        writer.writerow(cells)
    return stream.getvalue()


def test_litellm_csv_of_postgres(tmp_path: Path) -> None:
    """Objects in cells with quotes and line ends, trimmed zeros, no zone (and never that of --tz), nothing for null."""
    nested = {"usage_object": {"prompt_tokens_details": {"cached_tokens": 4}}, "note": 'a "quoted", word'}
    failed = {"error_information": {"error_code": "429", "error_message": "over\nlimit"}}
    times = {
        "startTime": "2026-03-02 08:00:00",
        "endTime": "2026-03-02 08:00:03.1",
        "completionStartTime": "2026-03-02 08:00:01.25",
    }
    done = outcome(
        tmp_path / "l.csv",
        spend_csv(
            spend(metadata=nested, **times),
            spend(request_id="r2", metadata=failed, status="failure", prompt_tokens=0, completion_tokens=0, **times),
            spend(request_id="r3", **times | {"completionStartTime": "2026-03-02 08:00:03.100"}),
            spend(request_id="r4", cache_hit="True"),
            spend(request_id="r5", cache_hit="None", team_id="", completionStartTime=""),
        ),
        "litellm",
        BERLIN,
    )  # fmt: skip
    assert done.skipped == {"response_cache_hit": 1}
    assert column(done.rows, "arrived_at", "first_token_at", "finished_at") == [
        ("08:00:00.000000", "08:00:01.250000", "08:00:03.100000"),
        ("08:00:00.000000", "08:00:01.250000", "08:00:03.100000"),
        ("08:00:00.000000", None, "08:00:03.100000"),
        ("08:00:00.000000", None, "08:00:03.000000"),
    ]
    assert column(done.rows, "cached_tokens", "status", "prompt_tokens") == [
        (4, "ok", 10), (None, "rejected", None), (None, "ok", 10), (None, "ok", 10),
    ]  # fmt: skip
    assert column(done.rows, "tenant") == ["acme", "acme", "acme", "default"]
    assert not any("--tz" in line for line in done.read.assumptions)


@pytest.mark.parametrize("asynchronous", ["", "a"])
@pytest.mark.parametrize(
    ("call_type", "type_"),
    [
        ("completion", "chat"),
        ("responses", "chat"),
        ("anthropic_messages", "chat"),
        ("generate_content", "chat"),
        ("generate_content_stream", "chat"),
        ("text_completion", "completion"),
        ("embedding", "embed"),
        ("rerank", "embed"),
    ],
)
def test_litellm_call_types(call_type: str, type_: str, asynchronous: str, tmp_path: Path) -> None:
    done = outcome(tmp_path / "l", [spend(call_type=asynchronous + call_type)], "litellm")
    assert column(done.rows, "type") == [type_]


@pytest.mark.parametrize(
    "call_type", ["amoderation", "transcription", "create_file", "pass_through_endpoint", "Completion"]
)
def test_litellm_other_calls_are_no_requests(call_type: str, tmp_path: Path) -> None:
    done = outcome(tmp_path / "l", [spend(call_type=call_type, cache_hit="True")], "litellm")
    assert (done.rows, done.skipped) == ({}, {"not_a_request": 1})


@pytest.mark.parametrize(
    ("metadata", "cached"),
    [
        ({"usage_object": {"prompt_tokens_details": {"cached_tokens": 0}, "cache_read_input_tokens": 9}}, 0),
        ({"usage_object": {"prompt_tokens_details": None, "cache_read_input_tokens": 9}}, 9),
        ({"additional_usage_values": {"prompt_tokens_details": {"cached_tokens": 3}}}, 3),
        ({"additional_usage_values": {"cache_read_input_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}}, 4),
        ('{"usage_object": "{\\"prompt_tokens_details\\": {\\"cached_tokens\\": 5}}"}', 5),
        ("{broken", None),
        (None, None),
    ],
)
def test_litellm_cached_tokens(metadata: object, cached: int | None, tmp_path: Path) -> None:
    assert column(outcome(tmp_path / "l", [spend(metadata=metadata)], "litellm").rows, "cached_tokens") == [cached]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"status": None}, "ok"),
        ({"status": None, "metadata": {"status": "failure"}}, "failed"),
        ({"status": "success", "metadata": {"status": "failure"}}, "ok"),
        ({"status": "failure", "metadata": {"error_information": {"error_code": 503}}}, "rejected"),
        ({"status": "failure", "metadata": '{"error_information": {"error_code": "499"}}'}, "cancelled"),
        ({"status": "failure", "metadata": {"error_information": {"error_code": ""}}}, "failed"),
        ({"status": "failure", "error_information": {"error_code": "429"}}, "rejected"),
    ],
)
def test_litellm_status(changes: dict[str, Any], status: str, tmp_path: Path) -> None:
    assert column(outcome(tmp_path / "l", [spend(**changes)], "litellm").rows, "status") == [status]


def test_litellm_failed_rows_of_older_versions_have_no_end(tmp_path: Path) -> None:
    end = {"endTime": "2026-03-02T09:00:00.000+01:00", "completionStartTime": DAY + "0Z"}
    records = [
        spend(request_id=str(index), status=status, **end) for index, status in enumerate(("failure", "success"))
    ]
    done = outcome(tmp_path / "l", records, "litellm")
    assert column(done.rows, "first_token_at", "finished_at") == [(None, None), (None, "08:00:00.000000")]


def test_litellm_payload_times_are_epoch_seconds(tmp_path: Path) -> None:
    payload = {
        "id": "p", "call_type": "acompletion", "startTime": 1772438400.0000005, "endTime": "1772438402.5",
        "completionStartTime": 1772438401.25, "prompt_tokens": "10", "completion_tokens": "5.0", "stream": True,
        "metadata": {"user_api_key_hash": "88dc"}, "cache_hit": False, "model_group": "", "model": "m",
    }  # fmt: skip
    done = outcome(tmp_path / "l", [payload, payload | {"id": "q", "startTime": 0}], "litellm")
    (row,) = done.rows.values()
    assert (row["arrived_at"], row["finished_at"], row["tenant"], row["model"], row["output_tokens"]) == (
        "08:00:00.000000", "08:00:02.500000", "key:88dc", "m", 5,
    )  # fmt: skip
    assert done.rejects == {1: ("missing_time", "startTime", "0")}


def test_litellm_pages_line_by_line(tmp_path: Path) -> None:
    pages = [{"data": [spend(), spend(request_id="r2")], "page": 1}, {"data": [spend(request_id="r3")], "page": 2}]
    assert column(outcome(tmp_path / "l", pages, "litellm").rows, "request_id") == ["r1", "r2", "r3"]


def test_prompts_are_not_kept_of_rejects(tmp_path: Path) -> None:
    secret = [{"role": "user", "content": "the secret"}]
    broken = json.dumps(spend(messages=json.dumps(secret)))[:-1]
    log = json.dumps(spend(prompt_tokens=-1, messages=secret, response={"x": "secret"})) + "\n" + broken + "\n"
    done = outcome(tmp_path / "l", log, "litellm")
    assert [reason for reason, _, _ in done.rejects.values()] == ["negative_tokens", "unparsable_record"]
    kept = json.dumps([item.as_dict() for item in done.read.rejects])
    assert "secret" not in kept
    assert "acme" in kept
    assert done.read.rejects[1].line.startswith('{"request_id": "r1", "call_type"')


def test_a_broken_line_without_prompts_is_kept_whole(tmp_path: Path) -> None:
    record = observation(usage_details={"input": "90", "output": 10}) | {"input": None}
    broken = json.dumps(record)[:-1]
    done = outcome(tmp_path / "l", json.dumps(record) + "\n" + broken, "langfuse")
    assert done.rejects == {1: ("unparsable_record", None, broken)}


# -- Langfuse ---------------------------------------------------------------------------------------------------------


def observation(**changes: Any) -> dict[str, Any]:
    return {
        "id": "o1", "trace_id": "t", "type": "GENERATION", "start_time": "2026-03-02 08:00:00.123",
        "completion_start_time": "2026-03-02 08:00:01.123456", "end_time": "2026-03-02 08:00:03.000", "metadata": {},
        "level": "DEFAULT", "status_message": None, "user_id": "", "session_id": "", "provided_model_name": "m",
        "usage_details": {"input": 10, "output": 5},
    } | changes  # fmt: skip


def camel(record: dict[str, Any]) -> dict[str, Any]:
    """The names of the API: ``start_time`` is ``startTime``, the model is ``model`` in v1."""
    names = {"provided_model_name": "model"}
    parts = {name: name.split("_") for name in record}
    return {
        names.get(name, parts[name][0] + "".join(part.title() for part in parts[name][1:])): value
        for name, value in record.items()
    }


def test_langfuse_api_page_in_camel_case(tmp_path: Path) -> None:
    record = observation(
        start_time="2026-03-02T08:00:00.123Z", completion_start_time="2026-03-02T09:00:01.000+01:00",
        end_time="2026-03-02T08:00:03.000Z", user_id="u", session_id="s",
    )  # fmt: skip
    refused = {"level": "ERROR", "status_message": "503 Service Unavailable", "usage_details": {}}
    rows = [record, record | {"id": "o2", "usage_details": {"total": 15}}, record | {"id": "o3"} | refused]
    page = {"data": [camel(row) for row in rows], "meta": {"page": 1}}
    done = outcome(tmp_path / "l", page, "langfuse")
    assert column(done.rows, "tenant", "model", "session_id", "arrived_at", "first_token_at", "status") == [
        ("user:u", "m", "s", "08:00:00.123000", "08:00:01.000000", "ok"),
        ("user:u", "m", "s", "08:00:00.123000", "08:00:01.000000", "rejected"),
    ]
    assert done.rejects == {1: ("missing_tokens", "usageDetails", None)}


def test_langfuse_times_without_zone_are_utc(tmp_path: Path) -> None:
    done = outcome(tmp_path / "l", [observation()], "langfuse", BERLIN)
    assert column(done.rows, "arrived_at", "first_token_at") == [("08:00:00.123000", "08:00:01.123456")]
    assert not any("--tz" in line for line in done.read.assumptions)


def test_langfuse_csv_and_parquet_read_as_the_lines_do(tmp_path: Path) -> None:
    records = [
        observation(
            usage_details={"input": 128, "input_cached_tokens": 384, "output": "96"}, metadata={"team_id": "t"}
        ),
        observation(id="o2", metadata={"tenant.id": "a", "team_id": "b"}, completion_start_time=None),
    ]
    lines = outcome(tmp_path / "l", records, "langfuse").rows
    assert column(lines, "prompt_tokens", "cached_tokens", "tenant") == [(512, 384, "t"), (10, None, "a")]
    assert outcome(tmp_path / "c", spend_csv(*records), "langfuse").rows == lines
    columns: dict[str, Any] = {name: [record[name] for record in records] for name in records[0]}
    metadata = [list(record["metadata"].items()) for record in records]
    counts = [[(name, int(count)) for name, count in record["usage_details"].items()] for record in records]
    columns["metadata"] = pa.array(metadata, pa.map_(pa.string(), pa.string()))
    columns["usage_details"] = pa.array(counts, pa.map_(pa.string(), pa.int64()))
    table = pa.table(columns)
    table = table.set_column(
        table.schema.get_field_index("start_time"),
        "start_time",
        table["start_time"].cast(pa.timestamp("ms")),
    )
    pq.write_table(table, tmp_path / "p")
    frame = read_source(tmp_path / "p", BERLIN).frame
    expected = read_source(tmp_path / "l", BERLIN).frame
    assert frame.drop("source").equals(expected.drop("source"))


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"level": "WARNING", "status_message": "429"}, "ok"),
        ({"level": "ERROR", "status_message": "HTTP 429"}, "rejected"),
        ({"level": "ERROR", "status_message": '{"code":503}'}, "rejected"),
        ({"level": "ERROR", "status_message": "4290 tokens; waited 0.503 s; id a429"}, "failed"),
        ({"level": "ERROR", "status_message": None}, "failed"),
        ({"level": "ERROR", "end_time": None}, "failed"),
        ({"end_time": None}, "unfinished"),
        ({"level": "ERROR", "end_time": "2026-03-02T08:00:00.123Z", "completion_start_time": None}, "failed"),
    ],
)
def test_langfuse_status(changes: dict[str, Any], status: str, tmp_path: Path) -> None:
    (row,) = outcome(tmp_path / "l", [observation(**changes)], "langfuse").rows.values()
    assert row["status"] == status
    if changes.get("end_time", "given") != "given":
        assert row["finished_at"] is None


# -- Envoy AI Gateway -------------------------------------------------------------------------------------------------


def access(**changes: Any) -> dict[str, Any]:
    return {
        "start_time": DAY + "0.000Z", "response_code": 200, "response_flags": "-", "duration": 2400,
        "token_latency_ttft": 200, "request.path": "/v1/chat/completions", "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5, "gen_ai.request.model": "m", "upstream_host": "10.0.0.1:8000",
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("code", "flags", "status"),
    [
        (200, None, "ok"),
        ("201", "-", "ok"),
        (200, "DC,UC", "cancelled"),
        (200, "RL", "rejected"),
        (200, "UC", "failed"),
        (429, "RL", "rejected"),
        (503, "UH", "rejected"),
        ("499", "-", "cancelled"),
        ("0", "DC", "cancelled"),
        (302, "-", "failed"),
        (400, "-", "failed"),
        (None, "-", "failed"),
    ],
)
def test_envoy_status(code: object, flags: str | None, status: str, tmp_path: Path) -> None:
    done = outcome(tmp_path / "l", [access(response_code=code, response_flags=flags)], "envoy-ai-gateway")
    assert column(done.rows, "status") == [status]


def test_envoy_zero_ttft_is_none_unless_nothing_came_of_a_success(tmp_path: Path) -> None:
    zero = {"token_latency_ttft": "0"}
    records = [
        access(**zero),
        access(**zero, **{"gen_ai.usage.output_tokens": "0"}),
        access(**zero, **{"gen_ai.usage.output_tokens": 0}, response_code=500),
        access(start_time="-"),
        access(**{"x-envoy-origin-path": "-", "request.path": "/v1/rerank"}),
        access(**{"request.path": "/v1/files"}),
        access(**{"request.path": "/v1/chat/completions", "mcp.method.name": "-", "user.id": "u", "tenant": "-"}),
        access(**{"gen_ai.usage.cached_input_tokens": "7", "x-team-id": "t", "user.id": "u"}),
    ]
    done = outcome(tmp_path / "l", records, "envoy-ai-gateway", BERLIN)
    assert done.rejects == {
        1: ("contradictory", "token_latency_ttft", "0"),
        3: ("missing_time", "start_time", None),
    }
    assert done.skipped == {"not_a_request": 1}
    assert {number: row["first_token_at"] for number, row in done.rows.items()} == {
        0: None, 2: None, 4: "08:00:02.400000", 6: "08:00:00.200000", 7: "08:00:00.200000",
    }  # fmt: skip
    assert column(done.rows, "tenant") == ["default", "default", "default", "user:u", "t"]
    assert (done.rows[4]["type"], done.rows[7]["cached_tokens"]) == ("embed", 7)


def test_a_plain_envoy_log_is_not_one_of_the_ai_gateway(tmp_path: Path) -> None:
    plain = {name: value for name, value in access().items() if not name.startswith("gen_ai.")}
    with pytest.raises(BadInputError, match="no known format"):
        outcome(tmp_path / "l", [plain], "envoy-ai-gateway")


def test_a_log_may_begin_with_lines_of_the_gateway_itself(tmp_path: Path) -> None:
    text = "[2026-03-02 08:00:00.450][1][info][main] starting\n" + json.dumps(access()) + "\n"
    done = outcome(tmp_path / "l", text, "envoy-ai-gateway")
    assert list(done.rows) == [1]
