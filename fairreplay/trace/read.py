"""Read one source: file -> canonical frame, rejects, and everything that the summary has to say about it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import polars as pl

from fairreplay.errors import BadInputError
from fairreplay.trace.asked import OUTSIDE, Applied, Asked
from fairreplay.trace.containers import Content, Read, inspect, records, sample_within
from fairreplay.trace.detect import detect
from fairreplay.trace.fields import After, Columns, Format, Relative, Sample, Skipped
from fairreplay.trace.redact import Keeping
from fairreplay.trace.rules import Reading, RejectedError, Row, Rules, Tally, shown
from fairreplay.trace.schema import COLUMNS, DEFAULT_TENANT, DEFAULT_TYPE, SCHEMA, TIME_COLUMNS
from fairreplay.trace.values import iso, rounded_us

BATCH_ROWS: Final = 1 << 15
CLOCK_BACK_US: Final = 3_600_000_000
"""A clock that jumps back by more than an hour has been restarted."""
RUNS_NAMED_MAX: Final = 10
NOTHING_ASKED: Final = Asked()
_OWN_COLUMNS: Final = frozenset({"seq", "source"})
_STAGED: Final = {
    name: pl.Int64() if name in TIME_COLUMNS else dtype for name, dtype in SCHEMA.items() if name != "source"
}


@dataclass(frozen=True)
class Reject:
    """A record that was left out: ``line`` is all of it, ``column`` and ``value`` what is wrong with it."""

    row: int
    column: str | None
    value: str | None
    reason: str
    line: str

    def as_dict(self) -> dict[str, object]:
        return {
            "row": self.row,
            "column": self.column,
            "value": self.value,
            "reason": self.reason,
            "line": self.line,
        }


@dataclass(frozen=True)
class SourceRead:
    """A source read to its end. ``frame`` has the canonical columns in file order, duplicates not yet settled."""

    path: Path
    source: str
    format: Format
    container: str
    frame: pl.DataFrame
    rejects: tuple[Reject, ...]
    skipped: dict[str, int]
    own_ids: bool
    """No record names its id: ids are made from the content id and the record's number, and cannot repeat."""
    ignored_columns: tuple[str, ...]
    assumptions: tuple[str, ...]
    clamped: int
    out_of_order: int
    runs: tuple[str, ...]
    applied: Applied
    """What was asked for beyond the log, and what came of it."""

    @property
    def records(self) -> int:
        """Everything read."""
        return self.rows + sum(self.skipped.values())

    @property
    def rows(self) -> int:
        """Records read, without the skipped ones."""
        return self.frame.height + len(self.rejects)


def content_id(path: Path) -> str:
    """sha256 of the file's bytes, 16 hex digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


def read_source(path: Path, reading: Reading, wanted: str = "auto", asked: Asked = NOTHING_ASKED) -> SourceRead:
    """Read ``path`` as format ``wanted`` (``auto``: as what it is).

    Raises:
        BadInputError: the file as a whole cannot be read, or changed while it was.
        UsageError: an unknown format.
    """
    before = _state(path)
    source = content_id(path)
    content = inspect(path)
    log_format = detect(path, content.sample, wanted)
    sample = sample_within(content.sample, log_format)
    applied = Applied(asked, log_format, sample, str(path))
    log_format, columns = applied.format, applied.columns
    rules = Rules(columns, reading, str(path), source)
    gathered = _gather(path, content, log_format, rules, applied.keeping)
    applied.check()
    if _state(path) != before:
        raise BadInputError(f"{path}: changed while it was read; ingest it when it is complete")
    frame = applied.rows(gathered.frame(source))
    if applied.outside:
        gathered.skipped[OUTSIDE] += applied.outside
    arrivals = frame["arrived_at"].cast(pl.Int64)
    return SourceRead(
        path=path,
        source=source,
        format=log_format,
        container=sample.container,
        frame=frame,
        rejects=tuple(gathered.rejects),
        skipped=dict(sorted(gathered.skipped.items())),
        own_ids=not gathered.names_ids,
        ignored_columns=_ignored(gathered.keys | set(sample.columns), log_format, columns),
        assumptions=_assumptions(columns, sample, reading, rules.tally, frame.height),
        clamped=rules.tally.clamped,
        out_of_order=int((arrivals < arrivals.cum_max()).sum()),
        runs=_runs(frame, arrivals),
        applied=applied,
    )


class _Gathered:
    """What has been read so far: full batches as frames, the rest as rows."""

    def __init__(self) -> None:
        self.rejects: list[Reject] = []
        self.skipped: Counter[str] = Counter()
        self.keys: set[str] = set()
        self.names_ids = False
        self._frames: list[pl.DataFrame] = []
        self._rows: list[Row] = []

    def add(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) >= BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        self._frames.append(pl.DataFrame(self._rows, schema=_STAGED, orient="row"))
        self._rows = []

    def frame(self, source: str) -> pl.DataFrame:
        self._flush()
        times = [pl.col(name).cast(SCHEMA[name]) for name in TIME_COLUMNS]
        staged = pl.concat(self._frames)
        return staged.with_columns(*times, source=pl.lit(source)).select(COLUMNS)


def _gather(path: Path, content: Content, log_format: Format, rules: Rules, keeping: Keeping) -> _Gathered:
    gathered = _Gathered()
    id_columns = [place.column for place in rules.columns.get("request_id", ())]
    for number, read in enumerate(records(path, content, log_format)):
        record = read.value
        if record is None:
            line = keeping.broken(read.text or "")
            gathered.rejects.append(Reject(number, None, line, "unparsable_record", line))
            continue
        gathered.keys |= record.keys()
        prepared = log_format.prepare(record) if log_format.prepare else record
        if isinstance(prepared, Skipped):
            gathered.skipped[prepared.reason] += 1
            continue
        try:
            gathered.add(rules.row(prepared, number))
        except RejectedError as error:
            line = keeping.line(record, read.text, content.sample.container == "csv")
            value = keeping.value(error.column, shown(error.value))
            gathered.rejects.append(Reject(number, error.column, value, error.reason, line))
            continue
        gathered.names_ids = gathered.names_ids or any(record.get(name) is not None for name in id_columns)
    return gathered


def lines_of(read: SourceRead, numbers: set[int]) -> dict[int, str]:
    """The text of the records ``numbers``: a second pass, for the few that turn out to be rejects later."""
    content = inspect(read.path)
    is_csv = content.sample.container == "csv"
    wanted: Iterator[tuple[int, Read]] = (
        (number, item) for number, item in enumerate(records(read.path, content, read.format)) if number in numbers
    )
    keeping = read.applied.keeping
    return {number: keeping.line(item.value or {}, item.text, is_csv) for number, item in islice(wanted, len(numbers))}


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _ignored(keys: set[str], log_format: Format, columns: Columns) -> tuple[str, ...]:
    used = {place.column for fields in columns.values() for place in fields}
    used |= {place.minus for fields in columns.values() for place in fields if isinstance(place, After) and place.minus}
    own = _OWN_COLUMNS if log_format.name == "native" else frozenset()
    return tuple(sorted(keys - used - own))


def _assumptions(columns: Columns, sample: Sample, reading: Reading, tally: Tally, accepted: int) -> tuple[str, ...]:
    """What was taken for granted, one sentence each."""
    said = []
    if tally.naive_columns:
        said.append(f"{', '.join(sorted(tally.naive_columns))} without zone, read as {reading.zone_name} (--tz)")
    for place in columns["arrived_at"]:
        if isinstance(place, Relative) and place.column in sample.columns:
            start = iso(rounded_us(reading.t0_us))
            said.append(f"{place.column} counts {place.unit} from the log's own start, taken as {start} (--t0)")
    for name, given, fallback in (("tenant", reading.tenant, DEFAULT_TENANT), ("type", reading.type_, DEFAULT_TYPE)):
        filled = tally.defaulted[name]
        if filled:
            which = "all rows" if filled == accepted else f"{filled} rows"
            said.append(f"{which} without {name}, taken as {given or fallback!r} (--{name})")
    return tuple(said)


def _runs(frame: pl.DataFrame, arrivals: pl.Series) -> tuple[str, ...]:
    """First arrivals after the clock went back by more than an hour."""
    restarts = frame.filter(arrivals.diff() < -CLOCK_BACK_US)
    named = [
        f"row {seq}: {iso(arrival)}"
        for seq, arrival in zip(
            restarts["seq"].head(RUNS_NAMED_MAX),
            restarts["arrived_at"].head(RUNS_NAMED_MAX).cast(pl.Int64),
            strict=True,
        )
    ]
    more = restarts.height - len(named)
    return (*named, *([f"and {more} more"] if more else []))
