"""Rules of vLLM before 0.33: the logs of the real 0.33 scheduler tell each of them apart, and both engines agree."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from fairreplay.config.load import parse_config
from fairreplay.config.model import resolve_cluster
from fairreplay.sandbox import compiled, reference
from fairreplay.sandbox.decision_log import read_scenario, read_steps, steps_file, verify
from fairreplay.sandbox.engine import EngineResult, EngineSettings, OlderRules
from fairreplay.sandbox.plan import Named, settings_over_time
from tests.sandbox.random_cases import case

MICRO = sorted((Path(__file__).parents[1] / "data" / "golden" / "vllm" / "micro").glob("*.scenario.json"))


def differences(plain: EngineResult, other: EngineResult) -> list[str]:
    names = [field.name for field in fields(plain)]
    return [name for name in names if not np.array_equal(getattr(plain, name), getattr(other, name))]


@pytest.mark.parametrize(
    ("older", "caught_by"),
    [
        (OlderRules(lone_capped=True), {"m07", "m12c"}),
        (OlderRules(victim_tokens_lost=True), {"m12c"}),
        (OlderRules(self_preemption_ends=True), {"m12b"}),
        (OlderRules(frees_to_back=True), {"m04", "m05"}),
    ],
)
def test_the_logs_that_catch_a_rule_are_those_of_the_list(older: OlderRules, caught_by: set[str]) -> None:
    """golden/vllm/README.md, "Which log catches which mistake": an older rule is a mistake there."""
    found = set()
    for path in MICRO:
        scenario = read_scenario(path)
        states = tuple((at, replace(state, older=older)) for at, state in scenario.plan.settings)
        changed = replace(scenario, plan=replace(scenario.plan, settings=states))
        if verify(changed, read_steps(steps_file(path))).first_difference is not None:
            found.add(path.name.partition("_")[0])
    assert found == caught_by


@pytest.mark.parametrize("prefix", [False, True])
def test_both_engines_agree_on_every_combination(prefix: bool) -> None:
    told_apart = 0
    for seed, bits in enumerate(product((False, True), repeat=4)):
        older = OlderRules(*bits)
        for number in range(12):
            settings = {
                "older": older,
                "enable_prefix_caching": prefix,
                "long_prefill_token_threshold": number % 3 * 4,
                "policies": ("priority", "fcfs", "vtc")[number % 3 : number % 3 + 1],
            }
            work, plan = case(30_000 + 12 * seed + number, **settings)  # type: ignore[arg-type]
            plain = reference.run(work, plan)
            for leap in (True, False):
                assert differences(plain, compiled.run(work, plan, leap=leap)) == [], (seed, number, leap)
            _, new = case(30_000 + 12 * seed + number, **(settings | {"older": OlderRules()}))  # type: ignore[arg-type]
            told_apart += differences(plain, reference.run(work, new)) != []
    assert told_apart > 10


def engine(version: str) -> EngineSettings:
    config = parse_config(f'[cluster]\nengine = "{version}"\n', "fr.toml")
    cluster = resolve_cluster(config, None)
    return settings_over_time(cluster, config, "fcfs", Named((), ()), 0)[0][1]


def test_the_rules_of_a_release_reach_the_engine() -> None:
    assert engine("vllm-0.33").older == OlderRules()
    assert engine("vllm-0.30").older == OlderRules(lone_capped=True, self_preemption_ends=True)
    assert engine("vllm-0.27").older == engine("vllm-0.30").older
    assert engine("vllm-0.19").older == replace(engine("vllm-0.30").older, frees_to_back=True)
    assert engine("vllm-0.11").older == OlderRules(True, True, True, True)
    assert not engine("vllm-0.11").scheduler_reserve_full_isl
    assert not engine("vllm-0.11").async_scheduling
