"""The production behind a synthetic trace: the sandbox serves what was asked, and the log is what it did."""

from __future__ import annotations

from typing import Final

import polars as pl

from fairreplay.config.model import Config
from fairreplay.sandbox.plan import baseline_policy, shards, take_load
from fairreplay.sandbox.replay import run_shards
from fairreplay.trace.schema import COLUMNS, ORDER, SCHEMA

ASKED: Final = (
    "request_id",
    "tenant",
    "type",
    "model",
    "arrived_at",
    "prompt_tokens",
    "output_tokens",
    "priority",
    "weight",
)
"""The columns that say what was asked of the cluster; the others say what it did."""


def serve(requests: pl.DataFrame, config: Config) -> pl.DataFrame:
    """``requests`` (canonical columns) as production under ``config`` would have logged them."""
    load = take_load(requests)
    served = run_shards(load, shards(load, config, baseline_policy(config))).requests
    frame = pl.concat(
        [load.frame.drop(set(served.columns) & set(COLUMNS) - {"request_id"}), served.drop("request_id")],
        how="horizontal",
    )
    refused = pl.col("status") == "rejected"
    output = pl.when(refused).then(0).otherwise("output_tokens").cast(SCHEMA["output_tokens"]).alias("output_tokens")
    return frame.with_columns(output).select(pl.col(name).cast(SCHEMA[name]) for name in COLUMNS).sort(ORDER)


def unserved(asked: pl.DataFrame) -> pl.DataFrame:
    """Requests as they arrive: canonical columns in arrival order, everything that the cluster adds still unknown."""
    ordered = asked.sort("arrived_at", "request_id").with_columns(
        pl.lit("ok").alias("status"),
        pl.int_range(pl.len()).cast(SCHEMA["seq"]).alias("seq"),
        pl.lit("synth").alias("source"),
    )
    unknown = [pl.lit(None, SCHEMA[name]).alias(name) for name in COLUMNS if name not in ordered.columns]
    return ordered.with_columns(unknown).select(pl.col(name).cast(SCHEMA[name]) for name in COLUMNS)
