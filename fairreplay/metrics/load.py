"""The rows of an outcome as the metrics read them: by model group, in order of arrival, a part of the grid at once.

A frame in memory (``held.Held``) and a scan of files too long for that (``scanned.Scanned``) are read alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fairreplay.metrics.windows import Grid
from fairreplay.trace.schema import STATUSES

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

UNKNOWN: Final = np.iinfo(np.int64).min
"""An instant or a count that the source does not say."""
FOREVER: Final = 2**62

OK, REJECTED, FAILED, CANCELLED, UNFINISHED = range(len(STATUSES))

MAY_BE_UNKNOWN: Final = (
    "scheduled_at",
    "first_token_at",
    "finished_at",
    "prompt_tokens",
    "output_tokens",
    "preemptions",
    "recomputed_tokens",
)

NEEDED: Final = (
    "tenant",
    "type",
    "status",
    "arrived_at",
    "scheduled_at",
    "first_token_at",
    "finished_at",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "recomputed_tokens",
    "preemptions",
    "weight",
)
"""In the order of ``Columns``."""


@dataclass(frozen=True)
class Group:
    """One model group: who is in it, when, and the sizes that stand in for unknown ones."""

    model: str | None
    tenants: tuple[str, ...]
    types: tuple[str, ...]
    rows: int
    first_us: int
    """First arrival."""
    last_us: int
    """Last arrival."""
    end_us: int
    """The last instant that any row names."""
    usual_prompt: Ints
    """The tenant's median prompt, rounded down; 0 where it has none. Likewise its output, refused requests left out."""
    usual_output: Ints


@dataclass(frozen=True)
class Columns:
    """Rows as arrays (of int64, but for weights), one entry a request, ``UNKNOWN`` where the source does not say."""

    tenant: Ints
    """Place in ``Group.tenants``; likewise ``type``, and ``status`` in ``STATUSES``."""
    type: Ints
    status: Ints
    arrived: Ints
    """Microseconds since the epoch, as all instants."""
    scheduled: Ints
    first_token: Ints
    finished: Ints
    prompt: Ints
    output: Ints
    cached: Ints
    recomputed: Ints
    preemptions: Ints
    weight: NDArray[np.float64]
    """NaN where the source does not say."""

    def __post_init__(self) -> None:
        for field in fields(self):  # one type for the compiled functions, also where a column is not a copy
            getattr(self, field.name).flags.writeable = False

    def __len__(self) -> int:
        return len(self.arrived)

    def named(self, column: str) -> Ints:
        """The array of a column of ``NEEDED``."""
        found: Ints = getattr(self, fields(self)[NEEDED.index(column)].name)
        return found

    def take(self, which: Bools | Ints) -> Columns:
        return Columns(*(getattr(self, field.name)[which] for field in fields(self)))

    def slice(self, first: int, end: int) -> Columns:
        return Columns(*(getattr(self, field.name)[first:end] for field in fields(self)))

    def followed_by(self, other: Columns) -> Columns:
        if len(self) == 0:
            return other
        return Columns(
            *(np.concatenate([getattr(self, field.name), getattr(other, field.name)]) for field in fields(self))
        )

    def lasts_until(self, instant: int) -> Bools:
        """Whether a row still says something about ``instant`` or later: it waits, runs, or ends there."""
        last = np.maximum(np.maximum(self.scheduled, self.first_token), self.finished)
        waits_on = (self.status == UNFINISHED) & (self.scheduled == UNKNOWN) & (self.first_token == UNKNOWN)
        return np.asarray(waits_on | (last >= instant))


class Load(Protocol):
    """An outcome (canonical columns), read for the metrics."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """Its model groups, by name, those that name no model first."""

    def parts(self, group: Group, whole: Grid, windows_max: int) -> Iterator[tuple[Sequence[Columns], Grid]]:
        """The grid cut into parts of ``windows_max`` windows, in time order, each with its rows, in order of arrival.

        The rows of a part are those of the group that arrived in it or last until it.
        """

    def waits(self) -> tuple[Ints, Ints]:
        """Arrival and TTFT of every request with a first token, in microseconds, over all groups."""

    def unknown(self, column: str) -> int:
        """Rows that say nothing in ``column`` (one of ``MAY_BE_UNKNOWN``)."""

    def all_null(self, column: str) -> bool:
        """No row says anything in ``column`` (and there are rows)."""
