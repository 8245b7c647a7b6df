"""The sources of a review: what production logged and every replay that belongs to it, measured by the same rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from fairreplay.causes.diagnose import diagnose, with_verdicts
from fairreplay.causes.episodes import Episode, episodes
from fairreplay.causes.low_demand import low_demand_episodes
from fairreplay.config.model import Config
from fairreplay.metrics.measure import Measured, measure, sliding, slos_of
from fairreplay.metrics.options import MeasureOptions
from fairreplay.sandbox.plan import baseline_policy, choose, policy_name
from fairreplay.sandbox.replay import find_replays
from fairreplay.store.outcome_rows import arrived_between
from fairreplay.store.outcomes import LOGGED, outcomes
from fairreplay.store.store import Store


@dataclass(frozen=True)
class Source:
    """One outcome of the load. ``policy`` and ``replay`` are null for the log."""

    name: str
    policy: str | None
    replay: str | None
    is_baseline: bool
    outcome: pl.DataFrame
    """Canonical columns; also what arrived outside of the measured period, up to ``LEAD`` before it."""
    measured: Measured
    episodes: tuple[Episode, ...]
    raw_only_windows: int | None = None
    """Windows where only ``jfi_raw`` is low and no tenant's demand fell; null until ``explained`` has counted them."""


PERIOD: Final = timedelta(days=14)
LEAD: Final = timedelta(days=1)
"""What arrived so long before the period is read too: it may still be served in it, and shows what is usual."""


def period_of(store: Store, options: MeasureOptions) -> MeasureOptions:
    """``options`` with the period that holds where none is named: the 14 days before the last arrival (or ``until``).

    A store that holds no more than that is taken whole.
    """
    arrivals = [
        (datetime.fromisoformat(segment.first_arrival), datetime.fromisoformat(segment.last_arrival))
        for segment in store.manifest.segments
        if segment.first_arrival is not None and segment.last_arrival is not None
    ]
    if options.since is not None or not arrivals:
        return options
    begin = (options.until or max(last for _, last in arrivals)) - PERIOD
    return options if begin <= min(first for first, _ in arrivals) else replace(options, since=begin)


def configured(config: Config, policies: Sequence[str] = ()) -> tuple[str, ...]:
    """What a review replays: the baseline, each ``[policies.NAME]`` of the config, and ``policies``, each once.

    A table of a user's own ranking only sets its costs: which file it is says ``policies``.

    Raises:
        UsageError: one is unknown; the nearest is named.
    """
    tables = [name for name in config.policies if ":" not in name]
    chosen = {policy_name(choose(name)): name for name in (baseline_policy(config), *tables, *policies)}
    return tuple(chosen.values())


Progress = Callable[[int, int], None]
"""(done, of how many): sources measured, or episodes explained."""


def sources(store: Store, config: Config, options: MeasureOptions, progress: Progress | None = None) -> list[Source]:
    """The log first, then the baseline replay, then the other policies by name.

    A replay belongs if it was made from this store's content with this config, over the measured period or over all
    that is stored. Targets that are not in the config are assumed once, from the log (from the baseline where the log
    has no first tokens), and hold for all. Where ``options`` names no period, that of ``period_of`` holds.
    """
    options = period_of(store, options)
    found = find_replays(store, config)
    if options.since or options.until:
        found |= find_replays(store, config, options.since, options.until)
    baseline = baseline_policy(config)
    names = sorted(found, key=lambda name: (name != baseline, name))
    begin = None if options.since is None else options.since - LEAD
    rows_of = outcomes(store, [found[name] for name in names], begin)
    decided: list[tuple[str | None, str | None, pl.DataFrame]] = [(None, None, rows_of[0])]
    decided += [(name, found[name], rows) for name, rows in zip(names, rows_of[1:], strict=True)]
    slo = next((slo for _, _, rows in decided if (slo := slos_of(rows, config, options))[0]), ({}, False))
    made = []
    for policy, replay, rows in decided:
        source = policy or LOGGED
        measured = measure(rows, config, options, source, slo)
        made.append(
            Source(
                name=source,
                policy=policy,
                replay=replay,
                is_baseline=policy == baseline,
                outcome=rows,
                measured=measured,
                episodes=tuple(episodes(measured, rows)),
            )
        )
        if progress is not None:
            progress(len(made), len(decided))
    return made


def inside(rows: pl.DataFrame, options: MeasureOptions) -> pl.DataFrame:
    """The rows that arrived in the period of ``options``."""
    return arrived_between(rows, options.since, options.until)


def has_decisions(outcome: pl.DataFrame) -> bool:
    """Whether a log says anything of when requests were served; one of arrivals, some of them refused, does not.

    Where there was nothing to serve, refusals are all that could be decided.
    """
    load = outcome.filter(pl.col("status") != "rejected")
    times = ("scheduled_at", "first_token_at", "finished_at")
    return load.is_empty() or any(load[name].null_count() < len(load) for name in times)


def production(found: Sequence[Source]) -> Source:
    """What stands for production: the log, or its baseline replay where the log holds arrivals only."""
    logged = found[0]
    if has_decisions(logged.outcome):
        return logged
    return next((source for source in found if source.is_baseline), logged)


def explained(
    found: Sequence[Source],
    config: Config,
    options: MeasureOptions,
    *,
    only: str | None = None,
    jobs: int = 1,
    engine: str = "local",
    recommend: bool = True,
    progress: Progress | None = None,
) -> list[Source]:
    """``found`` with a verdict on each episode of ``production(found)``, and its episodes of low demand added.

    Args:
        only: the id of the one episode that gets a verdict.
        jobs: threads for the replays; results do not depend on it.
        engine: where they run, as of ``sandbox.replay.replay``.
        recommend: also measure fixes.
        progress: called after each verdict.
    """
    logged, judged = found[0], production(found)
    quiet, raw_only = low_demand_episodes(judged.measured, judged.outcome)
    every = sorted([*judged.episodes, *quiet], key=lambda one: (one.model is not None, one.model or "", one.start))
    wanted = [one for one in every if only is None or one.id == only]
    verdicts = diagnose(
        judged.outcome,
        config,
        wanted,
        options,
        measured=judged.measured,
        load=None if judged is logged else logged.outcome,
        jobs=jobs,
        engine=engine,
        recommend=recommend,
        progress=progress,
    )
    filled = {one.id: one for one in with_verdicts(wanted, verdicts)}
    done = replace(judged, episodes=tuple(filled.get(one.id, one) for one in every), raw_only_windows=raw_only)
    return [done if source is judged else source for source in found]


def slid(source: Source, config: Config, options: MeasureOptions, hop_us: int) -> Source:
    """The source over sliding windows, held to the targets that it was measured by."""
    targets = (source.measured.slo, source.measured.assumed_slo)
    return replace(source, measured=sliding(source.outcome, config, options, hop_us, source.name, targets))
