"""Where the numbers come from: sources, rejects, assumptions, settings. Nothing here names a machine or a path."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import orjson
import polars as pl

from fairreplay.config.model import Config
from fairreplay.report.rounding import rounded
from fairreplay.report.schema import DataQuality, IngestedSource, Reject, Setting
from fairreplay.report.text import plural
from fairreplay.store.manifest import Segment
from fairreplay.store.store import Store


@dataclass(frozen=True)
class StoreFacts:
    """What the report says of a store. ``rejects`` has the columns of ``REJECT_SCHEMA``."""

    digest: str
    segments: tuple[Segment, ...]
    rejects: pl.DataFrame


def store_facts(store: Store) -> StoreFacts:
    return StoreFacts(digest=store.digest(), segments=store.manifest.segments, rejects=store.rejects())


def data_quality(store: StoreFacts, assumed: Sequence[str], idle_share: float | None) -> DataQuality:
    """Sources by name, rejects by reason (most first), assumptions of reading and measuring."""
    assumptions = [
        f"{segment.name}: {line}" if len(store.segments) > 1 else line
        for segment in _by_name(store.segments)
        for line in [*segment.assumptions, *_remarks(segment)]
    ]
    return {
        "sources": [_ingested(segment) for segment in _by_name(store.segments)],
        "rejects": _rejects(store.rejects),
        "assumptions": list(dict.fromkeys([*assumptions, *assumed])),
        "idle_share": rounded(idle_share),
    }


def settings(config: Config) -> list[Setting]:
    """Every key that the config sets, as ``section.key``, in the model's order; values as JSON."""
    found: list[Setting] = []

    def walk(path: str, value: object) -> None:
        if isinstance(value, dict) and value:
            for key, item in value.items():
                walk(f"{path}.{key}" if path else str(key), item)
        else:
            found.append({"key": path, "value": orjson.dumps(value).decode()})

    walk("", config.model_dump(mode="json", exclude_unset=True, by_alias=True))
    return [row for row in found if row["key"]]


def config_digest(config: Config) -> str:
    """12 hex digits over every setting in force, defaults included."""
    content = orjson.dumps(config.model_dump(mode="json", by_alias=True), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(content).hexdigest()[:12]


def _by_name(segments: Sequence[Segment]) -> list[Segment]:
    return sorted(segments, key=lambda segment: (segment.name, segment.source))


def _ingested(segment: Segment) -> IngestedSource:
    return {
        "file": segment.name,
        "source": segment.source,
        "format": segment.format,
        "rows": segment.rows,
        "accepted": segment.accepted,
        "rejected": segment.rejected,
        "duplicates": segment.duplicates,
        "skipped": sum(segment.skipped.values()),
        "first_arrival": segment.first_arrival,
        "last_arrival": segment.last_arrival,
        "unknown_columns": list(segment.unknown_columns),
    }


def _remarks(segment: Segment) -> list[str]:
    remarks = []
    if segment.out_of_order:
        were = "were" if segment.out_of_order > 1 else "was"
        remarks.append(f"{plural(segment.out_of_order, 'row')} stood after a later arrival and {were} sorted")
    if segment.clamped:
        remarks.append(f"{plural(segment.clamped, 'time')} moved by clock skew")
    if segment.runs:
        jumps = plural(len(segment.runs), "time")
        remarks.append(f"the clock jumped back {jumps}: further runs from {', '.join(segment.runs)}")
    return remarks


def _rejects(rejects: pl.DataFrame) -> list[Reject]:
    """Rejects counted by file, column and reason; the first of each kind is the example."""
    if rejects.is_empty():
        return []
    counted = (
        rejects.group_by("file", "column", "reason", maintain_order=True)
        .agg(pl.len().alias("rows"), pl.col("row").first())
        .sort(["rows", "file", "reason"], descending=[True, False, False], maintain_order=True)
    )
    return [
        {
            "source": row["file"],
            "reason": row["reason"],
            "rows": row["rows"],
            "example": ", ".join(str(part) for part in (_row(row["row"]), row["column"]) if part),
        }
        for row in counted.iter_rows(named=True)
    ]


def _row(number: int | None) -> str:
    return "" if number is None else f"row {number}"
