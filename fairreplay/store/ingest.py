"""Ingest: sources into the store, each one whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import glob, has_magic
from pathlib import Path
from typing import Final

from fairreplay.errors import BadInputError, UsageError
from fairreplay.store.draft import Draft
from fairreplay.store.duplicates import find_repeats
from fairreplay.store.files import replace_file
from fairreplay.store.manifest import MANIFEST_NAME, Segment
from fairreplay.store.rejects import RejectLines
from fairreplay.store.store import LOCK_NAME, Store, check_vacant, create_store, lock_folder, make_folder, open_store
from fairreplay.trace.fields import Format
from fairreplay.trace.read import Reject, SourceFacts, SourceReader, content_id, lines_of
from fairreplay.trace.rules import Reading
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
        reader = SourceReader(file, options.reading, options.mapping or options.format, source)
    except OSError as error:
        raise BadInputError(f"{file}: cannot be read ({error.strerror}); check its permissions") from None
    with store.draft(source) as (rows, rejects):
        for block in reader.blocks():
            rows.add(block.frame)
            rejects.add(block.rejects)
        facts = reader.facts()
        duplicates = _settle(store, facts, rows, rejects)
        _check_rate(facts, rejects, options.max_reject_rate)
        rows.finish()
        rejects.finish()
        segment = store.commit(_segment(facts, rows, duplicates, rejects))
    why = f"{facts.container} with {', '.join(facts.format.needs)}"
    return SourceSummary(str(file), segment, why, already=False)


def _settle(store: Store, facts: SourceFacts, rows: Draft, rejects: RejectLines) -> int:
    """Drop what repeats an earlier row, here or in the store; the number of equal ones. Others become rejects.

    Ids made by the reader repeat nowhere.
    """
    if facts.own_ids:
        return 0
    repeats = find_repeats(
        rows.hashes(), rows.frames, lambda: store.row_groups(["request_id"]), store.row_groups, rows.path
    )
    rows.drop(repeats.dropped)
    if repeats.conflicts:
        lines = lines_of(facts.path, facts.format, [number for number, _ in repeats.conflicts])
        rejects.merge(
            Reject(number, "request_id", request_id, "conflicting_duplicate", line)
            for (number, request_id), line in zip(repeats.conflicts, lines, strict=True)
        )
    return repeats.duplicates


def _check_rate(facts: SourceFacts, rejects: RejectLines, rate_max: float) -> None:
    """Too many rejects: the log is not what it was taken for. They are left beside it for reading."""
    first = rejects.first
    if first is None or rejects.count <= rate_max * facts.rows:
        return
    beside = facts.path.with_name(facts.path.name + REJECTS_SUFFIX)
    where = f"see {beside}"
    try:
        replace_file(beside, lambda path: rejects.copy_to(path, {"file": facts.path.name, "source": facts.source}))
    except OSError as error:
        where = f"{beside} could not be written ({error.strerror})"
    at = f"row {first.row}" + (f", column {first.column}" if first.column else "")
    by_reason = ", ".join(f"{reason} {count}" for reason, count in rejects.reasons().items())
    raise BadInputError(
        f"{facts.path}: {rejects.count} of {facts.rows} rows rejected ({by_reason}), more than "
        f"--max-reject-rate {rate_max:g}; first: {at}; {where}; nothing was stored"
    )


def _segment(facts: SourceFacts, rows: Draft, duplicates: int, rejects: RejectLines) -> Segment:
    first_us, last_us = rows.period_us
    return Segment(
        source=facts.source,
        name=facts.path.name,
        format=facts.format.name,
        rows=facts.rows,
        accepted=rows.rows,
        rejected=rejects.count,
        duplicates=duplicates,
        file_bytes=0,
        file_sha256="",
        skipped=facts.skipped,
        rejects=rejects.reasons(),
        first_arrival=None if first_us is None else iso(first_us),
        last_arrival=None if last_us is None else iso(last_us),
        assumptions=facts.assumptions,
        unknown_columns=facts.ignored_columns,
        empty_columns=tuple(name for name in COLUMNS if rows.rows and name not in rows.filled_columns),
        out_of_order=facts.out_of_order,
        clamped=facts.clamped,
        runs=facts.runs,
        prefix_block_tokens=facts.format.prefix_block_tokens,
    )


def _summary(store: Store, store_path: Path, done: Sequence[SourceSummary]) -> IngestSummary:
    stored = [item.segment.source for item in done]
    instants = [item.segment for item in done if item.segment.first_arrival is not None]
    return IngestSummary(
        sources=tuple(done),
        tenants=store.counted(stored, "tenant"),
        types=store.counted(stored, "type"),
        first_arrival=min((str(item.first_arrival) for item in instants), default=None),
        last_arrival=max((str(item.last_arrival) for item in instants), default=None),
        store=os.fspath(store_path),
    )
