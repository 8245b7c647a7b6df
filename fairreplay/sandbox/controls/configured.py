"""From the config to the controls of one replica: real numbers end here, as in ``plan``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from fairreplay.config.durations import window_us
from fairreplay.config.model import Cluster, Config
from fairreplay.errors import UsageError
from fairreplay.sandbox.engine import (
    FLOOR_SCALE,
    PS_PER_SECOND,
    PS_PER_US,
    Backpressure,
    Controls,
    Emergency,
    LongAdmission,
    Preemption,
)

MINUTE_US: Final = 60 * 10**6
GIGA: Final = 10**9
MILLION: Final = 10**6
P99: Final = 2
"""Its place in ``QUANTILES``."""
STEPS_TO_RECOVER: Final = 20
"""Steps in which a rate recovers from nothing, where the config names no step."""

Targets = Callable[[str], tuple[int, int, int]]
"""The TTFT targets of a tenant in picoseconds; UsageError if it has none."""


def controls_of(
    cluster: Cluster,
    config: Config,
    policy_preempts: bool,
    tenants: Sequence[str],
    types: Sequence[str],
    start_us: int,
    targets: Targets,
) -> Controls | None:
    """What holds requests back at a replica of ``cluster``; None if nothing does.

    Raises:
        UsageError: backpressure or emergency modes where a tenant has no TTFT targets.
    """
    states = (cluster.engine, *(state for _, state in cluster.changes))
    limits = tuple((own.queue_limit or 0) if (own := config.tenants.get(name)) else 0 for name in tenants)
    limits = limits if any(limits) else ()
    pressure = _backpressure(config, tenants, targets)
    longs = _longs(config)
    preemption = _preemption(config, policy_preempts)
    emergency = _emergency(config, tenants, types, targets) if config.emergency.enabled else None
    timed = any(state.queue_time_limit_ms or state.tenant_queue_limit for state in states)
    if not (config.retry.attempts or limits or pressure or longs or preemption or emergency or timed):
        return None
    window_ps = control_window_us(config) * PS_PER_US
    return Controls(
        retries=config.retry.attempts,
        retry_after_ps=picoseconds_of_ms(config.retry.retry_after_ms),
        tenant_limits=limits,
        backpressure=pressure,
        longs=longs,
        preemption=preemption,
        emergency=emergency,
        window_ps=window_ps,
        offset_ps=start_us * PS_PER_US % window_ps,
    )


def control_window_us(config: Config) -> int:
    """The windows by which controls judge and are told: a minute where the whole period is one."""
    return window_us(config.window.size, "window.size") or MINUTE_US


def asked_for(config: Config) -> dict[str, object]:
    """What decides what controls do and how it is told, for the hash of a replay, which holds the clusters anyway."""
    names = ("retry", "backpressure", "kv_admission", "preempt", "emergency")
    tables = {name: getattr(config, name) for name in names}
    changed = {name: table.model_dump(mode="json") for name, table in tables.items() if table != type(table)()}
    if config.emergency.enabled:
        floors = {name: own.floor for name, own in sorted(config.types.items())}
        changed |= {"cost": config.cost.model_dump(mode="json"), "floor": config.floor.model_dump(mode="json")}
        changed |= {"floors": floors, "min_samples": config.window.min_samples.model_dump(mode="json")}
    return {"controls": changed | {"window": config.window.size}} if changed or config.has_controls() else {}


def needs_targets(config: Config) -> bool:
    """Whether controls make something of TTFT targets."""
    return config.emergency.enabled or _is_pressed(config)


def _is_pressed(config: Config) -> bool:
    return config.backpressure.rate_per_s is not None or any(own.rate_per_s for own in config.tenants.values())


def picoseconds_of_ms(ms: float) -> int:
    return scaled(ms, GIGA)


def scaled(number: float, scale: int) -> int:
    """``number * scale``: exact in the decimal as written, rounded once, half to even."""
    return round(Fraction(repr(number)) * scale)


def _backpressure(config: Config, tenants: Sequence[str], targets: Targets) -> Backpressure | None:
    table = config.backpressure
    if not _is_pressed(config):
        return None
    rates = []
    for name in tenants:
        own = config.tenants.get(name)
        rate = (own.rate_per_s if own else None) or table.rate_per_s
        rates.append(0 if rate is None else scaled(rate, 1000))
    if not any(rates):
        return None
    step = scaled(table.recovery_per_s, 1000) if table.recovery_per_s else max(1, max(rates) // STEPS_TO_RECOVER)
    window_ps = picoseconds_of_ms(table.window_ms)
    return Backpressure(
        rates=tuple(rates),
        targets_ps=tuple(targets(name)[P99] if rate else 0 for name, rate in zip(tenants, rates, strict=True)),
        rate_min=scaled(table.rate_min_per_s, 1000),
        step=step,
        burst=table.burst,
        window_ps=window_ps,
        hold_ps=window_ps if table.hold_ms is None else picoseconds_of_ms(table.hold_ms),
        check_ps=picoseconds_of_ms(table.check_ms),
        delay_ps=picoseconds_of_ms(table.signal_delay_ms),
        literal=table.update == "literal",
    )


def _longs(config: Config) -> LongAdmission | None:
    table = config.kv_admission
    if table.long_tokens is None:
        return None
    return LongAdmission(table.long_tokens, scaled(table.long_rate_per_s, 1000), scaled(table.saturation, MILLION))


def _preemption(config: Config, policy_preempts: bool) -> Preemption | None:
    table = config.preempt
    swaps = table.victims == "swap"
    if not (policy_preempts or swaps):
        return None
    bytes_per_s = Fraction(repr(table.host_gb_per_s)) * GIGA
    return Preemption(
        utilisation_max=scaled(table.utilization_max, MILLION),
        recovery_max_ps=picoseconds_of_ms(table.recovery_ms_max),
        refuse=table.denied == "refuse",
        swap=swaps,
        host_tokens=int(Fraction(repr(table.host_gb)) * GIGA / table.kv_bytes_per_token) if swaps else 0,
        swap_token_ps=round(table.kv_bytes_per_token * PS_PER_SECOND / bytes_per_s) if swaps else 0,
    )


def _emergency(config: Config, tenants: Sequence[str], types: Sequence[str], targets: Targets) -> Emergency:
    samples = config.window.min_samples
    floors = {name: own.floor for name, own in config.types.items() if own.floor}
    return Emergency(
        targets_ps=tuple(targets(name) for name in tenants),
        floors=tuple(scaled(floors.get(name, 0.0), FLOOR_SCALE) for name in types) if floors else (),
        reserve=scaled(config.floor.reserve, FLOOR_SCALE),
        eta=scaled(config.floor.eta, FLOOR_SCALE),
        low_weight=config.emergency.jfi == "low-weight",
        min_samples=(samples.p50, samples.p90, samples.p99),
        prompt_cost=_milli("prompt", config.cost.prompt),
        output_cost=_milli("output", config.cost.output),
    )


def _milli(name: str, cost: float) -> int:
    """Thousandths of a unit."""
    if cost > 1000:
        raise UsageError(f"cost.{name} = {cost:g}: emergency modes count costs up to 1000")
    return scaled(cost, 1000)
