"""The canonical trace: one row is one request as the serving cluster saw it.

Every reader turns a foreign log into exactly these columns and everything downstream knows only them.
Null means "the source does not say" and is never written as 0.
"""

from __future__ import annotations

from typing import Final

import polars as pl

TIMESTAMP: Final = pl.Datetime("us", "UTC")

SCHEMA: Final[dict[str, pl.DataType]] = {
    "request_id": pl.String(),
    "tenant": pl.String(),
    "type": pl.String(),
    "model": pl.String(),
    "replica": pl.String(),
    "arrived_at": TIMESTAMP,
    "prompt_tokens": pl.UInt32(),
    "output_tokens": pl.UInt32(),
    "cached_tokens": pl.UInt32(),
    "priority": pl.Int32(),
    "scheduled_at": TIMESTAMP,
    "first_token_at": TIMESTAMP,
    "finished_at": TIMESTAMP,
    "status": pl.String(),
    "preemptions": pl.UInt16(),
    "recomputed_tokens": pl.UInt32(),
    "weight": pl.Float32(),
    "batch_utilization": pl.Float32(),
    "precision": pl.String(),
    "session_id": pl.String(),
    "prefix_ids": pl.List(pl.UInt64()),
    "seq": pl.UInt64(),
    "source": pl.String(),
}
"""Column -> type, in storage order. Units: tokens; instants in UTC microseconds; ``weight`` and
``batch_utilization`` are ratios."""

COLUMNS: Final = tuple(SCHEMA)
TIME_COLUMNS: Final = ("arrived_at", "scheduled_at", "first_token_at", "finished_at")

STATUSES: Final = ("ok", "rejected", "failed", "cancelled", "unfinished")
"""``rejected`` = refused (429/503) and never served."""

DEFAULT_TENANT: Final = "default"
DEFAULT_TYPE: Final = "completion"
TYPE_ALIASES: Final = {
    "batch_long": "long",
    "batch_embed": "embed",
    "embedding": "embed",
    "embeddings": "embed",
    "text_completion": "completion",
}

ORDER: Final = ("arrived_at", "seq", "source")
"""The total order of requests: arrival, then order in the source; the content id settles ties between files."""


def check_frame(frame: pl.DataFrame) -> pl.DataFrame:
    """``frame`` unchanged if it has exactly the canonical columns and types.

    Raises:
        TypeError: names the first column that differs (a bug in a reader, not bad input).
    """
    found = frame.schema
    for column, dtype in SCHEMA.items():
        if column not in found:
            raise TypeError(f"canonical column {column!r} is missing")
        if found[column] != dtype:
            raise TypeError(f"canonical column {column!r} is {found[column]}, not {dtype}")
    if len(found) != len(SCHEMA):
        raise TypeError(f"unknown columns: {sorted(set(found) - set(SCHEMA))}")
    return frame
