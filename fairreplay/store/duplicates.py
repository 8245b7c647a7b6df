"""The same request id twice: equal content is one row, counted; other content makes the later row a reject.

Ids are compared by 64-bit hashes first; only rows whose hash stands twice are looked at, and if these are many, a share
of the hashes at a time. Memory is bounded but for 8 bytes a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from fairreplay.store.rows import RowGroups, Seqs, id_hashes, is_among, read_row_groups
from fairreplay.trace.schema import COLUMNS, SCHEMA

SHARE_ROWS: Final = 1 << 19
"""About so many rows with repeated ids are compared at a time."""
_SPILLED_ROWS: Final = 1 << 14
_CONTENT = [name for name in COLUMNS if name not in ("request_id", "seq", "source")]

Rows = Callable[[], Iterator[pl.DataFrame]]
"""A pass over rows in canonical columns."""


@dataclass(frozen=True)
class Settled:
    """``kept`` in file order; ``conflicts`` are the record numbers and ids of rows that contradict an earlier one."""

    kept: pl.DataFrame
    duplicates: int
    conflicts: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Repeats:
    """``dropped``: ``seq`` of all rows to leave out, ascending; ``conflicts`` (record number, id) are among them."""

    dropped: Seqs
    duplicates: int
    conflicts: tuple[tuple[int, str], ...]


def settle(frame: pl.DataFrame, earlier: pl.DataFrame) -> Settled:
    """Compare the rows of ``frame`` (one source, in file order) with the first row of the same id, here or ``earlier``.

    ``earlier``: rows that come before; ids are unique in it.
    """
    known = pl.col("request_id").is_in(earlier["request_id"].implode())
    repeated = frame.filter(pl.col("request_id").is_duplicated() | known)
    if repeated.is_empty():
        return Settled(frame, 0, ())
    firsts = pl.concat([earlier, repeated]).unique("request_id", keep="first", maintain_order=True)
    pairs = repeated.join(firsts, on="request_id", how="left", suffix="_first", maintain_order="left")
    is_first = (pl.col("seq") == pl.col("seq_first")) & (pl.col("source") == pl.col("source_first"))
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}_first")) for name in _CONTENT)
    judged = pairs.select("seq", "request_id", is_first=is_first, same=same)
    later = judged.filter(~pl.col("is_first"))
    conflicts = later.filter(~pl.col("same"))
    return Settled(
        kept=frame.filter(~pl.col("seq").is_in(later["seq"].implode())),
        duplicates=later.height - conflicts.height,
        conflicts=tuple(zip(conflicts["seq"], conflicts["request_id"], strict=True)),
    )


def find_repeats(hashes: Seqs, new: Rows, stored_ids: Rows, stored: Rows, spill: Path) -> Repeats:
    """What of the ``new`` rows (one source, in file order) repeats an earlier row of theirs or a ``stored`` one.

    ``hashes``: of the new ids, ascending; ``stored_ids``: the stored ``request_id`` alone; files beside ``spill`` are
    made and removed.
    """
    suspects, rows = _suspects(hashes, stored_ids)
    if not suspects.size:
        return Repeats(np.empty(0, np.uint64), 0, ())
    found: list[Repeats] = []
    if rows <= SHARE_ROWS:
        found.append(_compare(_only(suspects, stored()), _only(suspects, new())))
    else:
        edges = suspects[:: max(1, suspects.size * SHARE_ROWS // rows)][1:]
        with _Shares(spill, edges) as shares:
            shares.spill("stored", _only(suspects, stored()))
            shares.spill("new", _only(suspects, new()))
            found += (_compare(shares.read("stored", index), shares.read("new", index)) for index in shares)
    return Repeats(
        dropped=np.sort(np.concatenate([item.dropped for item in found])),
        duplicates=sum(item.duplicates for item in found),
        conflicts=tuple(sorted(conflict for item in found for conflict in item.conflicts)),
    )


def _suspects(hashes: Seqs, stored_ids: Rows) -> tuple[Seqs, int]:
    """Hashes that may stand for a repeated id, ascending, and the number of new and stored rows that have them."""
    found = [np.unique(hashes[1:][hashes[1:] == hashes[:-1]])]
    rows = 0
    for frame in stored_ids():
        theirs = np.sort(id_hashes(frame["request_id"]))
        hits = theirs[is_among(theirs, hashes)]
        found.append(hits)
        rows += hits.size
    suspects = np.unique(np.concatenate(found))
    ours = np.searchsorted(hashes, suspects, "right") - np.searchsorted(hashes, suspects, "left")
    return suspects, rows + int(ours.sum())


def _only(suspects: Seqs, frames: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    for frame in frames:
        suspicious = frame.filter(pl.Series(is_among(id_hashes(frame["request_id"]), suspects), dtype=pl.Boolean))
        if suspicious.height:
            yield suspicious


def _compare(stored: Iterable[pl.DataFrame], new: Iterable[pl.DataFrame]) -> Repeats:
    earlier = pl.concat([pl.DataFrame(schema=SCHEMA), *stored])
    dropped: list[npt.NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    duplicates = 0
    conflicts: list[tuple[int, str]] = []
    for frame in new:
        settled = settle(frame, earlier)
        if settled.kept.height < frame.height:
            dropped.append(np.setdiff1d(frame["seq"].to_numpy(), settled.kept["seq"].to_numpy()))
            duplicates += settled.duplicates
            conflicts += settled.conflicts
        earlier = pl.concat([earlier, settled.kept])
    return Repeats(np.concatenate(dropped), duplicates, tuple(conflicts))


class _Shares:
    """Rows on disk, apart by ranges of their ids' hashes: the same id is always in the same share."""

    def __init__(self, spill: Path, edges: Seqs) -> None:
        self._spill = spill
        self._edges = edges
        self._files: set[Path] = set()

    def __enter__(self) -> _Shares:
        return self

    def __exit__(self, *_: object) -> None:
        for path in self._files:
            path.unlink(missing_ok=True)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._edges.size + 1))

    def _path(self, kind: str, index: int) -> Path:
        return self._spill.with_name(f"{self._spill.name}.{kind}.{index}.tmp")

    def spill(self, kind: str, frames: Iterable[pl.DataFrame]) -> None:
        writers: dict[int, RowGroups] = {}
        for frame in frames:
            share = np.searchsorted(self._edges, id_hashes(frame["request_id"]), "right")
            for index in np.unique(share).tolist():
                if index not in writers:
                    self._files.add(path := self._path(kind, index))
                    writers[index] = RowGroups(path, _SPILLED_ROWS)
                writers[index].add(frame.filter(pl.Series(share == index)))
        for writer in writers.values():
            writer.close()

    def read(self, kind: str, index: int) -> Iterator[pl.DataFrame]:
        path = self._path(kind, index)
        if path in self._files:
            yield from read_row_groups(path)
