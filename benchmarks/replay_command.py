"""The whole command on a million requests: ``fairreplay replay`` over the Azure conversation trace of 2023, repeated.

Targets: below 5 s and 500 MB of resident memory, with Parquet input. The trace (5,000 requests) is laid end to end,
spread over 32 tenants, written as Parquet, ingested once, and replayed by a process of its own; ``--requests`` for
another size.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

TRACE = Path(__file__).parents[1] / "tests/data/azure2023/AzureLLMInferenceTrace_conv.head5000.csv"
TENANTS = 32
COMMAND = [sys.executable, "-c", "from fairreplay.cli.app import main; main()"]


def repeated(count: int) -> pl.DataFrame:
    """``count`` requests: the trace again and again, each time as long after the last as its mean gap."""
    trace = pl.read_csv(TRACE)
    arrived = trace["TIMESTAMP"].str.slice(0, 26).str.to_datetime(time_unit="us", time_zone="UTC").to_physical()
    span_us = int(arrived[-1]) - int(arrived[0])
    number = pl.int_range(count, eager=True)
    row = number % len(trace)
    again = number // len(trace)
    return pl.DataFrame(
        {
            "request_id": "r" + number.cast(pl.String),
            "tenant": "t" + (number % TENANTS).cast(pl.String),
            "arrived_at": (arrived.gather(row) + again * (span_us + span_us // len(trace))).cast(
                pl.Datetime("us", "UTC")
            ),
            "prompt_tokens": trace["ContextTokens"].gather(row),
            "output_tokens": trace["GeneratedTokens"].gather(row),
        }
    )


def timed(*arguments: str) -> tuple[float, int, bytes]:
    """Wall-clock seconds, peak resident bytes and stdout of one process."""
    started = time.perf_counter()
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    assert status == 0, arguments
    return seconds, usage.ru_maxrss * 1024, out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=1_000_000)
    count = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder:
        trace, store = f"{folder}/azure.parquet", f"{folder}/store"
        repeated(count).write_parquet(trace)
        seconds, peak, _ = timed("ingest", trace, "--store", store, "--quiet")
        print(f"ingest of {count} requests: {seconds:.2f} s, {peak / 1e6:.0f} MB")
        timed("replay", "--store", store, "--policy", "sjf", "--quiet")  # compiles, if nobody has yet
        for policies in (["fcfs"], ["vtc"], ["fcfs", "vtc"]):
            chosen = [f"--policy={name}" for name in policies]
            seconds, peak, out = timed("replay", "--store", store, "--json", *chosen)
            engine_s = sum(item["engine_s"] for item in json.loads(out)["replays"])
            targets = " (targets 5 s, 500 MB)" if policies == ["fcfs"] and count == 1_000_000 else ""
            print(
                f"replay {'+'.join(policies):9} {seconds:5.2f} s{targets}, {peak / 1e6:.0f} MB, engine {engine_s:.2f} s"
            )
    print(f"this process at its peak: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")


if __name__ == "__main__":
    main()
