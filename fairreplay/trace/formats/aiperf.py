"""AIPerf's ``profile_export.jsonl`` (ai-dynamo/aiperf, ``aiperf/common/models/record_models.py``), old and new.

Metrics carry their unit; times are the load generator's. Failures have no latency metric, and may have no metrics.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairreplay.trace.fields import After, Epoch, Format, Record, Sample, Skipped, Text, Tokens
from fairreplay.trace.nested import http_code, number_of
from fairreplay.trace.rules import RejectedError
from fairreplay.trace.values import EXACT, UNIT_US, Unit, known

UNITS: Mapping[str, Unit] = {
    **{"ns": "ns", "us": "us", "ms": "ms", "s": "s", "sec": "s"},
    **{"nanoseconds": "ns", "microseconds": "us", "milliseconds": "ms", "seconds": "s"},
}
DURATIONS = ("time_to_first_token", "ttft", "request_latency")
COUNTS = ("input_sequence_length", "output_sequence_length", "usage_prompt_cache_read_tokens")
STARTS = ("request_start_ns", "timestamp_ns")
TEXTS = ("payload", "responses")


def _object(value: object) -> Record:
    return value if isinstance(value, dict) else {}


def _milliseconds(name: str, metric: object) -> object:
    """A duration by the unit that stands beside it.

    Raises:
        RejectedError: it has none, or one that is no unit of time.
    """
    if not known(metric):
        return None
    value = _object(metric).get("value")
    if not known(value):
        return None
    unit = UNITS.get(str(_object(metric).get("unit")).lower())
    if unit is None:
        raise RejectedError("unparsable_number", f"metrics.{name}", metric)
    if unit == "ms":
        return value
    number = number_of(value)
    if number is None:
        return value
    return None if number == -1 else EXACT.divide(EXACT.multiply(UNIT_US[unit], number), UNIT_US["ms"])


def _status(metadata: Record, error: object) -> str:
    code = http_code(_object(error).get("code"))
    if metadata.get("was_cancelled") is True or code == 499:
        return "cancelled"
    if not error:
        return "ok"
    return "rejected" if code in (429, 503) else "failed"


def _prepare(record: Record) -> Record | Skipped:
    metadata, metrics = _object(record.get("metadata")), _object(record.get("metrics"))
    if "warmup" in (metadata.get("benchmark_phase"), metadata.get("credit_phase")):
        return Skipped("not_a_request")
    flat: Record = {f"metadata.{name}": value for name, value in metadata.items()}
    flat |= {f"metrics.{name}": _milliseconds(name, metrics[name]) for name in DURATIONS if name in metrics}
    for name in COUNTS:
        metric = metrics.get(name)
        flat[f"metrics.{name}"] = metric.get("value") if isinstance(metric, dict) else metric
    rest = {name: value for name, value in record.items() if name not in TEXTS}
    return rest | flat | {"status": _status(metadata, record.get("error"))}


def _matches(sample: Sample) -> bool:
    return any(
        "metrics" in record and any(name in _object(record.get("metadata")) for name in STARTS)
        for record in sample.records
    )


AIPERF = Format(
    name="aiperf",
    containers=("jsonl", "document"),
    needs=("metadata.request_start_ns or .timestamp_ns", "metrics"),
    matches=_matches,
    prepare=_prepare,
    private=True,
    reads=(
        "metadata",
        "metrics",
        "error",
    ),
    columns={
        "request_id": (Text("metadata.x_request_id"),),
        "session_id": (Text("metadata.conversation_id"),),
        "arrived_at": (Epoch("metadata.request_start_ns", "ns"), Epoch("metadata.timestamp_ns", "ns")),
        "first_token_at": (After("metrics.time_to_first_token", "ms"), After("metrics.ttft", "ms")),
        "finished_at": (Epoch("metadata.request_end_ns", "ns"), After("metrics.request_latency", "ms")),
        "prompt_tokens": (Tokens("metrics.input_sequence_length"),),
        "output_tokens": (Tokens("metrics.output_sequence_length"),),
        "cached_tokens": (Tokens("metrics.usage_prompt_cache_read_tokens"),),
        "status": (Text("status"),),
    },
)
