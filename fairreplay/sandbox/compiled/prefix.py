"""The prefix cache in arrays: what ``kv.PrefixKv`` says, with linked lists and a hash table.

The free list is a ring of blocks in order of eviction. The holders of one key form a ring in order of entry; the hash
table (linear probing, no tombstones) leads from a key to the first of them. ``own`` has one row of blocks a slot.
"""

from __future__ import annotations

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import compiled, inlined, unsigned
from fairreplay.sandbox.engine import Int64s


@inlined
def _bucket(table: Int64s, key: int) -> int:
    spread = unsigned(key) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(spread >> np.uint64(20)) & (len(table) // 2 - 1)


@compiled
def _find(table: Int64s, key: int) -> int:
    """Place of ``key`` in the table, or of the empty entry where it would stand; even entries keys, odd ones blocks."""
    mask = len(table) // 2 - 1
    entry = _bucket(table, key)
    while table[2 * entry + 1] != 0 and table[2 * entry] != key:
        entry = (entry + 1) & mask
    return 2 * entry


@compiled
def _erase(table: Int64s, place: int) -> None:
    """Empty a place and move later entries up, so that every key is found without gaps."""
    mask = len(table) // 2 - 1
    hole = place // 2
    entry = (hole + 1) & mask
    while table[2 * entry + 1] != 0:
        home = _bucket(table, table[2 * entry])
        if ((entry - home) & mask) >= ((entry - hole) & mask):
            table[2 * hole] = table[2 * entry]
            table[2 * hole + 1] = table[2 * entry + 1]
            hole = entry
        entry = (entry + 1) & mask
    table[2 * hole + 1] = 0


@inlined
def _unlink_free(blocks: Int64s, block: int) -> None:
    before = blocks[block + at.BEFORE]
    after = blocks[block + at.AFTER]
    blocks[before + at.AFTER] = after
    blocks[after + at.BEFORE] = before


@inlined
def _link_free(blocks: Int64s, block: int, before: int) -> None:
    after = blocks[before + at.AFTER]
    blocks[block + at.BEFORE] = before
    blocks[block + at.AFTER] = after
    blocks[before + at.AFTER] = block
    blocks[after + at.BEFORE] = block


@inlined
def _forget(blocks: Int64s, table: Int64s, block: int) -> None:
    """``block`` no longer holds cached content."""
    if blocks[block + at.IS_CACHED] == 0:
        return
    blocks[block + at.IS_CACHED] = 0
    after = blocks[block + at.HOLDER_AFTER]
    place = _find(table, blocks[block + at.KEY])
    if after == block:
        _erase(table, place)
        return
    before = blocks[block + at.HOLDER_BEFORE]
    blocks[before + at.HOLDER_AFTER] = after
    blocks[after + at.HOLDER_BEFORE] = before
    if table[place + 1] == block:
        table[place + 1] = after


@inlined
def _take(blocks: Int64s, table: Int64s) -> int:
    """The next block of the free list, emptied."""
    block = blocks[at.AFTER]
    _unlink_free(blocks, block)
    _forget(blocks, table, block)
    return block


@inlined
def key_of(
    e: Int64s, chains: Int64s, prefix_start: Int64s, prefix_tokens: int, prompt: Int64s, request: int, index: int
) -> int:
    """Identity of the request's block ``index``: shared if it lies in a prompt prefix with ids, else its own."""
    end = (index + 1) * e[at.BLOCK_SIZE]
    start = prefix_start[request]
    if end <= min(prompt[request], (prefix_start[request + 1] - start) * prefix_tokens):
        return (chains[start + (end - 1) // prefix_tokens] << at.INDEX_BITS) + index
    return ((-1 - request) << at.INDEX_BITS) + index


@compiled
def look_up(
    e: Int64s,
    blocks: Int64s,
    table: Int64s,
    found: Int64s,
    chains: Int64s,
    prefix_start: Int64s,
    prefix_tokens: int,
    prompt: Int64s,
    request: int,
    tokens: int,
) -> None:
    """Put the longest run of cached blocks from the start into ``found``; one token is always left to compute."""
    count = 0
    evictable = 0
    for index in range((tokens - 1) // e[at.BLOCK_SIZE]):
        place = _find(table, key_of(e, chains, prefix_start, prefix_tokens, prompt, request, index))
        block = table[place + 1]
        if block == 0:
            break
        found[count] = block
        count += 1
        if blocks[block + at.REFERENCES] == 0:
            evictable += 1
    e[at.HIT] = count
    e[at.EVICTABLE] = evictable


@compiled
def take_hit(e: Int64s, run: Int64s, blocks: Int64s, own: Int64s, found: Int64s, slot: int) -> None:
    """The slot's request shares the blocks that were found."""
    row = slot // at.SLOT
    for index in range(e[at.HIT]):
        block = found[index]
        if blocks[block + at.REFERENCES] == 0:
            _unlink_free(blocks, block)
            e[at.FREE] -= 1
        blocks[block + at.REFERENCES] += 1
        own[row, index] = block
    run[slot + at.OWNED] = e[at.HIT]
    run[slot + at.FILLED] = e[at.HIT]


@compiled
def take_blocks(e: Int64s, run: Int64s, blocks: Int64s, table: Int64s, own: Int64s, slot: int, count: int) -> None:
    row = slot // at.SLOT
    owned = run[slot + at.OWNED]
    for index in range(owned, owned + count):
        block = _take(blocks, table)
        blocks[block + at.REFERENCES] = 1
        own[row, index] = block
    run[slot + at.OWNED] = owned + count
    e[at.FREE] -= count


@compiled
def fill(
    e: Int64s,
    run: Int64s,
    blocks: Int64s,
    table: Int64s,
    own: Int64s,
    chains: Int64s,
    prefix_start: Int64s,
    prefix_tokens: int,
    prompt: Int64s,
    slot: int,
    tokens: int,
) -> None:
    """The blocks that the first ``tokens`` tokens fill enter the cache."""
    full = tokens // e[at.BLOCK_SIZE]
    filled = run[slot + at.FILLED]
    if full <= filled:
        return
    row = slot // at.SLOT
    request = run[slot + at.REQUEST]
    for index in range(filled, full):
        block = own[row, index]
        key = key_of(e, chains, prefix_start, prefix_tokens, prompt, request, index)
        place = _find(table, key)
        first = table[place + 1]
        if first == 0:
            table[place] = key
            table[place + 1] = block
            blocks[block + at.HOLDER_BEFORE] = block
            blocks[block + at.HOLDER_AFTER] = block
        else:
            last = blocks[first + at.HOLDER_BEFORE]
            blocks[block + at.HOLDER_BEFORE] = last
            blocks[block + at.HOLDER_AFTER] = first
            blocks[last + at.HOLDER_AFTER] = block
            blocks[first + at.HOLDER_BEFORE] = block
        blocks[block + at.KEY] = key
        blocks[block + at.IS_CACHED] = 1
    run[slot + at.FILLED] = full


@compiled
def give_back(e: Int64s, run: Int64s, blocks: Int64s, table: Int64s, own: Int64s, found: Int64s, slot: int) -> None:
    """Cached blocks that nobody references go to the back of the free list, others to its front (or back: older)."""
    row = slot // at.SLOT
    uncached = 0
    freed = 0
    for index in range(run[slot + at.OWNED] - 1, -1, -1):
        block = own[row, index]
        blocks[block + at.REFERENCES] -= 1
        if blocks[block + at.REFERENCES] == 0:
            freed += 1
            if blocks[block + at.IS_CACHED] != 0 or e[at.OLDER] & at.FREES_TO_BACK != 0:
                _link_free(blocks, block, blocks[at.BEFORE])
            else:
                found[uncached] = block
                uncached += 1
    for place in range(uncached - 1, -1, -1):
        _link_free(blocks, found[place], 0)
    e[at.FREE] += freed
    _drop_doomed(e, blocks, table)


@compiled
def _drop_doomed(e: Int64s, blocks: Int64s, table: Int64s) -> None:
    # FREE counts the free list less the doomed blocks, so it stays the same
    while e[at.DOOMED] > 0 and blocks[at.AFTER] != 0:
        _take(blocks, table)
        e[at.DOOMED] -= 1


@compiled
def resize_cache(e: Int64s, blocks: Int64s, table: Int64s, size: int) -> None:
    """New blocks join the front of the free list; lost ones leave from there as they become free."""
    change = size - e[at.CACHE_BLOCKS] - e[at.DOOMED]
    e[at.FREE] += size - e[at.CACHE_BLOCKS]
    e[at.CACHE_BLOCKS] = size
    e[at.DOOMED] = max(0, -change)
    for _ in range(change):
        block = e[at.NEXT_BLOCK]
        e[at.NEXT_BLOCK] = block + at.BLOCK
        _link_free(blocks, block, 0)
    _drop_doomed(e, blocks, table)


@compiled
def forget_all(e: Int64s, blocks: Int64s, table: Int64s) -> None:
    """Nothing is cached any more; nobody holds a block, and their order stays."""
    for block in range(at.BLOCK, e[at.NEXT_BLOCK], at.BLOCK):
        blocks[block + at.IS_CACHED] = 0
    for place in range(len(table)):
        table[place] = 0


@compiled
def first_blocks(e: Int64s, blocks: Int64s, size: int) -> None:
    """An empty cache: the free list in order."""
    e[at.CACHE_BLOCKS] = size
    e[at.FREE] = size
    for _ in range(size):
        block = e[at.NEXT_BLOCK]
        e[at.NEXT_BLOCK] = block + at.BLOCK
        _link_free(blocks, block, blocks[at.BEFORE])


@compiled
def number_chains(prefix_start: Int64s, prefix_ids: Int64s, table: Int64s, chains: Int64s) -> None:
    """For each prefix id, a number that stands for that id and all ids before it.

    ``table`` has three numbers an entry: parent, id, number + 1 (0 where the entry is empty).
    """
    mask = len(table) // 3 - 1
    numbers = 0
    for request in range(len(prefix_start) - 1):
        parent = -1
        for position in range(prefix_start[request], prefix_start[request + 1]):
            name = prefix_ids[position]
            spread = (unsigned(parent) * np.uint64(0x9E3779B97F4A7C15)) ^ (
                unsigned(name) * np.uint64(0xC2B2AE3D27D4EB4F)
            )
            spread = (spread ^ (spread >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            entry = np.int64(spread >> np.uint64(20)) & mask
            while table[3 * entry + 2] != 0 and (table[3 * entry] != parent or table[3 * entry + 1] != name):
                entry = (entry + 1) & mask
            if table[3 * entry + 2] == 0:
                table[3 * entry] = parent
                table[3 * entry + 1] = name
                numbers += 1
                table[3 * entry + 2] = numbers
            parent = table[3 * entry + 2] - 1
            chains[position] = parent
