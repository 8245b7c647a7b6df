"""Speculation, costs of experts and precisions in the compiled engine: what ``sandbox.extras`` says, in arrays.

All of it is called where ``layout.EXTRAS`` is true, which is in the part ``extra_stepper`` alone: the other parts are
compiled as if it were not there.
"""

from __future__ import annotations

import math

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import compiled, matrix, unsigned, vector
from fairreplay.sandbox.compiled.prefix import forget_all
from fairreplay.sandbox.engine import Int64s
from fairreplay.sandbox.extras import DRAW_BITS, MICRO, OF_EXPERTS, ROOT_BITS


@compiled
def _draw(seed: int, position: int) -> int:
    """As ``extras.draw``."""
    z = unsigned(seed) + unsigned(position) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((z ^ (z >> np.uint64(31))) >> np.uint64(64 - DRAW_BITS))


# ---- speculation ----


@compiled
def more_tokens(e: Int64s, run: Int64s, slot: int, prefilling: bool) -> int:
    """Accepted drafts of a request that decodes, up to the end of its output."""
    if prefilling:
        return 0
    request = run[slot + at.REQUEST]
    kinds, seeds = vector(e, at.TO_KIND), vector(e, at.TO_DRAW)
    chance = matrix(e, at.TO_BY_KIND)[at.ACCEPTED, kinds[request]]
    sampled = run[slot + at.KNOWN] + run[slot + at.IN_FLIGHT] - run[slot + at.PROMPT]
    count = 0
    while count < e[at.DRAFTS] and _draw(seeds[request], sampled + count) < chance:
        count += 1
    return min(count, run[slot + at.OUTPUT] - sampled - 1)


@compiled
def mark_drafts(run: Int64s, slot: int, prefilling: bool) -> None:
    """Note whether drafts go with the tokens that the slot is given."""
    flags = run[slot + at.FLAGS] & ~at.DRAFTED
    run[slot + at.FLAGS] = flags if prefilling else flags | at.DRAFTED


@compiled
def draft_step_ps(e: Int64s, run: Int64s, batch: Int64s) -> int:
    """Time that the drafts of the step add to it, and whom those that were rejected hold up."""
    tenants, details = vector(e, at.TO_TENANT), matrix(e, at.TO_DETAILS)
    by_tenant = matrix(e, at.TO_BY_TENANT)  # zero between two calls
    drafts, each_ps = e[at.DRAFTS], e[at.DRAFT_PS]
    total = 0
    drafted = 0
    for place in range(e[at.BATCH]):
        slot = batch[place]
        tenant = tenants[run[slot + at.REQUEST]]
        by_tenant[0, tenant] += 1
        if run[slot + at.FLAGS] & at.DRAFTED:
            rejected = drafts - (run[slot + at.TOKENS] - 1)
            by_tenant[1, tenant] += rejected
            total += rejected
            drafted += drafts
    for place in range(e[at.BATCH]):
        slot = batch[place]
        request = run[slot + at.REQUEST]
        tenant = tenants[request]
        details[at.HELD_UP, request] += (total - by_tenant[1, tenant]) * each_ps
        if run[slot + at.FLAGS] & at.DRAFTED:
            rejected = drafts - (run[slot + at.TOKENS] - 1)
            details[at.DRAFTED_COUNT, request] += drafts
            details[at.REJECTED, request] += rejected
            details[at.DECODE_STEPS_OF, request] += 1
            details[at.WASTED, request] += rejected * e[at.VERIFY_PS]
            details[at.IMPOSED, request] += rejected * (e[at.BATCH] - by_tenant[0, tenant]) * each_ps
    for place in range(e[at.BATCH]):
        tenant = tenants[run[batch[place] + at.REQUEST]]
        by_tenant[0, tenant] = 0
        by_tenant[1, tenant] = 0
    return drafted * each_ps


# ---- experts ----


@compiled
def _root(number: int) -> int:
    """The integer square root."""
    root = np.int64(math.sqrt(number))
    while root * root > number:
        root -= 1
    while (root + 1) * (root + 1) <= number:
        root += 1
    return root


@compiled
def token_ps(e: Int64s, run: Int64s, slot: int, prefilling: bool) -> int:
    """What the slot's tokens take of the step; called before they are computed."""
    request = run[slot + at.REQUEST]
    kind = vector(e, at.TO_KIND)[request]
    by_kind = matrix(e, at.TO_BY_KIND)
    tokens = run[slot + at.TOKENS] if prefilling else np.int64(1)
    independent = e[at.TOKEN_COSTS] == at.INDEPENDENT
    position = run[slot + at.COMPUTED] if independent else np.int64(0)
    bits = _draw(vector(e, at.TO_DRAW)[request] ^ OF_EXPERTS, position) & 0xFFFF
    ones = 0
    while bits:
        bits &= bits - 1
        ones += 1
    spread = tokens * by_kind[at.SPREAD, kind]
    if independent:
        spread = (_root(tokens << (2 * ROOT_BITS)) * by_kind[at.SPREAD, kind]) >> ROOT_BITS
    cost = max(0, tokens * by_kind[at.MEAN, kind] + ((spread * (ones - 8)) >> 1))
    rate = e[at.PREFILL_PS] if prefilling else e[at.DECODE_PS]
    return rate * (cost // MICRO) + rate * (cost % MICRO) // MICRO


# ---- precisions ----


@compiled
def has_other_precision(e: Int64s, request: int) -> bool:
    """Whether the last batch had another precision than ``request``."""
    if e[at.PRECISION_SWITCH] == 0 or e[at.PRECISION] == at.NONE:
        return False
    return vector(e, at.TO_PRECISION)[request] != e[at.PRECISION]


@compiled
def switch_precision(e: Int64s, blocks: Int64s, table: Int64s, request: int) -> None:
    """The batch has the precision of ``request``, which is admitted."""
    if has_other_precision(e, request):
        matrix(e, at.TO_DETAILS)[at.SWITCHED, request] = 1
        if e[at.DROPS]:
            forget_all(e, blocks, table)
    e[at.PRECISION] = vector(e, at.TO_PRECISION)[request]
