"""Labelled synthetic traces: the load of a ``World``, served by the sandbox, with incidents at known times.

A trace is a quiet start, then slots of equal length that begin with their incident; incidents of one slot happen at
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Final

import numpy as np
import polars as pl

from fairreplay.config.load import parse_config
from fairreplay.errors import UsageError, nearest
from fairreplay.planning.incidents import KINDS, Incident, Kind, Traffic, undone
from fairreplay.planning.serving import ASKED, serve, unserved
from fairreplay.planning.victims import victims
from fairreplay.planning.world import (
    INCIDENT,
    MINUTE_US,
    REQUEST_SCHEMA,
    START,
    TENANT,
    TYPE_ORDER,
    US,
    Demand,
    RequestType,
    Tenant,
    World,
    grows,
    requests,
    rhythm,
    stable_hash,
    stream,
    tenants,
)
from fairreplay.trace.schema import SCHEMA, TIMESTAMP

MODEL: Final = "llama-3.1-8b"

TENANTS_MIN: Final = 4
TENANTS_MAX: Final = 1000
MINUTES_MIN: Final = 10
MINUTES_MAX: Final = 90 * 24 * 60
INCIDENT_MINUTES_MIN: Final = 4
INCIDENT_MINUTES_MAX: Final = 10
SLOT_MINUTES_MIN: Final = 10

REPLICA_RATE: Final = 2.0
"""Usual requests a second of one replica."""
STEP_TIME: Final = {"base": 0.025, "prefill_token": 4e-4, "decode_sequence": 5e-4, "context_token": 1e-7}
"""Seconds, of a replica of speed 1; a mid-sized model on one older GPU."""
TOGETHER: Final = "+"
"""Joins the kinds that happen at once."""


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
    """Kinds in the order of their times, or several joined by ``+`` for a slot in which they happen at once."""
    kinds: Mapping[str, Kind] = field(default_factory=lambda: KINDS)
    """What the kinds do."""
    world: World = field(default_factory=World)
    lead_minutes: int | None = None
    """Quiet time before the first incident; by default about a ninth of the trace."""
    incident_minutes: int | None = None
    """Length of each incident; by default two fifths of its slot, at most ten minutes."""


@dataclass(frozen=True)
class Synthesis:
    """A served trace (canonical columns), the text of the ``fairreplay.toml`` beside it, the labels.

    The trace was served under the config and the changes that the labels call unlisted.
    """

    trace: pl.DataFrame
    config: str
    labels: dict[str, Any]


def check(scenario: Scenario) -> Scenario:
    """``scenario`` unchanged if a trace can be made from it.

    Raises:
        UsageError: a kind that is not known, kinds that do not go together, or a number outside its range; says what
            to do.
    """
    for slot in scenario.incidents:
        _check_slot(scenario, slot)
    if not TENANTS_MIN <= scenario.tenants <= TENANTS_MAX:
        raise UsageError(f"--tenants {scenario.tenants}: must be {TENANTS_MIN} to {TENANTS_MAX}")
    if not 0.01 <= scenario.rate <= 10_000:
        raise UsageError(f"--rate {scenario.rate:g}: must be 0.01 to 10000 requests a second")
    if scenario.policy not in ("fcfs", "vtc"):
        raise UsageError(f'--policy {scenario.policy!r}: must be "fcfs" or "vtc"')
    if not MINUTES_MIN <= scenario.minutes <= MINUTES_MAX:
        raise UsageError(f"--duration {scenario.minutes}m: must be {MINUTES_MIN}m to {MINUTES_MAX}m (90 days)")
    if scenario.incidents and not _fits(scenario, scenario.minutes):
        enough = next(minutes for minutes in range(scenario.minutes, MINUTES_MAX) if _fits(scenario, minutes))
        raise UsageError(
            f"--duration {scenario.minutes}m: too short for {len(scenario.incidents)} incidents with quiet time "
            f"between them; give at least {enough}m, or fewer --incident"
        )
    return scenario


def _check_slot(scenario: Scenario, slot: str) -> None:
    names = slot.split(TOGETHER)
    for name in names:
        if name not in scenario.kinds:
            raise UsageError(f"--incident {slot!r}: {name!r} is unknown; {nearest(name, list(scenario.kinds))}")
    kinds = [scenario.kinds[name] for name in names]
    keys = [key for kind in kinds for key in kind.settings]
    if any(kind.reversed_weights for kind in kinds):
        keys.append("policy")  # a skew needs one that has weights
        keys += ["weights"] * (sum(kind.reversed_weights for kind in kinds) - 1)
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice or (len(names) > 1 and "weights" in keys):
        raise UsageError(f"--incident {slot!r}: both set {twice[0] if twice else 'weights'}; choose kinds that do not")


def synthesise(scenario: Scenario) -> Synthesis:
    """Draw the requests, serve them in the sandbox under the production config, and label what was injected.

    Raises:
        UsageError: see ``check``.
    """
    check(scenario)
    made = tenants(scenario.world, scenario.seed, scenario.tenants, scenario.rate)
    incidents = _incidents(scenario, made)
    usual = _background(scenario, made)
    removed = {incident.name: _removed(incident, usual) for incident in incidents}
    added = {incident.name: _added(scenario, incident, number, made) for number, incident in enumerate(incidents)}
    gone = pl.concat(removed.values())["request_id"] if incidents else pl.Series([], dtype=pl.String)
    asked = pl.concat([usual.filter(~pl.col("request_id").is_in(gone.to_list())), *added.values()])
    text = config_text(scenario, made, incidents)
    labels = _labels(
        scenario,
        made,
        incidents,
        added,
        {name: _weighted(scenario, back, made, incidents) for name, back in removed.items()},
    )
    config = parse_config(text, "of the synthetic trace")
    whole = unserved(_weighted(scenario, asked, made, incidents))
    trace = serve(*undone(whole, config, labels, []))
    for label in labels["incidents"]:
        if label["kind"] == "noisy-neighbour":
            label["victims"] = victims(trace, config, labels, label["id"])
    return Synthesis(trace=trace, config=text, labels=labels)


# ---- requests ----


def _background(scenario: Scenario, made: Sequence[Tenant]) -> pl.DataFrame:
    """The usual requests of everybody over the whole period: ``REQUEST_SCHEMA``."""
    world = scenario.world
    end_us = world.start_us + scenario.minutes * MINUTE_US
    return pl.concat(
        requests(
            world,
            scenario.seed,
            tenant,
            (TENANT, tenant.index),
            Demand(world.start_us, end_us, scenario.rate * tenant.share, tenant.mix),
        )
        for tenant in made
    )


def _added(scenario: Scenario, incident: Incident, number: int, made: Sequence[Tenant]) -> pl.DataFrame:
    """The requests that come on top while the incident lasts."""
    traffic, types = incident.traffic, scenario.world.types
    parts = [pl.DataFrame(schema=REQUEST_SCHEMA)]
    if traffic is None or traffic.factor <= 1:
        return parts[0]
    for tenant in made:
        if tenant.name not in traffic.tenants:
            continue
        allowed = [not traffic.types or kind.name in traffic.types for kind in types]
        mix = np.where(allowed, tenant.mix, 0.0)
        rate = scenario.rate * tenant.share * (traffic.factor - 1) * float(mix.sum())
        demand = Demand(incident.start_us, incident.end_us, rate, mix / mix.sum(), traffic.ramp)
        parts.append(requests(scenario.world, scenario.seed, tenant, (INCIDENT, number, tenant.index), demand))
    return pl.concat(parts)


def _removed(incident: Incident, usual: pl.DataFrame) -> pl.DataFrame:
    """The usual requests that do not come while the incident lasts: each stays with probability ``factor``."""
    traffic = incident.traffic
    if traffic is None or traffic.factor >= 1:
        return usual.clear()
    during = pl.col("arrived_us").is_between(incident.start_us, incident.end_us, closed="left")
    # by a hash of the id, so that a request's fate hangs on nothing but itself
    lot = pl.col("request_id").map_elements(lambda name: stable_hash(f"quiet {name}") / 2**64, return_dtype=pl.Float64)
    return usual.filter(during & pl.col("tenant").is_in(traffic.tenants)).filter(lot >= traffic.factor)


def _weighted(
    scenario: Scenario, asked: pl.DataFrame, made: Sequence[Tenant], incidents: Sequence[Incident]
) -> pl.DataFrame:
    """Requests with the columns ``ASKED``; the gateway stamps each with its tenant's weight when it arrives.

    And with its type's priority, from the first instant on, where a policy of the trace will heed it.
    """
    usual = {tenant.name: tenant.weight for tenant in made}
    weight = pl.col("tenant").replace_strict(usual, return_dtype=pl.Float64)
    for incident in incidents:
        if incident.weights:
            wrong = {tenant: during for tenant, (_, during) in incident.weights.items()}
            during = pl.col("arrived_us").is_between(incident.start_us, incident.end_us, closed="left")
            there = pl.col("tenant").replace_strict(wrong, default=weight, return_dtype=pl.Float64)
            weight = pl.when(during).then(there).otherwise(weight)
    priority = pl.lit(None, SCHEMA["priority"])
    if any(scenario.kinds[incident.kind].stamped for incident in incidents):
        by_type = {kind.name: kind.priority for kind in scenario.world.types}
        priority = pl.col("type").replace_strict(by_type, return_dtype=SCHEMA["priority"])
    return asked.with_columns(
        pl.lit(MODEL).alias("model"),
        pl.col("arrived_us").cast(TIMESTAMP).alias("arrived_at"),
        weight.alias("weight"),
        priority.alias("priority"),
    ).select(pl.col(name).cast(SCHEMA[name]) for name in ASKED)


# ---- incidents ----


def _incidents(scenario: Scenario, made: Sequence[Tenant]) -> tuple[Incident, ...]:
    """Every injection at its time."""
    found: list[Incident] = []
    seen: dict[str, int] = {}
    count = len(scenario.incidents)
    slot_minutes = _slot_minutes(scenario, scenario.minutes)
    length = _incident_minutes(scenario, slot_minutes)
    lead = scenario.minutes - slot_minutes * count if scenario.lead_minutes is None else scenario.lead_minutes
    policies = _policies(scenario)
    for slot, together in enumerate(scenario.incidents):
        for name in together.split(TOGETHER):
            seen[name] = seen.get(name, 0) + 1
            kind = scenario.kinds[name]
            start_us = scenario.world.start_us + (lead + slot * slot_minutes) * MINUTE_US
            settings = dict(kind.settings)
            if "speed" in settings:
                settings["speed"] = round(speed(scenario, made) * settings["speed"], 4)
            usual = _usual(scenario, made, policies[slot])
            found.append(
                Incident(
                    name=f"{name}-{seen[name]}",
                    kind=name,
                    slot=slot,
                    start_us=start_us,
                    end_us=start_us + length * MINUTE_US,
                    traffic=_traffic(scenario, kind, len(found), made, start_us + length * MINUTE_US // 2),
                    settings={key: (usual[key], value) for key, value in settings.items()},
                    weights=_reversed_weights(made) if kind.reversed_weights else {},
                )
            )
    return tuple(found)


def _reversed_weights(made: Sequence[Tenant]) -> dict[str, tuple[float, float]]:
    """Tenant -> (usual weight, the one that stands at its place in the reverse order), where the two differ."""
    upward = sorted(made, key=lambda tenant: (tenant.weight, tenant.name))
    pairs = {tenant.name: (tenant.weight, other.weight) for tenant, other in zip(upward, upward[::-1], strict=True)}
    return {name: pairs[name] for name in sorted(pairs) if pairs[name][0] != pairs[name][1]}


def _slot_minutes(scenario: Scenario, minutes: int) -> int:
    """An incident and the quiet time after it. What the slots leave over is quiet time before the first."""
    lead = max(10, minutes // 9) if scenario.lead_minutes is None else scenario.lead_minutes
    return (minutes - lead) // max(1, len(scenario.incidents))


def _incident_minutes(scenario: Scenario, slot_minutes: int) -> int:
    return scenario.incident_minutes or min(INCIDENT_MINUTES_MAX, slot_minutes * 2 // 5)


def _fits(scenario: Scenario, minutes: int) -> bool:
    slot = _slot_minutes(scenario, minutes)
    return INCIDENT_MINUTES_MIN <= _incident_minutes(scenario, slot) <= slot


def _traffic(scenario: Scenario, kind: Kind, number: int, made: Sequence[Tenant], middle_us: int) -> Traffic | None:
    """Who sends how much: the factor that brings the demand of all to ``load``, or takes the kind's part away."""
    if not kind.load and kind.keep == 1:
        return None
    senders = _senders(kind, made, stream(scenario.seed, INCIDENT, number))
    names = tuple(tenant.name for tenant in senders)
    if not kind.load:
        return Traffic(names, (), kind.keep)
    works = np.array(
        [(not kind.load_types or one.name in kind.load_types) * _work_s(scenario, one) for one in scenario.world.types]
    )
    senders_work = sum(scenario.rate * tenant.share * float(tenant.mix @ works) for tenant in senders)
    senders_part = senders_work / _usual_work_s(scenario, made)
    now = float(rhythm(scenario.world, np.array([middle_us]))[0])
    return Traffic(names, kind.load_types, round(1 + (kind.load / now - 1) / senders_part, 2), kind.ramp)


def _senders(kind: Kind, made: Sequence[Tenant], own: np.random.Generator) -> tuple[Tenant, ...]:
    half = len(made) // 2
    if kind.send == "pair":
        first, second = sorted(own.permutation(half)[:2].tolist())
        return made[1 + first], made[1 + second]
    if kind.send == "small":
        return (made[int(own.integers(half, len(made)))],)
    if kind.send == "large":
        return (made[int(own.integers(0, max(1, half // 2)))],)
    return tuple(made)


# ---- the production behind it ----


def _work_s(scenario: Scenario, kind: RequestType) -> float:
    """Expected seconds of a busy replica of speed 1 that one request takes; a step's base is shared by a full batch."""
    world = scenario.world
    decode_s = STEP_TIME["decode_sequence"] + STEP_TIME["base"] / world.max_num_seqs
    tokens_s = kind.prompt_median * STEP_TIME["prefill_token"] + kind.output_median * decode_s
    return grows(world.law, kind.sigma) * tokens_s


def _usual_work_s(scenario: Scenario, made: Sequence[Tenant]) -> float:
    """Work that a second of the usual load brings."""
    works = np.array([_work_s(scenario, kind) for kind in scenario.world.types])
    return sum(scenario.rate * tenant.share * float(tenant.mix @ works) for tenant in made)


def replicas(scenario: Scenario) -> int:
    """As many as carry the usual rate."""
    return max(1, round(scenario.rate / REPLICA_RATE))


def speed(scenario: Scenario, made: Sequence[Tenant]) -> float:
    """Of each replica: so that the usual load is the same part of the capacity, whatever the rate and the mix drawn."""
    return max(0.001, round(_usual_work_s(scenario, made) / (scenario.world.work * replicas(scenario)), 3))


def _policies(scenario: Scenario) -> tuple[str, ...]:
    """The policy that production runs around each slot: ``vtc`` from the first that needs weights on."""
    needs = [any(scenario.kinds[name].reversed_weights for name in slot.split(TOGETHER)) for slot in scenario.incidents]
    first = needs.index(True) if True in needs else len(needs)
    return tuple("vtc" if slot >= first else scenario.policy for slot in range(len(needs)))


def _usual(scenario: Scenario, made: Sequence[Tenant], policy: str) -> dict[str, Any]:
    return {"policy": policy, "num_gpu_blocks": scenario.world.num_gpu_blocks, "speed": speed(scenario, made)}


def config_text(scenario: Scenario, made: Sequence[Tenant], incidents: Sequence[Incident]) -> str:
    """The ``fairreplay.toml`` beside the trace: the production that served it, with every change that is listed."""
    # fewer requests on a slower cluster: all takes longer
    slower = REPLICA_RATE * replicas(scenario) / scenario.rate * scenario.world.slo_factor
    slo = {"p50": round(1000 * slower), "p90": round(2500 * slower), "p99": round(5000 * slower)}
    lines = [
        "# The production behind a synthetic trace: what `fairreplay synth` served it with.",
        "[cluster]",
        f"replicas = {replicas(scenario)}",
        f"max_num_seqs = {scenario.world.max_num_seqs}",
        "max_num_batched_tokens = 2048",
        "max_model_len = 4096",
        "block_size = 16",
        *(f"{key} = {_toml(value)}" for key, value in _usual(scenario, made, scenario.policy).items()),
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
    for tenant in made:
        lines += [f"[tenants.{tenant.name}]", f"committed_tokens_per_month = {tenant.committed:_}", ""]
    return "\n".join(lines[:-1]) + "\n"


def _changes(scenario: Scenario, incidents: Sequence[Incident]) -> list[tuple[int, dict[str, Any]]]:
    """What production deployed and when: into each incident, out of it, and a policy with weights where needed."""
    changes: list[tuple[int, dict[str, Any]]] = []
    policies = (scenario.policy, *_policies(scenario))
    before_us = scenario.world.start_us
    for number, incident in enumerate(incidents):
        is_first = number == 0 or incidents[number - 1].slot != incident.slot
        if is_first and policies[incident.slot + 1] != policies[incident.slot]:
            # on a whole minute, halfway through the quiet time before the incident
            halfway_us = (before_us + incident.start_us) // 2 // MINUTE_US * MINUTE_US
            changes.append((halfway_us, {"policy": policies[incident.slot + 1]}))
        if incident.settings and scenario.kinds[incident.kind].listed:
            changes.append((incident.start_us, {key: during for key, (_, during) in incident.settings.items()}))
            changes.append((incident.end_us, {key: usual for key, (usual, _) in incident.settings.items()}))
        before_us = incident.end_us
    return sorted(changes, key=lambda change: change[0])


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


# ---- labels ----


def _labels(
    scenario: Scenario,
    made: Sequence[Tenant],
    incidents: Sequence[Incident],
    added: Mapping[str, pl.DataFrame],
    removed: Mapping[str, pl.DataFrame],
) -> dict[str, Any]:
    """``labels.json``: what was injected, exactly; ``incidents.undone`` takes it back."""
    world = scenario.world
    return {
        "version": 1,
        "seed": scenario.seed,
        "minutes": scenario.minutes,
        "rate": scenario.rate,
        "policy": scenario.policy,
        "model": MODEL,
        "start": _iso(world.start_us),
        "end": _iso(world.start_us + scenario.minutes * MINUTE_US),
        "tenants": [tenant.name for tenant in made],
        "incidents": [_label(scenario, incident, incidents) for incident in incidents],
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


def _label(scenario: Scenario, incident: Incident, incidents: Sequence[Incident]) -> dict[str, Any]:
    kind, traffic = scenario.kinds[incident.kind], incident.traffic
    return {
        "id": incident.name,
        "kind": incident.kind,
        "cause": kind.cause or None,
        "says": kind.says,
        "start": _iso(incident.start_us),
        "end": _iso(incident.end_us),
        "with": [other.name for other in incidents if other.slot == incident.slot and other.name != incident.name],
        "tenants": list(incident.tenants),
        "types": list(kind.hit_types),
        "metrics": list(kind.metrics),
        "seed": scenario.seed,
        "injection": {
            "causes": kind.causes(),
            "listed": kind.listed,
            "traffic": None if traffic is None else asdict(traffic),
            "settings": {key: {"usual": usual, "during": during} for key, (usual, during) in incident.settings.items()},
            "weights": {
                tenant: {"usual": usual, "during": during} for tenant, (usual, during) in incident.weights.items()
            },
        },
    }


def _iso(at_us: int) -> str:
    return f"{START + timedelta(microseconds=at_us - int(START.timestamp()) * US):%Y-%m-%dT%H:%M:%SZ}"
