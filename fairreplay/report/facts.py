"""What a report is made of, and the one place that names the columns of the measured tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from fairreplay.metrics.measure import Measured
from fairreplay.report.schema import Role


@dataclass(frozen=True)
class SourceFacts:
    """One outcome of the load: its rows in the period, its tables in windows, and with the period as one window."""

    name: str
    role: Role
    policy: str | None
    config_hash: str | None
    outcome: pl.DataFrame
    measured: Measured
    whole: Measured


def models(outcome: pl.DataFrame) -> list[str | None]:
    """The model groups of a load, by name; rows that name no model are a group of their own, first."""
    return sorted(outcome["model"].unique().to_list(), key=lambda model: (model is not None, model or ""))


def of_model(frame: pl.DataFrame, model: str | None) -> pl.DataFrame:
    return frame.filter(pl.col("model").eq_missing(pl.lit(model, pl.String)))


def by_source(sources: Sequence[SourceFacts], model: str | None) -> list[tuple[SourceFacts, pl.DataFrame]]:
    """The group's rows of every source."""
    return [(facts, of_model(facts.outcome, model)) for facts in sources]
