"""Read one source: file -> canonical frame, rejects, and everything that the summary has to say about it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from fairreplay.errors import BadInputError, UsageError
from fairreplay.trace.asked import OUTSIDE, Applied, Asked
from fairreplay.trace.containers import Content, Read, inspect, records, sample_within
from fairreplay.trace.detect import detect, listed
from fairreplay.trace.fields import After, Columns, Format, Record, Relative, Sample, Skipped, Text
from fairreplay.trace.pieces import Piece, pieces, tabled
from fairreplay.trace.reject import Reject
from fairreplay.trace.rules import Reading, RejectedError, Row, Rules, Tally, shown
from fairreplay.trace.schema import COLUMNS, DEFAULT_TENANT, DEFAULT_TYPE, SCHEMA, TIME_COLUMNS
from fairreplay.trace.values import iso, rounded_us
from fairreplay.trace.vector import DeclinedError, Vector, is_plain

BATCH_ROWS: Final = 1 << 13
BATCH_CHARACTERS: Final = 1 << 24
"""Records that are read one by one are gathered into blocks of at most so many."""
CLOCK_BACK_US: Final = 3_600_000_000
"""A clock that jumps back by more than an hour has been restarted."""
RUNS_NAMED_MAX: Final = 10
NOTHING_ASKED: Final = Asked()
_OWN_COLUMNS: Final = frozenset({"seq", "source"})
_STAGED: Final = {
    name: pl.Int64() if name in TIME_COLUMNS else dtype for name, dtype in SCHEMA.items() if name != "source"
}


@dataclass(frozen=True)
class Block:
    """Consecutive records of a source: the accepted ones as canonical rows in file order, and the rejects among them.

    Duplicates are not yet settled.
    """

    frame: pl.DataFrame
    rejects: tuple[Reject, ...]


@dataclass(frozen=True)
class SourceFacts:
    """What there is to say about a source that was read to its end, but for its rows."""

    path: Path
    source: str
    format: Format
    container: str
    accepted: int
    rejected: int
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
        return self.accepted + self.rejected


@dataclass(frozen=True)
class SourceRead(SourceFacts):
    """A source that fits into memory, whole. ``frame`` has the canonical columns in file order."""

    frame: pl.DataFrame
    rejects: tuple[Reject, ...]


def content_id(path: Path) -> str:
    """sha256 of the file's bytes, 16 hex digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


def read_source(
    path: Path, reading: Reading, wanted: str | Format = "auto", asked: Asked = NOTHING_ASKED
) -> SourceRead:
    """Read all of ``path`` as format ``wanted`` (``auto``: as what it is; a ``Format``: as a mapping file says).

    Raises:
        BadInputError: the file as a whole cannot be read, or changed while it was.
        UsageError: an unknown format, or a mapping, a field or a key that names what is not there.
    """
    reader = SourceReader(path, reading, wanted, asked)
    blocks = list(reader.blocks())
    return SourceRead(
        **vars(reader.facts()),
        frame=pl.concat([pl.DataFrame(schema=SCHEMA), *(block.frame for block in blocks)]),
        rejects=tuple(reject for block in blocks for reject in block.rejects),
    )


class SourceReader:
    """A source, block by block: ``blocks()`` once to its end, then ``facts()``. Memory is bounded by the block.

    Raises:
        BadInputError: the file as a whole cannot be read.
        UsageError: an unknown format.
    """

    def __init__(
        self,
        path: Path,
        reading: Reading,
        wanted: str | Format = "auto",
        asked: Asked = NOTHING_ASKED,
        source: str | None = None,
    ) -> None:
        self.path = path
        self._reading = reading
        self._before = _state(path)
        self.source = source or content_id(path)
        self._content = inspect(path, wanted if isinstance(wanted, Format) else None)
        self.format = detect(path, self._content.sample, wanted)
        found = listed(self._content.sample)
        refused = self.format.refuse(self._content.sample) if self.format.refuse else None
        if refused is not None:
            raise BadInputError(f"{path}: {self.format.name}: {refused}; columns found: {found}")
        self._sample = sample_within(self._content.sample, self.format)
        if self.format.survey is not None:
            self.format = surveyed(path, self._content, self.format, self._sample)
        self._applied = Applied(asked, self.format, self._sample, str(path))
        self.format, self._columns = self._applied.format, self._applied.columns
        if "prompt_tokens" not in self._columns:
            raise BadInputError(
                f"{path}: {self.format.name}: no token counts; give a log that has them with --join FILE --on KEY; "
                f"columns found: {found}"
            )
        self._rules = Rules(self._columns, reading, str(path), self.source)
        self._id_columns = [place.column for place in self._columns.get("request_id", ())]
        self._by_columns = self.format.by_columns
        self._read_columns = read_columns(self.format, self._columns)
        self._vector = self._vectorised()
        self._records = 0
        self._accepted = 0
        self._rejected = 0
        self._skipped: Counter[str] = Counter()
        self._keys: set[str] = set()
        self._names_ids = False
        self._order = Order()

    def blocks(self) -> Iterator[Block]:
        """Every record of the source, in file order.

        Raises:
            BadInputError: damage on the way, or the file changed while it was read.
            UsageError: a field or key that was asked for is in no record.
        """
        if self._vector is not None:
            # A row without an arrival is odd; what a format prepares must not see one that is none.
            odd_as_nulls = self._by_columns is None
            found = pieces(self.path, self._content, self.format, self._read_columns, odd_as_nulls=odd_as_nulls)
            for piece in tabled(found):
                yield from self._either(piece, self._vector)
        elif self.format.whole is not None:
            yield self._block(*self._judged(enumerate(self._reads())))
        else:
            yield from self._strict(self._reads())
        if _state(self.path) != self._before:
            raise BadInputError(f"{self.path}: changed while it was read; ingest it when it is complete")
        self._applied.check()

    def _vectorised(self) -> Vector | None:
        """Rules for whole columns, if the format is one of declared columns in a container that has tables."""
        if not is_plain(self.format, self._columns, self._reading):
            return None
        try:
            pieces(self.path, self._content, self.format, self._read_columns)
        except DeclinedError:
            return None
        return Vector(self._columns, self._reading, self.source)

    def _reads(self) -> Iterator[Read]:
        return records(self.path, self._content, self.format)

    def facts(self) -> SourceFacts:
        """What the blocks gave in all."""
        return SourceFacts(
            path=self.path,
            source=self.source,
            format=self.format,
            container=self._sample.container,
            accepted=self._accepted,
            rejected=self._rejected,
            skipped=dict(sorted((self._skipped + Counter({OUTSIDE: self._applied.outside})).items())),
            own_ids=not self._names_ids,
            ignored_columns=_ignored(self._keys | self._sampled_names(), self.format, self._columns),
            assumptions=_assumptions(
                self._columns,
                _names(self._sample, self.format),
                self._applied.told(self._reading),
                self._rules.tally,
                self._accepted,
            )
            + (() if self._accepted or self._rejected or self._skipped else ("there is no record in it",)),
            clamped=self._rules.tally.clamped,
            out_of_order=self._order.late,
            runs=self._order.runs(),
            applied=self._applied,
        )

    def _sampled_names(self) -> set[str]:
        return set() if self._sample.is_empty_page else set(self._sample.columns)

    def _either(self, piece: Piece, vector: Vector) -> Iterator[Block]:
        """A piece by whole columns and what is odd in it one by one; or its halves; or all of it one by one."""
        tally = self._rules.tally.copy()
        try:
            table, others = piece.table()
            table, odd = self._by_columns.prepare(table) if self._by_columns else (table, None)
            judged = vector.judge(table, self._records, self._rules.tally, odd)
            del table
        except DeclinedError:
            halves = piece.halves()
            if halves:
                for half in halves:
                    yield from self._either(half, vector)
            else:
                yield from self._strict(piece.reads())
            return
        numbers = [self._records + position for position in judged.odd]
        try:
            rows, rejects = self._judged(zip(numbers, piece.reads(judged.odd), strict=True)) if numbers else (None, [])
        except BadInputError:
            # The file's fault. Which row shows it is to be seen from the first on.
            self._rules.tally = tally
            yield from self._strict(piece.reads())
            return
        self._keys |= others
        self._names_ids = self._names_ids or judged.names_ids
        self._records += judged.rows.height + len(numbers)
        frame = judged.rows if rows is None or rows.is_empty() else pl.concat([judged.rows, rows]).sort("seq")
        yield self._block(frame, rejects)

    def _strict(self, reads: Iterator[Read]) -> Iterator[Block]:
        """Records one by one."""
        while batch := list(_batch(reads)):
            frame, rejects = self._judged(enumerate(batch, self._records))
            self._records += len(batch)
            yield self._block(frame, rejects)

    def _judged(self, reads: Iterable[tuple[int, Read]]) -> tuple[pl.DataFrame, list[Reject]]:
        """Numbered records by the strict rules."""
        rows: list[Row] = []
        rejects: list[Reject] = []
        for number, read, prepared in prepared_records(reads, self.format):
            if prepared is None:
                line = self._applied.keeping.broken(read.text or "")
                rejects.append(Reject(number, None, line, "unparsable_record", line))
                continue
            self._keys |= (read.value or {}).keys()
            if isinstance(prepared, Skipped):
                self._skipped[prepared.reason] += 1
                continue
            try:
                if isinstance(prepared, RejectedError):
                    raise prepared
                rows.append(self._rules.row(prepared, number))
            except RejectedError as error:
                line = self._applied.kept_line(read, prepared)
                value = self._applied.keeping.value(error.column, shown(error.value))
                rejects.append(Reject(number, error.column, value, error.reason, line))
                continue
            self._names_ids = self._names_ids or any(prepared.get(name) is not None for name in self._id_columns)
        return canonical(rows, self.source), rejects

    def _block(self, frame: pl.DataFrame, rejects: Sequence[Reject]) -> Block:
        frame = self._applied.rows(frame)
        self._accepted += frame.height
        self._rejected += len(rejects)
        self._order.see(frame)
        return Block(frame, tuple(rejects))


def _batch(reads: Iterator[Read]) -> Iterator[Read]:
    """The next records, so many that they fit into memory whatever their length."""
    size = 0
    for count, read in enumerate(reads, 1):
        yield read
        size += len(read.text or "")
        if count >= BATCH_ROWS or size >= BATCH_CHARACTERS:
            return


def canonical(rows: Sequence[Row], source: str) -> pl.DataFrame:
    staged = pl.DataFrame(rows, schema=_STAGED, orient="row")
    times = [pl.col(name).cast(SCHEMA[name]) for name in TIME_COLUMNS]
    return staged.with_columns(*times, source=pl.lit(source)).select(COLUMNS)


class Order:
    """How the arrivals follow one another in the source."""

    def __init__(self) -> None:
        self.late = 0
        """Rows after a later arrival."""
        self._latest: int | None = None
        self._last: int | None = None
        self._restarts = 0
        self._named: list[str] = []

    def see(self, frame: pl.DataFrame) -> None:
        if frame.is_empty():
            return
        arrivals = frame["arrived_at"].cast(pl.Int64)
        if arrivals.is_sorted() and (self._latest is None or self._latest == self._last <= arrivals[0]):
            self._last = self._latest = arrivals[-1]
            return
        before = pl.Series([self._last], dtype=pl.Int64).append(arrivals)
        latest = pl.Series([self._latest], dtype=pl.Int64).append(arrivals).cum_max()
        self.late += int((arrivals < latest[1:]).sum())
        back = (before.diff()[1:] < -CLOCK_BACK_US).fill_null(value=False)
        self._restarts += int(back.sum())
        if len(self._named) < RUNS_NAMED_MAX and back.any():
            first = frame.filter(back).head(RUNS_NAMED_MAX - len(self._named))
            instants = first["arrived_at"].cast(pl.Int64)
            self._named += (f"row {seq}: {iso(arrival)}" for seq, arrival in zip(first["seq"], instants, strict=True))
        self._last, self._latest = arrivals[-1], latest[-1]

    def runs(self) -> tuple[str, ...]:
        """First arrivals after the clock went back by more than an hour."""
        more = self._restarts - len(self._named)
        return (*self._named, *([f"and {more} more"] if more else []))


def read_columns(log_format: Format, columns: Columns) -> Columns:
    """What tables of this format have: the declared columns, and those that are only looked at."""
    if log_format.by_columns is None:
        return columns
    declared = {place.column for places in columns.values() for place in places}
    looked_at = {place.column: place for place in log_format.by_columns.looks_at if place.column not in declared}
    return {**columns, "": tuple(looked_at.values())}


def surveyed(path: Path, content: Content, log_format: Format, sample: Sample) -> Format:
    """The format as it is for this file, after a first pass over its records."""
    assert log_format.survey is not None
    try:
        return log_format.survey(sample, _survey_records(path, content, log_format))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _survey_records(path: Path, content: Content, log_format: Format) -> Iterator[Record]:
    """Every record that can be read, with no more than ``survey`` looks at where that is quicker."""

    def with_few_keys(piece: Piece) -> Iterator[Record]:
        try:
            table, _ = piece.table()
        except DeclinedError:
            halves = piece.halves()
            for half in halves:
                yield from with_few_keys(half)
            reads = iter(()) if halves else piece.reads()
            yield from (read.value for read in reads if read.value is not None)
            return
        yield from table.iter_rows(named=True)

    if log_format.survey_reads:
        try:
            columns = {"": tuple(Text(name) for name in log_format.survey_reads)}
            for piece in tabled(pieces(path, content, log_format, columns)):
                yield from with_few_keys(piece)
            return
        except DeclinedError:
            pass
    yield from (read.value for read in records(path, content, log_format) if read.value is not None)


Prepared = Record | Skipped | RejectedError | None
"""A record as the rules want it; a reject that its format found; None where it cannot be read."""


def prepared_records(reads: Iterable[tuple[int, Read]], log_format: Format) -> Iterator[tuple[int, Read, Prepared]]:
    """Every numbered record, as read and as prepared."""
    if log_format.whole is not None:
        # The lines themselves are let go: what is kept of a record is what the format keeps.
        held = [(number, Read(read.value, None if read.value is not None else read.text)) for number, read in reads]
        answers = iter(log_format.whole([read.value for _, read in held if read.value is not None]))
        for number, read in held:
            answer = None if read.value is None else next(answers)
            yield number, read, _answer(answer, log_format) if isinstance(answer, dict) else answer
        return
    for number, read in reads:
        yield number, read, _answer(read.value, log_format)


def _answer(record: Record | None, log_format: Format) -> Prepared:
    if record is None or log_format.prepare is None:
        return record
    try:
        return log_format.prepare(record)
    except RejectedError as error:
        return error


def lines_of(facts: SourceFacts, numbers: Sequence[int]) -> Iterator[str]:
    """What is kept of the records ``numbers`` (ascending): a second pass, for those found to be rejects later."""
    wanted = iter(numbers)
    number = next(wanted, None)
    if number is None:
        return
    reads = records(facts.path, inspect(facts.path, facts.format), facts.format)
    for place, read, prepared in prepared_records(enumerate(reads), facts.format):
        if place == number:
            yield facts.applied.kept_line(read, prepared)
            number = next(wanted, None)
            if number is None:
                return


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _ignored(keys: set[str], log_format: Format, columns: Columns) -> tuple[str, ...]:
    used = {place.column for fields in columns.values() for place in fields}
    used |= {place.minus for fields in columns.values() for place in fields if isinstance(place, After) and place.minus}
    own = _OWN_COLUMNS if log_format.name == "native" else frozenset()
    return tuple(sorted(keys - used - own - set(log_format.reads)))


def _names(sample: Sample, log_format: Format) -> set[str]:
    """The columns of a sample, and what the format makes of its first records."""
    made = (_answer(record, log_format) for record in sample.records)
    return {*sample.columns, *(name for record in made if isinstance(record, dict) for name in record)}


def _assumptions(columns: Columns, names: set[str], reading: Reading, tally: Tally, accepted: int) -> tuple[str, ...]:
    """What was taken for granted, one sentence each."""
    said = []
    if tally.naive_columns:
        said.append(f"{', '.join(sorted(tally.naive_columns))} without zone, read as {reading.zone_name} (--tz)")
    for place in columns["arrived_at"]:
        if isinstance(place, Relative) and place.column in names:
            whose = "of a monotonic clock whose 0 is" if place.monotonic else "from the log's own start,"
            start = iso(rounded_us(reading.t0_us))
            said.append(f"{place.column} counts {place.unit} {whose} taken as {start} (--t0)")
    for name, given, fallback in (("tenant", reading.tenant, DEFAULT_TENANT), ("type", reading.type_, DEFAULT_TYPE)):
        filled = tally.defaulted[name]
        if filled:
            which = "all rows" if filled == accepted else f"{filled} rows"
            said.append(f"{which} without {name}, taken as {given or fallback!r} (--{name})")
    return tuple(said)
