"""Who was served how much of a share, in integers: what ``metrics`` says afterwards, as a controller sees it."""

from __future__ import annotations

from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.controls.places import Ints, tenant_at, type_at

RATIO_ONE = 1024  # a tenant that was served what it was entitled to
RATIO_MAX = 1 << 16
PART_ONE = 1 << 20


def share_out(c: Ints) -> None:
    """Entitlements: the weighted max-min shares of what was served in the window, capped by demand; then the ratios.

    Demand is what was served, what waits and what was refused. Shares are rounded down; a ratio is at most 64.
    """
    left, weights = 0, 0
    for tenant in range(c[at.TENANTS]):
        place = tenant_at(tenant)
        c[place + at.SHARE] = at.NONE
        left += c[place + at.SERVED]
        weights += c[place + at.WEIGHT]
    settled = True
    while settled:
        settled = False
        rest, heavy = left, weights
        for tenant in range(c[at.TENANTS]):
            place = tenant_at(tenant)
            demand = c[place + at.SERVED] + c[place + at.WAITING_COST] + c[place + at.REFUSED_COST]
            if c[place + at.SHARE] == at.NONE and demand <= part_of(rest, c[place + at.WEIGHT], heavy):
                c[place + at.SHARE] = demand
                left -= demand
                weights -= c[place + at.WEIGHT]
                settled = True
    for tenant in range(c[at.TENANTS]):
        place = tenant_at(tenant)
        if c[place + at.SHARE] == at.NONE:
            c[place + at.SHARE] = part_of(left, c[place + at.WEIGHT], weights)
        c[place + at.RATIO] = at.NONE
        if c[place + at.SHARE] > 0:
            c[place + at.RATIO] = min(RATIO_MAX, c[place + at.SERVED] * RATIO_ONE // c[place + at.SHARE])


def part_of(whole: int, weight: int, weights: int) -> int:
    """``whole * weight / weights`` rounded down, without a large product."""
    if weights <= 0:
        return 0
    return whole // weights * weight + whole % weights * weight // weights


def jain_below(c: Ints, hundredths: int) -> bool:
    """Whether Jain's index of the ratios is below so many hundredths; not without any ratio."""
    total, squares, count = 0, 0, 0
    for tenant in range(c[at.TENANTS]):
        ratio = c[tenant_at(tenant) + at.RATIO]
        if ratio != at.NONE:
            total += ratio
            squares += ratio * ratio
            count += 1
    # both sides shortened alike: their products with counts would not fit
    return count > 0 and total * total // 128 * 100 < hundredths * (squares // 128 * count)


def any_served(c: Ints) -> bool:
    total = 0
    for tenant in range(c[at.TENANTS]):
        total += c[tenant_at(tenant) + at.SERVED]
    return total > 0


def compliant_below(c: Ints, hundredths: int) -> bool:
    """Whether of the judged tenants fewer than so many hundredths meet their targets; not without a judged one."""
    judged, passed = 0, 0
    for tenant in range(c[at.TENANTS]):
        verdict = verdict_on(c, tenant)
        if verdict >= 0:
            judged += 1
            passed += verdict
    return judged > 0 and passed * 100 < hundredths * judged


def any_judged(c: Ints) -> bool:
    judged = 0
    for tenant in range(c[at.TENANTS]):
        judged += 1 if verdict_on(c, tenant) >= 0 else 0
    return judged > 0


def verdict_on(c: Ints, tenant: int) -> int:
    """1 if the tenant met every target with enough samples in the window, 0 if not, NONE without such a target."""
    place = tenant_at(tenant)
    count = c[place + at.COUNT]
    verdict = at.NONE
    for number in range(3):
        q = 50 if number == 0 else 90 if number == 1 else 99
        if c[place + at.TARGET_50 + number] == 0 or count < c[at.MIN_50 + number] or count == 0:
            continue
        met = count - c[place + at.MISSED_50 + number] >= (q * count + 99) // 100
        verdict = (1 if met else 0) if verdict == at.NONE else min(verdict, 1 if met else 0)
    return verdict


def type_below(c: Ints, hundredths: int) -> bool:
    """Whether a type was served less than so many hundredths of its floor, or of what it asked for if that is less."""
    total = 0
    for kind in range(c[at.TYPES]):
        total += c[type_at(c[at.TENANTS], kind) + at.K_SERVED]
    if total == 0:
        return False
    for kind in range(c[at.TYPES]):
        place = type_at(c[at.TENANTS], kind)
        floor = part_of(total, c[place + at.K_FLOOR], PART_ONE)
        backlog = c[place + at.K_WAITING_COST] + c[place + at.K_REFUSED_COST]
        if backlog == 0 or c[place + at.K_FLOOR] * 200 < PART_ONE:
            continue
        owed = min(floor, c[place + at.K_SERVED] + backlog)
        if c[place + at.K_SERVED] * 100 < hundredths * owed:
            return True
    return False


def set_floors(c: Ints) -> None:
    """Floors of types from the arrivals of the window: ``R g_k / sum g`` with ``g = (1 + cv) / (1 + eta p)``."""
    count = 0
    for kind in range(c[at.TYPES]):
        count += c[type_at(c[at.TENANTS], kind) + at.K_ARRIVALS]
    if count == 0:
        return
    whole = 0
    for kind in range(c[at.TYPES]):
        whole += _urgency(c, kind, count)
    for kind in range(c[at.TYPES]):
        c[type_at(c[at.TENANTS], kind) + at.K_FLOOR] = c[at.RESERVE_PART] * _urgency(c, kind, count) // whole


def _urgency(c: Ints, kind: int, count: int) -> int:
    """g of a type, in 2**-20; a type without arrivals has p = cv = 0."""
    place = type_at(c[at.TENANTS], kind)
    own = c[place + at.K_ARRIVALS]
    spread = 0
    if own > 0 and c[place + at.K_SUM] >= own:
        mean = c[place + at.K_SUM] // own
        variance = max(0, c[place + at.K_SQUARES] // own - mean * mean)
        spread = (root_of(min(variance, 1 << 42) << 20) << 10) // mean
    return (PART_ONE + spread) * PART_ONE // (PART_ONE + c[at.ETA] * own // count)


def root_of(number: int) -> int:
    """The square root, rounded down."""
    if number < 2:
        return number
    root, other = number, (number + 1) // 2
    while other < root:
        root = other
        other = (root + number // root) // 2
    return root
