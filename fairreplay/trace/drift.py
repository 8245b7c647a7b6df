"""Parquet files of one log whose schemas drifted apart: what one says in numbers and another in text is a clash."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from fairreplay.errors import BadInputError, UsageError
from fairreplay.trace.blocks import used_columns
from fairreplay.trace.containers import inspect, is_parquet, parquet_file
from fairreplay.trace.detect import detect
from fairreplay.trace.fields import Format


def check_schemas(paths: Sequence[Path], wanted: str | Format = "auto") -> None:
    """The columns that a format reads are of one kind in all Parquet files of that format. Columns may be absent, and
    whole numbers, doubles and decimals are one kind.

    Raises:
        BadInputError: two files clash; both are named.
    """
    known: dict[tuple[str, str], tuple[str, Path]] = {}
    for path in paths if len(paths) > 1 else ():
        for key, kind in _kinds(path, wanted):
            before, first = known.setdefault(key, (kind, path))
            if before != kind:
                raise BadInputError(
                    f"{path}: column {key[1]} holds {kind}, but {before} in {first}: one log cannot have both; "
                    "convert one, or ingest them into different stores"
                )


def _kinds(path: Path, wanted: str | Format) -> Iterator[tuple[tuple[str, str], str]]:
    """((format, column), kind) of what is looked at in a Parquet file; what cannot be read is found out in its turn."""
    try:
        if not is_parquet(path):
            return
        content = inspect(path)
        log_format = detect(path, content.sample, wanted)
        with parquet_file(path) as file:
            schema = file.schema_arrow
    except (OSError, BadInputError, UsageError):
        return
    for name in used_columns(log_format.columns_for(content.sample), schema.names):
        index = schema.get_field_index(name)
        kind = _kind(schema.field(index).type) if index >= 0 else None
        if kind is not None:
            yield (log_format.name, name), kind


def _kind(kind: Any) -> str | None:
    """What a column holds, in a word; None: nothing at all."""
    is_of = pa.types
    if is_of.is_dictionary(kind):
        return _kind(kind.value_type)
    if is_of.is_null(kind):
        return None
    if is_of.is_integer(kind) or is_of.is_floating(kind) or is_of.is_decimal(kind):
        return "numbers"
    if is_of.is_string(kind) or is_of.is_large_string(kind) or is_of.is_string_view(kind):
        return "text"
    if is_of.is_timestamp(kind) or is_of.is_date(kind):
        return "instants"
    return "nested values" if is_of.is_nested(kind) else str(kind)
