"""The same request id twice: equal content is one row, counted; other content makes the later row a reject."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from fairreplay.trace.schema import COLUMNS

_CONTENT = [name for name in COLUMNS if name not in ("request_id", "seq", "source")]


@dataclass(frozen=True)
class Settled:
    """``kept`` in file order; ``conflicts`` are the record numbers and ids of rows that contradict an earlier one."""

    kept: pl.DataFrame
    duplicates: int
    conflicts: tuple[tuple[int, str], ...]


def settle(frame: pl.DataFrame, earlier: pl.DataFrame) -> Settled:
    """Compare the rows of ``frame`` (one source, in file order) with the first row of the same id, here or ``earlier``.

    ``earlier``: stored rows that share an id with ``frame``; ids are unique in it.
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
