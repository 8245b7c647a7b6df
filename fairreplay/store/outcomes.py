"""What became of the requests: as production logged it, or as a replay decided it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import polars as pl

from fairreplay.store.outcome_rows import are_same_requests
from fairreplay.store.replays import check_columns
from fairreplay.store.store import Store
from fairreplay.trace.schema import COLUMNS, SCHEMA

LOGGED = "logged"
DECIDED: Final = (
    "replica",
    "scheduled_at",
    "first_token_at",
    "finished_at",
    "status",
    "preemptions",
    "recomputed_tokens",
    "cached_tokens",
)
"""Columns in which a replay takes the place of the log: what a scheduler decides."""


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
    return _joined(store, source, since, until, columns)


def outcomes(store: Store, replays: Sequence[str], since: datetime | None = None) -> list[pl.DataFrame]:
    """The log from ``since`` on, and the outcome of each of ``replays``: as ``outcome`` gives them, but shared.

    Replays of one load differ in what was decided; the other columns exist once, which is most of the memory.
    """
    logged = store.requests(since)
    bases, found = [logged], [logged]
    for name in replays:
        replayed = store.replay_requests(name)
        base = next((one for one in bases if are_same_requests(one, replayed)), None)
        if base is None:
            base = logged.join(replayed.select("request_id"), on="request_id", how="semi", maintain_order="left")
            if len(base) < len(replayed):  # it begins before ``since``
                replayed = replayed.join(base.select("request_id"), on="request_id", how="semi", maintain_order="left")
            base = next((one for one in bases if are_same_requests(one, replayed)), base)
            if not are_same_requests(base, replayed):  # in another order: as one by one
                found.append(_joined(store, name, since, None, COLUMNS))
                continue
            bases.append(base)
        refused = replayed["status"] == "rejected"
        generated = base["output_tokens"]
        if refused.any():
            generated = base.select(
                pl.when(refused).then(pl.lit(0, pl.UInt32)).otherwise(pl.col("output_tokens")).alias("output_tokens")
            ).to_series()
        found.append(base.with_columns(*(replayed[column] for column in DECIDED), generated))
    return [check_columns(frame, SCHEMA, "an outcome") for frame in found]


def _joined(
    store: Store, source: str, since: datetime | None, until: datetime | None, columns: Sequence[str]
) -> pl.DataFrame:
    kept = [name for name in dict.fromkeys(["request_id", *columns]) if name not in DECIDED]
    decided = [name for name in DECIDED if name in columns or name == "status"]
    logged = store.requests(since, until, kept)
    replayed = store.replay_requests(source).select("request_id", *decided)
    joined = logged.join(replayed, on="request_id", how="inner", maintain_order="left")
    if "output_tokens" in columns:
        refused = pl.col("status") == "rejected"
        generated = pl.when(refused).then(pl.lit(0, pl.UInt32)).otherwise(pl.col("output_tokens"))
        joined = joined.with_columns(output_tokens=generated)
    return check_columns(joined.select(columns), {name: SCHEMA[name] for name in columns}, "an outcome")
