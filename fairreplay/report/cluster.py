"""What a replay says of pools, drafts, experts and precisions, judged: from its stored tables to the document.

The tables are ``sandbox.accounts``'; they hold quantiles and sums by tenant, so that nothing is simulated here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fairreplay.config.model import QUANTILES, Config, MinSamples, SloTtft, resolve_cluster
from fairreplay.metrics.options import MeasureOptions
from fairreplay.report.redaction import Redaction
from fairreplay.report.rounding import rounded
from fairreplay.report.schema import ClusterFacts, DraftRow, Drafts, Pools, PrecisionRow, Spread, SpreadRow, StageRow

CONSISTENT: Final = (0.5, 2.0)
"""Stages use up their budgets alike within these bounds."""

Row = Mapping[str, Any]


def cluster_facts(
    source: str,
    tables: Mapping[str, Sequence[Row]],
    config: Config,
    options: MeasureOptions,
    slo: Mapping[str, SloTtft],
    redaction: Redaction | None = None,
) -> ClusterFacts:
    """The facts of one replay; ``tables`` is its ``cluster``, ``slo`` the targets of tenants by their names here."""

    def named(row: Row) -> Row:
        if redaction is None:
            return row
        hidden = {"tenant": redaction.name, "type": redaction.text, "model": redaction.text}
        return {key: hidden[key](value) if key in hidden and value is not None else value for key, value in row.items()}

    known = {name: [named(row) for row in rows] for name, rows in tables.items()}
    return {
        "source": source,
        "pools": [_pools(row, known["stages"], config) for row in known.get("between", ())],
        "drafts": [_drafts(model, rows) for model, rows in _by_model(known.get("drafts", ()))],
        "spread": [
            _spread(model, rows, slo, options.min_samples) for model, rows in _by_model(known.get("spread", ()))
        ],
        "precisions": [_precision(row) for row in known.get("precisions", ())],
    }


def _by_model(rows: Sequence[Row]) -> list[tuple[str | None, list[Row]]]:
    return [
        (model, [row for row in rows if row["model"] == model]) for model in dict.fromkeys(row["model"] for row in rows)
    ]


# ---- two pools ----


def consistency(prefill_ms: float, prefill_budget_ms: float, decode_ms: float, decode_budget_ms: float) -> float | None:
    """``(P_q(prefill stage) / its budget) / (P_q(decode stage) / its budget)``; null where decode takes no time."""
    if decode_ms == 0:
        return None
    return (prefill_ms / prefill_budget_ms) / (decode_ms / decode_budget_ms)


def _pools(row: Row, stages: Sequence[Row], config: Config) -> Pools:
    table = resolve_cluster(config, row["model"]).disaggregated
    prefill = table.prefill_budget_ms if table else None
    decode = table.decode_budget_ms if table else None
    return {
        "model": row["model"],
        "prefill_replicas": row["prefill_replicas"],
        "decode_replicas": row["decode_replicas"],
        "kv_bytes_most": row["kv_bytes_most"],
        "prefill_budget_ms": prefill.model_dump() if prefill else None,
        "decode_budget_ms": decode.model_dump() if decode else None,
        "tenants": [_stage(stage, prefill, decode) for stage in stages if stage["model"] == row["model"]],
    }


def _stage(row: Row, prefill: SloTtft | None, decode: SloTtft | None) -> StageRow:
    found: dict[str, float | None] | None = None
    if prefill and decode:
        found = {}
        for q in QUANTILES:
            first, rest = row["prefill_ms"][q], row["decode_ms"][q]
            known = first is not None and rest is not None
            found[q] = rounded(consistency(first, getattr(prefill, q), rest, getattr(decode, q))) if known else None
    low, high = CONSISTENT
    return {
        "tenant": row["tenant"],
        "requests": row["requests"],
        "moved": row["moved"],
        "prefill_ms": row["prefill_ms"],
        "transfer_ms": row["transfer_ms"],
        "wait_ms": row["wait_ms"],
        "decode_ms": row["decode_ms"],
        "consistency": found,
        "flagged": any(value is not None and not low <= value <= high for value in (found or {}).values()),
    }


# ---- speculation ----


def _drafts(model: str | None, rows: Sequence[Row]) -> Drafts:
    def tokens_a_step(some: Sequence[Row]) -> float | None:
        """Of steps with drafts: all drafts of a row come in steps of the same number of them."""
        steps = sum(row["decode_steps"] for row in some)
        return (sum(row["drafted"] - row["rejected"] for row in some) + steps) / steps if steps else None

    whole = tokens_a_step(rows)
    own = {
        tenant: [row for row in rows if row["tenant"] == tenant] for tenant in sorted({row["tenant"] for row in rows})
    }
    means = {tenant: tokens_a_step(some) for tenant, some in own.items()}
    low = [tenant for tenant, mean in means.items() if mean is not None and whole is not None and mean < whole]
    of_low = [row for tenant in low for row in own[tenant]]
    return {
        "model": model,
        "tokens_a_step": rounded(whole),
        "low": low,
        "low_imposed_s": round(sum(row["imposed_s"] for row in of_low), 6),
        "low_held_up_s": round(sum(row["held_up_s"] for row in of_low), 6),
        "rows": [
            _draft(row)
            for row in sorted(rows, key=lambda row: (row["held_up_s"] - row["imposed_s"], row["tenant"], row["type"]))
        ],
    }


def _draft(row: Row) -> DraftRow:
    return {
        "tenant": row["tenant"],
        "type": row["type"],
        "requests": row["requests"],
        "drafted": row["drafted"],
        "rejected": row["rejected"],
        "tokens_a_step": row["tokens_a_step"],
        "wasted_s": row["wasted_s"],
        "held_up_s": row["held_up_s"],
        "imposed_s": row["imposed_s"],
        "decoding_s": row["decoding_s"],
    }


# ---- experts ----


def _spread(model: str | None, rows: Sequence[Row], slo: Mapping[str, SloTtft], samples: MinSamples) -> Spread:
    found: list[SpreadRow] = []
    for row in rows:
        target = slo[row["tenant"]]
        found.append(
            {
                "tenant": row["tenant"],
                "requests": row["requests"],
                "ttft_ms": row["ttft_ms"],
                "ttft_ms_without": row["ttft_ms_without"],
                "passes": _passes(row["ttft_ms"], row["requests"], target, samples),
                "passes_without": _passes(row["ttft_ms_without"], row["requests"], target, samples),
            }
        )
    return {
        "model": model,
        "scr": _scr([row["passes"] for row in found]),
        "scr_without": _scr([row["passes_without"] for row in found]),
        "tenants": found,
    }


def _passes(ttft_ms: Mapping[str, float | None], n: int, slo: SloTtft, samples: MinSamples) -> bool | None:
    """Whether every judged quantile is within its target; a null one never came."""
    judged = [q for q in QUANTILES if n >= getattr(samples, q)]
    if not judged:
        return None
    return all((value := ttft_ms[q]) is not None and value <= getattr(slo, q) for q in judged)


def _scr(passes: Sequence[bool | None]) -> float | None:
    judged = [value for value in passes if value is not None]
    return rounded(sum(judged) / len(judged)) if judged else None


# ---- precisions ----


def _precision(row: Row) -> PrecisionRow:
    return {
        "model": row["model"],
        "precision": row["precision"],
        "requests": row["requests"],
        "switches": row["switches"],
        "prompt_tokens": row["prompt_tokens"],
        "cached_tokens": row["cached_tokens"],
        "hit_rate": row["hit_rate"],
        "hit_rate_without_drops": row["hit_rate_without_drops"],
    }
