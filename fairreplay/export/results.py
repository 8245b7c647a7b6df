"""What is computed from a store, as frames: windows, tenants and types in them, episodes. Each is computed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import polars as pl

from fairreplay.causes.episodes import METRICS, Episode
from fairreplay.causes.review import Source, explained, period_of, sources
from fairreplay.causes.verdict import CAUSES, UNEXPLAINED
from fairreplay.config.model import Config
from fairreplay.metrics.alerts import Alert, EmergencyMode, PeriodFigure, alerts, emergency_modes, figures
from fairreplay.metrics.entitlement import fair_weights
from fairreplay.metrics.measure import TENANT_SCHEMA, TYPE_SCHEMA, WINDOW_SCHEMA, models
from fairreplay.metrics.options import MeasureOptions
from fairreplay.sandbox.replay import find_replays
from fairreplay.store.outcome_rows import of_model
from fairreplay.store.store import Store
from fairreplay.trace.schema import TIMESTAMP

Measured = Literal["windows", "tenants", "types"]

MEASURED: Final[dict[Measured, dict[str, pl.DataType]]] = {
    "windows": WINDOW_SCHEMA,
    "tenants": TENANT_SCHEMA,
    "types": TYPE_SCHEMA,
}

EPISODE_SCHEMA: Final[dict[str, pl.DataType]] = {
    "id": pl.String(),
    "source": pl.String(),
    "model": pl.String(),
    "start": TIMESTAMP,
    "end": TIMESTAMP,
    "windows": pl.Int64(),
    "degraded_windows": pl.Int64(),
    **{metric: pl.Float64() for metric in METRICS},
    "min_x": pl.Float64(),
    **{f"deficit_{metric}": pl.Float64() for metric in METRICS},
    "tenants": pl.List(pl.String()),
    "types": pl.List(pl.String()),
    "requests_hurt": pl.Int64(),
    "tokens_hurt": pl.Int64(),
    "cause": pl.String(),
    "confidence": pl.String(),
    "reason": pl.String(),
    **{f"cause_{metric}": pl.String() for metric in METRICS},
    **{f"share_{cause}": pl.Float64() for cause in (*CAUSES, UNEXPLAINED)},
    "recommendation": pl.String(),
}
"""One row per episode. ``scr``, ``jfi``, ``tfr``, ``min_x``: the worst values; ``share_*``: of the whole, null where
the sandbox does not reproduce the episode or the source is a replay."""


class Results:
    """The results of one store under one config, over the period of ``options``."""

    def __init__(self, store: Store, config: Config, options: MeasureOptions, jobs: int = 1) -> None:
        self.store = store
        self.config = config
        self.asked = options
        """As given: without ``since`` and ``until`` it is everything that is stored."""
        self.options = period_of(store, options)
        """With the period that holds where none is given."""
        self.jobs = jobs

    @cached_property
    def sources(self) -> list[Source]:
        """The log, then the baseline replay, then the other policies, measured."""
        return sources(self.store, self.config, self.options)

    @cached_property
    def judged(self) -> list[Source]:
        """``sources`` with a verdict on each episode of production."""
        return explained(self.sources, self.config, self.options, jobs=self.jobs)

    @cached_property
    def named(self) -> list[Source]:
        """As ``judged``, without measuring what would have helped: the causes alone."""
        return explained(self.sources, self.config, self.options, jobs=self.jobs, recommend=False)

    def measured(self, table: Measured, sources: Sequence[Source] | None = None) -> pl.DataFrame:
        """A table of all sources (those of this period without ``sources``) in their order, by model and window."""
        frames = [getattr(source.measured, table) for source in (self.sources if sources is None else sources)]
        keys = ["model", "start", *({"tenants": ["tenant"], "types": ["type"]}.get(table, []))]
        joined: pl.DataFrame = pl.concat(frame.sort(keys, nulls_last=False) for frame in frames)
        return joined.select(list(MEASURED[table]))

    def episodes(self) -> pl.DataFrame:
        """The episodes of all sources: ``EPISODE_SCHEMA``."""
        return episode_frame(episode for source in self.judged for episode in source.episodes)

    def replays(self) -> dict[str, str]:
        """Policy -> name of its replay, for those of this config over all that is stored or over the period."""
        found = find_replays(self.store, self.config)
        if self.options.since or self.options.until:
            found |= find_replays(self.store, self.config, self.options.since, self.options.until)
        return found


@dataclass(frozen=True)
class Period:
    """One model group of a source over the whole period: figures without the drain, alerts, emergency modes."""

    model: str | None
    source: str
    figures: tuple[PeriodFigure, ...]
    alerts: tuple[Alert, ...]
    modes: tuple[EmergencyMode, ...]


def periods(source: Source, config: Config) -> list[Period]:
    """What holds for the period, by model group."""
    found = []
    for model in models(source.measured.windows):
        windows, tenants = of_model(source.measured.windows, model), of_model(source.measured.tenants, model)
        names = sorted(tenants["tenant"].unique().to_list())
        weights = dict(zip(names, fair_weights(config, names).tolist(), strict=True))
        found.append(
            Period(
                model=model,
                source=source.name,
                figures=tuple(figures(windows)),
                alerts=tuple(alerts(windows)),
                modes=tuple(emergency_modes(windows, tenants, config.emergency.jfi, weights)),
            )
        )
    return found


def episode_frame(episodes: Iterable[Episode]) -> pl.DataFrame:
    """Episodes as rows of ``EPISODE_SCHEMA``, in their order."""
    return pl.DataFrame([_row(episode) for episode in episodes], schema=EPISODE_SCHEMA, orient="row")


def _row(episode: Episode) -> dict[str, Any]:
    plain = ("id", "source", "model", "start", "end", "windows", "degraded_windows", "min_x", "requests_hurt")
    more = ("tokens_hurt", "cause", "confidence", "reason", "recommendation")
    return {
        **{name: getattr(episode, name) for name in (*plain, *more)},
        **dict(episode.metrics),
        **{f"deficit_{metric}": value for metric, value in episode.deficits.items()},
        "tenants": list(episode.tenants),
        "types": list(episode.types),
        **{f"cause_{metric}": one["cause"] for metric, one in episode.by_metric.items()},
        **{f"share_{cause}": share for cause, share in (episode.shares or {}).items()},
    }


def replay_rows(store: Store, names: Sequence[str], current: Sequence[str]) -> list[dict[str, Any]]:
    """One row per stored replay: ``REPLAYS_SCHEMA``."""
    rows = []
    for name in names:
        meta = store.replay_meta(name)
        rows.append({key: meta.get(key) for key in REPLAYS_SCHEMA} | {"name": name, "current": name in current})
    return rows


REPLAYS_SCHEMA: Final[dict[str, pl.DataType]] = {
    "name": pl.String(),
    "policy": pl.String(),
    "config_hash": pl.String(),
    "current": pl.Boolean(),
    "is_baseline": pl.Boolean(),
    "since": pl.String(),
    "until": pl.String(),
    "requests": pl.Int64(),
    "left_out": pl.Int64(),
    "ok": pl.Int64(),
    "rejected": pl.Int64(),
    "preemptions": pl.Int64(),
}
"""One row per stored replay. ``current``: made with this config from what is stored now; others are not compared."""
