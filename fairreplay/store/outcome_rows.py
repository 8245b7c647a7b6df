"""Parts of outcome frames, without copies where that is possible: a frame of ten million rows is a gigabyte.

Outcomes stand in order of arrival, and a replay of a load holds its requests in the order of the log; neither is taken
for granted here.
"""

from __future__ import annotations

from datetime import datetime

import polars as pl


def arrived_between(rows: pl.DataFrame, since: datetime | None, until: datetime | None) -> pl.DataFrame:
    """The rows that arrived in [``since``, ``until``); an end that is not named is open."""
    if since is None and until is None:
        return rows
    arrived = rows["arrived_at"]
    if arrived.null_count() == 0 and arrived.is_sorted():
        begin = 0 if since is None else int(arrived.search_sorted(since, side="left"))
        end = len(rows) if until is None else int(arrived.search_sorted(until, side="left"))
        return rows.slice(begin, max(0, end - begin))
    if since is not None:
        rows = rows.filter(pl.col("arrived_at") >= since)
    return rows if until is None else rows.filter(pl.col("arrived_at") < until)


def of_model(rows: pl.DataFrame, model: str | None) -> pl.DataFrame:
    """The rows of one model group, of an outcome or of a table of the metrics; None: those that name no model."""
    own = rows["model"].eq_missing(pl.Series([model], dtype=pl.String))
    return rows if own.all() else rows.filter(own)


def are_same_requests(left: pl.DataFrame, right: pl.DataFrame) -> bool:
    """Both hold the same requests in the same order."""
    return len(left) == len(right) and bool((left["request_id"] == right["request_id"]).all())


def beside(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """The requests that both hold, in the order of ``left``: its columns, then those of ``right``."""
    if are_same_requests(left, right):
        return left.with_columns(right.drop("request_id").get_columns())
    return left.join(right, on="request_id", how="inner", maintain_order="left")
