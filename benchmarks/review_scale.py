"""``review`` at scale: requests from a Parquet file, three policies, five incidents.

Run it with a number of requests (default a million, at the rate of 10 million over a fortnight): it prints the seconds
on the clock and of the processor for each stage and the whole, the peak memory of the process, the size of the page.
Target: 10 million requests in less than 120 s and 4 GB. ``--keep DIR`` keeps the trace for another run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INCIDENTS = ("burst", "thrash", "overload", "skew", "slowdown")
POLICIES = ("vtc", "sjf")
"""Beside the baseline."""
PER_DAY = 10_000_000 / 14
TENANTS = 20


def write_trace(folder: Path, requests: int) -> None:
    incidents = [f"--incident={kind}" for kind in INCIDENTS]
    duration = f"--duration={round(requests / PER_DAY * 1440)}m"
    rate = f"--rate={PER_DAY / 86_400:.4f}"
    arguments = ["synth", "-o", folder, duration, rate, f"--tenants={TENANTS}", "--seed=1", *incidents]
    code = "from fairreplay.cli.app import main; main()"
    subprocess.run([sys.executable, "-c", code, *map(str, arguments), "--quiet"], check=True)


def run(folder: Path) -> None:
    """The review itself, in a process of its own."""
    from fairreplay.config.load import load_config
    from fairreplay.metrics.options import measure_options
    from fairreplay.report.review import review
    from fairreplay.sandbox.compiled import compile_engine

    compile_engine()
    config = load_config(folder / "fairreplay.toml")
    config = config.model_copy(update={"policies": {}})
    begin, used = time.perf_counter(), time.process_time()

    @contextmanager
    def stage(what: str, _unit: str) -> Iterator[None]:
        started, before = time.perf_counter(), time.process_time()
        yield
        wall, processor = time.perf_counter() - started, time.process_time() - before
        print(f"{what:8} {wall:7.1f} s, processor {processor:7.1f} s, peak {peak_mb():6.0f} MB so far", flush=True)

    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        done = review(
            [str(folder / "trace.parquet")],
            Path(scratch) / "store",
            Path(scratch) / "reports",
            config,
            measure_options(config),
            policies=POLICIES,
            jobs=2,
            stage=stage,
        )
        page = done.latest.html.stat().st_size / 1e6
    wall, processor = time.perf_counter() - begin, time.process_time() - used
    document = done.document
    print(
        f"whole    {wall:7.1f} s, processor {processor:7.1f} s, peak {peak_mb():6.0f} MB; "
        f"{document['period']['requests']:,} requests, {len(done.policies)} policies, "
        f"{len(document['episodes'])} episodes, page {page:.1f} MB"
    )


def peak_mb() -> float:
    """Peak memory of this process alone (``ru_maxrss`` would begin with its parent's)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["run"]:
        run(Path(arguments[1]))
        return
    kept = arguments[arguments.index("--keep") + 1] if "--keep" in arguments else None
    requests = int(float(arguments[0])) if arguments and arguments[0] != "--keep" else 1_000_000
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(kept or scratch) / "trace"
        if not (folder / "trace.parquet").exists():
            write_trace(folder, requests)
        subprocess.run([sys.executable, __file__, "run", str(folder)], check=True)


if __name__ == "__main__":
    main()
