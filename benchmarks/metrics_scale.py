"""Metrics at scale: time and memory of ``measure`` over a Parquet file, beside DuckDB's ``GROUP BY`` with quantiles.

Run it with a number of requests (default a million, spread as 10 million over a fortnight): it prints seconds of wall
clock and of processor for both, in the same run on the same file, and the peak memory of each (in a process of its
own).
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from fairreplay.config.load import parse_config
from fairreplay.metrics.measure import measure
from fairreplay.metrics.options import measure_options
from fairreplay.trace.schema import SCHEMA, TIMESTAMP

SLO = "[defaults]\nslo_ttft_ms = { p50 = 500, p90 = 900, p99 = 2000 }\n"
START_US = 1_700_000_000_000_000
PER_DAY = 10_000_000 / 14
TENANTS, TYPES, THREADS = 100, 4, 2
PART = 1_000_000

BASELINE = """
    SELECT epoch_us(arrived_at) // 60000000 AS "window", tenant, count(*), sum(prompt_tokens), sum(output_tokens),
           quantile_disc(epoch_us(first_token_at) - epoch_us(arrived_at), [0.5, 0.9, 0.99])
    FROM read_parquet('{path}') GROUP BY ALL
"""


def write_trace(path: Path, requests: int) -> None:
    """``requests`` canonical rows in order of arrival: Zipf tenants, 1 % refused."""
    random = np.random.default_rng(1)
    arrived = START_US + np.sort(random.integers(0, int(requests / PER_DAY * 86_400e6) + 1, requests))
    zipf = 1 / np.arange(1, TENANTS + 1)
    names = pl.Series([f"tenant-{number:03}" for number in range(TENANTS)])
    kinds = pl.Series([f"type-{number}" for number in range(TYPES)])
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for first in range(0, requests, PART):
            at = arrived[first : first + PART]
            n = len(at)
            wait = random.exponential(4e5, n).astype(np.int64)
            ttft = wait + random.integers(20_000, 400_000, n)
            refused = pl.Series(random.random(n) < 0.01)
            columns = {
                "request_id": pl.Series(np.arange(first, first + n)).cast(pl.String),
                "tenant": names.gather(random.choice(TENANTS, n, p=zipf / zipf.sum())),
                "type": kinds.gather(random.integers(0, TYPES, n)),
                "arrived_at": pl.Series(at),
                "prompt_tokens": pl.Series(random.integers(10, 4000, n)),
                "output_tokens": pl.Series(random.integers(1, 600, n)).set(refused, 0),
                "scheduled_at": pl.Series(at + wait).set(refused, None),
                "first_token_at": pl.Series(at + ttft).set(refused, None),
                "finished_at": pl.Series(at + ttft + random.exponential(8e6, n).astype(np.int64)).set(refused, None),
                "status": pl.Series(["ok", "rejected"]).gather(refused.cast(pl.UInt32)),
                "preemptions": pl.Series((random.random(n) < 0.05).astype(np.int64)),
                "recomputed_tokens": pl.Series(np.where(random.random(n) < 0.05, 100, 0)),
                "seq": pl.Series(np.arange(first, first + n)),
            }
            instants = [name for name, dtype in SCHEMA.items() if dtype == TIMESTAMP]
            missing = [pl.lit(None).alias(name) for name in SCHEMA if name not in columns]
            frame = pl.DataFrame(columns).with_columns(pl.col(instants).cast(pl.Int64), *missing)
            frame = frame.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
            frame.write_parquet(Path(folder) / f"{first:012}.parquet")
        pl.scan_parquet(Path(folder) / "*.parquet").sink_parquet(path, row_group_size=1 << 17)


def run(what: str, path: Path) -> None:
    """Print rows of the answer, wall-clock and processor seconds, peak memory in MB: one line, for ``main``."""
    import duckdb

    config = parse_config(SLO, "benchmark")
    if what == "measure":  # compile first
        measure(pl.scan_parquet(path).head(1000).collect(), config, measure_options(config), "warm")
    begin, used = time.perf_counter(), time.process_time()
    if what == "measure":
        rows = len(measure(pl.scan_parquet(path), config, measure_options(config), "logged").tenants)
    else:
        connection = duckdb.connect()
        connection.execute(f"SET threads = {THREADS}")
        rows = len(connection.sql(BASELINE.format(path=path)).to_arrow_table())
    wall, processor = time.perf_counter() - begin, time.process_time() - used
    print(rows, wall, processor, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] in ("measure", "duckdb"):
        run(sys.argv[1], Path(sys.argv[2]))
        return
    requests = int(float(sys.argv[1])) if len(sys.argv) > 1 else 1_000_000
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.parquet"
        write_trace(path, requests)
        print(f"{requests:,} requests, {path.stat().st_size / 1e6:.0f} MB")
        for what in ("duckdb", "measure"):
            line = subprocess.run(
                [sys.executable, __file__, what, str(path)], check=True, capture_output=True, text=True
            ).stdout
            rows, *figures = line.split()
            wall, processor, memory = map(float, figures)
            found[what] = wall
            print(f"{what:8} {wall:6.2f} s wall, {processor:6.2f} s processor, {memory:6.0f} MB, {rows} rows")
    print(f"ratio {found['measure'] / found['duckdb']:.2f}")


if __name__ == "__main__":
    main()
