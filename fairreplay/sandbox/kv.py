"""The KV cache of one replica, in blocks, with vLLM's rules.

``CountedKv`` counts blocks; it is exact when prefix caching is off. ``PrefixKv`` keeps every block's content and the
order of the free list, because eviction order decides which prefixes stay. Both have the same methods:

``owned(r)`` blocks that request r holds; ``hit(r, tokens)`` the prefix it would find for its first ``tokens`` known
tokens; ``admit`` and ``grow`` take blocks; ``fill`` marks blocks as full of known tokens; ``release`` gives all back.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from fairreplay.sandbox.engine import Workload

BlockKey = tuple[int, int]


@dataclass(frozen=True)
class Hit:
    """A cached prefix: its blocks from the first on, and how many of them nobody references now.

    Such evictable blocks are counted as free, but using them takes them off the free list.
    """

    blocks: tuple[int, ...]
    count: int
    evictable: int


NO_HIT = Hit((), 0, 0)


class CountedKv:
    """Blocks as numbers: who holds how many, how many are free (negative after a decrease of the cache)."""

    def __init__(self, blocks: int) -> None:
        self.total = blocks
        self.free = blocks
        self._owned: dict[int, int] = {}

    def owned(self, request: int) -> int:
        return self._owned.get(request, 0)

    def hit(self, request: int, tokens: int) -> Hit:
        return NO_HIT

    def admit(self, request: int, hit: Hit, blocks: int) -> None:
        self._owned[request] = blocks
        self.free -= blocks

    def grow(self, request: int, blocks: int) -> None:
        """Take ``blocks`` more for a request that runs."""
        self._owned[request] += blocks
        self.free -= blocks

    def fill(self, request: int, tokens: int) -> None:
        """The first ``tokens`` tokens of the request are known and scheduled."""

    def release(self, request: int) -> None:
        self.free += self._owned.pop(request)

    def resize(self, blocks: int) -> None:
        self.free += blocks - self.total
        self.total = blocks


class PrefixKv:
    """Blocks with content: vLLM's prefix cache with reference counts and its eviction order.

    A block's identity is its tokens and everything before it. The free list is the order of eviction: blocks are taken
    from the front; a block that nobody references any more goes to the front if it holds no cached content, else to
    the back, the last block of a request before its first ones.
    """

    def __init__(self, blocks: int, block_size: int, workload: Workload, *, to_back: bool = False) -> None:
        """``to_back``: blocks without cached content go to the back too (vLLM before 0.27)."""
        self.total = blocks
        self.block_size = block_size
        self._to_back = to_back
        self._workload = workload
        self._chains = _prefix_chains(workload.source or workload)
        self._next_block = blocks
        self._doomed = 0
        self._free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(blocks))
        self._references: dict[int, int] = {}
        self._key_of: dict[int, BlockKey] = {}
        self._cached: dict[BlockKey, OrderedDict[int, None]] = {}
        self._blocks: dict[int, list[int]] = {}
        self._filled: dict[int, int] = {}

    @property
    def free(self) -> int:
        return len(self._free) - self._doomed

    def owned(self, request: int) -> int:
        return len(self._blocks.get(request, ()))

    def hit(self, request: int, tokens: int) -> Hit:
        """The longest run of cached blocks from the start; at least one of ``tokens`` is always left to compute."""
        found: list[int] = []
        for index in range((tokens - 1) // self.block_size):
            holders = self._cached.get(self._key(request, index))
            if not holders:
                break
            found.append(next(iter(holders)))
        evictable = sum(1 for block in found if not self._references.get(block))
        return Hit(tuple(found), len(found), evictable)

    def admit(self, request: int, hit: Hit, blocks: int) -> None:
        """Take the hit's blocks and new ones up to ``blocks`` in all."""
        for block in hit.blocks:
            if not self._references.get(block):
                del self._free[block]
            self._references[block] = self._references.get(block, 0) + 1
        self._blocks[request] = list(hit.blocks)
        self._filled[request] = hit.count
        self.grow(request, blocks - hit.count)

    def grow(self, request: int, blocks: int) -> None:
        own = self._blocks[request]
        for _ in range(blocks):
            block, _none = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            own.append(block)

    def fill(self, request: int, tokens: int) -> None:
        own = self._blocks[request]
        full = tokens // self.block_size
        for index in range(self._filled[request], full):
            key = self._key(request, index)
            self._key_of[own[index]] = key
            self._cached.setdefault(key, OrderedDict())[own[index]] = None
        self._filled[request] = max(self._filled[request], full)

    def release(self, request: int) -> None:
        del self._filled[request]
        unreferenced = []
        for block in reversed(self._blocks.pop(request)):
            self._references[block] -= 1
            if not self._references[block]:
                unreferenced.append(block)
        for block in unreferenced:
            if self._to_back or block in self._key_of:
                self._free[block] = None
        for block in reversed([block for block in unreferenced if block not in self._free]):
            self._free[block] = None
            self._free.move_to_end(block, last=False)
        self._drop_doomed()

    def resize(self, blocks: int) -> None:
        """New blocks join the front of the free list; lost ones leave from there as they become free."""
        change = blocks - self.total - self._doomed
        self.total = blocks
        self._doomed = max(0, -change)
        for _ in range(max(0, change)):
            self._free[self._next_block] = None
            self._free.move_to_end(self._next_block, last=False)
            self._next_block += 1
        self._drop_doomed()

    def forget_all(self) -> None:
        """Nothing is cached any more; for a moment at which nobody holds a block. Their order stays."""
        self._key_of.clear()
        self._cached.clear()

    def _drop_doomed(self) -> None:
        while self._doomed and self._free:
            block, _none = self._free.popitem(last=False)
            self._forget(block)
            self._doomed -= 1

    def _forget(self, block: int) -> None:
        key = self._key_of.pop(block, None)
        if key is not None:
            holders = self._cached[key]
            del holders[block]
            if not holders:
                del self._cached[key]

    def _key(self, request: int, index: int) -> BlockKey:
        """Identity of the request's block ``index``: shared if it lies in a prompt prefix with ids, else its own."""
        end = (index + 1) * self.block_size
        chain = self._chains[request if self._workload.of is None else int(self._workload.of[request])]
        covered = min(int(self._workload.prompt_tokens[request]), len(chain) * self._workload.prefix_block_tokens)
        if end <= covered:
            return chain[(end - 1) // self._workload.prefix_block_tokens], index
        return -1 - request, index


def _prefix_chains(workload: Workload) -> list[list[int]]:
    """For each request, a number for each prefix id that stands for that id and all ids before it."""
    numbers: dict[tuple[int, int], int] = {}
    chains = []
    for request in range(len(workload)):
        parent = -1
        chain = []
        for prefix_id in workload.prefix_ids[workload.prefix_start[request] : workload.prefix_start[request + 1]]:
            parent = numbers.setdefault((parent, int(prefix_id)), len(numbers))
            chain.append(parent)
        chains.append(chain)
    return chains
