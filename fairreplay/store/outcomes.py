"""What became of the requests: as production logged it, or as a replay decided it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import polars as pl

from fairreplay.store.replays import check_columns
from fairreplay.store.store import Store
from fairreplay.trace.schema import COLUMNS, SCHEMA

LOGGED = "logged"
_REPLACED = (
    "replica",
    "scheduled_at",
    "first_token_at",
    "finished_at",
    "status",
    "preemptions",
    "recomputed_tokens",
    "cached_tokens",
)


def outcome(
    store: Store,
    source: str,
    since: datetime | None = None,
    until: datetime | None = None,
    columns: Sequence[str] = COLUMNS,
) -> pl.DataFrame:
    """Requests that arrived in [``since``, ``until``) with their outcome: ``columns``, in the order of ``ORDER``.

    ``source`` is ``"logged"`` or a replay's name. For a replay only the rows that it holds are given; what it decided
    replaces what was logged, and a request that it refused generated 0 tokens.
    """
    if source == LOGGED:
        return store.requests(since, until, columns)
    kept = [name for name in dict.fromkeys(["request_id", *columns]) if name not in _REPLACED]
    decided = [name for name in _REPLACED if name in columns or name == "status"]
    logged = store.requests(since, until, kept)
    replayed = store.replay_requests(source).select("request_id", *decided)
    joined = logged.join(replayed, on="request_id", how="inner", maintain_order="left")
    if "output_tokens" in columns:
        refused = pl.col("status") == "rejected"
        generated = pl.when(refused).then(pl.lit(0, pl.UInt32)).otherwise(pl.col("output_tokens"))
        joined = joined.with_columns(output_tokens=generated)
    return check_columns(joined.select(columns), {name: SCHEMA[name] for name in columns}, "an outcome")
