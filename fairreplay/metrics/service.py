"""What every window and tenant, and every window and type, was served, asked for and waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fairreplay.config.model import Cost
from fairreplay.metrics import kernel
from fairreplay.metrics.entitlement import Floats
from fairreplay.metrics.load import Bools, Columns, Group, Ints
from fairreplay.metrics.options import MeasureOptions
from fairreplay.metrics.windows import Grid

NO_TARGET: Final = -1


@dataclass(frozen=True)
class Cells:
    """Sums by window and key (tenant or type), shape (windows, keys, fields of ``kernel``); token counts are exact."""

    sums: Ints

    def served(self, cost: Cost) -> Floats:
        """Service units delivered in each window, shape (windows, keys)."""
        return _units(self._kinds(kernel.SERVED), cost)

    def unmet(self, cost: Cost) -> Floats:
        """Service units of what waits at each window's end or was refused in it."""
        return _units(np.cumsum(self._kinds(kernel.WAITING), axis=0) + self._kinds(kernel.UNMET), cost)

    def backlog(self) -> Bools:
        """Whether any request waits at the window's end or was refused in it."""
        waiting = np.cumsum(self.sums[:, :, kernel.WAITERS], axis=0)
        return np.asarray(waiting + self.sums[:, :, kernel.REFUSED] > 0)

    def _kinds(self, field: int) -> Ints:
        return self.sums[:, :, field : field + 3]


def _units(milli: Ints, cost: Cost) -> Floats:
    prices = (cost.prompt, cost.cached, cost.output)
    return np.asarray(sum(milli[:, :, kind] * price for kind, price in enumerate(prices)) / kernel.MILLI, np.float64)


@dataclass(frozen=True)
class Sums:
    """All that is summed over the windows of a grid."""

    tenants: Cells
    types: Cells
    windows: Ints
    """Shape (windows, ``kernel.WINDOW_FIELDS``)."""
    costs: Floats
    """Shape (windows, types, 3): number, mean and squared deviations of the arrivals' service cost."""
    in_force: Floats
    """Mean weight that the window's arrivals were served with, shape (windows, tenants); NaN where none is logged."""
    through: Bools
    """Whether a tenant had a waiting request at every instant of the window, shape (windows, tenants)."""
    answered_cell: Ints
    """Window * tenants + tenant of each arrival that got a first token; ``answered_us`` is its TTFT."""
    answered_us: Ints


def sums(
    rows: Sequence[Columns],
    grid: Grid,
    group: Group,
    targets_us: Ints,
    trace_end_us: int,
    cost: Cost,
    options: MeasureOptions,
) -> Sums:
    """Sum ``rows`` (chunks in order of arrival): all that arrived in the grid or lasts until it.

    ``targets_us`` has shape (tenants, 3): TTFT targets of P50, P90 and P99, ``NO_TARGET`` where there is none.
    """
    windows, tenants, types = grid.count, len(group.tenants), len(group.types)
    by_tenant = np.zeros((windows + 1, tenants, kernel.TENANT_FIELDS), np.int64)
    by_type = np.zeros((windows + 1, types, kernel.TYPE_FIELDS), np.int64)
    by_window = np.zeros((windows, kernel.WINDOW_FIELDS), np.int64)
    costs = np.zeros((windows, types, 3), np.float64)
    in_force = np.zeros((windows, tenants, 2), np.float64)
    through = np.zeros((windows + 1, tenants), np.int64)
    in_all = sum(map(len, rows))
    cell, ttft = np.empty(in_all, np.int64), np.empty(in_all, np.int64)
    runs = np.full((tenants, 2), grid.start_us, np.int64)
    prices = np.array([cost.prompt, cost.cached, cost.output], np.float64)
    answered = 0
    for some in rows:
        answered += kernel.add_requests_compiled(
            some.tenant,
            some.type,
            some.status,
            some.arrived,
            some.scheduled,
            some.first_token,
            some.finished,
            some.prompt,
            some.output,
            some.cached,
            some.recomputed,
            some.preemptions,
            some.weight,
            group.usual_prompt,
            group.usual_output,
            targets_us,
            prices,
            grid.start_us,
            grid.size_us,
            grid.count,
            trace_end_us,
            options.spread == "decode",
            options.refusals == "drop",
            by_tenant,
            by_type,
            by_window,
            costs,
            in_force,
            through,
            runs,
            cell[answered:],
            ttft[answered:],
        )
    kernel.mark_runs_compiled(through, runs, grid.start_us, grid.size_us)
    return Sums(
        tenants=Cells(by_tenant[:-1]),
        types=Cells(by_type[:-1]),
        windows=by_window,
        costs=costs,
        in_force=np.where(in_force[:, :, kernel.COUNT] > 0, in_force[:, :, kernel.MEAN], np.nan),
        through=np.cumsum(through, axis=0)[:-1] > 0,
        answered_cell=cell[:answered],
        answered_us=ttft[:answered],
    )
