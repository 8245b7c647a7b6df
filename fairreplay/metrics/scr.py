"""SCR, the SLO compliance ratio: the part of judged tenants that met P50, P90 and P99 of TTFT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fairreplay.config.model import QUANTILES, Config, MinSamples, SloTtft
from fairreplay.errors import UsageError
from fairreplay.metrics import kernel
from fairreplay.metrics.entitlement import Floats
from fairreplay.metrics.load import Bools, Ints, Load
from fairreplay.metrics.quantiles import needed
from fairreplay.metrics.service import NO_TARGET
from fairreplay.metrics.windows import Grid

Q: Final = {"p50": 50, "p90": 90, "p99": 99}
ASSUMED_FACTOR: Final = 1.5
SMALL_CELL: Final = 48
"""Samples of one tenant in one window up to which they are sorted by insertion."""


@dataclass(frozen=True)
class Judged:
    """Every window and tenant, shape (windows, tenants): arrivals, and whether the judged quantiles meet the SLO."""

    requests: Ints
    decided: Bools
    """Some quantile has enough samples, and the tenant a target."""
    passed: Bools
    """Decided, and no judged quantile is above its target."""


def targets_us(slo: Mapping[str, SloTtft], tenants: Sequence[str]) -> Ints:
    """Each tenant's TTFT targets in microseconds, shape (tenants, 3); ``NO_TARGET`` where it has none."""
    return np.array(
        [
            [round(getattr(slo[name], quantile) * 1000) for quantile in QUANTILES] if name in slo else [NO_TARGET] * 3
            for name in tenants
        ],
        np.int64,
    ).reshape(-1, 3)


def judged(cells: Ints, targets: Ints, min_samples: MinSamples) -> Judged:
    """Judge every tenant in every window (``service.Sums.tenants``), by the requests that arrived in it.

    Refused and failed requests, and cancelled ones, without a first token are infinitely late (``--refusals drop``
    leaves refused ones out). One still waiting at the trace's end with age a misses q if a > s_q and is else left out
    of n for q. An ``ok`` row without times says nothing.
    """
    base = cells[:, :, kernel.ANSWERED] + cells[:, :, kernel.LATE]
    decided, passed = np.zeros(base.shape, np.bool_), np.ones(base.shape, np.bool_)
    for place, quantile in enumerate(QUANTILES):
        n = base + cells[:, :, kernel.OVERDUE + place]
        enough = n >= getattr(min_samples, quantile)
        decided |= enough
        passed &= ~enough | (cells[:, :, kernel.MET + place] >= needed(Q[quantile], n))
    decided &= targets[:, 0] != NO_TARGET
    return Judged(requests=cells[:, :, kernel.REQUESTS], decided=decided, passed=passed & decided)


def quantiles_us(cells: Ints, answered_cell: Ints, answered_us: Ints) -> dict[str, Floats]:
    """P50, P90 and P99 of TTFT by nearest rank, shape (windows, tenants), microseconds.

    Infinite where the rank falls on a request that never got a first token, NaN without samples. Requests that still
    wait are left out.
    """
    known, late = (np.ascontiguousarray(cells[:, :, field]).reshape(-1) for field in (kernel.ANSWERED, kernel.LATE))
    ordered = ordered_in_cells(answered_cell, answered_us, known)
    found = np.empty((len(Q), len(known)), np.float64)
    kernel.pick_ranks_compiled(ordered, known, late, np.array(list(Q.values()), np.int64), found)
    return {quantile: values.reshape(cells.shape[:2]) for quantile, values in zip(Q, found, strict=True)}


def ordered_in_cells(cell: Ints, value: Ints, known: Ints) -> Ints:
    """The values of every cell sorted, cell after cell, ``known`` of each."""
    first = np.cumsum(known) - known
    ordered = np.empty_like(value)
    kernel.put_in_cells_compiled(cell, value, first, known, ordered, SMALL_CELL)
    for large in np.flatnonzero(known > SMALL_CELL):
        ordered[first[large] : first[large] + known[large]].sort()
    return ordered


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
