"""Canonical rows as Parquet files: row groups of a fixed height, whose bytes depend on the rows only."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fairreplay.store.replays import ROW_GROUP_ROWS
from fairreplay.trace.schema import SCHEMA, TIME_COLUMNS

Seqs = npt.NDArray[np.uint64]

_ARROW: Final = pa.schema(
    [
        (name, pa.timestamp("us", "UTC") if name in TIME_COLUMNS else field.type)
        for name, field in zip(
            SCHEMA, pl.DataFrame(schema=SCHEMA).to_arrow(compat_level=pl.CompatLevel.oldest()).schema, strict=True
        )
    ]
)
_FEW: Final = ("status", "source")
"""Columns of a handful of values: handed over as these and where they stand, which spares looking each up. The bytes
that are written are the same."""
_WRITTEN: Final = pa.schema(
    [(field.name, pa.dictionary(pa.int32(), field.type) if field.name in _FEW else field.type) for field in _ARROW]
)
_COUNTS: Final = [name for name, dtype in SCHEMA.items() if dtype.is_integer() or name in TIME_COLUMNS]
_WRITING: Final[dict[str, Any]] = {
    # Differences of counts and times pack tighter and faster than zstd packs the numbers themselves.
    "column_encoding": dict.fromkeys(_COUNTS, "DELTA_BINARY_PACKED"),
    "compression": {
        **{name: "NONE" if name in _COUNTS else "ZSTD" for name in SCHEMA},
        "prefix_ids.list.element": "ZSTD",
    },
    "use_dictionary": [
        *("tenant", "type", "model", "replica", "status", "precision", "session_id", "source"),
        "prefix_ids.list.element",
    ],
    # Only arrivals and counts are looked for by range.
    "write_statistics": _COUNTS,
    # The Parquet types say it all; Arrow's own schema beside them would say it again.
    "store_schema": False,
}


TEXT_BYTES_MAX: Final = 1 << 27
"""A row group ends before its names take more: in a frame a name may stand a million times and be held once."""


class RowGroups:
    """Frames of any height into a file with row groups of ``group_rows``, lower where names are very long."""

    def __init__(self, path: Path, group_rows: int = ROW_GROUP_ROWS) -> None:
        self._writer = pq.ParquetWriter(path, _WRITTEN, **_WRITING)
        self._group_rows = group_rows
        # Compressing a row group takes as long as reading one, so both go on at once.
        self._thread = ThreadPoolExecutor(1, "row-groups")
        self._under_way: Future[None] | None = None
        self._waiting: list[pl.DataFrame] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self.rows = 0
        self.filled_columns: set[str] = set()
        """Columns that are not null in every row."""
        self.first_us: int | None = None
        self.last_us: int | None = None
        """Arrivals of the first and the last row."""

    def add(self, frame: pl.DataFrame) -> None:
        for part, text_bytes in _parts(frame):
            if self._waiting_rows and self._waiting_bytes + text_bytes > TEXT_BYTES_MAX:
                self._write(self._waiting_rows)
            self._waiting.append(part)
            self._waiting_rows += part.height
            self._waiting_bytes += text_bytes
            self.rows += part.height
            while self._waiting_rows >= self._group_rows:
                self._write(self._group_rows)

    def close(self) -> None:
        """Write what waits and the footer; again is no harm."""
        if self._waiting_rows:
            self._write(self._waiting_rows)
        self._wait()
        self._thread.shutdown()
        self._writer.close()

    def abandon(self) -> None:
        """Close a file that is to be removed, whatever its state."""
        self._thread.shutdown()
        with suppress(OSError, pa.ArrowException):
            self._writer.close()

    def _write(self, rows: int) -> None:
        waiting = pl.concat(self._waiting)
        group, rest = waiting[:rows], waiting[rows:]
        self._waiting, self._waiting_rows = [rest], rest.height
        self._waiting_bytes = _text_bytes(rest) if rest.height else 0
        self.filled_columns |= {column.name for column in group if column.null_count() < rows}
        arrivals = group["arrived_at"].cast(pl.Int64)
        self.first_us = arrivals[0] if self.first_us is None else self.first_us
        self.last_us = arrivals[-1]
        self._wait()
        self._under_way = self._thread.submit(self._compress, group)

    def _wait(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def _compress(self, group: pl.DataFrame) -> None:
        table = pa.Table.from_arrays([_array(column.rechunk()) for column in group], schema=_WRITTEN)
        self._writer.write_table(table, row_group_size=self._group_rows)


def _array(column: pl.Series) -> Any:
    """As it is handed to the writer; of types that need no casting, whose module takes long to import."""
    rows, kind = column.len(), _ARROW.field(column.name).type
    if column.null_count() == rows:
        return pa.nulls(rows, kind)
    if column.name not in _FEW:
        return column.to_arrow(compat_level=pl.CompatLevel.oldest())
    values = column[:1] if (column == column[0]).all() else column.unique(maintain_order=True)
    places = np.zeros(rows, np.int32)
    if values.len() > 1:
        places = column.replace_strict(values, pl.int_range(values.len(), dtype=pl.Int32, eager=True)).to_numpy()
    return pa.DictionaryArray.from_arrays(pa.array(places), pa.array(values.to_list(), kind))


def _text_bytes(frame: pl.DataFrame) -> int:
    return int(frame.select(pl.sum_horizontal(pl.col(pl.String).str.len_bytes().sum())).item())


def _parts(frame: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, int]]:
    """``frame`` in parts whose names take up to ``TEXT_BYTES_MAX`` (but for single rows), and how many bytes."""
    text_bytes = _text_bytes(frame)
    if text_bytes <= TEXT_BYTES_MAX or frame.height <= 1:
        yield frame, text_bytes
        return
    half = frame.height // 2
    yield from _parts(frame[:half])
    yield from _parts(frame[half:])


def read_row_groups(path: Path, columns: list[str] | None = None) -> Iterator[pl.DataFrame]:
    """A segment file (in the making or done), one row group at a time."""
    with pq.ParquetFile(path) as file:
        for index in range(file.num_row_groups):
            frame = pl.DataFrame(file.read_row_group(index, columns=columns))
            yield frame.cast({name: SCHEMA[name] for name in frame.columns})


def id_hashes(ids: pl.Series) -> Seqs:
    """64 bits an id, the same throughout a process. Different ids may share them: equal hashes are a hint only."""
    return ids.hash(7).to_numpy()


def is_among(values: Seqs, ascending: Seqs) -> npt.NDArray[np.bool_]:
    """Which of ``values`` are among ``ascending``."""
    if not ascending.size:
        return np.zeros(values.size, np.bool_)
    places = np.searchsorted(ascending, values)
    places[places == ascending.size] = 0
    found: npt.NDArray[np.bool_] = ascending[places] == values
    return found
