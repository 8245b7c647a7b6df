"""A frame in memory as a load: converted to arrays once, so that a part of the grid is a slice of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl

from fairreplay.metrics.kernel import outlasting_compiled
from fairreplay.metrics.load import MAY_BE_UNKNOWN, NEEDED, REJECTED, UNKNOWN, Bools, Columns, Group, Ints
from fairreplay.metrics.medians import medians_below
from fairreplay.metrics.threads import in_order
from fairreplay.metrics.windows import Grid
from fairreplay.trace.schema import STATUSES

NAMES: Final = ("model", "tenant", "type")


class Held:
    """See ``load.Load``. A scan is read once; what is held are some 100 bytes a row, in the chunks it was read in."""

    def __init__(self, rows: pl.DataFrame | pl.LazyFrame) -> None:
        numbers, names = _numbered(rows)
        self._nulls = dict.fromkeys(MAY_BE_UNKNOWN, 0)
        self._rows: dict[str | None, list[Columns]] = {}
        found = [self._group(frame, names) for frame in _by_model(numbers)]
        self.groups = tuple(sorted(found, key=lambda group: (group.model is not None, group.model or "")))

    def parts(self, group: Group, whole: Grid, windows_max: int) -> Iterator[tuple[Sequence[Columns], Grid]]:
        chunks = self._rows[group.model]
        lasting = list(in_order(_outlasting, ((chunk, whole, windows_max) for chunk in chunks)))
        # Rows of earlier parts, or from before the grid, that may last until the next part.
        before = [
            some.slice(0, first) for some in lasting if (first := _between(some, whole.start_us, whole.start_us)[0])
        ]
        for part in whole.parts(windows_max):
            inside, still = [], [rows for some in before if len(rows := some.take(some.lasts_until(part.start_us)))]
            before = [*still]
            for chunk, some in zip(chunks, lasting, strict=True):
                first, end = _between(chunk, part.start_us, part.end_us)
                if end > first:
                    inside.append(chunk.slice(first, end))
                first, end = _between(some, part.start_us, part.end_us)
                if end > first:
                    before.append(some.slice(first, end))
            yield (*still, *inside), part

    def waits(self) -> tuple[Ints, Ints]:
        found = [np.zeros((2, 0), np.int64)]
        for rows in itertools.chain.from_iterable(self._rows.values()):
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
        surveyed = list(in_order(_survey, ((tenant_places, type_places, chunk) for chunk in _chunks(frame))))
        chunks = [one.rows for one in surveyed]
        self._rows[model] = chunks
        for one in surveyed:
            for name, count in one.nulls.items():
                self._nulls[name] += count
        keys = [chunk.tenant for chunk in chunks]
        prompts, outputs = [chunk.prompt for chunk in chunks], [chunk.output for chunk in chunks]
        return Group(
            model=model,
            tenants=tenants,
            types=types,
            rows=len(frame),
            first_us=int(chunks[0].arrived[0]),
            last_us=int(chunks[-1].arrived[-1]),
            end_us=max(one.end_us for one in surveyed),
            usual_prompt=medians_below(keys, prompts, [one.no_prompt for one in surveyed], len(tenants)),
            usual_output=medians_below(keys, outputs, [one.no_output for one in surveyed], len(tenants)),
        )


@dataclass(frozen=True)
class _Surveyed:
    """A chunk, names as places in its group, and what is to be known of it."""

    rows: Columns
    nulls: Mapping[str, int]
    end_us: int
    no_prompt: Bools
    no_output: Bools
    """A refused request generated 0 tokens; what it asked for is best guessed from what its tenant usually gets."""


def _survey(tenant_places: Ints, type_places: Ints, chunk: Columns) -> _Surveyed:
    chunk = replace(chunk, tenant=tenant_places[chunk.tenant], type=type_places[chunk.type])
    return _Surveyed(
        rows=chunk,
        nulls={name: int((chunk.named(name) == UNKNOWN).sum()) for name in MAY_BE_UNKNOWN},
        end_us=max(int(times.max()) for times in (chunk.arrived, chunk.scheduled, chunk.first_token, chunk.finished)),
        no_prompt=chunk.prompt == UNKNOWN,
        no_output=(chunk.output == UNKNOWN) | (chunk.status == REJECTED),
    )


def _chunks(frame: pl.DataFrame) -> list[Columns]:
    """The rows as they lie in memory, not copied where the columns are cut alike."""
    if len(set(frame.n_chunks("all"))) > 1:
        frame = frame.rechunk()
    pieces = [[piece.to_numpy() for piece in frame[name].get_chunks()] for name in NEEDED]
    return [Columns(*arrays) for arrays in zip(*pieces, strict=True) if len(arrays[0])]


def _between(rows: Columns, begin_us: int, end_us: int) -> tuple[int, int]:
    """First and end of the rows that arrived in [``begin_us``, ``end_us``)."""
    first, end = np.searchsorted(rows.arrived, [begin_us, end_us])
    return int(first), int(end)


def _outlasting(rows: Columns, whole: Grid, windows_max: int) -> Columns:
    """The few rows that last beyond the part of the grid in which they arrived."""
    which = np.empty(len(rows), np.int64)
    times = (rows.arrived, rows.scheduled, rows.first_token, rows.finished)
    found = outlasting_compiled(*times, rows.status, whole.start_us, whole.size_us * windows_max, which)
    return rows.take(which[:found])


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
