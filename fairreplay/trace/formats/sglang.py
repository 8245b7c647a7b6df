"""SGLang's request metrics log (sgl-project/sglang, ``srt/observability/request_metrics_exporter.py``, 0.5.23).

``queue_time`` adds up over requeues and is never read; ``forward_entry_time`` is the first schedule. All times but
``e2e_latency`` need ``--enable-metrics``.
"""

from __future__ import annotations

from fairreplay.trace.containers import decode_json
from fairreplay.trace.fields import After, Epoch, Format, Integer, Record, Sample, Skipped, Text, Tokens
from fairreplay.trace.rules import RejectedError
from fairreplay.trace.values import UnparsableError, is_zero, known, parse_number, subtract

REFUSED_CODES = ("429", "503")
_TEXTS = ("text", "prompt", "messages", "input", "input_ids", "input_embeds", "image_data")


def _parameters(record: Record) -> Record:
    text = record.get("request_parameters")
    if not known(text):
        return {}
    try:
        value = decode_json(text) if isinstance(text, str) else text
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RejectedError("unparsable_record", "request_parameters", text)
    return value


def _tenant(parameters: Record) -> object:
    """``routing_key``; else the adapter, marked as one so that it does not merge with a team of its name."""
    if known(parameters.get("routing_key")):
        return parameters["routing_key"]
    adapter = parameters.get("lora_path")
    return f"adapter:{adapter}" if isinstance(adapter, str) and known(adapter) else None


def _status(reason: object) -> str:
    kind = reason.get("type") if isinstance(reason, dict) else reason
    if kind != "abort":
        return "ok"
    code = reason.get("status_code") if isinstance(reason, dict) else None
    if not known(code):
        return "cancelled"
    return "rejected" if str(code) in REFUSED_CODES else "failed"


def _arrival(record: Record, parameters: Record) -> object:
    """Where the log has no arrival: the answer's time less ``e2e_latency``.

    The answer's time of a stream is that of its first chunk, not of its end, once a token was generated.
    """
    sent, e2e = record.get("response_sent_to_client_ts"), record.get("e2e_latency")
    if not known(sent) or not known(e2e):
        return None
    try:
        end, span = parse_number(sent), parse_number(e2e)
        streamed = parameters.get("stream") is True and parse_number(record.get("completion_tokens") or 0) > 0
    except UnparsableError:
        return None
    return None if streamed or end <= 0 or span < 0 else subtract(end, span)


def _negated(value: object) -> object:
    try:
        return -parse_number(value)
    except UnparsableError:
        return value


def _first(parameters: Record, names: tuple[str, ...]) -> object:
    return next((parameters[name] for name in names if known(parameters.get(name))), None)


def _prepare(record: Record) -> Record | Skipped:
    parameters = _parameters(record)
    rank = record.get("dp_rank")
    prepared = {name: value for name, value in record.items() if name != "request_parameters"} | {
        "tenant": _tenant(parameters),
        "priority": _negated(parameters.get("priority")),
        "session_id": next(
            (parameters[n] for n in ("session_id", "conversation_id") if known(parameters.get(n))), None
        ),
        "replica": f"dp{rank}" if known(rank) else None,
        "status": _status(record.get("finish_reason")),
        "type": None if "completion_tokens" in record else "embed",
    }
    received = record.get("request_received_ts")
    if not known(received) or is_zero(received):
        prepared["response_sent_to_client_ts - e2e_latency"] = _arrival(record, parameters)
        prepared["request_received_ts"] = None
    return prepared


def _matches(sample: Sample) -> bool:
    return any(
        isinstance(record.get("request_parameters"), str) and "id" in record and "finish_reason" in record
        for record in sample.records
    )


SGLANG = Format(
    name="sglang",
    containers=("jsonl", "document"),
    needs=("request_parameters", "id", "finish_reason"),
    matches=_matches,
    prepare=_prepare,
    private=(*_TEXTS, *(f"{name}\\" for name in _TEXTS), "out"),
    reads=(
        "request_parameters",
        "finish_reason",
        "dp_rank",
        "response_sent_to_client_ts",
    ),
    columns={
        "request_id": (Text("id"),),
        "tenant": (Text("tenant"),),
        "type": (Text("type"),),
        "priority": (Integer("priority"),),
        "session_id": (Text("session_id"),),
        "replica": (Text("replica"),),
        "arrived_at": (Epoch("request_received_ts", "s"), Epoch("response_sent_to_client_ts - e2e_latency", "s")),
        "scheduled_at": (Epoch("forward_entry_time", "s"),),
        "first_token_at": (After("first_token_latency", "s"),),
        "finished_at": (Epoch("request_finished_ts", "s"), After("e2e_latency", "s")),
        "prompt_tokens": (Tokens("prompt_tokens"),),
        "output_tokens": (Tokens("completion_tokens"),),
        "cached_tokens": (Tokens("cached_tokens"),),
        "preemptions": (Integer("num_retractions"),),
        "status": (Text("status"),),
    },
)
