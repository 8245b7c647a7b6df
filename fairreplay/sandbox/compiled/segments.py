"""The prefix cache of requests that share no prefix: runs of blocks instead of blocks.

Nobody then finds any block but its own, and only after a preemption. So of the free list, which is the order of
eviction, it is enough to know which runs of blocks still belong to a request that waits to resume (*live*), in what
order, with how many blocks of no further use (*dead*) between them. A live run holds the request's first blocks, the
last of them in front, as they are evicted.

Blocks are taken from the front of the list by lowering FREE; ``settle`` makes up for it when the order matters next,
so that decoders may leap. LISTED is the number of blocks in the runs, FREE + DOOMED the length of the list.

A run takes the place of a block in ``blocks``: BEFORE, AFTER, RUN_BLOCKS and RUN_OWNER (NONE: dead).
"""

from __future__ import annotations

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import compiled, inlined
from fairreplay.sandbox.engine import Int64s


@inlined
def _insert(e: Int64s, blocks: Int64s, before: int, owner: int, count: int) -> int:
    run = e[at.SPARE_RUN]
    if run != 0:
        e[at.SPARE_RUN] = blocks[run + at.AFTER]
    else:
        run = e[at.NEXT_BLOCK]
        e[at.NEXT_BLOCK] = run + at.BLOCK
    after = blocks[before + at.AFTER]
    blocks[run + at.BEFORE] = before
    blocks[run + at.AFTER] = after
    blocks[before + at.AFTER] = run
    blocks[after + at.BEFORE] = run
    blocks[run + at.RUN_BLOCKS] = count
    blocks[run + at.RUN_OWNER] = owner
    return run


@inlined
def _take_out(e: Int64s, blocks: Int64s, run: int) -> None:
    before = blocks[run + at.BEFORE]
    after = blocks[run + at.AFTER]
    blocks[before + at.AFTER] = after
    blocks[after + at.BEFORE] = before
    blocks[run + at.AFTER] = e[at.SPARE_RUN]
    e[at.SPARE_RUN] = run


@inlined
def _join_dead(e: Int64s, blocks: Int64s, before: int) -> None:
    """Make one of ``before`` and its follower if both are dead runs: so there is at most one more dead than live."""
    after = blocks[before + at.AFTER]
    if before != 0 and after != 0 and blocks[before + at.RUN_OWNER] < 0 and blocks[after + at.RUN_OWNER] < 0:
        blocks[before + at.RUN_BLOCKS] += blocks[after + at.RUN_BLOCKS]
        _take_out(e, blocks, after)


@compiled
def settle(e: Int64s, blocks: Int64s, kept: Int64s) -> None:
    """Take the blocks off the front of the list that FREE says are gone."""
    gone = e[at.LISTED] - max(0, e[at.FREE])
    e[at.LISTED] -= gone
    while gone > 0:
        run = blocks[at.AFTER]
        count = blocks[run + at.RUN_BLOCKS]
        if count > gone:
            blocks[run + at.RUN_BLOCKS] = count - gone
            return
        owner = blocks[run + at.RUN_OWNER]
        if owner >= 0:
            kept[owner * at.KEPT + at.KEPT_RUN] = 0
        _take_out(e, blocks, run)
        gone -= count


@compiled
def free_run(e: Int64s, blocks: Int64s, kept: Int64s, owner: int, cached: int, uncached: int) -> None:
    """Blocks come back: cached ones to the back of the list, for ``owner`` (NONE: for nobody), others to its front."""
    settle(e, blocks, kept)
    if cached > 0:
        last = blocks[at.BEFORE]
        if owner < 0 and last != 0 and blocks[last + at.RUN_OWNER] < 0:
            blocks[last + at.RUN_BLOCKS] += cached
        else:
            run = _insert(e, blocks, last, owner, cached)
            if owner >= 0:
                kept[owner * at.KEPT + at.KEPT_RUN] = run
    _push_front(e, blocks, uncached)
    e[at.LISTED] += cached + uncached
    e[at.FREE] += cached + uncached
    _drop_doomed(e, blocks, kept)


@inlined
def _push_front(e: Int64s, blocks: Int64s, count: int) -> None:
    if count > 0:
        first = blocks[at.AFTER]
        if first != 0 and blocks[first + at.RUN_OWNER] < 0:
            blocks[first + at.RUN_BLOCKS] += count
        else:
            _insert(e, blocks, 0, at.NONE, count)


@inlined
def _drop_doomed(e: Int64s, blocks: Int64s, kept: Int64s) -> None:
    if e[at.DOOMED] > 0:
        e[at.DOOMED] = max(0, e[at.DOOMED] - e[at.LISTED])
        settle(e, blocks, kept)


@compiled
def resize_runs(e: Int64s, blocks: Int64s, kept: Int64s, size: int) -> None:
    """New blocks join the front of the free list; lost ones leave from there as they become free."""
    settle(e, blocks, kept)
    change = size - e[at.CACHE_BLOCKS] - e[at.DOOMED]
    e[at.FREE] += size - e[at.CACHE_BLOCKS]
    e[at.CACHE_BLOCKS] = size
    e[at.DOOMED] = max(0, -change)
    _push_front(e, blocks, change)
    e[at.LISTED] += max(0, change)
    _drop_doomed(e, blocks, kept)


@compiled
def first_run(e: Int64s, blocks: Int64s, size: int) -> None:
    """An empty cache."""
    e[at.CACHE_BLOCKS] = size
    e[at.FREE] = size
    e[at.LISTED] = size
    _push_front(e, blocks, size)


@compiled
def look_up_run(e: Int64s, blocks: Int64s, kept: Int64s, request: int) -> None:
    """HIT and EVICTABLE: the blocks that ``request`` finds again, all that are left of its run.

    One of its known tokens is always left to compute, so the block that the last of them fills must not be found. It
    never is: it can be cached only if the request was given up in the very pass that filled it, and whoever it was
    given up for took at least that block, which stands first in its run.
    """
    settle(e, blocks, kept)
    run = kept[request * at.KEPT + at.KEPT_RUN]
    e[at.HIT] = blocks[run + at.RUN_BLOCKS] if run != 0 else 0
    e[at.EVICTABLE] = e[at.HIT]


@compiled
def take_run(e: Int64s, blocks: Int64s, kept: Int64s, request: int, size: int) -> None:
    """``request`` resumes with ``size`` blocks: those that it found, and new ones."""
    run = kept[request * at.KEPT + at.KEPT_RUN]
    if run != 0:
        e[at.LISTED] -= blocks[run + at.RUN_BLOCKS]
        before = blocks[run + at.BEFORE]
        _take_out(e, blocks, run)
        _join_dead(e, blocks, before)
        kept[request * at.KEPT + at.KEPT_RUN] = 0
    e[at.FREE] -= size


@compiled
def bury_run(e: Int64s, blocks: Int64s, kept: Int64s, request: int) -> None:
    """``request``, which waits, will never resume."""
    run = kept[request * at.KEPT + at.KEPT_RUN]
    if run != 0:
        kept[request * at.KEPT + at.KEPT_RUN] = 0
        blocks[run + at.RUN_OWNER] = at.NONE
        before = blocks[run + at.BEFORE]
        _join_dead(e, blocks, run)
        _join_dead(e, blocks, before)
