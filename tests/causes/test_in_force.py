"""Which listed changes held during an episode, and what they took away."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fairreplay.causes.in_force import (
    in_force,
    less_kv,
    less_speed,
    listed_changes,
    policies_in_force,
    starving_policy_changes,
)
from fairreplay.config.load import parse_config
from fairreplay.sandbox.plan import with_known_policies
from tests.causes.scenes import change, config, minute

SIX_CUTS = (
    change(10, num_gpu_blocks=500, speed=0.5),
    change(20, speed=1.0),
    change(30, max_num_seqs=1),  # is 1 already: changes nothing
    change(40, policy="sjf", watermark=0.1),
    change(50, policy="fcfs"),
)


def test_changes_in_time_order_with_what_they_changed() -> None:
    found = listed_changes(config(*reversed(SIX_CUTS)), None)
    assert [(one.at, one.keys, one.ends) for one in found] == [
        (minute(10), ("num_gpu_blocks", "speed"), None),
        (minute(20), ("speed",), None),
        (minute(40), ("policy", "watermark"), None),
        (minute(50), ("policy",), None),
    ]
    assert (found[0].before.num_gpu_blocks, found[0].after.num_gpu_blocks) == (1000, 500)
    assert [one.index for one in found] == [4, 3, 1, 0]  # their places in the file


def test_a_change_ends_when_all_its_keys_are_set_to_something_else() -> None:
    found = listed_changes(config(change(10, speed=0.5), change(20, speed=1.0)), None)
    assert [one.ends for one in found] == [minute(20), None]
    assert [one.at for one in in_force(found, minute(19), minute(25))] == [minute(10), minute(20)]
    assert [one.at for one in in_force(found, minute(20), minute(25))] == [minute(20)]
    assert in_force(found, minute(0), minute(10)) == []


def test_a_models_own_changes_come_beside_the_clusters() -> None:
    own = "[[models.m.changes]]\nat = 2026-01-01T10:05:00Z\nspeed = 0.25\n[models.m]\nreplicas = 2\n"
    settings = config(change(10, speed=0.5), own.split("[models.m]")[0])
    assert [(one.layer, one.at) for one in listed_changes(settings, "m")] == [("m", minute(5)), (None, minute(10))]
    assert [one.layer for one in listed_changes(settings, "other")] == [None]
    assert [one.layer for one in listed_changes(settings, None)] == [None]


def test_what_a_change_took_away() -> None:
    slower = "{ base = 0.3, prefill_token = 0.0, decode_sequence = 0.0, context_token = 0.0 }"
    text = f"[[cluster.changes]]\nat = 2026-01-01T11:00:00Z\nstep_time = {slower}\nmax_num_batched_tokens = 100"
    found = listed_changes(config(*SIX_CUTS, text), None)
    assert [less_kv(one) for one in found] == [("num_gpu_blocks",), (), ("watermark",), (), ()]
    assert [less_speed(one) for one in found] == [
        ("speed",),
        (),
        (),
        (),
        ("step_time", "max_num_batched_tokens"),
    ]


def test_policies_in_the_order_they_held() -> None:
    settings = config(*SIX_CUTS)
    assert policies_in_force(settings, None, minute(0), minute(30)) == ("fcfs",)
    assert policies_in_force(settings, None, minute(39), minute(45)) == ("fcfs", "sjf")
    assert policies_in_force(settings, None, minute(40), minute(50)) == ("sjf",)
    assert policies_in_force(settings, None, minute(45), minute(60)) == ("sjf", "fcfs")


def test_policy_changes_to_take_back() -> None:
    into, out_of = (one for one in listed_changes(config(*SIX_CUTS), None) if "policy" in one.keys)
    assert starving_policy_changes([into, out_of], minute(45)) == [into, out_of]
    assert starving_policy_changes([out_of], minute(45)) == []  # away from a rule that starves
    fair = listed_changes(config(change(10, policy="vtc")), None)
    assert starving_policy_changes(fair, minute(10)) == fair
    assert starving_policy_changes(fair, minute(10) + timedelta(seconds=1)) == []  # it held through healthy windows


def test_an_unknown_policy_is_a_change_of_unknown_effect() -> None:
    settings, warnings = with_known_policies(config(change(10, policy="magic", speed=0.5), change(20, policy="vtc")))
    assert [one.policy for one in settings.cluster.changes] == [None, "vtc"]
    assert list(warnings) == [minute(10)]
    assert "'magic'" in warnings[minute(10)]
    assert policies_in_force(settings, None, minute(0), minute(30)) == ("fcfs", "vtc")
    assert with_known_policies(parse_config("", "t"))[1] == {}


@pytest.mark.parametrize("policy", ["fcfs", "vtc", "sjf", "priority"])
def test_known_policies_stay(policy: str) -> None:
    settings = config(change(10, policy=policy))
    assert with_known_policies(settings) == (settings, {})
