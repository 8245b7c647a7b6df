"""The one way in which metrics use two threads: a function of many arguments, results in their order."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def in_order(function: Callable[..., Result], calls: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
    """``function(*call)`` of each of ``calls`` in their order, with up to two in work and two waiting at once."""
    calls = iter(calls)
    first = list(itertools.islice(calls, 2))
    if len(first) < 2:
        yield from (function(*call) for call in first)
        return
    with ThreadPoolExecutor(2) as pool:
        waiting: deque[Future[Result]] = deque()
        for call in itertools.chain(first, calls):
            waiting.append(pool.submit(function, *call))
            if len(waiting) == 4:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
