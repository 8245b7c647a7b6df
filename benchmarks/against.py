"""The plain engine against that of an earlier revision: what has been built since may not slow it by more than 3 %.

Both revisions run the same loads in processes of their own that take turns, so that a machine which is busy for a while
is so for both; CPU time of the one thread counts, the best of all rounds. The first process of a revision compiles.

    python benchmarks/against.py                 # BEFORE, below
    python benchmarks/against.py REVISION
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parents[1]
BEFORE = "4b766bf"
"""The last revision before controls, pools, drafts, experts, precisions and estimates."""
MOST = 1.03
CODE = """
import json, sys, time
import step_loop
from fairreplay.sandbox import compiled
times = {}
for name, policy, tenants, blocks, asynchronous, per_s in (
    ("fcfs", "fcfs", 1, 200_000, False, 20.0),
    ("fcfs, light load", "fcfs", 1, 200_000, False, 5.0),
    ("fcfs, async scheduling", "fcfs", 1, 200_000, True, 20.0),
    ("vtc, 32 tenants", "vtc", 32, 200_000, False, 20.0),
    ("fcfs, steady preemption", "fcfs", 1, 6_000, False, 20.0),
):
    work = step_loop.load(int(sys.argv[1]), per_s, tenants)
    plan = step_loop.settings(work, policy, blocks, asynchronous)
    for _ in range(4):
        started = time.thread_time()
        compiled.run(work, plan)
        times[name] = min(times.get(name, 1e9), time.thread_time() - started)
print(json.dumps(times))
"""


def measure(tree: Path, requests: int) -> dict[str, float]:
    """Seconds by load."""
    paths = os.pathsep.join((str(tree), str(tree / "benchmarks")))
    environment = os.environ | {"PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(tree / ".against")}
    command = [sys.executable, "-c", CODE, str(requests)]
    done = subprocess.run(command, env=environment, cwd=tree, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("revision", nargs="?", default=BEFORE)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--requests", type=int, default=300_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        trees = {name: Path(scratch) / name for name in ("before", "now")}
        for tree, revision in ((trees["before"], asked.revision), (trees["now"], "HEAD")):
            archive = subprocess.run(["git", "archive", revision], cwd=HERE, stdout=subprocess.PIPE, check=True).stdout
            tree.mkdir()
            subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
        for tree in trees.values():
            measure(tree, 1000)
        best: dict[str, dict[str, float]] = {name: {} for name in trees}
        for number in range(asked.rounds):
            for name in sorted(trees, reverse=number % 2 == 0):
                for load, seconds in measure(trees[name], asked.requests).items():
                    best[name][load] = min(best[name].get(load, seconds), seconds)
    for load, before in best["before"].items():
        now = best["now"][load]
        print(
            f"{load:26} {asked.revision} {asked.requests / before / 1e6:5.2f}, HEAD {asked.requests / now / 1e6:5.2f} "
            f"M requests/s: {now / before:.3f} times the time (most {MOST})"
        )


if __name__ == "__main__":
    main()
