"""What can go wrong in a synthetic trace: one dict entry a kind, its injection at a time, and how to undo it.

An injection never moves the requests that would have come anyway: extra demand is drawn from streams of its own, and
missing demand is taken out and kept. A label therefore holds the injection exactly, and ``undone`` reverses it, or one
part of it, on the trace and the config alone, without the generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal

import polars as pl

from fairreplay.config.model import Config, EngineChange, EngineKeys
from fairreplay.planning.serving import ASKED, unserved
from fairreplay.trace.schema import SCHEMA

PARTS: Final = ("traffic", "settings", "weights")
"""What an injection can consist of."""


@dataclass(frozen=True)
class Kind:
    """What an incident of this kind does while it lasts.

    ``load`` is the demand to reach, in multiples of the usual demand of all tenants; the factor on the arrivals of
    those who ``send`` follows from it and from the hour of the day. 0 leaves the demand alone.
    """

    cause: str
    """The cause that the injection is, in the words of ``episodes --json``; "" = none."""
    metrics: tuple[str, ...]
    """Metrics that it is made to hit."""
    says: str
    send: Literal["everybody", "pair", "small", "large"] = "everybody"
    """Whose arrivals change: all, two of the middle of the size order, one of its lower half, one of the largest."""
    load: float = 0.0
    load_types: tuple[str, ...] = ()
    """Request types whose arrivals change; none named = all."""
    ramp: bool = False
    """The extra arrivals grow evenly from none at the start to twice their mean at the end."""
    hit_types: tuple[str, ...] = ()
    """Types that the injection is made to hurt; none named = no one type."""
    keep: float = 1.0
    """Part of the arrivals that still comes."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Engine keys from the start to the end; ``speed`` is a factor on the usual one."""
    listed: bool = True
    """The config's ``changes`` tell of the settings; else production had them and the config does not know."""
    reversed_weights: bool = False
    """The weights in force stand in the reverse order of the commitments."""
    stamped: bool = False
    """The gateway stamps requests with their type's priority, all through the trace: a stamp tells nothing of when."""

    def causes(self) -> dict[str, str]:
        """Part of the injection -> the cause that this part is. What only makes contention has a cause of its own."""
        found = {}
        if self.keep < 1:
            found["traffic"] = "low_demand"
        elif self.load:
            found["traffic"] = "capacity_shortfall" if self.send == "everybody" else "burst"
        if self.settings:
            found["settings"] = self.cause
        if self.reversed_weights:
            found["weights"] = "weight_skew"
        return found


_BURST: Final = Kind(
    cause="burst",
    metrics=("scr",),
    says="two tenants send far more than they usually do",
    send="pair",
    load=2.4,
)
_THRASH: Final = Kind(
    cause="preemption_thrash",
    metrics=("scr",),
    says="a deploy leaves too few KV blocks for the mix: work is evicted and done again",
    settings={"num_gpu_blocks": 160},
)
_STARVATION: Final = Kind(
    cause="type_starvation",
    metrics=("tfr",),
    says="a deploy orders requests by type while the types in front fill the cluster",
    load=2.6,
    load_types=("embed", "chat", "completion"),
    hit_types=("long", "batch"),
    settings={"policy": "type-priority"},
)
_OVERLOAD: Final = Kind(
    cause="capacity_shortfall", metrics=("scr",), says="everybody sends more than the cluster can serve", load=2.5
)
_SLOWDOWN: Final = Kind(
    cause="capacity_shortfall", metrics=("scr",), says="a deploy makes every step slower", settings={"speed": 0.42}
)

KINDS: Final[dict[str, Kind]] = {
    "burst": _BURST,
    "burst-ramp": replace(_BURST, says="two tenants send more and more", ramp=True),
    "noisy-neighbour": Kind(
        cause="burst", metrics=("scr",), says="one small tenant floods the cluster", send="small", load=2.5
    ),
    "overload": _OVERLOAD,
    "overload-ramp": replace(_OVERLOAD, says="everybody sends more and more", ramp=True),
    "slowdown": _SLOWDOWN,
    "unlisted-slowdown": replace(_SLOWDOWN, says="every step is slower, and the config does not know", listed=False),
    "thrash": _THRASH,
    "unlisted-thrash": replace(
        _THRASH, says="too few KV blocks for the mix, and the config does not know", listed=False
    ),
    "starvation": _STARVATION,
    "starvation-priority": replace(
        _STARVATION,
        says="a deploy heeds the priority of requests while those of high priority fill the cluster",
        settings={"policy": "priority"},
        stamped=True,
    ),
    "starvation-sjf": replace(
        _STARVATION,
        says="a deploy serves the shortest prompt first while short ones fill the cluster",
        hit_types=("long",),
        settings={"policy": "sjf"},
    ),
    "quiet": Kind(
        cause="low_demand",
        metrics=("jfi_raw",),
        says="one large tenant hardly sends: nobody is hurt, only the raw index may fall",
        send="large",
        keep=0.1,
    ),
    "healthy": Kind(cause="", metrics=(), says="nothing happens"),
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


def fault(kind: Kind) -> str:
    """The part of the injection that is the kind's own cause; the others only make contention. "" = none."""
    own = [part for part, cause in kind.causes().items() if cause == kind.cause]
    return own[-1] if own else ""


@dataclass(frozen=True)
class Traffic:
    """Arrivals of ``tenants`` (of ``types``, if any are named) at ``factor`` times their usual number, in the mean."""

    tenants: tuple[str, ...]
    types: tuple[str, ...]
    factor: float
    ramp: bool = False


@dataclass(frozen=True)
class Incident:
    """An injection at its time: ``[start_us, end_us)`` in microseconds since the epoch."""

    name: str
    kind: str
    slot: int
    """Incidents of one slot happen at once."""
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
        names: ids of the incidents to undo, or ``id:part`` with a part of ``PARTS``; none given = all.

    Returns:
        The requests (canonical columns, nothing of what production did to them) and the config, with every change
        that production made and that is not undone, listed or not; serve the one under the other to see what would
        have happened.
    """
    asked = trace.select(ASKED)
    for label in labels["incidents"]:
        name = label["id"]
        gone = {part for part in PARTS if names is None or name in names or f"{name}:{part}" in names}
        start, end = datetime.fromisoformat(label["start"]), datetime.fromisoformat(label["end"])
        injection, requests = label["injection"], labels["requests"][name]
        if "traffic" in gone:
            back = pl.DataFrame(requests["removed"], schema={**{name: SCHEMA[name] for name in ASKED}, **_JSON_TYPES})
            back = back.with_columns(pl.col("arrived_at").str.to_datetime(time_unit="us", time_zone="UTC"))
            asked = pl.concat([asked.filter(~pl.col("request_id").is_in(requests["added"])), back])
        if "weights" in gone and injection["weights"]:
            usual = {tenant: weight["usual"] for tenant, weight in injection["weights"].items()}
            during = pl.col("arrived_at").is_between(start, end, closed="left") & pl.col("tenant").is_in(list(usual))
            weight = pl.col("tenant").replace_strict(usual, default=None, return_dtype=pl.Float64)
            asked = asked.with_columns(
                pl.when(during).then(weight.cast(SCHEMA["weight"])).otherwise("weight").alias("weight")
            )
        if injection["listed"] and "settings" in gone:
            config = _without_changes(config, {start, end}, set(injection["settings"]))
        elif not injection["listed"] and "settings" not in gone:
            config = _with_changes(
                config,
                {start: "during", end: "usual"},
                injection["settings"],
            )
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


def _with_changes(
    config: Config, instants: Mapping[datetime, str], settings: Mapping[str, Mapping[str, Any]]
) -> Config:
    """``config`` with changes that it did not list: at each instant the ``usual`` or the ``during`` of ``settings``."""
    more = [
        EngineChange(at=at, **{key: values[which] for key, values in settings.items()})
        for at, which in instants.items()
    ]
    changes = (*config.cluster.changes, *more)
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"changes": changes})})
