"""What ticks of the cohort cost in time and blocks. T(k), the time of k ticks, is a quadratic in k."""

from __future__ import annotations

import math

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import inlined
from fairreplay.sandbox.compiled.members import full_blocks
from fairreplay.sandbox.engine import Int64s


@inlined
def ticks_ps(first: int, growth: int, k: int) -> int:
    """Time of ``k`` ticks: the first takes ``first + growth``, each later one ``growth`` more."""
    return k * first + growth * ((k * (k + 1)) >> 1)


@inlined
def ticks_until(first: int, growth: int, span: int) -> int:
    """The fewest ticks that take at least ``span`` > 0; at least one tick takes time."""
    half = first + 0.5 * growth
    k = np.int64(2.0 * span / (half + math.sqrt(half * half + 2.0 * growth * span)))
    while k > 1 and ticks_ps(first, growth, k - 1) >= span:
        k -= 1
    while ticks_ps(first, growth, k) < span:
        k += 1
    return max(1, k)


@inlined
def growth_of(e: Int64s, phases: Int64s, k: int) -> int:
    """Blocks that members need for the next ``k`` ticks."""
    size = e[at.BLOCK_SIZE]
    phase = e[at.PHASE]
    if k == 1:
        return phases[phase]
    cycles = full_blocks(e, k)
    blocks = cycles * e[at.GROWING]
    for later in range(phase, phase + k - cycles * size):
        blocks += phases[later]
    return blocks


@inlined
def ticks_with_blocks(e: Int64s, phases: Int64s, most: int) -> int:
    """Ticks, up to ``most``, for which the free blocks last; the first is known to have its blocks."""
    size = e[at.BLOCK_SIZE]
    growing = e[at.GROWING]
    if (full_blocks(e, most) + 1) * growing <= e[at.FREE]:
        return most
    cycles = e[at.FREE] // growing
    left = e[at.FREE] - cycles * growing
    phase = e[at.PHASE]
    while phases[phase] <= left:
        left -= phases[phase]
        phase += 1
    return min(most, cycles * size + phase - e[at.PHASE])


@inlined
def advance_ticks(e: Int64s, k: int) -> None:
    e[at.TICK] += k
    phase = e[at.PHASE] + k
    size = e[at.BLOCK_SIZE]
    if phase >= size:
        phase = phase - size if phase < 2 * size else phase % size
    e[at.PHASE] = phase
