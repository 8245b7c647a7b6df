"""InferenceX's agentic replay results (SemiAnalysisAI/InferenceX history, ``detailed_results.csv``).

``timestamp`` is the completion, not the arrival. Cache hits are counted in blocks of unstated size: unknown. A failed
row has zeros for the times that it never reached; its end is the completion.
"""

from __future__ import annotations

from fairreplay.trace.fields import After, Epoch, Format, Record, Skipped, Text, Tokens
from fairreplay.trace.nested import unless_zero


def _prepare(record: Record) -> Record | Skipped:
    if str(record.get("success")).strip().lower() != "false":
        return record
    times = {name: unless_zero(record.get(name)) for name in ("ttft", "ttlt")}
    return record | times | {"status": "failed"}


INFERENCEX = Format(
    name="inferencex",
    containers=("csv",),
    needs=("request_start_time", "output_tokens_actual", "success"),
    prepare=_prepare,
    reads=("success",),
    columns={
        "tenant": (Text("user_id"),),
        "session_id": (Text("trace_id"),),
        "arrived_at": (Epoch("request_start_time", "s"),),
        "prompt_tokens": (Tokens("input_tokens"),),
        "output_tokens": (Tokens("output_tokens_actual"),),
        "first_token_at": (After("ttft", "s"),),
        "finished_at": (After("ttlt", "s"), Epoch("timestamp", "s")),
        "status": (Text("status"),),
    },
)
