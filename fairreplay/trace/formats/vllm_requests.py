"""Per-request times of a vLLM engine (casys-kaist/LLMServingSim, ``bench``).

Two clocks in one row: the arrival is Unix time, the marks are monotonic. They meet in durations from
``queued_ts`` only.
"""

from __future__ import annotations

from fairreplay.trace.fields import After, Epoch, Format, Text, Tokens

VLLM_REQUESTS = Format(
    name="vllm-requests",
    containers=("jsonl", "document"),
    needs=("input_toks", "output_toks", "arrival_time"),
    columns={
        "request_id": (Text("request_id"),),
        "arrived_at": (Epoch("arrival_time", "s"),),
        "prompt_tokens": (Tokens("input_toks"),),
        "output_tokens": (Tokens("output_toks"),),
        "scheduled_at": (After("scheduled_ts", "s", minus="queued_ts"),),
        "first_token_at": (After("first_token_ts", "s", minus="queued_ts"),),
        "finished_at": (After("last_token_ts", "s", minus="queued_ts"),),
    },
)
