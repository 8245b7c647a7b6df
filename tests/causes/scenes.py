"""A small production to explain: one replica, evenly spaced arrivals, served by the sandbox itself.

The cluster serves one request every quarter of a second (``ONE_BY_ONE``): 240 a minute. Minute 0 is ``AT``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from fairreplay.causes.episodes import Episode, episodes
from fairreplay.config.load import parse_config
from fairreplay.config.model import Config
from fairreplay.metrics.measure import Measured, measure
from fairreplay.metrics.options import MeasureOptions, measure_options
from fairreplay.sandbox.plan import baseline_policy, shards, take_load
from fairreplay.sandbox.replay import run_shards
from fairreplay.trace.schema import COLUMNS, SCHEMA
from tests.sandbox.frames import canonical

AT = datetime(2026, 1, 1, 10, tzinfo=UTC)
EPOCH_S = int(AT.timestamp())
SLO = "[defaults]\nslo_ttft_ms = { p50 = 1000, p90 = 2000, p99 = 4000 }\n"
ONE_BY_ONE = """
[cluster]
max_num_seqs = 1
num_gpu_blocks = 1000
enable_prefix_caching = false
async_scheduling = false
[cluster.step_time]
base = 0.25
prefill_token = 0.0
decode_sequence = 0.0
context_token = 0.0
"""


def minute(number: float) -> datetime:
    return AT + timedelta(minutes=number)


def asked(*streams: dict[str, Any]) -> pl.DataFrame:
    """Requests of evenly spaced streams: ``first`` and ``last`` minute, ``rate`` a minute, and columns."""
    rows = []
    for number, stream in enumerate(streams):
        columns = dict(stream)
        first, last, rate = columns.pop("first"), columns.pop("last"), columns.pop("rate")
        count = round((last - first) * rate)
        for index in range(count):
            # streams start a little after each other, so that no two requests arrive at once
            at = EPOCH_S + first * 60 + (index + 0.05 * (number + 1)) * 60 / rate
            name = f"{number}-{first}-{index}"
            rows.append({"request_id": name, "arrived_at": at, "prompt_tokens": 16, "output_tokens": 1} | columns)
    rows.sort(key=lambda row: row["arrived_at"])
    return canonical([row | {"seq": index} for index, row in enumerate(rows)])


def served(requests: pl.DataFrame, config: Config) -> pl.DataFrame:
    """As production under ``config`` would have logged them."""
    load = take_load(requests)
    done = run_shards(load, shards(load, config, baseline_policy(config))).requests
    kept = load.frame.drop(set(done.columns) & set(COLUMNS) - {"request_id"})
    return pl.concat([kept, done.drop("request_id")], how="horizontal").select(
        pl.col(name).cast(SCHEMA[name]) for name in COLUMNS
    )


def config(*more: str) -> Config:
    return parse_config("\n".join([ONE_BY_ONE, *more, SLO]), "test")


def change(at: float, **keys: Any) -> str:
    lines = [f"{key} = {value!r}".replace("'", '"') for key, value in keys.items()]
    return "\n".join(["[[cluster.changes]]", f"at = {minute(at):%Y-%m-%dT%H:%M:%SZ}", *lines])


def found(log: pl.DataFrame, settings: Config, **options: Any) -> tuple[list[Episode], Measured, MeasureOptions]:
    """The log's episodes."""
    how = measure_options(settings, **options)
    measured = measure(log, settings, how, "logged")
    return episodes(measured, log), measured, how
