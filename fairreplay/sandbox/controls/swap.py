"""Preemption: what a victim would need to recover, and victims whose KV goes to host memory and comes back."""

from __future__ import annotations

from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.controls.events import note
from fairreplay.sandbox.controls.longs import MILLION
from fairreplay.sandbox.controls.places import Ints


def is_batch_full(c: Ints, budget: int) -> bool:
    """Whether the last batch was too full for anybody to be preempted for a head."""
    return c[at.VOLUNTARY] != 0 and c[at.UTILISED] * MILLION >= c[at.UTILISATION_MAX] * budget


def recovers_in_time(c: Ints, computed: int, base_ps: int, prefill_ps: int, budget: int) -> bool:
    """Whether a victim would get its computed tokens back soon enough: from host memory, or in prefills of its own."""
    if c[at.VOLUNTARY] == 0:
        return True
    if c[at.SWAPS] and c[at.SWAPPED] + computed <= c[at.HOST_TOKENS]:
        return computed * c[at.SWAP_TOKEN_PS] < c[at.RECOVERY_MAX]
    return (computed + budget - 1) // budget * base_ps + computed * prefill_ps < c[at.RECOVERY_MAX]


def swap_out(c: Ints, t: Ints, w: Ints, ticket: int, computed: int, now_ps: int) -> None:
    """A victim loses its blocks; what it had computed goes to host memory if that has room."""
    if c[at.SWAPS] == 0 or computed == 0:
        return
    if c[at.SWAPPED] + computed > c[at.HOST_TOKENS]:
        note(c, w, now_ps, at.SWAP_FULL, ticket, computed)
        return
    c[at.SWAPPED] += computed
    c[at.SWAP_PS] += computed * c[at.SWAP_TOKEN_PS]
    t[ticket * at.TICKET + at.HOST] = computed
    note(c, w, now_ps, at.SWAPPED_OUT, ticket, computed)


def in_host(t: Ints, ticket: int) -> int:
    """Tokens of a waiting ticket that are in host memory."""
    return t[ticket * at.TICKET + at.HOST]


def swap_in(c: Ints, t: Ints, w: Ints, ticket: int, cached: int, now_ps: int) -> None:
    """A victim is admitted again: what the prefix cache does not hold of its tokens comes back from host memory."""
    tokens = t[ticket * at.TICKET + at.HOST]
    if tokens > cached:
        c[at.SWAP_PS] += (tokens - cached) * c[at.SWAP_TOKEN_PS]
        note(c, w, now_ps, at.SWAPPED_IN, ticket, tokens - cached)
    c[at.SWAPPED] -= tokens
    t[ticket * at.TICKET + at.HOST] = 0


def wait_for_swaps(c: Ints) -> int:
    """Picoseconds that the next step takes longer."""
    waits = c[at.SWAP_PS]
    c[at.SWAP_PS] = 0
    return waits
