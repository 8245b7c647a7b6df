"""LMBenchmark results (llm-d/llm-d-benchmark history): Unix seconds, TTFT as a duration, the user is the tenant."""

from __future__ import annotations

from fairreplay.trace.fields import After, Epoch, Format, Text, Tokens

LMBENCH = Format(
    name="lmbench",
    containers=("csv",),
    needs=("prompt_tokens", "generation_tokens", "ttft", "launch_time", "finish_time"),
    columns={
        "tenant": (Text("user_id"),),
        "session_id": (Text("user_id"),),
        "arrived_at": (Epoch("launch_time", "s"),),
        "prompt_tokens": (Tokens("prompt_tokens"),),
        "output_tokens": (Tokens("generation_tokens"),),
        "first_token_at": (After("ttft", "s"),),
        "finished_at": (Epoch("finish_time", "s"),),
    },
)
