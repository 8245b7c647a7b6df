"""What a replay says beyond its rows where pools, drafts, experts or precisions are in force: small tables, by tenant.

They are reckoned from one replica's (or group's) integers when it has been simulated, and stored with the replay.
Quantiles are nearest rank. All milliseconds are whole microseconds, rounded down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fairreplay.sandbox.engine import (
    NEVER,
    OK,
    PS_PER_SECOND,
    PS_PER_US,
    QUANTILES,
    EngineResult,
    EngineSettings,
    Int64s,
    Plan,
    Workload,
)

Serve = Callable[[Workload, Plan], EngineResult]


@dataclass(frozen=True)
class Account:
    """One simulated replica: what came of it, and of the same without what is measured."""

    model: str | None
    workload: Workload
    plan: Plan
    result: EngineResult
    without_spread: EngineResult
    without_drops: EngineResult


def account(model: str | None, workload: Workload, plan: Plan, result: EngineResult, serve: Serve) -> Account:
    """``result`` beside what comes without the spread of costs, and without drops of the cache, where these are on."""
    state = plan.settings[0][1]
    even = dropless = result
    if state.moe and any(state.moe.spread):
        flat = replace(state.moe, spread=(0,) * len(state.moe.spread))
        mean = np.array(state.moe.mean, np.int64)[workload.type]
        costed = replace(workload, cost=mean * workload.prompt_tokens)
        even = serve(costed, _changed(plan, lambda one: replace(one, moe=flat)))
    if state.precision_switch == "drop":
        dropless = serve(workload, _changed(plan, lambda one: replace(one, precision_switch="keep")))
    return Account(model, workload, plan, result, even, dropless)


def _changed(plan: Plan, change: Callable[[EngineSettings], EngineSettings]) -> Plan:
    return replace(plan, settings=tuple((at, change(state)) for at, state in plan.settings))


def tables(accounts: Sequence[Account]) -> dict[str, list[dict[str, Any]]]:
    """The tables of a policy, of all replicas of each model; only those of what is in force."""
    found: dict[str, list[dict[str, Any]]] = {}
    for model in dict.fromkeys(account.model for account in accounts):
        own = [account for account in accounts if account.model == model]
        state = own[0].plan.settings[0][1]
        if own[0].plan.disaggregated:
            found.setdefault("stages", []).extend(_stages(model, own))
            found.setdefault("between", []).extend(_between(model, own))
        if state.speculation:
            found.setdefault("drafts", []).extend(_drafts(model, own))
        if state.moe:
            found.setdefault("spread", []).extend(_spread(model, own))
        if state.precision_switch:
            found.setdefault("precisions", []).extend(_precisions(model, own))
    return found


# ---- two pools ----


def _stages(model: str | None, accounts: Sequence[Account]) -> list[dict[str, Any]]:
    """By tenant: how long each stage takes. Prefill: to the first token; decode: from there to the finish."""
    rows = []
    for tenant, parts in _by_name(accounts, lambda account: (account.workload.tenants, account.workload.tenant)):
        first = _gather(parts, lambda one: one.result.first_token_ps)
        moved = _gather(parts, lambda one: one.result.details["handed_over_ps"])
        joined = _gather(parts, lambda one: one.result.details["joined_ps"])
        done = _gather(parts, lambda one: np.where(one.result.status == OK, one.result.finished_ps, NEVER))
        arrival = _gather(parts, lambda one: one.workload.arrival_ps)
        rows.append(
            {
                "model": model,
                "tenant": tenant,
                "requests": len(arrival),
                "moved": int((moved != NEVER).sum()),
                "prefill_ms": _quantiles(_spans(arrival, first)),
                "transfer_ms": _quantiles(_spans(first, moved)),
                "wait_ms": _quantiles(_spans(moved, joined)),
                "decode_ms": _quantiles(_spans(np.where(moved != NEVER, first, NEVER), done)),
            }
        )
    return rows


def _between(model: str | None, accounts: Sequence[Account]) -> list[dict[str, Any]]:
    """KV that has left the prefill pool and no decode replica has taken yet, at its most."""
    pools = accounts[0].plan.disaggregated
    assert pools is not None
    peak = 0
    for account in accounts:
        result = account.result
        moved = result.details["handed_over_ps"] != NEVER
        size = account.workload.prompt_tokens[moved] * pools.kv_bytes_per_token
        leaves = np.where(result.details["joined_ps"] != NEVER, result.details["joined_ps"], result.finished_ps)[moved]
        at = np.concatenate([result.first_token_ps[moved], leaves])
        change = np.concatenate([size, -size])
        order = np.lexsort((change, at))  # what leaves at an instant leaves before what comes
        peak = max(peak, int(np.cumsum(change[order]).max(initial=0)))
    return [
        {
            "model": model,
            "prefill_replicas": pools.prefill_replicas,
            "decode_replicas": pools.decode_replicas,
            "kv_bytes_most": peak,
        }
    ]


# ---- speculation ----


def _drafts(model: str | None, accounts: Sequence[Account]) -> list[dict[str, Any]]:
    """By tenant and type: what drafts gave and cost, and whom they held up."""
    rows = []
    names: list[tuple[str, str]] = sorted(
        {
            (one.workload.tenants[tenant], one.workload.types[kind])
            for one in accounts
            for tenant, kind in zip(one.workload.tenant.tolist(), one.workload.type.tolist(), strict=True)
        }
    )
    for tenant, kind in names:
        parts = []
        for one in accounts:
            work = one.workload
            if tenant in work.tenants and kind in work.types:
                parts.append((one, (work.tenant == work.tenants.index(tenant)) & (work.type == work.types.index(kind))))
        sums = {
            name: int(sum(float(one.result.details[name][chosen].sum(dtype=np.float64)) for one, chosen in parts))
            for name in ("wasted_ps", "held_up_ps", "imposed_ps")
        }
        counts = {
            name: sum(int(one.result.details[name][chosen].sum()) for one, chosen in parts)
            for name in ("drafted", "rejected", "decode_steps")
        }
        decoding = _spans(
            _gather(parts, lambda one: one.result.first_token_ps),
            _gather(parts, lambda one: np.where(one.result.status == OK, one.result.finished_ps, NEVER)),
        )
        accepted = counts["drafted"] - counts["rejected"]
        rows.append(
            {
                "model": model,
                "tenant": tenant,
                "type": kind,
                "requests": int(sum(chosen.sum() for _, chosen in parts)),
                "decode_steps": counts["decode_steps"],
                "drafted": counts["drafted"],
                "rejected": counts["rejected"],
                "tokens_a_step": _share(accepted + counts["decode_steps"], counts["decode_steps"]),
                "wasted_s": _seconds(sums["wasted_ps"]),
                "held_up_s": _seconds(sums["held_up_ps"]),
                "imposed_s": _seconds(sums["imposed_ps"]),
                "decoding_s": _seconds(float(decoding.sum(dtype=np.float64))),
            }
        )
    return rows


# ---- experts ----


def _spread(model: str | None, accounts: Sequence[Account]) -> list[dict[str, Any]]:
    """By tenant: TTFT quantiles with the spread and without it; null where so many were refused."""
    rows = []
    for tenant, parts in _by_name(accounts, lambda account: (account.workload.tenants, account.workload.tenant)):
        arrival = _gather(parts, lambda one: one.workload.arrival_ps)
        rows.append(
            {
                "model": model,
                "tenant": tenant,
                "requests": len(arrival),
                "ttft_ms": _quantiles(_ttfts(arrival, _gather(parts, lambda one: one.result.first_token_ps))),
                "ttft_ms_without": _quantiles(
                    _ttfts(arrival, _gather(parts, lambda one: one.without_spread.first_token_ps))
                ),
            }
        )
    return rows


# ---- precisions ----


def _precisions(model: str | None, accounts: Sequence[Account]) -> list[dict[str, Any]]:
    """By precision: what the prefix cache gave, and what it would have given without drops."""
    rows = []

    def of(account: Account) -> tuple[tuple[str, ...], Int64s]:
        assert account.workload.precision is not None
        return account.workload.precisions, account.workload.precision

    for name, parts in _by_name(accounts, of):
        served = _gather(parts, lambda one: one.result.scheduled_ps) != NEVER
        served_without = _gather(parts, lambda one: one.without_drops.scheduled_ps) != NEVER
        prompts = _gather(parts, lambda one: one.workload.prompt_tokens)
        cached = _gather(parts, lambda one: one.result.cached_tokens)[served]
        without = _gather(parts, lambda one: one.without_drops.cached_tokens)[served_without]
        rows.append(
            {
                "model": model,
                "precision": name,
                "requests": len(prompts),
                "switches": int(_gather(parts, lambda one: one.result.details["switched"]).sum()),
                "prompt_tokens": int(prompts[served].sum()),
                "cached_tokens": int(cached.sum()),
                "hit_rate": _share(int(cached.sum()), int(prompts[served].sum())),
                "hit_rate_without_drops": _share(int(without.sum()), int(prompts[served_without].sum())),
            }
        )
    return rows


# ---- small pieces ----

_Parts = Sequence[tuple[Account, NDArray[np.bool_]]]
_REFUSED: Final = 2**62


def _by_name(
    accounts: Sequence[Account], of: Callable[[Account], tuple[tuple[str, ...], Int64s]]
) -> list[tuple[str, _Parts]]:
    """Each name with the accounts that have requests of it, and which these are; sorted by name."""
    parts: dict[str, list[tuple[Account, NDArray[np.bool_]]]] = {}
    for account in accounts:
        names, column = of(account)
        for number in np.unique(column).tolist():
            parts.setdefault(names[number], []).append((account, column == number))
    return sorted(parts.items())


def _gather(parts: _Parts, of: Callable[[Account], Int64s]) -> Int64s:
    return np.concatenate([of(account)[chosen] for account, chosen in parts])


def _spans(since: Int64s, until: Int64s) -> Int64s:
    known = (since != NEVER) & (until != NEVER)
    spans: Int64s = (until - since)[known]
    return spans


def _ttfts(arrival: Int64s, first: Int64s) -> Int64s:
    """A request without a first token waits for ever."""
    return np.where(first == NEVER, _REFUSED, first - arrival)


def _quantiles(spans: Int64s) -> Mapping[str, float | None]:
    ordered = np.sort(spans)
    count = len(ordered)

    def at(q: int) -> float | None:
        if count == 0 or ordered[(q * count + 99) // 100 - 1] == _REFUSED:
            return None
        return int(ordered[(q * count + 99) // 100 - 1]) // PS_PER_US / 1000

    return {f"p{q}": at(q) for q in QUANTILES}


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _seconds(ps: float) -> float:
    return round(ps / PS_PER_SECOND, 6)
