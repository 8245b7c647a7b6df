"""TensorRT-LLM's perf metrics (NVIDIA/TensorRT-LLM, ``tensorrt_llm/serve/_perf_metrics_schema.py``), JSON lines.

Seconds of a steady clock on which 0 is unknown, aggregated or disaggregated serving. No token counts, tenants or types
are in it: a log that is joined to it has them.
"""

from __future__ import annotations

from fairreplay.trace.fields import Format, Record, Relative, Sample, Skipped, Text
from fairreplay.trace.nested import unless_zero

_TIMING = "perf_metrics.timing_metrics"


def _object(value: object) -> Record:
    return value if isinstance(value, dict) else {}


def _timing(record: object) -> Record:
    return _object(_object(_object(record).get("perf_metrics")).get("timing_metrics"))


def _prepare(record: Record) -> Record | Skipped:
    server = _object(_object(record.get("phases")).get("server"))
    flat = record | server
    if "ctx_perf_metrics" in flat or "gen_perf_metrics" in flat:
        prepared = flat | _disaggregated(flat)
    else:
        prepared = flat | _aggregated(flat)
    status = flat.get("status")
    return prepared | {"status": "ok" if status in ("complete", None) else "failed"}


def _aggregated(record: Record) -> Record:
    timing = _timing(record)
    arrivals = [name for name in ("server_arrival_time", "arrival_time") if name in timing]
    marks = ("first_scheduled_time", "server_first_token_time", "first_token_time", "last_token_time")
    found = {name: unless_zero(timing[name]) for name in marks if name in timing}
    return found | {f"{_TIMING}.{name}": unless_zero(timing[name]) for name in arrivals}


def _disaggregated(record: Record) -> Record:
    context, generation = _object(record.get("ctx_perf_metrics")), _object(record.get("gen_perf_metrics"))
    own = record.get("disagg_request_id")
    return {
        "request_id": own if own is not None else context.get("request_id"),
        "replica": record.get("gen_server"),
        "disagg_server_arrival_time": unless_zero(record.get("disagg_server_arrival_time")),
        "first_scheduled_time": unless_zero(_timing(context).get("first_scheduled_time")),
        "disagg_server_first_token_time": unless_zero(record.get("disagg_server_first_token_time")),
        "last_token_time": unless_zero(_timing(generation).get("last_token_time")),
    }


def _is_one(record: Record) -> bool:
    if "ctx_perf_metrics" in record or "gen_perf_metrics" in record:
        return True
    if "schema_version" in record and isinstance(record.get("phases"), dict):
        return True
    return isinstance(_object(record.get("perf_metrics")).get("timing_metrics"), dict)


def _matches(sample: Sample) -> bool:
    return any(map(_is_one, sample.records))


TRTLLM = Format(
    name="trtllm",
    containers=("jsonl", "document"),
    needs=(f"{_TIMING}, ctx_perf_metrics or gen_perf_metrics",),
    matches=_matches,
    prepare=_prepare,
    reads=(
        "perf_metrics",
        "ctx_perf_metrics",
        "gen_perf_metrics",
        "disagg_request_id",
        "gen_server",
        "phases",
        "schema_version",
    ),
    columns={
        "request_id": (Text("request_id"),),
        "replica": (Text("replica"),),
        "arrived_at": (
            Relative(f"{_TIMING}.server_arrival_time", "s", monotonic=True),
            Relative(f"{_TIMING}.arrival_time", "s", monotonic=True),
            Relative("disagg_server_arrival_time", "s", monotonic=True),
        ),
        "scheduled_at": (Relative("first_scheduled_time", "s"),),
        "first_token_at": (
            Relative("server_first_token_time", "s"),
            Relative("first_token_time", "s"),
            Relative("disagg_server_first_token_time", "s"),
        ),
        "finished_at": (Relative("last_token_time", "s"),),
        "status": (Text("status"),),
    },
)
