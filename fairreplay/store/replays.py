"""What a replay leaves in the store: one row a request, and the work of each second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import polars as pl

from fairreplay.store.ahead import one_ahead
from fairreplay.trace.schema import TIMESTAMP

ROW_GROUP_ROWS: Final = 1 << 17

REPLAY_FILES: Final = ("requests.parquet", "steps.parquet", "replay.json")
"""In the order in which they are written: with the last of them a replay is there."""
CONTROLS_FILE: Final = "controls.parquet"
"""Beside them where there were controls; ``replay.json`` then has ``controls``."""
STEPS_AT_ONCE: Final = 1 << 20
"""So many rows of step sums are gathered; more of them are written as they come."""
WRITING: Final[dict[str, Any]] = {"compression": "zstd", "compression_level": 1, "row_group_size": ROW_GROUP_ROWS}
"""How the files of a replay are written."""

REPLAY_SCHEMA: Final[dict[str, pl.DataType]] = {
    "request_id": pl.String(),
    "replica": pl.String(),
    "scheduled_at": TIMESTAMP,
    "first_token_at": TIMESTAMP,
    "finished_at": TIMESTAMP,
    "status": pl.String(),
    "reason": pl.String(),
    "preemptions": pl.UInt16(),
    "recomputed_tokens": pl.UInt32(),
    "cached_tokens": pl.UInt32(),
    "computed_tokens": pl.UInt32(),
}
"""One row per replayed request. ``reason`` is why it was refused or left; empty = none."""

ATTEMPTS: Final = "attempts"
"""Of a replay with controls one more column, UInt16: how often the request arrived. Where it came back, the others are
about the last time."""

STEP_SCHEMA: Final[dict[str, pl.DataType]] = {
    "model": pl.String(),
    "replica": pl.String(),
    "second": pl.Int64(),
    "class": pl.String(),
    "steps": pl.UInt32(),
    "batch_tokens": pl.UInt64(),
    "running": pl.Float64(),
    "waiting": pl.Float64(),
    "kv_used_blocks": pl.Float64(),
    "preemptions": pl.UInt32(),
}
"""One row per (model, replica, second, class): ``second`` = epoch s of the step's start, ``class`` in
``prefill``, ``decode``, ``mixed``; ``running``, ``waiting``, ``kv_used_blocks`` are means over its steps."""


CONTROL_SCHEMA: Final[dict[str, pl.DataType]] = {
    "model": pl.String(),
    "replica": pl.String(),
    "start": TIMESTAMP,
    "control": pl.String(),
    "what": pl.String(),
    "tenant": pl.String(),
    "type": pl.String(),
    "value": pl.Float64(),
}
"""What controls did: one row per (model, replica, window, control, what, tenant, type); ``start`` is the window's.

========================  ===============================================================================
``refusal``               refusals by reason, each attempt counted
``retry`` came_back       arrivals of requests that had been refused
``backpressure``          ``limited_s`` seconds below the configured rate, ``rate_per_s`` the lowest rate
``preemption``            ``voluntary``, ``voluntary_tokens`` (lost), ``denied`` (passes that denied a head)
``swap``                  ``out``, ``in``, ``no_room`` and their ``_tokens``
``kv_admission``          ``long``, ``long_tokens``: let in near saturation
``emergency``             ``entered_MODE``, ``left_MODE``, ``MODE_s`` seconds, ``cap`` units of cost in a window
========================  ===============================================================================
"""


def check_columns(frame: pl.DataFrame, schema: dict[str, pl.DataType], what: str) -> pl.DataFrame:
    """``frame`` unchanged if it has exactly ``schema``; TypeError names what differs (a bug, not bad input)."""
    if dict(frame.schema) != dict(pl.Schema(schema)):
        raise TypeError(f"{what} has columns {dict(frame.schema)}, not {dict(pl.Schema(schema))}")
    return frame


class ReplayDraft:
    """A replay on its way into ``folder``: ``add_steps`` replica by replica, then ``finish``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._steps: list[pl.DataFrame] = []
        self._waiting = 0
        self._writer: Any = None

    def add_steps(self, frame: pl.DataFrame) -> None:
        """More rows of ``STEP_SCHEMA``."""
        self._steps.append(check_columns(frame, STEP_SCHEMA, "a replay's steps"))
        self._waiting += frame.height
        if self._waiting > STEPS_AT_ONCE:
            self._write_steps()

    def finish(
        self,
        meta: dict[str, object],
        requests: pl.DataFrame | Iterator[pl.DataFrame],
        controls: pl.DataFrame | None = None,
    ) -> None:
        """``meta`` is any JSON object; the requests have ``REPLAY_SCHEMA`` and may come in blocks, which are written as
        they come: the file is the same. With ``controls`` (``CONTROL_SCHEMA``) they have ``ATTEMPTS`` too."""
        schema = REPLAY_SCHEMA
        if controls is not None:
            schema = REPLAY_SCHEMA | {ATTEMPTS: pl.UInt16()}
            checked = check_columns(controls, CONTROL_SCHEMA, "a replay's controls")
            checked.write_parquet(self.folder / CONTROLS_FILE, **WRITING)
        if self._writer is None:
            steps = pl.concat([pl.DataFrame(schema=STEP_SCHEMA), *self._steps])
            steps.write_parquet(self.folder / "steps.parquet", **WRITING)
        else:
            self._write_steps()
            self._writer.close()
        if isinstance(requests, pl.DataFrame):
            frame = check_columns(requests, schema, "a replay's requests")
            frame.write_parquet(self.folder / "requests.parquet", **WRITING)
        else:
            write_blocks(self.folder / "requests.parquet", requests, schema)
        (self.folder / "replay.json").write_bytes(orjson.dumps(meta, option=orjson.OPT_INDENT_2) + b"\n")

    def _write_steps(self) -> None:
        from pyarrow import parquet

        table = pl.concat([pl.DataFrame(schema=STEP_SCHEMA), *self._steps]).to_arrow(
            compat_level=pl.CompatLevel.oldest()
        )
        self._steps, self._waiting = [], 0
        if self._writer is None:
            names = [name for name, dtype in STEP_SCHEMA.items() if dtype == pl.String]
            self._writer = parquet.ParquetWriter(
                self.folder / "steps.parquet", table.schema, compression="zstd", use_dictionary=names,
                store_schema=False,
            )  # fmt: skip
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)

    def close(self) -> None:
        """Let go of the files; again is no harm."""
        if self._writer is not None:
            self._writer.close()


def write_blocks(path: Path, blocks: Iterator[pl.DataFrame], schema: dict[str, pl.DataType] = REPLAY_SCHEMA) -> None:
    """The requests of a replay that is too large for one frame: the same file as that of the frame."""
    from polars.io.plugins import register_io_source

    failures: list[Exception] = []

    def source(
        columns: list[str] | None, _predicate: pl.Expr | None, _rows: int | None, _size: int | None
    ) -> Iterator[pl.DataFrame]:
        try:
            for block in one_ahead(blocks):
                checked = check_columns(block, schema, "a replay's requests")
                yield checked if columns is None else checked.select(columns)
        except Exception as error:
            failures.append(error)
            raise

    try:
        register_io_source(source, schema=pl.Schema(schema)).sink_parquet(path, **WRITING)
    except Exception:
        if failures:
            raise failures[0] from None  # as it was, not as the writer tells it
        raise
