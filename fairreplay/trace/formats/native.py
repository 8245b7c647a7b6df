"""FairReplay's own schema by name (``trace.schema``), as JSON lines or Parquet.

Times are typed timestamps, ISO 8601, or numbers with their unit in the name (``arrived_at_us``). Such numbers count
from the epoch, unless the first arrivals lie before 1973: then the log's clock starts at 0, and 0 is ``--t0``.
"""

from __future__ import annotations

from collections.abc import Callable

from fairreplay.trace.fields import (
    Columns,
    Epoch,
    Field,
    Format,
    Ids,
    Integer,
    Real,
    Relative,
    Sample,
    Text,
    Tokens,
    Wall,
)
from fairreplay.trace.schema import TIME_COLUMNS
from fairreplay.trace.values import Unit, UnparsableError, known, microseconds, parse_number

UNITS: tuple[Unit, ...] = ("us", "ms", "s", "ns")
_FIRST_EPOCH_US = 10**14
"""March 1973: no production log is older, and no run on its own clock lasts three years."""

_KINDS: dict[str, Callable[[str], Field]] = {
    "request_id": Text,
    "tenant": Text,
    "type": Text,
    "model": Text,
    "replica": Text,
    "prompt_tokens": Tokens,
    "output_tokens": Tokens,
    "cached_tokens": Tokens,
    "priority": Integer,
    "status": Text,
    "preemptions": Integer,
    "recomputed_tokens": Tokens,
    "weight": Real,
    "batch_utilization": Real,
    "precision": Text,
    "session_id": Text,
    "prefix_ids": Ids,
}


def _arrival_columns(sample: Sample) -> list[str]:
    names = ["arrived_at", *(f"arrived_at_{unit}" for unit in UNITS)]
    return [name for name in names if name in sample.columns]


def _matches(sample: Sample) -> bool:
    tokens = {"prompt_tokens", "output_tokens"} <= set(sample.columns)
    return tokens and bool(_arrival_columns(sample))


def _starts_at_zero(sample: Sample, unit: Unit) -> bool:
    instants = []
    for record in sample.records:
        value = record.get(f"arrived_at_{unit}")
        try:
            instants += [microseconds(parse_number(value), unit)] if known(value) else []
        except UnparsableError:
            continue
    return bool(instants) and max(instants) < _FIRST_EPOCH_US


def _columns(sample: Sample) -> Columns:
    columns: dict[str, tuple[Field, ...]] = {name: (kind(name),) for name, kind in _KINDS.items()}
    relative = any(_starts_at_zero(sample, unit) for unit in UNITS)
    clock = Relative if relative else Epoch
    for name in TIME_COLUMNS:
        columns[name] = (Wall(name), *(clock(f"{name}_{unit}", unit) for unit in UNITS))
    return columns


NATIVE = Format(
    name="native",
    containers=("jsonl", "document", "parquet"),
    needs=("arrived_at", "prompt_tokens", "output_tokens"),
    columns=_columns,
    matches=_matches,
)
