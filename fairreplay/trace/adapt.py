"""A format with something added to its records: what the command line asks for beyond the format's own columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl

from fairreplay.errors import UsageError, nearest
from fairreplay.trace.columnwise import ByColumns, DeclinedError, either
from fairreplay.trace.fields import Columns, Format, Record, Sample, Skipped, Text
from fairreplay.trace.paths import find_path, paths_of, walk
from fairreplay.trace.redact import holds_text
from fairreplay.trace.values import known

Change = Callable[[Record, Record], Record]
"""(the record as read, the record as the format prepared it) -> what the rules see."""


def changed(log_format: Format, columns: Columns, change: Change, by_columns: ByColumns | None = None) -> Format:
    """``log_format`` with these columns, every prepared record passed through ``change``; ``by_columns`` does both."""
    prepare, whole = log_format.prepare, log_format.whole

    def prepared(record: Record) -> Record | Skipped:
        own = prepare(record) if prepare else record
        return change(record, own) if isinstance(own, dict) else own

    def prepared_whole(records: Sequence[Record]) -> Sequence[Record | Skipped]:
        assert whole is not None
        owns = whole(records)
        return [
            change(record, own) if isinstance(own, dict) else own for record, own in zip(records, owns, strict=True)
        ]

    if whole is not None:
        return replace(log_format, columns=columns, whole=prepared_whole)
    return replace(log_format, columns=columns, prepare=prepared, by_columns=by_columns)


def free_key(wanted: str, columns: Columns) -> str:
    """A key for an added value: ``wanted``, unless a column of the format reads that key for itself."""
    taken = {place.column for fields in columns.values() for place in fields}
    return wanted if wanted not in taken else f"{wanted} (added)"


class TenantFrom:
    """``--tenant-from FIELD``: the tenant stands at a path of the record. ``found``: some record has it."""

    def __init__(self, field: str) -> None:
        if holds_text(field):
            raise UsageError(f"--tenant-from {field}: holds prompts or answers, which are never stored")
        self.field = field
        self.found = False
        self._seen: dict[str, None] = {}

    def attach(self, log_format: Format, sample: Sample) -> Format:
        """The format with its tenant taken from the field alone."""
        if log_format.tenant_from is not None:
            return self._elsewhere(log_format.tenant_from(self.field), sample)
        columns = log_format.columns_for(sample)
        paths = find_path(self.field, sample.records)
        if len(paths) > 1:
            raise UsageError(f"--tenant-from {self.field}: stands at {', '.join(paths)}; name one of them")
        path = paths[0] if paths else self.field
        self._seen |= dict.fromkeys(name for record in sample.records for name in paths_of(record))
        if log_format.prepare is None and log_format.whole is None and path in sample.columns:
            self.found = True
            return replace(log_format, columns={**columns, "tenant": (Text(path),)})
        key = free_key(path, {name: fields for name, fields in columns.items() if name != "tenant"})

        def change(record: Record, prepared: Record) -> Record:
            value = walk(record, path)
            if not known(value):
                value = walk(prepared, path)  # some formats unfold what they read
            self.found = self.found or known(value)
            return prepared | {key: value}

        return changed(log_format, {**columns, "tenant": (Text(key),)}, change, self._by_columns(log_format, path, key))

    def _by_columns(self, log_format: Format, path: str, key: str) -> ByColumns | None:
        """What ``change`` does, for whole columns; where nothing is known the field may stand inside of something."""
        if log_format.whole is not None or (log_format.prepare is not None and log_format.by_columns is None):
            return None
        first = log_format.by_columns

        def prepare(block: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series | None]:
            frame, odd = first.prepare(block) if first else (block, None)
            if path not in block.columns:
                raise DeclinedError
            values = block[path]
            unsure = values.is_null()
            if values.dtype == pl.String:
                unsure |= (values == "") | (values == "-")
            unsure = unsure.fill_null(value=True)
            here = ~unsure if odd is None else ~(unsure | odd)
            self.found = self.found or here.any()
            inside = first is not None or "." in path
            return frame.with_columns(values.alias(key)), either(odd, unsure if inside else None)

        return ByColumns((*(first.looks_at if first else ()), Text(path)), prepare)

    def _elsewhere(self, log_format: Format, sample: Sample) -> Format:
        """For a format that looks the field up in other records too."""
        columns = log_format.columns_for(sample)
        (place,) = columns["tenant"]

        def change(_record: Record, prepared: Record) -> Record:
            self.found = self.found or known(prepared.get(place.column))
            return prepared

        return changed(log_format, columns, change)

    def check(self) -> None:
        """After the last record.

        Raises:
            UsageError: no record had the field.
        """
        if not self.found:
            raise UsageError(f"--tenant-from {self.field}: in no record ({nearest(self.field, list(self._seen))})")
