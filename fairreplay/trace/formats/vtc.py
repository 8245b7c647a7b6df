"""Results of the S-LoRA/VTC artifact (Ying1123/VTC-artifact, ``fair_bench/run_exp.py``): one object a run."""

from __future__ import annotations

from fairreplay.trace.fields import After, Format, Record, Relative, Sample, Skipped, Text, Tokens
from fairreplay.trace.nested import number_of


def responses(document: Record) -> list[object] | None:
    """The rows of a run, at ``result.responses``."""
    result = document.get("result")
    rows = result.get("responses") if isinstance(result, dict) else None
    return rows if isinstance(rows, list) else None


def _prepare(record: Record) -> Record | Skipped:
    """Latency -1: aborted before it was served. ``output_len`` is what was asked for; nothing was generated."""
    if number_of(record.get("request_latency")) == -1:
        return record | {"status": "rejected", "output_len": 0}
    return record


def _matches(sample: Sample) -> bool:
    return any(responses(record) is not None for record in sample.records)


VTC = Format(
    name="vtc",
    containers=("jsonl", "document"),
    needs=("result.responses",),
    matches=_matches,
    explode=responses,
    prepare=_prepare,
    columns={
        "tenant": (Text("adapter_dir"),),
        "arrived_at": (Relative("req_time", "s"),),
        "prompt_tokens": (Tokens("prompt_len"),),
        "output_tokens": (Tokens("output_len"),),
        "first_token_at": (After("first_token_latency", "s"),),
        "finished_at": (After("request_latency", "s"),),
        "status": (Text("status"),),
    },
)
