"""Short logs written for a test, read as a format, and what became of each record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairreplay.trace.read import SourceRead, read_source
from fairreplay.trace.rules import Reading
from fairreplay.trace.schema import TIME_COLUMNS
from fairreplay.trace.values import iso


class Outcome(NamedTuple):
    """Rows by record number, times as ISO 8601; rejects as (reason, column, value)."""

    rows: dict[int, dict[str, Any]]
    rejects: dict[int, tuple[str, str | None, str | None]]
    skipped: dict[str, int]
    read: SourceRead


def outcome(path: Path, content: object, wanted: str, reading: Reading = Reading(), *, auto: bool = True) -> Outcome:
    """Read ``content``: a list as JSON lines, text as it is, anything else as one document."""
    if isinstance(content, str):
        text = content
    elif isinstance(content, list):
        text = "".join(json.dumps(record) + "\n" for record in content)
    else:
        text = json.dumps(content, indent=1)
    path.write_text(text, encoding="utf-8")
    read = read_source(path, reading, "auto" if auto else wanted)
    assert read.format.name == wanted
    frame = read.frame.drop("source").cast(dict.fromkeys(TIME_COLUMNS, int))
    rows = {row["seq"]: _shown(row) for row in frame.to_dicts()}
    rejects = {item.row: (item.reason, item.column, item.value) for item in read.rejects}
    return Outcome(rows, rejects, read.skipped, read)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    times = {name: None if row[name] is None else iso(row[name]) for name in TIME_COLUMNS}
    return row | {name: text and text.removeprefix("2026-03-02T").removesuffix("Z") for name, text in times.items()}


def column(rows: dict[int, dict[str, Any]], *names: str) -> Sequence[Any]:
    """One column of all rows, or several as tuples."""
    return [row[names[0]] if len(names) == 1 else tuple(row[name] for name in names) for row in rows.values()]
