"""Threads over replicas and policies: the engine holds no interpreter lock, and no result depends on their number."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Final, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

Progress = Callable[[int, int], None]
"""Called now and then with the requests that have arrived so far and their number, over everything that is run."""
Watch = Callable[[int], None]
"""Called by a task with the requests that have arrived so far in it; raises ``StoppedError`` where it must end."""

_POLL_S: Final = 0.2


class StoppedError(Exception):
    """Raised inside of a task after another one failed, or after an interrupt."""


def run_tasks(
    tasks: list[Task],
    work: Callable[[Task, Watch], Result],
    size: Callable[[Task], int],
    jobs: int,
    progress: Progress | None = None,
    *,
    ahead: int | None = None,
) -> Generator[Result]:
    """The results of ``work`` over ``tasks`` in their order, with at most ``jobs`` of them at work at a time.

    ``tasks`` is emptied as they are taken up, so that what a task holds is let go when it is done. One more is taken up
    than are at work: it begins while the caller is busy with a result. Tasks taken up whose results are not yet taken
    away have a size of at most ``ahead`` together, or are twice ``jobs`` of them.

    The main thread only waits, so that an interrupt is seen at once; then, or when a task fails, the tasks at work end
    at their next call of ``Watch`` before the error goes on.
    """
    sizes = [size(task) for task in tasks]
    arrived = [0] * len(sizes)
    tasks.reverse()
    stop = threading.Event()

    def watched(number: int) -> Watch:
        def watch(count: int) -> None:
            arrived[number] = count
            if stop.is_set():
                raise StoppedError

        return watch

    def run(task: Task, number: int) -> Result:
        result = work(task, watched(number))
        arrived[number] = sizes[number]
        return result

    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        running: dict[int, Future[Result]] = {}
        submitted = 0
        try:
            for number in range(len(sizes)):
                while number not in running or not running[number].done():
                    while (
                        tasks
                        and sum(not one.done() for one in running.values()) <= jobs
                        and (ahead is None or len(running) < 2 * jobs or sum(sizes[number : submitted + 1]) <= ahead)
                    ):
                        running[submitted] = pool.submit(run, tasks.pop(), submitted)
                        submitted += 1
                    wait([one for one in running.values() if not one.done()], _POLL_S, FIRST_COMPLETED)
                    if progress is not None:
                        progress(sum(arrived), sum(sizes))
                    for one in running.values():
                        if one.done() and one.exception() is not None:
                            one.result()
                yield running.pop(number).result()
        finally:
            stop.set()
            for one in running.values():
                one.cancel()


def run_all(work: Callable[[Task], Result], tasks: Sequence[Task], jobs: int, engine: str = "local") -> list[Result]:
    """The results of ``work`` over ``tasks`` in their order, by ``jobs`` threads or (``ray``) in the cluster."""
    if engine == "ray" and len(tasks) > 1:
        from fairreplay.sandbox.on_ray import run_all_on_ray

        return run_all_on_ray(work, tasks)
    if jobs == 1 or len(tasks) < 2:
        return [work(task) for task in tasks]
    with ThreadPoolExecutor(jobs) as threads:
        return list(threads.map(work, tasks))


@contextmanager
def workers(engine: str) -> Iterator[None]:
    """``engine`` over several steps: a cluster's workers start once for all of them."""
    if engine == "ray":
        from fairreplay.sandbox.on_ray import connected

        with connected():
            yield
    else:
        yield
