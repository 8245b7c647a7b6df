"""What a report is made of, and the one place that names the columns of the measured tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from fairreplay.metrics.measure import Measured
from fairreplay.report.schema import Role
from fairreplay.store.outcome_rows import of_model


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


def by_source(sources: Sequence[SourceFacts], model: str | None) -> list[tuple[SourceFacts, pl.DataFrame]]:
    """The group's rows of every source."""
    return [(facts, of_model(facts.outcome, model)) for facts in sources]
