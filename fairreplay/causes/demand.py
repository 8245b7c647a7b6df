"""Who sent more than usual: single tenants' bursts, and growth common to the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fairreplay.causes.episodes import merge
from fairreplay.causes.levels import Bools, Floats, Levels, usual_level

BURST_RATIO: Final = 2.0
BURST_Z: Final = 4.0
BURST_WINDOWS: Final = 2
BURST_EXCESS: Final = 0.05
"""Of all usual tokens of these windows."""
BURST_OVER_GROWTH: Final = 1.5
GROWTH_RATIO: Final = 1.25
GROWTH_Z: Final = 4.0
GROWTH_WINDOWS: Final = 2
SURE_Z: Final = 3.0
"""Standard errors by which a unit must outgrow the others: of few requests, chance alone makes twice as many."""
WOBBLE: Final = 0.15
"""Standard error of a rate's logarithm that no number of requests takes away: clients' rates wander by the minute."""
EXPECTED_MIN: Final = 5.0
"""Requests that a tenant must usually send in the windows in question to have a say in the first guess of growth."""


@dataclass(frozen=True)
class Burst:
    """A tenant, or some of its request types, far above its usual level."""

    tenant: str
    types: tuple[str, ...] | None
    """None: all its requests taken together."""
    ratio: float
    """Requests over usual requests, from the first window in which it stood out to the last."""
    z: float
    """The largest of these windows."""
    needed: float
    """The ratio that it had to reach: 2, or 1.5 times the growth of the tenants not flagged."""
    usual: float
    """Requests a window."""
    windows: tuple[int, ...]
    """Indices into the levels: those in which it stood out, and up to two others between two of them."""


@dataclass(frozen=True)
class Growth:
    """The tenants that do not burst, taken together."""

    tenants: tuple[str, ...]
    ratio: float | None
    """Over the windows that stand out, else over all judged ones; null without a baseline or usual requests."""
    z: float | None
    usual: float
    windows: tuple[int, ...]
    """That stand out."""

    @property
    def found(self) -> bool:
        return len(self.windows) >= GROWTH_WINDOWS


@dataclass(frozen=True)
class _Unit:
    """A tenant, or one request type of a tenant."""

    tenant: int
    kind: int | None
    requests: Floats
    tokens: Floats


def find_bursts(levels: Levels) -> list[Burst]:
    """The bursts, by tenant and type.

    A unit bursts that in at least 2 judged windows sends twice its usual number with z >= 4, brings at least 5 % of all
    usual tokens on top there, and grows 1.5 times as much as the tenants not flagged. Whoever is flagged leaves that
    growth, and it is formed again until nothing changes. The first growth, formed while nobody is flagged yet, is at
    most the median tenant's, so that a large tenant does not hide in the growth that it makes itself.
    """
    if not levels.has_baseline:
        return []
    units = _units(levels)
    candidates = [(unit, span) for unit in units if (span := _stands_out(unit, levels)) is not None]
    flagged: dict[tuple[int, int | None], Burst] = {}
    while True:
        calm = [index for index in range(len(levels.tenants)) if all(index != key[0] for key in flagged)]
        new = {}
        for unit, span in candidates:
            key = (unit.tenant, unit.kind)
            if key in flagged:
                continue
            growth = _growth(unit, span, calm, levels, first=not flagged)
            burst = _burst(unit, span, max(BURST_RATIO, BURST_OVER_GROWTH * growth), levels)
            if burst.ratio >= burst.needed and _surely_above(unit, span, growth, levels):
                new[key] = burst
        if not new:
            break
        flagged |= new
    return [flagged[key] for key in sorted(flagged, key=lambda key: (key[0], -1 if key[1] is None else key[1]))]


def find_growth(levels: Levels, bursts: Sequence[Burst]) -> Growth:
    """How much more the tenants sent that do not burst: windows with 1.25 times the usual total and z >= 4."""
    loud = {burst.tenant for burst in bursts}
    calm = [index for index, name in enumerate(levels.tenants) if name not in loud]
    names = tuple(levels.tenants[index] for index in calm)
    if not levels.has_baseline or not calm:
        return Growth(names, None, None, 0.0, ())
    total = levels.requests[:, calm].sum(axis=(1, 2))
    mean, sigma = usual_level(total, levels.usual)
    if mean == 0:
        return Growth(names, None, None, 0.0, ())
    z = (total - mean) / sigma
    out = levels.judged & (total >= GROWTH_RATIO * mean) & (z >= GROWTH_Z)
    over = out if out.sum() >= GROWTH_WINDOWS else levels.judged
    return Growth(
        tenants=names,
        ratio=float(total[over].mean() / mean),
        z=float(z[over].max()),
        usual=float(mean),
        windows=tuple(np.flatnonzero(out).tolist()),
    )


def highest_ratio(levels: Levels) -> float | None:
    """The largest factor over all judged windows of any tenant with enough usual requests; for a log without bursts."""
    if not levels.has_baseline:
        return None
    by_tenant = levels.requests.sum(axis=2)
    mean, _ = usual_level(by_tenant, levels.usual)
    enough = mean * levels.judged.sum() >= EXPECTED_MIN
    if not enough.any():
        return None
    return float((by_tenant[levels.judged].mean(axis=0)[enough] / mean[enough]).max())


def _units(levels: Levels) -> list[_Unit]:
    units = []
    for tenant in range(len(levels.tenants)):
        requests, tokens = levels.requests[:, tenant], levels.tokens[:, tenant]
        units.append(_Unit(tenant, None, requests.sum(axis=1), tokens.sum(axis=1)))
        kinds = np.flatnonzero(requests.sum(axis=0))
        if len(kinds) > 1:
            units += (_Unit(tenant, int(kind), requests[:, kind], tokens[:, kind]) for kind in kinds)
    return units


def _stands_out(unit: _Unit, levels: Levels) -> Bools | None:
    """The windows around those in which a unit is far above its usual level, if they are enough and weigh enough."""
    mean, sigma = usual_level(unit.requests, levels.usual)
    hot: Bools = (
        levels.judged
        & (unit.requests >= BURST_RATIO * _at_least(mean, levels))
        & ((unit.requests - mean) / sigma >= BURST_Z)
    )
    if hot.sum() < BURST_WINDOWS:
        return None
    span = np.zeros_like(hot)
    for first, last in merge(hot.tolist()):
        span[first : last + 1] = True
    excess = float((unit.tokens[span] - unit.tokens[levels.usual].mean()).sum())
    all_usual = float(levels.tokens[levels.usual].sum(axis=(1, 2)).mean()) * int(span.sum())
    return span if excess >= BURST_EXCESS * all_usual else None


def _surely_above(unit: _Unit, span: Bools, growth: float, levels: Levels) -> bool:
    """Whether a unit grew more than the others beyond chance: the difference of the logarithms of its two rates."""
    mean, sigma = usual_level(unit.requests, levels.usual)
    came, usual = float(unit.requests[span].sum()), float(max(unit.requests[levels.usual].sum(), 1.0))
    spread = WOBBLE**2 + max(1.0, float(sigma) ** 2 / max(float(mean), 1.0)) * (1 / came + 1 / usual)
    ratio = unit.requests[span].mean() / _at_least(mean, levels)
    return bool(np.log(ratio / growth) >= SURE_Z * np.sqrt(spread))


def _at_least(mean: Floats, levels: Levels) -> Floats:
    """A usual level for ratios: who never came before is taken to come once in the whole baseline."""
    return np.asarray(np.maximum(mean, 1 / levels.usual.sum()), np.float64)


def _burst(unit: _Unit, span: Bools, needed: float, levels: Levels) -> Burst:
    mean, sigma = usual_level(unit.requests, levels.usual)
    return Burst(
        tenant=levels.tenants[unit.tenant],
        types=None if unit.kind is None else (levels.types[unit.kind],),
        ratio=float(unit.requests[span].mean() / _at_least(mean, levels)),
        z=float(((unit.requests[span] - mean) / sigma).max()),
        needed=needed,
        usual=float(mean),
        windows=tuple(np.flatnonzero(span).tolist()),
    )


def _growth(unit: _Unit, span: Bools, calm: Sequence[int], levels: Levels, *, first: bool) -> float:
    """Growth of the tenants not flagged in these windows; of a type, theirs of this type if that is more."""
    over_all = _growth_of(levels.requests.sum(axis=2), span, calm, levels, first)
    if unit.kind is None:
        return over_all
    return max(over_all, _growth_of(levels.requests[:, :, unit.kind], span, calm, levels, first))


def _growth_of(counts: Floats, span: Bools, calm: Sequence[int], levels: Levels, first: bool) -> float:
    usual, now = counts[levels.usual].mean(axis=0)[list(calm)], counts[span].mean(axis=0)[list(calm)]
    if usual.sum() == 0:
        return 1.0
    growth = float(now.sum() / usual.sum())
    known = usual * span.sum() >= EXPECTED_MIN
    if first and known.any():
        each = np.sort(now[known] / usual[known])
        growth = min(growth, float(each[(len(each) - 1) // 2]))
    return growth
