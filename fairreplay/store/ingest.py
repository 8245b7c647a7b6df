"""Ingest: sources into the store, each one whole or not at all."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import glob, has_magic
from pathlib import Path
from typing import Final

import orjson
import polars as pl

from fairreplay.errors import BadInputError, UsageError
from fairreplay.store.duplicates import settle
from fairreplay.store.files import replace_bytes
from fairreplay.store.manifest import MANIFEST_NAME, Segment
from fairreplay.store.store import LOCK_NAME, Store, check_vacant, create_store, lock_folder, make_folder, open_store
from fairreplay.trace.fields import Format
from fairreplay.trace.read import Reject, SourceRead, content_id, lines_of, read_source
from fairreplay.trace.rules import REASONS, Reading
from fairreplay.trace.schema import COLUMNS
from fairreplay.trace.values import iso

REJECTS_SUFFIX: Final = ".rejects.jsonl"


@dataclass(frozen=True)
class IngestOptions:
    """``format`` is ``auto`` or a name of ``FORMATS``; rejects above ``max_reject_rate`` (0..1) stop a source.

    ``mapping``, the format of a mapping file, takes the place of ``format``.
    """

    format: str = "auto"
    reading: Reading = field(default_factory=Reading)
    max_reject_rate: float = 0.01
    mapping: Format | None = None


@dataclass(frozen=True)
class SourceSummary:
    """One source of this run. ``already``: the store held its bytes before, nothing was done."""

    path: str
    segment: Segment
    why: str
    already: bool


@dataclass(frozen=True)
class IngestSummary:
    """What a run of ``ingest`` did; tenants, types and arrivals are those of its sources' accepted rows."""

    sources: tuple[SourceSummary, ...]
    tenants: dict[str, int]
    types: dict[str, int]
    first_arrival: str | None
    last_arrival: str | None
    store: str


def ingest(
    paths: Sequence[str],
    store_path: Path,
    options: IngestOptions,
) -> IngestSummary:
    """Read ``paths`` (files, folders, patterns) into the store at ``store_path``, which is made if it is not there.

    Sources are committed one after the other; a source that fails leaves the store as it was before it.

    Raises:
        UsageError: a path that is not there.
        BadInputError: a source that cannot be read, or has too many rejects.
        StoreError, StoreBusyError: as of the store.
    """
    files = expand(paths, store_path)
    with _held(store_path) as store:
        store.remove_leftovers()
        done = [_ingest_one(store, file, options) for file in files]
        return _summary(store, store_path, done)


def expand(paths: Sequence[str], store_path: Path) -> list[Path]:
    """The files that ``paths`` name: a file by its literal name, all logs of a folder, else a pattern's matches.

    Hidden files, the rejects that an earlier run left beside a log and the store's own files are no logs.
    """
    own = store_path.absolute()
    files: list[Path] = []
    for text in paths:
        path = Path(text)
        if path.is_dir():
            found = sorted(item for item in path.rglob("*") if item.is_file() and _is_log(item, path, own))
            if not found:
                raise UsageError(f"{path}: no files in this folder; name a folder with logs")
            files += found
        elif path.is_file():
            files.append(path)
        elif path.exists():
            raise UsageError(f"{path}: neither a file nor a folder; write its content to a file first")
        elif has_magic(text) and (matches := sorted(glob(text, recursive=True))):  # noqa: PTH207 (patterns may be absolute)
            files += [match for match in map(Path, matches) if match.is_file()]
        else:
            raise UsageError(f"{path}: no such file or folder; check the path")
    return list(dict.fromkeys(files))


def _is_log(path: Path, folder: Path, store_path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and not path.name.endswith(REJECTS_SUFFIX) and store_path not in path.absolute().parents


@contextmanager
def _held(path: Path) -> Iterator[Store]:
    """The store under its lock. If it was made for this run and nothing got into it, it is taken away again."""
    if (path / MANIFEST_NAME).exists():
        with lock_folder(path):
            yield open_store(path)
        return
    check_vacant(path)
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    leftover_lock = (path / LOCK_NAME).exists()
    make_folder(path)
    try:
        with lock_folder(path):
            store = create_store(path)
            try:
                yield store
            finally:
                if not store.manifest.segments:
                    (path / MANIFEST_NAME).unlink()
                    if not leftover_lock:
                        (path / LOCK_NAME).unlink()
    finally:
        for folder in made:
            if not any(folder.iterdir()):
                folder.rmdir()


def _ingest_one(store: Store, file: Path, options: IngestOptions) -> SourceSummary:
    try:
        source = content_id(file)
        stored = store.manifest.segment(source)
        if stored is not None:
            return SourceSummary(str(file), stored, "same bytes", already=True)
        read = read_source(file, options.reading, options.mapping or options.format)
    except OSError as error:
        raise BadInputError(f"{file}: cannot be read ({error.strerror}); check its permissions") from None
    settled = settle(read.frame, _stored_rows(store, read))
    lines = lines_of(read, {number for number, _ in settled.conflicts}) if settled.conflicts else {}
    conflicts = [
        Reject(number, "request_id", request_id, "conflicting_duplicate", lines[number])
        for number, request_id in settled.conflicts
    ]
    rejects = sorted((*read.rejects, *conflicts), key=lambda reject: reject.row)
    _check_rate(read, rejects, options.max_reject_rate)
    segment = _segment(read, settled.kept, settled.duplicates, rejects)
    segment = store.add_segment(segment, settled.kept, [reject.as_dict() for reject in rejects])
    why = f"{read.container} with {', '.join(read.format.needs)}"
    return SourceSummary(str(file), segment, why, already=False)


def _stored_rows(store: Store, read: SourceRead) -> pl.DataFrame:
    """Stored rows that share a request id with the source. Ids made by the reader never do."""
    if read.own_ids:
        return read.frame.clear()
    wanted = read.frame["request_id"].unique()
    return pl.concat([read.frame.clear(), store.rows_with_ids(wanted)])


def _check_rate(read: SourceRead, rejects: list[Reject], rate_max: float) -> None:
    """Too many rejects: the log is not what it was taken for. They are left beside it for reading."""
    if not rejects or len(rejects) <= rate_max * read.rows:
        return
    beside = read.path.with_name(read.path.name + REJECTS_SUFFIX)
    where = f"see {beside}"
    try:
        replace_bytes(beside, b"".join(_reject_line(read, reject) for reject in rejects))
    except OSError as error:
        where = f"{beside} could not be written ({error.strerror})"
    first = rejects[0]
    at = f"row {first.row}" + (f", column {first.column}" if first.column else "")
    raise BadInputError(
        f"{read.path}: {len(rejects)} of {read.rows} rows rejected ({_by_reason(rejects)}), more than "
        f"--max-reject-rate {rate_max:g}; first: {at}; {where}; nothing was stored"
    )


def _reject_line(read: SourceRead, reject: Reject) -> bytes:
    return orjson.dumps({"file": read.path.name, "source": read.source, **reject.as_dict()}) + b"\n"


def _by_reason(rejects: Sequence[Reject]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in _reasons(rejects).items())


def _reasons(rejects: Sequence[Reject]) -> dict[str, int]:
    counts = Counter(reject.reason for reject in rejects)
    return {reason: counts[reason] for reason in REASONS if counts[reason]}


def _segment(read: SourceRead, kept: pl.DataFrame, duplicates: int, rejects: list[Reject]) -> Segment:
    arrivals = kept["arrived_at"].cast(pl.Int64)
    return Segment(
        source=read.source,
        name=read.path.name,
        format=read.format.name,
        rows=read.rows,
        accepted=kept.height,
        rejected=len(rejects),
        duplicates=duplicates,
        file_bytes=0,
        file_sha256="",
        skipped=read.skipped,
        rejects=_reasons(rejects),
        first_arrival=_iso(arrivals.min()),
        last_arrival=_iso(arrivals.max()),
        assumptions=read.assumptions,
        unknown_columns=read.ignored_columns,
        empty_columns=tuple(name for name in COLUMNS if kept.height and kept[name].null_count() == kept.height),
        out_of_order=read.out_of_order,
        clamped=read.clamped,
        runs=read.runs,
        prefix_block_tokens=read.format.prefix_block_tokens,
    )


def _iso(instant_us: object) -> str | None:
    return iso(instant_us) if isinstance(instant_us, int) else None


def _summary(store: Store, store_path: Path, done: Sequence[SourceSummary]) -> IngestSummary:
    frame = store.requests_of([item.segment.source for item in done])
    instants = [item.segment for item in done if item.segment.first_arrival is not None]
    return IngestSummary(
        sources=tuple(done),
        tenants=_counted(frame, "tenant"),
        types=_counted(frame, "type"),
        first_arrival=min((str(item.first_arrival) for item in instants), default=None),
        last_arrival=max((str(item.last_arrival) for item in instants), default=None),
        store=os.fspath(store_path),
    )


def _counted(frame: pl.DataFrame, column: str) -> dict[str, int]:
    counts = frame.group_by(column).len().sort(column)
    return dict(zip(counts[column], counts["len"], strict=True))
