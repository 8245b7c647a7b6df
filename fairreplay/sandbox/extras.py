"""What goes beyond one dense replica: speculative decoding, experts, two pools. Numbers and the laws they follow.

Chance is drawn by hash of (request, position), so a run repeats to the bit, whatever policy or replica serves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import Final

DRAW_BITS: Final = 53
"""A draw lies in [0, 2**DRAW_BITS)."""
CERTAIN: Final = 1 << DRAW_BITS
MICRO: Final = 10**6
"""Costs of tokens under ``Moe`` are counted in millionths."""
ROOT_BITS: Final = 18
"""Square roots of token counts are scaled by ``2**ROOT_BITS``."""
OF_EXPERTS: Final = 0x5851F42D4C957F2D
"""Sets the draws of costs apart from those of acceptance."""

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB


@dataclass(frozen=True)
class Speculation:
    """Speculative decoding: ``drafts`` tokens are drafted at each step of a request that decodes."""

    drafts: int
    accepted: tuple[int, ...]
    """By type index: the chance that a draft is accepted if those before it are, times ``CERTAIN``."""
    draft_ps: int
    """Time of the draft model for one draft."""
    verify_ps: int
    """Time that one draft adds to the target's step, accepted or not."""


@dataclass(frozen=True)
class Moe:
    """Tokens whose cost depends on the experts they meet: units of the dense token's time, in millionths.

    Independent experts: t tokens of one request in one step cost ``t mean + z sqrt(t) spread``, drawn anew each step.
    The same experts throughout: ``t (mean + z spread)``, one draw a request. z has mean 0 and spread 1.
    """

    mean: tuple[int, ...]
    """By type index."""
    spread: tuple[int, ...]
    independent: bool


@dataclass(frozen=True)
class Disaggregated:
    """Two pools and the link between them: each prefill replica sends one KV after the other."""

    prefill_replicas: int
    decode_replicas: int
    kv_bytes_per_token: int
    link_bytes_per_s: Fraction | None
    """None: the KV moves in no time."""


def draw(seed: int, position: int) -> int:
    """A number below ``CERTAIN`` that (seed, position) alone decides (the finalizer of SplitMix64)."""
    z = (seed + position * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return (z ^ (z >> 31)) >> (64 - DRAW_BITS)


def accepted_drafts(speculation: Speculation, kind: int, seed: int, sampled: int) -> int:
    """How many drafts of a request of type ``kind`` that has ``sampled`` output tokens are accepted, one by one."""
    chance = speculation.accepted[kind]
    count = 0
    while count < speculation.drafts and draw(seed, sampled + count) < chance:
        count += 1
    return count


def tokens_a_step(acceptance: float, drafts: int) -> float:
    """Mean tokens of a target step: ``(1 - a^(k+1)) / (1 - a)``."""
    return float(drafts + 1) if acceptance == 1 else (1 - acceptance ** (drafts + 1)) / (1 - acceptance)


def spread_of(tokens: int, spread: int, *, independent: bool) -> int:
    """Spread of the cost of so many tokens, of which one has ``spread``: times ``sqrt(T)``, or times T."""
    return (isqrt(tokens << (2 * ROOT_BITS)) * spread) >> ROOT_BITS if independent else tokens * spread


def ranked_cost(tokens: int, mean: int, spread: int, risk: int, *, independent: bool) -> int:
    """``T E + lambda sqrt(T) sd`` or ``T E + lambda T sd``; ``mean``, ``spread``, ``risk`` and result in millionths."""
    return tokens * mean + risk * spread_of(tokens, spread, independent=independent) // MICRO


def drawn_cost(moe: Moe, kind: int, seed: int, position: int, tokens: int) -> int:
    """Cost in millionths of ``tokens`` tokens that a request computes in a step from ``position`` on; at least 0."""
    # ones among 16 bits have mean 8 and spread 2
    ones = (draw(seed ^ OF_EXPERTS, position if moe.independent else 0) & 0xFFFF).bit_count()
    spread = spread_of(tokens, moe.spread[kind], independent=moe.independent)
    return max(0, tokens * moe.mean[kind] + (spread * (ones - 8) >> 1))


def transfer_ps(tokens: int, disaggregated: Disaggregated) -> int:
    """Time that the KV of so many tokens takes on an idle link, rounded up to a whole picosecond."""
    if disaggregated.link_bytes_per_s is None:
        return 0
    bytes_ = tokens * disaggregated.kv_bytes_per_token
    return -(-bytes_ * 10**12 * disaggregated.link_bytes_per_s.denominator // disaggregated.link_bytes_per_s.numerator)
