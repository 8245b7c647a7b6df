"""Windows in which only the raw index is low."""

from __future__ import annotations

from typing import Any

import pytest

from fairreplay.causes.episodes import episode_id
from fairreplay.causes.low_demand import low_demand_episodes
from fairreplay.config.load import parse_config
from fairreplay.metrics.measure import measure
from fairreplay.metrics.options import measure_options
from tests.causes.scenes import EPOCH_S, asked, config, minute, served
from tests.sandbox.frames import canonical

COMMITTED = "".join(f"[tenants.{name}]\ncommitted_tokens_per_month = 1000\n" for name in "ab")


def quiet(*streams: dict[str, Any]) -> Any:
    settings = config(COMMITTED)
    log = served(asked(*streams), settings)
    return low_demand_episodes(measure(log, settings, measure_options(settings), "logged"), log)


def test_a_large_tenant_falls_silent() -> None:
    """b's 40 a minute become 4 for five minutes: a tenth, z = -36 / sqrt(40). (11/10)^2 / (2 * 101/100) = .599."""
    a = {"first": 0, "last": 30, "rate": 40, "tenant": "a"}
    b = [
        {"first": first, "last": last, "rate": rate, "tenant": "b"}
        for first, last, rate in ((0, 20, 40), (20, 25, 4), (25, 30, 40))
    ]
    (episode,), others = quiet(a, *b)
    assert (episode.start, episode.end, episode.windows) == (minute(20), minute(25), 5)
    assert (episode.cause, episode.tenants, episode.degraded_windows) == ("low_demand", ("b",), 0)
    assert episode.id == episode_id(None, minute(20))
    assert episode.deficits == {"scr": 0.0, "jfi": 0.0, "tfr": 0.0}
    assert episode.requests_hurt == 0
    assert episode.signatures["low_demand"]["details"]["jfi_raw"] == pytest.approx(0.599, abs=0.02)
    assert others == 0


def test_who_always_asks_for_less_is_counted_but_no_episode() -> None:
    a = {"first": 0, "last": 10, "rate": 40, "tenant": "a"}
    b = {"first": 0, "last": 10, "rate": 8, "tenant": "b"}
    assert quiet(a, b) == ([], 10)  # (1.2)^2 / (2 * 1.04) = .692 in each of ten minutes


def test_a_small_tenant_is_not_missed() -> None:
    """2 % of the requests: below the 3 %. The raw index is low all along."""
    a = {"first": 0, "last": 20, "rate": 147, "tenant": "a"}
    b = {"first": 0, "last": 10, "rate": 3, "tenant": "b"}
    found, others = quiet(a, b)
    assert (found, others) == ([], 20)


def test_a_gap_of_two_windows_does_not_part_an_episode() -> None:
    a = {"first": 0, "last": 40, "rate": 40, "tenant": "a"}
    spans = ((0, 20, 40), (20, 21, 2), (21, 23, 40), (23, 24, 2), (24, 27, 40), (27, 28, 2), (28, 40, 40))
    found, _ = quiet(a, *({"first": f, "last": t, "rate": rate, "tenant": "b"} for f, t, rate in spans))
    assert [(one.start, one.end) for one in found] == [(minute(20), minute(24)), (minute(27), minute(28))]


def test_without_commitments_there_is_no_raw_index() -> None:
    settings = parse_config("", "test")
    log = canonical([{"arrived_at": EPOCH_S + 60 * n, "first_token_at": EPOCH_S + 60 * n + 1} for n in range(5)])
    assert low_demand_episodes(measure(log, settings, measure_options(settings), "logged"), log) == ([], 0)
