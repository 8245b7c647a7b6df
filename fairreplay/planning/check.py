"""What is wrong or odd about a config and a store before a review finds it out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from fairreplay.causes.review import configured
from fairreplay.config.model import Config, Tenant, resolve_cluster
from fairreplay.errors import FairReplayError, UsageError, nearest
from fairreplay.sandbox.plan import Named, baseline_policy, settings_over_time
from fairreplay.sandbox.policies import KNOW_DEADLINES, POLICIES
from fairreplay.sandbox.replay import find_replays, with_estimates
from fairreplay.store.store import Store

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """``where``: ``config`` or ``store``. An error stops a command; a warning is what somebody hardly meant."""

    level: Level
    where: Literal["config", "store"]
    says: str


def of_config(config: Config) -> list[Finding]:
    """What the config itself gets wrong beyond its keys and types: policies that lack their settings, weight rules."""
    found: list[Finding] = []
    named = Named(tenants=tuple(config.tenants), types=tuple(config.types))
    for name in dict.fromkeys((baseline_policy(config), *config.policies)):
        if ":" in name:
            continue
        try:
            configured(config.model_copy(update={"policies": {name: config.policy_table(name)}}))
            for model in (None, *config.models):
                settings_over_time(resolve_cluster(config, model), config, name, named, 0)
        except UsageError as error:
            found.append(Finding("error", "config", str(error)))
    cluster_policies = [change.policy for change in config.cluster.changes if change.policy is not None]
    found += [
        Finding("warning", "config", f"cluster.changes: policy {name!r} is unknown to the sandbox: an unlisted change")
        for name in dict.fromkeys(cluster_policies)
        if name not in POLICIES
    ]
    return list(dict.fromkeys(found))


def of_both(config: Config, store: Store) -> list[Finding]:
    """What the config names and the store does not hold."""
    sources = [segment.source for segment in store.manifest.segments]
    held = {column: set(store.counted(sources, column)) - {None} for column in ("tenant", "model", "type")}
    found = list(_strangers("tenant", "tenants", config.tenants, held["tenant"]))
    found += _strangers("model", "models", config.models, held["model"])
    found += _strangers("type", "types", config.types, held["type"])
    ordered = config.policy_table("type-priority").order
    found += _strangers("type", "policies.type-priority order", ordered, held["type"])
    found += _strangers(
        "type", "speculative.types", config.speculative.types if config.speculative else (), held["type"]
    )
    found += _strangers("type", "moe.types", config.moe.types if config.moe else (), held["type"])
    found += _changes(config, store)
    found += _slos(config, held["tenant"])
    return found


def _strangers(what: str, table: str, named: object, held: set[str]) -> Iterator[Finding]:
    for name in named:  # type: ignore[attr-defined]
        if name not in held:
            hint = f" ({nearest(name, sorted(held))})" if 0 < len(held) <= 1000 and _is_close(name, held) else ""
            yield Finding("warning", "config", f"{table}: {what} {name!r} is in no stored request{hint}")


def _is_close(name: str, held: set[str]) -> bool:
    from difflib import get_close_matches

    return bool(get_close_matches(name, sorted(held), n=1))


def _changes(config: Config, store: Store) -> Iterator[Finding]:
    """Changes that lie after everything that is stored."""
    arrivals = [segment.last_arrival for segment in store.manifest.segments if segment.last_arrival is not None]
    last = max(map(datetime.fromisoformat, arrivals), default=None)
    if last is None:
        return
    listed = [("cluster.changes", change.at) for change in config.cluster.changes]
    listed += [(f"models.{name!r}.changes", one.at) for name, table in config.models.items() for one in table.changes]
    listed += [(f"tenants.{name!r}.changes", one.at) for name, table in config.tenants.items() for one in table.changes]
    for where, at in listed:
        if at > last:
            yield Finding("warning", "config", f"{where}: {at:%Y-%m-%dT%H:%M:%SZ} lies after the last stored arrival")


def _slos(config: Config, tenants: set[str]) -> Iterator[Finding]:
    without = sorted(name for name in tenants if config.slo_ttft_ms(name) is None)
    lacking = sorted(KNOW_DEADLINES & {baseline_policy(config), *config.policies}) if without else []
    for policy in lacking:
        yield Finding("error", "config", f"policy {policy!r} needs TTFT targets, and tenant {without[0]!r} has none")
    if without and len(without) < len(tenants):
        others = f" and {len(without) - 1} more" if len(without) > 1 else ""
        yield Finding(
            "warning", "config", f"no SLO for tenant {without[0]!r}{others}, though others have one: theirs is assumed"
        )
    promised = config.commitments()
    missing = sorted(
        name for name in tenants if name not in promised and (config.tenants.get(name) or Tenant()).weight is None
    )
    if promised and missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield Finding(
            "warning", "config", f"no commitment for tenant {missing[0]!r}{others}: each weighs as the mean one"
        )


def of_store(store: Store, config: Config | None) -> list[Finding]:
    """Damage, and replays that no command would use with this config."""
    found = [Finding("error", "store", fault) for fault in store.faults()]
    if not store.manifest.segments:
        found.append(Finding("warning", "store", f"{store.place}: no request is stored"))
    if config is None:
        return found
    try:
        used = _of_config(store, config)
    except FairReplayError:
        return found
    for name in store.replay_names():
        if name in used:
            continue
        try:
            meta = store.replay_meta(name)
        except FairReplayError:
            continue  # said above
        period = [_instant(meta.get(key)) for key in ("since", "until")]
        if meta.get("store_digest") != store.digest():
            found.append(Finding("warning", "store", f"replay {name}: made before the store grew; `review` removes it"))
        elif period == [None, None] or name not in _of_config(store, config, *period):
            found.append(Finding("warning", "store", f"replay {name}: made with another config; not in any report"))
    return found


def _of_config(store: Store, config: Config, since: datetime | None = None, until: datetime | None = None) -> set[str]:
    """Replays of this config, and those beside them that it is compared with."""
    settings = (config, *with_estimates(config).values())
    return {name for one in settings for name in find_replays(store, one, since, until).values()}


def _instant(text: object) -> datetime | None:
    return None if text is None else datetime.fromisoformat(str(text))
