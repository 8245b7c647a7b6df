"""What a replay leaves in the store: one row a request, and the work of each second."""

from __future__ import annotations

from typing import Final

import polars as pl

from fairreplay.trace.schema import TIMESTAMP

ROW_GROUP_ROWS: Final = 1 << 17

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
