"""Threads over replicas and policies: order, errors, and the end of what is at work."""

from __future__ import annotations

import threading
import time

import pytest

from fairreplay.sandbox.pool import StoppedError, Watch, run_tasks


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_results_come_in_the_order_of_the_tasks(jobs: int) -> None:
    told: list[tuple[int, int]] = []

    def work(task: int, watch: Watch) -> int:
        watch(task // 2)
        time.sleep(0.001 * (7 - task))
        return task * task

    tasks = list(range(7))
    done = list(run_tasks(tasks, work, lambda task: task, jobs, lambda *progress: told.append(progress)))
    assert done == [0, 1, 4, 9, 16, 25, 36]
    assert tasks == []
    assert told[-1] == (21, 21)
    assert all(total == 21 and arrived <= 21 for arrived, total in told)


def test_never_more_at_work_than_jobs() -> None:
    at_work, most = 0, 0
    lock = threading.Lock()

    def work(_task: int, _watch: Watch) -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.005)
        with lock:
            at_work -= 1

    list(run_tasks(list(range(9)), work, lambda _: 1, 3))
    assert most == 3


def test_an_error_stops_the_others_and_goes_on() -> None:
    ended = threading.Event()

    def work(task: str, watch: Watch) -> str:
        if task == "bad":
            raise ValueError("broken")
        try:
            while True:
                watch(0)
                time.sleep(0.001)
        except StoppedError:
            ended.set()
            raise

    with pytest.raises(ValueError, match="broken"):
        list(run_tasks(["endless", "bad"], work, len, 2))
    assert ended.is_set()


def test_who_stops_listening_stops_the_work() -> None:
    def work(task: int, watch: Watch) -> int:
        for _ in range(10_000 if task else 1):
            watch(0)
            time.sleep(0.001)
        return task

    done = run_tasks([0, 1], work, lambda _: 1, 2)
    assert next(done) == 0
    started = time.monotonic()
    done.close()
    assert time.monotonic() - started < 5  # far below the ten seconds of the second task


def test_threads_go_on_while_the_caller_is_busy_but_not_for_ever() -> None:
    """Large tasks: while the caller has the first result, the thread that made it begins the third task; the caller's
    pace still bounds how many results wait."""
    begun: list[int] = []

    def work(task: int, _watch: Watch) -> int:
        begun.append(task)
        return task

    done = run_tasks(list(range(9)), work, lambda _: 100, 2, ahead=10)
    assert next(done) == 0
    deadline = time.monotonic() + 10
    while len(begun) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(begun) >= 3
    time.sleep(0.05)
    assert len(begun) <= 5
    assert list(done) == list(range(1, 9))
