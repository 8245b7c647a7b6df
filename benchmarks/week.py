"""A week of 44 million requests through ``fairreplay replay``: below 60 s a policy and 4 GB on two cores.

The shape is that of the Azure LLM inference trace of 2024 (github.com/Azure/AzurePublicDataset,
``AzureLLMInferenceDataset2024.md``; Stojkovic et al., "DynamoLLM", HPCA 2025): a conversation and a code service over
one week, days that peak in working hours, quiet nights and a quiet weekend. The week itself is not here, so it is
generated: the rate of each minute from the swings below, arrivals at random inside it, prompt and output lengths drawn
from the slices of the 2023 trace of the same services in ``tests/data/azure2023``. The 32 unequal tenants are ours.

A file a day is written, ingested by a process of its own and thrown away; then each policy is replayed by a process of
its own. Sixteen replicas keep the TTFT P99 at half a second. ``--requests`` for another size, ``--policy`` for others
than fcfs, ``--folder`` for where the files go (about 3 GB, removed at the end), ``--keep DIR`` for a store that stays
and is taken as it is the next time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

DATA = Path(__file__).parents[1] / "tests/data/azure2023"
COMMAND = [sys.executable, "-c", "from fairreplay.cli.app import main; main()"]
START_US = int(datetime(2024, 5, 13, tzinfo=UTC).timestamp()) * 1_000_000
"""A Monday."""
DAYS, MINUTES, MINUTE_US = 7, 1440, 60_000_000
TENANTS = 32
BYTES_A_REQUEST = 70
"""On disk at most: a day's file, the store, a replay."""


class Service:
    """One service of the trace: its part of the requests, how far its days and weekends swing, its lengths."""

    def __init__(self, name: str, kind: str, part: float, swing: float, weekend: float) -> None:
        self.kind, self.part, self.swing, self.weekend = kind, part, swing, weekend
        trace = pl.read_csv(DATA / f"AzureLLMInferenceTrace_{name}.head5000.csv")
        self.prompt = trace["ContextTokens"].cast(pl.UInt32).to_numpy()
        self.output = trace["GeneratedTokens"].cast(pl.UInt32).to_numpy()

    def rates(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Relative rate of each minute of the week; the busiest hour is 14:00."""
        minute = np.arange(DAYS * MINUTES)
        daily = 1 + self.swing * np.cos((minute % MINUTES - 14 * 60) * (2 * math.pi / MINUTES))
        rates: np.ndarray[tuple[int], np.dtype[np.float64]] = daily * np.where(
            minute // MINUTES >= 5, self.weekend, 1.0
        )
        return rates


def services() -> tuple[Service, ...]:
    return (
        Service("conv", "chat", part=0.62, swing=0.6, weekend=0.8),
        Service("code", "completion", part=0.38, swing=0.9, weekend=0.3),
    )


def days(requests: int) -> Iterator[Iterator[pl.DataFrame]]:
    """Each day as hours, each sorted by arrival."""
    rng = np.random.default_rng(2024)
    kinds = services()
    counts = []
    for one in kinds:
        rates = one.rates()
        counts.append(rng.multinomial(round(requests * one.part), rates / rates.sum()))
    tenants = 1 / np.arange(1, TENANTS + 1)
    number = 0

    def hour(first: int) -> pl.DataFrame:
        nonlocal number
        parts = []
        for one, of_minutes in zip(kinds, counts, strict=True):
            minute = np.repeat(np.arange(first, first + 60), of_minutes[first : first + 60])
            row = rng.integers(0, len(one.prompt), len(minute))
            parts.append(
                pl.DataFrame(
                    {
                        "arrived_at": START_US + minute * MINUTE_US + rng.integers(0, MINUTE_US, len(minute)),
                        "tenant": rng.choice(TENANTS, len(minute), p=tenants / tenants.sum()),
                        "type": pl.Series([one.kind]).new_from_index(0, len(minute)),
                        "prompt_tokens": one.prompt[row],
                        "output_tokens": one.output[row],
                    }
                )
            )
        made = pl.concat(parts).sort("arrived_at", maintain_order=True)
        ids = pl.int_range(number, number + len(made), eager=True)
        number += len(made)
        return made.with_columns(
            pl.col("arrived_at").cast(pl.Datetime("us", "UTC")),
            ("tenant-" + pl.col("tenant").cast(pl.String).str.zfill(2)).alias("tenant"),
            ("req-" + ids.cast(pl.String).str.zfill(8)).alias("request_id"),
        )

    for day in range(DAYS):
        yield (hour(day * MINUTES + at * 60) for at in range(24))


def timed(*arguments: str) -> tuple[float, float, int, bytes]:
    """Seconds on the clock and of the processor, peak resident bytes and stdout of one process."""
    started = time.perf_counter()
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    assert status == 0, arguments
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, out


def ingest(folder: Path, store: Path, requests: int) -> None:
    """Write the week day by day and read it into the store."""
    ingest_s, used_s, rows, highest = 0.0, 0.0, 0, 0
    for number, hours in enumerate(days(requests)):
        trace = folder / f"day-{number}.parquet"
        written = None
        for frame in hours:
            table = frame.to_arrow()
            written = written or pq.ParquetWriter(trace, table.schema, compression="zstd")
            written.write_table(table)
        assert written is not None
        written.close()
        seconds, used, peak, out = timed("ingest", str(trace), "--store", str(store), "--json")
        trace.unlink()
        ingest_s, used_s, highest = ingest_s + seconds, used_s + used, max(highest, peak)
        rows += sum(one["accepted"] for one in json.loads(out)["sources"])
    size = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    print(
        f"ingest  {rows} requests, {DAYS} files: {ingest_s:.1f} s (processor {used_s:.1f}), "
        f"{rows / ingest_s:,.0f} requests/s, peak {highest / 1e9:.2f} GB; store {size / 1e9:.2f} GB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=44_000_000)
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=asked.folder) as scratch:
        folder = Path(scratch)
        needed, free = asked.requests * BYTES_A_REQUEST, shutil.disk_usage(asked.keep or folder).free
        if free < needed:
            sys.exit(f"{folder}: {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB needed; name another folder")
        store, config = (asked.keep or folder) / "store", folder / "week.toml"
        config.write_text(f"[cluster]\nreplicas = {asked.replicas}\n")
        if not store.exists():
            ingest(folder, store, asked.requests)
        one = ("replay", "--store", str(store), "--config", str(config), "--json")
        timed(*one, "--until", "2024-05-13T00:01:00Z")  # compiles, if nobody has yet
        for policy in asked.policy or ["fcfs"]:
            seconds, used, peak, out = timed(*one, "--policy", policy)
            (found,) = json.loads(out)["replays"]
            print(
                f"replay  {policy}: {seconds:.1f} s (target 60; processor {used:.1f}), "
                f"{found['requests'] / seconds:,.0f} requests/s, peak {peak / 1e9:.2f} GB (target 4)\n"
                f"        engine {found['engine_s']:.1f} s over {asked.replicas} replicas, "
                f"TTFT P99 {found['ttft_ms']['p99']:.0f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
