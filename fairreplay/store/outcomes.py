"""What became of the requests: as production logged it, or as a replay decided it."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from fairreplay.store.store import Store
from fairreplay.trace.schema import COLUMNS, check_frame

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


def outcome(store: Store, source: str, since: datetime | None = None, until: datetime | None = None) -> pl.DataFrame:
    """Requests that arrived in [``since``, ``until``) with their outcome: canonical columns, in the order of ``ORDER``.

    ``source`` is ``"logged"`` or a replay's name. For a replay only the rows that it holds are given; what it decided
    replaces what was logged, and a request that it refused generated 0 tokens.
    """
    logged = store.requests(since, until)
    if source == LOGGED:
        return logged
    replayed = store.replay_requests(source).select("request_id", *_REPLACED)
    joined = logged.drop(_REPLACED).join(replayed, on="request_id", how="inner", maintain_order="left")
    refused = pl.col("status") == "rejected"
    generated = pl.when(refused).then(pl.lit(0, pl.UInt32)).otherwise(pl.col("output_tokens")).alias("output_tokens")
    return check_frame(joined.with_columns(generated).select(COLUMNS))
