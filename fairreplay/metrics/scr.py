"""SCR, the SLO compliance ratio: the part of judged tenants that met P50, P90 and P99 of TTFT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import polars as pl

from fairreplay.config.model import QUANTILES, Config, MinSamples, SloTtft
from fairreplay.errors import UsageError
from fairreplay.metrics.entitlement import Floats
from fairreplay.metrics.load import CANCELLED, FAILED, REJECTED, UNFINISHED, UNKNOWN, Bools, Columns, Ints, Load
from fairreplay.metrics.windows import Grid

Q: Final = {"p50": 50, "p90": 90, "p99": 99}
ASSUMED_FACTOR: Final = 1.5
NO_TARGET: Final = -1

Number = TypeVar("Number", int, Ints, pl.Expr)


def needed(q: int, n: Number) -> Number:
    """Samples that must meet the target for ``P_q <= s_q`` by nearest rank: ``ceil(q n / 100)``, in integers.

    ``P_q`` is the value of rank ``ceil(q n / 100)``; it is at most s exactly if that many samples are. The count needs
    no sort and adds up over shards.
    """
    return (q * n + 99) // 100


def nearest_rank(values: pl.Series, q: int) -> float | None:
    """``x_(ceil(q n / 100))`` of the values sorted upward; null without values."""
    known = values.drop_nulls().sort()
    return None if known.is_empty() else float(known[needed(q, len(known)) - 1])


def ttft_us(rows: pl.DataFrame) -> pl.Series:
    """TTFT of each row in microseconds; null without a first token."""
    return (rows["first_token_at"] - rows["arrived_at"]).dt.total_microseconds()


@dataclass(frozen=True)
class Judged:
    """Every window and tenant, shape (windows, tenants): arrivals, and whether the judged quantiles meet the SLO."""

    requests: Ints
    decided: Bools
    """Some quantile has enough samples, and the tenant a target."""
    passed: Bools
    """Decided, and no judged quantile is above its target."""


def targets_us(slo: Mapping[str, SloTtft], tenants: Sequence[str]) -> dict[str, Ints]:
    """By quantile, each tenant's TTFT target in microseconds; ``NO_TARGET`` where it has none."""
    return {
        quantile: np.array(
            [round(getattr(slo[name], quantile) * 1000) if name in slo else NO_TARGET for name in tenants], np.int64
        )
        for quantile in QUANTILES
    }


def judged(
    rows: Columns,
    slo: Mapping[str, SloTtft],
    tenants: Sequence[str],
    grid: Grid,
    min_samples: MinSamples,
    refusals: str,
    trace_end_us: int,
) -> Judged:
    """Judge every tenant in every window, by the requests of ``rows`` that arrived in it.

    Refused and failed requests, and cancelled ones, without a first token are infinitely late (``refusals = "drop"``
    leaves refused ones out). One still waiting at the trace's end with age a misses q if a > s_q and is else left out
    of n for q. An ``ok`` row without times says nothing.
    """
    size = grid.count * len(tenants)
    cell = grid.index(rows.arrived) * len(tenants) + rows.tenant

    def count(which: Bools) -> Ints:
        return np.bincount(cell[which], minlength=size)

    answered, late = samples(rows, refusals)
    ttft = rows.first_token - rows.arrived
    waits = np.flatnonzero((rows.status == UNFINISHED) & ~answered)
    age = trace_end_us - rows.arrived[waits]
    base = count(answered | late)
    goals = targets_us(slo, tenants)
    has_target = np.array([name in slo for name in tenants], np.bool_)
    decided, passed = np.zeros(size, np.bool_), np.ones(size, np.bool_)
    for quantile in QUANTILES:
        target = goals[quantile]
        met = count(answered & (ttft <= target[rows.tenant]))
        overdue = waits[age > target[rows.tenant[waits]]]
        n = base + np.bincount(cell[overdue], minlength=size)
        enough = n >= getattr(min_samples, quantile)
        decided |= enough
        passed &= ~enough | (met >= needed(Q[quantile], n))
    shape = (grid.count, len(tenants))
    decided = decided.reshape(shape) & has_target
    requests = np.bincount(cell, minlength=size).reshape(shape)
    return Judged(requests=requests, decided=decided, passed=passed.reshape(shape) & decided)


def samples(rows: Columns, refusals: str) -> tuple[Bools, Bools]:
    """Which rows have a TTFT, and which have none and are infinitely late."""
    answered = np.asarray(rows.first_token != UNKNOWN)
    gone = (rows.status == FAILED) | (rows.status == CANCELLED)
    if refusals == "miss":
        gone |= rows.status == REJECTED
    return answered, np.asarray(gone & ~answered)


def quantiles_us(rows: Columns, grid: Grid, tenants: int, refusals: str) -> dict[str, Floats]:
    """P50, P90 and P99 of TTFT by nearest rank, shape (windows, tenants), microseconds.

    Infinite where the rank falls on a request that never got a first token, NaN without samples. Requests that still
    wait are left out.
    """
    size = grid.count * tenants
    cell = grid.index(rows.arrived) * tenants + rows.tenant
    answered, late = samples(rows, refusals)
    known = np.bincount(cell[answered], minlength=size)
    _, ordered = sorted_by_cell(cell[answered], (rows.first_token - rows.arrived)[answered])
    n = known + np.bincount(cell[late], minlength=size)
    first = np.cumsum(known) - known
    found = {}
    for quantile, q in Q.items():
        rank = needed(q, n)
        value = np.where(n > 0, np.inf, np.nan)
        inside = (n > 0) & (rank <= known)
        value[inside] = ordered[(first + rank - 1)[inside]]
        found[quantile] = value.reshape(grid.count, tenants)
    return found


def sorted_by_cell(cell: Ints, value: Ints) -> tuple[Ints, Ints]:
    """Both in the order of ``cell`` (>= 0), then ``value``."""
    if len(cell) == 0:
        return cell, value
    low, high = int(value.min()), int(value.max())
    bits = (high - low).bit_length()
    if bits + int(cell.max()).bit_length() > 63:
        order = np.lexsort((value, cell))
        return cell[order], value[order]
    key = np.sort((cell << bits) | (value - low))  # one sort of plain numbers is several times faster
    return key >> bits, (key & ((1 << bits) - 1)) + low


def slos(config: Config, load: Load, grid: Grid) -> tuple[dict[str, SloTtft], bool]:
    """The TTFT targets of each tenant, and whether any was assumed.

    Without a target in the config: 1.5 times the pooled P50/P90/P99 of all tenants over the windows whose pooled P50
    is at most the median window's. A tenant's own past would excuse permanent starvation. No target at all where the
    rows have no first tokens.
    """
    tenants = sorted({tenant for group in load.groups for tenant in group.tenants})
    own = {tenant: target for tenant in tenants if (target := config.slo_ttft_ms(tenant)) is not None}
    if len(own) == len(tenants):
        return own, False
    assumed = assumed_slo(*load.waits(), grid)
    if assumed is None:
        return own, False
    return {tenant: own.get(tenant, assumed) for tenant in tenants}, True


def assumed_slo(arrived_us: Ints, ttft: Ints, grid: Grid) -> SloTtft | None:
    """The target that stands in for a missing one (``slos``); null without a first token.

    Raises:
        UsageError: the first tokens are there at the arrival, so that no target can be met by waiting.
    """
    if len(ttft) == 0:
        return None
    window = grid.index(arrived_us)
    window, ordered = sorted_by_cell(window - window.min(), ttft)
    first = np.flatnonzero(np.diff(window, prepend=-1))
    count = np.diff(np.append(first, len(window)))
    median = ordered[first + needed(50, count) - 1]
    usual = np.sort(median)[needed(50, len(median)) - 1]
    calm = np.sort(ordered[np.repeat(median <= usual, count)])
    values = {name: int(calm[needed(q, len(calm)) - 1]) for name, q in Q.items()}
    if any(value <= 0 for value in values.values()):
        raise UsageError("no SLO is set and none can be assumed (first tokens at arrival): set [defaults] slo_ttft_ms")
    return SloTtft(**{name: ASSUMED_FACTOR * value / 1000 for name, value in values.items()})
