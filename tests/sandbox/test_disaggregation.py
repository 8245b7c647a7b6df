"""Two pools and the link between them, on cases reckoned by hand and by laws over random ones."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from fairreplay.sandbox import reference
from fairreplay.sandbox.engine import NEVER, NEVER_FITS, OK, PS_PER_SECOND, REFUSED, Controls, Plan, StepTime
from fairreplay.sandbox.extras import Disaggregated, transfer_ps
from tests.sandbox.random_cases import case
from tests.sandbox.scenarios import plan, workload

LLAMA = Disaggregated(1, 1, 131_072, Fraction(50_000_000_000))
SECOND = PS_PER_SECOND


def pools(the_plan: Plan, link: Fraction | None = None, decode_gpu_blocks: int = 0, **changes: int) -> Plan:
    counts: dict[str, int] = {"prefill_replicas": 1, "decode_replicas": 1, "kv_bytes_per_token": 1, **changes}
    states = tuple((at, replace(state, decode_gpu_blocks=decode_gpu_blocks)) for at, state in the_plan.settings)
    return replace(the_plan, settings=states, disaggregated=Disaggregated(link_bytes_per_s=link, **counts))


def seconds(ps: np.ndarray) -> list[float]:
    return [value / SECOND if value != NEVER else -1 for value in ps.tolist()]


def test_4096_tokens_of_131072_bytes_take_10_737_ms_at_50_gb_a_second() -> None:
    # 536,870,912 B over 5e10 B/s = 0.01073741824 s: a whole number of picoseconds
    assert transfer_ps(4096, LLAMA) == 10_737_418_240
    # a third of a picosecond is rounded up, and a link without a speed takes none
    assert transfer_ps(1, Disaggregated(1, 1, 1, Fraction(3 * 10**12))) == 1
    assert transfer_ps(4, Disaggregated(1, 1, 1, Fraction(3 * 10**12))) == 2
    assert transfer_ps(4096, Disaggregated(1, 1, 131_072, None)) == 0


def test_the_kv_moves_after_the_first_token_and_decode_waits_for_it() -> None:
    # prefill 1 s a token: first token at 4 s; 4 tokens at 2 a second: 2 s; two decodes of 1 s each
    work = workload([("a", 0, 4, 3)])
    result = reference.run(work, pools(plan(work, step_time=StepTime(0, SECOND, SECOND, 0)), Fraction(2)))
    assert seconds(result.first_token_ps) == [4.0]
    assert seconds(result.details["sent_ps"]) == [4.0]
    assert seconds(result.details["handed_over_ps"]) == [6.0]
    assert seconds(result.details["joined_ps"]) == [6.0]
    assert seconds(result.finished_ps) == [8.0]
    assert result.computed_tokens.tolist() == [6]
    assert result.recomputed_tokens.tolist() == [0]


def test_a_link_carries_one_kv_after_the_other() -> None:
    # both are prefilled in one step of 8 s; a's 4 tokens take 4 s, b waits for the link
    work = workload([("a", 0, 4, 2), ("b", 0, 4, 2)])
    result = reference.run(work, pools(plan(work, step_time=StepTime(0, SECOND, SECOND, 0)), Fraction(1)))
    assert seconds(result.details["sent_ps"]) == [8.0, 12.0]
    assert seconds(result.details["handed_over_ps"]) == [12.0, 16.0]
    # with a prefill replica each, each has a link of its own
    two = pools(plan(work, step_time=StepTime(0, SECOND, SECOND, 0)), Fraction(1), prefill_replicas=2)
    result = reference.run(work, two)
    assert seconds(result.details["handed_over_ps"]) == [8.0, 8.0]


def test_decode_waits_for_kv_space_there() -> None:
    # 5 usable blocks of 1 token: a takes 4 + 1; b's 5 fit when a is done, at 4 + 1 s; its first decode ends at 6 s
    work = workload([("a", 0, 4, 2), ("b", 0, 4, 2)])
    tight = plan(work, step_time=StepTime(0, SECOND // 2, SECOND, 0), block_size=1, num_gpu_blocks=100)
    result = reference.run(work, pools(tight, None, decode_gpu_blocks=6))
    assert seconds(result.first_token_ps) == [4.0, 4.0]
    assert seconds(result.details["joined_ps"]) == [4.0, 5.0]
    assert seconds(result.finished_ps) == [5.0, 6.0]


def test_one_token_and_none_never_reach_the_decode_pool() -> None:
    work = workload([("a", 0, 4, 1), ("a", 0, 4, 0)])
    result = reference.run(work, pools(plan(work), Fraction(1)))
    assert result.status.tolist() == [OK, OK]
    assert result.details["handed_over_ps"].tolist() == [NEVER, NEVER]
    assert (result.finished_ps == result.first_token_ps).all()


def test_what_can_never_fit_the_decode_pool_is_refused_at_its_arrival() -> None:
    work = workload([("a", 3, 4, 9), ("a", 3, 4, 1)])
    the_plan = pools(plan(work, block_size=1, num_gpu_blocks=100), None, decode_gpu_blocks=12)
    result = reference.run(work, the_plan)
    assert result.status.tolist() == [REFUSED, OK]
    assert result.reason.tolist() == [NEVER_FITS, 0]
    assert seconds(result.finished_ps)[0] == 3.0
    assert result.first_token_ps[0] == NEVER


def test_a_victim_in_the_decode_pool_computes_its_prompt_again_there() -> None:
    # 5 blocks of 1 token: a and b hold 2 + 1 each? no: 3 + 3 > 5, so b joins when a is done; with 6 both join, and
    # a's second decode needs a seventh block: b goes, and comes back with 2 + 2 tokens to compute
    work = workload([("a", 0, 2, 3), ("b", 0, 2, 3)])
    the_plan = plan(work, step_time=StepTime(SECOND, 0, 0, 0), block_size=1, num_gpu_blocks=100)
    result = reference.run(work, pools(the_plan, None, decode_gpu_blocks=7))
    assert result.preemptions.tolist() == [0, 1]
    assert result.recomputed_tokens.tolist() == [0, 3]
    assert result.status.tolist() == [OK, OK]


@pytest.mark.parametrize("seed", range(60))
def test_a_free_link_and_room_to_decode_give_the_ttfts_of_a_prefill_only_run(seed: int) -> None:
    work, the_plan = case(seed, most_requests=20, max_model_len=1000)
    result = reference.run(work, pools(the_plan, None, decode_gpu_blocks=10**6, decode_replicas=3))
    alone = replace(work, output_tokens=np.minimum(work.output_tokens, 1))
    assert (result.first_token_ps == reference.run(alone, the_plan).first_token_ps).all()


@pytest.mark.parametrize("seed", range(60, 160))
def test_stages_follow_each_other(seed: int) -> None:
    work, the_plan = case(seed, most_requests=20, max_model_len=1000)
    link = Fraction([10**9, 10**12, 3 * 10**12][seed % 3])
    result = reference.run(work, pools(the_plan, link, prefill_replicas=1 + seed % 2, decode_replicas=1 + seed % 3))
    moved = result.details["handed_over_ps"] != NEVER
    assert (result.details["sent_ps"][moved] >= result.first_token_ps[moved]).all()
    assert (result.details["handed_over_ps"][moved] > result.details["sent_ps"][moved]).all()
    served = moved & (result.status == OK)
    assert (result.details["joined_ps"][served] >= result.details["handed_over_ps"][served]).all()
    assert (result.finished_ps[served] >= result.details["joined_ps"][served]).all()
    needed = work.prompt_tokens + np.maximum(0, work.output_tokens - 1)
    assert (result.computed_tokens[served] + result.cached_tokens[served] >= needed[served]).all()
    calm = served & (result.preemptions == 0)
    assert (result.recomputed_tokens[calm] == 0).all()


@pytest.mark.parametrize("seed", range(160, 220))
def test_controls_are_those_of_the_prefill_pool(seed: int) -> None:
    """Who is refused and comes back is settled before the KV moves."""
    work, the_plan = case(seed, most_requests=20, max_model_len=1000, queue_limit=2)
    controls = Controls(retries=2, retry_after_ps=500)
    alone = replace(work, output_tokens=np.minimum(work.output_tokens, 1))
    expected = reference.run(alone, replace(the_plan, controls=controls))
    roomy = pools(replace(the_plan, controls=controls), Fraction(10**12), decode_gpu_blocks=10**6)
    result = reference.run(work, roomy)
    assert (result.attempts == expected.attempts).all()
    assert sorted(map(tuple, result.refusals.tolist())) == sorted(map(tuple, expected.refusals.tolist()))
    assert (result.first_token_ps == expected.first_token_ps).all()
    two = pools(replace(the_plan, controls=controls), None, decode_gpu_blocks=10**6, prefill_replicas=2)
    result = reference.run(work, two)
    refused = np.bincount(result.refusals[:, 0], minlength=len(work))
    assert (refused == result.attempts - (result.status == OK)).all()
    assert (np.diff(result.refusals[:, 2]) >= 0).all()
