"""What production ran while it was unfair: policies and weights in force, and the listed changes that made them so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from fairreplay.config.model import STEP_TIME_KEYS, Config, Engine, EngineChange, EngineKeys, resolve_cluster

RECENT: Final = timedelta(hours=1)
"""A decrease that is older was there all through the healthy hour before: it is not what changed."""

USES_WEIGHTS: Final = frozenset({"vtc", "drr", "wfq", "wfq+edf", "quantile"})
ORDERS_REQUESTS: Final = frozenset({"priority", "type-priority", "sjf", "qoserve", "user"})
"""Policies that put requests first by type, size or priority: rules that can starve."""


@dataclass(frozen=True)
class Listed:
    """One entry of ``[[cluster.changes]]`` or ``[[models.NAME.changes]]``, and what it did."""

    layer: str | None
    """None: ``[cluster]``, else the model's name."""
    index: int
    """Its place in that table's ``changes``."""
    at: datetime
    before: Engine
    after: Engine
    keys: tuple[str, ...]
    """Engine keys whose value it changed."""
    ends: datetime | None
    """When the last of these keys is set to something else again."""

    def undo(self, keys: Sequence[str]) -> dict[str, Any]:
        """The part of an intervention of kind ``undo`` that takes back these of its keys."""
        return {"layer": self.layer, "index": self.index, "at": self.at.isoformat(), "keys": list(keys)}


def listed_changes(config: Config, model: str | None) -> list[Listed]:
    """Every change that holds for ``model``, in time order, those that change nothing left out."""
    layers: list[tuple[str | None, tuple[EngineChange, ...]]] = [(None, config.cluster.changes)]
    if model is not None and model in config.models:
        layers.append((model, config.models[model].changes))
    entries = sorted(
        ((change, layer, index) for layer, changes in layers for index, change in enumerate(changes)),
        key=lambda entry: entry[0].at,
    )
    cluster = resolve_cluster(config, model)
    states = [cluster.engine, *(engine for _, engine in cluster.changes)]
    keys = [
        tuple(
            name
            for name in EngineKeys.model_fields
            if getattr(change, name) is not None and getattr(states[number], name) != getattr(states[number + 1], name)
        )
        for number, (change, _, _) in enumerate(entries)
    ]
    found = []
    for number, (change, layer, index) in enumerate(entries):
        if not keys[number]:
            continue
        ends: datetime | None = change.at
        for key in keys[number]:
            again = next(
                (entries[later][0].at for later in range(number + 1, len(entries)) if key in keys[later]), None
            )
            ends = None if again is None or ends is None else max(ends, again)
        found.append(
            Listed(
                layer=layer,
                index=index,
                at=change.at,
                before=states[number],
                after=states[number + 1],
                keys=keys[number],
                ends=ends,
            )
        )
    return found


def in_force(changes: Sequence[Listed], start: datetime, end: datetime) -> list[Listed]:
    """Those of ``changes`` that held at some instant of ``[start, end)``."""
    return [change for change in changes if change.at < end and (change.ends is None or change.ends > start)]


def policies_in_force(config: Config, model: str | None, start: datetime, end: datetime) -> tuple[str, ...]:
    """Production's policies in ``[start, end)``, in the order they held."""
    cluster = resolve_cluster(config, model)
    states = [(None, cluster.engine), *cluster.changes]
    found: list[str] = []
    for number, (at, engine) in enumerate(states):
        until = states[number + 1][0] if number + 1 < len(states) else None
        if (at is None or at < end) and (until is None or until > start):
            found.append(engine.policy)
    return tuple(dict.fromkeys(found))


# ---- what a change took away ----


def less_kv(change: Listed) -> tuple[str, ...]:
    """Keys by which it left fewer KV blocks to use."""
    fewer = change.after.num_gpu_blocks < change.before.num_gpu_blocks
    more_kept_free = change.after.watermark > change.before.watermark
    return _set_in(change, {"num_gpu_blocks": fewer, "watermark": more_kept_free})


def less_speed(change: Listed) -> tuple[str, ...]:
    """Keys by which it made steps slower, or let fewer requests or tokens into one."""
    before, after = change.before, change.after
    slower = any(getattr(after.step_time, name) > getattr(before.step_time, name) for name in STEP_TIME_KEYS)
    return _set_in(
        change,
        {
            "speed": after.speed < before.speed,
            "step_time": slower,
            "max_num_seqs": after.max_num_seqs < before.max_num_seqs,
            "max_num_active_seqs": (after.max_num_active_seqs or after.max_num_seqs)
            < (before.max_num_active_seqs or before.max_num_seqs),
            "max_num_batched_tokens": after.max_num_batched_tokens < before.max_num_batched_tokens,
        },
    )


def _set_in(change: Listed, lessened: dict[str, bool]) -> tuple[str, ...]:
    return tuple(key for key, is_less in lessened.items() if is_less and key in change.keys)


def starving_policy_changes(changes: Sequence[Listed], begins: datetime) -> list[Listed]:
    """The policy changes to take back: from the first that may starve a type on.

    One to a policy that orders requests may at any time; one to another policy not before the episode ``begins``: it
    held through healthy windows.
    """
    moves = [change for change in changes if "policy" in change.keys]
    for number, change in enumerate(moves):
        orders, ordered = (engine.policy in ORDERS_REQUESTS for engine in (change.after, change.before))
        if orders or (not ordered and change.at >= begins):
            return moves[number:]
    return []
