"""A suite of labelled incidents from a seed: each a small world of its own with one incident, a pair, or nothing.

What varies: number and sizes of tenants, rate, utilisation, lengths and their law, arrivals, hour of the day, policy,
replicas, the strength and the length of the incident, how long the quiet time before it is. Strengths are drawn from
what can hurt to what overwhelms; the oracle says which did hurt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Literal

import numpy as np

from fairreplay.planning.incidents import KINDS, Kind
from fairreplay.planning.synth import TOGETHER, Scenario
from fairreplay.planning.world import START, TYPES, Law, RequestType, World, stream

Family = Literal["single", "pair", "quiet", "healthy"]
FAMILIES: Final[tuple[Family, ...]] = (
    "single",
    "single",
    "pair",
    "single",
    "quiet",
    "single",
    "single",
    "pair",
    "single",
    "healthy",
)
"""Of every ten incidents."""

SINGLES: Final = tuple(name for name in KINDS if name not in ("quiet", "healthy"))
PAIRS: Final = (
    "burst+thrash",
    "overload+starvation",
    "burst+slowdown",
    "slowdown+skew",
    "noisy-neighbour+starvation-sjf",
    "overload+thrash",
    "burst+skew",
    "slowdown+starvation-priority",
    "burst+overload",
    "overload+skew",
    "slowdown+thrash",
    "noisy-neighbour+slowdown",
    "burst+starvation-priority",
    "thrash+starvation",
)
"""Two causes at once. The first makes the contention under which a rule of the second is felt."""

_SUITE: Final = 2
"""First part of the key of a suite's streams; tenants and incidents have their own."""
TAIL_MINUTES: Final = 8
LONGEST_TOKENS: Final = 1800
LONGEST_BLOCKS: Final = (LONGEST_TOKENS + 400) // 16
"""KV that the longest request takes; fewer blocks could not serve it at all."""


@dataclass(frozen=True)
class Case:
    """One trace of a suite."""

    number: int
    family: Family
    name: str
    """Its kind, or two joined by ``+``."""
    scenario: Scenario
    sign: int
    """Whether the sandbox of a test with wrong step times is too slow (1) or too fast (-1)."""


def case(seed: int, number: int) -> Case:
    """The incident ``number`` of the suite ``seed``: the same whatever others are made."""
    draw = stream(seed, _SUITE, number)
    family = FAMILIES[number % len(FAMILIES)]
    of_its_family = number // len(FAMILIES) * FAMILIES.count(family) + FAMILIES[: number % len(FAMILIES)].count(family)
    name = {
        "single": SINGLES[of_its_family % len(SINGLES)],
        "pair": PAIRS[of_its_family % len(PAIRS)],
        "quiet": "quiet",
        "healthy": "healthy",
    }[family]
    world = _world(draw)
    lead, length = int(draw.integers(25, 76)), int(draw.integers(4, 16))
    paired = family == "pair"
    kinds = {part: _strength(KINDS[part], draw, world, paired) for part in name.split(TOGETHER)}
    return Case(
        number=number,
        family=family,
        name=name,
        scenario=Scenario(
            seed=int(draw.integers(2**31)),
            minutes=lead + length + TAIL_MINUTES,
            tenants=int(draw.integers(4, 17)),
            rate=round(float(draw.uniform(1.0, 4.0)), 2),
            policy="vtc" if draw.random() < 0.4 else "fcfs",
            incidents=(name,),
            kinds=kinds,
            world=world,
            lead_minutes=lead,
            incident_minutes=length,
        ),
        sign=1 if draw.random() < 0.5 else -1,
    )


def _world(draw: np.random.Generator) -> World:
    laws: tuple[Law, ...] = ("lognormal", "lognormal", "gamma", "pareto")
    law = laws[int(draw.integers(len(laws)))]
    shares = draw.dirichlet([20 * kind.share for kind in TYPES])
    return World(
        start=START + timedelta(minutes=int(draw.integers(0, 24 * 60))),
        types=tuple(_type(kind, float(share), law, draw) for kind, share in zip(TYPES, shares, strict=True)),
        law=law,
        zipf=round(float(draw.uniform(0.5, 1.1)), 2),
        gamma_part=float(draw.random()),
        cv_range=((0.7, 1.2), (0.8, 1.5), (1.0, 2.0))[int(draw.integers(3))],
        rate_sigma=round(float(draw.uniform(0.05, 0.2)), 3),
        daily_amplitude=round(float(draw.uniform(0.0, 0.3)), 2),
        work=round(float(draw.uniform(0.35, 0.55)), 2),
        slo_factor=round(float(draw.uniform(0.8, 1.6)), 2),
    )


def _type(kind: RequestType, share: float, law: Law, draw: np.random.Generator) -> RequestType:
    prompt = kind.prompt_median * float(np.exp(draw.uniform(-0.5, 0.5)))
    output = kind.output_median * float(np.exp(draw.uniform(-0.5, 0.5)))
    sigma = float(draw.uniform(0.25, 0.5 if law == "pareto" else 0.8))
    return replace(
        kind,
        share=max(0.02, share),
        prompt_median=round(prompt),
        output_median=round(output),
        sigma=round(sigma, 2),
        prompt_max=LONGEST_TOKENS,
    )


def _strength(kind: Kind, draw: np.random.Generator, world: World, paired: bool) -> Kind:
    """The kind at a strength of its own: demand and speed by how far the full cluster is exceeded."""
    beyond, slow, blocks, sender = (
        draw.uniform(1.1, 1.9),
        draw.uniform(1.05, 1.7),
        draw.uniform(1.0, 1.7),
        draw.random(),
    )
    is_rule = kind.cause in ("type_starvation", "weight_skew")
    changes: dict[str, object] = {}
    if kind.load:
        # in a pair the other cause makes the contention
        changes["load"] = 0.0 if paired and is_rule else round(float(beyond) / world.work, 2)
    if is_rule and sender < 0.5:
        changes["send"] = "pair"
    if is_rule and draw.random() < 0.5:
        changes["load_types"] = ()
    settings = dict(kind.settings)
    if "speed" in settings:
        settings["speed"] = round(world.work / float(slow), 3)
    if "num_gpu_blocks" in settings:
        settings["num_gpu_blocks"] = round(LONGEST_BLOCKS * float(blocks))
    if kind.keep < 1:
        changes["keep"] = round(float(draw.uniform(0.0, 0.2)), 2)
    return replace(kind, **changes, settings=settings)  # type: ignore[arg-type]
