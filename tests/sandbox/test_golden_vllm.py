"""The real vLLM 0.33.0 scheduler's decisions, step by step (origin and licence: tests/data/golden/vllm/README.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairreplay.sandbox.decision_log import read_scenario, read_steps, steps_file, verify

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "vllm"
SCENARIOS = sorted(GOLDEN.rglob("*.scenario.json"))


def test_all_37_scenarios_are_here() -> None:
    assert len(SCENARIOS) == len(json.loads((GOLDEN / "index.json").read_text())) == 37


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.name.removesuffix(".scenario.json"))
def test_reference_engine_decides_as_vllm(path: Path) -> None:
    result = verify(read_scenario(path), read_steps(steps_file(path)))
    assert result.first_difference is None
    assert result.steps == json.loads(path.read_text())["summary"]["steps"]


@pytest.mark.parametrize("field", ["scheduled", "free_blocks", "t_ns", "preempted", "waiting", "finished"])
def test_a_log_broken_in_one_number_is_reported_with_step_and_field(field: str) -> None:
    path = GOLDEN / "micro" / "m10_preempt_fcfs.scenario.json"
    lines = list(read_steps(steps_file(path)))
    at = next(number for number, line in enumerate(lines) if line[field] not in ([], 0) and number >= 3)
    broken = lines[at][field]
    lines[at][field] = [*broken[:-1], 99] if isinstance(broken, list) else broken + 1
    difference = verify(read_scenario(path), iter(lines)).first_difference
    assert difference is not None
    assert (difference.step, difference.field) == (lines[at]["step"], field)


def test_a_log_that_ends_early_or_late_is_a_difference() -> None:
    path = GOLDEN / "micro" / "m10_preempt_fcfs.scenario.json"
    lines = list(read_steps(steps_file(path)))
    early = verify(read_scenario(path), iter(lines[:-1])).first_difference
    assert early is not None
    assert early.sandbox == lines[-1]["step"]
    late = verify(read_scenario(path), iter([*lines, lines[-1] | {"step": 99}])).first_difference
    assert late is not None
    assert late.logged == 99
