"""The sources of a review: the log and the replays that belong to it, held to the same targets."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fairreplay.causes.review import explained, period_of, production, sources
from fairreplay.config.load import parse_config
from fairreplay.config.model import Config
from fairreplay.metrics.options import measure_options
from fairreplay.sandbox.replay import replay
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import Store, open_store
from tests.cli.logs import write_rows

SETTINGS = """
[cluster]
async_scheduling = false
enable_prefix_caching = false
[cluster.step_time]
base = 0.5
prefill_token = 0.0
decode_sequence = 0.0
context_token = 0.0
"""
AT = datetime(2026, 1, 1, tzinfo=UTC)


def stored(folder: Path, **times: Any) -> Store:
    rows = [
        {
            "request_id": f"r{number}",
            "tenant": "ab"[number % 2],
            "arrived_at": f"2026-01-01T00:00:{number:02}Z",
            "prompt_tokens": 20,
            "output_tokens": 4,
        }
        | {name: f"2026-01-01T00:00:{number + after:02}Z" for name, after in times.items()}
        for number in range(20)
    ]
    rows.append({"request_id": "refused", "tenant": "a", "arrived_at": "2026-01-01T00:00:05Z", "status": "rejected"})
    rows[-1] |= {"prompt_tokens": None, "output_tokens": None}
    ingest([str(write_rows(folder / "log.jsonl", rows))], folder / "store", IngestOptions())
    return open_store(folder / "store")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return stored(tmp_path, first_token_at=2, finished_at=4)


def config(more: str = "") -> Config:
    return parse_config(SETTINGS + more, "test")


def test_the_log_comes_first_then_the_baseline_then_the_others(store: Store) -> None:
    settings = config()
    assert [source.name for source in sources(store, settings, measure_options(settings))] == ["logged"]
    replay(store, settings, ["sjf", "vtc", "fcfs"])
    made = sources(open_store(store.path), settings, measure_options(settings))
    assert [(source.name, source.policy, source.is_baseline) for source in made] == [
        ("logged", None, False),
        ("fcfs", "fcfs", True),
        ("sjf", "sjf", False),
        ("vtc", "vtc", False),
    ]
    assert all(source.measured.windows["source"].unique().to_list() == [source.name] for source in made)
    assert [len(source.outcome) for source in made] == [21, 20, 20, 20]  # what production refused is no load


def test_a_replay_of_another_config_does_not_belong(store: Store) -> None:
    replay(store, config(), ["fcfs"])
    other = config("[models.m]\nmax_num_seqs = 3\n")
    assert [source.name for source in sources(open_store(store.path), other, measure_options(other))] == ["logged"]


def test_an_assumed_slo_is_the_logs_and_holds_for_all(store: Store) -> None:
    settings = config()
    replay(store, settings, ["fcfs"])
    logged, replayed = sources(open_store(store.path), settings, measure_options(settings))
    assert logged.measured.slo["a"].model_dump() == {"p50": 3000, "p90": 3000, "p99": 3000}  # 1.5 times 2 s
    assert replayed.measured.slo == logged.measured.slo
    assert replayed.measured.assumed_slo


def test_a_log_of_arrivals_takes_the_baselines(tmp_path: Path) -> None:
    store, settings = stored(tmp_path), config()
    replay(store, settings, ["fcfs"])
    logged, replayed = sources(open_store(store.path), settings, measure_options(settings))
    assert replayed.measured.assumed_slo
    assert logged.measured.slo == replayed.measured.slo != {}


def test_a_period_takes_replays_of_the_whole_store_too(store: Store) -> None:
    settings = config()
    replay(store, settings, ["fcfs"])
    options = measure_options(settings, window="0", since=AT, until=AT.replace(second=10))
    made = sources(open_store(store.path), settings, options)
    assert [(source.name, source.measured.windows["requests"].to_list()) for source in made] == [
        ("logged", [11]),
        ("fcfs", [10]),
    ]


def test_twice_the_same(store: Store) -> None:
    settings = config()
    replay(store, settings, ["fcfs", "vtc"])
    first, second = (sources(open_store(store.path), settings, measure_options(settings)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one.measured.windows.equals(other.measured.windows)
        assert one.measured.tenants.equals(other.measured.tenants)
        assert one.episodes == other.episodes


# ---- with causes ----


def late(folder: Path, **times: Any) -> Store:
    """Twenty minutes of one request a second, two tenants, and in minutes 10 to 15 ten times as many of b."""
    rows = []
    for second in range(1200):
        burst = 10 if 600 <= second < 900 else 1
        for number, tenant in enumerate(["a", *["b"] * burst]):
            at = AT.timestamp() + second + number / 100
            rows.append(
                {
                    "request_id": f"r{second}-{number}",
                    "tenant": tenant,
                    "arrived_at": datetime.fromtimestamp(at, UTC).isoformat(),
                    "prompt_tokens": 20,
                    "output_tokens": 1,
                }
                | {name: datetime.fromtimestamp(at + after, UTC).isoformat() for name, after in times.items()}
            )
    write_rows(folder / "late.jsonl", rows)
    ingest([str(folder / "late.jsonl")], folder / "late", IngestOptions())
    return open_store(folder / "late")


BUSY = """
[cluster]
max_num_seqs = 1
async_scheduling = false
enable_prefix_caching = false
[cluster.step_time]
base = 0.25
prefill_token = 0.0
decode_sequence = 0.0
context_token = 0.0
[defaults]
slo_ttft_ms = { p50 = 1000, p90 = 2000, p99 = 4000 }
"""


def test_a_log_of_arrivals_is_explained_by_its_baseline_replay(tmp_path: Path) -> None:
    store, settings = late(tmp_path), parse_config(BUSY, "test")
    options = measure_options(settings)
    before = sources(store, settings, options)
    assert production(before).name == "logged"  # nothing else is there
    replay(store, settings, ["fcfs", "vtc"])
    found = sources(open_store(store.path), settings, options)
    assert production(found).name == "fcfs"
    done = explained(found, settings, options, recommend=False)
    logged, baseline, other = done
    assert (logged.episodes, other.episodes[0].verdict) == ((), None)
    (episode,) = baseline.episodes
    assert (episode.cause, episode.confidence, episode.source) == ("burst", "high", "fcfs")
    assert episode.verdict is not None
    assert "simulated baseline" in episode.verdict.assumptions
    assert baseline.raw_only_windows == 0


def test_a_log_with_decisions_stands_for_itself(tmp_path: Path) -> None:
    store, settings = late(tmp_path, first_token_at=9, finished_at=10), parse_config(BUSY, "test")
    options = measure_options(settings)
    replay(store, settings, ["fcfs"])
    found = sources(open_store(store.path), settings, options)
    assert production(found) is found[0]
    (episode, *_) = explained(found, settings, options, recommend=False)[0].episodes
    assert episode.verdict is not None
    assert "simulated baseline" not in episode.verdict.assumptions


def test_only_one_episode_is_explained(tmp_path: Path) -> None:
    store, settings = late(tmp_path, first_token_at=9, finished_at=10), parse_config(BUSY, "test")
    options = measure_options(settings)
    found = sources(store, settings, options)
    done = explained(found, settings, options, only="ep-none", recommend=False)
    assert all(one.verdict is None for one in done[0].episodes)


def test_the_healthy_hour_may_lie_before_the_period(tmp_path: Path) -> None:
    """--since at the episode's start: what came before is in the store and is the baseline all the same."""
    store, settings = late(tmp_path), parse_config(BUSY, "test")
    replay(store, settings, ["fcfs"])
    options = measure_options(settings, since=AT.replace(minute=10))
    found = sources(open_store(store.path), settings, options)
    done = explained(found, settings, options, recommend=False)
    (episode,) = production(done).episodes
    assert episode.signatures["burst"]["found"] is True


def test_the_period_is_the_fortnight_before_the_last_arrival(tmp_path: Path) -> None:
    def at(day: int, second: int = 0) -> str:
        return f"2026-01-{day:02}T00:00:{second:02}Z"

    rows = [
        {"request_id": f"r{day}", "tenant": "a", "arrived_at": at(day), "prompt_tokens": 20, "output_tokens": 4}
        | {"first_token_at": at(day, 1), "finished_at": at(day, 2)}
        for day in (1, 2, 10, 20)
    ]
    write_rows(tmp_path / "log.jsonl", rows)
    ingest([str(tmp_path / "log.jsonl")], tmp_path / "store", IngestOptions())
    store, settings = open_store(tmp_path / "store"), config()

    def requests(**bounds: Any) -> int:
        (logged,) = sources(store, settings, measure_options(settings, **bounds))
        return int(logged.measured.windows["requests"].sum())

    assert requests() == 2  # from the 6th on
    assert requests(since=AT) == 4
    assert requests(until=AT.replace(day=16)) == 2  # from the 2nd on
    assert requests(until=AT.replace(day=15)) == 3
    assert period_of(store, measure_options(settings)).since == AT.replace(day=6)
    young = measure_options(settings, until=AT.replace(day=11))
    assert period_of(store, young) == young  # a store that holds no more is taken whole
