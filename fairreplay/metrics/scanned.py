"""A scan of files as a load: no more is held than the part of the grid that is measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from fairreplay.metrics.load import MAY_BE_UNKNOWN, NEEDED, UNKNOWN, Columns, Group, Ints
from fairreplay.metrics.windows import Grid
from fairreplay.trace.schema import STATUSES, TIME_COLUMNS


class Scanned:
    """See ``load.Load``. Every part is a query of its own."""

    def __init__(self, rows: pl.LazyFrame) -> None:
        self._rows = rows
        self.groups = tuple(self._survey())

    def parts(self, group: Group, whole: Grid, windows_max: int) -> Iterator[tuple[Sequence[Columns], Grid]]:
        before = self._lasting(group, whole.start_us)
        for part in whole.parts(windows_max):
            rows = before.followed_by(self._slice(group, part.start_us, part.end_us))
            if part.end_us < whole.end_us:
                before = rows.take(rows.lasts_until(part.end_us))
            yield (rows,), part

    def waits(self) -> tuple[Ints, Ints]:
        instants = self._rows.select(pl.col("arrived_at", "first_token_at").to_physical()).drop_nulls()
        table = instants.collect(engine="streaming")
        arrived, first = table["arrived_at"].to_numpy(), table["first_token_at"].to_numpy()
        return arrived, first - arrived

    def unknown(self, column: str) -> int:
        return self._nulls[column]

    def all_null(self, column: str) -> bool:
        return self._nulls[column] == sum(group.rows for group in self.groups) > 0

    def _slice(self, group: Group, begin_us: int, end_us: int) -> Columns:
        at = pl.col("arrived_at").to_physical()
        return self._columns(group, (at >= begin_us) & (at < end_us))

    def _lasting(self, group: Group, begin_us: int) -> Columns:
        """The group's rows that arrived before ``begin_us`` and last until it."""
        if group.first_us >= begin_us:
            return self._slice(group, begin_us, begin_us)
        last = pl.max_horizontal(pl.col(TIME_COLUMNS).to_physical()) >= begin_us
        lasts = last | (pl.col("status") == "unfinished")
        found = self._columns(group, (pl.col("arrived_at").to_physical() < begin_us) & lasts)
        return found.take(found.lasts_until(begin_us))

    def _columns(self, group: Group, which: pl.Expr) -> Columns:
        rows = self._rows.filter(_is_model(group.model) & which).select(NEEDED).collect(engine="streaming")
        return _columns(rows.sort("arrived_at", maintain_order=True), group)

    def _survey(self) -> list[Group]:
        instants = pl.col(TIME_COLUMNS).to_physical()
        facts = (
            pl.len().alias("rows"),
            pl.col("arrived_at").to_physical().min().alias("first"),
            pl.col("arrived_at").to_physical().max().alias("last"),
            pl.max_horizontal(instants.max()).alias("end"),
            pl.col(MAY_BE_UNKNOWN).null_count().name.prefix("no_"),
            (pl.col("status") == "rejected").sum().alias("refused"),
        )
        table = self._rows.group_by("model").agg(facts).collect(engine="streaming")
        members = self._rows.select("model", "tenant", "type").unique().collect(engine="streaming")
        self._nulls = {name: int(table[f"no_{name}"].sum()) for name in MAY_BE_UNKNOWN}
        unknown = table.select(pl.col("no_prompt_tokens", "no_output_tokens", "refused").sum())
        prompts, outputs, refused = unknown.row(0) if len(table) else (0, 0, 0)
        # A refused request generated 0 tokens; what it asked for is best guessed from what its tenant usually gets.
        asked = pl.col("status") != "rejected"
        usual_prompt = self._medians("prompt_tokens", pl.lit(True)) if prompts else {}
        usual_output = self._medians("output_tokens", asked) if outputs or refused else {}
        found = []
        for facts_of in sorted(table.iter_rows(named=True), key=lambda row: (row["model"] is not None, row["model"])):
            model = facts_of["model"]
            own = members.filter(_is_model(model))
            tenants = sorted(own["tenant"].unique().to_list())
            found.append(
                Group(
                    model=model,
                    tenants=tuple(tenants),
                    types=tuple(sorted(own["type"].unique().to_list())),
                    rows=facts_of["rows"],
                    first_us=facts_of["first"],
                    last_us=facts_of["last"],
                    end_us=facts_of["end"],
                    usual_prompt=np.array([usual_prompt.get((model, tenant), 0) for tenant in tenants], np.int64),
                    usual_output=np.array([usual_output.get((model, tenant), 0) for tenant in tenants], np.int64),
                )
            )
        return found

    def _medians(self, size: str, which: pl.Expr) -> dict[tuple[str | None, str], int]:
        """Median of each model's tenants, rounded down; 0 where nothing is known."""
        median = pl.col(size).cast(pl.Int64).filter(which).median().floor().fill_null(0).cast(pl.Int64)
        table = self._rows.group_by("model", "tenant").agg(median.alias("median")).collect(engine="streaming")
        return {(model, tenant): value for model, tenant, value in table.iter_rows()}


def _columns(frame: pl.DataFrame, group: Group) -> Columns:
    """The rows of ``frame`` (columns ``NEEDED``) as arrays."""
    names = {"tenant": group.tenants, "type": group.types, "status": STATUSES}
    places = (pl.col(column).cast(pl.Enum(known)).to_physical() for column, known in names.items())
    numbers = (pl.col(column).to_physical() for column in NEEDED if column not in (*names, "weight"))
    table = frame.select(
        *(column.cast(pl.Int64).fill_null(UNKNOWN) for column in (*places, *numbers)),
        pl.col("weight").cast(pl.Float64).fill_null(float("nan")),
    )
    return Columns(*(table[column].to_numpy() for column in NEEDED))


def _is_model(model: str | None) -> pl.Expr:
    return pl.col("model").eq_missing(pl.lit(model, pl.String))
