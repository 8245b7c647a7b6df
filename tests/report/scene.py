"""A small production with everything that a report can show: a burst, two types, commitments, preemptions, two replays.

``python -m tests.report.scene`` writes ``data/document-2.json`` anew; a new schema version gets a file of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl

from fairreplay.config.load import parse_config
from fairreplay.config.model import Config
from fairreplay.metrics.options import measure_options
from fairreplay.report.gather import report_document
from fairreplay.report.redaction import Redaction
from fairreplay.report.schema import SCHEMA_VERSION, Document
from fairreplay.report.write import encode
from fairreplay.sandbox.replay import replay
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import Store, open_store
from tests.causes.scenes import ONE_BY_ONE, asked, served

SETTINGS = (
    ONE_BY_ONE.replace("prefill_token = 0.0", "prefill_token = 0.0002")
    + """
[defaults]
slo_ttft_ms = { p50 = 1000, p90 = 2000, p99 = 4000 }
[tenants.acme]
committed_tokens_per_month = 1_000_000
weight = 4.0
[tenants.globex]
committed_tokens_per_month = 1_000_000
weight = 1.0
[tenants.initech]
committed_tokens_per_month = 2_000_000
"""
)
TENANTS = ("acme", "globex", "initech", "umbrella")


def config(settings: str = SETTINGS) -> Config:
    return parse_config(settings, "scene.toml")


def log(tenants: tuple[str, ...] = TENANTS) -> pl.DataFrame:
    """Thirty minutes; the first tenant sends eight times as much from minute 20 to 25. Every 20th is preempted."""
    streams = [
        {"first": 0, "last": 30, "rate": 36, "tenant": tenant, "type": "chat" if number % 2 else "completion"}
        for number, tenant in enumerate(tenants)
    ]
    burst = {"first": 20, "last": 25, "rate": 300, "tenant": tenants[0], "type": "completion"}
    rows = served(asked(*streams, burst), config())
    every = pl.int_range(pl.len())
    hit = every % 20 == 0
    return rows.with_columns(
        pl.when(hit).then(1 + every % 3).otherwise(0).cast(pl.UInt16).alias("preemptions"),
        pl.when(hit)
        .then(200 * (1 + every % 4) * (1 + every % 3))
        .otherwise(0)
        .cast(pl.UInt32)
        .alias("recomputed_tokens"),
        (0.4 + (every % 13) * 0.05).cast(pl.Float32).alias("batch_utilization"),
    )


def write_log(path: Path, rows: pl.DataFrame) -> None:
    """``rows`` as JSON lines."""
    plain = rows.drop("source", "seq", "prefix_ids").with_columns(
        pl.col("arrived_at", "scheduled_at", "first_token_at", "finished_at").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
    )
    path.write_text(plain.write_ndjson(), encoding="utf-8")


def stored(folder: Path, rows: pl.DataFrame, settings: Config, name: str = "prod.jsonl") -> Store:
    """``rows`` ingested and replayed under fcfs and vtc."""
    write_log(folder / name, rows)
    ingest([str(folder / name)], folder / "store", IngestOptions())
    store = open_store(folder / "store")
    replay(store, settings, ["fcfs", "vtc"])
    return store


def document(
    store: Store, settings: Config, previous: Document | None = None, redaction: Redaction | None = None
) -> Document:
    return report_document(store, settings, measure_options(settings), previous=previous, redaction=redaction)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        made = document(stored(Path(temporary), log(), config()), config())
    file = Path(__file__).parent / "data" / f"document-{SCHEMA_VERSION}.json"
    file.write_bytes(encode(made))
