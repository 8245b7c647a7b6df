"""SGLang's request metrics log (sgl-project/sglang, ``srt/observability/request_metrics_exporter.py``, 0.5.23).

``queue_time`` adds up over requeues and is never read; ``forward_entry_time`` is the first schedule. All times but
``e2e_latency`` need ``--enable-metrics``.
"""

from __future__ import annotations

from fairreplay.trace.fields import After, Epoch, Format, Integer, Record, Sample, Skipped, Text, Tokens
from fairreplay.trace.nested import at, first_known, http_code, number_of, opened, prefixed, unless_zero
from fairreplay.trace.rules import RejectedError
from fairreplay.trace.values import known, subtract


def _parameters(record: Record) -> Record:
    text = record.get("request_parameters")
    parameters = opened(text) if known(text) else {}
    if not isinstance(parameters, dict):
        raise RejectedError("unparsable_record", "request_parameters", text)
    return parameters


def _status(reason: object) -> str:
    if reason != "abort" and at(reason, "type") != "abort":
        return "ok"
    code = at(reason, "status_code")
    if not known(code):
        return "cancelled"
    return "rejected" if http_code(code) in (429, 503) else "failed"


def _arrival(record: Record, parameters: Record) -> object:
    """Where the log has no arrival: the answer's time less ``e2e_latency``.

    The answer's time of a stream is that of its first chunk, not of its end, once a token was generated.
    """
    end, span = number_of(record.get("response_sent_to_client_ts")), number_of(record.get("e2e_latency"))
    if end is None or span is None or end <= 0 or span < 0:
        return None
    generated = number_of(record.get("completion_tokens")) or 0
    return None if parameters.get("stream") is True and generated > 0 else subtract(end, span)


def _negated(value: object) -> object:
    number = number_of(value)
    return value if number is None else subtract(0, number)


def _prepare(record: Record) -> Record | Skipped:
    parameters = _parameters(record)
    rank, adapter = number_of(record.get("dp_rank")), parameters.get("lora_path")
    tenants = (parameters.get("routing_key"), prefixed("adapter", adapter if isinstance(adapter, str) else None))
    received = unless_zero(record.get("request_received_ts"))
    return {name: value for name, value in record.items() if name != "request_parameters"} | {
        "tenant": first_known(tenants),
        "priority": _negated(parameters.get("priority")),
        "session_id": first_known((parameters.get("session_id"), parameters.get("conversation_id"))),
        "replica": f"dp{rank}" if rank is not None else None,
        "status": _status(record.get("finish_reason")),
        "type": None if "completion_tokens" in record else "embed",
        "request_received_ts": received,
        "response_sent_to_client_ts - e2e_latency": None if known(received) else _arrival(record, parameters),
    }


def _matches(sample: Sample) -> bool:
    return any(
        isinstance(record.get("request_parameters"), str) and "id" in record and "finish_reason" in record
        for record in sample.records
    )


def logs_requests(sample: Sample) -> bool:
    """Lines of ``--log-requests-format json``: another log, without the engine's times."""
    return any(
        record.get("event") == "request.finished" and "rid" in record and "out" in record for record in sample.records
    )


SGLANG = Format(
    name="sglang",
    containers=("jsonl", "document"),
    needs=("request_parameters", "id", "finish_reason"),
    matches=_matches,
    prepare=_prepare,
    private=True,
    reads=("request_parameters", "finish_reason", "dp_rank", "response_sent_to_client_ts"),
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
