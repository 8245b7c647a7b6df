"""``fairreplay --help`` against the bare command library in the same run; target: below 0.3 s."""

from __future__ import annotations

import subprocess
import sys
import time

RUNS = 7
TARGET_S = 0.3


def fastest_s(code: str) -> float:
    """Least wall time of a fresh interpreter over several runs: noise only adds."""
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    baseline = fastest_s("import typer")
    own = fastest_s("import sys; sys.argv = ['fairreplay', '--help']; from fairreplay.cli.app import main; main()")
    print(
        f"--help {own:.3f} s (target {TARGET_S} s), import of typer alone {baseline:.3f} s, ratio {own / baseline:.2f}"
    )


if __name__ == "__main__":
    main()
