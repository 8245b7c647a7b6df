"""Who flooded the queue: tenants that asked for more than their fair share, and got it, while others waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from fairreplay.metrics.steady import steady_sum, total_of

FLOOD_SHARE: Final = 0.1
"""Of all that was asked beyond fair shares; who has less did not make the queue."""


@dataclass(frozen=True)
class Flood:
    """One tenant; amounts in service units, summed over windows (what waits through two windows counts in both)."""

    tenant: str
    excess: float
    """Demand beyond the entitlement."""
    share: float
    """Part of everybody's excess."""
    attained: float
    """Service over entitlement."""


def floods(tenants: pl.DataFrame) -> tuple[Flood, ...]:
    """The tenants of ``Measured.tenants`` (one model, any windows) that flooded the queue, the largest excess first.

    A tenant whose demand fits into its weighted max-min share is entitled to all of it, however long it waits; so only
    who asks for more has an excess. Who has one and got less than its entitlement was itself crowded out.
    """
    excess = steady_sum((pl.col("demand") - pl.col("entitlement")).clip(lower_bound=0)).alias("excess")
    sums = tenants.group_by("tenant").agg(excess, steady_sum(pl.col("served", "entitlement"))).sort("tenant")
    total = total_of(sums["excess"])
    if total == 0:
        return ()
    found = [
        Flood(tenant=tenant, excess=excess, share=excess / total, attained=served / entitled)
        for tenant, excess, served, entitled in sums.iter_rows()
        if excess >= FLOOD_SHARE * total and served > entitled > 0
    ]
    return tuple(sorted(found, key=lambda flood: (-flood.excess, flood.tenant)))
