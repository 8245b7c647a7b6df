"""How a format is declared: which column of the log gives which canonical column, in which unit, on which clock.

A format is data. The one strict path (``rules``) turns a record and this declaration into a canonical row or a reject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import TYPE_CHECKING, Literal

from fairreplay.trace.values import Unit

if TYPE_CHECKING:
    from fairreplay.trace.columnwise import ByColumns

Container = Literal["jsonl", "document", "csv", "parquet"]
Record = dict[str, object]


@dataclass(frozen=True)
class Wall:
    """An instant as ISO 8601 text or a typed timestamp.

    Without zone it is one of ``zone``, else of ``--tz``, or always UTC if ``utc``. ``pattern``: text of another form,
    in the directives of ``values.parse_pattern``. Where the source writes Unix time instead in some of its forms,
    ``epoch`` is the unit of numbers.
    """

    column: str
    utc: bool = False
    epoch: Unit | None = None
    zone: tzinfo | None = None
    pattern: str | None = None


@dataclass(frozen=True)
class Epoch:
    """An instant as a number since 1970-01-01T00:00:00Z. 0 is unknown."""

    column: str
    unit: Unit


@dataclass(frozen=True)
class Relative:
    """An instant as a number since the clock's own zero, which is ``--t0``. 0 is a real arrival, else unknown.

    On a ``monotonic`` clock, whose zero is long before the log, an arrival of 0 is unknown too.
    """

    column: str
    unit: Unit
    monotonic: bool = False


@dataclass(frozen=True)
class After:
    """A duration after the arrival; with ``minus`` the difference of two marks of one monotonic clock.

    -1 is unknown; so is a mark of 0. ``base``: the earlier time column that it counts from.
    """

    column: str
    unit: Unit
    minus: str | None = None
    base: str = "arrived_at"


@dataclass(frozen=True)
class Tokens:
    """A token count: a whole number, at least 0. ``source`` is the log's own name for a count that is put together."""

    column: str
    source: str | None = None


@dataclass(frozen=True)
class Integer:
    column: str


@dataclass(frozen=True)
class Real:
    column: str


@dataclass(frozen=True)
class Text:
    """A name. Numbers are names by their digits (``7603``)."""

    column: str


@dataclass(frozen=True)
class Ids:
    """A list of unsigned integers."""

    column: str


Field = Wall | Epoch | Relative | After | Tokens | Integer | Real | Text | Ids
Columns = Mapping[str, Sequence[Field]]
"""Canonical column -> where to look, the first that is known counts. A column that is not listed is unknown."""


@dataclass(frozen=True)
class Skipped:
    """A record that is no request to an engine: ``not_a_request``, ``response_cache_hit``, ``never_sent``."""

    reason: str


@dataclass(frozen=True)
class Sample:
    """The beginning of a source, on which the format is decided."""

    container: Container
    columns: tuple[str, ...]
    """Header (CSV, Parquet), or every key of the sampled records in order of appearance."""
    records: tuple[Record, ...]
    """The first records that can be read."""
    is_empty_page: bool = False
    """A JSON document without any record: an empty array or page; ``columns`` are the page's keys."""


@dataclass(frozen=True)
class Format:
    """One log format.

    ``needs`` names what a record of it has, for messages; ``matches`` is the test, by default that all of ``needs``
    are there. ``prepare`` rewrites a record where its fields depend on each other, skips it, or raises a reject.
    ``explode`` gives the records inside a document that holds a whole run, or None if it holds none.

    Two ways for formats whose records need one another: ``whole`` gets all records of the file and answers for each,
    and its answers then go through ``prepare``; ``survey`` is a first pass that only collects: from the first records
    and all records of a file it gives the format as it is for this file. ``tenant_from`` is the format with another
    field as the tenant, where that stands in other records than the request's own.

    ``refuse`` says why a log of this format cannot be replayed at all, judging its first records.

    ``private``: its logs may hold prompts and answers; of a reject only what ``prepare`` or ``whole`` let through is
    kept. ``reads`` are the source's columns that they look into.
    """

    name: str
    containers: tuple[Container, ...]
    needs: tuple[str, ...]
    columns: Columns | Callable[[Sample], Columns]
    matches: Callable[[Sample], bool] | None = None
    prepare: Callable[[Record], Record | Skipped] | None = None
    explode: Callable[[Record], list[object] | None] | None = None
    whole: Callable[[Sequence[Record]], Iterable[Record | Skipped]] | None = None
    tenant_from: Callable[[str], Format] | None = None
    refuse: Callable[[Sample], str | None] | None = None
    private: bool = False
    reads: tuple[str, ...] = ()
    prefix_block_tokens: int | None = None
    survey: Callable[[Sample, Iterable[Record]], Format] | None = None
    survey_reads: tuple[str, ...] = ()
    """The only keys that ``survey`` looks at, if these are all."""
    by_columns: ByColumns | None = None
    """What ``prepare`` does, for whole columns; without it records that need preparing are taken one by one."""
    pages: bool = True
    """An object with a list under ``data`` is a page of an API, not a record."""
    page: tuple[str, ...] = ()
    """Keys of its API's pages, for one without rows."""
    delimiter: str = ","
    header: bool = True
    """CSV: what parts the cells, and whether the first line names them (else ``c0``, ``c1``, ...)."""

    def recognises(self, sample: Sample) -> bool:
        if sample.container not in self.containers:
            return False
        if sample.is_empty_page:
            return bool(self.page) and set(self.page) <= set(sample.columns)
        if self.matches is not None:
            return self.matches(sample)
        return has_all(sample, self.needs)

    def columns_for(self, sample: Sample) -> Columns:
        return self.columns(sample) if callable(self.columns) else self.columns


def has_all(sample: Sample, needs: Sequence[str]) -> bool:
    """A table's header, or one of the sampled JSON records, has every one of ``needs``."""
    if sample.container in ("csv", "parquet"):
        return all(name in sample.columns for name in needs)
    return any(all(name in record for name in needs) for record in sample.records)
