"""Who gets how much of what the cluster can deliver: a tenant x type table by linear programming.

Rows add up to each tenant's share of the whole, columns to at least each type's floor, and the table lies as near to
demand as that allows. Of equally near tables that one is taken which keeps closest to each tenant's own mix of types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, eye_array, hstack, vstack

from fairreplay.errors import UsageError
from fairreplay.metrics.entitlement import Floats

SLACK: Final = 1e-9
"""By how much, relative to the total, the second pass may fall short of the first."""


def allocate(
    demand: Floats, weights: Floats, floors: Floats, total: float, types: Sequence[str] | None = None
) -> Floats:
    """Tokens for each tenant and type.

    Args:
        demand: shape (tenants, types), tokens.
        weights: shape (tenants,), positive; row j sums to ``weights[j] / sum(weights) * total``.
        floors: shape (types,), parts of 1; column k sums to at least ``floors[k] * total``.
        types: names for the error.

    Raises:
        UsageError: the floors add up to more than there is; names them.
    """
    tenants, kinds = demand.shape
    _check_floors(floors, types or [str(place) for place in range(kinds)])
    share = weights / weights.sum()
    scale = max(total, 1e-300)
    asked, rows, least = demand / scale, share, floors
    count = tenants * kinds
    cell = np.arange(count)
    ones = np.ones(count)
    sums_rows = csr_array(coo_array((ones, (cell // kinds, cell)), shape=(tenants, count)))
    sums_columns = csr_array(coo_array((ones, (cell % kinds, cell)), shape=(kinds, count)))
    nearest = _nearest(asked.ravel(), sums_rows, rows, sums_columns, least)
    distance = float(np.abs(nearest - asked.ravel()).sum())
    mix = asked.sum(axis=0) / asked.sum() if asked.sum() > 0 else np.full(kinds, 1 / kinds)
    own = asked.sum(axis=1, keepdims=True)
    target = rows[:, None] * np.where(own > 0, asked / np.where(own > 0, own, 1.0), mix)
    even = _evenest(
        target.ravel(), np.repeat(rows, kinds), asked.ravel(), distance, sums_rows, rows, sums_columns, least
    )
    found = nearest if even is None else even
    return np.asarray(np.maximum(found, 0.0).reshape(tenants, kinds) * total, np.float64)


def _check_floors(floors: Floats, types: Sequence[str]) -> None:
    whole = float(floors.sum())
    if whole > 1 + SLACK:
        named = ", ".join(f"{name} {floor:.3g}" for name, floor in zip(types, floors, strict=True) if floor > 0)
        raise UsageError(
            f"the floors of the types add up to {whole:.3g} of the capacity ({named}): they may be 1 at most; lower "
            "[types.NAME] floor or [floor] reserve"
        )


def _nearest(asked: Floats, sums_rows: csr_array, rows: Floats, sums_columns: csr_array, least: Floats) -> Floats:
    """The least sum of ``|cell - asked|``."""
    count = len(asked)
    one = eye_array(count, format="csr")
    # cells, then how far each is off
    found = linprog(
        np.concatenate([np.zeros(count), np.ones(count)]),
        A_ub=vstack([_off(one, -1), _off(-one, -1), hstack([-sums_columns, csr_array((len(least), count))])]),
        b_ub=np.concatenate([asked, -asked, -least]),
        A_eq=hstack([sums_rows, csr_array((len(rows), count))]),
        b_eq=rows,
        method="highs",
    )
    if found.x is None:  # floors of at most 1 always leave a table
        raise UsageError(f"no table of tenants and types can be found: {found.message}")
    return np.asarray(found.x[:count])


def _evenest(
    target: Floats,
    per: Floats,
    asked: Floats,
    distance: float,
    sums_rows: csr_array,
    rows: Floats,
    sums_columns: csr_array,
    least: Floats,
) -> Floats | None:
    """Of the tables no further from ``asked``: the least largest ``|cell - target| / per``; None if none was found."""
    count = len(asked)
    one = eye_array(count, format="csr")
    nothing = csr_array((count, 1))
    worst = csr_array(per[:, None])
    # cells, then how far each is from demand, then the largest distance from the target
    found = linprog(
        np.concatenate([np.zeros(2 * count), np.ones(1)]),
        A_ub=vstack(
            [
                hstack([_off(one, -1), nothing]),
                hstack([_off(-one, -1), nothing]),
                hstack([-sums_columns, csr_array((len(least), count + 1))]),
                csr_array(np.concatenate([np.zeros(count), np.ones(count), np.zeros(1)])[None, :]),
                hstack([one, csr_array((count, count)), -worst]),
                hstack([-one, csr_array((count, count)), -worst]),
            ]
        ),
        b_ub=np.concatenate([asked, -asked, -least, [distance + SLACK], target, -target]),
        A_eq=hstack([sums_rows, csr_array((len(rows), count + 1))]),
        b_eq=rows,
        method="highs",
    )
    return None if found.x is None else np.asarray(found.x[:count])


def _off(cells: csr_array, sign: int) -> csr_array:
    return hstack([cells, sign * eye_array(cells.shape[0], format="csr")])
