"""Emergency modes: what a controller does when a window is far off, with hysteresis and in order of priority.

SCR below 0.85 in two windows in a row: the earliest P99 deadline goes first, whatever the policy (``SINGLE_P99``).
JFI below 0.80 in two: tenants served beyond their share are held to half of what they got (``THROTTLE``). TFR below
0.40 in three: types are held to what the others' floors leave (``ISOLATION``). One mode at a time, the first of these
that calls; a mode ends after five windows of its metric above yellow (0.95, 0.90, 0.50). A window that says nothing
about a metric ends a row of bad ones, and does not count among good ones: as ``metrics.alerts.emergency_modes``.
"""

from __future__ import annotations

from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.controls.events import note
from fairreplay.sandbox.controls.places import Ints, tenant_at, type_at
from fairreplay.sandbox.controls.shares import (
    PART_ONE,
    RATIO_ONE,
    any_judged,
    any_served,
    compliant_below,
    jain_below,
    part_of,
    set_floors,
    share_out,
    type_below,
)

WINDOWS_TO_ENTER = 2
WINDOWS_TO_ISOLATE = 3
WINDOWS_TO_LEAVE = 5


def add_waiting(c: Ints, s: Ints, source: int, sign: int) -> None:
    """A request begins or ceases to wait for its first batch."""
    cost = sign * cost_of(c, s, source)
    c[tenant_at(s[source + at.S_TENANT]) + at.WAITING_COST] += cost
    c[type_at(c[at.TENANTS], s[source + at.S_TYPE]) + at.K_WAITING_COST] += cost


def cost_of(c: Ints, s: Ints, source: int) -> int:
    """Service units of a whole request, in thousandths."""
    return c[at.PROMPT_COST] * s[source + at.S_PROMPT] + c[at.OUTPUT_COST] * s[source + at.S_OUTPUT]


def count_arrival(c: Ints, s: Ints, source: int) -> None:
    place = type_at(c[at.TENANTS], s[source + at.S_TYPE])
    cost = cost_of(c, s, source) // 1000
    c[place + at.K_ARRIVALS] += 1
    c[place + at.K_SUM] += cost
    c[place + at.K_SQUARES] += cost * cost


def count_refusal(c: Ints, s: Ints, source: int) -> None:
    """A refusal is demand that was not served, and a miss of every target."""
    place = tenant_at(s[source + at.S_TENANT])
    cost = cost_of(c, s, source)
    c[place + at.REFUSED_COST] += cost
    c[type_at(c[at.TENANTS], s[source + at.S_TYPE]) + at.K_REFUSED_COST] += cost
    c[place + at.COUNT] += 1
    for number in range(3):
        c[place + at.MISSED_50 + number] += 1


def count_first_token(c: Ints, s: Ints, source: int, ttft_ps: int) -> None:
    place = tenant_at(s[source + at.S_TENANT])
    c[place + at.COUNT] += 1
    for number in range(3):
        if ttft_ps > c[place + at.TARGET_50 + number]:
            c[place + at.MISSED_50 + number] += 1


def count_served(c: Ints, s: Ints, source: int, units: int) -> None:
    c[tenant_at(s[source + at.S_TENANT]) + at.SERVED] += units
    c[type_at(c[at.TENANTS], s[source + at.S_TYPE]) + at.K_SERVED] += units


def holds_back(c: Ints, s: Ints, source: int) -> bool:
    """Whether the emergency keeps a request from its first batch until the window ends."""
    if c[at.MODE] == at.THROTTLE:
        place = tenant_at(s[source + at.S_TENANT])
        return c[place + at.SERVED] >= c[place + at.CAP]
    if c[at.MODE] == at.ISOLATION:
        place = type_at(c[at.TENANTS], s[source + at.S_TYPE])
        return c[place + at.K_SERVED] >= c[place + at.K_CAP]
    return False


def close_window(c: Ints, w: Ints, now_ps: int) -> None:
    """The window is over: judge it, enter or leave a mode, set what that mode holds back, and count anew."""
    if c[at.AUTO_FLOORS] and _floors(c) == 0:
        set_floors(c)  # the first window that has arrivals is judged by its own
    if c[at.EMERGENCY]:
        share_out(c)
        _judge(c, w, now_ps)
        if c[at.MODE] == at.THROTTLE:
            _throttle(c, w, now_ps)
        elif c[at.MODE] == at.ISOLATION:
            _isolate(c, w, now_ps)
    if c[at.AUTO_FLOORS]:
        set_floors(c)
    for tenant in range(c[at.TENANTS]):
        place = tenant_at(tenant)
        for field in (at.COUNT, at.MISSED_50, at.MISSED_90, at.MISSED_99, at.SERVED, at.REFUSED_COST):
            c[place + field] = 0
    for kind in range(c[at.TYPES]):
        place = type_at(c[at.TENANTS], kind)
        for field in (at.K_SERVED, at.K_REFUSED_COST, at.K_ARRIVALS, at.K_SUM, at.K_SQUARES):
            c[place + field] = 0


def _judge(c: Ints, w: Ints, now_ps: int) -> None:
    mode = c[at.MODE]
    c[at.BELOW_SCR] = c[at.BELOW_SCR] + 1 if compliant_below(c, 85) else 0
    c[at.BELOW_JFI] = c[at.BELOW_JFI] + 1 if jain_below(c, 80) else 0
    c[at.BELOW_TFR] = c[at.BELOW_TFR] + 1 if type_below(c, 40) else 0
    says, calm = any_served(c), False
    if mode == at.SINGLE_P99:
        says, calm = any_judged(c), not compliant_below(c, 95)
    elif mode == at.THROTTLE:
        calm = not jain_below(c, 90)
    elif mode == at.ISOLATION:
        calm = not type_below(c, 50)
    if says:
        c[at.CALM] = c[at.CALM] + 1 if calm else 0
    if mode != at.NO_MODE and c[at.CALM] >= WINDOWS_TO_LEAVE:
        mode = at.NO_MODE
    if c[at.BELOW_SCR] >= WINDOWS_TO_ENTER:
        mode = at.SINGLE_P99
    elif mode != at.SINGLE_P99 and c[at.BELOW_JFI] >= WINDOWS_TO_ENTER:
        mode = at.THROTTLE
    elif mode == at.NO_MODE and c[at.BELOW_TFR] >= WINDOWS_TO_ISOLATE:
        mode = at.ISOLATION
    if mode == c[at.MODE]:
        return
    c[at.MODE] = mode
    c[at.CALM] = 0
    note(c, w, now_ps, at.MODE_SET, mode, 0)
    for tenant in range(c[at.TENANTS]):
        c[tenant_at(tenant) + at.CAP] = at.NO_CAP
    for kind in range(c[at.TYPES]):
        c[type_at(c[at.TENANTS], kind) + at.K_CAP] = at.NO_CAP


def _throttle(c: Ints, w: Ints, now_ps: int) -> None:
    """Half of what they were served, for those served beyond their share; again for whoever still is a window later.

    The literal form halves all but those of the largest weight, once.
    """
    heaviest = 0
    for tenant in range(c[at.TENANTS]):
        heaviest = max(heaviest, c[tenant_at(tenant) + at.WEIGHT])
    for tenant in range(c[at.TENANTS]):
        place = tenant_at(tenant)
        if c[at.LOW_WEIGHT]:
            if c[place + at.WEIGHT] < heaviest and c[place + at.CAP] == at.NO_CAP:
                _cap(c, w, now_ps, tenant)
        elif c[place + at.RATIO] > RATIO_ONE:
            _cap(c, w, now_ps, tenant)


def _cap(c: Ints, w: Ints, now_ps: int, tenant: int) -> None:
    place = tenant_at(tenant)
    c[place + at.CAP] = max(1, c[place + at.SERVED] // 2)
    note(c, w, now_ps, at.THROTTLED, tenant, c[place + at.CAP])


def _floors(c: Ints) -> int:
    """What the floors of all types add up to."""
    total = 0
    for kind in range(c[at.TYPES]):
        total += c[type_at(c[at.TENANTS], kind) + at.K_FLOOR]
    return total


def _isolate(c: Ints, w: Ints, now_ps: int) -> None:
    """Of what was served in the window each type may take all but the others' floors."""
    total, floors = 0, _floors(c)
    for kind in range(c[at.TYPES]):
        total += c[type_at(c[at.TENANTS], kind) + at.K_SERVED]
    if total == 0:
        return
    for kind in range(c[at.TYPES]):
        place = type_at(c[at.TENANTS], kind)
        others = max(0, min(PART_ONE, floors - c[place + at.K_FLOOR]))
        c[place + at.K_CAP] = max(1, total - part_of(total, others, PART_ONE))
        note(c, w, now_ps, at.ISOLATED, kind, c[place + at.K_CAP])
