"""From facts to the JSON document: what the page will say stands here, rounded once, in a fixed order.

Facts are the outcomes of one load (what production logged, what the sandbox did) with their measured tables. Nothing is
read from disk here and no clock is asked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Final

import polars as pl

from fairreplay import __version__
from fairreplay.causes.episodes import Episode
from fairreplay.causes.flooding import floods
from fairreplay.causes.verdict import document as verdict_document
from fairreplay.config.assumed import assumptions
from fairreplay.config.model import Config
from fairreplay.metrics.measure import Measured, models
from fairreplay.metrics.options import WHOLE_PERIOD, MeasureOptions
from fairreplay.report import plotly_js, text
from fairreplay.report.audit import preemption
from fairreplay.report.controls import in_episode
from fairreplay.report.costs import costs
from fairreplay.report.facts import SourceFacts
from fairreplay.report.heat import heat
from fairreplay.report.levels import METRICS, THRESHOLDS, level, longest_run, minutes_below, worst
from fairreplay.report.provenance import StoreFacts, config_digest, data_quality, settings
from fairreplay.report.rounding import RULE, plain, rounded, rounded_all
from fairreplay.report.schema import (
    SCHEMA_VERSION,
    CauseCount,
    ClusterFacts,
    ControlFacts,
    Decisions,
    Document,
    EpisodeRow,
    Figure,
    Flooded,
    GroupVerdict,
    Level,
    Method,
    Metric,
    Period,
    Series,
    Source,
    Validation,
    Verdict,
    Worst,
)
from fairreplay.report.tables import (
    comparison,
    curves,
    fidelity_rows,
    idle_share,
    period_mean,
    tenant_rows,
    type_rows,
)
from fairreplay.store.outcome_rows import of_model

TITLE: Final = "FairReplay report"
NO_DECISIONS: Final = (
    "Nothing could be judged: the log holds arrivals only, and no replay of the baseline policy stands for production."
)
NOT_JUDGED: Final = "Nothing could be judged: no window has enough requests for SCR, JFI or TFR."
ASSUMED_SLO: Final = (
    "assumed: 1.5 times the pooled P50, P90 and P99 of all tenants over the windows whose pooled P50 is at most the "
    "median window's"
)


def build(
    *,
    config: Config,
    options: MeasureOptions,
    store: StoreFacts,
    sources: Sequence[SourceFacts],
    episodes: Sequence[Episode],
    validation: Validation | None = None,
    differences: Sequence[Decisions] = (),
    episode_differences: Mapping[str, Sequence[Decisions]] | None = None,
    production: str | None = None,
    cluster: Sequence[ClusterFacts] = (),
    controls: Sequence[ControlFacts] = (),
) -> Document:
    """The document of a period.

    ``sources`` begins with the log; ``episodes`` are those of the log, ``validation`` a held-out log
    (``report.validation``), ``differences`` what the replays decided otherwise (``report.differences``), in the period
    and by episode. ``production``: the source that the verdict judges; the log if none is named. ``cluster``: what
    replays say of pools, drafts, experts and precisions (``report.cluster``), ``controls``: what theirs did
    (``report.controls``).
    """
    logged = sources[0]
    judged = next((facts for facts in sources if facts.name == production), logged)
    groups = models(logged.outcome)
    timeline = [_series(facts, model) for model in groups for facts in sources]
    decided = episode_differences or {}
    rows = sorted(
        (_episode(episode, timeline, decided.get(episode.id, ()), controls) for episode in episodes),
        key=_gravest_first,
    )
    audit = preemption(sources, groups, config)
    document: Document = {
        "schema_version": SCHEMA_VERSION,
        "title": TITLE,
        "versions": {"fairreplay": __version__, "plotly.js": plotly_js.version(), "polars": version("polars")},
        "period": _period(logged, groups, options),
        "sources": [_source(facts) for facts in sources],
        "redacted": None,
        "verdict": _verdict(logged, [_group(judged, model, timeline, rows) for model in groups]),
        "previous": None,
        "validation": validation,
        "timeline": timeline,
        "heat": heat(sources, groups),
        "fidelity": fidelity_rows(sources, groups, timeline),
        "comparison": comparison(sources, groups, timeline, audit),
        "curves": curves(sources, groups),
        "differences": list(differences),
        "episodes": rows,
        "preemption": audit,
        "tenants": tenant_rows(sources, groups, config),
        "types": type_rows(sources, groups),
        "costs": costs(sources, config),
        "data_quality": data_quality(store, [*logged.measured.assumptions, *assumptions(config)], idle_share(sources)),
        "method": _method(config, options, store, logged),
    }
    if cluster:
        document["cluster"] = list(cluster)
    if controls:
        document["controls"] = list(controls)
    return document


def _period(logged: SourceFacts, groups: Sequence[str | None], options: MeasureOptions) -> Period:
    rows = logged.outcome
    first, last = rows["arrived_at"].min(), rows["arrived_at"].max()
    return {
        "since": None if first is None else text.iso(first),  # type: ignore[arg-type]
        "until": None if last is None else text.iso(last),  # type: ignore[arg-type]
        "zone": "UTC",
        "window_s": None if options.window_us == WHOLE_PERIOD else rounded(options.window_us / 1e6),
        "requests": len(rows),
        "tenants": rows["tenant"].n_unique(),
        "types": rows["type"].n_unique(),
        "models": list(groups),
    }


def _source(facts: SourceFacts) -> Source:
    return {
        "name": facts.name,
        "role": facts.role,
        "policy": facts.policy,
        "config_hash": facts.config_hash,
        "requests": len(facts.outcome),
    }


# --- timeline -------------------------------------------------------------------------------------------------------


def _series(facts: SourceFacts, model: str | None) -> Series:
    windows = of_model(facts.measured.windows, model).sort("start")
    columns: dict[str, list[float | None]] = {
        key: rounded_all(windows[key])
        for key in ("scr", "scr_weighted", "jfi", "jfi_raw", "min_x", "tfr", "tfr_raw", "service_gap")
    }
    return {
        "model": model,
        "source": facts.name,
        "start": [text.iso(at) for at in windows["start"]],
        "end": [text.iso(at) for at in windows["end"]],
        "drain": windows["drain"].to_list(),
        "degraded": windows["degraded"].to_list(),
        "requests": windows["requests"].to_list(),
        "scr": columns["scr"],
        "scr_weighted": columns["scr_weighted"],
        "jfi": columns["jfi"],
        "jfi_raw": columns["jfi_raw"],
        "min_x": columns["min_x"],
        "min_x_tenant": windows["min_x_tenant"].to_list(),
        "tfr": columns["tfr"],
        "tfr_raw": columns["tfr_raw"],
        "service_gap": columns["service_gap"],
    }


# --- verdict --------------------------------------------------------------------------------------------------------


def _group(
    logged: SourceFacts, model: str | None, timeline: Sequence[Series], episodes: Sequence[EpisodeRow]
) -> GroupVerdict:
    series = next(one for one in timeline if one["model"] == model and one["source"] == logged.name)
    kept = [index for index, late in enumerate(series["drain"]) if not late]
    starts = [series["start"][index] for index in kept]
    lengths = [_minutes_between(series["start"][index], series["end"][index]) for index in kept]
    figures = [
        _figure(metric, [_values(series, metric)[index] for index in kept], starts, lengths) for metric in METRICS
    ]
    own = [episode for episode in episodes if episode["model"] == model]
    degraded = sum(series["degraded"][index] for index in kept)
    judged = sum(any(_values(series, metric)[index] is not None for metric in METRICS) for index in kept)
    outcome = of_model(logged.outcome, model)
    several_types = outcome["type"].n_unique() > 1
    said = [figure for figure in figures if several_types or figure["metric"] != "tfr"]
    return {
        "model": model,
        "source": logged.name,
        "sentence": _sentence(said, sum(one["windows_degraded"] > 0 for one in own), degraded, judged, sum(lengths)),
        "requests": len(outcome),
        "tenants": outcome["tenant"].n_unique(),
        "types": outcome["type"].n_unique(),
        "windows": len(kept),
        "windows_judged": judged,
        "windows_degraded": degraded,
        "figures": figures,
        "min_x": _least_served(series, kept),
        "episodes": len(own),
        "causes": _causes(own),
        "flooded": _flooded(logged, model),
    }


def _flooded(logged: SourceFacts, model: str | None) -> list[Flooded]:
    """Who flooded the queue in the degraded windows, the largest first."""
    degraded = of_model(logged.measured.windows, model).filter("degraded").select("start")
    tenants = of_model(logged.measured.tenants, model).join(degraded, on="start", how="semi", maintain_order="left")
    return [
        {"tenant": flood.tenant, "share": round(flood.share, 6), "attained": round(flood.attained, 6)}
        for flood in floods(tenants)
    ]


def _figure(metric: Metric, values: Sequence[float | None], starts: Sequence[str], lengths: Sequence[float]) -> Figure:
    value = period_mean(values, [False] * len(values))
    low = min(((value, start) for value, start in zip(values, starts, strict=True) if value is not None), default=None)
    minutes = minutes_below(metric, values, lengths)
    return {
        "metric": metric,
        "value": value,
        "level": level(metric, value, longest_run(metric, values)),
        "windows": sum(value is not None for value in values),
        "worst": None if low is None else low[0],
        "worst_at": None if low is None else low[1],
        "minutes_yellow": round(minutes.yellow, 6),
        "minutes_red": round(minutes.red, 6),
        "minutes_emergency": round(minutes.emergency, 6),
    }


def _least_served(series: Series, kept: Sequence[int]) -> Worst | None:
    found = [
        (value, series["start"][index], tenant)
        for index in kept
        if (value := series["min_x"][index]) is not None and (tenant := series["min_x_tenant"][index]) is not None
    ]
    if not found:
        return None
    value, at, tenant = min(found)
    return {"value": value, "tenant": tenant, "at": at}


def _causes(episodes: Sequence[EpisodeRow]) -> list[CauseCount]:
    counted = Counter(episode["cause"] for episode in episodes)
    return [
        {"cause": cause, "episodes": count} for cause, count in sorted(counted.items(), key=lambda c: (-c[1], c[0]))
    ]


def _sentence(figures: Sequence[Figure], episodes: int, degraded: int, judged: int, minutes: float) -> str:
    """The group's period in one sentence: fair or not, for how long, at what figures."""
    if judged == 0:
        return NOT_JUDGED
    said = ", ".join(
        f"{figure['metric'].upper()} {text.number(figure['value'])} ({figure['level']})"
        for figure in figures
        if figure["value"] is not None
    )
    if degraded == 0:
        return f"Fair in all {text.plural(judged, 'judged window')}: on average {said}."
    return (
        f"Unfair in {degraded} of {text.plural(judged, 'judged window')} ({text.plural(episodes, 'episode')}): "
        f"on average {said}, over {text.duration(60 * minutes)}."
    )


def _verdict(logged: SourceFacts, groups: Sequence[GroupVerdict]) -> Verdict:
    rows = logged.outcome
    arrivals_only = not rows.is_empty() and rows["first_token_at"].null_count() == len(rows)
    if not groups:
        sentence = "No requests in the period: nothing to judge."
    elif not any(group["windows_judged"] for group in groups):
        sentence = NO_DECISIONS if arrivals_only and groups[0]["source"] == logged.name else NOT_JUDGED
    elif len(groups) == 1:
        sentence = groups[0]["sentence"]
    else:
        unfair = [group for group in groups if group["windows_degraded"]]
        sentence = (
            f"Fair for all {len(groups)} models."
            if not unfair
            else f"Unfair for {len(unfair)} of {len(groups)} models, "
            f"in {text.plural(sum(group['episodes'] for group in unfair), 'episode')}."
        )
    return {
        "sentence": sentence,
        "assumed_slo": logged.measured.assumed_slo,
        "simulated_baseline": arrivals_only,
        "groups": list(groups),
    }


# --- episodes -------------------------------------------------------------------------------------------------------


def _episode(
    episode: Episode, timeline: Sequence[Series], decided: Sequence[Decisions], controls: Sequence[ControlFacts]
) -> EpisodeRow:
    """The episode's own fields, with means and levels of its windows."""
    start, end = text.iso(episode.start), text.iso(episode.end)
    series = next(one for one in timeline if one["model"] == episode.model and one["source"] == episode.source)
    inside = range(bisect_left(series["start"], start), bisect_left(series["start"], end))
    values = {metric: [_values(series, metric)[at] for at in inside] for metric in METRICS}
    return episode_row(episode, values, decided, controls)


def row_of(
    episode: Episode,
    measured: Measured,
    decided: Sequence[Decisions] = (),
    controls: Sequence[ControlFacts] = (),
) -> EpisodeRow:
    """One episode as the document holds it, from the measured tables of its source."""
    windows = of_model(measured.windows, episode.model).sort("start")
    inside = windows.filter(pl.col("start").is_between(episode.start, episode.end, closed="left"))
    return episode_row(episode, {metric: rounded_all(inside[metric]) for metric in METRICS}, decided, controls)


def episode_row(
    episode: Episode,
    values: Mapping[Metric, Sequence[float | None]],
    decided: Sequence[Decisions] = (),
    controls: Sequence[ControlFacts] = (),
) -> EpisodeRow:
    """An episode as the document holds it; ``values`` are the metrics of its windows.

    At least yellow unless nothing was degraded.
    """
    start, end = text.iso(episode.start), text.iso(episode.end)
    low: dict[str, float | None] = {metric: rounded(episode.metrics.get(metric)) for metric in METRICS}
    levels: dict[str, Level | None] = {
        metric: level(metric, low[metric], longest_run(metric, values[metric])) for metric in METRICS
    }
    row: EpisodeRow = {
        "id": episode.id,
        "model": episode.model,
        "source": episode.source,
        "start": start,
        "end": end,
        "windows": episode.windows,
        "windows_degraded": episode.degraded_windows,
        "level": worst(["yellow" if episode.degraded_windows else "ok", *levels.values()]),
        "metrics": low,
        "means": {metric: period_mean(values[metric], [False] * len(values[metric])) for metric in METRICS},
        "min_x": rounded(episode.min_x),
        "levels": levels,
        "deficits": {metric: rounded(episode.deficits.get(metric)) for metric in METRICS},
        "tenants": list(episode.tenants),
        "types": list(episode.types),
        "requests_hurt": episode.requests_hurt,
        "tokens_hurt": episode.tokens_hurt,
        "cause": episode.cause,
        "shares": None if episode.shares is None else {key: round(x, 6) for key, x in episode.shares.items()},
        "by_metric": plain(episode.by_metric),
        "confidence": episode.confidence,
        "reason": episode.reason,
        "signatures": plain(episode.signatures),
        "recommendation": episode.recommendation,
        "verdict": None if episode.verdict is None else plain(verdict_document(episode.verdict)),
        "differences": list(decided),
    }
    if controls:
        row["controls"] = in_episode(controls, episode.model, start, end)
    return row


def _gravest_first(row: EpisodeRow) -> tuple[int, float, str, str]:
    """By level, then by the sum of the deficits, then by start."""
    gravity = ("ok", "yellow", "red", "emergency").index(row["level"])
    return -gravity, -sum(value or 0.0 for value in row["deficits"].values()), row["start"], row["id"]


def _values(series: Series, metric: Metric) -> list[float | None]:
    return {"scr": series["scr"], "jfi": series["jfi"], "tfr": series["tfr"]}[metric]


def _minutes_between(start: str, end: str) -> float:
    return (text.parse(end) - text.parse(start)).total_seconds() / 60


# --- method ---------------------------------------------------------------------------------------------------------


def _method(config: Config, options: MeasureOptions, store: StoreFacts, logged: SourceFacts) -> Method:
    assumed = logged.measured.assumed_slo
    return {
        "refusals": options.refusals,
        "spread": options.spread,
        "min_samples": {q: getattr(options.min_samples, q) for q in ("p50", "p90", "p99")},
        "slo_source": ASSUMED_SLO if assumed else "TTFT targets of the config",
        "thresholds": {key: dict(limits) for key, limits in THRESHOLDS.items()},
        "settings": settings(config),
        "config_digest": config_digest(config),
        "store_digest": store.digest,
        "rounding": RULE,
    }
