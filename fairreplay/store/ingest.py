"""Ingest: sources into the store, each one whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import polars as pl

from fairreplay.errors import BadInputError, FairReplayError, StoreError, UsageError
from fairreplay.store.draft import Draft
from fairreplay.store.duplicates import find_repeats
from fairreplay.store.files import is_full, replace_file
from fairreplay.store.manifest import MANIFEST_NAME, Segment, read_manifest, write_manifest
from fairreplay.store.objects import Place
from fairreplay.store.rejects import RejectLines
from fairreplay.store.sources import Source, expand, expected_rows, local, single
from fairreplay.store.store import (
    LOCK_NAME,
    Store,
    check_vacant,
    create_store,
    has_store,
    lock_folder,
    make_folder,
    open_store,
)
from fairreplay.trace.asked import Asked, tenant_adapter
from fairreplay.trace.drift import check_schemas
from fairreplay.trace.fields import Format
from fairreplay.trace.gateway import read_gateway, refused_source
from fairreplay.trace.join import Gateway, JoinKey
from fairreplay.trace.read import Block, SourceFacts, SourceReader, content_id, lines_of
from fairreplay.trace.reject import Reject
from fairreplay.trace.rules import Reading
from fairreplay.trace.schema import COLUMNS, TIME_COLUMNS
from fairreplay.trace.values import iso

FIRST_ROWS: Final = 5
PSEUDONYMS: Final = "--pseudonymise"
"""Setting under which a segment keeps the fingerprint of its key."""

Progress = Callable[[int, int], None]
"""(rows read, rows expected in all; 0 = unknown), after every block of a source."""


@dataclass(frozen=True)
class IngestOptions:
    """``format`` is ``auto`` or a name of ``FORMATS``; rejects above ``max_reject_rate`` (0..1) stop a source.

    ``mapping``, the format of a mapping file, takes the place of ``format``.
    ``join`` names the gateway's log, ``asked.key`` what both sides share. ``settings`` are the options that change what
    a source becomes, as given; they are kept with it. ``dry_run``: the store stays as it is.
    """

    format: str = "auto"
    reading: Reading = field(default_factory=Reading)
    max_reject_rate: float = 0.01
    mapping: Format | None = None
    asked: Asked = field(default_factory=Asked)
    join: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False
    progress: Progress | None = None


@dataclass(frozen=True)
class SourceSummary:
    """One source of this run.

    ``already``: the store held its bytes before, nothing was done. Not ``changed``: nor did it get anything new.
    ``by_status`` and ``by_tenant`` count accepted rows; ``first_rows`` (dry run only) are some of them.
    """

    path: str
    segment: Segment
    why: str
    already: bool
    changed: bool
    by_status: dict[str, int]
    by_tenant: dict[str, int]
    otherwise: bool = False
    """``already``, and read with other options then."""
    first_rows: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class IngestSummary:
    """What a run of ``ingest`` did; tenants, types and arrivals are those of its sources' accepted rows."""

    sources: tuple[SourceSummary, ...]
    tenants: dict[str, int]
    types: dict[str, int]
    first_arrival: str | None
    last_arrival: str | None
    store: str
    dry_run: bool = False


def ingest(names: Sequence[str], store_path: Place, options: IngestOptions) -> IngestSummary:
    """Read ``names`` (files, folders, patterns, ``-``, objects) into the store at ``store_path``, made if not there.

    Sources are committed one after the other; a source that fails leaves the store as it was before it.

    Raises:
        UsageError: a name that is not there, or options that do not go together or with the store.
        BadInputError: a source that cannot be read, or has too many rejects.
        StoreError, StoreBusyError: as of the store; also where there is no room to write.
    """
    sources = expand(names, store_path)
    if options.dry_run:
        with _rehearsal(store_path) as scratch:
            summary = _ingest(sources, scratch, options)
        return replace(summary, store=str(store_path), dry_run=True)
    return _ingest(sources, store_path, options)


def _ingest(sources: Sequence[Source], store_path: Place, options: IngestOptions) -> IngestSummary:
    here = [source.path for source in sources if isinstance(source.path, Path)]
    check_schemas(here, options.mapping or options.format)
    with _held(store_path) as store:
        store.remove_leftovers()
        _check_pseudonyms(store, options)
        joined = _Joined(single(options.join, store_path), options) if options.join is not None else None
        done = [_ingest_one(store, source, options, joined) for source in sources]
        if joined is not None:
            done += _ingest_refused(store, joined, done, options)
        return _summary(store, store_path, done)


@contextmanager
def _rehearsal(store_path: Place) -> Iterator[Path]:
    """A store of links to what ``store_path`` holds: a run on it does the same and changes nothing there."""
    with TemporaryDirectory(prefix="fairreplay-") as folder:
        scratch = Path(folder) / "store"
        if has_store(store_path):
            real = open_store(store_path)
            for kind, files in (("segments", real.segment_files()), ("rejects", real.reject_files())):
                (scratch / kind).mkdir(parents=True)
                for file in files:
                    (scratch / kind / file.name).symlink_to(file.absolute())
            write_manifest(scratch, real.manifest)
        else:
            check_vacant(store_path)
        yield scratch


@contextmanager
def _held(path: Place) -> Iterator[Store]:
    """The store under its lock, without leftovers of a run that failed.

    A store that was made for this run and got nothing is taken away again.
    """
    if not isinstance(path, Path):
        check_vacant(path)
        with lock_folder(path), _tidied(path):
            yield create_store(path)
        return
    if (path / MANIFEST_NAME).exists():
        with lock_folder(path), _tidied(path):
            yield open_store(path)
        return
    check_vacant(path)
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    leftover_lock = (path / LOCK_NAME).exists()
    make_folder(path)
    try:
        with lock_folder(path), _tidied(path):
            try:
                yield create_store(path)
            finally:
                # What is on disk counts: an interrupt may come between the last write and the note that it is done.
                if not (path / MANIFEST_NAME).exists() or not read_manifest(path).segments:
                    (path / MANIFEST_NAME).unlink(missing_ok=True)
                    if not leftover_lock:
                        (path / LOCK_NAME).unlink()
    finally:
        for folder in made:
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()


@contextmanager
def _tidied(path: Place) -> Iterator[None]:
    """What cannot be written is one clear error, and whatever goes wrong, no part of a source stays behind."""
    try:
        yield
    except BaseException as error:
        with suppress(OSError, FairReplayError):
            open_store(path).remove_leftovers()
        if is_full(error):
            raise StoreError(
                f"{path}: no room to write (the disk, the quota or the largest allowed file is full); "
                "the last source was not stored; make room and ingest again"
            ) from None
        if isinstance(error, OSError):
            reason = error.strerror or (str(error).splitlines() or [type(error).__name__])[0]
            raise StoreError(f"{path}: cannot be written ({reason}); check its permissions") from None
        raise


def _check_pseudonyms(store: Store, options: IngestOptions) -> None:
    """One tenant has one name in a store: all sources under one key, or none."""
    now = options.settings.get(PSEUDONYMS)
    for segment in store.manifest.segments:
        then = segment.settings.get(PSEUDONYMS)
        if then == now:
            continue
        if then is None:
            raise UsageError(f"{store.place}: holds tenants under their own names; use a new store with {PSEUDONYMS}")
        which = "pseudonyms" if now is None else "pseudonyms of another key"
        raise UsageError(
            f"{store.place}: holds tenants under {which}; use {PSEUDONYMS} tenant with the same key, or a new store"
        )


class _Joined:
    """The right side of a join: read when the first source needs it. ``matched``: keys that some left side had."""

    def __init__(self, source: Source, options: IngestOptions) -> None:
        assert options.asked.key is not None, "a join has a key"
        self.source = source
        self._key: JoinKey = options.asked.key
        self._options = options
        self._gateway: Gateway | None = None
        self.matched: set[str] = set()
        self.on_wall_clock = True
        with local(source) as path:
            self.content_id = _content_id(path)

    @property
    def gateway(self) -> Gateway:
        if self._gateway is None:
            adapt = tenant_adapter(self._options.asked.tenant_from)
            with local(self.source) as path:
                self._gateway = read_gateway(path, self._options.reading, self._key, self.content_id, adapt)
        return self._gateway


def _content_id(path: Path) -> str:
    try:
        return content_id(path)
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None


def _ingest_one(store: Store, source: Source, options: IngestOptions, joined: _Joined | None) -> SourceSummary:
    with local(source) as path:
        content = _content_id(path)
        settings = dict(options.settings) | ({"--join": joined.content_id} if joined else {})
        stored = store.manifest.segment(content)
        if stored is not None:
            wanted = options.mapping.name if options.mapping else options.format
            other = stored.settings != settings or wanted not in ("auto", stored.format)
            return _of_stored(store, source.shown, stored, "same bytes", already=True, otherwise=other)
        asked = replace(options.asked, gateway=joined.gateway) if joined else options.asked
        try:
            reader = SourceReader(path, options.reading, options.mapping or options.format, asked, content)
        except OSError as error:
            raise BadInputError(f"{source.shown}: cannot be read ({error.strerror}); check its permissions") from None
        with store.draft(content) as (rows, rejects):
            for block in _blocks(reader, source, options.progress):
                rows.add(block.frame)
                rejects.add(block.rejects)
            facts = reader.facts()
            summary = _stored(store, source, facts, rows, rejects, settings, options)
    if joined is not None and facts.applied.join is not None:
        joined.matched |= facts.applied.join.matched
        joined.on_wall_clock &= facts.applied.join.on_wall_clock
    return summary


def _blocks(reader: SourceReader, source: Source, progress: Progress | None) -> Iterator[Block]:
    """The reader's blocks; what goes wrong in reading is the source's fault, not the store's."""
    blocks, rows = reader.blocks(), 0
    expected = expected_rows(reader.path) if progress is not None else 0
    while True:
        try:
            block = next(blocks, None)
        except OSError as error:
            raise BadInputError(f"{source.shown}: cannot be read ({error.strerror}); check the disk") from None
        if block is None:
            return
        yield block
        rows += block.frame.height + len(block.rejects)
        if progress is not None:
            progress(rows, max(rows, expected) if expected else 0)


def _stored(
    store: Store,
    source: Source,
    facts: SourceFacts,
    rows: Draft,
    rejects: RejectLines,
    settings: dict[str, str],
    options: IngestOptions,
) -> SourceSummary:
    """Settle a draft that is read to its end, and let it count unless it has nothing new."""
    duplicates = _settle(store, facts, rows, rejects)
    _check_rate(facts, rejects, source, options)
    rows.finish()
    segment = replace(_segment(facts, rows, duplicates, rejects), name=source.name, settings=settings)
    why = f"{facts.container} with {', '.join(facts.format.needs)}"
    if duplicates and not segment.accepted and _all_known(store, rejects):
        rows.path.unlink()
        return SourceSummary(source.shown, segment, why, already=False, changed=False, by_status={}, by_tenant={})
    rejects.finish()
    return _of_stored(store, source.shown, store.commit(segment), why, first_rows=options.dry_run)


def _all_known(store: Store, rejects: RejectLines) -> bool:
    """The rejects of a source that has no new row are those of a stored one, whatever its container."""
    new = rejects.keys()
    return not new or any(new <= store.reject_keys(segment) for segment in store.manifest.segments if segment.rejected)


def _of_stored(
    store: Store,
    shown: str,
    segment: Segment,
    why: str,
    *,
    already: bool = False,
    otherwise: bool = False,
    first_rows: bool = False,
) -> SourceSummary:
    return SourceSummary(
        path=shown,
        segment=segment,
        why=why,
        already=already,
        changed=not already,
        by_status=store.counted([segment.source], "status"),
        by_tenant=store.counted([segment.source], "tenant"),
        otherwise=otherwise,
        first_rows=_first_rows(store, segment) if first_rows else (),
    )


def _first_rows(store: Store, segment: Segment) -> tuple[dict[str, Any], ...]:
    """The rows with the lowest numbers, times as text."""
    scan = pl.scan_parquet(store.segment_path(segment.source), glob=False)
    frame = scan.bottom_k(FIRST_ROWS, by="seq").collect().sort("seq").select(COLUMNS)
    instants = frame.select(pl.col(TIME_COLUMNS).cast(pl.Int64)).rows(named=True)
    texts = ({name: None if at is None else iso(at) for name, at in row.items()} for row in instants)
    return tuple({**row, **times} for row, times in zip(frame.rows(named=True), texts, strict=True))


def _ingest_refused(
    store: Store, joined: _Joined, done: Sequence[SourceSummary], options: IngestOptions
) -> list[SourceSummary]:
    """What the gateway refused before any engine saw it, as a source of its own: the joined log less what matched."""
    lefts = sorted(item.segment.source for item in done)
    content = hashlib.sha256("\n".join(["refused", joined.content_id, *lefts]).encode()).hexdigest()[:16]
    stored = store.manifest.segment(content)
    shown, why = joined.source.shown, "refused before the engine: not ok, and in no other log"
    if stored is not None:
        return [_of_stored(store, shown, stored, why, already=True)]
    if all(item.already for item in done) or not (joined.on_wall_clock and joined.gateway.on_wall_clock):
        return []
    facts, block = refused_source(joined.gateway, joined.matched, options.asked, content)
    if not facts.rows:
        return []
    settings = dict(options.settings) | {"--join": joined.content_id}
    with local(joined.source) as path, store.draft(content) as (rows, rejects):
        rows.add(block.frame)
        rejects.add(block.rejects)
        summary = _stored(store, joined.source, replace(facts, path=path), rows, rejects, settings, options)
    return [replace(summary, why=why)]


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
        lines = lines_of(facts, [number for number, _ in repeats.conflicts])
        rejects.merge(
            Reject(number, "request_id", request_id, "conflicting_duplicate", line)
            for (number, request_id), line in zip(repeats.conflicts, lines, strict=True)
        )
    return repeats.duplicates


def _check_rate(facts: SourceFacts, rejects: RejectLines, source: Source, options: IngestOptions) -> None:
    """Too many rejects: the log is not what it was taken for. They are left beside it for reading."""
    first, rate_max = rejects.first, options.max_reject_rate
    if first is None or rejects.count <= rate_max * facts.rows:
        return
    beside = source.rejects_path
    where = f"see {beside}"
    if options.dry_run:
        where = "without --dry-run they are left beside the log for reading"
    else:
        try:
            replace_file(beside, lambda path: rejects.copy_to(path, {"file": source.name, "source": facts.source}))
        except OSError as error:
            where = f"{beside} could not be written ({error.strerror})"
    at = f"row {first.row}" + (f", column {first.column}" if first.column else "")
    by_reason = ", ".join(f"{reason} {count}" for reason, count in rejects.reasons().items())
    raise BadInputError(
        f"{source.shown}: {rejects.count} of {facts.rows} rows rejected ({by_reason}), more than "
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
        assumptions=(*facts.assumptions, *facts.applied.remarks()),
        unknown_columns=facts.ignored_columns,
        empty_columns=tuple(name for name in COLUMNS if rows.rows and name not in rows.filled_columns),
        out_of_order=facts.out_of_order,
        clamped=facts.clamped,
        runs=facts.runs,
        prefix_block_tokens=facts.format.prefix_block_tokens,
        join=facts.applied.join.counts(facts.records) if facts.applied.join is not None else None,
    )


def _summary(store: Store, store_path: Place, done: Sequence[SourceSummary]) -> IngestSummary:
    kept = [item for item in done if item.already or item.changed]
    stored = [item.segment.source for item in kept]
    instants = [item.segment for item in kept if item.segment.first_arrival is not None]
    return IngestSummary(
        sources=tuple(done),
        tenants=store.counted(stored, "tenant"),
        types=store.counted(stored, "type"),
        first_arrival=min((str(item.first_arrival) for item in instants), default=None),
        last_arrival=max((str(item.last_arrival) for item in instants), default=None),
        store=str(store_path),
    )
