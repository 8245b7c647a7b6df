"""Served tokens over time, and what still waits: one rule for the log and for every sandbox row, in integers.

Prompt tokens lie evenly over scheduled..first token (from the arrival where the schedule is unknown), output tokens
evenly over first token..finish. ``spread = "decode"`` puts all of a request over first token..finish, as the VTC
artifact does for its published numbers. Amounts are thousandths of a token, by cumulative floor division, so that the
windows of a request add up to the whole exactly.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from fairreplay.config.model import Cost
from fairreplay.metrics.windows import Grid

MILLI: Final = 1000
FOREVER_US: Final = 2**62
KINDS: Final = ("prompt", "cached", "output")
"""Kinds of tokens with a price each: computed prompt, prompt from the prefix cache, generated."""


def sized(group: pl.DataFrame) -> pl.DataFrame:
    """``group`` with token counts ``prompt``, ``cached``, ``output`` (Int64) and instants in microseconds (``*_us``).

    Where a size is unknown, the tenant's median stands in (rounded down; 0 where the tenant has none); it matters only
    for what waits or was refused, never for what was served.
    """

    def known_or_median(column: str) -> pl.Expr:
        value = pl.col(column).cast(pl.Int64)
        return value.fill_null(value.median().over("tenant").floor().cast(pl.Int64)).fill_null(0)

    cached = pl.min_horizontal(
        pl.col("cached_tokens").cast(pl.Int64).fill_null(0), pl.col("prompt_tokens").cast(pl.Int64)
    )
    refused = pl.col("status") == "rejected"
    return group.with_columns(
        (known_or_median("prompt_tokens") - cached.fill_null(0)).alias("prompt"),
        cached.fill_null(0).alias("cached"),
        # A refused request generated 0 tokens; what it asked for is best guessed from what its tenant usually gets.
        pl.when(refused)
        .then(pl.col("output_tokens").cast(pl.Int64).filter(~refused).median().over("tenant").floor().fill_null(0))
        .otherwise(known_or_median("output_tokens"))
        .cast(pl.Int64)
        .alias("output"),
        *(pl.col(name).cast(pl.Int64).alias(name.replace("_at", "_us")) for name in _INSTANTS),
    )


_INSTANTS: Final = ("arrived_at", "scheduled_at", "first_token_at", "finished_at")


def phases(rows: pl.DataFrame, spread: str) -> pl.DataFrame:
    """What each request was served and when: ``tenant``, ``type``, ``kind``, ``tokens``, ``from_us``, ``to_us``.

    A request that is not known to have been answered was served nothing. A request whose first token is unknown but
    whose finish is known (a log of end-to-end times) is served evenly from schedule or arrival to finish.
    """
    begin = pl.coalesce("scheduled_us", "arrived_us")
    end = pl.coalesce("finished_us", "first_token_us")
    first = pl.coalesce("first_token_us", pl.when(pl.col("status") == "ok").then(pl.col("finished_us")))
    served = rows.filter(first.is_not_null() & (pl.col("status") != "rejected"))
    if spread == "decode":
        spans = dict.fromkeys(KINDS, (first, end))
    else:
        generated_from = pl.when(pl.col("first_token_us").is_null()).then(begin).otherwise(first)
        spans = {"prompt": (begin, first), "cached": (begin, first), "output": (generated_from, end)}
    parts = [
        served.select(
            "tenant",
            "type",
            pl.lit(kind).alias("kind"),
            pl.col(kind).alias("tokens"),
            start.alias("from_us"),
            stop.alias("to_us"),
        ).filter(pl.col("tokens") > 0)
        for kind, (start, stop) in spans.items()
    ]
    return pl.concat(parts)


def served_by_window(rows: pl.DataFrame, spread: str, grid: Grid) -> pl.DataFrame:
    """``window``, ``tenant``, ``type`` and thousandths of tokens served (``prompt``, ``cached``, ``output``, Int64)."""
    parts = phases(rows, spread).filter((pl.col("to_us") >= grid.start_us) & (pl.col("from_us") < grid.end_us))
    first = grid.index(pl.col("from_us")).clip(0, grid.count - 1)
    # The end is exclusive, but a span of no length lies in the window of its instant.
    last = grid.index(pl.max_horizontal(pl.col("to_us") - 1, "from_us")).clip(0, grid.count - 1)
    lower = grid.start_us + grid.size_us * pl.col("window")
    return (
        parts.with_columns(pl.int_ranges(first, last + 1).alias("window"))
        .explode("window")
        .with_columns((served_until(lower + grid.size_us) - served_until(lower)).alias("amount"))
        .group_by("window", "tenant", "type")
        .agg(pl.col("amount").filter(pl.col("kind") == kind).sum().alias(kind) for kind in KINDS)
        .sort("window", "tenant", "type")
    )


def served_until(instant: pl.Expr, tokens: str = "tokens") -> pl.Expr:
    """Thousandths of the column ``tokens`` served before ``instant`` when spread evenly over ``from_us``..``to_us``."""
    span = pl.col("to_us") - pl.col("from_us")
    elapsed = instant - pl.col("from_us")
    whole = pl.col(tokens) * MILLI
    part = (whole.cast(pl.Int128) * elapsed).floordiv(pl.max_horizontal(span, pl.lit(1))).cast(pl.Int64)
    return pl.when(elapsed <= 0).then(pl.lit(0, pl.Int64)).when(elapsed >= span).then(whole).otherwise(part)


def waiting_by_window(rows: pl.DataFrame, spread: str, grid: Grid) -> pl.DataFrame:
    """Requests not yet scheduled at a window's end: ``window``, ``tenant``, ``type``, thousandths, ``waiting``.

    Where ``scheduled_at`` is unknown, a request waits until its first token; the part of its prompt that the spread has
    served by then is not waiting any more, so nothing is counted twice. One that got neither waits until its refusal
    or failure.
    """
    until = waits_until()
    waiting = rows.with_columns(until.alias("until_us")).filter(
        (pl.col("until_us") > grid.start_us) & (pl.col("arrived_us") < grid.end_us)
    )
    first = grid.index(pl.col("arrived_us")).clip(0, None)
    beyond = grid.index(pl.col("until_us") - 1).clip(None, grid.count)  # its end lies after the wait
    waiting = waiting.with_columns(pl.col("arrived_us").alias("from_us"), pl.col("first_token_us").alias("to_us"))
    exploded = waiting.with_columns(pl.int_ranges(first, beyond).alias("window")).explode("window").drop_nulls("window")
    upper = grid.start_us + grid.size_us * (pl.col("window") + 1)
    being_served = pl.col("scheduled_us").is_null() & pl.col("first_token_us").is_not_null()
    left = []
    for kind in KINDS:
        served = pl.lit(0, pl.Int64)
        if spread == "phases" and kind != "output":
            served = pl.when(being_served).then(served_until(upper, kind)).otherwise(0)
        left.append((pl.col(kind) * MILLI - served).alias(f"left_{kind}"))
    return (
        exploded.with_columns(left)
        .group_by("window", "tenant", "type")
        .agg(*(pl.col(f"left_{kind}").sum().alias(kind) for kind in KINDS), pl.len().cast(pl.Int64).alias("waiting"))
        .sort("window", "tenant", "type")
    )


def waits_until() -> pl.Expr:
    """When a request's wait ends, in microseconds; one that has no instant but its arrival is not known to have waited.

    Nor is one that was answered, of which only the finish is known: it was served all along (``phases``).

    An ``unfinished`` request waits on past the trace's end.
    """
    never = pl.when(pl.col("status") == "unfinished").then(FOREVER_US).otherwise(pl.col("arrived_us"))
    gone = pl.when(pl.col("status") != "ok").then(pl.col("finished_us"))
    return pl.coalesce("scheduled_us", "first_token_us", gone, never)


def refused_by_window(rows: pl.DataFrame, grid: Grid) -> pl.DataFrame:
    """Requests refused in a window (at their refusal, else at their arrival): same columns, ``refused`` counts them."""
    at = grid.index(pl.coalesce("finished_us", "arrived_us"))
    return (
        rows.filter(pl.col("status") == "rejected")
        .with_columns(at.alias("window"))
        .filter(pl.col("window").is_between(0, grid.count - 1))
        .group_by("window", "tenant", "type")
        .agg(*((pl.col(kind) * MILLI).sum().alias(kind) for kind in KINDS), pl.len().cast(pl.Int64).alias("refused"))
        .sort("window", "tenant", "type")
    )


def units(cost: Cost) -> pl.Expr:
    """Service units (Float64) of the thousandths in ``prompt``, ``cached``, ``output``."""
    prices = {"prompt": cost.prompt, "cached": cost.cached, "output": cost.output}
    return pl.sum_horizontal(pl.col(kind).cast(pl.Float64) * price for kind, price in prices.items()) / MILLI


def request_cost(cost: Cost) -> pl.Expr:
    """Service units of a whole request (columns of ``sized``)."""
    return pl.col("prompt") * cost.prompt + pl.col("cached") * cost.cached + pl.col("output") * cost.output
