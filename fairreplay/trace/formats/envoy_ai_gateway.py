"""Envoy AI Gateway access logs in JSON, keys as in the project's own example (envoyproxy/ai-gateway).

Values are numbers, or all strings; what is missing is null, ``-`` or not there. Times are UTC.
"""

from __future__ import annotations

from fairreplay.trace.columnwise import by_rows
from fairreplay.trace.fields import After, Format, Record, Sample, Skipped, Text, Tokens, Wall
from fairreplay.trace.nested import first_known, http_code, http_status, number_of, path_type, prefixed, unless_zero
from fairreplay.trace.values import known

PATHS = ("x-envoy-origin-path", "request.path")
TENANTS = ("tenant.id", "tenant", "x-tenant-id", "x-team-id")


def _matches(sample: Sample) -> bool:
    return any(
        "start_time" in record and "response_code" in record and any(key.startswith("gen_ai.") for key in record)
        for record in sample.records
    )


def _status(record: Record) -> object:
    given = record.get("response_code")
    if not known(given):
        return "failed"  # no answer, and not Envoy's 0 for a client that left
    code = http_code(given)
    if code is None:
        return given
    status, flags = http_status(code), record.get("response_flags")
    if status != "ok" or not known(flags):
        return status
    named = {flag.strip() for flag in str(flags).split(",")}
    return "cancelled" if "DC" in named else "rejected" if "RL" in named else "failed"


def _prepare(record: Record) -> Record | Skipped:
    path = first_known(record.get(name) for name in PATHS)
    type_ = path_type(path)
    if known(record.get("mcp.method.name")) or (path is not None and type_ is None):
        return Skipped("not_a_request")
    status, ttft = _status(record), record.get("token_latency_ttft")
    # 0 is "no first token"; with nothing generated on a success it stays, to be refused as a contradiction.
    if status != "ok" or number_of(record.get("gen_ai.usage.output_tokens")) != 0:
        ttft = unless_zero(ttft)
    return record | {
        "request.path": type_,
        "response_code": status,
        "token_latency_ttft": ttft,
        "user.id": prefixed("user", record.get("user.id")),
    }


ENVOY_AI_GATEWAY = Format(
    name="envoy-ai-gateway",
    containers=("jsonl", "document"),
    needs=("start_time", "response_code", "gen_ai.*"),
    matches=_matches,
    prepare=_prepare,
    by_columns=by_rows(
        _prepare,
        reads=(
            *(Text(name) for name in (*PATHS, "mcp.method.name", "response_code", "response_flags", "user.id")),
            *(After("token_latency_ttft", "ms"), Tokens("gen_ai.usage.output_tokens")),
        ),
        writes=("request.path", "response_code", "token_latency_ttft", "user.id"),
    ),
    reads=("x-envoy-origin-path", "response_flags", "mcp.method.name"),
    columns={
        "request_id": (Text("x-request-id"),),
        "tenant": (*(Text(name) for name in TENANTS), Text("user.id")),
        "type": (Text("request.path"),),
        "model": (Text("gen_ai.request.model"), Text("gen_ai.response.model")),
        "replica": (Text("upstream_host"),),
        "arrived_at": (Wall("start_time", utc=True),),
        "first_token_at": (After("token_latency_ttft", "ms"),),
        "finished_at": (After("duration", "ms"),),
        "prompt_tokens": (Tokens("gen_ai.usage.input_tokens"),),
        "output_tokens": (Tokens("gen_ai.usage.output_tokens"),),
        "cached_tokens": (
            Tokens("gen_ai.usage.cache_read.input_tokens"),
            Tokens("gen_ai.usage.cached_input_tokens"),
        ),
        "status": (Text("response_code"),),
        "session_id": (Text("session.id"),),
    },
)
