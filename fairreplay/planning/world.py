"""Who sends what in a synthetic trace: tenants, request types, and the laws that their requests follow.

Tenants have Zipf sizes, Gamma or Weibull inter-arrivals (the two families that describe the clients of a production
cloud: Xiang et al., "ServeGen", 2025) over windows of ten minutes with rates of their own, lengths by request type
(log-normal unless the world says otherwise), and a daily rhythm. Whatever is drawn has a stream of its own, named by a
key: no draw ever shifts another's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gamma as gamma_function
from scipy.special import gammaincinv, ndtr, ndtri

Floats = NDArray[np.float64]
Law = Literal["lognormal", "gamma", "pareto"]

START: Final = datetime(2026, 1, 5, 8, tzinfo=UTC)
"""A Monday morning."""

US: Final = 1_000_000
MINUTE_US: Final = 60 * US
DAY_US: Final = 86_400 * US
RATE_WINDOW_US: Final = 600 * US
"""A tenant's rate holds for ten minutes, as in ServeGen's client traces."""

MONTH_S: Final = 30 * 86_400
COMMITMENT_SIGMA: Final = 0.1
MIX_CONCENTRATION: Final = 40.0
"""Of the Dirichlet law of tenants' type mixes around the shares of the types: about +-.08 for a share of one half."""


@dataclass(frozen=True)
class RequestType:
    """Share of the requests, lengths (medians in tokens, sigma of the logarithm), longest prompt, priority number."""

    name: str
    share: float
    prompt_median: float
    output_median: float
    sigma: float
    prompt_max: int
    priority: int = 0
    """What a gateway stamps on its requests; lower goes first where a policy heeds it."""


TYPES: Final = (
    RequestType("chat", 0.50, 180, 110, 0.6, 1200, 0),
    RequestType("completion", 0.22, 140, 70, 0.6, 1200, 0),
    RequestType("embed", 0.12, 120, 0, 0.5, 800, 0),
    RequestType("long", 0.08, 1100, 110, 0.3, 1600, 1),
    RequestType("batch", 0.08, 240, 180, 0.5, 1200, 2),
)
TYPE_ORDER: Final = ("embed", "chat", "completion", "long", "batch")
"""What the policy ``type-priority`` of the starvation incident serves first and last."""


@dataclass(frozen=True)
class World:
    """What tenants and requests are like, and how much of the cluster the usual load takes."""

    start: datetime = START
    """The trace's first instant, a whole minute."""
    types: tuple[RequestType, ...] = TYPES
    law: Law = "lognormal"
    output_max: int = 400
    zipf: float = 0.9
    """The n-th largest tenant sends ``1 / n**zipf`` of what the largest sends."""
    gamma_part: float = 0.7
    """Of the tenants, how many have Gamma inter-arrivals; the others have Weibull."""
    cv_range: tuple[float, float] = (0.8, 1.5)
    """Coefficients of variation of inter-arrivals; most windows of ServeGen's busier clients lie inside."""
    rate_sigma: float = 0.12
    """Log-normal spread of a tenant's rate from one rate window to the next."""
    daily_amplitude: float = 0.15
    work: float = 0.46
    """Usual work of a replica: part of what it can do when it is full."""
    max_num_seqs: int = 32
    num_gpu_blocks: int = 2000
    slo_factor: float = 1.0
    """On the targets of the time to first token."""

    @property
    def start_us(self) -> int:
        """Microseconds since the epoch."""
        return int(self.start.timestamp()) * US


@dataclass(frozen=True)
class Tenant:
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


TENANT, INCIDENT = 0, 1
"""First part of a stream's key: whose usual requests, or which incident's."""
_ARRIVALS, _RATES, _KINDS, _LENGTHS, _CHARACTER = range(5)
"""Last part: what is drawn."""


def stream(seed: int, *key: int) -> np.random.Generator:
    """The random stream of ``key``, whatever other streams there are."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


def stable_hash(text: str) -> int:
    """64 bits of BLAKE2b."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


# ---- tenants ----


def tenants(world: World, seed: int, count: int, rate: float) -> tuple[Tenant, ...]:
    """Largest first. Each commits to about what it usually sends; ``rate`` is requests a second of all."""
    sizes = 1.0 / np.arange(1, count + 1) ** world.zipf
    width = max(2, len(str(count)))
    mixes, drawn = [], []
    for index in range(count):
        own = stream(seed, TENANT, index, _CHARACTER)
        mixes.append(own.dirichlet([MIX_CONCENTRATION * kind.share for kind in world.types]))
        drawn.append((own.random(), own.uniform(*world.cv_range), own.standard_normal()))
    costs = np.array([_mean_cost(world.law, kind) for kind in world.types])
    committed = [
        int(_two_digits(share * rate * float(mix @ costs) * MONTH_S * float(np.exp(COMMITMENT_SIGMA * normal))))
        for share, mix, (_, _, normal) in zip(sizes / sizes.sum(), mixes, drawn, strict=True)
    ]
    mean = sum(committed) / len(committed)
    return tuple(
        Tenant(
            index=index,
            name=f"tenant-{index + 1:0{width}d}",
            share=float(sizes[index] / sizes.sum()),
            family="gamma" if drawn[index][0] < world.gamma_part else "weibull",
            cv=drawn[index][1],
            mix=mixes[index],
            committed=committed[index],
            weight=round(committed[index] / mean, 3) or 0.001,
        )
        for index in range(count)
    )


def _mean_cost(law: Law, kind: RequestType) -> float:
    """Expected tokens of one request, before the cut at the longest."""
    return float((kind.prompt_median + kind.output_median) * grows(law, kind.sigma))


def _two_digits(value: float) -> float:
    """As people write a commitment: two significant digits, at least one token."""
    return max(1.0, float(f"{value:.1e}"))


# ---- requests ----


REQUEST_SCHEMA: Final[dict[str, pl.DataType]] = {
    "request_id": pl.String(),
    "tenant": pl.String(),
    "type": pl.String(),
    "arrived_us": pl.Int64(),
    "prompt_tokens": pl.Int64(),
    "output_tokens": pl.Int64(),
}


@dataclass(frozen=True)
class Demand:
    """What one tenant asks in ``[start_us, end_us)``: ``rate`` a second before rhythm and wobble, types by ``mix``."""

    start_us: int
    end_us: int
    rate: float
    mix: Floats
    ramp: bool = False
    """The rate grows evenly from nothing to twice ``rate`` in the middle of the last minute, so the mean stays."""


def requests(world: World, seed: int, tenant: Tenant, key: tuple[int, ...], demand: Demand) -> pl.DataFrame:
    """One tenant's requests: ``REQUEST_SCHEMA``.

    Inter-arrivals are drawn at rate 1 and stretched by the rate in force, so bursts keep their shape as rates change.
    """
    start_us, end_us = demand.start_us, demand.end_us
    step_us = MINUTE_US if demand.ramp else RATE_WINDOW_US
    edges = np.unique(np.append(np.arange(start_us, end_us, step_us, dtype=np.int64), end_us))
    middle_us = (edges[:-1] + edges[1:]) // 2
    slot = (middle_us - start_us) // RATE_WINDOW_US
    normal = stream(seed, *key, _RATES).standard_normal(int(slot[-1]) + 1)
    wobble = np.exp(world.rate_sigma * normal - world.rate_sigma**2 / 2)[slot]
    rate = demand.rate * rhythm(world, middle_us) * wobble
    if demand.ramp:
        rate = rate * 2 * (middle_us - start_us) / (end_us - start_us)
    due_at_edges = np.concatenate([[0.0], np.cumsum(rate * np.diff(edges) / US)])
    due = renewals(stream(seed, *key, _ARRIVALS), tenant, float(due_at_edges[-1]))
    offset_us = np.interp(due, due_at_edges, (edges - start_us).astype(np.float64))
    arrived_us = np.minimum(start_us + np.floor(offset_us).astype(np.int64), end_us - 1)
    count = len(arrived_us)
    kinds = np.searchsorted(np.cumsum(demand.mix)[:-1], stream(seed, *key, _KINDS).random(count), side="right")
    scores = stream(seed, *key, _LENGTHS).standard_normal((count, 2))
    prompts = _lengths(world, scores[:, 0], kinds, [kind.prompt_median for kind in world.types])
    outputs = _lengths(world, scores[:, 1], kinds, [kind.output_median for kind in world.types])
    prompt_max = np.array([kind.prompt_max for kind in world.types])[kinds]
    names = [kind.name for kind in world.types]
    label = f"{seed} {' '.join(map(str, key))}"
    return pl.DataFrame(
        {
            "request_id": [f"req-{stable_hash(f'{label} {index}'):016x}" for index in range(count)],
            "tenant": [tenant.name] * count,
            "type": [names[kind] for kind in kinds.tolist()],
            "arrived_us": arrived_us,
            "prompt_tokens": np.clip(prompts, 1, prompt_max),
            "output_tokens": np.where(outputs > 0, np.clip(outputs, 2, world.output_max), 0),
        },
        schema=REQUEST_SCHEMA,
    )


def rhythm(world: World, at_us: NDArray[np.int64]) -> Floats:
    """Factor on every rate by the hour of the day (UTC): lowest at midnight, highest at noon, mean 1."""
    return np.asarray(1.0 - world.daily_amplitude * np.cos(2 * np.pi * (at_us % DAY_US) / DAY_US), np.float64)


def renewals(own: np.random.Generator, tenant: Tenant, until: float) -> Floats:
    """Instants below ``until`` of a renewal process of rate 1 with the tenant's family and spread."""
    if tenant.family == "gamma":
        shape, scale = tenant.cv**-2, tenant.cv**2
    else:
        shape = weibull_shape(tenant.cv)
        scale = 1 / float(gamma_function(1 + 1 / shape))
    parts: list[Floats] = []
    reached = 0.0
    while reached < until:
        gaps = own.gamma(shape, scale, 1024) if tenant.family == "gamma" else scale * own.weibull(shape, 1024)
        parts.append(reached + np.cumsum(gaps))
        reached = float(parts[-1][-1])
    instants = np.concatenate([np.zeros(0), *parts])
    return instants[instants < until]


def weibull_shape(cv: float) -> float:
    """Shape of the Weibull distribution whose standard deviation is ``cv`` times its mean (0.2 to 5)."""

    def excess(shape: float) -> float:
        return float(gamma_function(1 + 2 / shape) / gamma_function(1 + 1 / shape) ** 2) - 1 - cv**2

    return float(brentq(excess, 0.3, 10.0))


# ---- lengths ----


def _lognormal(sigma: Floats, score: Floats) -> Floats:
    return np.asarray(np.exp(sigma * score), np.float64)


def _gamma(sigma: Floats, score: Floats) -> Floats:
    """Shape ``1/sigma**2``: about the same spread near the median, a shorter tail."""
    shape = sigma**-2.0
    return np.asarray(gammaincinv(shape, ndtr(score)) / gammaincinv(shape, 0.5), np.float64)


def _pareto(sigma: Floats, score: Floats) -> Floats:
    """Never below ``2**-sigma`` of the median, upper tail of index ``1/sigma``: far longer than log-normal."""
    return np.asarray((2 * ndtr(-score)) ** -sigma, np.float64)


LAWS: Final[dict[Law, Callable[[Floats, Floats], Floats]]] = {
    "lognormal": _lognormal,
    "gamma": _gamma,
    "pareto": _pareto,
}
"""Lengths of median 1 from standard normal scores, growing with the score."""


def grows(law: Law, sigma: float) -> float:
    """Mean over median of a length, before the cut at the longest."""
    if law == "lognormal":
        return float(np.exp(sigma**2 / 2))
    score = ndtri((np.arange(1000) + 0.5) / 1000)
    return float(LAWS[law](np.full(1000, sigma), score).mean())


def _lengths(world: World, score: Floats, kinds: NDArray[np.int64], medians: Sequence[float]) -> NDArray[np.int64]:
    sigma = np.array([kind.sigma for kind in world.types])[kinds]
    return np.asarray(np.rint(np.minimum(np.array(medians)[kinds] * LAWS[world.law](sigma, score), 1e9)), np.int64)
