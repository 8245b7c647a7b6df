"""From config and trace to the engine's integers."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.config.load import parse_config
from fairreplay.config.model import Config
from fairreplay.errors import UsageError
from fairreplay.sandbox.engine import FLOOR_SCALE, PS_PER_SECOND, WEIGHT_SCALE, StepTime, TypeFloors
from fairreplay.sandbox.plan import (
    Shard,
    inverse_weight,
    picoseconds,
    prefix_block_tokens,
    shards,
    stable_hash,
    take_load,
    with_known_policies,
)
from tests.sandbox.frames import canonical

ONE = WEIGHT_SCALE


def config(text: str = "") -> Config:
    return parse_config(text, "test.toml")


def planned(rows: list[dict[str, Any]], text: str = "", policy: str = "fcfs") -> tuple[Shard, ...]:
    return shards(take_load(canonical(rows)), config(text), policy)


# Units.


@pytest.mark.parametrize(
    ("seconds", "speed", "expected"),
    [
        (0.006, 1.0, 6_000_000_000),
        (3e-8, 1.0, 30_000),
        (0.1, 1.0, 100_000_000_000),  # the decimal as written, not the double below it
        (1e-12, 1.0, 1),
        (0.006, 1.5, 4_000_000_000),
        (0.01, 3.0, 3_333_333_333),
        (0.02, 3.0, 6_666_666_667),
        (5e-13, 1.0, 0),  # halves go to the even neighbour
        (1.5e-12, 1.0, 2),
        (0.0, 1.0, 0),
    ],
)
def test_seconds_become_picoseconds_exactly(seconds: float, speed: float, expected: int) -> None:
    assert picoseconds(seconds, speed) == expected


@settings(derandomize=True, max_examples=100)
@given(st.integers(0, 10**9), st.integers(0, 11))
def test_every_decimal_with_a_whole_number_of_picoseconds_is_exact(digits: int, exponent: int) -> None:
    assert picoseconds(float(f"{digits}e-{exponent}")) == digits * 10 ** (12 - exponent)


def test_step_times_are_divided_by_speed() -> None:
    (shard,) = planned(
        [{}],
        """
        [cluster]
        speed = 2.0
        [cluster.step_time]
        base = 0.005
        prefill_token = 3e-5
        decode_sequence = 3e-5
        context_token = 2e-8
        """,
    )
    assert shard.plan.settings[0][1].step_time == StepTime(2_500_000_000, 15_000_000, 15_000_000, 10_000)


def test_step_of_over_a_day_is_a_mistake_of_units() -> None:
    with pytest.raises(UsageError, match=r"step_time.*unit is seconds"):
        planned([{}], "[cluster.step_time]\nprefill_token = 40.0")


def test_watermark_is_floored_from_its_decimal() -> None:
    (shard,) = planned([{}], "[cluster]\nwatermark = 0.29\nnum_gpu_blocks = 100")  # 0.29 * 100 is 28.999... in doubles
    assert shard.plan.settings[0][1].watermark_blocks == 29


def test_async_scheduling_belongs_to_mixed_batching() -> None:
    (mixed,) = planned([{}])
    (older,) = planned([{}], '[cluster]\nbatching = "prefill-first"')
    assert mixed.plan.settings[0][1].async_scheduling
    assert not older.plan.settings[0][1].async_scheduling


# Load.


def test_refused_and_unsized_rows_are_no_load() -> None:
    load = take_load(
        canonical(
            [
                {"arrived_at": 5, "status": "rejected"},
                {"arrived_at": 7, "status": "failed", "prompt_tokens": None, "output_tokens": None},
                {"arrived_at": 9, "status": "cancelled", "output_tokens": None},
                {"arrived_at": 8},
            ]
        )
    )
    assert load.frame["request_id"].to_list() == ["r3", "r2"]
    assert load.left_out == 2
    assert load.start_us == 8_000_000
    (shard,) = shards(load, config(), "fcfs")
    assert shard.workload.arrival_ps.tolist() == [0, PS_PER_SECOND]
    assert shard.workload.output_tokens.tolist() == [2, 0]


def test_nothing_to_replay_is_said() -> None:
    with pytest.raises(UsageError, match="nothing to replay: none of the 1 requests"):
        take_load(canonical([{"status": "rejected"}]))


def test_a_period_past_int64_is_refused_and_one_just_below_is_not() -> None:
    take_load(canonical([{}, {"arrived_at": 96 * 86_400}]))
    with pytest.raises(UsageError, match=r"spans 97 days.*at most 96.*--since"):
        take_load(canonical([{}, {"arrived_at": 97 * 86_400}]))


def test_priority_is_the_rows_else_the_tenants_else_zero() -> None:
    (shard,) = planned([{"tenant": "a"}, {"tenant": "a", "priority": -2}, {"tenant": "b"}], "[tenants.a]\npriority = 3")
    assert shard.workload.priority.tolist() == [3, -2, 0]


def test_tenants_and_types_are_numbered_by_name() -> None:
    (shard,) = planned([{"tenant": "é", "type": "long"}, {"tenant": "a", "type": "chat"}, {"tenant": "Z"}])
    assert shard.workload.tenants == ("Z", "a", "é")
    assert shard.workload.tenant.tolist() == [2, 1, 0]
    assert shard.workload.types == ("chat", "completion", "long")
    assert shard.workload.type.tolist() == [2, 0, 1]


def test_prefix_ids_keep_their_64_bits_and_block_size_is_read_off_the_lengths() -> None:
    rows = [
        {"prompt_tokens": 1000, "prefix_ids": [1, 2**64 - 1]},
        {"prompt_tokens": 10},
        {"prompt_tokens": 1025, "prefix_ids": [1, 5, 6]},
    ]
    (shard,) = planned(rows)
    assert shard.workload.prefix_start.tolist() == [0, 2, 2, 5]
    assert shard.workload.prefix_ids.view(np.uint64).tolist() == [1, 2**64 - 1, 1, 5, 6]
    assert shard.workload.prefix_block_tokens == 512
    full_blocks_only = canonical(
        [{"prompt_tokens": 47, "prefix_ids": [1, 2]}, {"prompt_tokens": 16, "prefix_ids": [1]}]
    )
    assert prefix_block_tokens(full_blocks_only) == 16
    assert prefix_block_tokens(canonical([{}])) == 0


# Groups and placement.


def test_one_shard_per_model_and_replica_in_order() -> None:
    rows = [{"model": name, "arrived_at": at} for at, name in enumerate(["m", None, "a", "m", "m"])]
    parts = planned(rows, "[models.m]\nreplicas = 2\nnum_gpu_blocks = 77")
    assert [(part.model, part.replica, part.rows.tolist()) for part in parts] == [
        (None, "0", [1]),
        ("a", "0", [2]),
        ("m", "0", [0, 4]),
        ("m", "1", [3]),
    ]
    assert [part.plan.settings[0][1].num_gpu_blocks for part in parts] == [20_000, 20_000, 77, 77]


def test_round_robin_goes_by_arrival() -> None:
    rows = [{"arrived_at": at} for at in (3, 1, 2, 0)]
    first, second = planned(rows, "[cluster]\nreplicas = 2")
    assert first.workload.arrival_ps.tolist() == [0, 2 * PS_PER_SECOND]
    assert second.workload.arrival_ps.tolist() == [PS_PER_SECOND, 3 * PS_PER_SECOND]


def test_sessions_stay_together_by_a_hash_that_never_changes() -> None:
    assert stable_hash("conversation-1") == 0x655AE3713E44D8A4
    rows = [{"session_id": f"s{number % 5}"} for number in range(20)] + [{"session_id": None}]
    parts = planned(rows, '[cluster]\nreplicas = 3\nplacement = "session"')
    of_session = {}
    for part in parts:
        for row in part.rows[part.rows < 20].tolist():
            assert of_session.setdefault(row % 5, part.replica) == part.replica
    assert of_session == {number: str(stable_hash(f"s{number}") % 3) for number in range(5)}
    assert sum(len(part.rows) for part in parts) == 21


def test_logged_placement_follows_the_log_and_needs_every_replica() -> None:
    rows = [{"replica": "gpu-b"}, {"replica": "gpu-a"}, {"replica": "gpu-b"}]
    parts = planned(rows, '[cluster]\nplacement = "logged"')
    assert [(part.replica, part.rows.tolist()) for part in parts] == [("gpu-a", [1]), ("gpu-b", [0, 2])]
    with pytest.raises(UsageError, match=r"placement \"logged\" needs.*'r3' has none"):
        planned([*rows, {}], '[cluster]\nplacement = "logged"')


# Policies.


def test_an_unknown_policy_in_changes_is_left_out_and_said() -> None:
    text = '[[cluster.changes]]\nat = 1970-01-01T00:00:05Z\npolicy = "magic"\nspeed = 0.5\n'
    (part,) = planned([{}, {"arrived_at": 9}], text)
    assert [state.policy.name for _, state in part.plan.settings] == ["fcfs", "fcfs"]
    assert part.plan.settings[1][1].step_time.base == 2 * part.plan.settings[0][1].step_time.base
    (warning,) = with_known_policies(parse_config(text, "test"))[1].values()
    assert "'magic' of the [cluster] change at 1970-01-01T00:00:05Z" in warning


def test_an_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'vct' is unknown; did you mean 'vtc'\?"):
        planned([{}], policy="vct")
    with pytest.raises(UsageError, match="'nonsense' is unknown; known: "):
        planned([{}], '[cluster]\npolicy = "nonsense"', policy="nonsense")


def test_type_priority_needs_its_order_and_unlisted_types_come_last() -> None:
    with pytest.raises(UsageError, match=r"needs \[policies.type-priority\] order"):
        planned([{}], policy="type-priority")
    rows = [{"type": name} for name in ("long", "chat", "embed", "odd")]
    (shard,) = planned(rows, '[policies.type-priority]\norder = ["embed", "chat", "long"]', policy="type-priority")
    assert dict(zip(shard.workload.types, shard.plan.settings[0][1].policy.type_rank, strict=True)) == {
        "embed": 0,
        "chat": 1,
        "long": 2,
        "odd": 3,
    }


def test_the_baseline_follows_models_and_changes_and_another_policy_does_not() -> None:
    text = """
        [cluster]
        policy = "fcfs"
        [[cluster.changes]]
        at = 1970-01-01T00:00:10Z
        policy = "vtc"
        [models.m]
        policy = "priority"
        """
    rows = [{"arrived_at": 1}, {"arrived_at": 1, "model": "m"}]
    plain, of_m = planned(rows, text, "fcfs")
    assert [(at, state.policy.name) for at, state in plain.plan.settings] == [
        (0, "fcfs"),
        (9 * PS_PER_SECOND, "vtc"),
    ]
    assert of_m.plan.settings[0][1].policy.name == "priority"
    plain, of_m = planned(rows, text, "sjf")
    assert {state.policy.name for part in (plain, of_m) for _, state in part.plan.settings} == {"sjf"}


# Changes.


def test_changes_from_before_the_start_are_the_first_state_and_later_ones_add_up() -> None:
    text = """
        [cluster]
        num_gpu_blocks = 500
        [[cluster.changes]]
        at = 1970-01-01T00:01:40Z
        num_gpu_blocks = 400
        [[cluster.changes]]
        at = 1970-01-01T00:01:41.5Z
        max_num_seqs = 8
        [[cluster.changes]]
        at = 9999-01-01T00:00:00Z
        max_num_seqs = 1
        """
    (shard,) = planned([{"arrived_at": 101}], text)
    states = [(at, state.num_gpu_blocks, state.max_num_seqs) for at, state in shard.plan.settings]
    assert states == [(0, 400, 256), (PS_PER_SECOND // 2, 400, 8)]


def test_what_a_running_engine_cannot_change_is_refused() -> None:
    with pytest.raises(UsageError, match="block_size cannot change during a replay"):
        planned([{}], "[[cluster.changes]]\nat = 1970-01-01T00:00:01Z\nblock_size = 32")


# Weights.

WEIGHTS = """
    [tenants.heavy]
    committed_tokens_per_month = 300
    [tenants.light]
    committed_tokens_per_month = 100
    weight = 4.0
    [[tenants.light.changes]]
    at = 1970-01-01T00:00:10Z
    weight = 0.5
    """
TENANTS = [{"tenant": name} for name in ("heavy", "light", "none")]


def by_time(shard: Shard) -> list[tuple[int, list[int]]]:
    return [(at, state.tolist()) for at, state in shard.plan.weights]


def test_the_baseline_takes_changes_then_weight_then_committed_share_then_one() -> None:
    (shard,) = planned(TENANTS, WEIGHTS)
    heavy = round(WEIGHT_SCALE / 1.5)  # 300 of a mean commitment of 200
    assert by_time(shard) == [(0, [heavy, ONE // 4, ONE]), (10 * PS_PER_SECOND, [heavy, ONE * 2, ONE])]


def test_the_baseline_takes_the_rows_own_weight_first() -> None:
    rows = [{"tenant": "light", "weight": 2.0}, {"tenant": "light"}]
    (logged,) = planned(rows, WEIGHTS)
    (other,) = planned(rows, WEIGHTS, "vtc")
    assert logged.workload.request_weight.tolist() == [ONE // 2, 0]
    assert other.workload.request_weight.tolist() == [0, 0]


def test_rules_of_the_other_policies() -> None:
    (committed,) = planned(TENANTS, WEIGHTS, "vtc")
    assert {tuple(state) for _, state in by_time(committed)} == {(round(WEIGHT_SCALE / 1.5), ONE * 2, ONE)}
    (static,) = planned(TENANTS, WEIGHTS + '\n[weights]\nrule = "static"', "vtc")
    assert by_time(static) == [(0, [ONE, ONE // 4, ONE]), (10 * PS_PER_SECOND, [ONE, ONE * 2, ONE])]
    (logged,) = planned([{"weight": 0.5}], '[weights]\nrule = "logged"', "vtc")
    assert logged.workload.request_weight.tolist() == [ONE * 2]
    (no_commitment,) = planned([{"tenant": "a"}, {"tenant": "b"}], "[tenants.a]\nweight = 2.0", "vtc")
    assert by_time(no_commitment) == [(0, [ONE // 2, ONE])]


def test_protected_weights_follow_what_was_used_of_the_month() -> None:
    """C = 100, 100, 200; half of January has passed, used are 25, 100, 100: w = 3/8, 1/8, 1/2, times three tenants."""
    used = {"a": 25, "b": 100, "c": 100}
    rows = [{"tenant": name, "prompt_tokens": tokens - 1, "output_tokens": 1} for name, tokens in used.items()]
    half_s = 31 * 43_200
    text = "[weights]\nrule = 'protected'\n" + "".join(
        f"[tenants.{name}]\ncommitted_tokens_per_month = {tokens}\n"
        for name, tokens in (("a", 100), ("b", 100), ("c", 200))
    )
    (shard,) = planned([*rows, {"tenant": "a", "arrived_at": half_s}], text, "vtc")
    states = dict(by_time(shard))
    share = [round(ONE * 4 / 3), round(ONE * 4 / 3), round(ONE * 2 / 3)]
    assert states[0] == share
    assert states[half_s * PS_PER_SECOND] == [round(ONE * 8 / 9), round(ONE * 8 / 3), round(ONE * 2 / 3)]
    (production,) = planned([*rows, {"tenant": "a", "arrived_at": half_s}], text, "fcfs")
    assert dict(by_time(production)) == {0: share}


def test_weights_beyond_a_millionfold_are_refused() -> None:
    assert inverse_weight(Fraction(1, 10**6), "x") == WEIGHT_SCALE * 10**6
    with pytest.raises(UsageError, match="weight of tenant 'a' is 1e-07"):
        planned([{"tenant": "a"}], "[tenants.a]\nweight = 1e-7")


def test_rows_of_a_store_need_not_be_sorted() -> None:
    frame = canonical([{"arrived_at": 2}, {"arrived_at": 1}]).reverse()
    assert take_load(frame).frame["request_id"].to_list() == ["r1", "r0"]


def test_instants_keep_microseconds_of_far_years() -> None:
    at = datetime(2026, 11, 2, 9, 16, 0, 123_457, tzinfo=UTC)
    frame = canonical([{}]).with_columns(arrived_at=pl.lit(at).cast(pl.Datetime("us", "UTC")))
    assert take_load(frame).start_us == 1_793_610_960_123_457


# Deadlines, floors, limits.

SLO = "[defaults]\nslo_ttft_ms = { p50 = 200.0, p90 = 500, p99 = 1000 }\n"


@pytest.mark.parametrize("policy", ["edf", "wfq+edf", "quantile", "qoserve"])
def test_deadlines_need_targets(policy: str) -> None:
    with pytest.raises(UsageError, match=r"'t' has none: set \[defaults\] slo_ttft_ms"):
        planned([{"tenant": "t"}], policy=policy)
    own = SLO + "[tenants.u]\nslo_ttft_ms = { p50 = 1.5, p90 = 2, p99 = 1e12 }\n"
    (shard,) = planned([{"tenant": "t"}, {"tenant": "u"}], own, policy)
    spec = shard.plan.settings[0][1].policy
    day_ps = 86_400 * PS_PER_SECOND
    assert spec.slo_ps == ((2 * 10**11, 5 * 10**11, 10**12), (15 * 10**8, 2 * 10**9, day_ps))
    assert planned([{"tenant": "t"}], SLO, "fcfs")[0].plan.settings[0][1].policy.slo_ps == ()


def test_keys_of_a_policy_become_its_parameters() -> None:
    text = (
        SLO
        + '[policies.quantile]\nquantiles = ["p99", "p50"]\nhistory = 20\ngamma_ms = 2.5\n[policies.drr]\nquantum = 7\n'
    )
    spec = planned([{}], text, "quantile")[0].plan.settings[0][1].policy
    assert (spec.quantiles, spec.history, spec.gamma_ps) == ((0, 2), 20, 2_500_000_000)
    assert planned([{}], text, "drr")[0].plan.settings[0][1].policy.quantum == 7
    text = "[policies.priority]\npreemption_threshold = 3\n[cluster]\nvictim = 'least-computed'\nqueue_limit = 9\n"
    state = planned([{}], text, "priority")[0].plan.settings[0][1]
    assert (state.policy.preemption_threshold, state.victim, state.queue_limit) == (3, "least-computed", 9)
    for wrong in (
        "[policies.drr]\nquanta = 7\n",
        "[cluster]\nvictim = 'first'\n",
        "[policies.quantile]\nquantiles = []\n",
    ):
        with pytest.raises(UsageError):
            config(wrong)


def test_the_limiter_stands_before_all_replicas() -> None:
    """Three requests of a tenant in a minute, two pass; each of the two replicas would have let all of its own pass."""
    rows = [{"tenant": "t", "arrived_at": second} for second in (0, 1, 2)]
    text = "[cluster]\nreplicas = 2\n[policies.rpm-limit]\nrpm = 2\n"
    limits = [shard.workload.over_limit for shard in planned(rows, text, "rpm-limit")]
    assert [limit.tolist() for limit in limits if limit is not None] == [[0, 1], [0]]
    assert all(shard.workload.over_limit is None for shard in planned(rows, text, "fcfs"))
    text += "[retry]\nattempts = 5\nretry_after_ms = 30_000\n"  # at 2, 32 and 62 s: then it is let through
    limits = [shard.workload.over_limit for shard in planned(rows, text, "rpm-limit")]
    assert [limit.tolist() for limit in limits if limit is not None] == [[0, 2], [0]]


def test_floors_are_enforced_as_configured() -> None:
    rows = [{"type": name} for name in ("chat", "code", "long")]
    shares = "[types.chat]\nfloor = 0.25\n[types.long]\nfloor = 0.5\n"
    assert planned(rows, shares)[0].plan.settings[0][1].policy.floors is None
    soft = planned(rows, shares + "[floor]\nenforce = 'soft'\n[window]\nsize = '10s'\n")[0].plan.settings[0][1].policy
    assert soft.floors == TypeFloors((FLOOR_SCALE // 4, 0, FLOOR_SCALE // 2), 10 * PS_PER_SECOND)
    hard = "[floor]\nenforce = 'hard'\nwindow_tokens = 1000\n"
    floors = planned(rows, shares + hard)[0].plan.settings[0][1].policy.floors
    assert floors is not None
    assert floors.caps == (500, 250, 750)  # 1000 less what is kept for the others
    floors = planned(rows, shares + hard + "reserve_tokens = 100\n")[0].plan.settings[0][1].policy.floors
    assert floors is not None
    assert floors.caps == (500, 400, 900)
    for text, why in (
        ("[floor]\nenforce = 'hard'\n", "needs window_tokens"),
        ("[floor]\nenforce = 'soft'\n", "needs floors"),
        (shares + hard + "reserve_tokens = 501\n", "more than is served"),
    ):
        with pytest.raises(UsageError, match=why):
            planned(rows, text)
