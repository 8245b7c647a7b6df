"""From ``[estimation]`` and the trace to what schedulers take costs for, and the replays that are compared."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest

from fairreplay.config.load import parse_config, with_estimation_error
from fairreplay.config.model import Config
from fairreplay.errors import UsageError
from fairreplay.sandbox.engine import Workload
from fairreplay.sandbox.estimation import Estimation
from fairreplay.sandbox.plan import Shard, ids_needed, shards, take_load
from fairreplay.sandbox.policies import ESTIMATE, POLICIES
from fairreplay.sandbox.replay import find_replays, replay, with_estimates
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import Store, open_store
from tests.sandbox.frames import canonical

SLO = "[defaults]\nslo_ttft_ms = { p50 = 100, p90 = 200, p99 = 400 }\n"
ORDER = '[policies.type-priority]\norder = ["chat"]\n'


def settings(text: str = "") -> Config:
    return parse_config(SLO + ORDER + text, "t.toml")


def planned(rows: list[dict[str, Any]], text: str, policy: str) -> tuple[Shard, ...]:
    return shards(take_load(canonical(rows)), settings(text), policy)


def unit(text: str) -> int:
    """From [-1, 1], in millionths, by BLAKE2b."""
    bits = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    return bits % 2_000_001 - 1_000_000


ROWS = [
    {"request_id": "q", "model": "m", "type": "chat", "prompt_tokens": 511},
    {"request_id": "r", "model": "m", "type": "chat", "prompt_tokens": 512, "arrived_at": 1},
    {"request_id": "s", "model": "m", "type": "code", "prompt_tokens": 40_000, "arrived_at": 2},
    {"request_id": "t", "model": "m", "type": "chat", "prompt_tokens": 30, "arrived_at": 3},
]


def factors(work: Workload) -> list[int]:
    assert work.estimate is not None
    return [int(factor) for factor in work.estimate]


@pytest.mark.parametrize("policy", ESTIMATE)
def test_factors_follow_from_names_alone(policy: str) -> None:
    (shard,) = planned(ROWS, "[estimation]\nerror = 0.2\n", policy)
    classes = ["m\0chat\0" + "0", "m\0chat\0" + "1", "m\0code\0" + "3", "m\0chat\0" + "0"]
    expected = [
        1_000_000 + 200_000 * (unit(name) + unit(row["request_id"])) // 2_000_000
        for name, row in zip(classes, ROWS, strict=True)
    ]
    assert factors(shard.workload) == expected
    assert shard.workload.cost_class is not None
    same = shard.workload.cost_class.tolist()
    assert (same[0] == same[3], len(set(same))) == (True, 3)
    assert shard.plan.settings[0][1].policy.estimation == Estimation(0)
    # the same in another period, on another replica
    (later,) = planned(ROWS[2:], "[estimation]\nerror = 0.2\n", policy)
    assert factors(later.workload) == expected[2:]
    both = planned(ROWS, "[estimation]\nerror = 0.2\n[cluster]\nreplicas = 2\n", policy)
    assert [factors(one.workload) for one in both] == [expected[::2], expected[1::2]]


def test_other_policies_are_planned_as_without_an_error() -> None:
    for policy in POLICIES:
        (off,) = planned(ROWS, "[estimation]\nerror = 0.2\ncorrection = true\n", policy)
        (right,) = planned(ROWS, "", policy)
        is_off = off.plan.settings != right.plan.settings
        assert is_off == (policy in ESTIMATE)
        assert (off.workload.estimate is not None) == is_off


def test_no_error_is_no_estimation() -> None:
    (shard,) = planned(ROWS, "[estimation]\nerror = 0.0\ncorrection = true\nalpha = 0.5\n", "sjf")
    assert shard.plan.settings == planned(ROWS, "", "sjf")[0].plan.settings
    assert shard.workload.estimate is None


@pytest.mark.parametrize(
    ("text", "alpha"),
    [
        ("error = 0.1\n", 0),
        ("error = 0.1\ncorrection = true\n", 50_000),
        ("error = 0.1\ncorrection = true\n[cost]\ncorrection = 0.2\n", 200_000),
        ("error = 0.1\ncorrection = true\nalpha = 0.3\n[cost]\ncorrection = 0.2\n", 300_000),
    ],
)
def test_the_weight_of_the_newest_ratio(text: str, alpha: int) -> None:
    (shard,) = planned(ROWS, "[estimation]\n" + text, "wfq")
    assert shard.plan.settings[0][1].policy.estimation == Estimation(alpha)


def test_ids_are_read_where_they_are_needed() -> None:
    assert ids_needed(settings("[estimation]\nerror = 0.1\n"))
    assert not ids_needed(settings("[estimation]\ncorrection = true\n"))


@pytest.mark.parametrize("error", ["1.0", "-0.1", "true"])
def test_an_error_out_of_range_is_refused(error: str) -> None:
    with pytest.raises(UsageError, match=r"t\.toml, line \d+: estimation\.error = "):
        settings(f"[estimation]\nerror = {error}\n")


def test_the_option_takes_the_place_of_the_key() -> None:
    given = settings("[estimation]\nerror = 0.1\ncorrection = true\n")
    assert with_estimation_error(given, None) == given
    changed = with_estimation_error(given, 0.3).estimation
    assert (changed.error, changed.correction) == (0.3, True)
    with pytest.raises(UsageError, match=r"--estimation-error 20: write a part from 0 to 0\.99"):
        with_estimation_error(given, 20)


def test_a_threshold_of_sjf_is_refused_with_an_error() -> None:
    text = "[estimation]\nerror = 0.1\n[policies.sjf]\npreemption_threshold = 5\n"
    with pytest.raises(UsageError, match="preemption_threshold does not go with estimates of costs"):
        planned(ROWS, text, "sjf")


# ---- replays ----


@pytest.fixture
def store(tmp_path: Path) -> Store:
    rows = [
        {
            "request_id": f"r{number}",
            "tenant": "ab"[number % 2],
            "type": ("chat", "code")[number // 2 % 2],
            "arrived_at": f"2026-01-01T00:00:{number // 4:02}.{number % 4}Z",
            "prompt_tokens": 100 + 37 * number % 900,
            "output_tokens": 1 + number % 7,
        }
        for number in range(200)
    ]
    (tmp_path / "log.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    ingest([str(tmp_path / "log.jsonl")], tmp_path / "store", IngestOptions())
    return open_store(tmp_path / "store")


ENGINE = "[cluster]\nmax_num_seqs = 4\nasync_scheduling = false\n[cluster.step_time]\nprefill_token = 0.001\n"
OFF = "[estimation]\nerror = 0.3\ncorrection = true\nalpha = 0.1\n"


def test_a_policy_that_estimates_is_replayed_three_times(store: Store) -> None:
    given = settings(ENGINE + OFF)
    made = replay(store, given, ["sjf", "vtc"])
    assert [(one.policy, one.estimates) for one in made] == [
        ("sjf", "exact"),
        ("sjf", "uncorrected"),
        ("sjf", "corrected"),
        ("vtc", None),
    ]
    assert store.replay_names() == sorted(one.name for one in made)
    assert [store.replay_meta(one.name).get("estimation") for one in made] == [
        None,
        {"error": 0.3, "correction": None},
        {"error": 0.3, "correction": 0.1},
        None,
    ]
    # the config's own is the corrected one; the others are those of configs that say so
    assert find_replays(store, given) == {"sjf": made[2].name, "vtc": made[3].name}
    assert [find_replays(store, one)["sjf"] for one in with_estimates(given).values()] == [one.name for one in made[:3]]
    requests = [store.replay_requests(one.name).drop("replica") for one in made[:3]]
    assert not requests[0].equals(requests[1])
    assert not requests[1].equals(requests[2])
    # exact estimates are what is replayed without [estimation], to the name and the byte
    plain = settings(ENGINE)
    folder = store.path / "replays" / made[0].name
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (alone,) = replay(store, plain, ["sjf"])
    assert (alone.name, alone.estimates) == (made[0].name, None)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_baseline_estimates_where_any_policy_of_it_does(store: Store) -> None:
    at = "2026-01-01T00:00:20Z"
    text = f'{ENGINE}{OFF}[[cluster.changes]]\nat = {at}\npolicy = "wfq"\n'
    assert [one.estimates for one in replay(store, settings(text), ["fcfs"])] == ["exact", "uncorrected", "corrected"]
    assert [one.estimates for one in replay(store, settings(text), ["priority"])] == [None]


def test_replays_do_not_depend_on_threads(store: Store, tmp_path: Path) -> None:
    given = settings(ENGINE.replace("[cluster]", "[cluster]\nreplicas = 3") + OFF)
    one = [store.replay_requests(made.name) for made in replay(store, given, ["wfq", "qoserve"], jobs=1)]
    two = [store.replay_requests(made.name) for made in replay(store, given, ["wfq", "qoserve"], jobs=2)]
    assert all(left.equals(right) for left, right in zip(one, two, strict=True))
    assert isinstance(one[0], pl.DataFrame)
    assert len(one) == 6


def test_a_smaller_error_is_another_replay(store: Store) -> None:
    names = {
        find_replays(store, given).get("sjf")
        for error in ("0.1", "0.3")
        for given in [settings(ENGINE + OFF.replace("0.3", error))]
        if replay(store, given, ["sjf"])
    }
    assert len(names) == 2
    assert None not in names
