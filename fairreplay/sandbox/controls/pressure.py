"""Backpressure: a token bucket of requests for each tenant, whose rate follows the tenant's TTFT.

Overload (P99 above the target): ``rate * clip(target / P99, 1/2, 1)``, at least the least rate. Else the rate recovers
by a fixed step up to the configured one; without a sample it stays. P99 is the larger of the nearest-rank P99 of the
first tokens in a sliding window and the age of the oldest request that waits for its first batch, both as they stood
``DELAY`` before the look. Rates are looked at every ``CHECK`` and set at most once per ``HOLD``.

``LITERAL`` is the update that design essays print, ``rate * P99 / target``: it raises the rate under overload.
"""

from __future__ import annotations

from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.controls.events import note
from fairreplay.sandbox.controls.places import Ints, tenant_at

PS_PER_US = 10**6
UNITS = 10**9  # of a bucket's level in a request: thousandths of a request a second, times microseconds
RATE_CEILING = 10**8  # 100,000 requests a second: where the literal update ends, and what 64 bits hold
NO_SIGNAL = -1


def gentle_rate(rate: int, p99_us: int, target_us: int, rate_min: int, rate_max: int, step: int) -> int:
    """The next rate by our rule; hand-worked: 100,000 at P99 1.5 s and target 1 s becomes 66,666, at P99 4 s 50,000."""
    if p99_us > target_us:
        return max(rate_min, max(rate // 2, rate * target_us // p99_us))
    return min(rate_max, rate + step)


def literal_rate(rate: int, p99_us: int, target_us: int) -> int:
    """The next rate by the literal rule: 100,000 at P99 1.5 s and target 1 s becomes 150,000."""
    whole = min(RATE_CEILING, p99_us // target_us)
    return min(RATE_CEILING, rate * whole + rate * (p99_us % target_us) // target_us)


def fill(c: Ints, level: int, filled_at: int, rate: int, burst: int, now_ps: int) -> None:
    """Bring the bucket whose level and instant stand at these places up to ``now_ps``."""
    now_us = now_ps // PS_PER_US
    passed = now_us - c[filled_at]
    c[filled_at] = now_us
    if rate <= 0:
        return
    if passed > (burst - c[level]) // rate:
        c[level] = burst
    else:
        c[level] += rate * passed


def lets_in(c: Ints, tenant: int, now_ps: int) -> bool:
    """Whether the tenant's bucket has a request left; if so, that is taken."""
    place = tenant_at(tenant)
    fill(c, place + at.LEVEL, place + at.FILLED_AT, c[place + at.RATE], c[place + at.BURST], now_ps)
    if c[place + at.LEVEL] < UNITS:
        return False
    c[place + at.LEVEL] -= UNITS
    return True


def sample(c: Ints, t: Ints, tenant: int, ticket: int, now_ps: int) -> None:
    """A ticket of the tenant has its first token."""
    place = tenant_at(tenant)
    t[ticket * at.TICKET + at.FIRST_TOKEN] = now_ps
    if c[place + at.SAMPLE_FIRST] < 0:
        c[place + at.SAMPLE_FIRST] = ticket
    else:
        t[c[place + at.SAMPLE_LAST] * at.TICKET + at.NEXT_SAMPLE] = ticket
    c[place + at.SAMPLE_LAST] = ticket


def queue_up(c: Ints, t: Ints, tenant: int, ticket: int) -> None:
    """A ticket of the tenant begins to wait."""
    place = tenant_at(tenant)
    if c[place + at.WAIT_FIRST] < 0:
        c[place + at.WAIT_FIRST] = ticket
    else:
        t[c[place + at.WAIT_LAST] * at.TICKET + at.NEXT_WAITING] = ticket
    c[place + at.WAIT_LAST] = ticket


def signal(c: Ints, t: Ints, tenant: int, seen_ps: int) -> int:
    """P99 in microseconds as it stood at ``seen_ps``, NO_SIGNAL without any sample; instants may only grow."""
    place = tenant_at(tenant)
    begin = seen_ps - c[at.SIGNAL_WINDOW]
    ticket = c[place + at.SAMPLE_FIRST]
    while ticket >= 0 and t[ticket * at.TICKET + at.FIRST_TOKEN] <= begin:
        ticket = t[ticket * at.TICKET + at.NEXT_SAMPLE]
    c[place + at.SAMPLE_FIRST] = ticket
    count = 0
    while ticket >= 0 and t[ticket * at.TICKET + at.FIRST_TOKEN] <= seen_ps:
        count += 1
        ticket = t[ticket * at.TICKET + at.NEXT_SAMPLE]
    found = NO_SIGNAL
    if count > 0:
        found = _nearest_rank(t, c[place + at.SAMPLE_FIRST], count) // PS_PER_US
    waiting = c[place + at.WAIT_FIRST]
    while waiting >= 0 and t[waiting * at.TICKET + at.LEFT] <= seen_ps:
        waiting = t[waiting * at.TICKET + at.NEXT_WAITING]
    c[place + at.WAIT_FIRST] = waiting
    if waiting >= 0 and t[waiting * at.TICKET + at.ARRIVED] <= seen_ps:
        found = max(found, (seen_ps - t[waiting * at.TICKET + at.ARRIVED]) // PS_PER_US)
    return found


def _nearest_rank(t: Ints, first: int, count: int) -> int:
    """P99 of the ``count`` TTFTs from ``first`` on: as many are larger as ``count - ceil(99 count / 100)``.

    The largest, then the largest below it and so on: one in a hundred.
    """
    larger = count - (99 * count + 99) // 100
    bound, passed = at.FOREVER, 0
    while True:
        most, equal = at.NONE, 0
        ticket = first
        for _ in range(count):
            place = ticket * at.TICKET
            ttft = t[place + at.FIRST_TOKEN] - t[place + at.ARRIVED]
            if ttft < bound:
                if ttft > most:
                    most, equal = ttft, 0
                if ttft == most:
                    equal += 1
            ticket = t[place + at.NEXT_SAMPLE]
        passed += equal
        if passed > larger:
            return most
        bound = most


def look(c: Ints, t: Ints, w: Ints, now_ps: int) -> None:
    """Set the rates whose hold is over by what is seen now of ``DELAY`` ago."""
    seen_ps = now_ps - c[at.DELAY]
    for tenant in range(c[at.TENANTS]):
        place = tenant_at(tenant)
        if c[place + at.RATE_MAX] == 0 or c[place + at.APPLIED_AT] + c[at.HOLD] > now_ps or seen_ps < 0:
            continue
        if c[place + at.SAMPLE_FIRST] < 0 and c[place + at.WAIT_FIRST] < 0:
            continue
        p99_us = signal(c, t, tenant, seen_ps)
        if p99_us == NO_SIGNAL:
            continue
        rate = c[place + at.RATE]
        target_us = c[place + at.TARGET] // PS_PER_US
        if c[at.PRESSURE] == at.LITERAL:
            new = literal_rate(rate, p99_us, target_us)
        else:
            new = gentle_rate(
                rate, p99_us, target_us, c[place + at.RATE_MIN], c[place + at.RATE_MAX], c[place + at.RATE_STEP]
            )
        c[place + at.APPLIED_AT] = now_ps
        if new != rate:
            # what flowed in so far came at the old rate
            fill(c, place + at.LEVEL, place + at.FILLED_AT, rate, c[place + at.BURST], now_ps)
            c[place + at.RATE] = new
            note(c, w, now_ps, at.RATE_SET, tenant, new)
