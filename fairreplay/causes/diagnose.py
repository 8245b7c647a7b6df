"""From an episode to its verdict: signatures from the log, counterfactual replays, ordered Shapley shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Final

import orjson
import polars as pl

from fairreplay.causes import words
from fairreplay.causes.counterfactual import Intervention, Judged, Scene, inputs, judge, simulate, stage
from fairreplay.causes.episodes import DEFICIT_MINOR, METRICS, MINOR, Episode
from fairreplay.causes.fit import Fitted, calibrate, fit
from fairreplay.causes.in_force import (
    RECENT,
    in_force,
    listed_changes,
    policies_in_force,
    starving_policy_changes,
)
from fairreplay.causes.levels import BASELINE, WINDOWS_BEFORE, levels
from fairreplay.causes.players import CLASSES, Player, players
from fairreplay.causes.recommend import recommendations
from fairreplay.causes.shapley import Coalition, coalitions, ordered_shapley
from fairreplay.causes.signatures import Evidence, demand_of, signatures, strongest
from fairreplay.causes.verdict import (
    CAUSES,
    FURTHER_SHARE,
    LOW_DEMAND,
    NATIVE,
    NATIVE_WITHIN,
    UNEXPLAINED,
    Confidence,
    Counterfactual,
    MetricVerdict,
    Recommendation,
    Signature,
    Verdict,
)
from fairreplay.config.model import Config, SloTtft
from fairreplay.errors import UsageError
from fairreplay.metrics.measure import Measured, measure, slos_of
from fairreplay.metrics.options import MeasureOptions
from fairreplay.sandbox.plan import with_known_policies
from fairreplay.sandbox.pool import run_all
from fairreplay.store.outcome_rows import of_model

REPRODUCED_MIN: Final = 0.5
REPRODUCED_MAX: Final = 2.0
EVERY_FIX_ROWS_MAX: Final = 100_000
"""A load of no more requests is replayed whole with every fix, a larger one with the best fix of each cause."""
SIMULATED_BASELINE: Final = "simulated baseline"


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
    engine: str = "local",
    recommend: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> list[Verdict]:
    """The verdict on each episode, in the order given.

    Args:
        logged: the whole outcome in which the episodes were found (canonical columns).
        config: the production config; its policy, settings, weights and ``changes`` are the baseline replay's.
        episodes: of ``causes.episodes.episodes(measured, logged)``.
        measured: of ``logged`` under ``options``; measured anew if not given. ``slo`` likewise.
        load: the requests as they arrived, where ``logged`` is itself a replay (a log of arrivals only).
        jobs: threads for the replays; results do not depend on it.
        engine: where they run, as of ``sandbox.replay.replay``.
        progress: called after each verdict with their number and how many there will be.
        recommend: also measure fixes, on the episodes and on the whole period (what takes longest).
    """
    if not episodes:
        return []
    config, unknown = with_known_policies(config)
    if slo is None:
        slo = (measured.slo, measured.assumed_slo) if measured is not None else slos_of(logged, config, options)
    earliest = min(episode.start for episode in episodes) - BASELINE
    if measured is None or (options.since is not None and options.since > earliest):
        # the healthy hour before an episode may lie before the period
        since = None if options.since is None else min(options.since, earliest)
        measured = measure(logged, config, replace(options, since=since), episodes[0].source, slo)
    case = _Case(
        logged=logged,
        load=logged if load is None else load,
        config=config,
        options=options,
        measured=measured,
        slo=slo,
        assumptions=(*((SIMULATED_BASELINE,) if load is not None else ()), *unknown.values()),
        unknown_policies=tuple(unknown),
        jobs=max(1, jobs),
        engine=engine,
    )
    verdicts = []
    for episode in episodes:
        verdicts.append(_verdict(case, episode, recommend))
        if progress is not None:
            progress(len(verdicts), len(episodes))
    return verdicts


def with_verdicts(episodes: Sequence[Episode], verdicts: Sequence[Verdict]) -> list[Episode]:
    """The episodes with ``cause``, ``shares`` and so on filled in, and ``verdict`` itself."""
    return [_filled(episode, verdict) for episode, verdict in zip(episodes, verdicts, strict=True)]


def _filled(episode: Episode, verdict: Verdict) -> Episode:
    if verdict.cause == LOW_DEMAND:
        return replace(episode, verdict=verdict)
    first = verdict.recommendations[0] if verdict.recommendations else None
    return replace(
        episode,
        cause=verdict.cause,
        reason=verdict.reason,
        shares=verdict.shares,
        by_metric={
            name: {
                "cause": one.cause,
                "shares": None if one.shares is None else dict(one.shares),
                "further": list(one.further),
                "confidence": one.confidence,
                "logged_deficit": one.logged_deficit,
                "baseline_deficit": one.baseline_deficit,
            }
            for name, one in verdict.by_metric.items()
        },
        confidence=verdict.confidence,
        signatures={name: asdict(one) for name, one in verdict.signatures.items()},
        recommendation=None if first is None else first.title,
        verdict=verdict,
    )


@dataclass(frozen=True)
class _Case:
    """What all episodes of a log have in common."""

    logged: pl.DataFrame
    load: pl.DataFrame
    config: Config
    options: MeasureOptions
    measured: Measured
    slo: tuple[Mapping[str, SloTtft], bool]
    assumptions: tuple[str, ...]
    unknown_policies: tuple[datetime, ...]
    """When production changed to a policy that the sandbox does not know."""
    jobs: int
    engine: str
    scenes: dict[str | None, Scene] = field(default_factory=dict)
    """Of the whole period, by model, once a fix is tried on it."""
    periods: dict[bytes, Judged | None] = field(default_factory=dict)
    """What is known of it: interventions (as JSON) -> result."""


@dataclass(frozen=True)
class _Court:
    """One episode's replays."""

    scene: Scene
    base: tuple[Intervention, ...]
    """In force in the baseline replay: a calibration, an inferred change."""
    inferred: Intervention | None
    """The one of ``base`` that a player may take away."""
    players: tuple[Player, ...]
    replays: Mapping[Coalition, Judged]

    @property
    def classes(self) -> list[list[str]]:
        return [[player.cause for player in self.players if player.rank == rank] for rank in range(CLASSES)]

    def interventions(self, without: Coalition) -> tuple[Intervention, ...]:
        taking = [player for player in self.players if player.cause in without]
        undone = any(player.undoes_inferred for player in taking)
        kept = [one for one in self.base if not (undone and one is self.inferred)]
        return (*kept, *(one for player in taking for one in player.interventions))

    def value(self, metric: str) -> Callable[[Coalition], float]:
        """Part of the baseline's deficit that is gone without a coalition of causes."""
        whole = self.replays[frozenset()].deficits[metric]
        return lambda without: (whole - self.replays[without].deficits[metric]) / whole


def _verdict(case: _Case, episode: Episode, recommend: bool) -> Verdict:
    if episode.cause == LOW_DEMAND:
        return _plain(episode, case)
    evidence = gather(case, episode)
    found = signatures(evidence)
    hit = [metric for metric in METRICS if episode.deficits[metric] >= DEFICIT_MINOR]
    if not hit:
        return replace(_plain(episode, case), cause=MINOR, signatures=found)
    court, fitted, trouble = _replayed(case, episode, evidence, hit)
    by_metric = {metric: _by_metric(metric, episode, court, found) for metric in hit}
    with_shares = [one for one in by_metric.values() if one.shares is not None]
    shares = _mean([one.shares for one in with_shares if one.shares is not None])
    if shares is None:
        cause, further = _by_signatures(found, max(hit, key=lambda metric: episode.deficits[metric]))
    else:
        cause, further = _ranked(shares, None)
        # what is primary for a metric is named, however little of the whole it is
        own = dict.fromkeys(one.cause for one in with_shares if one.cause in CAUSES)
        further = (*further, *(one for one in own if one != cause and one not in further))
    baseline = None if court is None else court.replays[frozenset()]
    ratio = None if baseline is None else _reproduced(episode.deficits, baseline.deficits, hit)
    verdict = Verdict(
        episode=episode.id,
        cause=cause,
        further=further,
        shares=shares,
        by_metric=by_metric,
        confidence=_confidence(cause, found, ratio),
        reason="",
        signatures=found,
        counterfactuals=() if court is None else _counterfactuals(court),
        inferred=None if fitted is None else fitted.inferred,
        assumptions=_assumptions(case, evidence, found, fitted, trouble),
    )
    verdict = replace(verdict, reason=_reason(verdict, episode, evidence, court))
    return (
        replace(verdict, recommendations=_recommended(case, episode, evidence, court, verdict))
        if recommend
        else verdict
    )


def _plain(episode: Episode, case: _Case) -> Verdict:
    return Verdict(
        episode=episode.id,
        cause=episode.cause,
        further=(),
        shares=None,
        by_metric={},
        confidence=None,
        reason=episode.reason,
        signatures={},
        counterfactuals=(),
        assumptions=case.assumptions,
    )


def gather(case: _Case, episode: Episode) -> Evidence:
    """The episode's part of the log, tabulated."""
    group = of_model(case.logged, episode.model)
    windows = of_model(case.measured.windows, episode.model)
    size = windows["end"][0] - windows["start"][0]
    rows = group.filter(pl.col("arrived_at").is_between(episode.start - BASELINE, episode.end, closed="left"))
    level = levels(rows, windows, episode.start, episode.end)
    bursts, growth = demand_of(level)
    begins = episode.start - WINDOWS_BEFORE * size
    changes = [
        change
        for change in in_force(listed_changes(case.config, episode.model), begins, episode.end)
        if change.at >= episode.start - RECENT
    ]
    return Evidence(
        rows=rows,
        levels=level,
        bursts=bursts,
        growth=growth,
        begins=begins,
        start=episode.start,
        end=episode.end,
        tenants=of_model(case.measured.tenants, episode.model),
        types=of_model(case.measured.types, episode.model),
        config=case.config,
        model=episode.model,
        changes=tuple(changes),
        policies=policies_in_force(case.config, episode.model, episode.start, episode.end),
        policy_changed=bool(starving_policy_changes(changes, begins))
        or any(episode.start - RECENT <= at < episode.end for at in case.unknown_policies),
    )


# ---- the replays ----


def _replayed(
    case: _Case, episode: Episode, evidence: Evidence, hit: Sequence[str]
) -> tuple[_Court | None, Fitted | None, str | None]:
    """All replays that the shares need; the fit, if one was tried; what kept the sandbox from replaying."""
    try:
        scene = stage(case.load, case.config, episode.model, episode.start, episode.end, case.options, case.slo)
        baseline = judge(scene, simulate(scene, ()))
        fitted = None
        if _reproduced(episode.deficits, baseline.deficits, hit) < REPRODUCED_MIN:
            fitted = fit(scene)
        elif not all(_is_reproduced(episode, baseline, metric) for metric in hit):
            fitted = Fitted(calibrate(scene), None, None)
        base = () if fitted is None else tuple(one for one in (fitted.calibration, fitted.change) if one is not None)
        if base:
            baseline = judge(scene, simulate(scene, base))
    except UsageError as error:
        return None, None, str(error)
    court = _Court(
        scene=scene,
        base=base,
        inferred=None if fitted is None else fitted.change,
        players=tuple(
            players(
                evidence,
                episode.deficits,
                baseline.deficits,
                baseline.preempted,
                None if fitted is None else fitted.inferred,
            )
        ),
        replays={frozenset(): baseline},
    )
    if not any(_is_reproduced(episode, baseline, metric) for metric in hit):
        return court, fitted, None
    return _with_replays(court, coalitions(court.classes), case.jobs, case.engine), fitted, None


def _with_replays(court: _Court, wanted: Sequence[Coalition], jobs: int, engine: str) -> _Court:
    missing = [coalition for coalition in wanted if coalition not in court.replays]

    def one(coalition: Coalition) -> Judged:
        return judge(court.scene, simulate(court.scene, court.interventions(coalition)))

    made = run_all(one, missing, jobs, engine)
    return replace(court, replays={**court.replays, **dict(zip(missing, made, strict=True))})


def _counterfactuals(court: _Court) -> tuple[Counterfactual, ...]:
    order = [player.cause for player in court.players]
    whole = court.replays[frozenset()].deficits
    return tuple(
        Counterfactual(
            without=tuple(sorted(coalition, key=order.index)),
            deficits=judged.deficits,
            values={
                metric: (whole[metric] - judged.deficits[metric]) / whole[metric] if whole[metric] > 0 else None
                for metric in METRICS
            },
            metrics=judged.metrics,
            inputs=inputs(court.scene, court.interventions(coalition)),
        )
        for coalition, judged in court.replays.items()
    )


# ---- from values to a verdict ----


def _by_metric(metric: str, episode: Episode, court: _Court | None, found: Mapping[str, Signature]) -> MetricVerdict:
    logged = episode.deficits[metric]
    baseline = 0.0 if court is None else court.replays[frozenset()].deficits[metric]
    shares: dict[str, float] | None = None
    if court is not None and _is_reproduced(episode, court.replays[frozenset()], metric):
        shares = ordered_shapley(court.classes, court.value(metric))
        shares[UNEXPLAINED] = 1.0 - sum(shares.values())
        cause, further = _ranked(shares, NATIVE.get(metric))
    else:
        cause, further = _by_signatures(found, metric)
    return MetricVerdict(
        metric=metric,
        cause=cause,
        further=further,
        shares=shares,
        confidence=_confidence(cause, found, baseline / logged),
        logged_deficit=logged,
        baseline_deficit=baseline,
    )


def _ranked(shares: Mapping[str, float], native: str | None) -> tuple[str, tuple[str, ...]]:
    """The primary cause and the further ones, of a metric or of the whole; none below .2 is named."""
    named = [cause for cause in CAUSES if shares.get(cause, 0.0) >= FURTHER_SHARE]
    named.sort(key=lambda cause: (-shares[cause], cause))
    if not named:
        return UNEXPLAINED, ()
    primary = named[0]
    if native in named and shares[native] >= shares[primary] - NATIVE_WITHIN:
        primary = native
    return primary, tuple(cause for cause in named if cause != primary)


def _by_signatures(found: Mapping[str, Signature], metric: str) -> tuple[str, tuple[str, ...]]:
    """As ``_ranked``, from the log alone."""
    named = strongest(found, CAUSES)
    native = NATIVE.get(metric)
    if native in named:
        named.remove(native)
        named.insert(0, native)
    return (named[0], tuple(named[1:])) if named else (UNEXPLAINED, ())


def _mean(parts: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    if not parts:
        return None
    return {cause: sum(part[cause] for part in parts) / len(parts) for cause in parts[0]}


def _confidence(cause: str, found: Mapping[str, Signature], ratio: float | None) -> Confidence:
    """Whether both judges name the cause, and whether the baseline replay is like the log."""
    agrees = cause in found and bool(found[cause].found)
    alike = ratio is not None and REPRODUCED_MIN <= ratio <= REPRODUCED_MAX
    return "high" if agrees and alike else "medium" if agrees or alike else "low"


def _is_reproduced(episode: Episode, baseline: Judged, metric: str) -> bool:
    return baseline.deficits[metric] >= REPRODUCED_MIN * episode.deficits[metric]


def _reproduced(logged: Mapping[str, float], baseline: Mapping[str, float], hit: Sequence[str]) -> float:
    return sum(baseline[metric] for metric in hit) / sum(logged[metric] for metric in hit)


def _reason(verdict: Verdict, episode: Episode, evidence: Evidence, court: _Court | None) -> str:
    own = [name for name, one in verdict.by_metric.items() if one.cause == verdict.cause and one.shares is not None]
    metric = max(own or verdict.by_metric, key=lambda name: episode.deficits[name])
    real, without = None, None
    if court is not None and verdict.shares is not None:
        real = court.replays[frozenset()].metrics[metric]
        alone = frozenset({verdict.cause})
        if verdict.cause in CAUSES:
            without = _with_replays(court, [alone], 1, "local").replays[alone].metrics[metric]
    return words.reason(
        verdict.cause,
        evidence,
        verdict.signatures,
        verdict.inferred,
        metric,
        real,
        without,
        verdict.shares is not None,
    )


def _assumptions(
    case: _Case, evidence: Evidence, found: Mapping[str, Signature], fitted: Fitted | None, trouble: str | None
) -> tuple[str, ...]:
    said = list(case.assumptions)
    if case.slo[1]:
        said.append("assumed SLO: targets that the config does not set are taken from the log's calmer half")
    if not evidence.levels.has_baseline:
        said.append("no healthy window in the hour before: bursts and common growth are not judged")
    if found["preemption_thrash"].found is None:
        said.append("no preemption counts in the log: thrashing is suspected at most, and judged by replays alone")
    if len(evidence.levels.types) < 2:
        said.append("one request type only: no type can starve")
    if found["weight_skew"].found is None:
        said.append("no commitments or weights are set: a weight skew cannot be judged")
    if fitted is not None and fitted.calibration is not None:
        speed = fitted.calibration["speed"]
        said.append(
            f"the sandbox was off in the lead-in too: its speed is taken times {speed[0] / speed[1]:.2f} throughout"
        )
    if fitted is not None and fitted.inferred is not None:
        said.append("one unlisted change was inferred from the logged times")
    if trouble is not None:
        said.append(f"not replayed: {trouble}")
    return tuple(said)


def _recommended(
    case: _Case, episode: Episode, evidence: Evidence, court: _Court | None, verdict: Verdict
) -> tuple[Recommendation, ...]:
    if court is None:
        return ()
    named = [verdict.cause, *(one.cause for one in verdict.by_metric.values())]
    return recommendations(
        {
            cause: [name for name, one in verdict.by_metric.items() if one.cause == cause]
            for cause in dict.fromkeys(named)
            if cause in CAUSES
        },
        evidence,
        court.scene,
        court.base,
        court.replays[frozenset()],
        list(verdict.by_metric),
        lambda interventions: _over_period(case, episode.model, interventions),
        all_over_period=len(case.load) <= EVERY_FIX_ROWS_MAX,
    )


def _over_period(case: _Case, model: str | None, interventions: Sequence[Intervention]) -> Judged | None:
    """The whole period of a model, replayed with ``interventions``; each only once. Null if the sandbox cannot."""
    key = orjson.dumps([model, list(interventions)], option=orjson.OPT_SORT_KEYS)
    if key not in case.periods:
        try:
            scene = case.scenes.get(model)
            if scene is None:
                windows = of_model(case.measured.windows, model).filter(~pl.col("drain"))
                if case.options.since is not None:
                    windows = windows.filter(pl.col("start") >= case.options.since)
                start, end = windows["start"].min(), windows["end"].max()
                rows = of_model(case.load, model)
                since, until = case.options.since or rows["arrived_at"].min(), case.options.until or end
                scene = stage(rows, case.config, model, start, end, case.options, case.slo, since=since, until=until)  # type: ignore[arg-type]
                case.scenes[model] = scene
            case.periods[key] = judge(scene, simulate(scene, interventions))
        except UsageError:
            case.periods[key] = None
    return case.periods[key]
