"""A config as it stands at one instant: what changes before it is folded in, what comes later is left out."""

from __future__ import annotations

from datetime import datetime

from fairreplay.config.model import ClusterTable, Config, EngineKeys, Tenant


def as_of(config: Config, at: datetime) -> Config:
    """``config`` without dates: the engine settings, weights and commitments in force at ``at``, from the start on."""
    return config.model_copy(
        update={
            "cluster": _table(config.cluster, at),
            "models": {name: _table(table, at) for name, table in config.models.items()},
            "tenants": {name: _tenant(tenant, at) for name, tenant in config.tenants.items()},
        }
    )


def _table(table: ClusterTable, at: datetime) -> ClusterTable:
    keys: dict[str, object] = {}
    for change in sorted(table.changes, key=lambda change: change.at):
        if change.at <= at:
            keys |= {name: value for name in EngineKeys.model_fields if (value := getattr(change, name)) is not None}
    return table.model_copy(update={**keys, "changes": ()})


def _tenant(tenant: Tenant, at: datetime) -> Tenant:
    promised = tenant.committed_at(at)
    update: dict[str, object] = {"changes": (), "commitments": (), "committed_tokens_per_month": promised}
    for change in sorted(tenant.changes, key=lambda change: change.at):
        if change.at <= at:
            update["weight"] = change.weight
    return tenant.model_copy(update=update)
