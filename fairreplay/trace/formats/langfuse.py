"""Langfuse observations: API pages in camelCase, blob exports in snake_case (langfuse/langfuse). Times are UTC."""

from __future__ import annotations

from fairreplay.trace.fields import Format, Record, Sample, Skipped, Text, Tokens, Wall
from fairreplay.trace.nested import (
    at,
    first_known,
    opened,
    prefixed,
    refused_by_message,
    same_instant,
    total,
)
from fairreplay.trace.values import known

NEEDS = (
    ("trace_id", "traceId"),
    ("start_time", "startTime"),
    ("type",),
    ("usage_details", "usageDetails"),
)
"""Each in either spelling."""

TIMES = (("start_time", "completion_start_time", "end_time"), ("startTime", "completionStartTime", "endTime"))

TYPES = {"GENERATION": None, "EMBEDDING": "embed"}
"""Observations that are requests; a generation is of the default type."""


def _matches(sample: Sample) -> bool:
    candidates = [set(record) for record in sample.records]
    if sample.container in ("csv", "parquet"):
        candidates = [set(sample.columns)]
    return any(
        all(any(name in keys for name in names) for names in NEEDS) and "call_type" not in keys for keys in candidates
    )


def _tenant(record: Record) -> object:
    metadata = record.get("metadata")
    names = [at(metadata, "tenant.id"), at(metadata, "tenant", "id"), at(metadata, "tenant_id")]
    return first_known((*names, _scalar(at(metadata, "tenant")), at(metadata, "team_id")))


def _scalar(value: object) -> object:
    return None if isinstance(value, dict | list) else value


def _status(record: Record, end: object) -> str | None:
    if record.get("level") == "ERROR":
        message = first_known((record.get("status_message"), record.get("statusMessage")))
        return "rejected" if refused_by_message(message) else "failed"
    return None if known(end) else "unfinished"


def _prepare(record: Record) -> Record | Skipped:
    kind = str(record.get("type")).upper()
    if kind not in TYPES:
        return Skipped("not_a_request")
    camel = "startTime" in record
    names = (
        ("startTime", "completionStartTime", "endTime")
        if camel
        else ("start_time", "completion_start_time", "end_time")
    )
    start, first, end = (record.get(name) for name in names)
    status = _status(record, end)
    if same_instant(first, end):  # not streamed
        first = None
    if status in ("failed", "rejected") and same_instant(end, start):
        end = None
    usage_name = "usageDetails" if "usageDetails" in record else "usage_details"
    usage = opened(record.get(usage_name))
    counts = usage if isinstance(usage, dict) else {}
    return {
        "id": record.get("id"),
        "tenant": _tenant(record),
        "user_id": prefixed("user", first_known((record.get("user_id"), record.get("userId")))),
        "type": TYPES[kind],
        "model": first_known(record.get(name) for name in ("provided_model_name", "providedModelName", "model")),
        **dict(zip(names, (start, first, end), strict=True)),
        # Langfuse's "input" leaves the cached part out: the prompt is all that is input.
        f"{usage_name} input": total(count for name, count in counts.items() if "input" in name),
        f"{usage_name} output": total(count for name, count in counts.items() if "output" in name),
        f"{usage_name} cached": first_known(
            counts.get(name) for name in ("input_cached_tokens", "input_cache_read", "cache_read_input_tokens")
        ),
        "status": status,
        "session_id": first_known((record.get("session_id"), record.get("sessionId"))),
    }


LANGFUSE = Format(
    name="langfuse",
    containers=("jsonl", "document", "csv", "parquet"),
    page=("data", "meta"),
    needs=tuple(names[0] for names in NEEDS),
    matches=_matches,
    prepare=_prepare,
    private=True,
    reads=(
        "metadata",
        "userId",
        "level",
        "status_message",
        "statusMessage",
        "provided_model_name",
        "providedModelName",
        "trace_id",
        "traceId",
        "usage_details",
        "usageDetails",
        "sessionId",
    ),
    columns={
        "request_id": (Text("id"),),
        "tenant": (Text("tenant"), Text("user_id")),
        "type": (Text("type"),),
        "model": (Text("model"),),
        "arrived_at": (Wall("start_time", utc=True), Wall("startTime", utc=True)),
        "first_token_at": (Wall("completion_start_time", utc=True), Wall("completionStartTime", utc=True)),
        "finished_at": (Wall("end_time", utc=True), Wall("endTime", utc=True)),
        "prompt_tokens": tuple(Tokens(f"{name} input", source=name) for name in ("usage_details", "usageDetails")),
        "output_tokens": tuple(Tokens(f"{name} output", source=name) for name in ("usage_details", "usageDetails")),
        "cached_tokens": tuple(Tokens(f"{name} cached", source=name) for name in ("usage_details", "usageDetails")),
        "status": (Text("status"),),
        "session_id": (Text("session_id"),),
    },
)
