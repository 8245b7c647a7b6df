"""LiteLLM proxy: rows of ``LiteLLM_SpendLogs`` and ``StandardLoggingPayload`` (BerriAI/litellm 1.110.2).

A record with ``request_id`` is a spend log, one with ``id`` a payload. Times are the gateway's and always UTC.
"""

from __future__ import annotations

from fairreplay.trace.fields import Format, Record, Sample, Skipped, Text, Tokens, Wall, has_all
from fairreplay.trace.nested import at, first_known, http_code, opened, prefixed, same_instant
from fairreplay.trace.values import known

NEEDS = ("call_type", "startTime", "endTime")

TYPES = {
    "completion": "chat",
    "responses": "chat",
    "anthropic_messages": "chat",
    "generate_content": "chat",
    "generate_content_stream": "chat",
    "text_completion": "completion",
    "embedding": "embed",
    "rerank": "embed",
}
"""Call types that reach an engine; each is also written with an ``a`` before it (asynchronous)."""

_CALL_TYPES = TYPES | {f"a{name}": type_ for name, type_ in TYPES.items()}
_CODES = {429: "rejected", 503: "rejected", 499: "cancelled"}


def _matches(sample: Sample) -> bool:
    tabular = sample.container in ("csv", "parquet")
    return has_all(sample, ("request_id", *NEEDS) if tabular else NEEDS)


def _tenant(record: Record) -> dict[str, object]:
    """The first of team, organisation, user and key, the last three with their kind."""
    if "request_id" in record:
        places = [(name, record.get(name)) for name in ("team_id", "organization_id", "user", "api_key")]
    else:
        names = [f"user_api_key_{name}" for name in ("team_id", "org_id", "user_id", "hash")]
        places = [(f"metadata.{name}", at(record, "metadata", name)) for name in names]
    kinds = ("", "org", "user", "key")
    for (name, value), kind in zip(places, kinds, strict=True):
        if known(value):
            return {name: prefixed(kind, value) if kind else value}
    return {}


def _cached(record: Record) -> object:
    usage, more = ("metadata", "usage_object"), ("metadata", "additional_usage_values")
    details, read = ("prompt_tokens_details", "cached_tokens"), ("cache_read_input_tokens",)
    return first_known(at(record, *path) for path in (usage + details, more + read, more + details, usage + read))


def _status(record: Record) -> object:
    status = first_known((record.get("status"), at(record, "metadata", "status")))
    if status == "success":
        return None
    if status != "failure":
        return status
    code = first_known(
        at(record, *path, "error_code") for path in (("metadata", "error_information"), ("error_information",))
    )
    return _CODES.get(http_code(code) or -1, "failed")


def _prepare(record: Record) -> Record | Skipped:
    record = record | {"metadata": opened(record.get("metadata"))}
    call_type = record.get("call_type")
    if known(call_type) and str(call_type) not in _CALL_TYPES:
        return Skipped("not_a_request")
    if str(record.get("cache_hit")).lower() == "true":
        return Skipped("response_cache_hit")
    status = _status(record)
    end, first = record.get("endTime"), record.get("completionStartTime")
    # LiteLLM writes the end where it saw no first token.
    if same_instant(first, end) or str(record.get("stream")).lower() == "false":
        first = None
    # Older versions write the start as the end of a request that failed.
    if status is not None and same_instant(end, record.get("startTime")):
        end = None
    kept = ("request_id", "id", "model_group", "model", "model_id", "startTime", "prompt_tokens", "completion_tokens")
    return {name: record[name] for name in (*kept, "session_id") if name in record} | {
        **_tenant(record),
        "call_type": _CALL_TYPES[str(call_type)] if known(call_type) else None,
        "completionStartTime": first,
        "endTime": end,
        "status": status,
        "cached_tokens": _cached(record),
    }


LITELLM = Format(
    name="litellm",
    containers=("jsonl", "document", "csv", "parquet"),
    page=("data", "total", "page", "page_size", "total_pages"),
    needs=NEEDS,
    matches=_matches,
    prepare=_prepare,
    private=True,
    reads=("metadata", "cache_hit", "stream", "error_information", "team_id", "organization_id", "user", "api_key"),
    columns={
        "request_id": (Text("request_id"), Text("id")),
        "tenant": tuple(
            Text(name)
            for name in (
                "team_id",
                "organization_id",
                "user",
                "api_key",
                "metadata.user_api_key_team_id",
                "metadata.user_api_key_org_id",
                "metadata.user_api_key_user_id",
                "metadata.user_api_key_hash",
            )
        ),
        "type": (Text("call_type"),),
        "model": (Text("model_group"), Text("model")),
        "replica": (Text("model_id"),),
        "arrived_at": (Wall("startTime", utc=True, epoch="s"),),
        "first_token_at": (Wall("completionStartTime", utc=True, epoch="s"),),
        "finished_at": (Wall("endTime", utc=True, epoch="s"),),
        "prompt_tokens": (Tokens("prompt_tokens"),),
        "output_tokens": (Tokens("completion_tokens"),),
        "cached_tokens": (Tokens("cached_tokens"),),
        "status": (Text("status"),),
        "session_id": (Text("session_id"),),
    },
)
