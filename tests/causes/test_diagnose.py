"""Whole episodes of a small production: what happened is known, so the verdict is."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest

from fairreplay.causes.counterfactual import recompute
from fairreplay.causes.diagnose import diagnose, with_verdicts
from fairreplay.causes.episodes import METRICS, Episode
from fairreplay.causes.verdict import CAUSES, UNEXPLAINED, Verdict, document
from fairreplay.config.load import parse_config
from fairreplay.config.model import Config
from fairreplay.errors import UsageError
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import Store, open_store
from tests.causes.scenes import ONE_BY_ONE, SLO, asked, change, config, found, minute, served

CALM = tuple({"first": 0, "last": 40, "rate": 40, "tenant": tenant} for tenant in "abc")
"""Half of what the cluster serves."""


def stream(tenants: str, first: float, last: float, rate: float, **columns: Any) -> list[dict[str, Any]]:
    return [{"first": first, "last": last, "rate": rate, "tenant": tenant} | columns for tenant in tenants]


def judged(log: pl.DataFrame, settings: Config, **options: Any) -> list[tuple[Episode, Verdict]]:
    episodes, measured, how = found(log, settings)
    verdicts = diagnose(log, settings, episodes, how, measured=measured, **options)
    for verdict in verdicts:
        check(verdict)
    return list(zip(episodes, verdicts, strict=True))


def check(verdict: Verdict) -> None:
    """What holds for every verdict."""
    every = [one.shares for one in verdict.by_metric.values()] + [verdict.shares]
    for shares in every:
        if shares is not None:
            assert sum(shares.values()) == pytest.approx(1, abs=1e-9)
            assert UNEXPLAINED in shares
    text = orjson.dumps(document(verdict))
    assert b"NaN" not in text
    assert verdict.reason.endswith(".")
    assert "\n" not in verdict.reason


@cache
def burst_log() -> pl.DataFrame:
    return served(asked(*CALM, *stream("c", 20, 25, 300)), config())


@cache
def slow_log() -> pl.DataFrame:
    return served(asked(*CALM), slow())


def slow() -> Config:
    return config(change(20, speed=0.3), change(25, speed=1.0))


def test_a_burst() -> None:
    """c sends 340 instead of 40 a minute for 5 minutes: 420 a minute to a cluster that serves 240."""
    ((episode, verdict),) = judged(burst_log(), config())
    assert (episode.start, episode.end) == (minute(20), minute(33))
    assert (verdict.cause, verdict.further, verdict.confidence) == ("burst", (), "high")
    assert {name: one.cause for name, one in verdict.by_metric.items()} == {"scr": "burst", "jfi": "burst"}
    assert verdict.shares == pytest.approx({"burst": 1, "capacity_shortfall": 0, UNEXPLAINED: 0})
    assert verdict.signatures["burst"].tenants == ("c",)
    assert verdict.signatures["burst"].number == pytest.approx(340 / 40)
    assert verdict.reason == (
        "Tenant c sent 8.5x its usual requests from 10:20 to 10:25; "
        "without it SCR would have been 1.00 instead of 0.00."
    )


def test_its_fixes_are_measured() -> None:
    ((_, verdict),) = judged(burst_log(), config())
    fair, limit = verdict.recommendations
    assert (fair.cause, limit.cause) == ("burst", "burst")
    assert "vtc" in fair.title
    assert limit.snippet is not None
    assert '"c" = 80' in limit.snippet  # twice the usual 40
    # c alone fails: two of three tenants pass
    assert fair.after["scr"] == pytest.approx(2 / 3, abs=0.15)
    assert fair.removed > limit.removed > 0.5
    for fix in (fair, limit):  # a small load: every fix is tried on the whole period
        assert fix.period_after is not None
        assert fix.period_before is not None
        assert fix.hurts_period is False


def test_a_listed_slowdown() -> None:
    ((_, verdict),) = judged(slow_log(), slow())
    assert (verdict.cause, verdict.further, verdict.confidence) == ("capacity_shortfall", (), "high")
    assert "cut speed from 1.0 to 0.3" in verdict.reason
    best = verdict.recommendations[0]
    assert best.title == "Take back the change of 2026-01-01 10:20 (speed)"
    assert best.removed == pytest.approx(1)


def test_an_unlisted_slowdown_is_inferred() -> None:
    """The same log under a config that lists nothing: the fit finds factor, start and end."""
    ((_, verdict),) = judged(slow_log(), config(), recommend=False)
    assert verdict.inferred is not None
    assert (verdict.inferred.what, verdict.inferred.factor) == ("speed", 0.3)
    assert datetime.fromisoformat(verdict.inferred.start) == minute(20)
    assert datetime.fromisoformat(verdict.inferred.end) == minute(25)
    assert verdict.inferred.loss_after < 0.01 * verdict.inferred.loss_before
    assert (verdict.cause, verdict.confidence) == ("capacity_shortfall", "medium")  # the log alone shows no cause
    assert "inferred, not listed" in verdict.reason
    assert any("unlisted change was inferred" in said for said in verdict.assumptions)


def test_a_burst_during_a_slowdown_names_both() -> None:
    log = served(asked(*CALM, *stream("c", 20, 25, 100)), slow())
    ((_, verdict),) = judged(log, slow(), recommend=False)
    assert verdict.shares is not None
    assert {verdict.cause, *verdict.further} == {"burst", "capacity_shortfall"}
    assert [one.without for one in verdict.counterfactuals] == [
        (),
        ("burst",),
        ("capacity_shortfall",),
        ("burst", "capacity_shortfall"),
    ]


def test_common_growth() -> None:
    log = served(asked(*CALM, *stream("abc", 20, 25, 80)), config())
    ((_, verdict),) = judged(log, config(), recommend=False)
    assert (verdict.cause, verdict.confidence) == ("capacity_shortfall", "high")
    assert verdict.signatures["capacity_shortfall"].number == pytest.approx(3)
    assert verdict.signatures["burst"].found is False
    assert "sent 3.0x their usual requests from 10:20 to 10:25" in verdict.reason


def test_a_starving_rule() -> None:
    """Chat fills the cluster and goes before long: long waits until the rule is taken back."""
    order = '[policies.type-priority]\norder = ["chat", "long"]\n'
    settings = config(change(20, policy="type-priority"), change(26, policy="fcfs"), order)
    usual = [*stream("abc", 0, 40, 30, type="chat"), *stream("abc", 0, 40, 8, type="long")]
    log = served(asked(*usual, *stream("abc", 20, 26, 50, type="chat")), settings)
    ((_, verdict),) = judged(log, settings)
    tfr = verdict.by_metric["tfr"]
    assert (tfr.cause, tfr.confidence) == ("type_starvation", "high")
    assert verdict.signatures["type_starvation"].types == ("long",)
    assert verdict.signatures["type_starvation"].number == 0.0
    oldest = verdict.signatures["type_starvation"].details["oldest_waiting_s"]
    assert oldest["long"] > 300 > 60 > oldest["chat"]
    back = next(one for one in verdict.recommendations if "10:20" in one.title)
    assert (back.cause, back.metrics, back.removed) == ("type_starvation", ("tfr",), 1.0)


def test_skewed_weights_under_contention() -> None:
    """c weighs a tenth of what it committed to; under contention it gets less: for that the rule is to blame."""
    committed = "".join(f"[tenants.{name}]\ncommitted_tokens_per_month = 1000\n" for name in "abc")
    fair = parse_config(ONE_BY_ONE.replace("[cluster]", '[cluster]\npolicy = "vtc"') + committed + SLO, "test")
    before = stream("abc", 0, 20, 40, weight=1.0)
    contended = [*stream("ab", 20, 28, 120, weight=1.0), *stream("c", 20, 28, 120, weight=0.1)]
    log = served(asked(*before, *contended), fair)
    ((_, verdict),) = judged(log, fair)
    assert (verdict.by_metric["scr"].cause, verdict.by_metric["jfi"].cause) == ("capacity_shortfall", "weight_skew")
    skew = verdict.signatures["weight_skew"]
    assert skew.found
    assert skew.number == pytest.approx(0.1 / 2.1 * 3, rel=1e-6)
    assert skew.tenants == ("c",)  # a and b weigh 1/2.1 * 3 = 1.43 times their share: not far enough off
    fix = next(one for one in verdict.recommendations if one.cause == "weight_skew")
    assert (fix.metrics, fix.removed) == (("jfi",), pytest.approx(1))
    # without weights in the policy the same weights are no skew
    plain = parse_config(ONE_BY_ONE + committed + SLO, "test")
    ((_, other),) = judged(served(asked(*before, *contended), plain), plain, recommend=False)
    assert other.signatures["weight_skew"].found is False
    assert "weight_skew" not in (other.shares or {})


MEMORY = """
[cluster]
max_num_seqs = 32
block_size = 16
num_gpu_blocks = 400
enable_prefix_caching = false
async_scheduling = false
[cluster.step_time]
base = 0.02
prefill_token = 1e-4
decode_sequence = 1e-3
context_token = 0.0
"""


def thrashing() -> tuple[pl.DataFrame, Config]:
    cut = [change(20, num_gpu_blocks=24), change(25, num_gpu_blocks=400)]
    settings = parse_config("\n".join([MEMORY, *cut, SLO]), "test")
    usual = stream("abc", 0, 35, 20, prompt_tokens=32, output_tokens=150)
    return served(asked(*usual), settings), settings


def test_thrashing_after_a_cut_of_the_cache() -> None:
    log, settings = thrashing()
    ((_, verdict),) = judged(log, settings, recommend=False)
    assert (verdict.cause, verdict.confidence) == ("preemption_thrash", "high")
    assert "cut num_gpu_blocks from 400 to 24" in verdict.reason
    assert verdict.signatures["preemption_thrash"].number > 0.02  # type: ignore[operator]


def test_without_preemption_counts_it_is_suspected_at_most() -> None:
    log, settings = thrashing()
    blind = log.with_columns(pl.lit(None, pl.UInt16).alias("preemptions"))
    ((_, verdict),) = judged(blind, settings, recommend=False)
    signature = verdict.signatures["preemption_thrash"]
    assert (signature.found, signature.suspected, signature.number) == (None, True, None)
    assert (verdict.cause, verdict.confidence) == ("preemption_thrash", "medium")  # the sandbox alone
    assert any("no preemption counts" in said for said in verdict.assumptions)


def test_a_cut_that_is_not_listed_is_inferred() -> None:
    log, settings = thrashing()
    unlisted = settings.model_copy(update={"cluster": settings.cluster.model_copy(update={"changes": ()})})
    ((_, verdict),) = judged(log, unlisted, recommend=False)
    assert verdict.inferred is not None
    assert verdict.inferred.what == "kv"
    assert verdict.inferred.factor == pytest.approx(24 / 400, rel=0.3)
    assert (verdict.cause, verdict.confidence) == ("preemption_thrash", "high")


# ---- what is missing ----


def test_without_windows_before_a_burst_is_not_judged() -> None:
    log = burst_log().filter(pl.col("arrived_at") >= minute(20))
    ((_, verdict),) = judged(log, config(), recommend=False)
    assert verdict.signatures["burst"].found is None
    assert any("no healthy window in the hour before" in said for said in verdict.assumptions)


def test_an_unknown_policy_is_a_warning() -> None:
    settings = config(change(20, policy="magic"))
    ((_, verdict),) = judged(burst_log(), settings, recommend=False)
    assert verdict.cause == "burst"
    assert any("'magic'" in said for said in verdict.assumptions)


def shifted(log: pl.DataFrame) -> pl.DataFrame:
    """Of minutes 20 to 25 every second request is answered 9 s late: no speed and no cache explains that."""
    during = (pl.col("arrived_at") >= minute(20)) & (pl.col("arrived_at") < minute(25))
    late = during & (pl.int_range(pl.len()) % 2 == 0)
    return log.with_columns(
        pl.when(late).then(pl.col(name) + timedelta(seconds=9)).otherwise(name).alias(name)
        for name in ("scheduled_at", "first_token_at", "finished_at")
    )


def test_what_the_sandbox_does_not_reproduce_rests_on_the_log() -> None:
    calm = served(asked(*CALM), config())
    ((_, verdict),) = judged(shifted(calm), config())
    assert (verdict.cause, verdict.shares, verdict.inferred, verdict.confidence) == (UNEXPLAINED, None, None, "low")
    assert verdict.by_metric["scr"].shares is None
    assert "does not reproduce it" in verdict.reason
    loud = served(asked(*CALM, *stream("c", 20, 25, 110)), config())  # 230 a minute: the cluster is fast enough
    ((_, verdict),) = judged(shifted(loud), config(), recommend=False)
    assert (verdict.cause, verdict.shares, verdict.confidence) == ("burst", None, "medium")
    assert "rests on the log alone" in verdict.reason


def test_a_minor_episode_gets_no_cause() -> None:
    """Six of seven tenants in time for one minute: (.95 - 6/7) / .95 = .10."""
    names = "abcdefg"
    log = served(asked(*stream(names, 0, 30, 10)), config())
    late = (pl.col("tenant") == "g") & (pl.col("arrived_at") >= minute(20)) & (pl.col("arrived_at") < minute(21))
    log = log.with_columns(
        pl.when(late).then(pl.col(name) + timedelta(seconds=9)).otherwise(name).alias(name)
        for name in ("first_token_at", "finished_at")
    )
    ((episode, verdict),) = judged(log, config())
    assert episode.deficits["scr"] == pytest.approx((0.95 - 6 / 7) / 0.95)
    assert (verdict.cause, verdict.shares, verdict.by_metric, verdict.counterfactuals) == ("minor", None, {}, ())
    assert verdict.recommendations == ()


# ---- filled in, recomputed, the same again ----


def test_an_episode_is_filled_in() -> None:
    ((episode, verdict),) = judged(burst_log(), config())
    (filled,) = with_verdicts([episode], [verdict])
    assert (filled.id, filled.cause, filled.confidence) == (episode.id, "burst", "high")
    assert filled.by_metric["scr"]["cause"] == "burst"
    assert filled.recommendation == verdict.recommendations[0].title
    assert set(filled.signatures) == {*CAUSES, "low_demand"}
    assert filled.verdict is verdict


def test_results_do_not_depend_on_jobs() -> None:
    log = served(asked(*CALM, *stream("c", 20, 25, 100)), slow())
    one, three = (document(judged(log, slow(), jobs=jobs)[0][1]) for jobs in (1, 3))
    assert orjson.dumps(one) == orjson.dumps(three)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    burst_log().write_parquet(tmp_path / "log.parquet")
    ingest([str(tmp_path / "log.parquet")], tmp_path / "store", IngestOptions())
    return open_store(tmp_path / "store")


def test_every_counterfactual_can_be_replayed_from_its_json(store: Store) -> None:
    ((_, verdict),) = judged(store.requests(), config())
    read = json.loads(orjson.dumps(document(verdict)))  # as a reader of report.json has it
    assert len(read["counterfactuals"]) == 3
    for told in read["counterfactuals"]:
        again = recompute(told["inputs"], store, config())
        assert (again.deficits, again.metrics) == (told["deficits"], told["metrics"])
    for told in read["recommendations"]:
        again = recompute(told["inputs"], store, config())
        assert {f"deficit_{metric}": again.deficits[metric] for metric in METRICS}.items() <= told["after"].items()


def test_another_config_is_refused(store: Store) -> None:
    ((_, verdict),) = judged(store.requests(), config(), recommend=False)
    with pytest.raises(UsageError, match="hash"):
        recompute(verdict.counterfactuals[0].inputs, store, slow())
