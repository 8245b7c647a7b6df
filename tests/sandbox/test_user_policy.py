"""Policies from a file: what they may name, how they fail, and that both engines rank alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fairreplay.errors import UsageError
from fairreplay.sandbox import compiled, reference
from fairreplay.sandbox.engine import PS_PER_SECOND, Plan, PolicySpec, StepTime, Workload, check_plan
from fairreplay.sandbox.policies.user import HEAD_FIELDS, load_rank
from tests.sandbox.scenarios import admission_order, plan, workload


def loaded(path: Path, source: str) -> PolicySpec:
    (path / "rank.py").write_text(source, encoding="utf-8")
    return PolicySpec("user", rank=load_rank(f"{path / 'rank.py'}:rank"))


def three(policy: PolicySpec) -> tuple[Workload, Plan]:
    """Three tenants with a request each (5, 9 and 7 prompt tokens), one served at a time."""
    work = workload([("a", 0, 5, 1), ("b", 0, 9, 1), ("c", 0, 7, 1)])
    return work, plan(work, policy, max_num_seqs=1, step_time=StepTime(PS_PER_SECOND, 0, 0, 0))


@pytest.mark.parametrize("engine", [reference, compiled])
@pytest.mark.parametrize(
    ("source", "order"),
    [
        ("def rank(prompt_tokens):\n    return -prompt_tokens\n", "b1 c1 a1"),
        ("def rank(tenant, prompt_tokens):\n    return (tenant == 2) * -100 + prompt_tokens\n", "c1 a1 b1"),
        ("def rank():\n    return 0\n", "a1 b1 c1"),
        ("K = 3\ndef rank(prompt_tokens):\n    return prompt_tokens % K\n", "b1 c1 a1"),
    ],
)
def test_a_rank_from_a_file_orders_the_heads(tmp_path: Path, source: str, order: str, engine: object) -> None:
    work, the_plan = three(loaded(tmp_path, source))
    assert admission_order(work, engine.run(work, the_plan)) == order  # type: ignore[attr-defined]


def test_service_is_what_vtc_would_count(tmp_path: Path) -> None:
    """Ranking by service alone is vtc without its lift, where no two tenants are ever equal."""
    rows = [("a", 0, 10, 5)] * 4 + [("b", 0, 3, 2)] * 6
    work = workload(rows)
    by_service = loaded(tmp_path, "def rank(service):\n    return service\n")
    own = compiled.run(work, plan(work, by_service, max_num_seqs=1))
    vtc = compiled.run(work, plan(work, PolicySpec("vtc", lift=False), max_num_seqs=1))
    assert own.scheduled_ps.tolist() == vtc.scheduled_ps.tolist()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def order(prompt_tokens):\n    return 1\n", "has no function 'rank'"),
        ("def rank(prompt_token):\n    return 1\n", "did you mean 'prompt_tokens'"),
        ("def rank(:\n", "does not run"),
        ("raise ValueError('no')\n", "does not run"),
    ],
)
def test_a_file_that_gives_no_rank_is_one_clear_line(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        loaded(tmp_path, source)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"path/file\.py:function"):
        load_rank(str(tmp_path / "nothing.py:rank"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def rank(tenant):\n    return 'first' if tenant else 'last'\n", "must return an integer"),
        ("def rank(tenant):\n    return tenant / 2\n", "must return an integer, not float64"),
        ("import json\ndef rank(tenant):\n    return json.loads(str(tenant))\n", "does not compile"),
        ("def rank(tenant):\n    return 1 // (tenant - tenant)\n", "raised an error"),
    ],
)
def test_a_rank_that_cannot_be_run_is_one_clear_line(tmp_path: Path, source: str, message: str) -> None:
    work, the_plan = three(loaded(tmp_path, source))
    with pytest.raises(UsageError, match=message) as caught:
        compiled.run(work, the_plan)
    assert "\n" not in str(caught.value)


def test_the_plain_engine_names_the_request_too(tmp_path: Path) -> None:
    work, the_plan = three(loaded(tmp_path, "def rank(tenant):\n    return 1 // (tenant - tenant)\n"))
    with pytest.raises(UsageError, match="request number 0"):
        reference.run(work, the_plan)


def test_a_rank_goes_with_its_policy_alone(tmp_path: Path) -> None:
    spec = loaded(tmp_path, "def rank():\n    return 0\n")
    work = workload([("a", 0, 1, 1)])
    with pytest.raises(ValueError, match="user"):
        check_plan(plan(work, PolicySpec("fcfs", rank=spec.rank)))
    with pytest.raises(ValueError, match="user"):
        check_plan(plan(work, PolicySpec("user")))


def test_every_field_is_an_integer_that_both_engines_show_alike(tmp_path: Path) -> None:
    names = ", ".join(HEAD_FIELDS)
    mixed = " + ".join(f"{weight} * {name}" for weight, name in enumerate(HEAD_FIELDS, start=3))
    spec = loaded(tmp_path, f"def rank({names}):\n    return ({mixed}) % 101\n")
    rng = np.random.default_rng(5)
    rows = [
        ("abc"[rng.integers(3)], float(rng.integers(20)), int(rng.integers(1, 30)), int(rng.integers(1, 12)))
        for _ in range(80)
    ]
    work = workload(rows, priorities=[int(rng.integers(3)) for _ in rows])
    tight = plan(work, spec, max_num_seqs=6, block_size=4, num_gpu_blocks=14, step_time=StepTime(5 * 10**11, 7, 5, 3))
    plain, fast = reference.run(work, tight), compiled.run(work, tight)
    assert plain.preemptions.sum() > 0
    assert plain.scheduled_ps.tolist() == fast.scheduled_ps.tolist()
    assert plain.finished_ps.tolist() == fast.finished_ps.tolist()
