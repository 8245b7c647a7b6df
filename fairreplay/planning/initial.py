"""The first ``fairreplay.toml`` of a store: what it holds, the defaults in comments, suggestions marked as such."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import polars as pl

from fairreplay.config.model import Config, Engine, SloTtft, StepTime, Table
from fairreplay.metrics.measure import slos_of
from fairreplay.metrics.options import MeasureOptions
from fairreplay.store.store import Store

TENANTS_MAX: Final = 200
MONTH_S: Final = 30 * 86_400
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_HIDDEN: Final = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_ENGINE_KEYS: Final = (
    "policy",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "num_gpu_blocks",
    "enable_prefix_caching",
    "batching",
    "admission",
    "speed",
)
_SAYS: Final = {
    "policy": "what production runs: the baseline",
    "num_gpu_blocks": "KV cache, from the engine's log at its start; `fairreplay calibrate` finds it too",
    "speed": "step times are divided by this",
}


@dataclass(frozen=True)
class Share:
    """A tenant, type or model of the store."""

    name: str
    requests: int
    tokens: int
    part: float
    """Of all tokens, 0..1."""


def initial_config(store: Store) -> str:
    """A commented ``fairreplay.toml`` for ``store``. As it is written it changes no result: it is all defaults."""
    rows = store.requests(columns=_COLUMNS)
    first, last = rows["arrived_at"].min(), rows["arrived_at"].max()
    tenants = _shares(rows, "tenant")
    lines = [
        "# FairReplay's settings. As written they change nothing: comments hold the defaults, and suggestions.",
        f"# Seen in the store: {len(rows):,} requests of {len(tenants):,} tenants{_span(first, last)}.",
        "",
        *_table("window", {"size": Config().window.size}),
        *_table("cost", _fields(Config().cost), "service units per token: the price at which fairness is weighed"),
        *_cluster(),
        *_table("cluster.step_time", _fields(StepTime()), "seconds; `fairreplay calibrate` fits them to the log"),
        *_changes(last),
        *_slo(rows),
        *_tenants(tenants, _length_s(first, last)),
        *_models(_shares(rows.drop_nulls("model"), "model")),
        *_types(_shares(rows, "type")),
        *_table("weights", {"rule": Config().weights.rule}, "for policies other than the baseline"),
        '# file = "commitments.csv"       # tenant, committed_tokens_per_month, valid_from',
        "",
        *_table("floor", _fields(Config().floor), "the minimum share of each request type"),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


_COLUMNS: Final = (
    "tenant",
    "type",
    "model",
    "status",
    "arrived_at",
    "scheduled_at",
    "first_token_at",
    "finished_at",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "recomputed_tokens",
    "preemptions",
    "weight",
)


def key(name: str) -> str:
    """A name as a TOML key: bare where it can be, else a basic string; what cannot be seen stands as an escape."""
    return name if _BARE.fullmatch(name) else string(name)


def string(text: str) -> str:
    """``text`` as a TOML basic string on one line."""

    def shown(character: str) -> str:
        if character in '"\\':
            return "\\" + character
        if unicodedata.category(character) not in _HIDDEN:
            return character
        code = ord(character)
        return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"

    return '"' + "".join(map(shown, text)) + '"'


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return string(value) if isinstance(value, str) else repr(value)


def _fields(table: Table) -> dict[str, Any]:
    values = {name: getattr(table, name) for name in type(table).model_fields}
    return {name: value for name, value in values.items() if value is not None}


def _table(name: str, values: dict[str, Any], says: str = "") -> list[str]:
    return [
        f"[{name}]" + (f"  # {says}" if says else ""),
        *(f"# {field} = {_value(value)}" for field, value in values.items()),
        "",
    ]


def _cluster() -> list[str]:
    engine = _fields(Engine())
    lines = ["[cluster]  # engine settings by vLLM's names", "# replicas = 1"]
    for name in _ENGINE_KEYS:
        says = f"  # {_SAYS[name]}" if name in _SAYS else ""
        lines.append(f"# {name} = {_value(engine[name])}{says}")
    return [*lines, ""]


def _changes(last: Any) -> list[str]:
    at = f"{last:%Y-%m-%dT%H:%M:%SZ}" if isinstance(last, datetime) else "2026-01-01T00:00:00Z"
    return [
        "# A deploy, a rollback: settings from this moment on.",
        "# [[cluster.changes]]",
        f"# at = {at}",
        f"# num_gpu_blocks = {Engine().num_gpu_blocks}",
        "",
    ]


def _slo(rows: pl.DataFrame) -> list[str]:
    slos, assumed = slos_of(rows, Config(), MeasureOptions()) if len(rows) else ({}, False)
    lines = ["[defaults]  # for tenants without a table of their own"]
    if assumed:
        target: SloTtft = next(iter(slos.values()))
        lines += [
            "# SUGGESTION, agreed with nobody: 1.5 times the pooled quantiles of the calmer half of the windows. It is",
            "# what is assumed as long as no SLO is set.",
            f"# slo_ttft_ms = {{ p50 = {target.p50:.0f}, p90 = {target.p90:.0f}, p99 = {target.p99:.0f} }}",
        ]
    else:
        lines.append("# slo_ttft_ms = { p50 = 200, p90 = 500, p99 = 1000 }  # an example: the log has no first tokens")
    return [*lines, '# openslo = "slo.yaml"          # or from OpenSLO', ""]


def _tenants(tenants: list[Share], length_s: float) -> list[str]:
    lines = []
    if len(tenants) > TENANTS_MAX:
        lines.append(f"# The {TENANTS_MAX} tenants with most tokens, of {len(tenants):,}.")
    for one in tenants[:TENANTS_MAX]:
        lines += [f"[tenants.{key(one.name)}]  # {one.requests:,} requests, {one.part:.1%} of the tokens"]
        if length_s >= 3600:
            month = round(one.tokens * MONTH_S / length_s)
            lines.append(f"# committed_tokens_per_month = {max(1, month)}  # SUGGESTION: what was used, not promised")
    return [*lines, *([""] if lines else [])]


def _models(models: list[Share]) -> list[str]:
    lines = []
    for one in models:
        lines += [f"[models.{key(one.name)}]  # {one.requests:,} requests; settings here go before [cluster]", ""]
    return lines


def _types(types: list[Share]) -> list[str]:
    names = ", ".join(string(one.name) for one in types)
    return [
        "# What `fairreplay review` replays beside the baseline, one table each.",
        "[policies.vtc]",
        "",
        *([] if len(types) < 2 else ["# [policies.type-priority]", f"# order = [{names}]", ""]),
    ]


def _shares(rows: pl.DataFrame, column: str) -> list[Share]:
    """By tokens, the most first."""
    tokens = pl.sum_horizontal(pl.col("prompt_tokens", "output_tokens").cast(pl.Int64)).sum()
    found = rows.group_by(column).agg(pl.len().alias("requests"), tokens.alias("tokens"))
    total = max(1, int(found["tokens"].sum()))
    ordered = found.sort("tokens", column, descending=[True, False])
    return [Share(name, requests, amount, amount / total) for name, requests, amount in ordered.iter_rows()]


def _length_s(first: Any, last: Any) -> float:
    return (last - first).total_seconds() if isinstance(first, datetime) else 0.0


def _span(first: Any, last: Any) -> str:
    return f", {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC" if isinstance(first, datetime) else ""
