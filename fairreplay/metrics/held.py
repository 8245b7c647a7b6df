"""A frame in memory as a load: converted to arrays once, so that a part of the grid is a slice of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import polars as pl

from fairreplay.metrics.kernel import outlasting_compiled
from fairreplay.metrics.load import MAY_BE_UNKNOWN, NEEDED, REJECTED, UNKNOWN, Columns, Group, Ints
from fairreplay.metrics.quantiles import medians_below
from fairreplay.metrics.windows import Grid
from fairreplay.trace.schema import STATUSES

NAMES: Final = ("model", "tenant", "type")


class Held:
    """See ``load.Load``. A scan is read once; what is held are some 100 bytes a row."""

    def __init__(self, rows: pl.DataFrame | pl.LazyFrame) -> None:
        numbers, names = _numbered(rows)
        self._nulls = {name: int((numbers[name].to_numpy() == UNKNOWN).sum()) for name in MAY_BE_UNKNOWN}
        self._rows: dict[str | None, Columns] = {}
        found = [self._group(frame, names) for frame in _by_model(numbers)]
        self.groups = tuple(sorted(found, key=lambda group: (group.model is not None, group.model or "")))

    def parts(self, group: Group, whole: Grid, windows_max: int) -> Iterator[tuple[Sequence[Columns], Grid]]:
        rows = self._rows[group.model]
        lasting, until = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        times = (rows.arrived, rows.scheduled, rows.first_token, rows.finished)
        found = outlasting_compiled(*times, rows.status, whole.start_us, whole.size_us * windows_max, lasting, until)
        lasting, until = lasting[:found].copy(), until[:found].copy()
        for part in whole.parts(windows_max):
            first, end = (int(place) for place in np.searchsorted(rows.arrived, [part.start_us, part.end_us]))
            before = lasting[(lasting < first) & (until >= part.start_us)]
            yield (rows.take(before), rows.slice(first, end)), part

    def waits(self) -> tuple[Ints, Ints]:
        found = [np.zeros((2, 0), np.int64)]
        for rows in self._rows.values():
            known = rows.first_token != UNKNOWN
            arrived = rows.arrived[known]
            found.append(np.stack([arrived, rows.first_token[known] - arrived]))
        arrived, ttft = np.concatenate(found, axis=1)
        return arrived, ttft

    def unknown(self, column: str) -> int:
        return self._nulls[column]

    def all_null(self, column: str) -> bool:
        return self._nulls[column] == sum(group.rows for group in self.groups) > 0

    def _group(self, frame: pl.DataFrame, names: dict[str, list[str | None]]) -> Group:
        """Survey one group and keep its rows."""
        if not frame["arrived_at"].is_sorted():
            frame = frame.sort("arrived_at", maintain_order=True)
        model = names["model"][frame["model"][0]]
        tenants, tenant_places = _present(frame["tenant"], names["tenant"])
        types, type_places = _present(frame["type"], names["type"])
        places = {"tenant": tenant_places, "type": type_places}
        rows = Columns(
            *(places[name][frame[name].to_numpy()] if name in places else frame[name].to_numpy() for name in NEEDED)
        )
        self._rows[model] = rows
        # A refused request generated 0 tokens; what it asked for is best guessed from what its tenant usually gets.
        refused = rows.status == REJECTED
        usual = [
            medians_below(rows.tenant, sizes, unknown, len(tenants))
            for sizes, unknown in (
                (rows.prompt, rows.prompt == UNKNOWN),
                (rows.output, (rows.output == UNKNOWN) | refused),
            )
        ]
        return Group(
            model=model,
            tenants=tenants,
            types=types,
            rows=len(rows),
            first_us=int(rows.arrived[0]),
            last_us=int(rows.arrived[-1]),
            end_us=max(int(times.max()) for times in (rows.arrived, rows.scheduled, rows.first_token, rows.finished)),
            usual_prompt=usual[0],
            usual_output=usual[1],
        )


def _numbered(rows: pl.DataFrame | pl.LazyFrame) -> tuple[pl.DataFrame, dict[str, list[str | None]]]:
    """Every column as numbers in the form of ``Columns``, and the names by number; null is a name too."""
    own = {name: pl.Categorical(pl.Categories.random()) for name in NAMES}
    numbers = rows.lazy().select(
        *(pl.col(name).cast(own[name]) for name in NAMES),
        pl.col("status").cast(pl.Enum(STATUSES)).to_physical().cast(pl.Int64),
        *(
            pl.col(name).to_physical().cast(pl.Int64).fill_null(UNKNOWN)
            for name in NEEDED
            if name not in (*NAMES, "status", "weight")
        ),
        pl.col("weight").cast(pl.Float64).fill_null(float("nan")),
    )
    table = numbers.collect(engine="in-memory" if isinstance(rows, pl.DataFrame) else "streaming")
    names: dict[str, list[str | None]] = {}
    for name in NAMES:
        known = table[name].unique().drop_nulls()
        listed: list[str | None] = [None] * (len(known) + 1)
        for place, text in zip(known.to_physical().to_list(), known.cast(pl.String).to_list(), strict=True):
            listed[place] = text
        names[name] = listed
    return table.with_columns(pl.col(name).to_physical().fill_null(len(names[name]) - 1) for name in NAMES), names


def _by_model(numbers: pl.DataFrame) -> list[pl.DataFrame]:
    """The rows of each model, in the order they have."""
    if numbers.is_empty():
        return []
    model = numbers["model"]
    return [numbers] if model.min() == model.max() else numbers.partition_by("model", maintain_order=True)


def _present(numbers: pl.Series, names: list[str | None]) -> tuple[tuple[str, ...], Ints]:
    """The names that occur, in order, and the place among them of each number."""
    there = np.zeros(len(names), np.bool_)
    there[numbers.to_numpy()] = True
    found = sorted((name, number) for number, name in enumerate(names) if name is not None and there[number])
    places = np.full(len(names), -1, np.int64)
    places[[number for _, number in found]] = np.arange(len(found))
    return tuple(name for name, _ in found), places
