"""Blocks made by another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fairreplay.store.ahead import one_ahead


def test_blocks_come_in_their_order_and_one_is_made_ahead() -> None:
    made: list[int] = []
    second = threading.Event()

    def blocks() -> Iterator[int]:
        for number in range(5):
            made.append(number)
            if number == 1:
                second.set()
            yield number

    found = one_ahead(blocks())
    assert next(found) == 0
    assert second.wait(10)
    assert made == [0, 1]
    assert list(found) == [1, 2, 3, 4]
    assert list(one_ahead([])) == []


def test_an_error_comes_after_the_blocks_before_it() -> None:
    def blocks() -> Iterator[str]:
        yield "first"
        raise ValueError("broken")

    found = one_ahead(blocks())
    assert next(found) == "first"
    with pytest.raises(ValueError, match="broken"):
        next(found)
