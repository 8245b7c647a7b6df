"""Rejects of a source under way: to disk as they come, in the order of their records."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import orjson

from fairreplay.store.files import TEMPORARY_SUFFIX, sync
from fairreplay.trace.reject import REASONS, Reject


class RejectLines:
    """JSON lines on their way to ``path``; no file where there is no reject."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first: Reject | None = None
        self._reasons: Counter[str] = Counter()
        self._staged = path.with_name(path.name + TEMPORARY_SUFFIX)
        self._stream: BinaryIO | None = None

    @property
    def count(self) -> int:
        return self._reasons.total()

    def reasons(self) -> dict[str, int]:
        return {reason: self._reasons[reason] for reason in REASONS if self._reasons[reason]}

    def keys(self) -> set[tuple[int, str]]:
        """(row, reason) of all of them."""
        return {(reject.row, reject.reason) for reject in self._read()}

    def add(self, rejects: Iterable[Reject]) -> None:
        for reject in rejects:
            if self._stream is None:
                self.path.parent.mkdir(exist_ok=True)
                self._stream = self._staged.open("wb")
            self._stream.write(_line(reject))
            self._see(reject)

    def merge(self, rejects: Iterable[Reject]) -> None:
        """Add rejects that were found after those that follow them in the source; both are in order of rows."""
        merged = RejectLines(self.path.with_name(self.path.name + ".merged"))
        merged.add(heapq.merge(self._read(), rejects, key=lambda reject: reject.row))
        merged._close()
        self._staged.unlink(missing_ok=True)
        if merged.count:
            merged._staged.replace(self._staged)
        self.first, self._reasons = merged.first, merged._reasons

    def copy_to(self, path: Path, extra: dict[str, object]) -> None:
        """All of them at ``path``, each with the keys of ``extra`` first."""
        self._close()
        with path.open("wb") as stream:
            stream.writelines(orjson.dumps({**extra, **reject.as_dict()}) + b"\n" for reject in self._read())

    def finish(self) -> None:
        """Durable, at ``path``."""
        self._close()
        if self.count:
            sync(self._staged)
            self._staged.replace(self.path)
            sync(self.path.parent)

    def discard(self) -> None:
        self._close()
        self._staged.unlink(missing_ok=True)

    def _see(self, reject: Reject) -> None:
        self.first = self.first or reject
        self._reasons[reject.reason] += 1

    def _read(self) -> Iterator[Reject]:
        self._close()
        if not self.count:
            return
        with self._staged.open("rb") as stream:
            for line in stream:
                yield Reject(**orjson.loads(line))

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _line(reject: Reject) -> bytes:
    return orjson.dumps(reject.as_dict()) + b"\n"
