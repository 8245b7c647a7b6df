"""Ingest of JSON lines and Parquet, against Polars' own conversion to Parquet in the same run.

Targets: 0.5 M rows/s and at most 2.5 times ``scan_ndjson().sink_parquet()``; 5 M rows/s and at most 3 times
``scan_parquet().sink_parquet()``; less than 1 GB of memory whatever the size. Every measurement is a process of its
own, best of ``--runs``; checksums, the sort, duplicates and the durable store are part of the time. The whole command,
with the start of the interpreter, is measured beside it.

    python benchmarks/ingest_speed.py --rows 2000000
    python benchmarks/ingest_speed.py --memory             # 20 M short rows through the command, once
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

CHUNK_ROWS = 1 << 18
TARGETS = {"jsonl": (0.5, 2.5), "parquet": (5.0, 3.0)}
"""Kind -> (million rows a second at least, times the baseline at most)."""
START_MS = 1_772_438_400_000
MEMORY_ROWS = 20_000_000
MEMORY_MAX_MIB = 1000


def chunk(start: int, rows: int) -> pl.DataFrame:
    """Requests of 32 tenants, 2000 a second, in the order of their arrival."""
    rng = np.random.default_rng(start)
    arrived = START_MS + np.arange(start, start + rows) // 2
    return pl.DataFrame(
        {
            "request_id": [f"req-{number:012x}" for number in range(start, start + rows)],
            "tenant": rng.choice([f"team-{number}" for number in range(32)], rows),
            "type": rng.choice(["chat", "completion"], rows),
            "model": ["llama-8b"] * rows,
            "arrived_at_ms": arrived,
            "prompt_tokens": rng.integers(1, 8000, rows),
            "output_tokens": rng.integers(1, 800, rows),
            "scheduled_at_ms": arrived + rng.integers(0, 100, rows),
            "first_token_at_ms": arrived + rng.integers(100, 1000, rows),
            "finished_at_ms": arrived + rng.integers(1000, 30_000, rows),
            "status": ["ok"] * rows,
        }
    )


def short_chunk(start: int, rows: int) -> pl.DataFrame:
    """The least that a request has, with a tenant and an id."""
    return chunk(start, rows).select("request_id", "tenant", "arrived_at_ms", "prompt_tokens", "output_tokens")


def generate(folder: Path, kind: str, rows: int, make: Callable[[int, int], pl.DataFrame] = chunk) -> Path:
    path = folder / f"log.{kind}"
    chunks = (make(start, min(CHUNK_ROWS, rows - start)) for start in range(0, rows, CHUNK_ROWS))
    if kind == "jsonl":
        with path.open("wb") as stream:
            for frame in chunks:
                frame.write_ndjson(stream)
        return path
    import pyarrow.parquet as pq

    writer = None
    for frame in chunks:
        table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return path


def work(what: str, kind: str, path: Path, target: Path) -> None:
    """One measurement; prints seconds, CPU seconds and peak memory."""
    if what == "ingest":
        from fairreplay.store.ingest import IngestOptions, ingest

        started, cpu = time.perf_counter(), time.process_time()
        ingest([str(path)], target, IngestOptions())
    else:
        scan = pl.scan_ndjson if kind == "jsonl" else pl.scan_parquet
        started, cpu = time.perf_counter(), time.process_time()
        scan(path).sink_parquet(target)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_mib": peak}))


def measure(what: str, kind: str, path: Path, folder: Path, runs: int) -> dict[str, float]:
    results = []
    for run in range(runs):
        target = folder / f"{what}-{kind}-{run}"
        command = [sys.executable, __file__, "--work", what, kind, str(path), str(target)]
        results.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return min(results, key=lambda result: result["seconds"])


def command(path: Path, target: Path) -> tuple[float, float]:
    """Seconds and peak memory (MiB) of the whole command."""
    code = (
        "import resource, sys; from fairreplay.cli.app import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    arguments = [sys.executable, "-c", code, "ingest", str(path), "--store", str(target), "--quiet"]
    started = time.perf_counter()
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    return time.perf_counter() - started, float(done.stdout)


def measure_memory(kind: str, rows: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = generate(Path(name), kind, rows, short_chunk)
        seconds, peak_mib = command(path, Path(name) / "store")
    print(
        f"{kind}: {rows} short rows through the command: peak {peak_mib:.0f} MiB (target below {MEMORY_MAX_MIB}), "
        f"{seconds:.1f} s, {rows / seconds / 1e6:.2f} M rows/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--memory", action="store_true", help=f"peak memory of {MEMORY_ROWS} rows instead")
    parser.add_argument("--kind", choices=[*TARGETS], action="append")
    parser.add_argument("--work", nargs=4, metavar=("WHAT", "KIND", "PATH", "TARGET"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        what, kind, path, target = given.work
        work(what, kind, Path(path), Path(target))
        return
    for kind in given.kind or TARGETS:
        if given.memory:
            measure_memory(kind, MEMORY_ROWS)
            continue
        speed_min, ratio_max = TARGETS[kind]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            path = generate(folder, kind, given.rows)
            baseline = measure("polars", kind, path, folder, given.runs)
            ours = measure("ingest", kind, path, folder, given.runs)
            whole_s, _ = min(command(path, folder / f"command-{run}") for run in range(given.runs))
        rate = given.rows / ours["seconds"] / 1e6
        print(
            f"{kind}: {given.rows} rows in {ours['seconds']:.2f} s (CPU {ours['cpu']:.2f} s), {rate:.2f} M rows/s "
            f"(target {speed_min}), {ours['seconds'] / baseline['seconds']:.2f} x polars {baseline['seconds']:.2f} s "
            f"(CPU {ours['cpu'] / baseline['cpu']:.2f} x {baseline['cpu']:.2f} s; target {ratio_max}), "
            f"peak {ours['peak_mib']:.0f} MiB (polars {baseline['peak_mib']:.0f}); whole command {whole_s:.2f} s"
        )


if __name__ == "__main__":
    main()
