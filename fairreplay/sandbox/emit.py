"""Every step of a chosen interval, as lines of a decision log or as a trace for the Perfetto viewer.

The plain engine takes the steps, from the period's start on (what runs at the interval's start has a history), and is
stopped at the interval's end. It must schedule and finish every request when the compiled engine does, whose results
the store keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Final

import orjson

from fairreplay.config.model import Config
from fairreplay.errors import UsageError, nearest
from fairreplay.sandbox import reference
from fairreplay.sandbox.compiled import run
from fairreplay.sandbox.decision_log import step_line
from fairreplay.sandbox.engine import PS_PER_US, EngineResult, Step
from fairreplay.sandbox.plan import Load, Shard, choose, shards
from fairreplay.sandbox.replay import read_load
from fairreplay.store.files import replace_file
from fairreplay.store.store import Store
from fairreplay.trace.values import epoch_us, iso

Event = Mapping[str, object]


@dataclass(frozen=True)
class Interval:
    """What is written: steps whose pass lies in ``[since_ps, until_ps)`` of the sandbox's clock."""

    since_ps: int
    until_ps: int


def emit_steps(
    store: Store,
    config: Config,
    policy: str,
    kind: str,
    path: Path,
    period: tuple[datetime | None, datetime | None],
    interval: tuple[datetime | None, datetime | None],
) -> int:
    """Write the steps of ``interval`` under ``policy``, of the replay of ``period``; gives their number.

    ``kind`` is a key of ``KINDS``. The file appears when it is complete.

    Raises:
        UsageError: see ``plan.take_load`` and ``plan.shards``; an unknown kind; no step in the interval.
    """
    if kind not in KINDS:
        raise UsageError(f"--emit {kind!r} is unknown; {nearest(kind, sorted(KINDS))}")
    load = read_load(store, config, *period)
    planned = shards(load, config, choose(policy))
    if any(shard.plan.disaggregated for shard in planned):
        raise UsageError("--emit: the steps of two pools are no single log: take [cluster.disaggregated] out")
    since, until = interval
    chosen = Interval(
        since_ps=0 if since is None else (epoch_us(since) - load.start_us) * PS_PER_US,
        until_ps=2**63 if until is None else (epoch_us(until) - load.start_us) * PS_PER_US,
    )
    count = 0

    def write(temporary: Path) -> None:
        nonlocal count
        with temporary.open("wb") as file:
            count = KINDS[kind](load, planned, chosen, file)

    replace_file(path, write)
    if not count:
        path.unlink()
        raise UsageError(f"no step lies in the interval: the load begins at {iso(load.start_us)}")
    return count


class _PassedError(Exception):
    """The interval's end: the plain engine need go no further."""


def _take_steps(shard: Shard, whole: EngineResult, interval: Interval, on_step: Callable[[Step], None]) -> None:
    """The steps of one replica until the interval ends, checked against ``whole``, which the compiled engine gave."""

    def seen(step: Step) -> None:
        if step.t_ps >= interval.until_ps:
            raise _PassedError
        for request, _, resumed in step.admitted:
            if not resumed and whole.scheduled_ps[request] != step.t_ps:
                raise RuntimeError(f"engines disagree: request {request} is scheduled at {step.t_ps} ps")
        on_step(step)

    with suppress(_PassedError):
        reference.run(shard.workload, shard.plan, seen)


def _write_lines(load: Load, planned: Sequence[Shard], interval: Interval, file: IO[bytes]) -> int:
    """One JSON object a line with the keys of a decision log, requests by their id.

    With several replicas each line names its ``model`` and ``replica`` too; replicas follow one another.
    """
    count = 0
    for shard in planned:
        ids = load.frame["request_id"].gather(shard.rows).to_list()
        settings = shard.plan.settings[0][1]
        where: dict[str, object] = {} if len(planned) == 1 else {"model": shard.model, "replica": shard.replica}

        def line(step: Step) -> None:
            nonlocal count
            if step.t_ps < interval.since_ps:
                return
            count += 1
            named = where | step_line(step, settings)  # noqa: B023 (called within the iteration)
            for key in ("arrived", "preempted", "finished"):
                named[key] = [ids[request] for request in getattr(step, key)]  # noqa: B023
            for key in ("admitted", "scheduled"):
                named[key] = [[ids[request], *rest] for request, *rest in getattr(step, key)]  # noqa: B023
            file.write(orjson.dumps(named) + b"\n")

        _take_steps(shard, run(shard.workload, shard.plan), interval, line)
    return count


def _write_perfetto(load: Load, planned: Sequence[Shard], interval: Interval, file: IO[bytes]) -> int:
    """Trace events in JSON: a process a replica, its steps as slices, its queues and KV as counters, each request as
    an asynchronous track of its waiting and running. Instants are microseconds since the load's first arrival.
    """
    count = 0
    head = {"displayTimeUnit": "ms", "otherData": {"start": iso(load.start_us)}}
    file.write(orjson.dumps(head)[:-1] + b',"traceEvents":[\n')
    for number, shard in enumerate(planned, start=1):
        name = shard.replica if shard.model is None else f"{shard.model} {shard.replica}"
        file.write(orjson.dumps(_about(number, "process_name", f"replica {name}")) + b",\n")
        file.write(orjson.dumps(_about(number, "thread_name", "steps")))
        ids = load.frame["request_id"].gather(shard.rows).to_list()
        whole = run(shard.workload, shard.plan)
        track = _Tracks(number, ids, shard, whole, interval)

        def events(step: Step) -> None:
            nonlocal count
            if step.t_ps >= interval.since_ps:
                count += 1
            for event in track.events(step):  # noqa: B023 (called within the iteration)
                file.write(b",\n" + orjson.dumps(event))

        _take_steps(shard, whole, interval, events)
        for event in track.ends():
            file.write(b",\n" + orjson.dumps(event))
        file.write(b",\n" if number < len(planned) else b"")
    file.write(b"\n]}\n")
    return count


def _about(process: int, what: str, name: str) -> Event:
    return {"ph": "M", "pid": process, "tid": 1, "name": what, "args": {"name": name}}


def _us(instant_ps: int) -> float:
    return instant_ps / PS_PER_US


class _Tracks:
    """Turns steps into trace events; what began before the interval begins at its start."""

    def __init__(self, process: int, ids: Sequence[str], shard: Shard, whole: EngineResult, interval: Interval) -> None:
        self._process = process
        self._ids = ids
        self._arrival = shard.workload.arrival_ps
        self._interval = interval
        self._whole = whole
        self._open: dict[int, tuple[str, int]] = {}
        """Request -> what it does and since when; not yet written."""

    def events(self, step: Step) -> Iterator[Event]:
        for request in step.arrived:
            self._open[request] = ("waiting", int(self._arrival[request]))
        for request, _, _ in step.admitted:
            yield from self._turn(request, "running", step.t_ps)
        for request in step.preempted:
            yield from self._turn(request, "waiting", step.t_ps)
        for request in step.finished:
            yield from self._span(request, min(int(self._whole.finished_ps[request]), self._interval.until_ps))
        if step.t_ps < self._interval.since_ps:
            return
        if step.scheduled:
            prefill = sum(tokens for _, tokens, is_prefill in step.scheduled if is_prefill)
            decodes = sum(not is_prefill for _, _, is_prefill in step.scheduled)
            name = "mixed" if prefill and decodes else "prefill" if prefill else "decode"
            yield {
                **{"ph": "X", "pid": self._process, "tid": 1, "name": name},
                **{"ts": _us(step.start_ps), "dur": _us(step.dt_ps)},
                "args": {
                    "step": step.step,
                    "prefill_tokens": prefill,
                    "decodes": decodes,
                    "preempted": [self._ids[request] for request in step.preempted],
                },
            }
        yield self._counter(step, "requests", {"running": step.running, "waiting": step.waiting})
        yield self._counter(step, "KV blocks", {"free": step.free_blocks_scheduled})

    def _counter(self, step: Step, name: str, values: dict[str, int]) -> Event:
        return {"ph": "C", "pid": self._process, "tid": 1, "name": name, "ts": _us(step.t_ps), "args": values}

    def _turn(self, request: int, to: str, at_ps: int) -> Iterator[Event]:
        yield from self._span(request, at_ps)
        self._open[request] = (to, at_ps)

    def _span(self, request: int, end_ps: int) -> Iterator[Event]:
        doing, since_ps = self._open.pop(request, ("waiting", int(self._arrival[request])))
        since_ps = max(since_ps, self._interval.since_ps)
        if end_ps < since_ps:
            return
        both = {"cat": "request", "id": self._ids[request], "pid": self._process, "tid": 1, "name": doing}
        yield {"ph": "b", "ts": _us(since_ps), **both}
        yield {"ph": "e", "ts": _us(end_ps), **both}

    def ends(self) -> Iterator[Event]:
        """What was still open when the interval, or the load, came to its end."""
        for request in sorted(self._open):
            yield from self._span(request, min(self._whole.end_ps, self._interval.until_ps))


KINDS: Final[dict[str, Callable[[Load, Sequence[Shard], Interval, IO[bytes]], int]]] = {
    "steps": _write_lines,
    "perfetto": _write_perfetto,
}
