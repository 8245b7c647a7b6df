"""What wrong estimates of costs do to a policy: its replays with exact, with wrong and with corrected estimates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

import polars as pl

from fairreplay.causes.review import Source, inside
from fairreplay.config.model import Config
from fairreplay.metrics.measure import measure_windows, models, slos_of
from fairreplay.metrics.options import MeasureOptions
from fairreplay.metrics.quantiles import nearest_rank, ttft_us
from fairreplay.metrics.steady import mean_of
from fairreplay.report.redaction import Redaction
from fairreplay.report.rounding import rounded
from fairreplay.report.schema import EstimateEffect
from fairreplay.sandbox.replay import find_replays, goes_by_estimates, with_estimates
from fairreplay.store.outcome_rows import of_model
from fairreplay.store.outcomes import LOGGED, outcome
from fairreplay.store.store import Store

QUANTILES: Final = (50, 90, 99)


def estimate_effects(
    store: Store,
    config: Config,
    options: MeasureOptions,
    found: Sequence[Source],
    redaction: Redaction | None = None,
) -> list[EstimateEffect]:
    """A row for each policy of ``found`` that goes by estimates, by kind of estimates and by model."""
    if not with_estimates(config):
        return []
    targets = found[0].measured.slo
    rows: list[EstimateEffect] = []
    for source in found:
        if source.policy is None or not goes_by_estimates(config, source.policy):
            continue
        for name, replay in replays_of(store, config, source.policy, options.since, options.until):
            if replay == source.replay:
                windows, decided = source.measured.windows, source.outcome
            else:
                decided = outcome(store, replay)
                windows = measure_windows(decided, config, options, source.name, targets)
            rows += _effects(source.policy, name, windows, inside(decided, options))
    if redaction is not None:
        for row in rows:
            row["model"] = row["model"] and redaction.text(row["model"])
    return rows


def effects_of(store: Store, config: Config, options: MeasureOptions, policies: Sequence[str]) -> list[EstimateEffect]:
    """As ``estimate_effects``, of the replays of ``policies`` over the period of ``options``, without sources.

    Targets that are not in the config are assumed from the log, from the first replay where that has no first tokens.
    """
    replays = [
        (policy, name, outcome(store, replay))
        for policy in dict.fromkeys(policies)
        if goes_by_estimates(config, policy)
        for name, replay in replays_of(store, config, policy, options.since, options.until)
    ]
    if not replays:
        return []
    targets = slos_of(outcome(store, LOGGED, options.since, options.until), config, options)[0]
    targets = targets or slos_of(replays[0][2], config, options)[0]
    rows: list[EstimateEffect] = []
    for policy, name, decided in replays:
        rows += _effects(policy, name, measure_windows(decided, config, options, policy, targets), decided)
    return rows


def replays_of(
    store: Store, config: Config, policy: str, since: datetime | None, until: datetime | None
) -> Iterator[tuple[str, str]]:
    """(which of ``ESTIMATES``, name of the replay): those in the store, over the period or over all that is stored."""
    for name, settings in with_estimates(config).items():
        known = find_replays(store, settings) | (find_replays(store, settings, since, until) if since or until else {})
        if policy in known:
            yield name, known[policy]


def _effects(policy: str, name: str, windows: pl.DataFrame, decided: pl.DataFrame) -> list[EstimateEffect]:
    rows: list[EstimateEffect] = []
    for model in models(decided):
        own = of_model(windows, model).filter(~pl.col("drain"))["scr"].drop_nulls()
        waits = ttft_us(of_model(decided, model))
        rows.append(
            {
                "model": model,
                "policy": policy,
                "estimates": name,
                "scr": rounded(mean_of(own)),
                "windows": len(own),
                "ttft_ms": {
                    f"p{q}": None if (wait := nearest_rank(waits, q)) is None else rounded(wait / 1000)
                    for q in QUANTILES
                },
            }
        )
    return rows


def sentence(config: Config, rows: Sequence[EstimateEffect]) -> str:
    """What is compared, as a clause; what to do where there is nothing."""
    said = (
        f"estimates of costs off by up to {config.estimation.error:.0%}, "
        "half of it in common to a model, type and size class; "
        f"corrected: by a moving average of weight {config.estimation_alpha():g} a class"
    )
    if not rows:
        return f"{said}; no policy that goes by estimates is replayed with them: fairreplay replay --policy sjf"
    return said
