"""What interventions do to a load and a plan, by hand."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest

from fairreplay.causes.counterfactual import Intervention, Scene, Simulated, inputs, judge, outcome, simulate, stage
from fairreplay.config.load import parse_config
from fairreplay.config.model import Config
from fairreplay.metrics.measure import slos_of
from fairreplay.metrics.options import measure_options
from fairreplay.sandbox.plan import stable_hash
from fairreplay.trace.schema import check_frame
from tests.causes.scenes import ONE_BY_ONE, SLO, asked, change, config, minute

WHOLE = {"kind": "scale", "speed": [1, 1], "kv": [1, 1], "since": None, "until": None}


def scene(rows: pl.DataFrame, settings: Config, start: float = 5, end: float = 10, **more: Any) -> Scene:
    options = measure_options(settings)
    targets = slos_of(rows, settings, options)
    return stage(rows, settings, None, minute(start), minute(end), options, targets, **more)


def calm() -> pl.DataFrame:
    return asked(*({"first": 0, "last": 12, "rate": 60, "tenant": name} for name in "ab"))


def waits_s(here: Scene, done: Simulated) -> np.ndarray[Any, np.dtype[np.float64]]:
    return (done.first_token_us - here.load.frame["arrived_at"].to_physical().to_numpy()) / 1e6


def test_the_scene_has_five_minutes_before_and_one_after() -> None:
    here = scene(calm(), config())
    arrived = here.load.frame["arrived_at"]
    assert (arrived.min() >= minute(0), arrived.max() < minute(11)) == (True, True)  # type: ignore[operator]
    assert len(arrived) == 2 * 60 * 11
    assert inputs(here, ())["interval"] == [minute(0).isoformat(), minute(11).isoformat()]


def test_nothing_changed_is_the_baseline() -> None:
    here = scene(calm(), config())
    done = simulate(here, ())
    assert done.stays.all()
    assert not done.refused.any()
    assert waits_s(here, done).max() <= 0.5
    assert judge(here, done).deficits == {"scr": 0.0, "jfi": 0.0, "tfr": 0.0}
    check_frame(outcome(here, done))


def test_thinning_keeps_the_requests_of_the_lowest_hashes() -> None:
    here = scene(calm(), config())
    windows = [{"since": minute(6).isoformat(), "until": minute(8).isoformat(), "keep": [1, 4]}]
    one = {"kind": "thin", "tenants": ["b"], "except": [], "types": None, "windows": windows}
    done = simulate(here, [one])
    frame = here.load.frame.with_columns(pl.Series("stays", done.stays))
    during = (pl.col("arrived_at") >= minute(6)) & (pl.col("arrived_at") < minute(8)) & (pl.col("tenant") == "b")
    thinned = frame.filter(during)
    assert frame.filter(~during)["stays"].all()
    assert thinned["stays"].to_list() == [stable_hash(name) < 2**62 for name in thinned["request_id"].to_list()]
    assert len(thinned) == 120
    assert 15 <= thinned["stays"].sum() <= 45
    assert len(outcome(here, done)) == len(frame) - 120 + thinned["stays"].sum()
    others = simulate(here, [one | {"tenants": None, "except": ["a"]}])
    assert (others.stays == done.stays).all()
    salted = scene(calm(), config(), seed=7)
    assert (simulate(salted, [one]).stays != done.stays).any()


def test_thinning_of_a_type() -> None:
    rows = asked({"first": 0, "last": 12, "rate": 60, "type": "long"}, {"first": 0, "last": 12, "rate": 60})
    here = scene(rows, config())
    windows = [{"since": minute(0).isoformat(), "until": minute(12).isoformat(), "keep": [0, 1]}]
    one = {"kind": "thin", "tenants": ["default"], "except": [], "types": ["long"], "windows": windows}
    assert here.load.frame.filter(pl.Series(simulate(here, [one]).stays))["type"].unique().to_list() == ["completion"]


def test_a_gateway_lets_the_first_of_each_minute_through() -> None:
    here = scene(calm(), config())
    done = simulate(here, [{"kind": "limit", "per_minute": {"b": 20}}])
    rows = outcome(here, done).sort("arrived_at")
    refused = rows.filter(pl.col("status") == "rejected")
    assert len(refused) == 11 * 40
    assert refused["tenant"].unique().to_list() == ["b"]
    assert (refused["finished_at"] == refused["arrived_at"]).all()
    assert refused["output_tokens"].sum() == 0
    assert refused.filter(pl.col("arrived_at") < minute(1))["arrived_at"].min() > minute(1 / 3)  # type: ignore[operator]
    assert not (done.stays & done.refused).any()
    # refusals are misses of b's targets: SCR is one half in each of five windows
    assert judge(here, done).deficits["scr"] == pytest.approx(5 * (0.95 - 0.5) / 0.95)


def test_listed_changes_are_undone_key_by_key() -> None:
    settings = config(change(5, speed=0.1, max_num_seqs=2), change(10, speed=1.0))
    here = scene(calm(), settings)
    assert judge(here, simulate(here, ())).deficits["scr"] > 4
    entry = {"layer": None, "index": 0, "at": minute(5).isoformat(), "keys": ["speed"]}
    undone = simulate(here, [{"kind": "undo", "changes": [entry]}])
    assert judge(here, undone).deficits["scr"] == 0.0
    plain = scene(calm(), config(change(5, max_num_seqs=2)))
    assert (undone.finished_us == simulate(plain, ()).finished_us).all()


def test_a_change_of_a_models_own_table() -> None:
    own = f"[models.m]\nreplicas = 1\n[[models.m.changes]]\nat = {minute(5):%Y-%m-%dT%H:%M:%SZ}\nspeed = 0.1\n"
    settings = config(own)
    rows = calm().with_columns(pl.lit("m").alias("model"))
    options = measure_options(settings)
    here = stage(rows, settings, "m", minute(5), minute(10), options, slos_of(rows, settings, options))
    assert judge(here, simulate(here, ())).deficits["scr"] > 4
    entry = {"layer": "m", "index": 0, "at": minute(5).isoformat(), "keys": ["speed"]}
    assert judge(here, simulate(here, [{"kind": "undo", "changes": [entry]}])).deficits["scr"] == 0.0


def test_a_factor_on_speed_in_a_span() -> None:
    here = scene(calm(), config())
    half = {**WHOLE, "speed": [1, 2], "since": minute(6).isoformat(), "until": minute(7).isoformat()}
    listed = scene(calm(), config(change(6, speed=0.5), change(7, speed=1.0)))
    ours, theirs = simulate(here, [half]), simulate(listed, ())
    assert (ours.finished_us == theirs.finished_us).all()
    assert (ours.finished_us != simulate(here, ()).finished_us).any()


def test_a_factor_on_kv() -> None:
    """Of 999 usable blocks of 16 tokens one is left: a prompt of 17 tokens never fits, one of 16 does."""
    rows = asked({"first": 0, "last": 12, "rate": 9, "prompt_tokens": 17}, {"first": 0, "last": 12, "rate": 9})
    here = scene(rows, config())
    done = outcome(here, simulate(here, [{**WHOLE, "kv": [1, 999]}]))
    assert sorted(done.select("prompt_tokens", "status").unique().rows()) == [(16, "ok"), (17, "rejected")]


def test_another_policy_and_more_replicas() -> None:
    rows = asked(
        {"first": 0, "last": 12, "rate": 200, "tenant": "a"}, {"first": 0, "last": 12, "rate": 100, "tenant": "b"}
    )
    here = scene(rows, config())
    late = judge(here, simulate(here, ()))
    assert late.metrics["scr"] == 0.0  # 300 a minute to a cluster that serves 240
    fair = judge(here, simulate(here, [{"kind": "policy", "policy": "vtc"}]))
    assert fair.metrics["scr"] == 0.5  # b, which asks for less than half, is in time
    more = judge(here, simulate(here, [{"kind": "engine", "keys": {"replicas": 2}}]))
    assert more.metrics["scr"] == 1.0


def test_an_engine_key_holds_whatever_changes_say() -> None:
    settings = config(change(5, max_num_seqs=1), change(8, max_num_seqs=3))
    here = scene(calm(), settings)
    done = simulate(here, [{"kind": "engine", "keys": {"max_num_seqs": 2}}])
    base = ONE_BY_ONE.replace("max_num_seqs = 1", "max_num_seqs = 2")
    same = scene(calm(), parse_config(base + SLO, "test"))
    assert (done.finished_us == simulate(same, ()).finished_us).all()


def test_committed_weights_replace_those_of_rows_and_tenants() -> None:
    vtc = parse_config(ONE_BY_ONE.replace("[cluster]", '[cluster]\npolicy = "vtc"') + SLO, "test")
    streams = [{"first": 0, "last": 12, "rate": 200, "tenant": name} for name in "ab"]
    skewed = asked(streams[0] | {"weight": 1.0}, streams[1] | {"weight": 0.125})
    here = scene(skewed, vtc)
    done = simulate(here, [{"kind": "weights", "weights": {"a": 1.0, "b": 1.0}}])
    equal = scene(asked(*streams), vtc)
    assert (done.first_token_us == simulate(equal, ()).first_token_us).all()
    assert judge(here, simulate(here, ())).deficits["jfi"] > 2
    assert judge(here, done).deficits["jfi"] == 0.0


def test_undone_weights_of_tenants() -> None:
    vtc = ONE_BY_ONE.replace("[cluster]", '[cluster]\npolicy = "vtc"')
    change_of_b = (
        f"[tenants.b]\nweight = 1.0\n[[tenants.b.changes]]\nat = {minute(5):%Y-%m-%dT%H:%M:%SZ}\nweight = 0.125\n"
    )
    rows = asked(*({"first": 0, "last": 12, "rate": 200, "tenant": name} for name in "ab"))
    here = scene(rows, parse_config(vtc + change_of_b + SLO, "test"))
    never = scene(rows, parse_config(vtc + SLO, "test"))
    undone = simulate(here, [{"kind": "undo_weights", "at": minute(5).isoformat()}])
    assert (undone.first_token_us == simulate(never, ()).first_token_us).all()
    assert (simulate(here, ()).first_token_us != simulate(never, ()).first_token_us).any()


def test_interventions_combine_in_any_order() -> None:
    settings = config(change(5, speed=0.5))
    here = scene(calm(), settings)
    windows = [{"since": minute(5).isoformat(), "until": minute(10).isoformat(), "keep": [1, 2]}]
    some: list[Intervention] = [
        {"kind": "thin", "tenants": ["a"], "except": [], "types": None, "windows": windows},
        {"kind": "reserve"},
        {"kind": "undo", "changes": [{"layer": None, "index": 0, "at": "", "keys": ["speed"]}]},
    ]
    one, other = simulate(here, some), simulate(here, some[::-1])
    assert (one.finished_us == other.finished_us).all()
    assert (one.stays == other.stays).all()


def test_keeps_are_fractions() -> None:
    """A third is no float: the limit is the integer part of 2**64 / 3."""
    here = scene(calm(), config())
    windows = [{"since": minute(0).isoformat(), "until": minute(11).isoformat(), "keep": [1, 3]}]
    done = simulate(here, [{"kind": "thin", "tenants": None, "except": [], "types": None, "windows": windows}])
    ids = here.load.frame["request_id"].to_list()
    assert done.stays.tolist() == [stable_hash(name) < int(Fraction(1, 3) * 2**64) for name in ids]


def test_a_smaller_share_is_part_of_a_larger_one() -> None:
    here = scene(calm(), config())

    def kept(tenths: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        windows = [{"since": minute(0).isoformat(), "until": minute(11).isoformat(), "keep": [tenths, 10]}]
        return simulate(
            here, [{"kind": "thin", "tenants": None, "except": [], "types": None, "windows": windows}]
        ).stays

    shares = [kept(tenths) for tenths in range(11)]
    assert all((less <= more).all() for less, more in pairwise(shares))
    assert [int(stays.sum()) for stays in (shares[0], shares[10])] == [0, 1320]
    assert int(shares[3].sum()) == pytest.approx(396, abs=50)
