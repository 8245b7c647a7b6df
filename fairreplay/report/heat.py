"""Who was served how, and when: attainment of tenants over time, in few enough cells to be drawn and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from fairreplay.metrics.steady import steady_mean, steady_sum
from fairreplay.report import text
from fairreplay.report.facts import SourceFacts
from fairreplay.report.rounding import rounded
from fairreplay.report.schema import Heat
from fairreplay.store.outcome_rows import of_model

TENANTS_MAX: Final = 24
BINS_MAX: Final = 96
STEPS: Final = (1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440)
"""Windows a bin holds: with windows of a minute, bins begin at round times."""


def heat(sources: Sequence[SourceFacts], models: Sequence[str | None]) -> list[Heat]:
    """One map per model group and source, the drain left out; none where nobody was owed anything.

    All sources of a group show the same tenants: those that the log (else the baseline) served worst.
    """
    found = []
    for model in models:
        names: list[str] = []
        count = 0
        for facts in sources:
            windows = of_model(facts.measured.windows, model).filter(~pl.col("drain")).sort("start")
            owed = of_model(facts.measured.tenants, model).filter(
                (pl.col("entitlement") > 0) & pl.col("x").is_not_null()
            )
            owed = owed.join(windows.select("start"), on="start", how="semi", maintain_order="left")
            if owed.is_empty():
                continue
            if not names:
                worst = owed.group_by("tenant").agg(
                    pl.col("x").min().alias("least"),
                    steady_mean(pl.col("x")).alias("mean"),
                    steady_sum(pl.col("served")),
                )
                ranked = worst.sort("least", "mean", "served", "tenant", descending=[False, False, True, False])
                names, count = ranked["tenant"].head(TENANTS_MAX).to_list(), len(ranked)
            found.append(_map(facts.name, model, windows, owed, names, count))
    return found


def bin_windows(windows: int) -> int:
    """How many windows a bin holds, so that there are at most ``BINS_MAX``."""
    fits = [step for step in STEPS if -(-windows // step) <= BINS_MAX]
    return fits[0] if fits else -(-windows // BINS_MAX)


def _map(
    source: str, model: str | None, windows: pl.DataFrame, owed: pl.DataFrame, names: Sequence[str], count: int
) -> Heat:
    every = bin_windows(len(windows))
    starts = windows["start"].gather_every(every)
    size = windows["end"][0] - windows["start"][0]
    place = (pl.col("start") - windows["start"][0]).dt.total_microseconds() // (size.total_seconds() * 1e6 * every)
    least = (
        owed.filter(pl.col("tenant").is_in(list(names)))
        .group_by("tenant", place.cast(pl.Int64).alias("bin"))
        .agg(pl.col("x").min())
    )
    rows = {name: [None] * len(starts) for name in names}  # type: dict[str, list[float | None]]
    for tenant, at, x in least.iter_rows():
        if 0 <= at < len(starts):
            rows[tenant][at] = rounded(x)
    return {
        "model": model,
        "source": source,
        "bin_windows": every,
        "start": [text.iso(at) for at in starts],
        "end": text.iso(windows["end"][-1]),
        "tenants": list(names),
        "left_out": count - len(names),
        "x": [rows[name] for name in names],
    }
