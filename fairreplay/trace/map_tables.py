"""The tables of a mapping file, each key with its type; what they mean together is checked in ``mapping``."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fairreplay.trace.schema import COLUMNS
from fairreplay.trace.values import Unit

MAPPED_COLUMNS: Final = tuple(name for name in COLUMNS if name not in ("seq", "source"))
NUMBER_COLUMNS: Final = (
    *("prompt_tokens", "output_tokens", "cached_tokens", "recomputed_tokens"),
    *("priority", "preemptions", "weight", "batch_utilization"),
)

Status = Literal["ok", "rejected", "failed", "cancelled", "unfinished"]
Scalar = str | int | float | bool
Path_ = Annotated[str, Field(min_length=1, max_length=400)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class ConditionTable(_Table):
    """What a record must have; every key that is given must hold, none means "is known"."""

    column: Path_
    among: list[Scalar] | None = Field(None, alias="in")
    regex: str | None = None
    at_least: float | None = Field(None, alias="min")
    at_most: float | None = Field(None, alias="max")


class ReadTable(_Table):
    kind: Literal["jsonl", "json", "csv", "parquet"]
    records: Path_ | None = None
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    header: bool = True
    keep: list[ConditionTable] = []


class ClockTable(_Table):
    kind: Literal["wall", "epoch", "relative"]
    format: str | None = None
    tz: str | None = None
    unit: Unit | None = None


class ColumnTable(_Table):
    column: Path_ | None = None
    total: Annotated[list[Path_], Field(min_length=1)] | None = Field(None, alias="sum")
    clock: str | None = None
    unit: Unit | None = None
    after: str | None = None
    minus: Path_ | None = None
    null: list[Scalar] = []
    negate: bool = False
    regex: str | None = None
    otherwise: list[Path_] = Field([], alias="else")
    default: str | int | float | None = None
    optional: bool = False
    """The whole log may lack it."""
    block_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of one block of ``prefix_ids``."""


def _as_table(value: object) -> object:
    return {"column": value} if isinstance(value, str) else value


class StatusTable(_Table):
    column: Path_
    map: dict[str, Status]
    default: Status | None = None


class TypeTable(_Table):
    when: ConditionTable | None = None
    name: Annotated[str, Field(min_length=1)] = Field(alias="is")


class DetectTable(_Table):
    """What a record of such a log has, has not, and does not hold an object under."""

    needs: list[str]
    without: list[str] = []
    no_object: list[str] = []


class MappingFile(_Table):
    version: Literal[1]
    name: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f\x7f]+$")]
    read: ReadTable
    clock: dict[str, ClockTable] = {}
    columns: dict[str, Annotated[ColumnTable, BeforeValidator(_as_table)]]
    constants: dict[str, str | int | float] = {}
    status: StatusTable | None = None
    type: list[TypeTable] = []
    detect: DetectTable | None = None
