"""What a report is made of, and the one place that names the columns of the measured tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from fairreplay.report.schema import Role

if TYPE_CHECKING:
    from fairreplay.metrics.measure import Measured


@dataclass(frozen=True)
class SourceFacts:
    """One outcome of the load. ``measured`` is in windows; ``whole`` takes the period as one window."""

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


def last_arrival(outcome: pl.DataFrame, model: str | None) -> object:
    """The group's last arrival: windows that start after it are the drain."""
    return of_model(outcome, model)["arrived_at"].max()


def by_source(sources: Sequence[SourceFacts], model: str | None) -> list[tuple[SourceFacts, pl.DataFrame]]:
    """The group's rows of every source."""
    return [(facts, of_model(facts.outcome, model)) for facts in sources]
