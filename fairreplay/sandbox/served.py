"""What became of a load's requests, in as few bytes as it is stored in: about 30 a request.

A replica's result arrives as the engine's int64 arrays and is narrowed at once, so that those exist only for the
replicas at work.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fairreplay.errors import UsageError
from fairreplay.sandbox.compiled import KINDS, StepSums, run, run_with_sums
from fairreplay.sandbox.engine import NEVER, PS_PER_US, REASON_NAMES, STATUS_NAMES, EngineResult, Int64s
from fairreplay.sandbox.plan import Rows, Shard
from fairreplay.sandbox.pool import Watch
from fairreplay.store.replays import ATTEMPTS, REPLAY_SCHEMA, STEP_SCHEMA
from fairreplay.trace.schema import TIMESTAMP

if TYPE_CHECKING:
    from fairreplay.sandbox.accounts import Account

US_PER_SECOND: Final = 1_000_000
NO_INSTANT: Final = np.iinfo(np.int64).min
INSTANTS: Final = ("scheduled", "first_token", "finished")
CODES: Final = {"status": np.uint8, "reason": np.uint8}
COUNTS: Final = {
    "preemptions": np.uint16,
    "recomputed_tokens": np.uint32,
    "cached_tokens": np.uint32,
    "computed_tokens": np.uint32,
}
NARROW: Final[dict[str, type[Any]]] = {**CODES, **COUNTS}
LIMITS: Final = {np.uint8: 2**8 - 1, np.uint16: 2**16 - 1, np.uint32: 2**32 - 1}


@dataclass(frozen=True)
class Served:
    """One replica's outcome. Instants in microseconds since the epoch, ``NO_INSTANT`` where it never came; counts that
    are too large for their column stand at its limit; a code or count that is 0 for all is left out."""

    columns: dict[str, NDArray[Any]]
    sums: StepSums
    engine_s: float
    account: Account | None = None
    """Where pools, drafts, experts or precisions are in force."""
    controls: pl.DataFrame | None = None
    """What controls did, where there are any: ``CONTROL_SCHEMA``."""


def serve(shard: Shard, start_us: int, watch: Watch | None) -> Served:
    """Simulate one replica.

    Raises:
        UsageError: the replay does not fit into the sandbox's integers.
    """
    started = time.perf_counter()
    offset_ps = start_us % US_PER_SECOND * PS_PER_US
    try:
        result, sums = run_with_sums(shard.workload, shard.plan, offset_ps, progress=watch)
        account = _account(shard, result, watch) if shard.plan.has_extras() else None
    except OverflowError as error:
        raise UsageError(f"the sandbox cannot hold this replay: {error}; narrow the period") from None
    engine_s = time.perf_counter() - started
    columns, controls = _narrow(result, start_us), None
    if shard.plan.controls is not None:
        from fairreplay.sandbox.controls.record import control_rows

        controls = control_rows(shard.plan.controls, shard.workload, result, shard.model, shard.replica, start_us)
        columns[ATTEMPTS] = np.minimum(result.attempts, LIMITS[np.uint16]).astype(np.uint16)
    return Served(columns, _narrow_sums(sums), engine_s, account, controls)


def _account(shard: Shard, result: EngineResult, watch: Watch | None) -> Account:
    """What the replay will say of pools, drafts, experts and precisions; simulates again where that is compared."""
    from fairreplay.sandbox.accounts import account

    return account(shard.model, shard.workload, shard.plan, result, lambda work, plan: run(work, plan, progress=watch))


def _narrow(result: EngineResult, start_us: int) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any]] = {name: _instants(getattr(result, f"{name}_ps"), start_us) for name in INSTANTS}
    for name, dtype in NARROW.items():
        values: Int64s = getattr(result, name)
        if values.any():
            columns[name] = np.minimum(values, LIMITS[dtype]).astype(dtype)
    return columns


def _narrow_sums(sums: StepSums) -> StepSums:
    columns: list[Any] = [getattr(sums, field.name) for field in fields(sums)]
    return StepSums(*(one.astype(np.uint32) if one.max(initial=0) < 2**32 else one for one in columns))


def _instants(instant_ps: Int64s, start_us: int) -> Int64s:
    """Picoseconds of the sandbox's clock as canonical instants: whole microseconds, rounded down.

    Down, because arrivals are whole microseconds: no latency can come out negative, and order is kept.
    """
    instants: Int64s = instant_ps // PS_PER_US
    instants += start_us
    instants[instant_ps == NEVER] = NO_INSTANT
    return instants


class Placed(Protocol):
    """Where a replica's requests stand."""

    @property
    def model(self) -> str | None: ...

    @property
    def replica(self) -> str: ...

    @property
    def rows(self) -> Rows: ...


class Outcomes:
    """What became of every request of a load under one policy: filled replica by replica, read block by block."""

    def __init__(self, count: int, planned: Sequence[Placed]) -> None:
        self._count = count
        self.columns: dict[str, NDArray[Any]] = {name: np.empty(count, np.int64) for name in INSTANTS}
        """By row of the load; what is left out is 0 everywhere. Pages of zeros take memory once they are written to."""
        self._replicas = sorted({part.replica for part in planned})
        self._replica = np.zeros(count, np.uint16 if len(self._replicas) < 1 << 16 else np.uint32)
        self.engine_s = 0.0
        self.accounts: list[Account] = []
        self._controls: list[pl.DataFrame] = []

    def put(self, part: Placed, served: Served) -> None:
        """Add the outcome of one replica; they come in the order planned."""
        for name, values in served.columns.items():
            if name not in self.columns:
                self.columns[name] = np.zeros(self._count, values.dtype)
            self.columns[name][part.rows] = values
        if place := self._replicas.index(part.replica):
            self._replica[part.rows] = place
        self.engine_s += served.engine_s
        if served.account is not None:
            self.accounts.append(served.account)
        if served.controls is not None:
            self._controls.append(served.controls)

    def controls(self) -> pl.DataFrame | None:
        """What controls did, replica by replica; None without any."""
        return pl.concat(self._controls) if self._controls else None

    def of(self, name: str) -> NDArray[Any]:
        """A column by row of the load."""
        found = self.columns.get(name)
        return np.zeros(self._count, NARROW[name]) if found is None else found

    def frames(self, ids: Iterable[pl.Series]) -> Iterator[pl.DataFrame]:
        """``REPLAY_SCHEMA`` (with controls ``ATTEMPTS`` too), a frame for each of ``ids``: the requests' ids in the
        load's order, in blocks."""
        first = 0
        for block in ids:
            rows = slice(first, first + len(block))
            first += len(block)
            columns = {
                "request_id": block,
                "replica": _named(self._replicas, self._replica[rows]),
                **{f"{name}_at": _times(self.columns[name][rows]) for name in INSTANTS},
                "status": _named([STATUS_NAMES[code] for code in range(len(STATUS_NAMES))], self.of("status")[rows]),
                "reason": _named([REASON_NAMES[code] for code in range(len(REASON_NAMES))], self.of("reason")[rows]),
                **{name: pl.Series(self.of(name)[rows]) for name in COUNTS},
            }
            schema = REPLAY_SCHEMA
            if self._controls:  # who has none arrived once
                columns[ATTEMPTS] = pl.Series(np.maximum(self.columns[ATTEMPTS][rows], 1))
                schema = REPLAY_SCHEMA | {ATTEMPTS: pl.UInt16()}
            yield pl.DataFrame(columns).select(pl.col(name).cast(dtype) for name, dtype in schema.items())
        assert first == self._count, "the ids are those of the load"


def _named(names: Sequence[str], codes: NDArray[Any]) -> pl.Series:
    """Names by their codes."""
    return pl.Series(names, dtype=pl.String).gather(codes)


def _times(instants_us: Int64s) -> pl.Series:
    known = instants_us != NO_INSTANT
    instants = pl.Series(instants_us).cast(TIMESTAMP)
    return instants if known.all() else pl.select(pl.when(pl.Series(known)).then(instants)).to_series()


def step_rows(part: Placed, start_us: int, sums: StepSums) -> pl.DataFrame:
    """``STEP_SCHEMA``: steps of one replica by (second of their start, class); means from integer sums."""
    count = len(sums.kind)
    columns = {
        "model": pl.Series([part.model], dtype=pl.String).new_from_index(0, count),
        "replica": pl.Series([part.replica], dtype=pl.String).new_from_index(0, count),
        "second": sums.second.astype(np.int64) + start_us // US_PER_SECOND,
        "class": pl.Series(KINDS, dtype=pl.String).gather(sums.kind),
        "steps": sums.steps,
        "batch_tokens": sums.tokens,
        "running": sums.running / sums.steps,
        "waiting": sums.waiting / sums.steps,
        "kv_used_blocks": sums.used / sums.steps,
        "preemptions": sums.preempted,
    }
    return pl.DataFrame(columns).cast(dict(STEP_SCHEMA))  # type: ignore[arg-type]
