"""What can go wrong in a synthetic trace: one dict entry a kind, its injection at a time, and how to undo it.

An injection never moves the requests that would have come anyway: extra demand is drawn from streams of its own, and
missing demand is taken out and kept. A label therefore holds the injection exactly, and ``undone`` reverses it on the
trace and the config alone, without the generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

import polars as pl

from fairreplay.config.model import Config, EngineKeys
from fairreplay.trace.schema import COLUMNS, SCHEMA

ASKED: Final = ("request_id", "tenant", "type", "model", "arrived_at", "prompt_tokens", "output_tokens", "weight")
"""The columns that say what was asked of the cluster; the others say what it did."""


@dataclass(frozen=True)
class Kind:
    """What an incident of this kind does while it lasts.

    ``load`` is the demand to reach, in multiples of the usual demand of all tenants; the factor on the arrivals of
    those who ``send`` follows from it and from the hour of the day. 0 leaves the demand alone.
    """

    cause: str
    """The cause that the injection is, in the words of ``episodes --json``."""
    metrics: tuple[str, ...]
    """Metrics that it is made to hit."""
    says: str
    send: Literal["everybody", "pair", "small", "large"] = "everybody"
    """Whose arrivals change: all, two of the middle of the size order, one of its lower half, one of the largest."""
    load: float = 0.0
    load_types: tuple[str, ...] = ()
    """Request types whose arrivals change; none named = all."""
    hit_types: tuple[str, ...] = ()
    """Types that the injection is made to hurt; none named = no one type."""
    keep: float = 1.0
    """Part of the arrivals that still comes."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Engine keys from the start to the end; ``speed`` is a factor on the usual one."""
    reversed_weights: bool = False
    """The weights in force stand in the reverse order of the commitments."""


KINDS: Final[dict[str, Kind]] = {
    "burst": Kind(
        cause="burst",
        metrics=("scr",),
        says="two tenants send far more than they usually do",
        send="pair",
        load=2.4,
    ),
    "thrash": Kind(
        cause="preemption_thrash",
        metrics=("scr",),
        says="a deploy leaves too few KV blocks for the mix: work is evicted and done again",
        settings={"num_gpu_blocks": 160},
    ),
    "starvation": Kind(
        cause="type_starvation",
        metrics=("tfr",),
        says="a deploy orders requests by type while the types in front fill the cluster",
        load=2.6,
        load_types=("embed", "chat", "completion"),
        hit_types=("long", "batch"),
        settings={"policy": "type-priority"},
    ),
    "overload": Kind(
        cause="capacity_shortfall", metrics=("scr",), says="everybody sends more than the cluster can serve", load=2.5
    ),
    "slowdown": Kind(
        cause="capacity_shortfall",
        metrics=("scr",),
        says="a deploy makes every step slower",
        settings={"speed": 0.42},
    ),
    "noisy-neighbour": Kind(
        cause="burst", metrics=("scr",), says="one small tenant floods the cluster", send="small", load=2.5
    ),
    "quiet": Kind(
        cause="low_demand",
        metrics=("jfi_raw",),
        says="one large tenant hardly sends: nobody is hurt, only the raw index may fall",
        send="large",
        keep=0.1,
    ),
    "skew": Kind(
        cause="weight_skew",
        metrics=("jfi",),
        says="the weights in force are not those that tenants committed to, under contention",
        load=3.0,
        reversed_weights=True,
    ),
}
"""Kind -> what it does. The order is that of the default trace: ``skew`` comes last, after the rollout of a policy
that has weights."""


@dataclass(frozen=True)
class Traffic:
    """Arrivals of ``tenants`` (of ``types``, if any are named) at ``factor`` times their usual number."""

    tenants: tuple[str, ...]
    types: tuple[str, ...]
    factor: float


@dataclass(frozen=True)
class Incident:
    """An injection at its time: ``[start_us, end_us)`` in microseconds since the epoch."""

    name: str
    kind: str
    start_us: int
    end_us: int
    traffic: Traffic | None
    settings: Mapping[str, tuple[Any, Any]]
    """Engine key -> (value before and after, value while it lasts)."""
    weights: Mapping[str, tuple[float, float]]
    """Tenant -> (weight before and after, weight while it lasts), for the tenants whose weight changes."""

    @property
    def tenants(self) -> tuple[str, ...]:
        """Tenants whose arrivals or weight the injection changes; none = the cluster as a whole."""
        return self.traffic.tenants if self.traffic and not self.weights else tuple(self.weights)


def undone(
    trace: pl.DataFrame, config: Config, labels: Mapping[str, Any], names: Sequence[str] | None = None
) -> tuple[pl.DataFrame, Config]:
    """What would have been asked, and of what cluster, without some of the incidents.

    Args:
        trace: canonical columns, as ``synth`` made them or as ingested.
        config: the config beside the trace.
        labels: the content of ``labels.json``.
        names: ids of the incidents to undo; none given = all.

    Returns:
        The requests (canonical columns, nothing of what production did to them) and the config; serve the one under
        the other to see what would have happened.
    """
    asked = trace.select(ASKED)
    for label in labels["incidents"]:
        if names is not None and label["id"] not in names:
            continue
        start, end = datetime.fromisoformat(label["start"]), datetime.fromisoformat(label["end"])
        requests, weights = labels["requests"][label["id"]], label["injection"]["weights"]
        back = pl.DataFrame(requests["removed"], schema={**{name: SCHEMA[name] for name in ASKED}, **_JSON_TYPES})
        back = back.with_columns(pl.col("arrived_at").str.to_datetime(time_unit="us", time_zone="UTC"))
        asked = pl.concat([asked.filter(~pl.col("request_id").is_in(requests["added"])), back])
        if weights:
            usual = {tenant: weight["usual"] for tenant, weight in weights.items()}
            during = pl.col("arrived_at").is_between(start, end, closed="left") & pl.col("tenant").is_in(list(usual))
            weight = pl.col("tenant").replace_strict(usual, default=None, return_dtype=pl.Float64)
            asked = asked.with_columns(
                pl.when(during).then(weight.cast(SCHEMA["weight"])).otherwise("weight").alias("weight")
            )
        config = _without_changes(config, {start, end}, set(label["injection"]["settings"]))
    return unserved(asked), config


_JSON_TYPES: Final[dict[str, pl.DataType]] = {"arrived_at": pl.String()}


def _without_changes(config: Config, instants: set[datetime], keys: set[str]) -> Config:
    """``config`` whose changes at ``instants`` do not set ``keys``."""
    kept = []
    for change in config.cluster.changes:
        if change.at in instants:
            change = change.model_copy(update=dict.fromkeys(keys))
        if any(getattr(change, name) is not None for name in EngineKeys.model_fields):
            kept.append(change)
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"changes": tuple(kept)})})


def unserved(asked: pl.DataFrame) -> pl.DataFrame:
    """Requests as they arrive: canonical columns in arrival order, everything that the cluster adds still unknown."""
    ordered = asked.sort("arrived_at", "request_id").with_columns(
        pl.lit("ok").alias("status"),
        pl.int_range(pl.len()).cast(SCHEMA["seq"]).alias("seq"),
        pl.lit("synth").alias("source"),
    )
    unknown = [pl.lit(None, SCHEMA[name]).alias(name) for name in COLUMNS if name not in ordered.columns]
    return ordered.with_columns(unknown).select(pl.col(name).cast(SCHEMA[name]) for name in COLUMNS)
