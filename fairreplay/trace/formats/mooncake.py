"""Mooncake traces (kvcache-ai/Mooncake, ``FAST25-release/traces``): relative milliseconds, 512-token prefix blocks."""

from __future__ import annotations

from fairreplay.trace.fields import Format, Ids, Integer, Relative, Sample, Text, Tokens

NEEDS = ("timestamp", "input_length", "output_length")


def _matches(sample: Sample) -> bool:
    """Bailian has the same columns and ``chat_id``; RAGPulse's ``hash_ids`` is an object."""
    return any(
        all(name in record for name in NEEDS)
        and "chat_id" not in record
        and not isinstance(record.get("hash_ids"), dict)
        for record in sample.records
    )


MOONCAKE = Format(
    name="mooncake",
    containers=("jsonl", "document"),
    needs=NEEDS,
    matches=_matches,
    prefix_block_tokens=512,
    columns={
        "arrived_at": (Relative("timestamp", "ms"),),
        "prompt_tokens": (Tokens("input_length"),),
        "output_tokens": (Tokens("output_length"),),
        "prefix_ids": (Ids("hash_ids"),),
        "session_id": (Text("session_id"),),
        "priority": (Integer("priority"),),
    },
)
