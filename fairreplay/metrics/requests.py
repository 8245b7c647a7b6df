"""What the metrics ask of a request, as integers: instants, service units, when it waited, what its TTFT counts as.

Service is counted in units of a millionth of a token of cost 1, so that a request can be cut at any instant and the
parts still add up to the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from fairreplay.config.model import Cost
from fairreplay.errors import UsageError
from fairreplay.metrics.quantiles import MISSED

Refusals = Literal["miss", "drop"]
Spread = Literal["phases", "decode"]

UNITS: Final = 1_000_000
"""Service units of one token at cost 1. Costs count to six decimals."""
NEVER: Final = 1 << 62
"""An instant after all others, in microseconds."""
_UNITS_MAX: Final = 1 << 61

COLUMNS: Final[dict[str, pl.DataType]] = {
    "tenant": pl.UInt32(),
    "type": pl.UInt32(),
    "arrived": pl.Int64(),
    "prompt_units": pl.Int64(),
    "output_units": pl.Int64(),
    "prompt_start": pl.Int64(),
    "prompt_end": pl.Int64(),
    "output_start": pl.Int64(),
    "output_end": pl.Int64(),
    "want_units": pl.Int64(),
    "wait_end": pl.Int64(),
    "refused_at": pl.Int64(),
    "ttft": pl.Int64(),
    "waiting_age": pl.Int64(),
    "weight": pl.Float64(),
    "computed": pl.Int64(),
    "recomputed": pl.Int64(),
}
"""One row per request. Instants in microseconds; ``tenant`` and ``type`` are places in the sorted names.

``prompt_*``, ``output_*``: service and the interval over which it is spread, null where none was or none is known.
``want_units``: what the whole request costs. ``wait_end``: when it stopped waiting to be scheduled. ``refused_at``: null
if it was not refused. ``ttft``: ``MISSED`` without a first token, null where it does not count. ``waiting_age``: age at
the trace's end of a request that still waits then. ``computed``: tokens computed, recomputed ones included, null where
the source does not say what was recomputed.
"""


@dataclass(frozen=True)
class Requests:
    """The requests of one model group, in trace order."""

    rows: pl.DataFrame
    tenants: tuple[str, ...]
    types: tuple[str, ...]
    unplaced: int
    """Requests that ended ``ok`` with no instant that says when they were served."""
    unknown_sizes: int
    unscheduled: int
    """Requests with a first token, but no instant of scheduling."""


def trace_end_us(outcome: pl.DataFrame) -> int:
    """The last instant that any row names (0 without rows): what still waits then is as old as that."""
    columns = [pl.col(name).to_physical().max() for name in ("arrived_at", "scheduled_at", "first_token_at")]
    latest = outcome.select(pl.max_horizontal(*columns, pl.col("finished_at").to_physical().max())).item()
    return 0 if latest is None else int(latest)


def prepare(
    group: pl.DataFrame, cost: Cost, end_us: int, *, refusals: Refusals, spread: Spread, types: tuple[str, ...] = ()
) -> Requests:
    """``group`` (canonical columns, one model) as the metrics read it; ``end_us`` is the trace's end.

    **When a request waits.** From arrival until ``scheduled_at``; where that is unknown until ``first_token_at``; a
    refused, failed or cancelled one that was never scheduled until ``finished_at`` (else it left at once); an
    unfinished one for good. An ``ok`` row without either instant says nothing and does not wait.

    **When it was served.** Prompt from ``scheduled_at`` (arrival, where unknown) to ``first_token_at``, output from there
    to ``finished_at`` (unfinished: to the trace's end). ``spread="decode"``: all of it over the second interval. An
    ``ok`` row without first token is spread from its start to its finish. Refused requests, and others without a first
    token, were not served.

    **Size.** Of a request that generated nothing because it was refused or given up, the output is unknown. Unknown
    sizes are the tenant's median over its ``ok`` requests (the group's, if it has none).

    Raises:
        UsageError: token counts times ``[cost]`` exceed what 64 bits hold.
    """
    tenants = tuple(group["tenant"].unique().sort().to_list())
    types = tuple(sorted({*types, *group["type"].unique().to_list()}))
    rates = {name: round(getattr(cost, name) * UNITS) for name in ("prompt", "output", "cached")}
    _check_size(group, rates)
    at = {
        name: pl.col(f"{name}_at").to_physical().cast(pl.Int64)
        for name in ("arrived", "scheduled", "first_token", "finished")
    }
    status = pl.col("status")
    rows = group.lazy().select(
        tenant=pl.col("tenant").cast(pl.Enum(list(tenants))).to_physical().cast(pl.UInt32),
        type=pl.col("type").cast(pl.Enum(list(types))).to_physical().cast(pl.UInt32),
        arrived=at["arrived"],
        scheduled=at["scheduled"],
        first=at["first_token"],
        finished=at["finished"],
        ok=status == "ok",
        rejected=status == "rejected",
        failed=status == "failed",
        cancelled=status == "cancelled",
        unfinished=status == "unfinished",
        prompt=pl.col("prompt_tokens").cast(pl.Int64),
        output=pl.col("output_tokens").cast(pl.Int64),
        cached=pl.col("cached_tokens").cast(pl.Int64).fill_null(0),
        preemptions=pl.col("preemptions").cast(pl.Int64),
        recomputed=pl.col("recomputed_tokens").cast(pl.Int64),
        weight=pl.col("weight").cast(pl.Float64),
    )
    rows = _sized(rows, rates)
    start = pl.min_horizontal(pl.coalesce("scheduled", "arrived"), "first", "finished")
    has_first = pl.col("first").is_not_null() & ~pl.col("rejected")
    only_finish = pl.col("ok") & pl.col("first").is_null() & pl.col("finished").is_not_null()
    output_end = pl.max_horizontal(
        "first", pl.coalesce("finished", pl.when(pl.col("unfinished")).then(pl.lit(end_us)), "first")
    )
    rows = rows.with_columns(
        prompt_units=pl.when(has_first | only_finish).then("prompt_cost"),
        output_units=pl.when(has_first | only_finish).then("output_cost"),
        prompt_start=pl.when(has_first | only_finish).then(start),
        prompt_end=pl.when(has_first).then("first").when(only_finish).then("finished"),
        output_start=pl.when(has_first).then("first").when(only_finish).then(start),
        output_end=pl.when(has_first).then(output_end).when(only_finish).then("finished"),
        wait_end=pl.when(pl.col("scheduled").is_not_null())
        .then("scheduled")
        .when(pl.col("first").is_not_null())
        .then("first")
        .when(pl.col("unfinished"))
        .then(pl.lit(NEVER))
        .when(pl.col("ok"))
        .then("arrived")
        .otherwise(pl.coalesce("finished", "arrived")),
        refused_at=pl.when(pl.col("rejected")).then(pl.coalesce("finished", "arrived")),
        ttft=_ttft(refusals),
        waiting_age=pl.when(pl.col("unfinished") & pl.col("first").is_null()).then(end_us - pl.col("arrived")),
        recomputed=pl.coalesce("recomputed", pl.when(pl.col("preemptions") == 0).then(0)),
        computed_once=pl.when(has_first | only_finish)
        .then(pl.max_horizontal(pl.col("prompt_known") + pl.col("output_known") - pl.col("cached"), 0))
        .otherwise(0),
    ).with_columns(computed=pl.col("computed_once") + pl.col("recomputed"))
    if spread == "decode":
        rows = rows.with_columns(prompt_start="output_start", prompt_end="output_end")
    frame = rows.collect()
    served = frame["prompt_units"].is_not_null()
    return Requests(
        rows=frame.select(pl.col(name).cast(dtype) for name, dtype in COLUMNS.items()),
        tenants=tenants,
        types=types,
        unplaced=int((frame["ok"] & ~served).sum()),
        unknown_sizes=int(frame["unknown_size"].sum()),
        unscheduled=int((frame["scheduled"].is_null() & frame["first"].is_not_null()).sum()),
    )


def _check_size(group: pl.DataFrame, rates: dict[str, int]) -> None:
    tokens = group.select(pl.col("prompt_tokens", "output_tokens").cast(pl.Float64).sum()).row(0)
    total = tokens[0] * max(rates["prompt"], rates["cached"]) + tokens[1] * rates["output"]
    if total > _UNITS_MAX:
        raise UsageError(
            f"[cost]: the period's service is {total / UNITS:.3g}, more than can be counted; lower the costs"
        )


def _sized(rows: pl.LazyFrame, rates: dict[str, int]) -> pl.LazyFrame:
    """Adds costs in units: of prompt, of output, of the whole; unknown sizes from the tenant's median."""
    never_ran = ~pl.col("ok") & pl.col("first").is_null() & (pl.col("output").fill_null(0) == 0)
    rows = rows.with_columns(
        unknown_size=pl.col("prompt").is_null() | pl.col("output").is_null() | never_ran,
        prompt_known=pl.col("prompt").fill_null(0),
        output_known=pl.col("output").fill_null(0),
        output=pl.when(~never_ran).then("output"),
    )

    def median(column: str) -> pl.Expr:
        known = pl.when(pl.col("ok")).then(column)
        return pl.coalesce(pl.col(column).cast(pl.Float64), known.median().over("tenant"), known.median(), 0.0)

    cached = pl.min_horizontal("cached", "prompt_known")
    rows = rows.with_columns(cached=cached, prompt_size=median("prompt"), output_size=median("output"))
    units = (
        ((pl.col("prompt_size") - pl.col("cached")) * rates["prompt"]).floor().cast(pl.Int64)
        + pl.col("cached") * rates["cached"],
        (pl.col("output_size") * rates["output"]).floor().cast(pl.Int64),
    )
    return rows.with_columns(
        prompt_cost=units[0], output_cost=pl.col("output_known") * rates["output"], want_units=units[0] + units[1]
    )


def _ttft(refusals: Refusals) -> pl.Expr:
    """First token after arrival; a miss for a refused, failed or given-up request, or nothing if those are dropped."""
    given_up = pl.col("rejected") | pl.col("failed") | (pl.col("cancelled") & pl.col("first").is_null())
    return (
        pl.when(given_up)
        .then(pl.lit(MISSED if refusals == "miss" else None, dtype=pl.Int64))
        .when(pl.col("first").is_not_null())
        .then(pl.col("first") - pl.col("arrived"))
        .when(pl.col("unfinished"))
        .then(pl.lit(MISSED))
    )
