"""From the store to the facts of a report: which outcomes belong together, measured by the same rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from fairreplay.causes.episodes import episodes
from fairreplay.config.model import Config
from fairreplay.metrics.measure import measure, slos_of
from fairreplay.metrics.options import WHOLE_PERIOD, MeasureOptions
from fairreplay.report.document import build
from fairreplay.report.facts import SourceFacts
from fairreplay.report.provenance import store_facts
from fairreplay.report.schema import Document, Role, Validation
from fairreplay.sandbox.plan import baseline_policy
from fairreplay.sandbox.replay import find_replays
from fairreplay.store.outcomes import LOGGED, outcome
from fairreplay.store.store import Store

COMMON: Final = "logged, rows replayed"
"""The log over the rows that every replay holds, where that is not all of it: what a replay may be compared with."""


def report_document(
    store: Store,
    config: Config,
    options: MeasureOptions,
    validation: Validation | None = None,
) -> Document:
    """The report on requests that arrived in the period of ``options``: the log, and every replay that belongs to it.

    A replay belongs if it was made from this store's content, this config and this period; others are left out.
    """
    since, until = options.since, options.until
    # Measured whole: service of requests from before the period is delivered inside it.
    everything = outcome(store, LOGGED)
    slo = slos_of(outcome(store, LOGGED, since, until), config, options)
    baseline = baseline_policy(config)
    replays = {
        policy: (name, outcome(store, name, since, until))
        for policy, name in find_replays(store, config, since, until).items()
    }

    def facts(name: str, role: Role, policy: str | None, config_hash: str | None, rows: pl.DataFrame) -> SourceFacts:
        whole = replace(options, window_us=WHOLE_PERIOD)
        return SourceFacts(
            name=name,
            role=role,
            policy=policy,
            config_hash=config_hash,
            outcome=_inside(rows, options),
            measured=measure(rows, config, options, name, slo),
            whole=measure(rows, config, whole, name, slo),
        )

    sources = [facts(LOGGED, "logged", None, None, everything)]
    common = _common(sources[0].outcome, [rows for _, rows in replays.values()])
    if len(common) < len(sources[0].outcome):
        sources.append(facts(COMMON, "logged", None, None, common))
    for policy, (name, rows) in replays.items():
        role: Role = "baseline" if policy == baseline else "policy"
        sources.append(facts(policy, role, policy, name.rpartition("-")[2], rows))
    return build(
        config=config,
        options=options,
        store=store_facts(store),
        sources=sources,
        episodes=episodes(sources[0].measured, everything, config),
        validation=validation,
    )


def _inside(rows: pl.DataFrame, options: MeasureOptions) -> pl.DataFrame:
    """The rows that arrived in the period."""
    if options.since is not None:
        rows = rows.filter(pl.col("arrived_at") >= options.since)
    if options.until is not None:
        rows = rows.filter(pl.col("arrived_at") < options.until)
    return rows


def _common(logged: pl.DataFrame, replays: Sequence[pl.DataFrame]) -> pl.DataFrame:
    for rows in replays:
        logged = logged.join(rows, on="request_id", how="semi", maintain_order="left")
    return logged
