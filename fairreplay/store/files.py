"""Files that are either the old ones or the new ones, whatever moment the power fails."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fairreplay.store.objects import Place

TEMPORARY_SUFFIX = ".tmp"
OLD_SUFFIX = ".old"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: BaseException) -> bool:
    """The disk, the quota or the largest allowed file is full. Polars' own errors carry the number in their text."""
    number = getattr(error, "errno", None)
    return number in _FULL or any(f"(os error {full})" in str(error) for full in _FULL)


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """``write`` a new file beside ``path``, make it durable, then put it in the place of ``path`` in one move."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        write(temporary)
        sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def replace_bytes(path: Place, content: bytes) -> None:
    """``replace_file`` for content at hand, also in a bucket."""
    if not isinstance(path, Path):
        path.write_bytes(content)
        return

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    replace_file(path, write)


def replace_folder(path: Path, write: Callable[[Path], None]) -> None:
    """As ``replace_file`` for a folder of plain files. A reader that opens it during the swap may find it missing."""
    with new_folder(path) as temporary:
        write(temporary)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which takes the place of ``path`` at the end, as in ``replace_folder``."""
    settle_folder(path)
    temporary, old = _beside(path)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in sorted(temporary.iterdir()):
            sync(file)
        sync(temporary)
        if path.exists():
            path.rename(old)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """The folder is there whole or not at all: it gets a temporary name before its files go."""
    old = _beside(path)[0]
    shutil.rmtree(old, ignore_errors=True)
    path.rename(old)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def settle_folder(path: Path) -> None:
    """After a run that was killed in ``replace_folder``: the old folder is back, or the new one is there."""
    temporary, old = _beside(path)
    if old.exists() and not path.exists():
        old.rename(path)
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)


def _beside(path: Path) -> tuple[Path, Path]:
    return path.with_name(path.name + TEMPORARY_SUFFIX), path.with_name(path.name + OLD_SUFFIX + TEMPORARY_SUFFIX)


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync(path: Path) -> None:
    """What was written to ``path`` (a file or a folder) survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
