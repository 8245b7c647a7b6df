"""GuideLLM reports, ``benchmarks.json`` of version 2 (vllm-project/guidellm).

``info.timings.scheduled_at``, ``queued`` and ``dequeued`` are the client's own and no times of the server.
"""

from __future__ import annotations

from fairreplay.trace.fields import Epoch, Format, Record, Sample, Skipped, Text, Tokens
from fairreplay.trace.nested import (
    at,
    first_known,
    number_of,
    path_type,
    refused_by_message,
    total,
    unless_zero,
)
from fairreplay.trace.values import known

VERSION = 2
LISTS = ("successful", "errored", "incomplete")
_STARTS = ("request_start", "resolve_start")
_ENDS = ("request_end", "resolve_end")
_MODALITIES = ("text_tokens", "image_tokens", "video_tokens", "audio_tokens")


def _runs(report: Record) -> list[object] | None:
    runs = report.get("benchmarks")
    return runs if isinstance(runs, list) else None


def _matches(sample: Sample) -> bool:
    """A report of any version: old ones are refused by name."""
    return any(
        _runs(record) is not None
        and (known(at(record, "metadata", "version")) or at(_first(record), "requests") is not None)
        for record in sample.records
    )


def _first(report: Record) -> object:
    return next(iter(_runs(report) or ()), None)


def _refuse(sample: Sample) -> str | None:
    for record in sample.records:
        version = at(record, "metadata", "version")
        if _runs(record) is not None and number_of(version) != VERSION:
            which = f"of version {str(version)[:20]}" if known(version) else "without a version"
            return f"a report {which}, and only version {VERSION} is read; write it again with a newer GuideLLM"
    return None


def _explode(report: Record) -> list[object] | None:
    runs = _runs(report)
    if runs is None:
        return None
    form = first_known((at(report, "config", "backend", "request_format"), "/v1/chat/completions"))
    shared = {"type": path_type(form), "model": at(report, "config", "backend", "model")}
    rows: list[object] = []
    for run in runs:
        requests = at(run, "requests")
        for name, entries in requests.items() if isinstance(requests, dict) else ():
            if name in LISTS and isinstance(entries, list):
                rows += [_flat(entry, name) | shared if isinstance(entry, dict) else entry for entry in entries]
    return rows


def _flat(entry: Record, name: str) -> Record:
    """What is read of one request, times that are 0 left out: they stand for "none"."""
    wanted = (*_STARTS, *_ENDS, "first_token_iteration", *(("last_token_iteration",) if name == "successful" else ()))
    times = {f"info.timings.{mark}": unless_zero(at(entry, "info", "timings", mark)) for mark in wanted}
    return times | {
        "request_id": first_known((entry.get("request_id"), at(entry, "info", "request_id"))),
        "info.conversation_id": at(entry, "info", "conversation_id"),
        "prompt_tokens": first_known((entry.get("prompt_tokens"), _counted(entry, "input_metrics"))),
        "output_tokens": first_known((entry.get("output_tokens"), _counted(entry, "output_metrics"))),
        "cached_tokens": first_known((entry.get("cached_tokens"), at(entry, "input_metrics", "cached_tokens"))),
        "status": _status(entry, name),
    }


def _counted(entry: Record, metrics: str) -> object:
    return total(at(entry, metrics, name) for name in _MODALITIES)


def _status(entry: Record, name: str) -> str:
    if name == "successful":
        return "ok"
    if name == "errored":
        return "rejected" if refused_by_message(at(entry, "info", "error")) else "failed"
    return "cancelled" if at(entry, "info", "status") == "cancelled" else "unfinished"


def _prepare(record: Record) -> Record | Skipped:
    sent = any(known(record.get(f"info.timings.{mark}")) for mark in _STARTS)
    return record if sent else Skipped("never_sent")


def _times(*marks: str) -> tuple[Epoch, ...]:
    return tuple(Epoch(f"info.timings.{mark}", "s") for mark in marks)


GUIDELLM = Format(
    name="guidellm",
    containers=("jsonl", "document"),
    needs=("benchmarks", "metadata.version"),
    matches=_matches,
    refuse=_refuse,
    explode=_explode,
    prepare=_prepare,
    private=True,
    columns={
        "request_id": (Text("request_id"),),
        "type": (Text("type"),),
        "model": (Text("model"),),
        "arrived_at": _times(*_STARTS),
        "first_token_at": _times("first_token_iteration"),
        "finished_at": _times("last_token_iteration", *_ENDS),
        "prompt_tokens": (Tokens("prompt_tokens"),),
        "output_tokens": (Tokens("output_tokens"),),
        "cached_tokens": (Tokens("cached_tokens"),),
        "status": (Text("status"),),
        "session_id": (Text("info.conversation_id"),),
    },
)
