"""From config and trace to pools, drafts, experts and precisions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from fairreplay.config.load import parse_config
from fairreplay.errors import UsageError
from fairreplay.sandbox.extras import CERTAIN, MICRO, Disaggregated, Moe, Speculation
from fairreplay.sandbox.plan import Shard, columns_needed, shards, stable_hash, take_load
from tests.sandbox.frames import canonical

POOLS = "[cluster.disaggregated]\nprefill_replicas = 2\ndecode_replicas = 3\nkv_bytes_per_token = 131_072\n"


def planned(rows: list[dict[str, Any]], text: str, policy: str = "fcfs") -> tuple[Shard, ...]:
    return shards(take_load(canonical(rows)), parse_config(text, "t.toml"), policy)


def test_two_pools_are_one_shard() -> None:
    text = POOLS + "link_bytes_per_s = 5e10\ndecode_num_gpu_blocks = 300\n"
    (shard,) = planned([{}, {"arrived_at": 1}, {"arrived_at": 2}], text)
    assert shard.replica == "pools"
    assert shard.plan.disaggregated == Disaggregated(2, 3, 131_072, Fraction(50_000_000_000))
    assert shard.plan.settings[0][1].decode_gpu_blocks == 300
    assert shard.workload.placed is not None
    assert shard.workload.placed.tolist() == [0, 1, 0]
    (free,) = planned([{}], POOLS)
    assert free.plan.disaggregated == Disaggregated(2, 3, 131_072, None)


def test_sessions_stay_on_their_prefill_replica() -> None:
    rows = [{"session_id": "s"}, {"arrived_at": 1, "session_id": "t"}, {"arrived_at": 2, "session_id": "s"}]
    (shard,) = planned(rows, '[cluster]\nplacement = "session"\n' + POOLS)
    assert shard.workload.placed is not None
    assert shard.workload.placed.tolist() == [stable_hash("s") % 2, stable_hash("t") % 2, stable_hash("s") % 2]


def test_a_model_may_have_pools_of_its_own() -> None:
    text = '[models."m".disaggregated]\nprefill_replicas = 1\ndecode_replicas = 1\nkv_bytes_per_token = 1\n'
    none, pools = planned([{"model": "m"}, {"arrived_at": 1, "model": "n"}], text)[::-1]
    assert (none.model, none.plan.disaggregated) == ("n", None)
    assert (pools.model, pools.replica) == ("m", "pools")


def test_speculation_by_type() -> None:
    text = "[speculative]\ntypes = { code = 0.25 }\ndraft_token = 1e-5\n[cluster]\nspeed = 2.0\n"
    (shard,) = planned([{"type": "chat"}, {"arrived_at": 1, "type": "code", "request_id": "x"}], text)
    state = shard.plan.settings[0][1]
    # the target's part is a prefill token's by default; all is twice as fast
    assert state.speculation == Speculation(4, (round(Fraction(7, 10) * CERTAIN), CERTAIN // 4), 5_000_000, 20_000_000)
    assert shard.workload.draw is not None
    assert shard.workload.draw.tolist()[1] % 2**64 == stable_hash("x")


def test_no_drafts_are_no_speculation() -> None:
    (shard,) = planned([{}], "[speculative]\ndraft_tokens = 0\n")
    assert shard.plan == planned([{}], "")[0].plan
    assert not shard.plan.has_extras()


def test_experts_and_their_ranked_cost() -> None:
    text = '[moe]\nmean = 2\nspread = 0.5\ntypes = { code = { spread = 0.0 } }\n[policies.sjf]\nby = "cost"\n'
    rows = [{"type": "chat", "prompt_tokens": 100}, {"arrived_at": 1, "type": "code", "prompt_tokens": 100}]
    (shard,) = planned(rows, text, "sjf")
    assert shard.plan.settings[0][1].moe == Moe((2 * MICRO,) * 2, (MICRO // 2, 0), independent=True)
    assert shard.plan.settings[0][1].policy.by_cost
    assert shard.workload.cost is not None
    assert shard.workload.cost.tolist() == [205 * MICRO, 200 * MICRO]
    (same,) = planned(rows, text.replace("spread = 0.5", 'spread = 0.5\nexperts = "same"\nrisk = 2.0', 1), "sjf")
    assert same.workload.cost is not None
    assert same.workload.cost.tolist() == [300 * MICRO, 200 * MICRO]


def test_precisions_share_no_prefix() -> None:
    text = '[cluster]\nprecision_switch = "drop"\n'
    rows = [
        {"precision": "fp8", "prefix_ids": [1, 2]},
        {"arrived_at": 1, "precision": "fp16", "prefix_ids": [1, 2]},
        {"arrived_at": 2, "precision": "fp8", "prefix_ids": [1, 3]},
        {"arrived_at": 3, "prefix_ids": [1]},
    ]
    (shard,) = planned(rows, text)
    work = shard.workload
    assert work.precisions == ("", "fp16", "fp8")
    assert work.precision is not None
    assert work.precision.tolist() == [2, 1, 2, 0]
    ids = work.prefix_ids.tolist()
    assert ids[0] == ids[4]
    assert len({ids[0], ids[2], ids[6]}) == 3
    assert "precision" in columns_needed(parse_config(text, "t"))
    assert "precision" not in columns_needed(parse_config("", "t"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cluster]\nreplicas = 2\n" + POOLS, "replicas does not go with disaggregated"),
        ('[cluster]\nplacement = "logged"\n' + POOLS, 'placement = "logged" does not go with disaggregated'),
        (POOLS.replace("decode_replicas = 3\n", ""), "cluster.disaggregated.decode_replicas is missing"),
        (
            POOLS + "link_bytes = 3\n",
            "unknown key 'cluster.disaggregated.link_bytes'; did you mean 'link_bytes_per_s'?",
        ),
        ("[speculative]\nacceptance = 1.5\n", "speculative.acceptance = 1.5"),
        ("[speculative]\ntypes = { chat = -1.0 }\n", "speculative.types.chat = -1.0"),
        ("[moe]\nexperts = 'some'\n", "moe.experts = 'some'"),
        (
            '[cluster]\nprecision_switch = "drop"\nenable_prefix_caching = false\n',
            "precision_switch needs enable_prefix_caching = true",
        ),
    ],
)
def test_what_does_not_go_together_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config(text, "fr.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "policy", "message"),
    [
        ('[policies.sjf]\nby = "cost"\n', "sjf", "needs [moe] mean and spread"),
        ('[moe]\n[policies.drr]\nby = "cost"\n', "drr", "only sjf, wfq, wfq+edf can count costs"),
        (
            '[cluster]\nprecision_switch = "drop"\n[policies.priority]\npreemption_threshold = 1\n',
            "priority",
            "precision_switch does not go with preemption_threshold",
        ),
        (
            POOLS + "[[cluster.changes]]\nat = 1970-01-02T00:00:00Z\nmax_model_len = 10\n",
            "fcfs",
            "max_model_len cannot change",
        ),
    ],
)
def test_what_a_policy_or_the_pools_cannot_do_is_one_line(text: str, policy: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        planned([{}], text, policy)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
