"""Decision differences: what a replay decided otherwise than production, request by request.

Only requests that both sides hold are compared; the rest are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl

from fairreplay.causes.episodes import Episode
from fairreplay.causes.overtaking import overtakes
from fairreplay.causes.review import Source, has_decisions, inside
from fairreplay.metrics.load import Ints
from fairreplay.metrics.options import WHOLE_PERIOD, MeasureOptions
from fairreplay.metrics.quantiles import nearest_rank
from fairreplay.metrics.scr import Q
from fairreplay.metrics.steady import mean_of
from fairreplay.store.outcome_rows import beside, of_model
from fairreplay.trace.schema import TIMESTAMP
from fairreplay.trace.values import epoch_us

LARGEST: Final = 10
"""Windows and requests that are shown."""
MATRIX_TENANTS_MAX: Final = 100
"""Tenants with a row of their own in the matrix, those with the most requests; the others share one."""
SIMULATED: Final = "simulated baseline"

REQUEST_SCHEMA: Final[dict[str, pl.DataType]] = {
    "request_id": pl.String(),
    "model": pl.String(),
    "tenant": pl.String(),
    "type": pl.String(),
    "arrived_at": TIMESTAMP,
    "tokens": pl.Int64(),
    **{
        f"{what}_{side}": pl.Int64()
        for what in ("wait_us", "ttft_us", "finish_us", "preemptions")
        for side in ("production", "replay", "change")
    },
    "refused_production": pl.Boolean(),
    "refused_replay": pl.Boolean(),
}
"""One row per request of both sides, by arrival. Wait, TTFT and finish are microseconds since the arrival; ``change`` =
replay - production, null where a side does not know it. ``tokens``: prompt and output."""

TENANT_SCHEMA: Final[dict[str, pl.DataType]] = {
    "tenant": pl.String(),
    "requests": pl.Int64(),
    "answered": pl.Int64(),
    **{f"ttft_{q}_us_{side}": pl.Float64() for q in Q for side in ("production", "replay")},
    "ttft_mean_change_us": pl.Float64(),
    "refused_production": pl.Int64(),
    "refused_replay": pl.Int64(),
}
"""One row per tenant, who gains most first. TTFT over the requests that both sides answered (``answered``)."""

WINDOW_SCHEMA: Final[dict[str, pl.DataType]] = {
    "start": TIMESTAMP,
    "model": pl.String(),
    "requests": pl.Int64(),
    "ttft_moved_us": pl.Int64(),
    "ttft_mean_change_us": pl.Float64(),
    "refused_otherwise": pl.Int64(),
}
"""``ttft_moved_us``: sum of the absolute changes of TTFT of the requests that arrived in the window."""

MATRIX_SCHEMA: Final[dict[str, pl.DataType]] = {
    "overtaker": pl.String(),
    "overtaken": pl.String(),
    "pairs": pl.Int64(),
    "tokens": pl.Int64(),
}
"""Who went ahead of whom in the replay that was behind in production; null: the tenants without a row of their own.
``tokens`` of the overtaker count once for each request that they went ahead of."""


@dataclass(frozen=True)
class Differences:
    """A replay against production over the requests that both hold."""

    production: str
    """``logged``, or the baseline's policy where the log has no decisions (``simulated``)."""
    policy: str
    simulated: bool
    requests: int
    only_production: int
    only_replay: int
    refused_only_production: int
    refused_only_replay: int
    preemptions_production: int | None
    """Over the requests whose preemptions both sides know; null if there is none."""
    preemptions_replay: int | None
    ordered_by: str
    """``scheduled_at``, or ``first_token_at`` where production does not log when it scheduled."""
    ordered: int
    """Requests that both sides served at a known instant; only they have an order."""
    pairs: int
    """All pairs of them within a model group."""
    inversions: int
    table: pl.DataFrame
    overtaking: pl.DataFrame
    tenants: pl.DataFrame
    windows: pl.DataFrame
    largest: pl.DataFrame

    @property
    def assumption(self) -> str | None:
        return SIMULATED if self.simulated else None


def review(sources: Sequence[Source], options: MeasureOptions) -> list[Differences]:
    """Every replay against production, in the order of ``sources`` (the log first, then the baseline).

    Where the log holds no decisions (arrivals only), the baseline replay stands for production and is not compared
    with itself; without a baseline there is nothing to compare.
    """
    against = compared_with(sources)
    if against is None:
        return []
    production, simulated = against
    return [
        differences(
            inside(production.outcome, options),
            inside(source.outcome, options),
            options,
            production_name=production.name,
            policy=source.name,
            simulated=simulated,
        )
        for source in sources[1:]
        if source.name != production.name
    ]


def compared_with(sources: Sequence[Source]) -> tuple[Source, bool] | None:
    """What stands for production in ``review``, and whether that is the baseline replay; null without either."""
    logged = sources[0]
    if has_decisions(logged.outcome):
        return logged, False
    baseline = next((source for source in sources if source.is_baseline), None)
    return None if baseline is None else (baseline, True)


def of_episode(sources: Sequence[Source], options: MeasureOptions, episode: Episode) -> list[Differences]:
    """As ``review``, for the requests that arrived in an episode, of its model."""
    own = [replace(source, outcome=of_model(source.outcome, episode.model)) for source in sources]
    return review(own, replace(options, since=episode.start, until=episode.end))


def gains_and_pays(found: Differences, most: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tenants whose mean TTFT falls most under the replay, and those whose rises most; at most ``most`` of each."""
    change = pl.col("ttft_mean_change_us")
    gains = found.tenants.filter(change < 0).sort(change, "tenant").head(most)
    pays = found.tenants.filter(change > 0).sort(change, "tenant", descending=[True, False]).head(most)
    return gains, pays


def differences(
    production: pl.DataFrame,
    replay: pl.DataFrame,
    options: MeasureOptions,
    production_name: str = "logged",
    policy: str = "replay",
    simulated: bool = False,
) -> Differences:
    """Compare two outcomes (canonical columns) of the same period, joined by ``request_id``."""
    table = compared(production, replay)  # of millions of rows: what follows copies the columns that it needs, no more
    both = len(table)
    ordered_by = "scheduled_at" if production["scheduled_at"].null_count() < len(production) else "first_token_at"
    service = "wait_us" if ordered_by == "scheduled_at" else "ttft_us"
    instants = [f"{service}_production", f"{service}_replay"]
    counted = table.select("model", "tenant", "arrived_at", "tokens", *instants).drop_nulls(instants)
    pairs, inversions, overtaking = _order(counted, service)
    told = table.select("preemptions_production", "preemptions_replay").drop_nulls()
    refused = {side: table[f"refused_{side}"] for side in ("production", "replay")}
    return Differences(
        production=production_name,
        policy=policy,
        simulated=simulated,
        requests=both,
        only_production=len(production) - both,
        only_replay=len(replay) - both,
        refused_only_production=int((refused["production"] & ~refused["replay"]).sum()),
        refused_only_replay=int((refused["replay"] & ~refused["production"]).sum()),
        preemptions_production=int(told["preemptions_production"].sum()) if len(told) else None,
        preemptions_replay=int(told["preemptions_replay"].sum()) if len(told) else None,
        ordered_by=ordered_by,
        ordered=len(counted),
        pairs=pairs,
        inversions=inversions,
        table=table,
        overtaking=overtaking,
        tenants=_tenants(table),
        windows=_windows(table, options),
        largest=_largest(table),
    )


def compared(production: pl.DataFrame, replay: pl.DataFrame) -> pl.DataFrame:
    """The requests of both sides: ``REQUEST_SCHEMA``."""
    shared = ("model", "tenant", "type", "arrived_at")
    size = pl.sum_horizontal(pl.col("prompt_tokens", "output_tokens").cast(pl.Int64).fill_null(0))
    left = _decided(production, "production", *shared, size.alias("tokens"))
    right = _decided(replay, "replay")
    changes = [
        (pl.col(f"{what}_replay") - pl.col(f"{what}_production")).alias(f"{what}_change")
        for what in ("wait_us", "ttft_us", "finish_us", "preemptions")
    ]
    table = beside(left, right).with_columns(changes)
    table = table.select(pl.col(name).cast(dtype) for name, dtype in REQUEST_SCHEMA.items())
    return table if table["arrived_at"].is_sorted() else table.sort("arrived_at", "request_id")


def _decided(rows: pl.DataFrame, side: str, *more: str | pl.Expr) -> pl.DataFrame:
    instants = {"wait_us": "scheduled_at", "ttft_us": "first_token_at", "finish_us": "finished_at"}
    refused = pl.col("status") == "rejected"
    since_arrival = [
        pl.when(~refused).then((pl.col(at) - pl.col("arrived_at")).dt.total_microseconds()).alias(f"{what}_{side}")
        for what, at in instants.items()
    ]
    return rows.select(
        "request_id",
        *more,
        *since_arrival,
        pl.col("preemptions").cast(pl.Int64).alias(f"preemptions_{side}"),
        refused.alias(f"refused_{side}"),
    )


def _order(table: pl.DataFrame, service: str) -> tuple[int, int, pl.DataFrame]:
    """Pairs, inversions and the matrix over all model groups; requests of different models do not compete."""
    counts = table.group_by("tenant").len().sort(["len", "tenant"], descending=[True, False])
    names = sorted(counts["tenant"].head(MATRIX_TENANTS_MAX).to_list())
    known = pl.Enum(names)
    size = len(names) + 1
    of_pairs, of_tokens = np.zeros((size, size), np.int64), np.zeros((size, size), np.int64)
    pairs = inversions = 0
    for rows in table.partition_by("model", maintain_order=True):
        arrived = rows["arrived_at"].to_physical()
        tenant = rows["tenant"].cast(known, strict=False).to_physical().cast(pl.Int64).fill_null(len(names))
        found, more_pairs, more_tokens = overtakes(
            _ints(arrived + rows[f"{service}_production"]),
            _ints(arrived + rows[f"{service}_replay"]),
            _ints(tenant),
            _ints(rows["tokens"]),
            size,
        )
        pairs += len(rows) * (len(rows) - 1) // 2
        inversions += found
        of_pairs += more_pairs
        of_tokens += more_tokens
    whose, whom = np.nonzero(of_pairs)
    labels = pl.Series([*names, None], dtype=pl.String)
    matrix = pl.DataFrame(
        {
            "overtaker": labels.gather(pl.Series(whose)),
            "overtaken": labels.gather(pl.Series(whom)),
            "pairs": of_pairs[whose, whom],
            "tokens": of_tokens[whose, whom],
        },
        schema=MATRIX_SCHEMA,
    )
    return (
        pairs,
        inversions,
        matrix.sort("tokens", "pairs", "overtaker", "overtaken", descending=[True, True, False, False]),
    )


def _ints(values: pl.Series) -> Ints:
    return np.ascontiguousarray(values.to_numpy(), dtype=np.int64)


def _tenants(table: pl.DataFrame) -> pl.DataFrame:
    rows = []
    sides = ("production", "replay")
    needed = ["tenant", *(f"{what}_{side}" for what in ("ttft_us", "refused") for side in sides), "ttft_us_change"]
    for part in table.select(needed).partition_by("tenant", maintain_order=True):
        answered = part.drop_nulls("ttft_us_change")
        ordered = {side: answered[f"ttft_us_{side}"].sort() for side in sides}
        ranks = {f"ttft_{q}_us_{side}": nearest_rank(ordered[side], rank) for q, rank in Q.items() for side in sides}
        rows.append(
            {
                "tenant": part["tenant"][0],
                "requests": len(part),
                "answered": len(answered),
                **ranks,
                "ttft_mean_change_us": mean_of(answered["ttft_us_change"]),
                "refused_production": int(part["refused_production"].sum()),
                "refused_replay": int(part["refused_replay"].sum()),
            }
        )
    return pl.DataFrame(rows, schema=TENANT_SCHEMA, orient="row").sort("ttft_mean_change_us", "tenant", nulls_last=True)


def _windows(table: pl.DataFrame, options: MeasureOptions) -> pl.DataFrame:
    """The windows with the largest change of TTFT in all, then with the most requests refused otherwise."""
    if options.window_us == WHOLE_PERIOD:
        first = epoch_us(options.since) if options.since else table["arrived_at"].to_physical().min()
        start = pl.lit(first, pl.Int64)
    else:
        start = pl.col("arrived_at").to_physical().floordiv(options.window_us) * options.window_us
    change = pl.col("ttft_us_change")
    return (
        table.group_by(start.cast(TIMESTAMP).alias("start"), "model")
        .agg(
            pl.len().alias("requests"),
            change.abs().sum().alias("ttft_moved_us"),
            pl.when(change.count() > 0).then(change.sum() / change.count()).alias("ttft_mean_change_us"),
            (pl.col("refused_production") != pl.col("refused_replay")).sum().alias("refused_otherwise"),
        )
        .filter((pl.col("ttft_moved_us") > 0) | (pl.col("refused_otherwise") > 0))
        .select(pl.col(name).cast(dtype) for name, dtype in WINDOW_SCHEMA.items())
        .sort("ttft_moved_us", "refused_otherwise", "start", "model", descending=[True, True, False, False])
        .head(LARGEST)
    )


def _largest(table: pl.DataFrame) -> pl.DataFrame:
    """The requests whose TTFT changes most, then whose finish does."""
    changed = table.filter((pl.col("ttft_us_change").abs() > 0) | (pl.col("finish_us_change").abs() > 0))
    by = [pl.col("ttft_us_change").abs().fill_null(0), pl.col("finish_us_change").abs().fill_null(0)]
    return changed.sort(*by, "arrived_at", "request_id", descending=[True, True, False, False]).head(LARGEST)
