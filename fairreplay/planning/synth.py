"""Labelled synthetic traces: a multi-tenant, multi-type load, served by the sandbox, with incidents at known times.

Tenants have Zipf sizes, Gamma or Weibull inter-arrivals (the two families that describe clients of a production cloud,
see "ServeGen", 2025), log-normal lengths by request type, and a daily rhythm. Each tenant draws from a stream of its
own, so that one tenant's draws never shift another's, and each incident from streams of its own beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import polars as pl

from fairreplay.config.load import parse_config
from fairreplay.config.model import Config
from fairreplay.errors import UsageError
from fairreplay.planning.incidents import KINDS, Incident
from fairreplay.sandbox.plan import shards, take_load
from fairreplay.sandbox.replay import run_shards
from fairreplay.trace.schema import COLUMNS, ORDER, SCHEMA

START: Final = datetime(2026, 1, 5, tzinfo=UTC)
"""A Monday; the trace's first instant."""

US: Final = 1_000_000
MINUTE_US: Final = 60 * US
DAY_S: Final = 86_400.0
MODEL: Final = "synth-8b"
MONTHLY_TOKENS: Final = 2_000_000_000


@dataclass(frozen=True)
class RequestType:
    """Log-normal lengths of one request type: median tokens and sigma of the logarithm, cut at ``longest``."""

    name: str
    share: float
    prompt_median: float
    output_median: float
    sigma: float
    longest: int


TYPES: Final = (
    RequestType("chat", 0.50, 220, 70, 0.6, 1200),
    RequestType("completion", 0.22, 160, 50, 0.6, 1200),
    RequestType("embed", 0.12, 120, 0, 0.5, 800),
    RequestType("long", 0.08, 1100, 90, 0.3, 1600),
    RequestType("batch", 0.08, 300, 120, 0.5, 1200),
)
TYPE_ORDER: Final = ("embed", "chat", "completion", "batch", "long")
"""What the starvation incident's ``type-priority`` serves first and last."""


@dataclass(frozen=True)
class Scenario:
    """Everything a trace is made from; equal scenarios give equal bytes."""

    seed: int
    tenants: int
    rate: float
    """Mean requests a second over all tenants, before any incident."""
    duration_us: int
    incidents: tuple[Incident, ...]

    def without(self, incident: Incident) -> Scenario:
        """The same scenario with one injection undone."""
        return replace(self, incidents=tuple(other for other in self.incidents if other != incident))


@dataclass(frozen=True)
class Synthesis:
    """A served trace, the config that production ran with, and the labels."""

    trace: pl.DataFrame
    """Canonical columns."""
    config: str
    """Text of a ``fairreplay.toml``."""
    labels: dict[str, object]


def scenario(
    seed: int, kinds: Sequence[str], tenants: int, rate: float, incident_minutes: int, quiet_minutes: int
) -> Scenario:
    """A scenario with one incident of each of ``kinds``, in this order, quiet time before, between and after.

    Raises:
        UsageError: an unknown kind, or a number outside its range.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"--incident {kind}: unknown; known: {', '.join(KINDS)}")
    if not 4 <= tenants <= 1000:
        raise UsageError(f"--tenants {tenants}: must be 4 to 1000")
    if not 0 < rate <= 10_000:
        raise UsageError(f"--rate {rate:g}: must be above 0 and at most 10000 requests a second")
    if incident_minutes < 1 or quiet_minutes < 1:
        raise UsageError("--incident-minutes and --quiet-minutes must be at least 1")
    length, quiet = incident_minutes * MINUTE_US, quiet_minutes * MINUTE_US
    starts = [quiet + index * (length + quiet) for index in range(len(kinds))]
    incidents = tuple(Incident(kind, start, start + length) for kind, start in zip(kinds, starts, strict=True))
    duration = quiet + len(kinds) * (length + quiet)
    return Scenario(seed=seed, tenants=tenants, rate=rate, duration_us=duration, incidents=incidents)


def synthesise(plan: Scenario) -> Synthesis:
    """Draw the requests, serve them in the sandbox under the production config, and label the incidents.

    The trace carries what production would have logged: times, preemptions, recomputed tokens, weights in force.
    Changes that production does not know of act in the sandbox and stand in the labels alone.
    """
    names = tenant_names(plan.tenants)
    shares = tenant_shares(plan.tenants)
    in_force = parse_config(config_text(plan, names, unlisted=True), "synthetic config")
    arrived = _arrivals(plan, names, shares)
    return Synthesis(
        trace=_serve(arrived, in_force),
        config=config_text(plan, names, unlisted=False),
        labels=_labels(plan, names),
    )


def tenant_names(count: int) -> tuple[str, ...]:
    """``team-00`` is the largest."""
    width = len(str(count - 1))
    return tuple(f"team-{index:0{max(2, width)}d}" for index in range(count))


def tenant_shares(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Zipf sizes (exponent 0.8), adding up to 1."""
    sizes = 1.0 / np.arange(1, count + 1) ** 0.8
    return np.asarray(sizes / sizes.sum(), np.float64)


def _culprits(plan: Scenario, incident: Incident) -> tuple[int, ...]:
    """Tenants from the middle of the size order on: big enough to matter, small enough that it is a surprise."""
    count = incident.injection.culprits
    middle = plan.tenants // 2
    return tuple((middle + index) % plan.tenants for index in range(count))


# ---- requests ----


def _arrivals(plan: Scenario, names: Sequence[str], shares: Iterable[float]) -> pl.DataFrame:
    """Every request as it arrives, canonical columns, nothing served yet."""
    parts: list[pl.DataFrame] = []
    for tenant, share in enumerate(shares):
        base = _stream(plan, tenant, 0, plan.rate * float(share), 0, plan.duration_us)
        parts.append(_mute(plan, tenant, base))
        for number, incident in enumerate(plan.incidents, start=1):
            injection = incident.injection
            growth = injection.contention - 1.0
            if tenant in _culprits(plan, incident):
                growth += max(0.0, injection.demand - 1.0)
            if growth > 0:
                rate = plan.rate * float(share) * growth
                parts.append(_stream(plan, tenant, number, rate, incident.start_us, incident.end_us))
    rows = pl.concat(parts).sort("arrived_us", "tenant", "stream", "number")
    weights = _weights_in_force(plan, rows)
    return rows.select(
        pl.format("r{}", pl.int_range(pl.len()).cast(pl.String).str.zfill(7)).alias("request_id"),
        pl.col("tenant").replace_strict(dict(enumerate(names)), return_dtype=pl.String),
        pl.col("type").replace_strict({i: kind.name for i, kind in enumerate(TYPES)}, return_dtype=pl.String),
        pl.lit(MODEL).alias("model"),
        pl.lit(None, pl.String).alias("replica"),
        (pl.lit(START) + pl.duration(microseconds=pl.col("arrived_us"))).cast(SCHEMA["arrived_at"]).alias("arrived_at"),
        pl.col("prompt_tokens").cast(pl.UInt32),
        pl.col("output_tokens").cast(pl.UInt32),
        pl.lit("ok").alias("status"),
        weights.alias("weight"),
        pl.int_range(pl.len()).cast(pl.UInt64).alias("seq"),
        pl.lit("synthetic").alias("source"),
    ).pipe(_with_all_columns)


def _with_all_columns(frame: pl.DataFrame) -> pl.DataFrame:
    missing = [pl.lit(None, SCHEMA[name]).alias(name) for name in COLUMNS if name not in frame.columns]
    return frame.with_columns(missing).select(COLUMNS)


def _stream(plan: Scenario, tenant: int, number: int, rate: float, start_us: int, end_us: int) -> pl.DataFrame:
    """One renewal stream of a tenant: ``number`` 0 is its usual load, the others belong to incidents.

    Inter-arrivals are drawn at rate 1 and stretched by the daily rhythm, so the mean over a day is ``rate``.
    """
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence((plan.seed, tenant, number))))
    span = np.arange(start_us, end_us + 1, MINUTE_US, dtype=np.int64)
    rhythm = 1.0 + 0.15 * np.sin(2 * np.pi * (span / US / DAY_S - 0.25))
    expected = np.concatenate([[0.0], np.cumsum((rhythm[1:] + rhythm[:-1]) / 2 * np.diff(span) / US * rate)])
    count = int(expected[-1] + 6 * np.sqrt(expected[-1]) + 20)
    if tenant % 2:
        shape = 0.8  # Weibull, somewhat bursty
        gaps = random.weibull(shape, count) / 1.1330030963  # mean Gamma(1 + 1/0.8)
    else:
        gaps = random.gamma(0.7, 1 / 0.7, count)
    due = np.cumsum(gaps)
    due = due[due < expected[-1]]
    arrived = np.interp(due, expected, span.astype(np.float64)).astype(np.int64)
    kinds = random.choice(len(TYPES), len(due), p=_type_mix(tenant))
    scale = random.standard_normal((2, len(due)))
    prompts, outputs = np.zeros(len(due), np.int64), np.zeros(len(due), np.int64)
    for index, kind in enumerate(TYPES):
        own = kinds == index
        prompt = kind.prompt_median * np.exp(kind.sigma * scale[0][own])
        prompts[own] = np.clip(np.rint(prompt), 1, kind.longest).astype(np.int64)
        if kind.output_median:
            output = kind.output_median * np.exp(kind.sigma * scale[1][own])
            outputs[own] = np.clip(np.rint(output), 1, 400).astype(np.int64)
    return pl.DataFrame(
        {
            "tenant": np.full(len(due), tenant, np.int64),
            "stream": np.full(len(due), number, np.int64),
            "number": np.arange(len(due), dtype=np.int64),
            "arrived_us": arrived,
            "type": kinds.astype(np.int64),
            "prompt_tokens": prompts,
            "output_tokens": outputs,
        }
    )


def _type_mix(tenant: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Each tenant leans to one type, in turn."""
    mix = np.array([kind.share for kind in TYPES])
    mix[tenant % len(TYPES)] *= 2
    return np.asarray(mix / mix.sum(), np.float64)


def _mute(plan: Scenario, tenant: int, base: pl.DataFrame) -> pl.DataFrame:
    """Without the requests that a quiet incident takes out."""
    for incident in plan.incidents:
        if incident.injection.demand == 0.0 and tenant in _culprits(plan, incident):
            base = base.filter(~pl.col("arrived_us").is_between(incident.start_us, incident.end_us, closed="left"))
    return base


def _committed(plan: Scenario) -> list[int]:
    """Tokens a month by tenant: what each usually sends, a little evened out."""
    shares = tenant_shares(plan.tenants) ** 0.5
    return [int(tokens) for tokens in np.rint(shares / shares.sum() * MONTHLY_TOKENS)]


def _weights_in_force(plan: Scenario, rows: pl.DataFrame) -> pl.Series:
    """Weight of each row's tenant at its arrival: the committed share (mean 1), or the shuffled one."""
    committed = np.array(_committed(plan), np.float64)
    usual = committed / committed.mean()
    tenant = rows["tenant"].to_numpy()
    weight = usual[tenant]
    arrived = rows["arrived_us"].to_numpy()
    for incident in plan.incidents:
        if incident.injection.shuffled_weights:
            during = (arrived >= incident.start_us) & (arrived < incident.end_us)
            weight = np.where(during, usual[::-1][tenant], weight)
    return pl.Series(weight).cast(pl.Float32)


# ---- what production runs ----


def config_text(plan: Scenario, names: Sequence[str], *, unlisted: bool) -> str:
    """The ``fairreplay.toml`` of the synthetic production; with ``unlisted`` also the changes it does not know of."""
    usual: dict[str, object] = {"num_gpu_blocks": 1200, "policy": "fcfs", "speed": 1.0}
    lines = [
        "# The production behind a synthetic trace: what `fairreplay synth` served it with.",
        "[cluster]",
        'policy = "fcfs"',
        "max_num_seqs = 8",
        "max_num_batched_tokens = 2048",
        "max_model_len = 4096",
        "block_size = 16",
        "num_gpu_blocks = 1200",
        "enable_prefix_caching = false",
        "async_scheduling = false",
        "",
        "[cluster.step_time]",
        "base = 0.012",
        "prefill_token = 8e-5",
        "decode_sequence = 6e-4",
        "context_token = 1e-7",
        "",
    ]
    for incident in plan.incidents:
        injection = incident.injection
        if not injection.settings or not (injection.listed or unlisted):
            continue
        for at_us, values in (
            (incident.start_us, injection.settings),
            (incident.end_us, {key: usual[key] for key in injection.settings}),
        ):
            at = START + timedelta(microseconds=at_us)
            lines += ["[[cluster.changes]]", f"at = {at:%Y-%m-%dT%H:%M:%SZ}"]
            lines += [f"{key} = {_toml(value)}" for key, value in values.items()]
            lines.append("")
    lines += ["[policies.type-priority]", f"order = {_toml(list(TYPE_ORDER))}", ""]
    lines += ["[defaults]", "slo_ttft_ms = { p50 = 1000, p90 = 2500, p99 = 5000 }", ""]
    lines += [f"[types.{kind.name}]" for kind in TYPES]
    lines.append("")
    for name, committed in zip(names, _committed(plan), strict=True):
        lines += [f"[tenants.{name}]", f"committed_tokens_per_month = {committed}", ""]
    return "\n".join(lines).rstrip() + "\n"


def _toml(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return repr(value)


def _serve(arrived: pl.DataFrame, config: Config) -> pl.DataFrame:
    """The trace with what the sandbox did to each request under what production runs."""
    load = take_load(arrived)
    served = run_shards(load, shards(load, config, config.cluster.policy or "fcfs")).requests
    replaced = [
        "replica",
        "scheduled_at",
        "first_token_at",
        "finished_at",
        "status",
        "preemptions",
        "recomputed_tokens",
    ]
    joined = load.frame.drop(replaced).join(served.select("request_id", *replaced), on="request_id", how="inner")
    refused = pl.col("status") == "rejected"
    output = pl.when(refused).then(pl.lit(0, pl.UInt32)).otherwise(pl.col("output_tokens")).alias("output_tokens")
    return joined.with_columns(output).select(COLUMNS).sort(ORDER)


def _labels(plan: Scenario, names: Sequence[str]) -> dict[str, object]:
    incidents = []
    for incident in plan.incidents:
        injection = incident.injection
        incidents.append(
            {
                "kind": incident.kind,
                "start": _iso(incident.start_us),
                "end": _iso(incident.end_us),
                "tenants": [names[index] for index in _culprits(plan, incident)],
                "types": [TYPE_ORDER[-1]] if incident.kind == "starvation" else [],
                "hits": list(injection.hits),
                "injection": {
                    "demand_factor": injection.demand,
                    "contention_factor": injection.contention,
                    "settings": injection.settings,
                    "listed": injection.listed,
                    "shuffled_weights": injection.shuffled_weights,
                },
                "says": injection.says,
            }
        )
    return {
        "version": 1,
        "seed": plan.seed,
        "tenants": len(names),
        "rate": plan.rate,
        "start": _iso(0),
        "end": _iso(plan.duration_us),
        "incidents": incidents,
    }


def _iso(at_us: int) -> str:
    return f"{START + timedelta(microseconds=at_us):%Y-%m-%dT%H:%M:%S.%fZ}"
