"""Places in a store of objects (``s3://``, ``gs://``, ``az://``), with the few verbs of ``Path`` that stores and
reports need.

An object is written whole or not at all, and a reader sees the old one or the new one. What a folder of files has
beyond that, a bucket has not: no renaming, no lock that ends with its process. ``lease`` and the conditional writing of
the manifest (``Store``) take their place.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeAlias

from fairreplay.errors import StoreBusyError, StoreError, UsageError

SCHEMES: Final = ("s3", "gs", "az")
LEASE_S: Final = 120
"""A lock whose holder has not renewed it for so long belongs to nobody."""
RENEW_S: Final = 20
PATIENCE: Final[dict[str, Any]] = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
REASON_SHOWN: Final = 240
TYPES: Final = {".html": "text/html; charset=utf-8", ".json": "application/json", ".md": "text/markdown; charset=utf-8"}
_URL: Final = re.compile(rf"({'|'.join(SCHEMES)})://([^/?#@]+)((?:/[^?#]*)?)")


class ChangedError(OSError):
    """Another writer was there first: the object is not what it was when it was read."""


@dataclass(frozen=True)
class Stat:
    st_mtime: float
    """Seconds since the epoch, of the server's clock."""
    st_size: int


@dataclass(frozen=True)
class ObjectPath:
    """``s3://bucket/a/b``: an object, or the folder of those whose names begin so."""

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.scheme, self.bucket, f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        return PurePosixPath(self.key).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.key).suffix

    @property
    def parent(self) -> ObjectPath:
        return ObjectPath(self.scheme, self.bucket, self.key.rpartition("/")[0])

    def with_suffix(self, suffix: str) -> ObjectPath:
        return ObjectPath(self.scheme, self.bucket, str(PurePosixPath(self.key).with_suffix(suffix)))

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: a bucket has no folders."""

    def is_dir(self) -> bool:
        """A name is a folder where something lies below it, or nothing lies at it."""
        return not self.exists()

    def exists(self) -> bool:
        """There is an object of this name."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def stat(self) -> Stat:
        with _said():
            found = _lib().head(_bucket(self.scheme, self.bucket), self.key)
        changed: datetime = found["last_modified"]
        return Stat(changed.timestamp(), found["size"])

    def read_bytes(self) -> bytes:
        return self.read()[0]

    def read(self) -> tuple[bytes, str]:
        """Content and tag: what ``write`` takes to replace this and nothing else."""
        with _said():
            found = _lib().get(_bucket(self.scheme, self.bucket), self.key)
            return bytes(found.bytes()), str(found.meta["e_tag"])

    def write_bytes(self, content: bytes) -> None:
        self.write(content)

    def write(self, content: bytes | Path, *, replaces: str | None = None, new: bool = False) -> str:
        """Put an object (a file's content) in place and give its tag.

        Args:
            replaces: only if the tag of what is there is this.
            new: only if nothing is there.

        Raises:
            ChangedError: the condition does not hold.
        """
        lib = _lib()
        mode = "create" if new else {"e_tag": replaces} if replaces else "overwrite"
        kind = TYPES.get(self.suffix)
        attributes = {"Content-Type": kind} if kind else None
        try:
            with _said():
                put = lib.put(
                    _bucket(self.scheme, self.bucket), self.key, content, mode=mode, attributes=attributes
                )  # fmt: skip
                return str(put["e_tag"])
        except ChangedError:
            # A request that was answered but whose answer was lost is sent again, and then it stands in its own way.
            with suppress(OSError):
                there, tag = self.read()
                if isinstance(content, bytes) and there == content:
                    return tag
            raise

    def download(self, target: Path) -> None:
        """The object as a file, by a name of its own until it is whole."""
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(target.name + ".tmp")
        with _said():
            found = _lib().get(_bucket(self.scheme, self.bucket), self.key)
            with temporary.open("wb") as stream:
                for chunk in found.stream(min_chunk_size=1 << 22):
                    stream.write(chunk)
        temporary.replace(target)

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            with _said():
                _lib().delete(_bucket(self.scheme, self.bucket), [self.key])
        except FileNotFoundError:
            if not missing_ok:
                raise

    def below(self) -> list[tuple[str, Stat]]:
        """Every object below this folder by its name from here on, sorted."""
        prefix = f"{self.key}/" if self.key else ""
        with _said():
            found = [
                (str(item["path"]).removeprefix(prefix), Stat(item["last_modified"].timestamp(), item["size"]))
                for batch in _lib().list(_bucket(self.scheme, self.bucket), prefix=prefix or None)
                for item in batch
            ]
        return sorted(found, key=lambda item: item[0])

    def glob(self, pattern: str) -> list[ObjectPath]:
        """Objects right below this folder."""
        return [self / name for name, _ in self.below() if "/" not in name and fnmatch.fnmatchcase(name, pattern)]


Place: TypeAlias = Path | ObjectPath
"""Where a store or a report is."""


def place(text: str | Path | ObjectPath) -> Place:
    """The folder or file, or ``s3://bucket/prefix``, that ``text`` names.

    Raises:
        UsageError: an address without a bucket, or with what an address of a store cannot have.
    """
    if not isinstance(text, str) or "://" not in text:
        return Path(text) if isinstance(text, str) else text
    match = _URL.fullmatch(text)
    if match is None:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise UsageError(f"{text}: write it as s3://bucket/path ({known}; keys and endpoint stand in the environment)")
    return ObjectPath(match[1], match[2], match[3].strip("/"))


def _lib() -> Any:
    import obstore

    return obstore


@lru_cache(maxsize=8)
def _bucket(scheme: str, bucket: str) -> Any:
    """The bucket as the environment tells of it: region, endpoint and credentials by the names of the cloud's own
    tools."""
    from obstore.store import from_url

    if scheme != "s3":
        return from_url(f"{scheme}://{bucket}", retry_config=PATIENCE)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None and endpoint is None:
        from pyarrow import fs

        with _said():
            region = fs.resolve_s3_region(bucket)
    options: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    clear = {"allow_http": True} if endpoint and endpoint.startswith("http://") else {}
    return from_url(
        f"s3://{bucket}", region=region or "us-east-1", client_options=clear, retry_config=PATIENCE, **options
    )


@contextmanager
def _said() -> Iterator[None]:
    """Errors of the library as those of files, with a reason of one line."""
    try:
        yield
    except OSError as error:  # a name that is not there is this already
        if error.strerror is None:
            error.strerror = "no such object or bucket" if isinstance(error, FileNotFoundError) else _line(error)
        raise
    except Exception as error:
        from obstore import exceptions as known

        if isinstance(error, known.AlreadyExistsError | known.PreconditionError):
            raise ChangedError(errno.EEXIST, "changed meanwhile") from None
        if isinstance(error, known.PermissionDeniedError | known.UnauthenticatedError):
            raise PermissionError(errno.EACCES, _line(error)) from None
        raise OSError(errno.EIO, _line(error)) from None


def _line(error: Exception) -> str:
    line = (str(error).splitlines() or [type(error).__name__])[0].strip()
    return line if len(line) <= REASON_SHOWN else line[:REASON_SHOWN] + "…"


# ---- one writer at a time ----


class Lease:
    """A lock that its holder renews: ``lock`` in the folder. ``check`` before whatever others will see."""

    def __init__(self, lock: ObjectPath, holder: str, tag: str) -> None:
        self._lock, self._holder, self._tag = lock, holder, tag
        self._renewed_s = time.monotonic()
        self._count = 0
        self._is_lost = False
        self._guard = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew_often, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Still the holder?

        Raises:
            StoreBusyError: no: it could not be renewed in time.
        """
        if time.monotonic() - self._renewed_s > RENEW_S:
            self._renew()
        if self._is_lost or time.monotonic() - self._renewed_s > LEASE_S - RENEW_S:
            raise StoreBusyError(f"{self._lock.parent}: the lock was lost to another run; try again when it has ended")

    def release(self) -> None:
        self._end.set()
        self._thread.join()
        if not self._is_lost and time.monotonic() - self._renewed_s < LEASE_S - RENEW_S:
            with suppress(OSError):  # then it ends by itself
                self._lock.unlink(missing_ok=True)

    def _renew_often(self) -> None:
        while not self._end.wait(RENEW_S):
            self._renew()

    def _renew(self) -> None:
        with self._guard:
            begun_s = time.monotonic()
            self._count += 1
            try:
                self._tag = self._lock.write(_content(self._holder, self._count), replaces=self._tag)
                self._renewed_s = begun_s
            except (ChangedError, FileNotFoundError):
                self._is_lost = True
            except OSError:
                pass  # the network may come back before the lease ends


def _token() -> str:
    """A name that no other run has."""
    import secrets

    return secrets.token_hex(8)


def _content(holder: str, count: int) -> bytes:
    return f"{holder}\n{count}\n".encode()


@contextmanager
def lease(folder: ObjectPath, name: str) -> Iterator[Lease]:
    """Hold the lock ``name`` of ``folder``. Never waits.

    A holder that was killed leaves its lock behind: ``LEASE_S`` after it was last renewed, by the server's clock, the
    next run takes it over.

    Raises:
        StoreBusyError: another run holds it, which is named.
        StoreError: the server cannot be reached, or does not keep to conditions, without which there is no lock.
    """
    import socket

    lock = folder / name
    holder = f"process {os.getpid()} on {socket.gethostname()} {_token()}"
    try:
        held = Lease(lock, holder, _taken(folder, lock, _content(holder, 0)))
    except OSError as error:
        raise StoreError(f"{lock}: cannot lock the store ({error.strerror}); check the credentials") from None
    try:
        yield held
    finally:
        held.release()


def _taken(folder: ObjectPath, lock: ObjectPath, content: bytes) -> str:
    try:
        tag = lock.write(content, new=True)
    except ChangedError:
        tag = _taken_over(folder, lock, content)
    try:
        lock.write(content + b"again\n", new=True)
    except ChangedError:
        return tag
    lock.unlink(missing_ok=True)
    raise StoreError(
        f"{folder}: its server overwrites where it is told not to (no conditional writes), so there is no lock; "
        "use a newer server, or a folder"
    )


def _taken_over(folder: ObjectPath, lock: ObjectPath, content: bytes) -> str:
    """The lock of a run that is gone."""
    who = "another run"
    with suppress(FileNotFoundError, ChangedError):  # given back, or taken by a third, in this very moment
        there, tag = lock.read()
        age_s = _now_s(folder) - lock.stat().st_mtime
        who = " ".join(there.decode(errors="replace").split("\n")[0].split(" ")[:-1]) or who
        if age_s > LEASE_S:
            return lock.write(content, replaces=tag)
    raise StoreBusyError(f"{folder}: {who} holds the store; try again when it has ended")


def _now_s(folder: ObjectPath) -> float:
    """What time it is, by the server's clock: the only one that all runs share."""
    probe = folder / f"clock-{_token()}.tmp"
    probe.write(b"")
    try:
        return probe.stat().st_mtime
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
