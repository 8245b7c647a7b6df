"""What is compared, from the store: policies and configs over one period, or the log over several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import polars as pl

from fairreplay.causes.review import LEAD, Source, inside, period_of, production
from fairreplay.config.model import Config
from fairreplay.errors import UsageError
from fairreplay.metrics.measure import measure, slos_of
from fairreplay.metrics.options import MeasureOptions
from fairreplay.report.compare import Candidate, candidates
from fairreplay.report.gather import COMMON
from fairreplay.report.review import Stage, silent
from fairreplay.sandbox.plan import baseline_policy, choose, policy_name
from fairreplay.sandbox.replay import find_replays, replay
from fairreplay.store.outcomes import LOGGED, outcomes
from fairreplay.store.store import Store

Period = tuple[datetime | None, datetime | None]


@dataclass(frozen=True)
class Compared:
    """Candidates in the order asked for, and what a reader must know of them."""

    kind: str
    candidates: tuple[Candidate, ...]
    assumptions: tuple[str, ...]
    controls: dict[str, dict[str, float]] = field(default_factory=dict)
    """By candidate, what controls did in its replay: ``control.what`` -> sum; only where there are any."""


def policies(
    store: Store, config: Config, options: MeasureOptions, names: Sequence[str], jobs: int = 1, stage: Stage = silent
) -> Compared:
    """The log and the replays of the period under the policies ``names``, over the rows that all of them hold.

    Without names: the baseline and every replay that belongs. Those that are missing are made and stored.

    Raises:
        UsageError: an unknown policy, or nothing to replay. StoreBusyError: another run holds the store.
    """
    options = period_of(store, options)
    baseline = baseline_policy(config)
    wanted = [name for name in names if name != LOGGED]
    if not names:
        wanted = [baseline, *(name for name in _found(store, config, options) if name != baseline)]
    made = _replays(store, config, options, wanted, jobs, stage)
    rows, *others = outcomes(store, list(made.values()), _begin(options))
    sources = [_logged(rows, config, options)]
    for (label, name), outcome in zip(made.items(), others, strict=True):
        sources.append(_replayed(outcome, config, options, name, label, sources[0]))
    found = _beside(sources, config, options, is_log_ranked=LOGGED in names)
    return Compared("policies", found, sources[0].measured.assumptions, _controls(store, sources))


def configs(
    store: Store,
    settings: dict[str, Config],
    options: dict[str, MeasureOptions],
    jobs: int = 1,
    stage: Stage = silent,
) -> Compared:
    """The log and the baseline replay of each config, by the name of its file, each held to its own targets.

    Raises:
        UsageError: nothing to replay. StoreBusyError: another run holds the store.
    """
    sources: list[Source] = []
    said: dict[str, None] = {}
    for label, config in settings.items():
        own = period_of(store, options[label])
        (name,) = _replays(store, config, own, [baseline_policy(config)], jobs, stage).values()
        rows, outcome = outcomes(store, [name], _begin(own))
        logged = _logged(rows, config, own)
        if not sources:
            sources.append(logged)
        sources.append(_replayed(outcome, config, own, name, label, logged))
        said |= dict.fromkeys(logged.measured.assumptions)
    targets = [source.measured.slo for source in sources]
    if any(one != targets[0] for one in targets):
        said["the configs set different TTFT targets: each replay is held to its own"] = None
    first = next(iter(settings))
    found = _beside(sources, settings[first], period_of(store, options[first]), is_log_ranked=False)
    return Compared("configs", found, tuple(said), _controls(store, sources))


def periods(
    store: Store,
    config: Config,
    options: MeasureOptions,
    spans: dict[str, Period],
    jobs: int = 1,
    stage: Stage = silent,
) -> Compared:
    """The log in each of ``spans``, or its baseline replay where the log holds arrivals only.

    Raises:
        UsageError: no request arrived in a period.
    """
    found: list[Candidate] = []
    said: dict[str, None] = {}
    for label, (since, until) in spans.items():
        own = replace(options, since=since, until=until)
        logged = _logged(outcomes(store, [], _begin(own))[0], config, own)
        if inside(logged.outcome, own).is_empty():
            raise UsageError(f"{label}: no request arrived in this period")
        judged = logged
        if production([logged, replace(logged, is_baseline=True)]) is not logged:
            ((policy, name),) = _replays(store, config, own, [baseline_policy(config)], jobs, stage).items()
            judged = _replayed(outcomes(store, [name], _begin(own))[1], config, own, name, policy, logged)
        found += candidates(label, inside(judged.outcome, own), judged.measured, is_ranked=True)
        said |= dict.fromkeys(judged.measured.assumptions)
    return Compared("periods", tuple(found), tuple(said))


def _controls(store: Store, sources: Sequence[Source]) -> dict[str, dict[str, float]]:
    replays = {source.name: source.replay for source in sources if source.replay}
    told = {name: store.replay_meta(replay).get("controls") for name, replay in replays.items()}
    return {name: totals for name, totals in told.items() if totals}


def _found(store: Store, config: Config, options: MeasureOptions) -> dict[str, str]:
    found = find_replays(store, config)
    return found | (find_replays(store, config, options.since, options.until) if options.since or options.until else {})


def _replays(
    store: Store, config: Config, options: MeasureOptions, wanted: Sequence[str], jobs: int, stage: Stage
) -> dict[str, str]:
    """Policy -> its replay, made where there is none."""
    chosen = {policy_name(choose(name)): name for name in wanted}
    found = _found(store, config, options)
    missing = [name for policy, name in chosen.items() if policy not in found]
    if missing:
        with stage("replay", "requests") as told:
            replay(store, config, missing, options.since, options.until, jobs=jobs, progress=told)
        found = _found(store, config, options)
    return {policy: found[policy] for policy in chosen}


def _begin(options: MeasureOptions) -> datetime | None:
    return None if options.since is None else options.since - LEAD


def _logged(rows: pl.DataFrame, config: Config, options: MeasureOptions) -> Source:
    return Source(LOGGED, None, None, False, rows, measure(rows, config, options, LOGGED), ())


def _replayed(
    rows: pl.DataFrame, config: Config, options: MeasureOptions, name: str, label: str, logged: Source
) -> Source:
    targets = (logged.measured.slo, logged.measured.assumed_slo)
    if not targets[0]:
        targets = slos_of(rows, config, options)
    return Source(label, label, name, True, rows, measure(rows, config, options, label, targets), ())


def _beside(
    sources: Sequence[Source], config: Config, options: MeasureOptions, *, is_log_ranked: bool
) -> tuple[Candidate, ...]:
    """The log over all its rows, over those that every replay holds (where that is not all), and the replays."""
    logged, *others = sources
    common = logged.outcome
    for other in others:
        common = common.join(other.outcome, on="request_id", how="semi", maintain_order="left")
    rows, shared = inside(logged.outcome, options), inside(common, options)
    is_whole = len(shared) == len(rows)
    found = candidates(LOGGED, rows, logged.measured, is_ranked=is_log_ranked and is_whole)
    if not is_whole:
        targets = (logged.measured.slo, logged.measured.assumed_slo)
        measured = measure(common, config, options, COMMON, targets)
        found += candidates(COMMON, shared, measured, is_ranked=is_log_ranked)
    for other in others:
        found += candidates(other.name, inside(other.outcome, options), other.measured, is_ranked=True)
    return tuple(found)


def label_of(path: Path, all_paths: Sequence[Path]) -> str:
    """A config's file name; its path as given where two have the same name."""
    return str(path) if sum(other.name == path.name for other in all_paths) > 1 else path.name
