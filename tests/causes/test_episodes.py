"""Degraded windows become episodes: which join, what they say, by how much they fall short."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.causes.episodes import Episode, deficits, episode_id, episodes, merge
from fairreplay.config.load import parse_config
from fairreplay.metrics.measure import Measured, measure
from fairreplay.metrics.options import measure_options
from tests.sandbox.frames import canonical

SLO = "[defaults]\nslo_ttft_ms = { p50 = 1000, p90 = 1000, p99 = 1000 }\n"


def found(rows: list[dict[str, Any]], text: str = SLO, **options: Any) -> tuple[Measured, list[Episode]]:
    config = parse_config(text, "test")
    frame = canonical(rows)
    result = measure(frame, config, measure_options(config, **({"min_samples": 1} | options)), "logged")
    return result, episodes(result, frame)


def minute(number: int, late: bool = False, **more: Any) -> dict[str, Any]:
    """One request that is answered in half a second, or in five."""
    at = 60 * number + 1
    first = at + (5 if late else 0.5)
    return {"arrived_at": at, "scheduled_at": at, "first_token_at": first, "finished_at": first} | more


# ---- merging ----


@pytest.mark.parametrize(
    ("flags", "runs"),
    [
        ("", []),
        ("...", []),
        ("#", [(0, 0)]),
        (".##.", [(1, 2)]),
        ("#..#", [(0, 3)]),
        ("#...#", [(0, 0), (4, 4)]),
        ("#..#..#", [(0, 6)]),
        ("..#.#...#", [(2, 4), (8, 8)]),
    ],
)
def test_at_most_two_other_windows_lie_between(flags: str, runs: list[tuple[int, int]]) -> None:
    assert merge([flag == "#" for flag in flags]) == runs


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(st.booleans(), max_size=40))
def test_every_degraded_window_is_in_exactly_one_episode(flags: list[bool]) -> None:
    runs = merge(flags)
    inside = [index for first, last in runs for index in range(first, last + 1)]
    assert len(inside) == len(set(inside))
    assert {index for index, flag in enumerate(flags) if flag} <= set(inside)
    assert all(flags[first] and flags[last] for first, last in runs)
    assert all(after[0] - before[1] > 3 for before, after in pairwise(runs))


def test_a_window_without_requests_does_not_end_an_episode() -> None:
    _, one = found([minute(0, late=True), minute(3, late=True)])
    assert [(episode.windows, episode.degraded_windows) for episode in one] == [(4, 2)]
    _, two = found([minute(0, late=True), minute(4, late=True)])
    assert [episode.windows for episode in two] == [1, 1]


def test_a_fair_period_has_none() -> None:
    assert found([minute(number) for number in range(5)])[1] == []
    assert found([])[1] == []


# ---- what an episode says ----


def test_an_episode_of_late_answers() -> None:
    rows = [minute(0, tenant="a"), minute(1, late=True, tenant="b", prompt_tokens=30, output_tokens=7)]
    rows += [minute(1, tenant="a"), minute(2, tenant="a"), minute(2, late=True, tenant="c"), minute(3, tenant="a")]
    _, (episode,) = found(rows)
    assert (episode.start, episode.end) == (
        datetime(1970, 1, 1, 0, 1, tzinfo=UTC),
        datetime(1970, 1, 1, 0, 3, tzinfo=UTC),
    )
    assert (episode.source, episode.model) == ("logged", None)
    assert episode.metrics == {"scr": 0.5, "jfi": 1.0, "tfr": 2.5}  # the only type has all, its floor is .4
    assert (episode.tenants, episode.types) == (("b", "c"), ())
    assert (episode.requests_hurt, episode.tokens_hurt) == (2, 37 + 12)
    assert (episode.cause, episode.shares, episode.confidence, episode.recommendation) == (
        "unclassified",
        None,
        None,
        None,
    )
    assert (episode.by_metric, episode.signatures) == ({}, {})
    assert "SCR fell to 0.50 (below 0.95 in 2 of 2 windows)" in episode.reason
    assert episode.reason.endswith(".")
    assert "\n" not in episode.reason


def test_a_refused_request_is_hurt() -> None:
    rows = [minute(0, tenant="a"), minute(0, tenant="b", status="rejected", first_token_at=None, output_tokens=0)]
    _, (episode,) = found(rows)
    assert (episode.tenants, episode.requests_hurt) == (("b",), 1)


def test_a_starved_tenant_opens_one_although_jain_is_high() -> None:
    # Twenty tenants are served, the twenty-first waits all through: JFI = 20/21, min x = 0.
    rows = [minute(0, tenant=f"t{number:02}", prompt_tokens=100, output_tokens=0) for number in range(20)]
    rows.append({"tenant": "victim", "arrived_at": 1, "scheduled_at": 70, "first_token_at": 70, "finished_at": 70})
    rows[-1] |= {"prompt_tokens": 100, "output_tokens": 0}
    lenient = SLO.replace("1000", "99_999_999")
    result, (episode,) = found(rows, lenient)
    window = result.windows.row(0, named=True)
    assert window["jfi"] == pytest.approx(20 / 21)
    assert (window["scr"], window["min_x"], window["min_x_tenant"]) == (1.0, 0.0, "victim")
    assert (episode.tenants, episode.min_x) == (("victim",), 0.0)
    assert episode.deficits == {"scr": 0.0, "jfi": 1.0, "tfr": 0.0}
    assert "one tenant got 0% of its entitlement" in episode.reason
    assert "victim" not in episode.reason


def test_a_starved_type_opens_one_and_is_named() -> None:
    rows = [minute(0, type="chat", prompt_tokens=1000)]
    rows.append({"type": "long", "arrived_at": 1, "scheduled_at": 70, "first_token_at": 70, "finished_at": 70})
    rows[-1]["prompt_tokens"] = 1000
    result, (episode,) = found(rows, SLO.replace("1000", "99_999_999"))
    assert result.windows["tfr"][0] == 0.0
    assert (episode.metrics["tfr"], episode.types) == (0.0, ("long",))


def test_raw_forms_never_open_one() -> None:
    text = SLO + "[tenants.default]\ncommitted_tokens_per_month = 1\n[tenants.quiet]\ncommitted_tokens_per_month = 1\n"
    result, none = found([minute(0)], text)
    assert result.windows["jfi_raw"].to_list() == [0.5]
    assert none == []


def test_models_have_episodes_of_their_own() -> None:
    rows = [minute(0, late=True, model="m"), minute(1, late=True, model="n"), minute(0, model="n")]
    assert [(one.model, one.start.minute) for one in found(rows)[1]] == [("m", 0), ("n", 1)]


# ---- identity ----


def test_an_id_is_of_the_model_and_the_first_window() -> None:
    start = datetime(2026, 11, 2, 10, 4, tzinfo=UTC)
    assert episode_id("m", start) == episode_id("m", start)
    others = {episode_id("m", start.replace(minute=5)), episode_id("n", start), episode_id(None, start)}
    assert len(others | {episode_id("m", start)}) == 4
    assert all(one.startswith("ep-") and len(one) == 13 for one in others)
    assert episode_id(None, start) != episode_id("", start)


def test_an_id_stays_when_the_episode_grows() -> None:
    _, (short,) = found([minute(0, late=True)])
    _, (grown,) = found([minute(0, late=True), minute(1, late=True)])
    assert short.id == grown.id
    assert short.end != grown.end


# ---- deficits ----


def window(start_s: int, length_s: int, **values: float | None) -> dict[str, Any]:
    blank: dict[str, Any] = {"scr": None, "jfi": None, "min_x": None, "tfr": None}
    begin = datetime.fromtimestamp(start_s, UTC)
    return blank | {"start": begin, "end": datetime.fromtimestamp(start_s + length_s, UTC)} | values


def deficit(*windows: dict[str, Any]) -> dict[str, float]:
    floats = dict.fromkeys(("scr", "jfi", "min_x", "tfr"), pl.Float64)
    return deficits(pl.DataFrame(list(windows), schema_overrides=floats))


def test_deficits_by_hand() -> None:
    first = window(0, 60, scr=0.475, jfi=0.45, min_x=0.63, tfr=0.25)
    # SCR (.95 - .475)/.95 = 1/2; JFI max(.45/.9, .07/.7) = 1/2; TFR .25/.5 = 1/2
    assert deficit(first) == pytest.approx({"scr": 0.5, "jfi": 0.5, "tfr": 0.5})
    # min x is the worse: (.7 - .07)/.7 = .9
    assert deficit(window(0, 60, jfi=0.81, min_x=0.07))["jfi"] == pytest.approx(0.9)
    # healthy windows take nothing back, null ones count 0
    fine = window(60, 60, scr=1.0, jfi=1.0, min_x=1.0, tfr=9.0)
    assert deficit(first, fine, window(120, 60)) == pytest.approx(deficit(first))


def test_deficits_are_in_units_of_minutes() -> None:
    assert deficit(window(0, 600, scr=0.0))["scr"] == pytest.approx(10)
    assert deficit(window(0, 30, scr=0.0))["scr"] == pytest.approx(0.5)


@pytest.mark.parametrize(("late", "of", "cause"), [(1, 2, "minor"), (2, 3, "unclassified"), (3, 3, "unclassified")])
def test_a_deficit_below_a_half_is_minor(late: int, of: int, cause: str) -> None:
    # SCR 1/2: (.95 - .5)/.95 = .474; SCR 1/3: .649; SCR 0: 1
    rows = [minute(0, late=number < late, tenant=f"t{number}") for number in range(of)]
    assert found(rows)[1][0].cause == cause
