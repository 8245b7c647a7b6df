"""Vidur's processed traces (microsoft/vidur, ``data/processed_traces``): relative seconds and lengths."""

from __future__ import annotations

from fairreplay.trace.fields import Format, Relative, Tokens

VIDUR = Format(
    name="vidur",
    containers=("csv",),
    needs=("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    columns={
        "arrived_at": (Relative("arrived_at", "s"),),
        "prompt_tokens": (Tokens("num_prefill_tokens"),),
        "output_tokens": (Tokens("num_decode_tokens"),),
    },
)
