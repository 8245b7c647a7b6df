"""The store: a folder of Parquet segments named by the content they came from, and the manifest that lists them.

Layout: ``manifest.json``, ``segments/<source>.parquet``, ``rejects/<source>.jsonl``,
``replays/<policy>-<config_hash>/{replay.json,requests.parquet,steps.parquet}``, ``lock``. Apart from ``lock`` the bytes
depend on what was ingested and replayed only: no clock, no path, no host.

A store in a bucket (``objects``) has the same layout. A process works on a copy of it in a temporary folder, which gets
a file when it is first read; what is new goes up file by file, and what makes it count (the manifest, ``replay.json``)
last.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import filelock
import orjson
import polars as pl

from fairreplay.errors import StoreBusyError, StoreError, UsageError, nearest
from fairreplay.store.files import (
    OLD_SUFFIX,
    TEMPORARY_SUFFIX,
    new_folder,
    remove_folder,
    settle_folder,
    sha256_of,
)
from fairreplay.store.manifest import MANIFEST_NAME, Manifest, Segment, read_tagged, write_manifest
from fairreplay.store.objects import ChangedError, Lease, ObjectPath, Place, Stat, lease
from fairreplay.store.replays import (
    ATTEMPTS,
    CONTROL_SCHEMA,
    CONTROLS_FILE,
    REPLAY_FILES,
    REPLAY_SCHEMA,
    STEP_SCHEMA,
    ReplayDraft,
    check_columns,
)
from fairreplay.trace.reject import Reject
from fairreplay.trace.schema import COLUMNS, ORDER, SCHEMA

if TYPE_CHECKING:
    from fairreplay.store.draft import Draft
    from fairreplay.store.rejects import RejectLines

REJECT_SCHEMA: Final[dict[str, pl.DataType]] = {
    "file": pl.String(),
    "source": pl.String(),
    "row": pl.UInt64(),
    "column": pl.String(),
    "value": pl.String(),
    "reason": pl.String(),
    "line": pl.String(),
}
"""One row per reject: ``row`` is the record's number in the source, ``line`` the record as it was read."""

LOCK_NAME: Final = "lock"
BLOCK_ROWS: Final = 1 << 18
"""About so many rows of a large store are at hand at a time, where one pass over them is enough."""
LARGE_ROWS: Final = 1 << 20
"""What has more rows is large."""
LEFTOVER_S: Final = 86_400
_FOLDERS: Final = ("segments", "rejects", "replays")
_SEGMENT_FILE = re.compile(r"[0-9a-f]{16}\.(parquet|jsonl)")
_REPLAY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+-]*")


class Store:
    """An open store. Reading needs no lock; whoever writes holds ``lock()`` around all of it."""

    path: Path
    """Its folder; of a store in a bucket the copy at hand."""
    origin: ObjectPath | None
    manifest: Manifest

    def __init__(self, path: Place, manifest: Manifest, tag: str | None = None) -> None:
        self.path, self.origin = (path, None) if isinstance(path, Path) else (_copy_of(path), path)
        self.manifest = manifest
        self._tag = tag
        self._verified: set[str] = set()
        self._counted: dict[tuple[str, str], dict[str, int]] = {}

    @property
    def place(self) -> Place:
        """What ``open_store`` was given."""
        return self.origin or self.path

    def _shown(self, path: Path) -> str:
        """A file as messages call it."""
        return str(path) if self.origin is None else str(self.origin / path.relative_to(self.path).as_posix())

    def _fetch(self, path: Path, *, again: bool = False) -> Path:
        """The file, copied from the bucket if it is not at hand.

        Raises:
            FileNotFoundError: there is none. OSError: it cannot be read.
        """
        if self.origin is not None and (again or not path.exists()):
            (self.origin / path.relative_to(self.path).as_posix()).download(path)
        return path

    def _publish(self, path: Path) -> None:
        """The file goes to the bucket."""
        if self.origin is not None:
            self._still_held()
            (self.origin / path.relative_to(self.path).as_posix()).write(path)

    def _still_held(self) -> None:
        if self.origin is not None and (held := _LEASES.get().get(str(self.origin))) is not None:
            held.check()

    def digest(self) -> str:
        """16 hex digits: the identity of what is stored."""
        return self.manifest.digest()

    # -- requests -----------------------------------------------------------------------------------------------------

    def requests(
        self,
        since: datetime | None = None,
        until: datetime | None = None,
        columns: Sequence[str] = COLUMNS,
    ) -> pl.DataFrame:
        """All stored requests that arrived in [``since``, ``until``): ``columns``, in the order of ``ORDER``.

        Raises:
            StoreError: a segment is missing or damaged; the file is named.
        """
        return self.requests_of([segment.source for segment in self.manifest.segments], since, until, columns)

    def requests_of(
        self,
        sources: Sequence[str],
        since: datetime | None = None,
        until: datetime | None = None,
        columns: Sequence[str] = COLUMNS,
    ) -> pl.DataFrame:
        """As ``requests``, from the named sources only."""
        wanted = [segment for segment in self.manifest.segments if segment.source in set(sources)]
        if len(wanted) == 1:  # a segment is in order as it was written
            return self._read_segment(wanted[0], since, until, columns)
        read = list(dict.fromkeys([*columns, *ORDER]))
        frames = [self._read_segment(segment, since, until, read) for segment in wanted]
        if not frames:
            return pl.DataFrame(schema={name: SCHEMA[name] for name in columns})
        return pl.concat(frames).sort(ORDER).select(columns)

    def in_order(
        self, since: datetime | None, until: datetime | None, columns: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        """As ``requests``, a block of up to ``BLOCK_ROWS`` at a time; at least one, which may be empty.

        Where segments overlap in time it is one block of everything.
        """
        held = sorted(
            (segment for segment in self.manifest.segments if segment.accepted),
            key=lambda segment: (str(segment.first_arrival), str(segment.last_arrival), segment.source),
        )
        follow = all(str(one.last_arrival) < str(next_.first_arrival) for one, next_ in pairwise(held))
        if not follow or sum(segment.accepted for segment in held) <= LARGE_ROWS:
            yield self.requests(since, until, columns)
            return
        for segment in held:
            path = self.segment_path(segment.source)
            self._verify(segment)
            first, end = self._row_range(segment, since, until)
            for offset in range(first, end, BLOCK_ROWS):
                block = _scan(path).slice(offset, min(BLOCK_ROWS, end - offset)).select(columns)
                yield self._checked(_collect(block, path), columns, path)
        yield pl.DataFrame(schema={name: SCHEMA[name] for name in columns})

    def _row_range(self, segment: Segment, since: datetime | None, until: datetime | None) -> tuple[int, int]:
        """Which rows of a segment, which is in order, arrived in [``since``, ``until``)."""
        if since is None and until is None:
            return 0, segment.accepted
        path = self.segment_path(segment.source)
        arrived = pl.col("arrived_at")
        before = pl.lit(0) if since is None else (arrived < _utc(since)).sum()
        after = pl.lit(0) if until is None else (arrived >= _utc(until)).sum()
        found = _collect(_scan(path).select(before=before, after=after), path)
        return int(found["before"][0]), segment.accepted - int(found["after"][0])

    def row_groups(self, columns: list[str] | None = None) -> Iterator[pl.DataFrame]:
        """All stored requests, a row group of a segment at a time."""
        from pyarrow import ArrowException

        from fairreplay.store.rows import read_row_groups

        for segment in self.manifest.segments:
            self._verify(segment)
            path = self.segment_path(segment.source)
            try:
                yield from read_row_groups(path, columns)
            except (OSError, ArrowException):
                raise StoreError(
                    f"{self._shown(path)}: missing or damaged; restore it, or make the store again"
                ) from None

    def segment_files(self) -> list[Path]:
        """The Parquet file of every segment, found to be the bytes that were written.

        Raises:
            StoreError: one is missing or damaged; the file is named.
        """
        for segment in self.manifest.segments:
            self._verify(segment)
        return [self.segment_path(segment.source) for segment in self.manifest.segments]

    def reject_files(self) -> list[Path]:
        """The file of every segment that has rejects.

        Raises:
            StoreError: one is missing; the file is named.
        """
        found = [self.rejects_path(segment.source) for segment in self.manifest.segments if segment.rejected]
        for path in found:
            try:
                self._fetch(path)
            except OSError:
                raise StoreError(f"{self._shown(path)}: missing or damaged; restore it from a copy") from None
        return found

    def counted(self, sources: Sequence[str], column: str) -> dict[str, int]:
        """Requests of the named sources by the value of ``column``, sorted."""
        counts: Counter[str] = Counter()
        for segment in self.manifest.segments:
            if segment.source in sources:
                path = self.segment_path(segment.source)
                self._verify(segment)
                if (segment.source, column) not in self._counted:
                    found = _collect(_scan(path).group_by(column).len(), path)
                    self._counted[segment.source, column] = dict(zip(found[column], found["len"], strict=True))
                counts.update(self._counted[segment.source, column])
        return dict(sorted(counts.items()))

    def _read_segment(
        self, segment: Segment, since: datetime | None, until: datetime | None, columns: Sequence[str]
    ) -> pl.DataFrame:
        path = self.segment_path(segment.source)
        self._verify(segment)
        # One file at a time: each is sorted and holds statistics, so a period reads only its own row groups.
        scan = _scan(path)
        if since is not None:
            scan = scan.filter(pl.col("arrived_at") >= _utc(since))
        if until is not None:
            scan = scan.filter(pl.col("arrived_at") < _utc(until))
        return self._checked(_collect(scan.select(columns), path), columns, path)

    def _checked(self, frame: pl.DataFrame, columns: Sequence[str], path: Path) -> pl.DataFrame:
        try:
            return check_columns(frame, {name: SCHEMA[name] for name in columns}, "a segment")
        except TypeError as error:
            raise StoreError(f"{self._shown(path)}: {error}; ingest its source into a new store") from None

    def _verify(self, segment: Segment) -> None:
        """A flipped bit inside a compressed page can decode to other numbers, so the bytes are checked, once a run."""
        if segment.source in self._verified:
            return
        path = self.segment_path(segment.source)
        shown = self._shown(path)
        try:
            self._fetch(path)
            intact = path.stat().st_size == segment.file_bytes and sha256_of(path) == segment.file_sha256
        except OSError as error:
            raise StoreError(
                f"{shown}: cannot be read ({error.strerror}); restore it, or ingest {segment.name!r} into a new store"
            ) from None
        if not intact:
            raise StoreError(
                f"{shown}: damaged (not the bytes that were written); restore it, or ingest {segment.name!r} "
                "into a new store"
            )
        self._verified.add(segment.source)

    def faults(self) -> list[str]:
        """Everything that is wrong with the files of the store, each in one line: missing, damaged, not readable."""
        found = []
        for segment in self.manifest.segments:
            checks: list[Callable[[], object]] = [lambda segment=segment: self._verify(segment)]  # type: ignore[misc]
            if segment.rejected:
                checks.append(lambda segment=segment: self._check_rejects(segment))  # type: ignore[misc]
            found += [fault for check in checks if (fault := _fault(check)) is not None]
        for name in self.replay_names():
            of_replay: tuple[Callable[[str], object], ...] = (
                self.replay_meta,
                self.replay_requests,
                self.replay_steps,
                self.replay_controls,
            )
            faults = [fault for check in of_replay if (fault := _fault(lambda: check(name))) is not None]  # noqa: B023
            found += faults[:1]
        return found

    def _check_rejects(self, segment: Segment) -> None:
        path = self.rejects_path(segment.source)
        self.reject_keys(segment)
        with path.open("rb") as stream:
            count = sum(1 for _ in stream)
        if count != segment.rejected:
            raise StoreError(
                f"{self._shown(path)}: {count} rejects, {segment.rejected} were written; restore it from a copy"
            )

    def rejects(self) -> pl.DataFrame:
        """Every reject of every source, by file and row: columns of ``REJECT_SCHEMA``."""
        rows: list[dict[str, Any]] = []
        for segment in self.manifest.segments:
            if segment.rejected == 0:
                continue
            path = self.rejects_path(segment.source)
            try:
                records = [orjson.loads(line) for line in self._fetch(path).read_bytes().splitlines()]
            except (OSError, orjson.JSONDecodeError):
                raise StoreError(f"{self._shown(path)}: missing or damaged; restore it from a copy") from None
            rows += ({"file": segment.name, "source": segment.source, **record} for record in records)
        return pl.DataFrame(rows, schema=REJECT_SCHEMA, orient="row")

    def reject_keys(self, segment: Segment) -> set[tuple[int, str]]:
        """(row, reason) of every reject of ``segment``."""
        path = self.rejects_path(segment.source)
        try:
            with self._fetch(path).open("rb") as stream:
                return {(record["row"], record["reason"]) for record in map(orjson.loads, stream)}
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
            raise StoreError(f"{self._shown(path)}: missing or damaged; restore it from a copy") from None

    def add_segment(self, segment: Segment, frame: pl.DataFrame, rejects: Sequence[Reject]) -> Segment:
        """Store one source that is at hand: its rows (canonical, in the order of ``seq``) and rejects.

        ``file_bytes`` and ``file_sha256`` of ``segment`` are filled in here. Holds the lock: the caller.
        """
        with self.draft(segment.source) as (rows, lines):
            rows.add(frame)
            lines.add(rejects)
            rows.finish()
            lines.finish()
            return self.commit(segment)

    @contextmanager
    def draft(self, source: str) -> Iterator[tuple[Draft, RejectLines]]:
        """Rows and rejects of a source on their way into the store. What is not committed is taken away at the end."""
        from fairreplay.store.draft import Draft  # pyarrow, which reading alone does not need
        from fairreplay.store.rejects import RejectLines

        rows, lines = Draft(self.segment_path(source)), RejectLines(self.rejects_path(source))
        try:
            yield rows, lines
        finally:
            rows.discard()
            lines.discard()
            for folder in (rows.path.parent, lines.path.parent):
                with suppress(OSError):  # not empty: a store that holds something
                    folder.rmdir()

    def commit(self, segment: Segment) -> Segment:
        """Let a source count whose draft is finished: the manifest names it, and that is the last write.

        Raises:
            StoreBusyError: in a bucket, another run has written the manifest since this one read it.
        """
        path = self.segment_path(segment.source)
        segment = replace(segment, file_bytes=path.stat().st_size, file_sha256=sha256_of(path))
        manifest = self.manifest.with_segment(segment)
        self._publish(path)
        if segment.rejected:
            self._publish(self.rejects_path(segment.source))
        self._still_held()
        try:
            self._tag = write_manifest(self.place, manifest, self._tag)
        except ChangedError:
            raise StoreBusyError(f"{self.place}: another run has changed the store meanwhile; run this again") from None
        self.manifest = manifest
        return segment

    def remove_leftovers(self) -> None:
        """Files of a run that was killed before its manifest: never read, removed under the lock.

        In a bucket only those that are ``LEFTOVER_S`` old: a run that lost its lock may still be at work.
        """
        known = {segment.source for segment in self.manifest.segments}
        for folder in ("segments", "rejects"):
            for path in sorted((self.path / folder).glob("*")):
                if path.name.endswith(TEMPORARY_SUFFIX) or (
                    _SEGMENT_FILE.fullmatch(path.name) and path.stem not in known
                ):
                    path.unlink()
            with suppress(OSError):  # not empty, or not there
                (self.path / folder).rmdir()
        for path in sorted((self.path / "replays").glob("*" + TEMPORARY_SUFFIX)):
            settle_folder(path.with_name(path.name.removesuffix(TEMPORARY_SUFFIX).removesuffix(OLD_SUFFIX)))
        (self.path / (MANIFEST_NAME + TEMPORARY_SUFFIX)).unlink(missing_ok=True)
        if self.origin is not None:
            self._remove_old_objects(self.origin, known)

    def _remove_old_objects(self, origin: ObjectPath, known: set[str]) -> None:
        found = origin.below()
        newest_s = max((stat.st_mtime for _, stat in found), default=0.0)  # the lock's, which was just taken
        whole = {name.removesuffix("/replay.json") for name, _ in found if name.endswith("/replay.json")}
        for name, stat in found:
            folder, _, file = name.rpartition("/")
            counts = {
                "segments": _SEGMENT_FILE.fullmatch(file) is None or Path(file).stem in known,
                "rejects": _SEGMENT_FILE.fullmatch(file) is None or Path(file).stem in known,
            }.get(folder, not folder.startswith("replays/") or folder in whole)
            if (not counts or name.endswith(TEMPORARY_SUFFIX)) and newest_s - stat.st_mtime > LEFTOVER_S:
                (origin / name).unlink(missing_ok=True)

    def segment_path(self, source: str) -> Path:
        return self.path / "segments" / f"{source}.parquet"

    def rejects_path(self, source: str) -> Path:
        return self.path / "rejects" / f"{source}.jsonl"

    # -- replays ------------------------------------------------------------------------------------------------------

    @contextmanager
    def replay_draft(self, policy: str, config_hash: str) -> Iterator[ReplayDraft]:
        """A replay under way. At the end it takes the place of the one that is called ``<policy>-<config_hash>``."""
        name = f"{policy}-{config_hash}"
        if not _REPLAY_NAME.fullmatch(name):
            raise UsageError(f"policy name {policy!r}: only letters, digits, '_', '-', '+', '.' and ':'")
        (self.path / "replays").mkdir(exist_ok=True)
        with new_folder(self.path / "replays" / name) as folder:
            draft = ReplayDraft(folder)
            try:
                yield draft
            finally:
                draft.close()
        if self.origin is not None:
            for file in (CONTROLS_FILE, *REPLAY_FILES):
                path = self.path / "replays" / name / file
                if file != CONTROLS_FILE or path.is_file():
                    self._publish(path)

    def write_replay(
        self,
        meta: dict[str, object],
        requests: pl.DataFrame,
        steps: pl.DataFrame,
        controls: pl.DataFrame | None = None,
    ) -> None:
        """Store a replay under ``<meta["policy"]>-<meta["config_hash"]>``, in place of one of that name.

        ``meta`` is any JSON object with these two keys; the frames have ``REPLAY_SCHEMA``, ``STEP_SCHEMA`` and, where
        there were controls, ``CONTROL_SCHEMA`` (then ``meta`` has ``controls``, and the requests ``ATTEMPTS``).
        """
        with self.replay_draft(str(meta["policy"]), str(meta["config_hash"])) as draft:
            draft.add_steps(steps)
            draft.finish(meta, requests, controls)

    def remove_replay(self, name: str) -> None:
        """Take a replay away. Holds the lock: the caller."""
        folder = self._replay_file(name, REPLAY_FILES[-1]).parent
        if self.origin is not None:
            for file in reversed((CONTROLS_FILE, *REPLAY_FILES)):
                (self.origin / "replays" / name / file).unlink(missing_ok=True)
        remove_folder(folder)

    def replay_names(self) -> list[str]:
        """``<policy>-<config_hash>`` of every stored replay, sorted."""
        if self.origin is not None:
            names = (name.rpartition("/replay.json")[0] for name, _ in self._listed(self.origin / "replays"))
            return sorted(name for name in names if name)
        found = (self.path / "replays").glob("*/replay.json")
        return sorted(path.parent.name for path in found if not path.parent.name.endswith(TEMPORARY_SUFFIX))

    def _listed(self, folder: ObjectPath) -> list[tuple[str, Stat]]:
        try:
            return folder.below()
        except OSError as error:
            raise StoreError(f"{folder}: cannot be listed ({error.strerror}); check the credentials") from None

    def replay_meta(self, name: str) -> dict[str, Any]:
        path = self._replay_file(name, "replay.json")
        try:
            meta = orjson.loads(path.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            meta = None
        if not isinstance(meta, dict):
            raise StoreError(f"{self._shown(path)}: damaged; run 'fairreplay replay' again")
        return meta

    def replay_requests(self, name: str) -> pl.DataFrame:
        """One row per request of the replay: ``REPLAY_SCHEMA``, with controls ``ATTEMPTS`` too."""
        return self._replay_frame(name, "requests.parquet", REPLAY_SCHEMA)

    def replay_file(self, name: str) -> Path:
        """The Parquet file with the rows of ``replay_requests``."""
        return self._replay_file(name, "requests.parquet")

    def replay_steps(self, name: str) -> pl.DataFrame:
        """The work of each second: ``STEP_SCHEMA``."""
        return self._replay_frame(name, "steps.parquet", STEP_SCHEMA)

    def replay_controls(self, name: str) -> pl.DataFrame:
        """What controls did, window by window: ``CONTROL_SCHEMA``; no rows where there were none."""
        if "controls" not in self.replay_meta(name):
            return pl.DataFrame(schema=CONTROL_SCHEMA)
        return self._replay_frame(name, CONTROLS_FILE, CONTROL_SCHEMA)

    def _replay_frame(self, name: str, file: str, schema: dict[str, pl.DataType]) -> pl.DataFrame:
        path = self._replay_file(name, file)
        frame = _collect(_scan(path), path)
        try:
            check_columns(frame.drop(ATTEMPTS, strict=False), schema, path.name)
            return frame
        except TypeError:
            raise StoreError(f"{self._shown(path)}: damaged (other columns); run 'fairreplay replay' again") from None

    def _replay_file(self, name: str, file: str) -> Path:
        names = self.replay_names()
        if name not in names:
            hint = nearest(name, names) if names else "run 'fairreplay replay' first"
            raise UsageError(f"{self.place}: no replay {name!r} ({hint})")
        path = self.path / "replays" / name / file
        try:
            return self._fetch(path)
        except OSError as error:
            raise StoreError(
                f"{self._shown(path)}: cannot be read ({error.strerror}); run 'fairreplay replay' again"
            ) from None

    # -- lock ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the store for writing.

        Raises:
            StoreBusyError: another run holds it; its process id is named.
        """
        with lock_folder(self.place):
            yield


_LOCKED: ContextVar[frozenset[Path]] = ContextVar("locked", default=frozenset())
"""Folders whose lock this run holds: the steps of a run do not lock each other out."""
_LEASES: ContextVar[Mapping[str, Lease]] = ContextVar("leases", default=MappingProxyType({}))
"""The same of stores in a bucket."""


@contextmanager
def lock_folder(folder: Place) -> Iterator[None]:
    """The store's lock, also for a folder that is not a store yet. Never waits; held already by this run is fine."""
    if not isinstance(folder, Path):
        with _leased(folder):
            yield
        return
    path = folder / LOCK_NAME
    own = folder.resolve()
    if own in _LOCKED.get():
        yield
        return
    lock = filelock.FileLock(path, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        holder = path.read_text(errors="replace").strip()
        who = f"process {holder}" if holder.isdigit() else "another run"
        raise StoreBusyError(f"{folder}: {who} holds the store; try again when it has ended") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot lock the store ({error.strerror}); check its permissions") from None
    token = _LOCKED.set(_LOCKED.get() | {own})
    try:
        with suppress(OSError):  # a full disk: the lock holds all the same, it only cannot say whose it is
            path.write_text(f"{os.getpid()}\n")
        yield
    finally:
        _LOCKED.reset(token)
        with suppress(OSError):
            if path.exists():
                path.write_text("")
        lock.release()


@contextmanager
def _leased(folder: ObjectPath) -> Iterator[None]:
    if str(folder) in _LEASES.get():
        yield
        return
    with lease(folder, LOCK_NAME) as held:
        token = _LEASES.set({**_LEASES.get(), str(folder): held})
        try:
            yield
        finally:
            _LEASES.reset(token)


@contextmanager
def claimed(path: Place) -> Iterator[None]:
    """The lock of the store at ``path`` over several steps, the first of which may make the store.

    Where none is there at the end, no folder and no lock is left behind.
    """
    if not isinstance(path, Path) or (path / MANIFEST_NAME).exists():
        check_vacant(path)
        with lock_folder(path):
            yield
        return
    check_vacant(path)
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    make_folder(path)
    with lock_folder(path):
        try:
            yield
        finally:
            if made and not (path / MANIFEST_NAME).exists():
                (path / LOCK_NAME).unlink(missing_ok=True)
                with suppress(OSError):  # not empty: somebody else's
                    for folder in made:
                        folder.rmdir()


def _fault(check: Callable[[], object]) -> str | None:
    try:
        check()
    except StoreError as error:
        return str(error)
    return None


def open_store(path: Place) -> Store:
    """The store in ``path``.

    Raises:
        StoreError: absent, damaged, or newer; the message says what to do.
    """
    return Store(path, *read_tagged(path))


def create_store(path: Place) -> Store:
    """The store in ``path``; an empty one is made where there is none (in a bucket with what it first gets).

    Raises:
        StoreError: as ``open_store``, or the folder holds other files and is no store.
    """
    if has_store(path):
        return open_store(path)
    check_vacant(path)
    if not isinstance(path, Path):
        return Store(path, Manifest())
    make_folder(path)
    write_manifest(path, Manifest())
    return open_store(path)


def has_store(path: Place) -> bool:
    """Whether a store is there, in whatever state.

    Raises:
        StoreError: the bucket cannot be reached.
    """
    try:
        return (path / MANIFEST_NAME).exists()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); check the name and the credentials") from None


def check_vacant(path: Place) -> None:
    """Nothing is at ``path`` that a new store would mix with; a store may be.

    Raises:
        StoreError: it is a file, or a folder with other files.
    """
    try:
        if isinstance(path, Path):
            others = [item.name for item in path.iterdir() if item.name != LOCK_NAME] if path.exists() else []
        else:
            others = [name for name, _ in path.below() if name != LOCK_NAME and name.partition("/")[0] not in _FOLDERS]
    except OSError as error:
        raise StoreError(f"{path}: cannot be a store ({error.strerror}); choose another --store") from None
    if MANIFEST_NAME not in others and any(not name.endswith(TEMPORARY_SUFFIX) for name in others):
        raise StoreError(f"{path}: holds other files and is no store; choose an empty or new folder for --store")


def make_folder(path: Path) -> None:
    """The folder of a new store."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{path}: cannot make a store here ({error.strerror}); choose another --store") from None


@lru_cache(maxsize=16)
def _copy_of(origin: ObjectPath) -> Path:  # noqa: ARG001 (a folder for each)
    """The folder in which this process works on a store in a bucket: one for all its steps, gone with the process."""
    folder = Path(mkdtemp(prefix="fairreplay-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in _FOLDERS:
        (folder / name).mkdir()
    return folder


def _utc(instant: datetime) -> datetime:
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def _scan(path: Path) -> pl.LazyFrame:
    return pl.scan_parquet(path, glob=False)  # a folder named "[prod]" is a name, not a pattern


def _collect(scan: pl.LazyFrame, path: Path) -> pl.DataFrame:
    try:
        return scan.collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        raise StoreError(f"{path}: missing or damaged; restore it, or make the store again") from None
