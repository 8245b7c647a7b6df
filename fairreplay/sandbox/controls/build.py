"""From a plan's controls to the rows of integers that they work on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.controls.pressure import UNITS
from fairreplay.sandbox.engine import FLOOR_SCALE, Controls, Emergency, EngineSettings, Int64s, PolicySpec, Workload

MILLI = 1000
HEAVIEST = 1 << 20
LONG_AGO = -(2**62)


@dataclass
class Rows:
    """See ``places``; lists where the plain engine runs."""

    c: list[int]
    s: list[int]
    t: list[int]
    w: list[int]


def capacity(controls: Controls, requests: int) -> int:
    """Tickets that can be needed."""
    return requests * (1 + controls.retries)


def build(controls: Controls, workload: Workload, *, room: int) -> Rows:
    """Nothing has happened yet; ``w`` holds ``room`` events."""
    count, tenants, types = len(workload), len(workload.tenants), len(workload.types)
    c = [0] * (at.SCALARS + tenants * at.TENANT + types * at.TYPE)
    never = 2**62
    pressure, longs = controls.backpressure, controls.longs
    preemption, emergency = controls.preemption, controls.emergency
    values = {
        at.REQUESTS: count,
        at.TENANTS: tenants,
        at.TYPES: types,
        at.BACK_FIRST: at.NONE,
        at.BACK_LAST: at.NONE,
        at.ROOM: room,
        at.ATTEMPTS: controls.retries,
        at.RETRY_AFTER: controls.retry_after_ps,
        at.WINDOW: controls.window_ps,
        at.WINDOW_ENDS: controls.window_ps - controls.offset_ps % controls.window_ps,
        at.NEXT_CHECK: never,
        at.CHECK: never,
        at.PROMPT_COST: MILLI,
        at.OUTPUT_COST: 2 * MILLI,
    }
    if pressure:
        values |= {
            at.PRESSURE: at.LITERAL if pressure.literal else at.GENTLE,
            at.SIGNAL_WINDOW: pressure.window_ps,
            at.HOLD: pressure.hold_ps,
            at.CHECK: pressure.check_ps,
            at.NEXT_CHECK: pressure.check_ps,
            at.DELAY: pressure.delay_ps,
        }
    if longs:
        values |= {
            at.LONG_TOKENS: longs.tokens,
            at.LONG_SATURATION: longs.saturation,
            at.LONG_RATE: longs.rate,
            at.LONG_LEVEL: UNITS,
        }
    if preemption:
        values |= {
            at.VOLUNTARY: 1,
            at.UTILISATION_MAX: preemption.utilisation_max,
            at.RECOVERY_MAX: preemption.recovery_max_ps,
            at.DENIAL: int(preemption.refuse),
            at.SWAPS: int(preemption.swap),
            at.HOST_TOKENS: preemption.host_tokens,
            at.SWAP_TOKEN_PS: preemption.swap_token_ps,
        }
    if emergency:
        values |= {
            at.EMERGENCY: 1,
            at.LOW_WEIGHT: int(emergency.low_weight),
            at.PROMPT_COST: emergency.prompt_cost,
            at.OUTPUT_COST: emergency.output_cost,
            at.MIN_50: emergency.min_samples[0],
            at.MIN_90: emergency.min_samples[1],
            at.MIN_99: emergency.min_samples[2],
            at.AUTO_FLOORS: int(not emergency.floors),
            at.RESERVE_PART: emergency.reserve,
            at.ETA: emergency.eta,
        }
    for place, value in values.items():
        c[place] = value
    limits = [*controls.tenant_limits, *[0] * tenants][:tenants]
    for tenant in range(tenants):
        place = at.tenant_at(tenant)
        for field in (at.SAMPLE_FIRST, at.SAMPLE_LAST, at.WAIT_FIRST, at.WAIT_LAST):
            c[place + field] = at.NONE
        c[place + at.LIMIT] = limits[tenant]
        c[place + at.APPLIED_AT] = LONG_AGO
        c[place + at.CAP] = at.NO_CAP
        if pressure:
            c[place + at.RATE] = c[place + at.RATE_MAX] = pressure.rates[tenant]
            c[place + at.RATE_MIN] = min(pressure.rate_min, pressure.rates[tenant])
            c[place + at.RATE_STEP] = pressure.step
            c[place + at.BURST] = c[place + at.LEVEL] = pressure.burst * UNITS
            c[place + at.TARGET] = pressure.targets_ps[tenant]
        if emergency:
            for number in range(3):
                c[place + at.TARGET_50 + number] = emergency.targets_ps[tenant][number]
    floors = [*(emergency.floors if emergency else ()), *[0] * types][:types]
    for kind in range(types):
        c[at.type_at(tenants, kind) + at.K_FLOOR] = floors[kind]
        c[at.type_at(tenants, kind) + at.K_CAP] = at.NO_CAP
    asked = np.zeros((count, at.SOURCE), np.int64)
    asked[:, at.S_ARRIVAL] = workload.arrival_ps
    asked[:, at.S_PROMPT] = workload.prompt_tokens
    asked[:, at.S_OUTPUT] = workload.output_tokens
    asked[:, at.S_TENANT] = workload.tenant
    asked[:, at.S_TYPE] = workload.type
    asked[:, at.S_LIMITED] = 0 if workload.over_limit is None else workload.over_limit
    return Rows(c, asked.ravel().tolist(), [0] * (capacity(controls, count) * at.TICKET), [0] * (room * at.EVENT))


def settings_in_force(settings: EngineSettings) -> dict[int, int]:
    """What settings say about places of ``c``."""
    return {at.QUEUE_TIME: settings.queue_time_ps, at.TENANT_LIMIT: settings.tenant_queue_limit}


def light_weight(inverse: int) -> int:
    """A tenant's weight as shares are reckoned with: 1024 where it weighs 1."""
    return max(1, min(HEAVIEST, FLOOR_SCALE * 1024 // max(1, inverse)))


def weights_in_force(inverse: Int64s) -> dict[int, int]:
    """What inverse weights by tenant say about places of ``c``."""
    return {at.tenant_at(tenant) + at.WEIGHT: light_weight(int(one)) for tenant, one in enumerate(inverse)}


def single_p99(spec: PolicySpec, emergency: Emergency) -> PolicySpec:
    """The policy that takes the place of ``spec`` while SCR is in a state of emergency: the earliest P99 deadline."""
    return PolicySpec(name="edf", slo_ps=emergency.targets_ps, quantile=2, floors=spec.floors)
