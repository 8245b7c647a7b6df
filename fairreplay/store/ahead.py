"""Blocks made by one thread while another is busy with the last one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Block = TypeVar("Block")


def one_ahead(blocks: Iterable[Block]) -> Iterator[Block]:
    """``blocks`` in their order; the next one is under way while the caller has one. Errors come where they are met."""
    source = iter(blocks)

    def following() -> list[Block]:
        for block in source:
            return [block]
        return []

    with ThreadPoolExecutor(1, "ahead") as thread:
        under_way = thread.submit(following)
        while block := under_way.result():
            under_way = thread.submit(following)
            yield block[0]
