"""The plain engine against that of an earlier revision: what has been built since may not slow it by more than 3 %.

The machine and the place of a process in memory change a time by more than that. So two processes, one of each
revision, replay a load in turn on one core, some tens of milliseconds apart, and the median of the ratios of such
neighbours counts; this is done again with many new processes, and what is printed is the median over these pairs of
processes, with an interval that holds the true one with 95 % (by rank, so whatever the scatter looks like).
`--instructions` counts what the processor executes for a request instead, under valgrind, where hardly anything
scatters: the difference between many and few replays in a process, so that start and compilation are not in it.

    python benchmarks/against.py                 # BEFORE, below
    python benchmarks/against.py REVISION --rounds 100
    python benchmarks/against.py --instructions
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import NormalDist, median

HERE = Path(__file__).parents[1]
BEFORE = "4b766bf"
"""The last revision before controls, pools, drafts, experts, precisions and estimates."""
MOST = 1.03
LOADS = {
    "fcfs": ("fcfs", 1, 200_000, False, 20.0),
    "fcfs, light load": ("fcfs", 1, 200_000, False, 5.0),
    "fcfs, async scheduling": ("fcfs", 1, 200_000, True, 20.0),
    "vtc, 32 tenants": ("vtc", 32, 200_000, False, 20.0),
    "fcfs, steady preemption": ("fcfs", 1, 6_000, False, 20.0),
}
"""Policy, tenants, blocks of KV, asynchronous scheduling, requests per second."""
CODE = """
import json, sys, time
import step_loop
from fairreplay.sandbox import compiled
requests, loads = json.loads(sys.argv[1])
works = {}
for name, (policy, tenants, blocks, asynchronous, per_s) in loads.items():
    work = step_loop.load(requests, per_s, tenants)
    works[name] = work, step_loop.settings(work, policy, blocks, asynchronous)
for line in sys.stdin:
    started = time.thread_time()
    compiled.run(*works[line.strip()])
    print(time.thread_time() - started, flush=True)
"""
"""Replays the load that each line of its input names, and answers with the CPU time of the one thread."""
COUNTED_REQUESTS, FEW, MANY = 20_000, 2, 202


def command(tree: Path, requests: int, loads: list[str]) -> tuple[list[str], dict[str, str]]:
    """What replays these loads with the engine of a tree, and its environment."""
    paths = os.pathsep.join((str(tree), str(tree / "benchmarks")))
    own = {"PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(tree / ".against"), "PYTHONHASHSEED": "0"}
    asked = json.dumps([requests, {name: LOADS[name] for name in loads}])
    return [sys.executable, "-c", CODE, asked], os.environ | own


class Worker:
    """A process with the engine of one tree, that replays a load when it is told to, always on the same core."""

    def __init__(self, tree: Path, requests: int, core: int) -> None:
        line, environment = command(tree, requests, list(LOADS))
        self.process = subprocess.Popen(
            line, env=environment, cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        os.sched_setaffinity(self.process.pid, {core})

    def seconds(self, load: str) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{load}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self) -> None:
        self.process.communicate()
        if self.process.returncode:
            raise SystemExit(f"a process of the benchmark ended with {self.process.returncode}")


def executed(tree: Path, replays: int, load: str) -> int:
    """Instructions of a whole process with so many replays of a load."""
    line, environment = command(tree, COUNTED_REQUESTS, [load])
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    turns = f"{load}\n" * replays
    done = subprocess.run(
        [*tool, *line], input=turns, env=environment, cwd=tree, capture_output=True, text=True, check=True
    )
    found = re.search(r"I +refs: +([\d,]+)", done.stderr)
    if found is None:
        raise SystemExit(f"valgrind printed no count of instructions: {done.stderr[-400:]}")
    return int(found[1].replace(",", ""))


def interval(ratios: list[float]) -> tuple[float, float]:
    """Bounds of the median with at least 95 %: the k-th smallest and largest, by the binomial's normal form."""
    ranked = sorted(ratios)
    half = NormalDist().inv_cdf(0.975) * len(ranked) ** 0.5 / 2
    low = max(int(len(ranked) / 2 - half) - 1, 0)
    return ranked[low], ranked[-1 - low]


def by_time(trees: dict[str, Path], revision: str, rounds: int, turns: int, requests: int) -> None:
    found: dict[str, dict[str, list[float]]] = {load: {name: [] for name in trees} for load in LOADS}
    pairs: dict[str, list[float]] = {load: [] for load in LOADS}
    cores = sorted(os.sched_getaffinity(0))
    for number in range(rounds):
        core = cores[number % len(cores)]
        workers = {name: Worker(tree, requests, core) for name, tree in trees.items()}
        for load in LOADS:
            times: dict[str, list[float]] = {name: [] for name in trees}
            for turn in range(turns + 1):
                for name in sorted(trees, reverse=turn % 2 == 0):
                    seconds = workers[name].seconds(load)
                    if turn:  # the first replay of a process touches all memory for the first time
                        times[name].append(seconds)
            pairs[load].append(median(b / a for a, b in zip(times["before"], times["now"], strict=True)))
            for name in trees:
                found[load][name] += times[name]
        for worker in workers.values():
            worker.end()
    for load, times in found.items():
        before, now = min(times["before"]), min(times["now"])
        low, high = interval(pairs[load])
        print(
            f"{load:24} {revision} {requests / before / 1e6:5.2f}, HEAD {requests / now / 1e6:5.2f} M requests/s at "
            f"best; {median(pairs[load]):.3f} times the time ({low:.3f} to {high:.3f} with 95 %; most {MOST})",
            flush=True,
        )


def by_instructions(trees: dict[str, Path], revision: str) -> None:
    if shutil.which("valgrind") is None:
        raise SystemExit("--instructions needs valgrind (Debian: apt-get install valgrind)")

    def a_request(name: str, load: str) -> float:
        more = executed(trees[name], MANY, load) - executed(trees[name], FEW, load)
        return more / (MANY - FEW) / COUNTED_REQUESTS

    with ThreadPoolExecutor(2) as threads:
        for load in LOADS:
            before, now = threads.map(lambda name, load=load: a_request(name, load), ("before", "now"))
            print(
                f"{load:26} {revision} {before:7.1f}, HEAD {now:7.1f} instructions a request: "
                f"{now / before:.3f} times (most {MOST})",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("revision", nargs="?", default=BEFORE)
    parser.add_argument("--rounds", type=int, default=60, help="pairs of processes (default 60)")
    parser.add_argument("--turns", type=int, default=3, help="replays of a load in a process (default 3)")
    parser.add_argument("--requests", type=int, default=300_000)
    parser.add_argument("--instructions", action="store_true", help="count them under valgrind (10 to 15 minutes)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        trees = {name: Path(scratch) / name for name in ("before", "now")}
        for tree, revision in ((trees["before"], asked.revision), (trees["now"], "HEAD")):
            archive = subprocess.run(["git", "archive", revision], cwd=HERE, stdout=subprocess.PIPE, check=True).stdout
            tree.mkdir()
            subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
        for tree in trees.values():  # the first process of a revision compiles
            worker = Worker(tree, 1000, min(os.sched_getaffinity(0)))
            for load in LOADS:
                worker.seconds(load)
            worker.end()
        if asked.instructions:
            by_instructions(trees, asked.revision)
        else:
            by_time(trees, asked.revision, asked.rounds, asked.turns, asked.requests)


if __name__ == "__main__":
    main()
