"""Dynamo's request trace v1 (ai-dynamo/dynamo, ``lib/llm/src/request_trace``): a file of several gzip members.

Each line is wrapped, ``{"timestamp": .., "event": {record}}``; stderr and NATS write the bare record. Columns are named
by their path in the record. The envelope's ``timestamp`` is no arrival, ``event_time_unix_ms`` is the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fairreplay.trace.fields import After, Epoch, Format, Ids, Record, Sample, Skipped, Text, Tokens
from fairreplay.trace.nested import first_known, number_of, unless_zero
from fairreplay.trace.values import known, subtract

SCHEMA = "dynamo.request.trace.v1"
TENANT_HEADERS = ("x-tenant-id", "x-team-id", "x-tenant")
CHAT_ENDPOINT = "openai.chat_completion"


def _inner(record: Record, *keys: str) -> Record:
    """The object at a path, or an empty one."""
    value: object = record
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _event(record: Record) -> Record:
    return _inner(record, "event") or record


def _tenant(payload: Record) -> object:
    headers = {name.lower(): value for name, value in _inner(payload, "http_request_headers").items()}
    values = (headers.get(name) for name in TENANT_HEADERS)
    return first_known(value[0] if isinstance(value, list) and len(value) == 1 else value for value in values)


def _survey(_: Sample, records: Iterable[Record]) -> Format:
    """Tenant and type stand in payload records, before or after their request."""
    tenants: dict[object, object] = {}
    chats: set[object] = set()
    blocks: set[int] = set()
    for record in records:
        event = _event(record)
        size = _inner(event, "request", "replay").get("trace_block_size")
        if type(size) is int and size > 0:
            blocks.add(size)
        payload = _inner(event, "payload")
        request_id = payload.get("request_id")
        if not isinstance(request_id, str):
            continue
        tenant = _tenant(payload)
        if tenant is not None:
            tenants.setdefault(request_id, tenant)
        if payload.get("endpoint") == CHAT_ENDPOINT:
            chats.add(request_id)

    def prepare(record: Record) -> Record | Skipped:
        event = _event(record)
        if event.get("event_type") != "request_end":
            return Skipped("not_a_request")
        request_id = _inner(event, "request").get("request_id")
        named = request_id if isinstance(request_id, str) else None
        return _flat(event) | {"tenant": tenants.get(named), "type": "chat" if named in chats else None}

    return replace(DYNAMO, prepare=prepare, prefix_block_tokens=blocks.pop() if len(blocks) == 1 else None)


def _flat(event: Record) -> Record:
    request = _inner(event, "request")
    worker, replay = _inner(request, "worker"), _inner(request, "replay")
    flat: Record = {f"request.{name}": value for name, value in request.items()}
    flat |= {f"request.worker.{name}": value for name, value in worker.items()}
    flat |= {f"request.replay.{name}": value for name, value in replay.items()}
    flat["event_time_unix_ms"] = event.get("event_time_unix_ms")
    flat["agent_context.session_id"] = _inner(event, "agent_context").get("session_id")
    flat["status"] = _status(_inner(request, "finish_reason_metadata").get("backend_finish_reason"))
    if not known(unless_zero(request.get("request_received_ms"))):
        flat["request.request_received_ms"] = None
        flat["event_time_unix_ms - total_time_ms"] = _start(event.get("event_time_unix_ms"), request)
    return flat


def _start(end: object, request: Record) -> object:
    instant, span = number_of(end), number_of(request.get("total_time_ms"))
    return subtract(instant, span) if instant is not None and span is not None and instant > 0 <= span else None


def _status(reason: object) -> str:
    text = reason.lower() if isinstance(reason, str) else ""
    if text == "cancelled":
        return "cancelled"
    return "failed" if text.startswith("error") else "ok"


def _matches(sample: Sample) -> bool:
    return any(SCHEMA in (record.get("schema"), _inner(record, "event").get("schema")) for record in sample.records)


DYNAMO = Format(
    name="dynamo",
    containers=("jsonl", "document"),
    needs=(f"schema = {SCHEMA}",),
    matches=_matches,
    survey=_survey,
    private=True,
    reads=(
        "timestamp",
        "event",
        "schema",
        "event_type",
        "event_source",
        "request",
        "payload",
        "tool",
        "agent_context",
    ),
    columns={
        "request_id": (Text("request.request_id"),),
        "tenant": (Text("tenant"),),
        "type": (Text("type"),),
        "model": (Text("request.model"),),
        "replica": (Text("request.worker.decode_worker_id"), Text("request.worker.prefill_worker_id")),
        "arrived_at": (
            Epoch("request.request_received_ms", "ms"),
            Epoch("event_time_unix_ms - total_time_ms", "ms"),
        ),
        "prompt_tokens": (Tokens("request.input_tokens"), Tokens("request.replay.input_length")),
        "output_tokens": (Tokens("request.output_tokens"),),
        "cached_tokens": (Tokens("request.cached_tokens"),),
        "scheduled_at": (After("request.prefill_wait_time_ms", "ms"),),
        "first_token_at": (After("request.ttft_ms", "ms"),),
        "finished_at": (After("request.total_time_ms", "ms"), Epoch("event_time_unix_ms", "ms")),
        "status": (Text("status"),),
        "session_id": (Text("agent_context.session_id"),),
        "prefix_ids": (Ids("request.replay.input_sequence_hashes"),),
    },
)
