"""Synthetic traces: each injection hurts what it is made to hurt, nothing else is hurt, and each can be undone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_allclose
from polars.testing import assert_frame_equal

from fairreplay.causes.episodes import Episode, deficits, episodes
from fairreplay.config.load import parse_config
from fairreplay.config.model import Config
from fairreplay.errors import UsageError
from fairreplay.metrics.measure import Measured, measure
from fairreplay.metrics.options import measure_options
from fairreplay.planning import synth, world
from fairreplay.planning.incidents import KINDS, undone
from fairreplay.planning.serving import ASKED, serve
from fairreplay.planning.synth import Scenario, Synthesis, check, synthesise
from fairreplay.planning.world import World, weibull_shape
from fairreplay.sandbox.replay import find_replays, replay
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.outcomes import outcome
from fairreplay.store.store import open_store
from fairreplay.trace.schema import check_frame

pytestmark = pytest.mark.xdist_group("synth")  # the traces are made once

SEVEN = Scenario(minutes=80, tenants=5, rate=0.8)
TINY = Scenario(minutes=60, tenants=4, rate=0.2, incidents=("burst", "quiet", "thrash", "skew"))


@dataclass(frozen=True)
class Judged:
    made: Synthesis
    config: Config
    measured: Measured
    episodes: list[Episode]


def judge(scenario: Scenario) -> Judged:
    made = synthesise(scenario)
    config = parse_config(made.config, "synthetic")
    measured = measure(made.trace, config, measure_options(config), "logged")
    return Judged(made, config, measured, episodes(measured, made.trace))


def windows_of(judged: Judged, label: dict[str, str]) -> pl.DataFrame:
    start, end = datetime.fromisoformat(label["start"]), datetime.fromisoformat(label["end"])
    return judged.measured.windows.filter(pl.col("start").is_between(start, end, closed="left"))


@pytest.fixture(scope="module")
def seven() -> Judged:
    """Every kind but the skew, four minutes each, six minutes between."""
    kinds = ("burst", "thrash", "starvation", "overload", "slowdown", "noisy-neighbour", "quiet")
    return judge(replace(SEVEN, incidents=kinds))


@pytest.fixture(scope="module")
def skew() -> Judged:
    """Seven minutes of skew."""
    return judge(Scenario(minutes=28, tenants=5, rate=0.8, incidents=("skew",)))


@pytest.fixture(scope="module")
def tiny() -> Synthesis:
    return synthesise(TINY)


# ---- what the incidents do ----


def test_every_injection_hits_its_metrics_by_more_than_the_minor_deficit(seven: Judged, skew: Judged) -> None:
    found = {}
    for judged in (seven, skew):
        for label in judged.made.labels["incidents"]:
            lost = deficits(windows_of(judged, label))
            found[label["kind"]] = min((lost[metric] for metric in label["metrics"] if metric in lost), default=None)
    assert found.pop("quiet") is None  # only the raw index
    assert len(found) == 7
    assert min(found.values()) > 1.0, found


def test_one_episode_for_each_incident_and_none_elsewhere(seven: Judged, skew: Judged) -> None:
    for judged in (seven, skew):
        incidents = [label for label in judged.made.labels["incidents"] if label["kind"] != "quiet"]
        assert len(judged.episodes) == len(incidents)
        for label, episode in zip(incidents, judged.episodes, strict=True):
            start, end = datetime.fromisoformat(label["start"]), datetime.fromisoformat(label["end"])
            assert start <= episode.start < end <= episode.end, label["id"]


def test_a_quiet_tenant_lowers_the_raw_index_alone(seven: Judged) -> None:
    label = next(label for label in seven.made.labels["incidents"] if label["kind"] == "quiet")
    inside = windows_of(seven, label)
    before = seven.measured.windows.head(10)
    assert not inside["degraded"].any()
    assert inside["jfi_raw"].mean() < before["jfi_raw"].mean() - 0.1  # type: ignore[operator]
    removed = seven.made.labels["requests"]["quiet-1"]["removed"]
    sent = pl.col("tenant") == label["tenants"][0]
    start, end = datetime.fromisoformat(label["start"]), datetime.fromisoformat(label["end"])
    left = seven.made.trace.filter(sent & pl.col("arrived_at").is_between(start, end, closed="left"))
    assert {row["tenant"] for row in removed} == {label["tenants"][0]}
    assert 0 < len(left) < 0.25 * (len(left) + len(removed))


def test_thrash_evicts_and_redoes_work_and_nothing_else_does(seven: Judged) -> None:
    label = next(label for label in seven.made.labels["incidents"] if label["kind"] == "thrash")
    start, end = datetime.fromisoformat(label["start"]), datetime.fromisoformat(label["end"])
    preempted = seven.made.trace.filter(pl.col("preemptions") > 0)
    assert len(preempted) > 10
    assert preempted["arrived_at"].is_between(start, end).all()
    assert windows_of(seven, label)["recompute_tax"].mean() > 0.05  # type: ignore[operator]


def test_starvation_hurts_the_types_at_the_end_of_the_order(seven: Judged) -> None:
    label = next(label for label in seven.made.labels["incidents"] if label["kind"] == "starvation")
    worst = windows_of(seven, label)["tfr_type"].to_list()
    assert label["types"] == ["long", "batch"]
    assert set(worst) <= {"long", "batch"}


def test_senders_reach_the_factor_of_their_label(seven: Judged) -> None:
    """A flood is many requests, so their number tells the factor: off by the rate of its ten minutes (12 %) and by
    chance (at most 1.5 / sqrt(n)), two deviations of each.
    """
    label = next(label for label in seven.made.labels["incidents"] if label["kind"] == "noisy-neighbour")
    sender = next(
        tenant
        for tenant in world.tenants(World(), SEVEN.seed, SEVEN.tenants, SEVEN.rate)
        if tenant.name == label["tenants"][0]
    )
    usual = 4 * 60 * SEVEN.rate * sender.share  # 09:00 is about the mean of the day
    added = len(seven.made.labels["requests"]["noisy-neighbour-1"]["added"])
    assert_allclose(added / usual, label["injection"]["traffic"]["factor"] - 1, rtol=2 * 0.12 + 2 * 1.5 / added**0.5)


# ---- labels ----


def test_undoing_every_incident_gives_the_trace_without_them(tiny: Synthesis) -> None:
    config = parse_config(tiny.config, "synthetic")
    requests, settings = undone(tiny.trace, config, tiny.labels)
    calm = synthesise(replace(TINY, incidents=()))
    assert_frame_equal(requests.select(ASKED), calm.trace.select(ASKED))
    assert [change.policy for change in settings.cluster.changes] == ["vtc"]  # the rollout is no incident
    assert_frame_equal(serve(requests, parse_config(calm.config, "calm")), calm.trace)


def test_undoing_one_incident_leaves_the_others(tiny: Synthesis) -> None:
    config = parse_config(tiny.config, "synthetic")
    requests, settings = undone(tiny.trace, config, tiny.labels, ["skew-1"])
    added = tiny.labels["requests"]["skew-1"]["added"]
    assert len(added) > 0
    assert len(requests) == len(tiny.trace) - len(added)
    assert settings == config  # a skew changes weights, not settings
    assert (requests.group_by("tenant").agg(pl.col("weight").n_unique())["weight"] == 1).all()
    assert (tiny.trace.group_by("tenant").agg(pl.col("weight").n_unique())["weight"] == 2).all()


def test_skewed_weights_are_the_usual_ones_in_reverse(skew: Judged) -> None:
    label = skew.made.labels["incidents"][0]
    weights = label["injection"]["weights"]
    usual = sorted(change["usual"] for change in weights.values())
    assert sorted(change["during"] for change in weights.values()) == usual
    by_usual = sorted(weights.values(), key=lambda change: change["usual"])
    assert [change["during"] for change in by_usual] == usual[::-1]
    start, end = datetime.fromisoformat(label["start"]), datetime.fromisoformat(label["end"])
    during = skew.made.trace.filter(pl.col("arrived_at").is_between(start, end, closed="left"))
    logged = dict(during.select("tenant", pl.col("weight").cast(pl.Float64)).unique().iter_rows())
    assert {tenant: round(logged[tenant], 3) for tenant in weights} == {
        tenant: change["during"] for tenant, change in weights.items()
    }
    assert len(weights) == 4  # of five: who stands in the middle keeps its own


def test_reversed_weights_are_a_permutation_even_where_tenants_tie() -> None:
    tenants = world.tenants(World(), 0, 40, 2.0)
    assert len({tenant.weight for tenant in tenants}) < 40
    usual = {tenant.name: tenant.weight for tenant in tenants}
    changed = synth._reversed_weights(tenants)
    in_force = usual | {name: during for name, (_, during) in changed.items()}
    assert sorted(in_force.values()) == sorted(usual.values())
    assert {name: before for name, (before, _) in changed.items()}.items() <= usual.items()


def test_listed_changes_frame_their_incidents(seven: Judged) -> None:
    at = {
        label["kind"]: (datetime.fromisoformat(label["start"]), datetime.fromisoformat(label["end"]))
        for label in seven.made.labels["incidents"]
    }
    listed = [(change.at, change.num_gpu_blocks, change.policy) for change in seven.config.cluster.changes[:4]]
    assert listed == [
        (at["thrash"][0], 160, None),
        (at["thrash"][1], 2000, None),
        (at["starvation"][0], None, "type-priority"),
        (at["starvation"][1], None, "fcfs"),
    ]
    slow = seven.config.cluster.changes[4:]
    assert [change.at for change in slow] == list(at["slowdown"])
    assert slow[1].speed == seven.config.cluster.speed
    assert_allclose(slow[0].speed / slow[1].speed, KINDS["slowdown"].settings["speed"], rtol=1e-3)


# ---- the trace ----


def test_ingested_and_replayed_it_is_the_log_again(skew: Judged, tmp_path: Path) -> None:
    """The sandbox served it, so the baseline replay of the ingested file must repeat it to the microsecond."""
    skew.made.trace.drop("seq", "source").write_parquet(tmp_path / "trace.parquet")
    done = ingest([str(tmp_path / "trace.parquet")], tmp_path / "store", IngestOptions())
    segment = done.sources[0].segment
    assert (segment.format, segment.accepted, segment.rejected) == ("native", len(skew.made.trace), 0)
    store = open_store(tmp_path / "store")
    replay(store, skew.config, ["fcfs"])
    served = ["request_id", "replica", "scheduled_at", "first_token_at", "finished_at", "status", "preemptions"]
    served += ["recomputed_tokens", "cached_tokens", "weight"]
    logged = outcome(store, "logged")
    assert_frame_equal(logged.drop("source"), skew.made.trace.drop("source"))
    assert_frame_equal(outcome(store, find_replays(store, skew.config)["fcfs"]).select(served), logged.select(served))


def test_the_trace_is_canonical_and_within_its_limits(seven: Judged) -> None:
    trace = check_frame(seven.made.trace)
    start, end = (datetime.fromisoformat(seven.made.labels[key]) for key in ("start", "end"))
    assert trace["request_id"].n_unique() == len(trace)
    assert trace["arrived_at"].is_between(start, end, closed="left").all()
    assert (trace["status"] == "ok").all()
    known = trace.select("scheduled_at", "first_token_at", "finished_at", "preemptions", "recomputed_tokens", "weight")
    assert known.null_count().sum_horizontal()[0] == 0
    for kind in world.TYPES:
        own = trace.filter(pl.col("type") == kind.name)
        assert own["prompt_tokens"].max() <= kind.prompt_max  # type: ignore[operator]
        assert_allclose(own["prompt_tokens"].median(), kind.prompt_median, rtol=0.15)
        if kind.output_median:
            assert_allclose(own["output_tokens"].median(), kind.output_median, rtol=0.15)
        else:
            assert own["output_tokens"].max() == 0


def test_a_tenants_requests_hang_on_nobody_else(tiny: Synthesis) -> None:
    """Another mix of incidents, another policy: the usual requests outside the incidents stay the same."""
    other = synthesise(replace(TINY, policy="vtc", incidents=("overload",)))
    touched = {
        request for part in (tiny, other) for ids in part.labels["requests"].values() for request in ids["added"]
    }
    touched |= {row["request_id"] for row in tiny.labels["requests"]["quiet-1"]["removed"]}
    asked = ["request_id", "tenant", "type", "arrived_at", "prompt_tokens", "output_tokens"]
    usual = [part.trace.select(asked).filter(~pl.col("request_id").is_in(list(touched))) for part in (tiny, other)]
    assert len(usual[0]) > 500
    assert_frame_equal(usual[0], usual[1])


def test_seeds_differ_and_repeat(tiny: Synthesis) -> None:
    small = Scenario(minutes=10, tenants=4, rate=0.2, incidents=())
    first, again, other = synthesise(small), synthesise(small), synthesise(replace(small, seed=1))
    assert_frame_equal(first.trace, again.trace)
    assert (first.config, first.labels) == (again.config, again.labels)
    assert not set(first.trace["request_id"]) & set(other.trace["request_id"])


def test_the_cluster_grows_with_the_rate() -> None:
    tenants = world.tenants(World(), 0, 8, 20.0)
    assert synth.replicas(Scenario(rate=20.0)) == 10
    assert synth.replicas(Scenario(rate=0.5)) == 1
    # ten times the rate on ten times the replicas; a quarter of it on one at a quarter of the speed
    assert synth.speed(Scenario(rate=20.0), tenants) == synth.speed(Scenario(rate=2.0), tenants)
    assert_allclose(synth.speed(Scenario(rate=0.5), tenants), synth.speed(Scenario(rate=2.0), tenants) / 4, atol=1e-3)


# ---- the laws ----


@pytest.mark.parametrize(("cv", "shape"), [(1.0, 1.0), ((4 / np.pi - 1) ** 0.5, 2.0), (5.0**0.5, 0.5)])
def test_weibull_shape_of_known_spreads(cv: float, shape: float) -> None:
    """Exponential, Rayleigh, and shape 1/2: mean 2, second moment 24, so cv^2 = 24/4 - 1 = 5."""
    assert_allclose(weibull_shape(cv), shape, rtol=1e-6)


@pytest.mark.parametrize("family", ["gamma", "weibull"])
def test_renewals_have_mean_one_and_the_tenants_spread(family: str) -> None:
    tenant = replace(world.tenants(World(), 0, 8, 2.0)[0], family=family, cv=1.4)
    instants = world.renewals(np.random.Generator(np.random.PCG64(7)), tenant, 50_000.0)
    gaps = np.diff(instants)
    assert_allclose(gaps.mean(), 1.0, rtol=0.03)
    assert_allclose(gaps.std() / gaps.mean(), 1.4, rtol=0.03)
    assert instants[-1] < 50_000.0


def test_the_day_is_quietest_at_midnight_and_busiest_at_noon() -> None:
    hours = np.arange(24, dtype=np.int64) * 3600 * 10**6
    factors = world.rhythm(World(), hours)
    assert_allclose(factors.mean(), 1.0)
    assert_allclose((factors[0], factors[6], factors[12]), (0.85, 1.0, 1.15))


def test_tenant_sizes_follow_zipf() -> None:
    shares = [tenant.share for tenant in world.tenants(World(), 0, 5, 2.0)]
    sizes = [1, 1 / 2**0.9, 1 / 3**0.9, 1 / 4**0.9, 1 / 5**0.9]
    assert_allclose(shares, np.array(sizes) / sum(sizes))


@pytest.mark.parametrize("law", ["lognormal", "gamma", "pareto"])
def test_lengths_have_their_median_and_mean(law: world.Law) -> None:
    """Gamma of shape 4: median 3.6721 of mean 4. Pareto of index 2: median sqrt(2), mean 2 (of scale 1)."""
    sigma = 0.5
    score = np.random.Generator(np.random.PCG64(1)).standard_normal(400_001)
    lengths = world.LAWS[law](np.full(len(score), sigma), score)
    assert_allclose(np.median(lengths), 1.0, rtol=0.01)
    mean = {"lognormal": np.exp(sigma**2 / 2), "gamma": 4 / 3.67206, "pareto": 2 / 2**0.5}[law]
    assert_allclose(lengths.mean(), mean, rtol=0.02)
    assert_allclose(world.grows(law, sigma), mean, rtol=0.03)


def test_a_ramp_brings_as_many_requests_as_a_step_but_most_of_them_late() -> None:
    everyone = world.tenants(World(), 0, 8, 2.0)
    start_us = World().start_us
    demand = world.Demand(start_us, start_us + 20 * world.MINUTE_US, 20.0, everyone[0].mix)
    step = world.requests(World(), 0, everyone[0], (1, 0, 0), demand)["arrived_us"]
    ramp = world.requests(World(), 0, everyone[0], (1, 0, 0), replace(demand, ramp=True))["arrived_us"]
    assert_allclose(len(ramp), len(step), rtol=0.1)
    # the rate grows as t: three quarters of the arrivals lie in the second half, half of those of a step
    middle_us = start_us + 10 * world.MINUTE_US
    assert_allclose((ramp >= middle_us).mean(), 0.75, atol=0.05)
    assert_allclose((step >= middle_us).mean(), 0.5, atol=0.05)


# ---- kinds ----


def test_priorities_are_stamped_where_a_policy_of_the_trace_heeds_them() -> None:
    made = synthesise(replace(TINY, incidents=("starvation-priority",)))
    stamped = dict(made.trace.select("type", "priority").unique().iter_rows())
    assert stamped == {"chat": 0, "completion": 0, "embed": 0, "long": 1, "batch": 2}
    changes = parse_config(made.config, "priority").cluster.changes
    assert [change.policy for change in changes] == ["priority", "fcfs"]


def test_victims_of_a_flood_with_and_without_it(seven: Judged) -> None:
    label = next(label for label in seven.made.labels["incidents"] if label["kind"] == "noisy-neighbour")
    said = label["victims"]
    assert set(said["tenants"]) == set(seven.made.labels["tenants"]) - set(label["tenants"])
    assert sum(own["requests"] for own in said["tenants"].values()) == said["requests"]
    start, end = datetime.fromisoformat(label["start"]), datetime.fromisoformat(label["end"])
    ttft = pl.col("first_token_at") - pl.col("arrived_at")

    def p99_ms(served: pl.DataFrame) -> float:
        during = pl.col("arrived_at").is_between(start, end, closed="left")
        rows = served.filter(during & (pl.col("tenant") != label["tenants"][0])).select(ttft.dt.total_microseconds())
        late = sorted(rows.to_series().to_list())
        return late[-(len(late) // 100) - 1] / 1000  # all but a hundredth are at most this late

    calm = serve(*undone(seven.made.trace, seven.config, seven.made.labels, [label["id"]]))
    assert said["p99_ttft_ms"] == pytest.approx(p99_ms(seven.made.trace))
    assert said["p99_ttft_ms_without"] == pytest.approx(p99_ms(calm))
    assert said["p99_ttft_ms"] > 5 * said["p99_ttft_ms_without"]


# ---- what cannot be made ----


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"incidents": ("bursts",)}, "did you mean 'burst'?"),
        ({"tenants": 3}, "--tenants 3: must be 4 to 1000"),
        ({"rate": 0.0}, "--rate 0"),
        ({"policy": "edf"}, "--policy 'edf'"),
        ({"incidents": ("burst+skwe",)}, "'burst+skwe': 'skwe' is unknown; did you mean 'skew'?"),
        ({"incidents": ("starvation+skew",)}, "both set policy"),
        ({"incidents": ("thrash+unlisted-thrash",)}, "both set num_gpu_blocks"),
        ({"incidents": ("skew+skew",)}, "both set"),
        ({"minutes": 5, "incidents": ()}, "--duration 5m"),
        ({"minutes": 89}, "give at least 168m"),
    ],
)
def test_what_cannot_be_made_is_one_line(change: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        check(replace(Scenario(), **change))  # type: ignore[arg-type]
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_shortest_duration_that_is_named_is_enough() -> None:
    for count in range(1, 30):
        kinds = ("burst",) * count
        with pytest.raises(UsageError, match="give at least") as raised:
            check(Scenario(minutes=10, incidents=kinds))
        enough = int(str(raised.value).split("at least ")[1].split("m")[0])
        assert check(Scenario(minutes=enough, incidents=kinds)).minutes == enough
        with pytest.raises(UsageError):
            check(Scenario(minutes=enough - 1, incidents=kinds))
