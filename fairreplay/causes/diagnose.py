"""From an episode to its verdict: signatures from the log, counterfactual replays, ordered Shapley shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from fairreplay.causes.episodes import Episode
from fairreplay.causes.verdict import Verdict
from fairreplay.config.model import Config, SloTtft
from fairreplay.metrics.measure import Measured
from fairreplay.metrics.options import MeasureOptions


def diagnose(
    logged: pl.DataFrame,
    config: Config,
    episodes: Sequence[Episode],
    options: MeasureOptions,
    *,
    measured: Measured | None = None,
    slo: tuple[Mapping[str, SloTtft], bool] | None = None,
    load: pl.DataFrame | None = None,
    jobs: int = 1,
    recommend: bool = True,
) -> list[Verdict]:
    """The verdict on each episode, in the order given.

    Args:
        logged: the whole outcome in which the episodes were found (canonical columns).
        config: the production config; its policy, settings, weights and ``changes`` are the baseline replay's.
        episodes: of ``causes.episodes.episodes(measured, logged)``.
        measured: of ``logged`` under ``options``; measured anew if not given. ``slo`` likewise.
        load: the requests as they arrived, where ``logged`` is itself a replay (a log of arrivals only).
        jobs: threads for the replays; results do not depend on it.
        recommend: also measure fixes, on the episodes and on the whole period (what takes longest).
    """
    raise NotImplementedError


def with_verdicts(episodes: Sequence[Episode], verdicts: Sequence[Verdict]) -> list[Episode]:
    """The episodes with ``cause``, ``shares`` and so on filled in, and ``verdict`` itself."""
    raise NotImplementedError
