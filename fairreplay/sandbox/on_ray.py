"""Replicas as tasks of a Ray cluster (extra ``fairreplay[ray]``): the same results as threads of this machine.

This process reads the store and writes it; workers get their replica's arrays through Ray's own object store and give
back the narrow outcome, so that no worker needs the store, and none holds more than its replica. A task whose worker or
machine is lost is run again elsewhere: a replica is a function of its arrays.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fairreplay import __version__
from fairreplay.errors import ClusterError, FairReplayError, UsageError
from fairreplay.sandbox.pool import Progress
from fairreplay.sandbox.served import Served, serve

if TYPE_CHECKING:
    from fairreplay.sandbox.plan import Shard

Task = TypeVar("Task")
Result = TypeVar("Result")

RETRIES: Final = 5
"""How often a replica is begun again after its worker was lost."""
TASKS_MIN: Final = 16
"""So many tasks wait in any case: a cluster that grows with them may have no core yet."""
TELL_S: Final = 0.5
REACH_S: Final = 10
_POLL_S: Final = 0.2


def run_on_ray(
    tasks: list[Task],
    made: Callable[[Task], Shard],
    size: Callable[[Task], int],
    start_us: int,
    ahead: int,
    progress: Progress | None = None,
) -> Generator[Served]:
    """The outcome of each task's shard, in their order; as ``pool.run_tasks``, on the cluster of ``RAY_ADDRESS``.

    Shards are made as they are needed: about ``ahead`` requests, or two shards for each core, are under way at a time.

    Raises:
        UsageError: Ray is not installed, or a worker runs another version of FairReplay.
        ClusterError: the cluster cannot be reached, or a replica was lost ``RETRIES`` times.
    """
    sizes = [size(task) for task in tasks]
    with connected() as ray, _counter(ray, len(sizes), progress) as counter:
        at_once = max(TASKS_MIN, 2 * int(ray.cluster_resources().get("CPU", 0)))
        serve_there = ray.remote(num_cpus=1, max_retries=RETRIES)(_serve)
        running: dict[int, Any] = {}
        done, submitted, told = 0, 0, 0
        for number in range(len(sizes)):
            while True:
                while submitted < len(sizes) and (
                    submitted - number < at_once or sum(sizes[number : submitted + 1]) <= ahead
                ):
                    shard = made(tasks[submitted])
                    running[submitted] = serve_there.remote(shard, start_us, __version__, counter, submitted)
                    submitted += 1
                ready, _ = ray.wait([running[number]], timeout=_POLL_S)
                if progress is not None:
                    told = max(told, done + _arrived(ray, counter, number, submitted))  # never back
                    progress(told, sum(sizes))
                if ready:
                    break
            yield _result(ray, running.pop(number))
            done += sizes[number]


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UsageError("--engine ray: Ray is not installed; pip install 'fairreplay[ray]'") from None
    return ray


@contextmanager
def connected() -> Iterator[Any]:
    """Ray, in the cluster that this process is part of already, else that of ``RAY_ADDRESS``, else one of this machine.

    Tasks that are still at work after an error end with the connection; none is cancelled: Ray 2.60 aborts this process
    when a task that it cancels is just done. In a cluster that was there before they go on to their end.

    Raises:
        UsageError: Ray is not installed. ClusterError: the cluster cannot be reached.
    """
    ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS")
    own: dict[str, Any] = {} if address else {"include_dashboard": False}
    try:
        if address:
            _check_reachable(address)
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **own)
    except (OSError, RuntimeError, ValueError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        where = address or "this machine"
        raise ClusterError(f"--engine ray: no cluster at {where} ({said}); check RAY_ADDRESS") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself tries for a minute, and says so on several lines."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()


def run_all_on_ray(work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
    """The results of ``work`` over ``tasks`` in their order; what ``work`` holds is sent once.

    Raises:
        ClusterError: as ``run_on_ray``, and whatever ``work`` raises.
    """
    with connected() as ray:
        from ray import cloudpickle  # what is read back can be written to, unlike arrays in Ray's own store of objects

        call = ray.remote(num_cpus=1, max_retries=RETRIES)(_call)
        held = ray.put(cloudpickle.dumps(work))
        running = [call.remote(held, task, __version__) for task in tasks]
        return [_result(ray, one) for one in running]


def _call(work: bytes, task: Any, version: str) -> Any:
    """In a worker; errors as in ``_serve``."""
    from ray import cloudpickle

    try:
        _check_version(version)
        return cloudpickle.loads(work)(task)
    except FairReplayError as error:
        return error


def _check_version(version: str) -> None:
    if version != __version__:
        raise UsageError(
            f"--engine ray: a worker has FairReplay {__version__}, this machine {version}; install the same there"
        )


def _serve(shard: Shard, start_us: int, version: str, counter: Any, number: int) -> Served | FairReplayError:
    """In a worker. An error that a user can meet is a result: it is not the worker's failure."""
    told_s = time.monotonic()

    def watch(count: int) -> None:
        nonlocal told_s
        if counter is not None and time.monotonic() - told_s >= TELL_S:
            told_s = time.monotonic()
            counter.tell.remote(number, count)

    try:
        _check_version(version)
        return serve(shard, start_us, watch)
    except FairReplayError as error:
        return error


def _result(ray: Any, reference: Any) -> Any:
    try:
        found = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        said = type(error).__name__
        raise ClusterError(
            f"--engine ray: a replica was lost {RETRIES + 1} times ({said}); give the workers more memory"
        ) from None
    if isinstance(found, FairReplayError):
        raise found
    return found


class _Counter:
    """How many requests have arrived in each task so far; lives beside this process."""

    def __init__(self, count: int) -> None:
        self._arrived = [0] * count

    def tell(self, number: int, count: int) -> None:
        self._arrived[number] = count

    def arrived(self, first: int, end: int) -> int:
        return sum(self._arrived[first:end])


@contextmanager
def _counter(ray: Any, count: int, progress: Progress | None) -> Iterator[Any]:
    if progress is None:
        yield None
        return
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    counter = ray.remote(num_cpus=0)(_Counter).options(scheduling_strategy=here).remote(count)
    try:
        yield counter
    finally:
        ray.kill(counter)


def _arrived(ray: Any, counter: Any, first: int, end: int) -> int:
    """Requests of the tasks at work that have arrived; 0 where nobody can say in time: it is for the eye alone."""
    with suppress(ray.exceptions.RayError):
        return int(ray.get(counter.arrived.remote(first, end), timeout=_POLL_S))
    return 0
