"""OTLP spans: which of them are requests, what they get from the spans around them, and traps of the encoding."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.errors import BadInputError, UsageError
from fairreplay.trace.asked import Asked
from fairreplay.trace.gateway import read_gateway
from fairreplay.trace.join import JoinKey
from fairreplay.trace.read import read_source
from fairreplay.trace.rules import Reading

from .nested import Outcome, column, outcome

LINES = (Path(__file__).parents[1] / "data" / "formats" / "otlp-genai" / "spans.jsonl").read_text().splitlines()
START = 1772438400_000000000
"""2026-03-02T08:00:00Z in nanoseconds."""


def attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue", bool: "boolValue"}
    return [
        {"key": key, "value": {kinds[type(value)]: str(value) if type(value) is int else value}}
        for key, value in values.items()
    ]


def span(span_id: str, parent: str = "", /, **fields: Any) -> dict[str, Any]:
    """``attrs`` are the attributes, ``trace`` the trace's letter."""
    trace = fields.pop("trace", "a")
    return {
        "traceId": trace * 32, "spanId": span_id * 16, "parentSpanId": parent * 16, "name": "x", "kind": 3,
        "startTimeUnixNano": str(START), "endTimeUnixNano": str(START + 2_000_000_000),
        "attributes": attributes(fields.pop("attrs", {})), "status": {},
    } | fields  # fmt: skip


ENGINE = {
    "gen_ai.latency.time_to_first_token": 0.5, "gen_ai.latency.e2e": 1.5, "gen_ai.latency.time_in_queue": 0.25,
    "gen_ai.usage.prompt_tokens": 10, "gen_ai.usage.completion_tokens": 5, "gen_ai.request.id": "r",
}  # fmt: skip
GENAI = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 20, "gen_ai.usage.output_tokens": 7}


def engine(span_id: str, parent: str = "", /, **fields: Any) -> dict[str, Any]:
    attrs = ENGINE | {"gen_ai.request.id": span_id} | fields.pop("attrs", {})
    return span(span_id, parent, attrs=attrs, **{"name": "llm_request"} | fields)


def genai(span_id: str, parent: str = "", /, **fields: Any) -> dict[str, Any]:
    return span(span_id, parent, attrs=GENAI | fields.pop("attrs", {}), **fields)


def server(
    span_id: str, parent: str = "", /, code: int | None = 200, path: str = "/v1/completions", **fields: Any
) -> Any:
    attrs = {"url.path": path} | ({} if code is None else {"http.response.status_code": code}) | fields.pop("attrs", {})
    return span(span_id, parent, attrs=attrs, kind=fields.pop("kind", 2), **fields)


def export(*spans: dict[str, Any], **resource: str) -> dict[str, Any]:
    scope = {"scope": {"name": "s"}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": {"attributes": attributes(resource)}, "scopeSpans": [scope]}]}


def read(tmp_path: Path, *spans: dict[str, Any]) -> Outcome:
    return outcome(tmp_path / "l", [export(item) for item in spans], "otlp")


# -- which spans are rows ---------------------------------------------------------------------------------------------


def test_the_deepest_of_client_proxy_and_engine_is_the_row(tmp_path: Path) -> None:
    client, proxy, gateway, inner = genai("1"), genai("2", "1"), server("3", "2"), engine("4", "3")
    assert list(read(tmp_path, client, proxy, gateway, inner).rows) == [3]
    assert list(read(tmp_path, inner, gateway, proxy, client).rows) == [0]  # in any order
    assert list(read(tmp_path, client, proxy, gateway).rows) == [1]
    assert list(read(tmp_path, client, gateway).rows) == [0]


def test_two_engine_spans_below_one_client_are_two_rows(tmp_path: Path) -> None:
    done = read(tmp_path, genai("1"), engine("2", "1"), engine("3", "1"))
    assert (list(done.rows), done.skipped) == ([1, 2], {"not_a_request": 1})


@pytest.mark.parametrize("operation", ["invoke_agent", "execute_tool", "create_agent", "retrieval", "rerank"])
def test_other_operations_are_never_rows(operation: str, tmp_path: Path) -> None:
    done = read(tmp_path, genai("1", attrs={"gen_ai.operation.name": operation}), genai("2", "1"))
    assert list(done.rows) == [1]
    assert done.rows[1]["type"] == "chat"


def test_a_refusal_is_a_row_once_and_only_if_nothing_below_recorded_it(tmp_path: Path) -> None:
    edge, inner = server("1", code=429), server("2", "1", code=429)
    assert list(read(tmp_path, inner, edge).rows) == [1]
    assert list(read(tmp_path, edge, engine("3", "1")).rows) == [1]
    assert list(read(tmp_path, edge, genai("3", "1")).rows) == [1]
    assert list(read(tmp_path, genai("3", attrs={"error.type": "429"}), server("1", "3", code=429)).rows) == [0]


def test_the_refused_attempt_of_a_retried_request_is_a_row_of_its_own(tmp_path: Path) -> None:
    done = read(tmp_path, genai("1"), server("2", "1", code=503), server("3", "1"), engine("4", "3"))
    assert column(done.rows, "seq", "status") == [(1, "rejected"), (3, "ok")]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"code": 429}, "rejected"),
        ({"code": 503}, "rejected"),
        ({"code": 499}, "cancelled"),
        ({"code": 404}, "failed"),
        ({"code": None, "status": {"code": "STATUS_CODE_ERROR"}}, "failed"),
        ({"code": 429, "kind": "SPAN_KIND_SERVER", "path": "", "attrs": {"http.route": "/v1/messages"}}, "rejected"),
        ({"code": 429, "path": "", "attrs": {"url.full": "https://gw.example/llm/v1/responses#x"}}, "rejected"),
        ({"code": None, "attrs": {"http.status_code": 500}}, "failed"),
        ({"code": 200, "status": {"code": 2}}, None),
        ({"code": None}, None),
        ({"code": 429, "kind": 3}, None),
        ({"code": 429, "path": "/v1/models"}, None),
    ],
)  # fmt: skip
def test_what_a_gateway_refused(fields: dict[str, Any], status: str | None, tmp_path: Path) -> None:
    done = read(tmp_path, server("1", **fields))
    assert column(done.rows, "status") == ([] if status is None else [status])
    if status is not None:
        tokens = 0 if status == "rejected" else None
        assert column(done.rows, "request_id", "prompt_tokens", "output_tokens") == [("1" * 16, None, tokens)]


@settings(max_examples=15, derandomize=True, deadline=None)
@given(order=st.permutations(LINES))
def test_the_order_of_the_lines_changes_nothing_but_the_order_of_the_rows(order: list[str]) -> None:
    def rows(lines: list[str]) -> pl.DataFrame:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "l"
            path.write_text("\n".join(lines), encoding="utf-8")
            return read_source(path, Reading()).frame.drop("seq", "source").sort("request_id")

    assert rows(order).equals(rows(LINES))


# -- identity ---------------------------------------------------------------------------------------------------------


def test_a_repeated_request_id_is_numbered_and_a_repeated_span_is_not(tmp_path: Path) -> None:
    same = {"gen_ai.request.id": "r"}
    first, second = engine("1", attrs=same), engine("2", attrs=same)
    third = engine("3", trace="b", attrs={"gen_ai.request.id": "r#2"})
    done = read(tmp_path, first, second, first, second, third, engine("1", trace="c", attrs=same))
    assert column(done.rows, "request_id") == ["r", "r#2", "r", "r#2", "r#2#2", "r#3"]


def test_a_span_that_was_exported_twice_covers_and_is_covered_like_one(tmp_path: Path) -> None:
    client = genai("1")
    done = read(tmp_path, client, client, engine("2", "1"))
    assert (list(done.rows), done.skipped) == ([2], {"not_a_request": 2})


def test_parents_are_of_the_same_trace_and_ids_of_either_case(tmp_path: Path) -> None:
    client = genai("A", trace="A")
    assert list(read(tmp_path, client, engine("2", "a", trace="a")).rows) == [1]
    assert list(read(tmp_path, client, engine("2", "a", trace="b")).rows) == [0, 1]


def test_circles_and_lost_parents_lose_nothing(tmp_path: Path) -> None:
    done = read(tmp_path, genai("1", "1"), engine("2", "3"), span("3", "2"), engine("4", "9"), engine("5", "0"))
    assert list(done.rows) == [0, 1, 3, 4]


def test_spans_without_ids_are_rows_of_their_own(tmp_path: Path) -> None:
    bare = engine("1", attrs={"gen_ai.request.id": ""}) | {"traceId": "", "spanId": ""}
    done = read(tmp_path, bare, bare)
    assert len(set(column(done.rows, "request_id"))) == 2


# -- what a row gets from elsewhere -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "near", "far", "aside", "resource", "tenant"),
    [
        ({"tenant": "own"}, {"tenant": "near"}, {}, {}, {}, "own"),
        ({"tenant": "own"}, {}, {"tenant.id": "far"}, {}, {}, "far"),
        ({}, {"tenant.id": "near"}, {"tenant.id": "far"}, {}, {"tenant.id": "resource"}, "near"),
        ({"user.id": "u"}, {}, {}, {"team.id": "aside"}, {}, "aside"),
        ({"user.id": "u"}, {}, {}, {}, {"team.id": "resource"}, "resource"),
        ({"enduser.id": "e", "user.id": "u"}, {}, {}, {}, {}, "user:u"),
        ({"tenant.id": "", "enduser.id": "e"}, {}, {}, {}, {}, "user:e"),
        ({}, {}, {}, {}, {}, "default"),
    ],
)
def test_tenant(own: Any, near: Any, far: Any, aside: Any, resource: Any, tenant: str, tmp_path: Path) -> None:
    lines = [
        export(engine("1", "2", attrs=own), **resource),
        export(span("2", "3", attrs=near)),
        export(span("3", attrs=far)),
        export(span("4", attrs=aside), **{"tenant.id": "of another resource"}),
    ]
    assert column(outcome(tmp_path / "l", lines, "otlp").rows, "tenant") == [tenant]


def test_a_trace_speaks_for_a_span_only_if_its_spans_agree(tmp_path: Path) -> None:
    blue, grey = {"tenant.id": "blue", "session.id": "s"}, {"tenant.id": "grey", "session.id": "s"}
    done = read(
        tmp_path, engine("1", "9"), span("2", attrs=blue), span("3", attrs=grey), span("4", trace="b", attrs=blue)
    )
    assert column(done.rows, "tenant", "session_id") == [("default", "s")]


def test_another_attribute_may_name_the_tenant_anywhere_in_the_trace(tmp_path: Path) -> None:
    own = {"tenant.id": "t", "customer": "own"}
    lines = [export(engine("1", "2", attrs={"tenant.id": "t"})), export(span("2", attrs={"customer": 7}))]
    lines += [export(engine("3", trace="b", attrs=own)), export(engine("4", trace="c"), customer="resource")]
    path = tmp_path / "l"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = read_source(path, Reading(), asked=Asked(tenant_from="customer"))
    assert read.frame["tenant"].to_list() == ["7", "own", "resource"]
    with pytest.raises(UsageError, match="--tenant-from customr: in no record"):
        read_source(path, Reading(), asked=Asked(tenant_from="customr"))


def test_type(tmp_path: Path) -> None:
    chat, embeddings = "/v1/chat/completions", "/v1/embeddings"
    sglang = {key: value for key, value in ENGINE.items() if key != "gen_ai.usage.completion_tokens"}
    done = read(
        tmp_path,
        engine("1", "2"), server("2", path=chat),
        engine("1", "9", trace="b"), server("2", trace="b", path=embeddings), server("3", trace="b", path="/health"),
        engine("1", "9", trace="c"), server("2", trace="c", path=embeddings), server("3", trace="c", path=chat),
        span("1", trace="d", name=" Req 1", attrs=sglang),
        engine("1", "2", trace="e"), genai("2", "3", trace="e", attrs={"gen_ai.operation.name": "text_completion"}),
        server("3", trace="e", path=chat),
    )  # fmt: skip
    assert {number: row["type"] for number, row in done.rows.items()} == {
        0: "chat", 2: "embed", 5: "completion", 8: "embed", 9: "completion",
    }  # fmt: skip
    assert done.rows[8]["output_tokens"] == 0


@pytest.mark.parametrize(
    ("row", "above", "status"),
    [
        (engine("1", "2", status={"code": 2}), 499, "failed"),
        (engine("1", "2", status={"code": "STATUS_CODE_ERROR"}), 200, "failed"),
        (engine("1", "2", status={"code": 1}), 200, "ok"),
        (engine("1", "2"), 499, "cancelled"),
        (engine("1", "2"), 504, "failed"),
        (engine("1", "2", endTimeUnixNano="0"), 200, "ok"),
        (engine("1", "2", endTimeUnixNano="0", attrs={"gen_ai.latency.e2e": -1}), 200, "unfinished"),
        (genai("1", "2", endTimeUnixNano="0"), 200, "unfinished"),
        (genai("1", "2", attrs={"error.type": "503"}), 200, "rejected"),
        (genai("1", "2", attrs={"error.type": "timeout"}), 499, "failed"),
        (genai("1", "2", attrs={"error.type": "x", "http.response.status_code": 429}), 200, "rejected"),
        (genai("1", "2", status={"code": 2}, attrs={"http.response.status_code": 200}), 200, "failed"),
    ],
)
def test_status(row: dict[str, Any], above: int, status: str, tmp_path: Path) -> None:
    assert column(read(tmp_path, row, server("2", code=above)).rows, "status") == [status]


def test_replica_is_known_of_engines_only(tmp_path: Path) -> None:
    lines = [
        export(engine("1"), **{"host.name": "h", "k8s.pod.name": "p"}),
        export(genai("2"), **{"service.instance.id": "app-1"}),
    ]
    assert column(outcome(tmp_path / "l", lines, "otlp").rows, "replica") == ["p", None]


def test_older_names_of_counts_and_own_response_model(tmp_path: Path) -> None:
    older = {
        "gen_ai.operation.name": "chat", "gen_ai.usage.prompt_tokens": 3, "gen_ai.usage.completion_tokens": 4,
        "gen_ai.response.model": "m", "gen_ai.response.time_to_first_chunk": 0.125,
    }  # fmt: skip
    done = read(tmp_path, span("1", attrs=older))
    assert column(done.rows, "prompt_tokens", "output_tokens", "model", "first_token_at", "scheduled_at") == [
        (3, 4, "m", "08:00:00.125000", None)
    ]


# -- times and the encoding -------------------------------------------------------------------------------------------


def test_nanoseconds_and_durations_are_summed_before_they_are_rounded(tmp_path: Path) -> None:
    start = str(START + 499)
    row = engine("1", startTimeUnixNano=start, attrs={"gen_ai.latency.time_in_queue": 0.0000000011})
    done = read(tmp_path, row)
    assert column(done.rows, "arrived_at", "scheduled_at") == [("08:00:00.000000", "08:00:00.000001")]  # 500.1 ns
    halves = [engine(str(index), startTimeUnixNano=START + 500 + index * 1000) for index in (1, 2)]
    assert column(read(tmp_path, *halves).rows, "arrived_at") == ["08:00:00.000002", "08:00:00.000002"]


def test_faulty_values_are_rejects_with_the_attribute(tmp_path: Path) -> None:
    nan = engine("1")
    nan["attributes"][0]["value"] = {"doubleValue": "NaN"}
    done = read(
        tmp_path,
        nan,
        engine("2", startTimeUnixNano="0"),
        engine("3", startTimeUnixNano="yesterday"),
        engine("4", attrs={"gen_ai.latency.time_in_queue": -0.5}),
        engine("5", attrs={"gen_ai.usage.completion_tokens": ""}),
    )
    assert list(done.rejects.values()) == [
        ("unparsable_number", "gen_ai.latency.time_to_first_token", "NaN"),
        ("missing_time", "startTimeUnixNano", "0"),
        ("unparsable_time", "startTimeUnixNano", "yesterday"),
        ("scheduled_before_arrival", "gen_ai.latency.time_in_queue", "-0.5"),
        ("missing_tokens", "gen_ai.usage.completion_tokens", None),
    ]


def test_exports_are_read_from_documents_and_old_scopes_too(tmp_path: Path) -> None:
    group = export(engine("1"), engine("2"))["resourceSpans"][0]
    group["instrumentationLibrarySpans"] = group.pop("scopeSpans")
    document = {"resourceSpans": [group, export(engine("3"))["resourceSpans"][0]]}
    assert column(outcome(tmp_path / "l", document, "otlp").rows, "request_id") == ["1", "2", "3"]
    assert list(outcome(tmp_path / "l", [document, {"resourceSpans": []}, document], "otlp").rows) == list(range(6))


def test_what_is_no_span_is_counted(tmp_path: Path) -> None:
    text = json.dumps(export(engine("1"), "x")) + "\n{broken\n" + json.dumps({"resourceLogs": []}) + "\n"  # type: ignore[arg-type]
    done = outcome(tmp_path / "l", text, "otlp")
    assert (list(done.rows), done.skipped) == ([0], {"not_a_request": 1})
    assert {number: reason for number, (reason, _, _) in done.rejects.items()} == {
        1: "unparsable_record",
        2: "unparsable_record",
    }


@pytest.mark.parametrize(("key", "name"), [("resourceLogs", "logs"), ("resourceMetrics", "metrics")])
def test_logs_and_metrics_are_refused_by_name(key: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=f"OpenTelemetry {name}: no requests"):
        outcome(tmp_path / "l", [{key: []}], "otlp")


def test_prompts_on_spans_are_not_kept(tmp_path: Path) -> None:
    secret = {"gen_ai.input.messages": "the secret", "gen_ai.usage.input_tokens": -1}
    text = json.dumps(export(genai("1", attrs=secret)))
    done = outcome(tmp_path / "l", f"{text}\n{text[:-1]}\n", "otlp")
    assert [reason for reason, _, _ in done.rejects.values()] == ["negative_tokens", "unparsable_record"]
    assert "secret" not in json.dumps([item.as_dict() for item in done.read.rejects])


def test_a_deep_and_a_wide_trace_take_no_quadratic_time(tmp_path: Path) -> None:
    size = 1500
    chain = [
        {"traceId": "d" * 32, "spanId": f"{index:x}", "parentSpanId": f"{index - 1:x}"} for index in range(1, size)
    ]
    wide = [{"traceId": "e" * 32, "spanId": f"{index:x}", "parentSpanId": "1"} for index in range(1, size)]
    lines = [export(*(genai("1") | ids for ids in group)) for group in (chain, wide)]
    assert len(outcome(tmp_path / "l", lines, "otlp").rows) == 1 + size - 2


def test_engine_spans_join_a_gateway_log_by_an_attribute(tmp_path: Path) -> None:
    path, other = tmp_path / "l", tmp_path / "gateway"
    path.write_text(json.dumps(export(engine("1"), engine("2"))))
    row = {"arrived_at": "2026-03-02T08:00:00Z", "prompt_tokens": 1, "output_tokens": 1}
    other.write_text("".join(json.dumps(row | {"call": name, "tenant": f"t{name}"}) + "\n" for name in ("1", "2")))
    key = JoinKey.parse("gen_ai.request.id=call")
    asked = Asked(key=key, gateway=read_gateway(other, Reading(), key, "0" * 16))
    assert read_source(path, Reading(), asked=asked).frame["tenant"].to_list() == ["t1", "t2"]
