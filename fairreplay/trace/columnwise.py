"""``prepare`` of a format for whole columns: what it makes of each record, worked out once for each different value.

The functions are those of the strict path, so both give the same; only the records are no longer taken one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import polars as pl

from fairreplay.trace.fields import After, Columns, Field, Ids, Record, Skipped
from fairreplay.trace.values import whole

_FEW: Final = 4
"""Values are told apart first if there are at least so many rows for each."""
_DIGITS_MAX: Final = 30


class DeclinedError(Exception):
    """The block is for the strict path."""


@dataclass(frozen=True)
class ByColumns:
    """``looks_at``: columns of the source that it needs beside the declared ones.

    ``prepare`` gives the block with what the format's own ``prepare`` puts into a record, and which rows are *odd*:
    for the strict path (None: none).

    Raises (``prepare``):
        DeclinedError: the block is for the strict path as a whole.
    """

    looks_at: tuple[Field, ...]
    prepare: Callable[[pl.DataFrame], tuple[pl.DataFrame, pl.Series | None]]


def either(one: pl.Series | None, other: pl.Series | None) -> pl.Series | None:
    """Rows that are odd for one of two reasons."""
    return other if one is None else one if other is None else one | other


def made(frame: pl.DataFrame, names: Sequence[str], function: Callable[[Record], object]) -> pl.Series:
    """``function`` of each row, given only its columns ``names`` as a record."""
    there = [name for name in dict.fromkeys(names) if name in frame.columns]
    if not there:
        return values_of([function({})]).new_from_index(0, frame.height)
    if len(there) == 1 and frame.schema[there[0]] in (pl.String, pl.Int64):
        column = frame[there[0]]
        different = column.unique()
        if different.len() * _FEW <= column.len():
            (name,) = there
            known = pl.DataFrame([different, values_of([function({name: value}) for value in different]).alias("made")])
            joined = column.to_frame().join(known, on=name, how="left", nulls_equal=True, maintain_order="left")
            return joined["made"]
    return values_of([function(record) for record in frame.select(there).iter_rows(named=True)])


def by_rows(prepare: Callable[[Record], Record | Skipped], reads: Sequence[Field], writes: Sequence[str]) -> ByColumns:
    """``prepare`` of a flat format, which looks at ``reads`` alone and changes ``writes`` alone."""
    names = [place.column for place in reads]

    def changed(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series | None]:
        there = [name for name in dict.fromkeys([*names, *writes]) if name in frame.columns]
        known: dict[tuple[object, ...], Record | Skipped] = {}
        prepared: list[Record | Skipped] = []
        for row in frame.select(there).iter_rows() if there else ((),) * frame.height:
            found = known.get(row)
            if found is None:
                known[row] = found = prepare(dict(zip(there, row, strict=True)))
            prepared.append(found)
        columns = {
            name: values_of([item.get(name) if isinstance(item, dict) else None for item in prepared])
            for name in writes
        }
        odd = pl.Series([not isinstance(item, dict) for item in prepared], dtype=pl.Boolean)
        return frame.with_columns(**columns), odd

    return ByColumns(tuple(reads), changed)


def table_of(records: Sequence[Record], columns: Columns) -> pl.DataFrame:
    """What prepared records hold under the declared columns.

    Raises:
        DeclinedError: as ``values_of``.
    """
    places = [place for found in columns.values() for place in found]
    names = [place.column for place in places] + [
        place.minus for place in places if isinstance(place, After) and place.minus
    ]
    cells = {name: [record.get(name) for record in records] for name in dict.fromkeys(names)}
    lists = {place.column for place in places if isinstance(place, Ids)}
    return pl.DataFrame({name: (_ids_of if name in lists else values_of)(values) for name, values in cells.items()})


def _ids_of(values: Sequence[object]) -> pl.Series:
    for value in values:
        if value is not None and not (
            isinstance(value, list) and all(type(item) is int and 0 <= item < 2**64 for item in value)
        ):
            raise DeclinedError
    return pl.Series(values, dtype=pl.List(pl.UInt64))


def values_of(values: Sequence[object]) -> pl.Series:
    """Values of records as a column.

    Raises:
        DeclinedError: they are of no one kind that has a column.
    """
    kinds = {type(value) for value in values} - {type(None)}
    try:
        if kinds <= {int}:
            return pl.Series(values, dtype=pl.Int64 if kinds else pl.String)
        if kinds <= {float}:
            return pl.Series(values, dtype=pl.Float64)
        if kinds <= {bool}:
            return pl.Series(values, dtype=pl.Boolean)
    except (OverflowError, TypeError):
        pass
    if not kinds <= {str, int, Decimal}:
        raise DeclinedError
    return pl.Series([_as_text(value) for value in values], dtype=pl.String)


def _as_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        if not value.is_finite() or abs(value.adjusted()) > _DIGITS_MAX:
            raise DeclinedError
        integer = whole(value)
        return str(integer) if integer is not None else format(value, "f")
    return str(value)
