"""A segment under way: blocks of a source go to disk as they come, and end as row groups in the order of ``ORDER``.

Logs are mostly written in the order of arrival; then the first writing is the last. Else a second pass sorts, one
range of arrivals at a time. Memory is bounded by a row group, but for 16 bytes a row (its arrival, the hash of its id).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from fairreplay.store.files import TEMPORARY_SUFFIX, sync
from fairreplay.store.rows import RowGroups, Seqs, id_hashes, is_among, read_row_groups
from fairreplay.trace.schema import ORDER, SCHEMA, check_frame

SORTED_ROWS: Final = 1 << 20
"""About so many rows are sorted at a time."""


class Draft:
    """The rows of one source on their way to ``path``. ``add`` in file order, ``drop`` what turned out not to belong,
    then ``finish``; or ``discard``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(exist_ok=True)
        self._staged = path.with_name(path.name + ".staged" + TEMPORARY_SUFFIX)
        self._sorted = path.with_name(path.name + TEMPORARY_SUFFIX)
        self._written = RowGroups(self._staged)
        self._hashes: list[Seqs] = []
        self._latest: int | None = None
        self._in_order = True
        self._dropped: Seqs = np.empty(0, np.uint64)

    def add(self, frame: pl.DataFrame) -> None:
        """Append canonical rows; ``seq`` grows within a draft."""
        check_frame(frame)
        if frame.is_empty():
            return
        arrivals = frame["arrived_at"]
        first, latest = arrivals.cast(pl.Int64)[0], arrivals.cast(pl.Int64).max()
        assert isinstance(latest, int)
        if not arrivals.is_sorted() or (self._latest is not None and first < self._latest):
            self._in_order = False
        self._latest = latest if self._latest is None else max(latest, self._latest)
        self._hashes.append(id_hashes(frame["request_id"]))
        self._written.add(frame)

    @property
    def rows(self) -> int:
        """Rows added; after ``finish`` only those kept."""
        return self._written.rows

    @property
    def filled_columns(self) -> set[str]:
        """Columns that are not null in every row; after ``finish`` only."""
        return self._written.filled_columns

    @property
    def period_us(self) -> tuple[int | None, int | None]:
        """First and last arrival, None without rows; after ``finish`` only."""
        return self._written.first_us, self._written.last_us

    def hashes(self) -> Seqs:
        """``id_hashes`` of all rows, ascending."""
        hashes = np.concatenate([np.empty(0, np.uint64), *self._hashes])
        hashes.sort()
        return hashes

    def frames(self) -> Iterator[pl.DataFrame]:
        """All rows that were added, in that order, a row group at a time."""
        self._written.close()
        yield from read_row_groups(self._staged)

    def drop(self, seqs: Seqs) -> None:
        """Leave out the rows with these ``seq``."""
        self._dropped = np.sort(np.concatenate([self._dropped, seqs]))

    def finish(self) -> None:
        """Put the rows at ``path``: durable, in the order of ``ORDER``, in row groups."""
        self._written.close()
        self._hashes.clear()
        if self._in_order and not self._dropped.size:
            self._staged.replace(self._sorted)
        else:
            self._written = RowGroups(self._sorted)
            for frame in self._in_ranges():
                self._written.add(frame)
            self._written.close()
            self._staged.unlink()
        sync(self._sorted)
        self._sorted.replace(self.path)
        sync(self.path.parent)

    def discard(self) -> None:
        """Leave nothing behind (but what ``finish`` has put at ``path``)."""
        self._written.abandon()
        self._staged.unlink(missing_ok=True)
        self._sorted.unlink(missing_ok=True)

    def _in_ranges(self) -> Iterator[pl.DataFrame]:
        """The kept rows in order: one range of arrivals after the other, each sorted by itself."""
        for low, high in self._ranges():
            if high - low == 1:  # one instant may have any number of rows; they stand in order already
                parts: Iterator[pl.DataFrame] = read_row_groups(self._staged)
            else:
                parts = iter([self._scan(low, high).collect().sort(ORDER)])
            for part in parts:
                arrivals = pl.col("arrived_at").cast(pl.Int64)
                frame = part.filter((arrivals >= low) & (arrivals < high)) if high - low == 1 else part
                seqs = frame["seq"].to_numpy()
                yield frame.filter(~pl.Series(is_among(seqs, self._dropped), dtype=pl.Boolean))

    def _ranges(self) -> list[tuple[int, int]]:
        arrivals = pl.scan_parquet(self._staged, glob=False).select(pl.col("arrived_at").cast(pl.Int64)).collect()
        instants = np.sort(arrivals["arrived_at"].to_numpy())
        if not instants.size:
            return []
        borders = instants[::SORTED_ROWS]
        repeated = borders[1:][borders[1:] == borders[:-1]]
        edges = np.unique(np.concatenate([borders, repeated + 1, instants[-1:] + 1]))
        return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))

    def _scan(self, low: int, high: int) -> pl.LazyFrame:
        arrived = pl.col("arrived_at")
        edges = pl.Series([low, high], dtype=pl.Int64).cast(SCHEMA["arrived_at"])
        return pl.scan_parquet(self._staged, glob=False).filter((arrived >= edges[0]) & (arrived < edges[1]))
