"""Canonical frames from literal rows."""

from __future__ import annotations

from typing import Any

import polars as pl

from fairreplay.trace.schema import SCHEMA, TIME_COLUMNS, check_frame


def canonical(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Rows with the given columns; instants are seconds since the epoch, what is not named has a plain default."""
    full = []
    for number, row in enumerate(rows):
        default: dict[str, Any] = dict.fromkeys(SCHEMA)
        default |= {
            "request_id": f"r{number}",
            "tenant": "default",
            "type": "completion",
            "arrived_at": 0,
            "prompt_tokens": 10,
            "output_tokens": 2,
            "status": "ok",
            "seq": number,
            "source": "0123456789abcdef",
        }
        default |= row
        for column in TIME_COLUMNS:
            if default[column] is not None:
                default[column] = round(default[column] * 10**6)
        full.append(default)
    columns = {
        name: pl.Series(name, [row[name] for row in full], dtype=pl.Int64 if name in TIME_COLUMNS else dtype).cast(
            dtype
        )
        for name, dtype in SCHEMA.items()
    }
    return check_frame(pl.DataFrame(columns))
