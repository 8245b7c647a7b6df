"""RAGPulse (flashserve/RAGPulse, ``data/0_trace.jsonl``): whole relative seconds as text, prefix blocks by kind.

The order of the kinds in the prompt is assumed; the size of a block is not stated.
"""

from __future__ import annotations

from fairreplay.trace.fields import Format, Ids, Record, Relative, Sample, Skipped, Text, Tokens

NEEDS = ("timestamp", "input_length", "output_length", "session_id")
PROMPT_ORDER = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")


def _prepare(record: Record) -> Record | Skipped:
    kinds = record.get("hash_ids")
    if not isinstance(kinds, dict):
        return record
    lists = [kinds[kind] for kind in PROMPT_ORDER if kinds.get(kind) is not None]
    joined = all(isinstance(item, list) for item in lists)
    return record | {"hash_ids": [block for item in lists for block in item] if joined else kinds}


def _matches(sample: Sample) -> bool:
    return any(
        all(name in record for name in NEEDS) and isinstance(record.get("hash_ids"), dict) for record in sample.records
    )


RAGPULSE = Format(
    name="ragpulse",
    containers=("jsonl", "document"),
    needs=(*NEEDS, "hash_ids as an object"),
    matches=_matches,
    prepare=_prepare,
    columns={
        "session_id": (Text("session_id"),),
        "arrived_at": (Relative("timestamp", "s"),),
        "prompt_tokens": (Tokens("input_length"),),
        "output_tokens": (Tokens("output_length"),),
        "prefix_ids": (Ids("hash_ids"),),
    },
)
