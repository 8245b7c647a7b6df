"""Every windowed figure in plain Python: slow, one window and one request after another, nothing of the product in it.

Rows are dicts with instants in whole seconds; amounts are thousandths of tokens, floored as the definitions say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import Any

Row = dict[str, Any]
KINDS = ("prompt", "cached", "output")


@dataclass(frozen=True)
class Rules:
    window: int = 10
    spread: str = "phases"
    refusals: str = "miss"
    samples: dict[int, int] = field(default_factory=lambda: {50: 1, 90: 1, 99: 1})
    slo: dict[int, float] = field(default_factory=dict)
    price: dict[str, float] = field(default_factory=lambda: {"prompt": 1.0, "cached": 0.0, "output": 2.0})
    committed: dict[str, int] = field(default_factory=dict)
    weight: dict[str, float] = field(default_factory=dict)
    floor: str = "cv"
    reserve: float = 0.4
    eta: float = 0.5


def sizes(rows: list[Row], row: Row) -> dict[str, int]:
    """Tokens by kind; what is unknown is the tenant's median."""

    def median(name: str, kept: list[Row]) -> int:
        known = sorted(one[name] for one in kept if one["tenant"] == row["tenant"] and one[name] is not None)
        return (known[(len(known) - 1) // 2] + known[len(known) // 2]) // 2 if known else 0

    served = [one for one in rows if one["status"] != "rejected"]
    cached = row["cached_tokens"] or 0
    prompt, output = row["prompt_tokens"], row["output_tokens"]
    if prompt is None:
        prompt = median("prompt_tokens", rows)
    else:
        cached = min(cached, prompt)
    if output is None or row["status"] == "rejected":
        output = median("output_tokens", served)
    return {"prompt": max(0, prompt - cached), "cached": cached, "output": output}


def done(tokens: int, begin: int, end: int, instant: int) -> int:
    """Thousandths of ``tokens``, spread over begin..end, that are served before ``instant``."""
    if instant <= begin:
        return 0
    return 1000 * tokens if instant >= end else 1000 * tokens * (instant - begin) // (end - begin)


def phase(row: Row, kind: str, spread: str) -> tuple[int, int] | None:
    arrived, scheduled, first, finished = (
        row[name] for name in ("arrived_at", "scheduled_at", "first_token_at", "finished_at")
    )
    if row["status"] == "rejected":
        return None
    token = first
    if token is None and row["status"] == "ok":
        token = finished
    if token is None:
        return None
    begin = arrived if scheduled is None else scheduled
    end = first if finished is None else finished
    if spread == "decode":
        return token, end
    if kind != "output":
        return begin, token
    return (begin if first is None else token), end


def waits_until(row: Row) -> float:
    if row["scheduled_at"] is not None:
        return float(row["scheduled_at"])
    if row["first_token_at"] is not None:
        return float(row["first_token_at"])
    if row["status"] != "ok" and row["finished_at"] is not None:
        return float(row["finished_at"])
    return float("inf") if row["status"] == "unfinished" else float(row["arrived_at"])


def measure(rows: list[Row], rules: Rules) -> list[dict[str, Any]]:
    """One dict a window: the figures, and ``tenants`` and ``types`` by name."""
    instants = [row[n] for row in rows for n in ("arrived_at", "scheduled_at", "first_token_at", "finished_at")]
    end = max(one for one in instants if one is not None)
    first = min(row["arrived_at"] for row in rows) // rules.window
    tenants, kinds = sorted({row["tenant"] for row in rows}), sorted({row["type"] for row in rows})
    last_arrival = max(row["arrived_at"] for row in rows)
    windows: list[dict[str, Any]] = []
    for number in range(first, end // rules.window + 1):
        low, high = number * rules.window, (number + 1) * rules.window
        own = [row for row in rows if low <= row["arrived_at"] < high]
        window: dict[str, Any] = {"requests": len(own), "drain": low > last_arrival}
        by_tenant = {
            name: service([r for r in rows if r["tenant"] == name], rows, low, high, rules) for name in tenants
        }
        by_type = {name: service([r for r in rows if r["type"] == name], rows, low, high, rules) for name in kinds}
        weights = {name: fair_weight(name, rules) for name in tenants}
        window |= compliance(own, tenants, weights, end, rules)
        window |= shares(by_tenant, weights, rules)
        window["service_gap"] = gap(rows, by_tenant, weights, low, high)
        window["recompute_tax"] = tax(own)
        window["arrivals"] = spread_of_types(own, rows, kinds, rules)
        window |= type_shares(by_type, floors_before(windows, window, kinds, rules))
        windows.append(window)
    return windows


def fair_weight(name: str, rules: Rules) -> float:
    if name in rules.committed:
        return rules.committed[name] / (sum(rules.committed.values()) / len(rules.committed))
    return rules.weight.get(name, 1.0)


def service(part: list[Row], rows: list[Row], low: int, high: int, rules: Rules) -> dict[str, Any]:
    got = lack = 0.0
    backlog = False
    for row in part:
        tokens = sizes(rows, row)
        for kind in KINDS:
            span = phase(row, kind, rules.spread)
            if span is not None:
                begin, stop = span[0], max(span)
                served = done(tokens[kind], begin, stop, high) - done(tokens[kind], begin, stop, low)
                got += served * rules.price[kind] / 1000
        if row["arrived_at"] < high < waits_until(row):
            backlog = True
            for kind in KINDS:
                left = 1000 * tokens[kind]
                begun = row["scheduled_at"] is None and row["first_token_at"] is not None
                if begun and kind != "output" and rules.spread == "phases":
                    left -= done(tokens[kind], row["arrived_at"], row["first_token_at"], high)
                lack += left * rules.price[kind] / 1000
        if row["status"] == "rejected":
            at = row["arrived_at"] if row["finished_at"] is None else row["finished_at"]
            if low <= at < high:
                backlog = True
                lack += sum(tokens[kind] * rules.price[kind] for kind in KINDS)
    return {"served": got, "demand": got + lack, "backlog": backlog}


def compliance(own: list[Row], tenants: list[str], weights: dict[str, float], end: int, rules: Rules) -> dict[str, Any]:
    verdicts: dict[str, bool | None] = {}
    quantiles: dict[str, dict[int, float | None]] = {}
    for name in tenants:
        mine = [row for row in own if row["tenant"] == name]
        if not mine:
            continue
        judged: list[bool] = []
        known: list[float] = []
        for row in mine:
            if row["first_token_at"] is not None:
                known.append(row["first_token_at"] - row["arrived_at"])
            elif row["status"] in ("failed", "cancelled") or (row["status"] == "rejected" and rules.refusals == "miss"):
                known.append(float("inf"))
        for q, target in rules.slo.items():
            overdue = [
                float("inf")
                for row in mine
                if row["status"] == "unfinished" and row["first_token_at"] is None and end - row["arrived_at"] > target
            ]
            samples = sorted(known + overdue)
            if len(samples) >= rules.samples[q]:
                judged.append(samples[ceil(q * len(samples) / 100) - 1] <= target)
        verdicts[name] = all(judged) if judged else None
        ranked = sorted(known)
        quantiles[name] = {q: ranked[ceil(q * len(ranked) / 100) - 1] if ranked else None for q in (50, 90, 99)}
    sure = {name: passed for name, passed in verdicts.items() if passed is not None}
    return {
        "scr": sum(sure.values()) / len(sure) if sure else None,
        "scr_weighted": (
            sum(weights[name] for name in sure if sure[name]) / sum(weights[name] for name in sure) if sure else None
        ),
        "failing": [name for name in sorted(sure) if not sure[name]],
        "tenants_insufficient": len(verdicts) - len(sure),
        "pass": verdicts,
        "ttft": quantiles,
    }


def jain(values: list[float]) -> float | None:
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else None


def shares(by_tenant: dict[str, Row], weights: dict[str, float], rules: Rules) -> dict[str, Any]:
    """Water-filling by hand: whoever wants no more than a fair share of what is left gets all it wants."""
    left = sum(one["served"] for one in by_tenant.values())
    total = left
    open_ = {name for name, one in by_tenant.items() if one["demand"] > 0}
    owed: dict[str, float] = {}
    while open_:
        level = left / sum(weights[name] for name in open_)
        full = {name for name in open_ if by_tenant[name]["demand"] <= level * weights[name] * (1 + 1e-12)}
        for name in full or open_:
            owed[name] = by_tenant[name]["demand"] if full else level * weights[name]
        left -= sum(owed[name] for name in full)
        open_ -= full or set(open_)
    x = {name: by_tenant[name]["served"] / amount for name, amount in owed.items() if amount > 0}
    large = {name: x[name] for name in x if owed[name] >= 0.005 * total}
    raw = None
    if rules.committed:
        raw = jain([by_tenant.get(name, {"served": 0})["served"] / tokens for name, tokens in rules.committed.items()])
    return {
        "jfi": jain(list(x.values())),
        "jfi_raw": raw,
        "min_x": min(large.values()) if large else None,
        "tenants": {
            name: one | {"entitlement": owed.get(name, 0.0), "x": x.get(name)} for name, one in by_tenant.items()
        },
    }


def gap(rows: list[Row], by_tenant: dict[str, Row], weights: dict[str, float], low: int, high: int) -> float | None:
    """Instants are whole seconds: a tenant that waits in every second of the window waits all through it."""
    through = []
    for name in by_tenant:
        waits = [(row["arrived_at"], waits_until(row)) for row in rows if row["tenant"] == name]
        if all(any(begin <= second and second + 1 <= stop for begin, stop in waits) for second in range(low, high)):
            through.append(by_tenant[name]["served"] / weights[name])
    return max(through) - min(through) if len(through) > 1 else None


def tax(own: list[Row]) -> float | None:
    redone = computed = 0
    for row in own:
        if any(row[n] is None for n in ("recomputed_tokens", "first_token_at", "prompt_tokens", "output_tokens")):
            continue
        redone += row["recomputed_tokens"]
        computed += row["prompt_tokens"] - (row["cached_tokens"] or 0) + max(0, row["output_tokens"] - 1)
    return redone / (redone + computed) if redone + computed > 0 else None


def spread_of_types(
    own: list[Row], rows: list[Row], kinds: list[str], rules: Rules
) -> dict[str, tuple[float, ...]] | None:
    """Share of arrivals, cv and sigma of service cost by type; None without arrivals."""
    if not own:
        return None
    found = {}
    for name in kinds:
        costs = [
            sum(tokens * rules.price[kind] for kind, tokens in sizes(rows, row).items())
            for row in own
            if row["type"] == name
        ]
        mean = sum(costs) / len(costs) if costs else 0.0
        sigma = sqrt(sum((cost - mean) ** 2 for cost in costs) / len(costs)) if costs else 0.0
        found[name] = (len(costs) / len(own), sigma / mean if mean else 0.0, sigma)
    return found


def floors_before(windows: list[Row], window: Row, kinds: list[str], rules: Rules) -> dict[str, float]:
    earlier = [one["arrivals"] for one in windows if one["arrivals"] is not None]
    basis = earlier[-1] if earlier else window["arrivals"] or dict.fromkeys(kinds, (0.0, 0.0, 0.0))
    g: dict[str, float | None] = {}
    for name, (share, cv, sigma) in basis.items():
        if rules.floor == "cv":
            g[name] = (1 + cv) / (1 + rules.eta * share)
        elif rules.floor == "eta":
            g[name] = 1 / len(kinds) / (1 + rules.eta * share)
        else:
            g[name] = 1 / (sigma * share) if sigma * share > 0 else None
    known = [value for value in g.values() if value is not None]
    filled = {name: (max(known) if known else 1.0) if value is None else value for name, value in g.items()}
    return {name: rules.reserve * value / sum(filled.values()) for name, value in filled.items()}


def type_shares(by_type: dict[str, Row], rho: dict[str, float]) -> dict[str, Any]:
    total = sum(one["served"] for one in by_type.values())
    table: dict[str, Row] = {}
    for name, one in by_type.items():
        if one["demand"] <= 0:
            continue
        row: Row = {"floor": rho[name], "share": None, "ratio": None, "ratio_raw": None}
        row["leak"] = max(0.0, min(rho[name] * total, one["demand"]) - one["served"])
        if total > 0:
            row["share"] = one["served"] / total
            row["ratio_raw"] = row["share"] / rho[name]
            capped = min(rho[name], one["demand"] / total)
            row["ratio"] = row["share"] / capped
            if not (one["backlog"] and capped >= 0.005):
                row["ratio"] = max(1.0, row["ratio"])
        table[name] = row
    ratios = [row["ratio"] for row in table.values() if row["ratio"] is not None]
    raw = [one["served"] / total / rho[name] for name, one in by_type.items()] if total > 0 else []
    return {"types": table, "tfr": min(ratios, default=None), "tfr_raw": min(raw, default=None)}
