"""Machine code of the engine: what it is made of, where it is kept, and what a replay loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairreplay.errors import FairReplayError
from fairreplay.sandbox.compiled import engine, parts


def names(part: str) -> set[str]:
    return {Path(os.path.relpath(path, parts.FOLDER.parent)).as_posix() for path in parts.sources(part)}


def test_a_part_is_named_after_all_that_it_is_compiled_from() -> None:
    """Else a change of one file would go on with the code of before."""
    everywhere = {
        "engine.py",
        "compiled/layout.py",
        "compiled/jit.py",
        "compiled/build.py",
        "compiled/service.py",
        "../machine_code.py",
    }
    assert names("kernel") >= everywhere | {"compiled/kernel.py", "compiled/leaping.py", "compiled/calendar.py"}
    assert names("stepper") >= everywhere | {"compiled/stepper.py", "compiled/stepping.py", "compiled/prefix.py"}
    assert names("decider") >= everywhere | {"compiled/decider.py", "compiled/ranking.py", "policies/deadlines.py"}
    assert "compiled/engine.py" not in names("kernel") | names("stepper") | names("decider")
    assert "compiled/leaping.py" not in names("stepper")


def test_every_policy_finds_the_parts_that_it_needs() -> None:
    assert engine.needed_parts(["fcfs", "priority"]) == ["kernel", "stepper"]
    assert engine.needed_parts(["fcfs", "wfq"]) == ["kernel", "stepper", "decider"]


def run_code(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


CASES = """
import sys
from fairreplay.sandbox import compiled
from tests.sandbox.random_cases import case
for seed in range(9000, 9020):
    work, plan = case(seed)
    if any(state.policy.rank for _, state in plan.settings):
        continue  # Numba compiles users' functions
    result = compiled.run(work, plan)
    print(result.steps, result.end_ps, result.finished_ps.tolist(), result.preemptions.tolist())
"""


def test_a_replay_loads_machine_code_without_numba() -> None:
    compiled = run_code(CASES + "assert not [name for name in sys.modules if name.startswith('numba')]")
    assert compiled.count("\n") >= 10
    # the same code as plain Python, for a debugger
    assert run_code(CASES, NUMBA_DISABLE_JIT="1") == compiled


def test_what_cannot_be_compiled_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(parts.PARTS, "odd", parts.Part("calendar", "enter"))
    with pytest.raises(FairReplayError, match=r"the engine's part odd could not be compiled: KeyError: 'odd'"):
        parts.compile_parts(["odd"])
