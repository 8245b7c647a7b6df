"""Do the estimates still hold? What requests really cost, over what the baseline replay says that they cost.

Cost is time in service: from admission to finish, or from the first token on where the log does not say when it was
admitted. A ratio of 1.2 means that production took a fifth longer than its model. Requests are compared with their
like: of one model, type and size (prompt and output tokens). The online correction is a moving average of the ratios
of those that had finished when a request arrived; drift is how far the median ratio moved through the period.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from fairreplay.config.size_classes import SIZE_NAMES, SIZES
from fairreplay.metrics.entitlement import Floats
from fairreplay.metrics.load import Ints
from fairreplay.store.outcome_rows import beside
from fairreplay.trace.values import iso

PARTS: Final = 4
"""Equal parts of the period whose medians show the drift."""
PART_MIN: Final = 10
"""Requests that a part needs for the drift."""
DRIFTED: Final = 0.1
"""A median that moved by so much has drifted."""
QUANTILES: Final = (10, 50, 90, 99)


@dataclass(frozen=True)
class Part:
    start: str
    """ISO 8601, UTC."""
    requests: int
    p50: float | None


@dataclass(frozen=True)
class Estimate:
    """The ratios actual / estimated of one model, type and size class."""

    model: str | None
    type: str
    size: str
    requests: int
    mean: float
    p10: float
    p50: float
    p90: float
    p99: float
    correction: float
    """The moving average after the last of them."""
    error: float
    """Mean of ``|actual / estimated - 1|``."""
    error_corrected: float
    """The same, each estimate times the correction that was known when its request arrived."""
    drift: float | None
    """Median of the last part over that of the first, minus 1; null with too few requests in either."""
    drifted: bool
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class CostEstimates:
    requests: int
    error: float
    error_corrected: float
    estimates: tuple[Estimate, ...]
    """By model, type, size."""


def cost_estimates(logged: pl.DataFrame, replayed: pl.DataFrame, alpha: float) -> CostEstimates | None:
    """Compare two outcomes (canonical columns) by request id; null where no request ended ``ok`` with times in both.

    Args:
        alpha: weight of the newest ratio in the moving average, ``c <- c + alpha * (ratio - c)``, from 1 on.
    """
    rows = _both(logged, replayed)
    if rows.is_empty():
        return None
    arrived, finished = rows["arrived"].to_numpy(), rows["finished"].to_numpy()
    ratio = rows["actual"].to_numpy() / rows["estimated"].to_numpy()
    size = np.searchsorted(np.array(SIZES), rows["tokens"].to_numpy(), side="right")
    borders = _borders(int(arrived.min()), int(arrived.max()))
    keys = rows.select("model", "type", size=pl.Series(size)).with_row_index("row")
    found = []
    off, corrected_off = 0.0, 0.0
    for key, part in sorted(
        keys.partition_by(["model", "type", "size"], as_dict=True).items(),
        key=lambda item: (item[0][0] is not None, item[0][0] or "", item[0][1], item[0][2]),
    ):
        which = part["row"].to_numpy()
        own = ratio[which]
        known, latest = corrections(arrived[which], finished[which], own, alpha)
        errors, corrected = np.abs(own - 1), np.abs(own / known - 1)
        off, corrected_off = off + float(errors.sum()), corrected_off + float(corrected.sum())
        parts = _parts(arrived[which], own, borders)
        drift = _drift(parts)
        p10, p50, p90, p99 = _ranks(own)
        found.append(
            Estimate(
                model=key[0],
                type=key[1],
                size=SIZE_NAMES[key[2]],
                requests=len(own),
                mean=float(own.mean()),
                p10=p10,
                p50=p50,
                p90=p90,
                p99=p99,
                correction=latest,
                error=float(errors.mean()),
                error_corrected=float(corrected.mean()),
                drift=drift,
                drifted=drift is not None and abs(drift) >= DRIFTED,
                parts=parts,
            )
        )
    return CostEstimates(len(rows), off / len(rows), corrected_off / len(rows), tuple(found))


def corrections(arrived: Ints, finished: Ints, ratio: Floats, alpha: float) -> tuple[Floats, float]:
    """What the moving average was when each request arrived, and what it is after the last finish.

    A ratio is learnt at the finish; of equal ones the order of the rows counts.
    """
    from scipy.signal import lfilter

    order = np.argsort(finished, kind="stable")
    average = 1 + np.asarray(lfilter([alpha], [1, alpha - 1], ratio[order] - 1), np.float64)
    states = np.concatenate([[1.0], average])
    return states[np.searchsorted(finished[order], arrived, side="right")], float(average[-1])


def _both(logged: pl.DataFrame, replayed: pl.DataFrame) -> pl.DataFrame:
    """Requests that ended ``ok`` in both: microseconds in service, by the log's first known instant of it."""
    began = pl.coalesce("scheduled_at", "first_token_at")
    tokens = pl.sum_horizontal(pl.col("prompt_tokens", "output_tokens").cast(pl.Int64).fill_null(0))
    real = logged.select(
        "request_id",
        "model",
        "type",
        (pl.col("status") == "ok").alias("ok"),
        pl.col("scheduled_at").is_not_null().alias("from_admission"),
        pl.col("arrived_at").to_physical().alias("arrived"),
        pl.col("finished_at").to_physical().alias("finished"),
        (pl.col("finished_at") - began).dt.total_microseconds().alias("actual"),
        tokens.alias("tokens"),
    )
    ours = replayed.select(
        "request_id",
        (pl.col("status") == "ok").alias("ours_ok"),
        (pl.col("finished_at") - pl.col("scheduled_at")).dt.total_microseconds().alias("whole"),
        (pl.col("finished_at") - pl.col("first_token_at")).dt.total_microseconds().alias("decode"),
    )
    estimated = pl.when("from_admission").then("whole").otherwise("decode").alias("estimated")
    return (
        beside(real, ours)
        .with_columns(estimated)
        .filter("ok", "ours_ok", pl.col("actual") > 0, pl.col("estimated") > 0)
    )


def _borders(first_us: int, last_us: int) -> Ints:
    """Where the parts of the period begin, and where the last one ends."""
    return first_us + (last_us + 1 - first_us) * np.arange(PARTS + 1, dtype=np.int64) // PARTS


def _parts(arrived: Ints, ratio: Floats, borders: Ints) -> tuple[Part, ...]:
    place = np.searchsorted(borders, arrived, side="right") - 1
    found = []
    for number in range(PARTS):
        own = ratio[place == number]
        median = _ranks(own, (50,))[0] if len(own) else None
        found.append(Part(iso(int(borders[number])), len(own), median))
    return tuple(found)


def _drift(parts: Sequence[Part]) -> float | None:
    first, last = parts[0], parts[-1]
    if min(first.requests, last.requests) < PART_MIN or first.p50 is None or last.p50 is None:
        return None
    return last.p50 / first.p50 - 1


def _ranks(values: Floats, quantiles: Sequence[int] = QUANTILES) -> list[float]:
    """Nearest ranks."""
    ordered = np.sort(values)
    return [float(ordered[(q * len(ordered) + 99) // 100 - 1]) for q in quantiles]


NO_BASELINE: Final = (
    "unknown: no replay of the baseline policy stands beside the log, so there is nothing to compare with"
)
NO_TIMES: Final = "unknown: no request ended with its times known both in the log and in the baseline replay"


def sentence(found: CostEstimates | None, alpha: float) -> str:
    """What the comparison gave, as a clause."""
    if found is None:
        return NO_TIMES
    drifted = sum(one.drifted for one in found.estimates)
    judged = sum(one.drift is not None for one in found.estimates)
    moved = (
        f"{drifted} of {judged} classes drifted by {DRIFTED:.0%} or more" if judged else "too few requests for drift"
    )
    return (
        f"time in service in the log over that of the baseline replay, {found.requests:,} requests: off by "
        f"{found.error:.1%} on average, {found.error_corrected:.1%} with the online correction (weight {alpha:g}); "
        f"{moved}"
    )
