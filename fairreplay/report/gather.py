"""From the store to the document of a report: the log and its replays, measured by the same rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from fairreplay.causes.review import Progress, Source, explained, inside, period_of, production, sources
from fairreplay.config.model import Config
from fairreplay.metrics.measure import measure
from fairreplay.metrics.options import WHOLE_PERIOD, MeasureOptions
from fairreplay.report.cluster import cluster_facts
from fairreplay.report.controls import controls_of
from fairreplay.report.differences import of_episodes, of_period
from fairreplay.report.document import build
from fairreplay.report.estimates import estimate_effects
from fairreplay.report.estimates import sentence as effects_sentence
from fairreplay.report.facts import SourceFacts
from fairreplay.report.previous import difference
from fairreplay.report.provenance import store_facts
from fairreplay.report.redaction import Redaction
from fairreplay.report.schema import CapacityFacts, Document, Role, Validation
from fairreplay.store.outcome_rows import are_same_requests
from fairreplay.store.store import Store

JOBS: Final = 2
"""Threads for the counterfactual replays."""
COMMON: Final = "logged, rows replayed"
"""The log over the rows that every replay holds, where that is not all of it: what a replay may be compared with."""


def report_document(
    store: Store,
    config: Config,
    options: MeasureOptions,
    validation: Validation | None = None,
    previous: Document | None = None,
    redaction: Redaction | None = None,
    capacity: CapacityFacts | None = None,
    engine: str = "local",
    progress: Progress | None = None,
) -> Document:
    """The report on the requests that arrived in the period of ``options``: the log, and every replay of it.

    A replay belongs if it was made from this store's content with this config over this period; others are left out.

    Args:
        validation: a held-out log (``report.validation``).
        previous: an earlier report (``report.previous.load_previous``); the document tells the difference to it.
        redaction: puts tenants under pseudonyms.
        capacity: what ``fairreplay capacity`` reckoned (``report.capacity.load_capacity``).
        engine: where counterfactuals run (``sandbox.replay.replay``).
    """
    options = period_of(store, options)
    found = sources(store, config, options)
    real, stored = config, found
    known = store_facts(store)
    if redaction is not None:
        named = [source.outcome["tenant"].unique().to_list() for source in found]
        redaction = redaction.knowing({*config.tenants, *(name for names in named for name in names)})
        found = [redaction.source(source) for source in found]
        config, known = redaction.config(config), redaction.store(known)
    found = explained(found, config, options, jobs=JOBS, engine=engine, progress=progress)
    judged = production(found)
    logged = found[0]
    facts = [_facts(source, config, options) for source in found]
    common = _common(logged.outcome, [source.outcome for source in found[1:]])
    if len(inside(common, options)) < len(facts[0].outcome):
        facts.insert(1, _facts(_over_common(logged, common, config, options), config, options))
    said = {source.name: store.replay_meta(source.replay).get("cluster") for source in found if source.replay}
    document = build(
        config=config,
        options=options,
        store=known,
        sources=facts,
        episodes=judged.episodes,
        validation=validation,
        differences=of_period(found, options),
        episode_differences=of_episodes(found, options, judged.episodes),
        production=judged.name,
        cluster=[
            cluster_facts(source.name, tables, config, options, source.measured.slo, redaction)
            for source in found
            if (tables := said.get(source.name))
        ],
        controls=controls_of(store, found, config, options, redaction),
    )
    if config.estimation.error:
        effects = estimate_effects(store, real, options, stored, redaction)
        document["costs"]["effects"] = effects
        document["costs"]["effects_said"] = effects_sentence(config, effects)
    if capacity is not None:
        document["capacity"] = capacity
    if previous is not None:
        document["previous"] = difference(document, previous)
    return document if redaction is None else redaction.document(document)


def _facts(source: Source, config: Config, options: MeasureOptions) -> SourceFacts:
    role: Role = "logged" if source.policy is None else "baseline" if source.is_baseline else "policy"
    targets = (source.measured.slo, source.measured.assumed_slo)
    return SourceFacts(
        name=source.name,
        role=role,
        policy=source.policy,
        config_hash=None if source.replay is None else source.replay.rpartition("-")[2],
        outcome=inside(source.outcome, options),
        measured=source.measured,
        whole=measure(source.outcome, config, replace(options, window_us=WHOLE_PERIOD), source.name, targets),
    )


def _over_common(logged: Source, common: pl.DataFrame, config: Config, options: MeasureOptions) -> Source:
    targets = (logged.measured.slo, logged.measured.assumed_slo)
    return replace(
        logged, name=COMMON, outcome=common, measured=measure(common, config, options, COMMON, targets), episodes=()
    )


def _common(logged: pl.DataFrame, replays: Sequence[pl.DataFrame]) -> pl.DataFrame:
    for rows in replays:
        if are_same_requests(rows, logged):
            continue
        logged = logged.join(rows, on="request_id", how="semi", maintain_order="left")
    return logged
