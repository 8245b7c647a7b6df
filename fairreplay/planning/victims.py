"""The noise test of multi-tenancy: what one tenant's flood does to the P99 of the others."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import polars as pl

from fairreplay.config.model import Config
from fairreplay.metrics.quantiles import ttft_us
from fairreplay.planning.incidents import undone
from fairreplay.planning.serving import serve


def victims(trace: pl.DataFrame, config: Config, labels: Mapping[str, Any], name: str) -> dict[str, Any]:
    """P99 of the time to first token of everybody but the flooding tenants, with the incident ``name`` and without.

    Over the requests that arrived while the incident lasted; without it, the same requests are served again. Nearest
    rank, in milliseconds, a refused request as null (never); ``tenants`` has the same by tenant.
    """
    label = next(label for label in labels["incidents"] if label["id"] == name)
    start, end = datetime.fromisoformat(label["start"]), datetime.fromisoformat(label["end"])
    calm = serve(*undone(trace, config, labels, [name]))

    def late(served: pl.DataFrame) -> pl.DataFrame:
        during = pl.col("arrived_at").is_between(start, end, closed="left")
        rows = served.filter(during & ~pl.col("tenant").is_in(label["tenants"]))
        return rows.select("tenant", ttft_us(rows).alias("ttft_us"))

    flooded, quiet = late(trace), late(calm)
    return {
        "requests": len(flooded),
        "p99_ttft_ms": _p99_ms(flooded),
        "p99_ttft_ms_without": _p99_ms(quiet),
        "tenants": {
            tenant: {
                "requests": len(own := flooded.filter(pl.col("tenant") == tenant)),
                "p99_ttft_ms": _p99_ms(own),
                "p99_ttft_ms_without": _p99_ms(quiet.filter(pl.col("tenant") == tenant)),
            }
            for tenant in sorted(flooded["tenant"].unique().to_list())
        },
    }


def _p99_ms(rows: pl.DataFrame) -> float | None:
    times = rows["ttft_us"].sort(nulls_last=True).to_list()
    if not times:
        return None
    value = times[(99 * len(times) + 99) // 100 - 1]
    return None if value is None else round(value / 1000, 3)
