"""The rows of an outcome as the metrics read them: by model group, in order of arrival, a slice of time at once.

A frame in memory and a scan of files (``polars.LazyFrame``) are read alike; of a scan no more is held than the slice
that is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fairreplay.trace.schema import STATUSES, TIME_COLUMNS

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

UNKNOWN: Final = np.iinfo(np.int64).min
"""An instant or a count that the source does not say."""
FOREVER: Final = 2**62

OK, REJECTED, FAILED, CANCELLED, UNFINISHED = range(len(STATUSES))

MAY_BE_UNKNOWN: Final = (
    "scheduled_at",
    "first_token_at",
    "finished_at",
    "prompt_tokens",
    "output_tokens",
    "preemptions",
    "recomputed_tokens",
)

NEEDED: Final = (
    "tenant",
    "type",
    "status",
    "arrived_at",
    "scheduled_at",
    "first_token_at",
    "finished_at",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "recomputed_tokens",
    "preemptions",
    "weight",
)
"""In the order of ``Columns``."""


@dataclass(frozen=True)
class Group:
    """One model group: who is in it, when, and the sizes that stand in for unknown ones."""

    model: str | None
    tenants: tuple[str, ...]
    types: tuple[str, ...]
    rows: int
    first_us: int
    """First arrival."""
    last_us: int
    """Last arrival."""
    end_us: int
    """The last instant that any row names."""
    usual_prompt: Ints
    """The tenant's median prompt, rounded down; 0 where it has none. Likewise its output, refused requests left out."""
    usual_output: Ints


@dataclass(frozen=True)
class Columns:
    """Rows as arrays (of int64, but for weights), one entry a request, ``UNKNOWN`` where the source does not say."""

    tenant: Ints
    """Place in ``Group.tenants``; likewise ``type``, and ``status`` in ``STATUSES``."""
    type: Ints
    status: Ints
    arrived: Ints
    """Microseconds since the epoch, as all instants."""
    scheduled: Ints
    first_token: Ints
    finished: Ints
    prompt: Ints
    output: Ints
    cached: Ints
    recomputed: Ints
    preemptions: Ints
    weight: NDArray[np.float64]
    """NaN where the source does not say."""

    def __len__(self) -> int:
        return len(self.arrived)

    def take(self, which: Bools | Ints) -> Columns:
        return Columns(*(getattr(self, field.name)[which] for field in fields(self)))

    def followed_by(self, other: Columns) -> Columns:
        if len(self) == 0:
            return other
        return Columns(
            *(np.concatenate([getattr(self, field.name), getattr(other, field.name)]) for field in fields(self))
        )

    def lasts_until(self, instant: int) -> Bools:
        """Whether a row still says something about ``instant`` or later: it waits, runs, or ends there."""
        last = np.maximum(np.maximum(self.scheduled, self.first_token), self.finished)
        waits_on = (self.status == UNFINISHED) & (self.scheduled == UNKNOWN) & (self.first_token == UNKNOWN)
        return np.asarray(waits_on | (last >= instant))


class Load:
    """An outcome (canonical columns): its model groups, by name, those that name no model first."""

    groups: tuple[Group, ...]

    def __init__(self, outcome: pl.DataFrame | pl.LazyFrame) -> None:
        self._lazy = outcome.lazy()
        self._in_memory = isinstance(outcome, pl.DataFrame)
        self._held: dict[str | None, tuple[pl.DataFrame, Ints]] = {}
        self.groups = tuple(self._survey())

    def slice(self, group: Group, begin_us: int, end_us: int) -> Columns:
        """The group's rows that arrived in [``begin_us``, ``end_us``), in order of arrival."""
        if self._in_memory:
            frame, arrived = self._of_group(group)
            first, last = np.searchsorted(arrived, [begin_us, end_us])
            return columns(frame.slice(int(first), int(last - first)), group)
        at = pl.col("arrived_at").to_physical()
        rows = self._lazy.filter(_is_model(group.model) & (at >= begin_us) & (at < end_us)).select(NEEDED)
        return columns(rows.collect(engine="streaming").sort("arrived_at", maintain_order=True), group)

    def lasting(self, group: Group, begin_us: int) -> Columns:
        """The group's rows that arrived before ``begin_us`` and last until it, in order of arrival."""
        if group.first_us >= begin_us:
            return self.slice(group, begin_us, begin_us)
        last = pl.max_horizontal(pl.col(TIME_COLUMNS).to_physical()) >= begin_us
        rows = self._of_group(group)[0].lazy() if self._in_memory else self._lazy.filter(_is_model(group.model))
        before = rows.filter(
            (pl.col("arrived_at").to_physical() < begin_us) & (last | (pl.col("status") == "unfinished"))
        )
        found = columns(
            before.select(NEEDED).collect(engine="streaming").sort("arrived_at", maintain_order=True), group
        )
        return found.take(found.lasts_until(begin_us))

    def waits(self) -> tuple[Ints, Ints]:
        """Arrival and TTFT of every request with a first token, in microseconds, over all groups."""
        instants = self._lazy.select(pl.col("arrived_at", "first_token_at").to_physical()).drop_nulls()
        table = self._collect(instants)
        arrived, first = table["arrived_at"].to_numpy(), table["first_token_at"].to_numpy()
        return arrived, first - arrived

    def unknown(self, column: str) -> int:
        """Rows that say nothing in ``column`` (one of ``MAY_BE_UNKNOWN``)."""
        return self._nulls[column]

    def all_null(self, column: str) -> bool:
        """No row says anything in ``column`` (and there are rows)."""
        return self._nulls[column] == sum(group.rows for group in self.groups) > 0

    def _of_group(self, group: Group) -> tuple[pl.DataFrame, Ints]:
        if group.model not in self._held:
            rows = self._lazy if len(self.groups) == 1 else self._lazy.filter(_is_model(group.model))
            frame = rows.select(NEEDED).collect()
            if not frame["arrived_at"].is_sorted():
                frame = frame.sort("arrived_at", maintain_order=True)
            self._held[group.model] = frame, frame["arrived_at"].to_physical().to_numpy()
        return self._held[group.model]

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
        if self._in_memory and self._names_no_model():
            table = self._collect(self._lazy.select(pl.lit(None, pl.String).alias("model"), *facts)).filter(
                pl.col("rows") > 0
            )
            members = self._lazy.select(pl.lit(None, pl.String).alias("model"), "tenant", "type")
        else:
            table = self._collect(self._lazy.group_by("model").agg(facts))
            members = self._lazy.select("model", "tenant", "type")
        members_table = self._collect(members.unique())
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
            own = members_table.filter(_is_model(model))
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

    def _names_no_model(self) -> bool:
        models = self._collect(self._lazy.select("model"))["model"]
        return models.null_count() == len(models)

    def _medians(self, size: str, which: pl.Expr) -> dict[tuple[str | None, str], int]:
        """Median of each model's tenants, rounded down; 0 where nothing is known."""
        median = pl.col(size).cast(pl.Int64).filter(which).median().floor().fill_null(0).cast(pl.Int64)
        table = self._collect(self._lazy.group_by("model", "tenant").agg(median.alias("median")))
        return {(model, tenant): value for model, tenant, value in table.iter_rows()}

    def _collect(self, query: pl.LazyFrame) -> pl.DataFrame:
        return query.collect(engine="in-memory" if self._in_memory else "streaming")


def columns(frame: pl.DataFrame, group: Group) -> Columns:
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
