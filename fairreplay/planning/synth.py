"""Labelled synthetic traces: a multi-tenant, multi-type load, served by the sandbox, with incidents at known times.

Tenants have Zipf sizes, Gamma or Weibull inter-arrivals (the two families that describe the clients of a production
cloud: Xiang et al., "ServeGen", 2025) over windows of ten minutes with rates of their own, log-normal lengths by
request type, and a daily rhythm. Every tenant, and every tenant in every incident, draws from a stream of its own: no
draw ever shifts another's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gamma as gamma_function

from fairreplay.config.load import parse_config
from fairreplay.config.model import Config
from fairreplay.errors import UsageError, nearest
from fairreplay.planning.incidents import ASKED, KINDS, Incident, Kind, Traffic, unserved
from fairreplay.sandbox.plan import baseline_policy, shards, take_load
from fairreplay.sandbox.replay import run_shards
from fairreplay.trace.schema import COLUMNS, ORDER, SCHEMA, TIMESTAMP

Floats = NDArray[np.float64]

START: Final = datetime(2026, 1, 5, 8, tzinfo=UTC)
"""A Monday morning; the trace's first instant."""
MODEL: Final = "llama-3.1-8b"

US: Final = 1_000_000
MINUTE_US: Final = 60 * US
DAY_US: Final = 86_400 * US
RATE_WINDOW_US: Final = 600 * US
"""A tenant's rate holds for ten minutes, as in ServeGen's client traces."""

TENANTS_MIN: Final = 4
TENANTS_MAX: Final = 1000
MINUTES_MIN: Final = 10
MINUTES_MAX: Final = 90 * 24 * 60
INCIDENT_MINUTES_MIN: Final = 4
INCIDENT_MINUTES_MAX: Final = 10

REPLICA_RATE: Final = 2.0
"""Usual requests a second of one replica."""
REPLICA_WORK: Final = 0.46
"""Usual work of a replica: part of what it can do when it is full."""
MAX_NUM_SEQS: Final = 32
STEP_TIME: Final = {"base": 0.025, "prefill_token": 4e-4, "decode_sequence": 5e-4, "context_token": 1e-7}
"""Seconds, of a replica of speed 1; a mid-sized model on one older GPU."""
ZIPF: Final = 0.9
DAILY_AMPLITUDE: Final = 0.15
RATE_SIGMA: Final = 0.12
"""Log-normal spread of a tenant's rate from one rate window to the next."""
CV_RANGE: Final = (0.8, 1.5)
"""Coefficients of variation of inter-arrivals; most windows of ServeGen's busier clients lie inside."""
COMMITMENT_SIGMA: Final = 0.1
MIX_CONCENTRATION: Final = 40.0
"""Of the Dirichlet law of tenants' type mixes around the shares of ``TYPES``: about +-.08 for a share of one half."""
MONTH_S: Final = 30 * 86_400
OUTPUT_MAX: Final = 400


@dataclass(frozen=True)
class RequestType:
    """Share of the requests and log-normal lengths: medians in tokens, sigma of the logarithm, longest prompt."""

    name: str
    share: float
    prompt_median: float
    output_median: float
    sigma: float
    prompt_max: int


TYPES: Final = (
    RequestType("chat", 0.50, 180, 110, 0.6, 1200),
    RequestType("completion", 0.22, 140, 70, 0.6, 1200),
    RequestType("embed", 0.12, 120, 0, 0.5, 800),
    RequestType("long", 0.08, 1100, 110, 0.3, 1600),
    RequestType("batch", 0.08, 240, 180, 0.5, 1200),
)
TYPE_ORDER: Final = ("embed", "chat", "completion", "long", "batch")
"""What the policy ``type-priority`` of the starvation incident serves first and last."""

_TENANT, _INCIDENT = 0, 1
_ARRIVALS, _RATES, _KINDS, _LENGTHS, _CHARACTER = range(5)
"""Spawn keys: the second part of a tenant's stream says what is drawn from it."""


@dataclass(frozen=True)
class Scenario:
    """What a trace is made from; equal scenarios give equal bytes."""

    seed: int = 0
    minutes: int = 180
    tenants: int = 8
    rate: float = REPLICA_RATE
    """Usual requests a second over all tenants, mean over a day."""
    policy: str = "fcfs"
    """What production runs; before the first ``skew`` it rolls out ``vtc``, the policy that has weights."""
    incidents: tuple[str, ...] = tuple(KINDS)
    """Kinds, in the order of their times."""


@dataclass(frozen=True)
class Synthesis:
    """A served trace (canonical columns), the text of the ``fairreplay.toml`` it was served under, the labels."""

    trace: pl.DataFrame
    config: str
    labels: dict[str, Any]


@dataclass(frozen=True)
class _Tenant:
    """One tenant's character."""

    index: int
    name: str
    share: float
    """Of all usual requests."""
    family: str
    cv: float
    mix: Floats
    """Share of each type in its requests."""
    committed: int
    """Tokens a month."""
    weight: float
    """Usual weight in force: the commitment over the mean commitment."""


def check(scenario: Scenario) -> Scenario:
    """``scenario`` unchanged if a trace can be made from it.

    Raises:
        UsageError: a kind that is not known, or a number outside its range; says what to do.
    """
    for kind in scenario.incidents:
        if kind not in KINDS:
            raise UsageError(f"--incident {kind!r} is unknown; {nearest(kind, list(KINDS))}")
    if not TENANTS_MIN <= scenario.tenants <= TENANTS_MAX:
        raise UsageError(f"--tenants {scenario.tenants}: must be {TENANTS_MIN} to {TENANTS_MAX}")
    if not 0.01 <= scenario.rate <= 10_000:
        raise UsageError(f"--rate {scenario.rate:g}: must be 0.01 to 10000 requests a second")
    if scenario.policy not in ("fcfs", "vtc"):
        raise UsageError(f'--policy {scenario.policy!r}: must be "fcfs" or "vtc"')
    if not MINUTES_MIN <= scenario.minutes <= MINUTES_MAX:
        raise UsageError(f"--duration {scenario.minutes}m: must be {MINUTES_MIN}m to {MINUTES_MAX}m (90 days)")
    count = len(scenario.incidents)
    if count and _incident_minutes(_slot_minutes(scenario.minutes, count)) < INCIDENT_MINUTES_MIN:
        enough = next(
            m
            for m in range(10 * count, 12 * count + 20)
            if _incident_minutes(_slot_minutes(m, count)) >= INCIDENT_MINUTES_MIN
        )
        raise UsageError(
            f"--duration {scenario.minutes}m: too short for {count} incidents with quiet time between them; "
            f"give at least {enough}m, or fewer --incident"
        )
    return scenario


def synthesise(scenario: Scenario) -> Synthesis:
    """Draw the requests, serve them in the sandbox under the production config, and label what was injected.

    Raises:
        UsageError: see ``check``.
    """
    check(scenario)
    tenants = _tenants(scenario)
    incidents = _incidents(scenario, tenants)
    usual = _background(scenario, tenants)
    removed = {incident.name: _removed(incident, usual) for incident in incidents}
    added = {incident.name: _added(scenario, incident, number, tenants) for number, incident in enumerate(incidents)}
    gone = pl.concat(removed.values())["request_id"] if incidents else pl.Series([], dtype=pl.String)
    asked = pl.concat([usual.filter(~pl.col("request_id").is_in(gone.to_list())), *added.values()])
    text = config_text(scenario, tenants, incidents)
    trace = serve(unserved(_weighted(asked, tenants, incidents)), parse_config(text, "of the synthetic trace"))
    labels = _labels(
        scenario,
        tenants,
        incidents,
        added,
        {name: _weighted(requests, tenants, incidents) for name, requests in removed.items()},
    )
    return Synthesis(trace=trace, config=text, labels=labels)


def serve(requests: pl.DataFrame, config: Config) -> pl.DataFrame:
    """``requests`` (canonical columns) as production under ``config`` would have logged them."""
    load = take_load(requests)
    served = run_shards(load, shards(load, config, baseline_policy(config))).requests
    frame = pl.concat(
        [load.frame.drop(set(served.columns) & set(COLUMNS) - {"request_id"}), served.drop("request_id")],
        how="horizontal",
    )
    refused = pl.col("status") == "rejected"
    output = pl.when(refused).then(0).otherwise("output_tokens").cast(SCHEMA["output_tokens"]).alias("output_tokens")
    return frame.with_columns(output).select(pl.col(name).cast(SCHEMA[name]) for name in COLUMNS).sort(ORDER)


# ---- tenants ----


def _tenants(scenario: Scenario) -> tuple[_Tenant, ...]:
    """Largest first. Each commits to about what it usually sends."""
    sizes = 1.0 / np.arange(1, scenario.tenants + 1) ** ZIPF
    width = max(2, len(str(scenario.tenants)))
    mixes, drawn = [], []
    for index in range(scenario.tenants):
        stream = _stream(scenario, _TENANT, index, _CHARACTER)
        mixes.append(stream.dirichlet([MIX_CONCENTRATION * kind.share for kind in TYPES]))
        drawn.append((stream.random(), stream.uniform(*CV_RANGE), stream.standard_normal()))
    costs = np.array([_mean_cost(kind) for kind in TYPES])
    committed = [
        int(
            _two_digits(share * scenario.rate * float(mix @ costs) * MONTH_S * float(np.exp(COMMITMENT_SIGMA * normal)))
        )
        for share, mix, (_, _, normal) in zip(sizes / sizes.sum(), mixes, drawn, strict=True)
    ]
    mean = sum(committed) / len(committed)
    return tuple(
        _Tenant(
            index=index,
            name=f"tenant-{index + 1:0{width}d}",
            share=float(sizes[index] / sizes.sum()),
            family="gamma" if drawn[index][0] < 0.7 else "weibull",
            cv=drawn[index][1],
            mix=mixes[index],
            committed=committed[index],
            weight=round(committed[index] / mean, 3) or 0.001,
        )
        for index in range(scenario.tenants)
    )


def _mean_cost(kind: RequestType) -> float:
    """Expected tokens of one request, before the cut at the longest."""
    return float((kind.prompt_median + kind.output_median) * np.exp(kind.sigma**2 / 2))


def _work_s(kind: RequestType) -> float:
    """Expected seconds of a busy replica of speed 1 that one request takes; a step's base is shared by a full batch."""
    grows = float(np.exp(kind.sigma**2 / 2))
    decode_s = STEP_TIME["decode_sequence"] + STEP_TIME["base"] / MAX_NUM_SEQS
    return grows * (kind.prompt_median * STEP_TIME["prefill_token"] + kind.output_median * decode_s)


def _usual_work_s(scenario: Scenario, tenants: Sequence[_Tenant]) -> float:
    """Work that a second of the usual load brings."""
    works = np.array([_work_s(kind) for kind in TYPES])
    return sum(scenario.rate * tenant.share * float(tenant.mix @ works) for tenant in tenants)


def _two_digits(value: float) -> float:
    """As people write a commitment: two significant digits, at least one token."""
    return max(1.0, float(f"{value:.1e}"))


def _stream(scenario: Scenario, *key: int) -> np.random.Generator:
    """The random stream of ``key``, whatever other streams there are."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(scenario.seed, spawn_key=key)))


# ---- requests ----


def _background(scenario: Scenario, tenants: Sequence[_Tenant]) -> pl.DataFrame:
    """The usual requests of everybody over the whole period: ``_requests`` columns."""
    start_us = _start_us()
    end_us = start_us + scenario.minutes * MINUTE_US
    return pl.concat(
        _requests(scenario, tenant, (_TENANT, tenant.index), 1.0, start_us, end_us, tenant.mix) for tenant in tenants
    )


def _added(scenario: Scenario, incident: Incident, number: int, tenants: Sequence[_Tenant]) -> pl.DataFrame:
    """The requests that come on top while the incident lasts."""
    traffic = incident.traffic
    parts = [pl.DataFrame(schema=dict(_REQUEST_SCHEMA))]
    if traffic is None or traffic.factor <= 1:
        return parts[0]
    for tenant in tenants:
        if tenant.name not in traffic.tenants:
            continue
        allowed = [not traffic.types or kind.name in traffic.types for kind in TYPES]
        mix = np.where(allowed, tenant.mix, 0.0)
        extra = (traffic.factor - 1) * float(mix.sum())
        key = (_INCIDENT, number, tenant.index)
        parts.append(_requests(scenario, tenant, key, extra, incident.start_us, incident.end_us, mix / mix.sum()))
    return pl.concat(parts)


def _removed(incident: Incident, usual: pl.DataFrame) -> pl.DataFrame:
    """The usual requests that do not come while the incident lasts: each stays with probability ``factor``."""
    traffic = incident.traffic
    if traffic is None or traffic.factor >= 1:
        return usual.clear()
    during = pl.col("arrived_us").is_between(incident.start_us, incident.end_us, closed="left")
    # by a hash of the id, so that a request's fate hangs on nothing but itself
    lot = pl.col("request_id").map_elements(lambda name: _hash(f"quiet {name}") / 2**64, return_dtype=pl.Float64)
    return usual.filter(during & pl.col("tenant").is_in(traffic.tenants)).filter(lot >= traffic.factor)


_REQUEST_SCHEMA: Final = {
    "request_id": pl.String(),
    "tenant": pl.String(),
    "type": pl.String(),
    "arrived_us": pl.Int64(),
    "prompt_tokens": pl.Int64(),
    "output_tokens": pl.Int64(),
}


def _requests(
    scenario: Scenario, tenant: _Tenant, key: tuple[int, ...], factor: float, start_us: int, end_us: int, mix: Floats
) -> pl.DataFrame:
    """One tenant's requests in ``[start_us, end_us)`` at ``factor`` times its usual rate, types by ``mix``.

    Inter-arrivals are drawn at rate 1 and stretched by the rate in force, so bursts keep their shape as rates change.
    """
    edges = np.unique(np.append(np.arange(start_us, end_us, RATE_WINDOW_US, dtype=np.int64), end_us))
    middle_us = (edges[:-1] + edges[1:]) // 2
    wobble = np.exp(RATE_SIGMA * _stream(scenario, *key, _RATES).standard_normal(len(middle_us)) - RATE_SIGMA**2 / 2)
    rate = factor * scenario.rate * tenant.share * rhythm(middle_us) * wobble
    due_at_edges = np.concatenate([[0.0], np.cumsum(rate * np.diff(edges) / US)])
    due = _renewals(_stream(scenario, *key, _ARRIVALS), tenant, float(due_at_edges[-1]))
    offset_us = np.interp(due, due_at_edges, (edges - start_us).astype(np.float64))
    arrived_us = np.minimum(start_us + np.floor(offset_us).astype(np.int64), end_us - 1)
    count = len(arrived_us)
    kinds = np.searchsorted(np.cumsum(mix)[:-1], _stream(scenario, *key, _KINDS).random(count), side="right")
    normal = _stream(scenario, *key, _LENGTHS).standard_normal((count, 2))
    prompts = _lengths(normal[:, 0], kinds, [kind.prompt_median for kind in TYPES])
    outputs = _lengths(normal[:, 1], kinds, [kind.output_median for kind in TYPES])
    prompt_max = np.array([kind.prompt_max for kind in TYPES])[kinds]
    names = [kind.name for kind in TYPES]
    label = f"{scenario.seed} {' '.join(map(str, key))}"
    return pl.DataFrame(
        {
            "request_id": [f"req-{_hash(f'{label} {index}'):016x}" for index in range(count)],
            "tenant": [tenant.name] * count,
            "type": [names[kind] for kind in kinds.tolist()],
            "arrived_us": arrived_us,
            "prompt_tokens": np.clip(prompts, 1, prompt_max),
            "output_tokens": np.where(outputs > 0, np.clip(outputs, 2, OUTPUT_MAX), 0),
        },
        schema=dict(_REQUEST_SCHEMA),
    )


def rhythm(at_us: NDArray[np.int64]) -> Floats:
    """Factor on every rate by the hour of the day (UTC): lowest at midnight, highest at noon, mean 1."""
    return np.asarray(1.0 - DAILY_AMPLITUDE * np.cos(2 * np.pi * (at_us % DAY_US) / DAY_US), np.float64)


def _renewals(stream: np.random.Generator, tenant: _Tenant, until: float) -> Floats:
    """Instants below ``until`` of a renewal process of rate 1 with the tenant's family and spread."""
    if tenant.family == "gamma":
        shape, scale = tenant.cv**-2, tenant.cv**2
    else:
        shape = weibull_shape(tenant.cv)
        scale = 1 / float(gamma_function(1 + 1 / shape))
    parts: list[Floats] = []
    reached = 0.0
    while reached < until:
        gaps = stream.gamma(shape, scale, 1024) if tenant.family == "gamma" else scale * stream.weibull(shape, 1024)
        parts.append(reached + np.cumsum(gaps))
        reached = float(parts[-1][-1])
    instants = np.concatenate([np.zeros(0), *parts])
    return instants[instants < until]


def weibull_shape(cv: float) -> float:
    """Shape of the Weibull distribution whose standard deviation is ``cv`` times its mean (0.2 to 5)."""

    def excess(shape: float) -> float:
        return float(gamma_function(1 + 2 / shape) / gamma_function(1 + 1 / shape) ** 2) - 1 - cv**2

    return float(brentq(excess, 0.3, 10.0))


def _lengths(normal: Floats, kinds: NDArray[np.int64], medians: Sequence[float]) -> NDArray[np.int64]:
    sigma = np.array([kind.sigma for kind in TYPES])[kinds]
    lengths = np.array(medians)[kinds] * np.exp(sigma * normal)
    return np.asarray(np.rint(lengths), np.int64)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _weighted(requests: pl.DataFrame, tenants: Sequence[_Tenant], incidents: Sequence[Incident]) -> pl.DataFrame:
    """Requests with the columns ``ASKED``; the gateway stamps each with its tenant's weight when it arrives."""
    usual = {tenant.name: tenant.weight for tenant in tenants}
    weight = pl.col("tenant").replace_strict(usual, return_dtype=pl.Float64)
    for incident in incidents:
        if incident.weights:
            wrong = {tenant: during for tenant, (_, during) in incident.weights.items()}
            during = pl.col("arrived_us").is_between(incident.start_us, incident.end_us, closed="left")
            there = pl.col("tenant").replace_strict(wrong, default=weight, return_dtype=pl.Float64)
            weight = pl.when(during).then(there).otherwise(weight)
    return requests.with_columns(
        pl.lit(MODEL).alias("model"),
        pl.col("arrived_us").cast(TIMESTAMP).alias("arrived_at"),
        weight.alias("weight"),
    ).select(pl.col(name).cast(SCHEMA[name]) for name in ASKED)


# ---- incidents ----


def _incidents(scenario: Scenario, tenants: Sequence[_Tenant]) -> tuple[Incident, ...]:
    """Every injection at its time: a quiet start, then slots of equal length that begin with their incident."""
    made = []
    seen: dict[str, int] = {}
    slot = _slot_minutes(scenario.minutes, len(scenario.incidents))
    length = _incident_minutes(slot)
    lead = scenario.minutes - slot * len(scenario.incidents)
    policies = _policies(scenario)
    for number, name in enumerate(scenario.incidents):
        seen[name] = seen.get(name, 0) + 1
        kind = KINDS[name]
        start_us = _start_us() + (lead + number * slot) * MINUTE_US
        settings = dict(kind.settings)
        if "speed" in settings:
            settings["speed"] = round(speed(scenario, tenants) * settings["speed"], 4)
        made.append(
            Incident(
                name=f"{name}-{seen[name]}",
                kind=name,
                start_us=start_us,
                end_us=start_us + length * MINUTE_US,
                traffic=_traffic(scenario, number, tenants, start_us + length * MINUTE_US // 2),
                settings={
                    key: (_usual(scenario, tenants, policies[number])[key], value) for key, value in settings.items()
                },
                weights=_reversed_weights(tenants) if kind.reversed_weights else {},
            )
        )
    return tuple(made)


def _reversed_weights(tenants: Sequence[_Tenant]) -> dict[str, tuple[float, float]]:
    """Tenant -> (usual weight, the one that stands at its place in the reverse order), where the two differ."""
    upward = sorted(tenants, key=lambda tenant: (tenant.weight, tenant.name))
    pairs = {tenant.name: (tenant.weight, other.weight) for tenant, other in zip(upward, upward[::-1], strict=True)}
    return {name: pairs[name] for name in sorted(pairs) if pairs[name][0] != pairs[name][1]}


def _slot_minutes(minutes: int, count: int) -> int:
    """An incident and the quiet time after it. What the slots leave over is quiet time before the first."""
    return (minutes - max(10, minutes // 9)) // max(1, count)


def _incident_minutes(slot_minutes: int) -> int:
    return min(INCIDENT_MINUTES_MAX, slot_minutes * 2 // 5)


def _traffic(scenario: Scenario, number: int, tenants: Sequence[_Tenant], middle_us: int) -> Traffic | None:
    """Who sends how much: the factor that brings the demand of all to ``load``, or takes the kind's part away."""
    kind = KINDS[scenario.incidents[number]]
    if not kind.load and kind.keep == 1:
        return None
    senders = _senders(kind, tenants, _stream(scenario, _INCIDENT, number))
    names = tuple(tenant.name for tenant in senders)
    if not kind.load:
        return Traffic(names, (), kind.keep)
    works = np.array([(not kind.load_types or one.name in kind.load_types) * _work_s(one) for one in TYPES])
    senders_work = sum(scenario.rate * tenant.share * float(tenant.mix @ works) for tenant in senders)
    senders_part = senders_work / _usual_work_s(scenario, tenants)
    now = float(rhythm(np.array([middle_us]))[0])
    return Traffic(names, kind.load_types, round(1 + (kind.load / now - 1) / senders_part, 2))


def _senders(kind: Kind, tenants: Sequence[_Tenant], stream: np.random.Generator) -> tuple[_Tenant, ...]:
    half = len(tenants) // 2
    if kind.send == "pair":
        first, second = sorted(stream.permutation(half)[:2].tolist())
        return tenants[1 + first], tenants[1 + second]
    if kind.send == "small":
        return (tenants[int(stream.integers(half, len(tenants)))],)
    if kind.send == "large":
        return (tenants[int(stream.integers(0, max(1, half // 2)))],)
    return tuple(tenants)


# ---- the production behind it ----


def replicas(scenario: Scenario) -> int:
    """As many as carry the usual rate."""
    return max(1, round(scenario.rate / REPLICA_RATE))


def speed(scenario: Scenario, tenants: Sequence[_Tenant]) -> float:
    """Of each replica: so that the usual load is the same part of the capacity, whatever the rate and the mix drawn."""
    return max(0.001, round(_usual_work_s(scenario, tenants) / (REPLICA_WORK * replicas(scenario)), 3))


def _policies(scenario: Scenario) -> tuple[str, ...]:
    """The policy that production runs around each incident: ``vtc`` from the first that needs weights on."""
    first = next((n for n, kind in enumerate(scenario.incidents) if KINDS[kind].reversed_weights), None)
    return tuple(
        "vtc" if first is not None and number >= first else scenario.policy for number in range(len(scenario.incidents))
    )


def _usual(scenario: Scenario, tenants: Sequence[_Tenant], policy: str) -> dict[str, Any]:
    return {"policy": policy, "num_gpu_blocks": 2000, "speed": speed(scenario, tenants)}


def config_text(scenario: Scenario, tenants: Sequence[_Tenant], incidents: Sequence[Incident]) -> str:
    """The ``fairreplay.toml`` of the production that served the trace, with every change of it that was deployed."""
    slower = REPLICA_RATE * replicas(scenario) / scenario.rate  # fewer requests on a slower cluster: all takes longer
    slo = {"p50": round(1000 * slower), "p90": round(2500 * slower), "p99": round(5000 * slower)}
    lines = [
        "# The production behind a synthetic trace: what `fairreplay synth` served it with.",
        "[cluster]",
        f"replicas = {replicas(scenario)}",
        f"max_num_seqs = {MAX_NUM_SEQS}",
        "max_num_batched_tokens = 2048",
        "max_model_len = 4096",
        "block_size = 16",
        *(f"{key} = {_toml(value)}" for key, value in _usual(scenario, tenants, scenario.policy).items()),
        "enable_prefix_caching = false",
        "",
        "[cluster.step_time]",
        *(f"{key} = {_toml(value)}" for key, value in STEP_TIME.items()),
        "",
    ]
    for at_us, values in _changes(scenario, incidents):
        lines += ["[[cluster.changes]]", f"at = {_iso(at_us)}"]
        lines += [*(f"{key} = {_toml(value)}" for key, value in values.items()), ""]
    lines += ["[policies.type-priority]", f"order = {_toml(TYPE_ORDER)}", ""]
    lines += ["[defaults]", f"slo_ttft_ms = {{ {', '.join(f'{q} = {ms}' for q, ms in slo.items())} }}", ""]
    for tenant in tenants:
        lines += [f"[tenants.{tenant.name}]", f"committed_tokens_per_month = {tenant.committed:_}", ""]
    return "\n".join(lines[:-1]) + "\n"


def _changes(scenario: Scenario, incidents: Sequence[Incident]) -> list[tuple[int, dict[str, Any]]]:
    """What production deployed and when: into each incident, out of it, and a policy with weights where needed."""
    changes: list[tuple[int, dict[str, Any]]] = []
    policies = (scenario.policy, *_policies(scenario))
    for number, incident in enumerate(incidents):
        if policies[number + 1] != policies[number]:
            before_us = incidents[number - 1].end_us if number else _start_us()
            # on a whole minute, halfway through the quiet time before the incident
            changes.append(
                ((before_us + incident.start_us) // 2 // MINUTE_US * MINUTE_US, {"policy": policies[number + 1]})
            )
        if incident.settings:
            changes.append((incident.start_us, {key: during for key, (_, during) in incident.settings.items()}))
            changes.append((incident.end_us, {key: usual for key, (usual, _) in incident.settings.items()}))
    return changes


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


# ---- labels ----


def _labels(
    scenario: Scenario,
    tenants: Sequence[_Tenant],
    incidents: Sequence[Incident],
    added: Mapping[str, pl.DataFrame],
    removed: Mapping[str, pl.DataFrame],
) -> dict[str, Any]:
    """``labels.json``: what was injected, exactly; ``incidents.undone`` takes it back."""
    return {
        "version": 1,
        "seed": scenario.seed,
        "minutes": scenario.minutes,
        "rate": scenario.rate,
        "policy": scenario.policy,
        "model": MODEL,
        "start": _iso(_start_us()),
        "end": _iso(_start_us() + scenario.minutes * MINUTE_US),
        "tenants": [tenant.name for tenant in tenants],
        "incidents": [_label(scenario, incident) for incident in incidents],
        "requests": {
            incident.name: {
                "added": added[incident.name].sort("arrived_us", "request_id")["request_id"].to_list(),
                "removed": removed[incident.name]
                .sort("arrived_at", "request_id")
                .with_columns(pl.col("arrived_at").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"))
                .to_dicts(),
            }
            for incident in incidents
        },
    }


def _label(scenario: Scenario, incident: Incident) -> dict[str, Any]:
    kind, traffic = KINDS[incident.kind], incident.traffic
    return {
        "id": incident.name,
        "kind": incident.kind,
        "cause": kind.cause,
        "says": kind.says,
        "start": _iso(incident.start_us),
        "end": _iso(incident.end_us),
        "tenants": list(incident.tenants),
        "types": list(kind.hit_types),
        "metrics": list(kind.metrics),
        "seed": scenario.seed,
        "injection": {
            "traffic": None if traffic is None else asdict(traffic),
            "settings": {key: {"usual": usual, "during": during} for key, (usual, during) in incident.settings.items()},
            "weights": {
                tenant: {"usual": usual, "during": during} for tenant, (usual, during) in incident.weights.items()
            },
        },
    }


def _start_us() -> int:
    return int(START.timestamp()) * US


def _iso(at_us: int) -> str:
    return f"{START + timedelta(microseconds=at_us - _start_us()):%Y-%m-%dT%H:%M:%SZ}"
