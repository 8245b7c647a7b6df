"""How much of a trace the cluster can take: the trace faster or slower, through the sandbox, until SCR gives way.

A load of k % is the same requests in the same order, each arriving after ``100/k`` of its time since the first: sizes,
mix and bursts stay as they are, only closer together. Whole percents and whole microseconds, so the same trace gives
the same answer. SCR is its mean over the windows up to the last arrival, as in every period figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from fairreplay.config.model import ClusterTable, Config, SloTtft
from fairreplay.metrics.measure import measure_windows
from fairreplay.metrics.options import MeasureOptions
from fairreplay.metrics.steady import mean_of
from fairreplay.sandbox.plan import Choice, Load, shards
from fairreplay.sandbox.replay import Replayed, run_shards
from fairreplay.store.outcomes import DECIDED
from fairreplay.trace.schema import TIMESTAMP

LEAST_PERCENT: Final = 10
MOST_PERCENT: Final = 6400
MOST_REPLICAS: Final = 1024


@dataclass(frozen=True)
class Tried:
    """One replay of the search."""

    percent: int
    """Of the trace's own load."""
    replicas: int
    scr: float | None
    """Null: no window had enough requests."""
    windows: int
    """Windows with a judged SCR."""


@dataclass(frozen=True)
class Found:
    """``answer`` is null where none of the tried loads (or replicas) holds the target, or nothing could be judged."""

    answer: Tried | None
    reason: str | None
    tried: tuple[Tried, ...]
    """In the order in which they were tried."""


@dataclass(frozen=True)
class Question:
    """What is replayed again and again."""

    load: Load
    """Of one model; canonical columns."""
    config: Config
    """Without changes over time (``as_of``)."""
    model: str | None
    """The ``[models.NAME]`` that says how many replicas there are; null: ``[cluster]``."""
    policy: Choice
    options: MeasureOptions
    slo: Mapping[str, SloTtft]
    on_replay: Callable[[], None]


def largest_load(question: Question, replicas: int, target: float) -> Found:
    """The largest whole percent of the load at which SCR is at least ``target``.

    Doubled or halved from 100 % until it turns, then bisected to a hundredth of itself: SCR is taken to fall as the
    load grows.
    """
    tried: dict[int, Tried] = {}

    def holds(percent: int) -> bool:
        tried[percent] = run(question, percent, replicas)
        return _holds(tried[percent], target)

    good, bad = _bracket(holds, LEAST_PERCENT, MOST_PERCENT)
    while good and bad and bad - good > max(1, good // 100):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    reason = None
    if good is None:
        reason = _why(tried, f"SCR is below {target:g} even at {LEAST_PERCENT} % of the load")
    elif bad is None:
        reason = f"SCR still holds at {MOST_PERCENT // 100} times the load; more was not tried"
    return Found(tried[good] if good else None, reason, tuple(tried.values()))


def least_replicas(question: Question, percent: int, target: float) -> Found:
    """The fewest replicas at which SCR is at least ``target`` under ``percent`` of the load; SCR is taken to rise."""
    tried: dict[int, Tried] = {}

    def fails(replicas: int) -> bool:
        tried[replicas] = run(question, percent, replicas)
        return not _holds(tried[replicas], target)

    bad = 0
    good = 1
    while fails(good):
        bad = good
        if good == MOST_REPLICAS:
            return Found(None, _why(tried, f"SCR is below {target:g} even with {good} replicas"), tuple(tried.values()))
        good *= 2
    while good - bad > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if fails(middle) else (middle, bad)
    return Found(tried[good], None, tuple(tried.values()))


def _holds(one: Tried, target: float) -> bool:
    return one.scr is not None and one.scr >= target


def _why(tried: Mapping[int, Tried], otherwise: str) -> str:
    if all(one.scr is None for one in tried.values()):
        return "no window has enough requests for SCR: a larger --window or smaller --min-samples judges more"
    return otherwise


def _bracket(holds: Callable[[int], bool], least: int, most: int) -> tuple[int | None, int | None]:
    """(holds, does not hold) next to each other among 100 % doubled or halved; None at an end that was not found."""
    good = bad = None
    at = 100
    if holds(at):
        good = at
        while bad is None and good < most:
            at = min(2 * good, most)
            good, bad = (at, None) if holds(at) else (good, at)
    else:
        bad = at
        while good is None and bad > least:
            at = max(bad // 2, least)
            good, bad = (at, bad) if holds(at) else (None, at)
    return good, bad


def run(question: Question, percent: int, replicas: int) -> Tried:
    """The trace at ``percent`` of its load on ``replicas``: its SCR."""
    load = scaled(question.load, percent)
    config = with_replicas(question.config, question.model, replicas)
    done = run_shards(load, shards(load, config, question.policy))
    question.on_replay()
    windows = measure_windows(outcome(load, done), config, question.options, "capacity", question.slo)
    judged = windows.filter(~pl.col("drain"))["scr"].drop_nulls()
    mean = mean_of(judged)
    return Tried(percent, replicas, None if mean is None else round(mean, 6), len(judged))


def scaled(load: Load, percent: int) -> Load:
    """``load`` with every arrival moved to ``100/percent`` of its distance from the first one, rounded down."""
    arrived = (pl.col("arrived_at").to_physical() - load.start_us) * 100 // percent + load.start_us
    return Load(load.frame.with_columns(arrived.cast(TIMESTAMP).alias("arrived_at")), load.left_out, load.start_us)


def with_replicas(config: Config, model: str | None, replicas: int) -> Config:
    """``config`` with so many replicas of ``model``; a placement that follows the log becomes round-robin."""
    if model is None:
        table = config.cluster
    else:
        table = config.models.get(model, ClusterTable())
    placement = table.placement or config.cluster.placement
    update = {"replicas": replicas} | ({"placement": "round-robin"} if placement == "logged" else {})
    changed = table.model_copy(update=update)
    if model is None:
        return config.model_copy(update={"cluster": changed})
    return config.model_copy(update={"models": config.models | {model: changed}})


def outcome(load: Load, done: Replayed) -> pl.DataFrame:
    """The load's rows with what the sandbox decided; a refused request generated nothing."""
    rows = load.frame.with_columns(done.requests[name] for name in DECIDED)
    refused = pl.col("status") == "rejected"
    return rows.with_columns(
        pl.when(refused).then(pl.lit(0, pl.UInt32)).otherwise(pl.col("output_tokens")).alias("output_tokens")
    )
