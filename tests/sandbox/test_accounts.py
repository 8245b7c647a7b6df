"""Tables of a replay with pools, drafts, experts or precisions: sums and quantiles reckoned by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from fairreplay.sandbox import reference
from fairreplay.sandbox.accounts import account, tables
from fairreplay.sandbox.engine import PS_PER_SECOND, Plan, StepTime, Workload
from fairreplay.sandbox.extras import CERTAIN, MICRO, Disaggregated, Moe, Speculation
from tests.sandbox.scenarios import plan, workload
from tests.sandbox.test_moe import with_moe
from tests.sandbox.test_precision import same_prompt, switching
from tests.sandbox.test_speculation import seeded, speculating

SECOND = PS_PER_SECOND


def told(work: Workload, the_plan: Plan) -> dict[str, list[dict[str, object]]]:
    result = reference.run(work, the_plan)
    return tables([account("m", work, the_plan, result, reference.run)])


def test_nothing_is_told_of_what_is_not_there() -> None:
    work = workload([("a", 0, 4, 2)])
    assert told(work, plan(work)) == {}


def test_stages_of_two_pools() -> None:
    # a is prefilled from 0 to 4 s, moves until 8 s; b from 4 to 8 s, moves until 12 s. A decode takes a second.
    work = workload([("a", 0, 4, 2), ("b", 1, 4, 3), ("b", 30, 4, 1)])
    the_plan = plan(work, step_time=StepTime(0, SECOND, SECOND, 0), max_num_batched_tokens=4)
    said = told(work, replace(the_plan, disaggregated=Disaggregated(1, 1, 250_000_000, Fraction(250_000_000))))
    a, b = said["stages"]
    assert (a["tenant"], a["requests"], a["moved"]) == ("a", 1, 1)
    assert a["prefill_ms"] == {"p50": 4000.0, "p90": 4000.0, "p99": 4000.0}
    assert a["transfer_ms"] == {"p50": 4000.0, "p90": 4000.0, "p99": 4000.0}
    assert a["decode_ms"] == {"p50": 5000.0, "p90": 5000.0, "p99": 5000.0}
    # of b two requests have a first token, after 7 s and after 4 s, and one has moved
    assert (b["requests"], b["moved"]) == (2, 1)
    assert b["prefill_ms"] == {"p50": 4000.0, "p90": 7000.0, "p99": 7000.0}
    assert b["wait_ms"] == {"p50": 0.0, "p90": 0.0, "p99": 0.0}
    assert b["decode_ms"] == {"p50": 6000.0, "p90": 6000.0, "p99": 6000.0}
    # a's GB leaves the link's buffer when b's comes
    assert said["between"] == [
        {"model": "m", "prefill_replicas": 1, "decode_replicas": 1, "kv_bytes_most": 1_000_000_000}
    ]


def test_drafts_by_tenant_and_type() -> None:
    # as in test_speculation: a's 2 rejected drafts in each of 2 steps, of 5 + 2 ps, hold b up
    work = seeded(workload([("a", 0, 1, 3), ("b", 0, 1, 7)], types=["chat", "long"]))
    unit = SECOND // 1000
    how = Speculation(2, (0, CERTAIN), 5 * unit, 2 * unit)
    a, b = told(work, speculating(plan(work, step_time=StepTime(SECOND, 0, 0, 0)), how))["drafts"]
    assert (a["tenant"], a["type"], a["drafted"], a["rejected"], a["tokens_a_step"]) == ("a", "chat", 4, 4, 1.0)
    assert (a["wasted_s"], a["imposed_s"], a["held_up_s"]) == (0.008, 0.028, 0.0)
    assert (b["tenant"], b["type"], b["drafted"], b["rejected"], b["tokens_a_step"]) == ("b", "long", 4, 0, 3.0)
    assert (b["wasted_s"], b["imposed_s"], b["held_up_s"]) == (0.0, 0.0, 0.028)
    assert a["decoding_s"] == b["decoding_s"] == 2 * (1 + 4 * 0.007)


def test_spread_beside_none() -> None:
    # without spread a token takes 2 s; with it all of a request's take 2 + z: z of one is not that of all
    work = seeded(workload([("a", 100 * number, 1, 1) for number in range(9)]))
    moe = Moe((2 * MICRO,), (MICRO // 2,), independent=False)
    (row,) = told(work, with_moe(plan(work, step_time=StepTime(0, SECOND, 0, 0)), moe))["spread"]
    assert row["ttft_ms_without"] == {"p50": 2000.0, "p90": 2000.0, "p99": 2000.0}
    spread = row["ttft_ms"]
    assert isinstance(spread, dict)
    assert spread["p50"] < spread["p90"] <= spread["p99"] <= 4000.0
    assert spread["p99"] > 2000.0


def test_precisions_beside_a_run_without_drops() -> None:
    work = replace(same_prompt([0, 10, 20, 30], [1, 0, 1, 1]), precisions=("fp16", "fp8"))
    the_plan = plan(work, block_size=4, enable_prefix_caching=True, step_time=StepTime(SECOND, 0, 0, 0))
    fp16, fp8 = told(work, switching(the_plan, "drop"))["precisions"]
    assert fp16 == {
        "model": "m",
        "precision": "fp16",
        "requests": 1,
        "switches": 1,
        "prompt_tokens": 9,
        "cached_tokens": 0,
        "hit_rate": 0.0,
        "hit_rate_without_drops": 0.0,
    }
    assert (fp8["cached_tokens"], fp8["hit_rate"]) == (8, round(8 / 27, 6))
    assert fp8["hit_rate_without_drops"] == round(16 / 27, 6)


def test_replicas_of_a_model_are_one_table() -> None:
    work = seeded(workload([("a", 0, 1, 3)]))
    the_plan = speculating(plan(work), Speculation(2, (0,), 5, 2))
    result = reference.run(work, the_plan)
    one = account(None, work, the_plan, result, reference.run)
    (row,) = tables([one, one])["drafts"]
    assert (row["requests"], row["drafted"]) == (2, 8)
    assert np.isclose(row["tokens_a_step"], 1.0)
