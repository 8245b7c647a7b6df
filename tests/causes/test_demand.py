"""Who bursts and what is common growth, on numbers counted by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from fairreplay.causes.demand import find_bursts, find_growth, highest_ratio
from fairreplay.causes.levels import Levels, levels, usual_level
from tests.sandbox.frames import canonical

AT = datetime(2026, 1, 1, 10, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TOKENS = 100.0


def made(usual: int, **requests: list[int] | dict[str, list[int]]) -> Levels:
    """Requests by minute of each tenant (of each of its types); the first ``usual`` minutes are the baseline.

    Two minutes before the episode follow, judged like those of the episode. Every request has 100 tokens.
    """
    by_type = {name: rows if isinstance(rows, dict) else {"chat": rows} for name, rows in requests.items()}
    types = tuple(sorted({kind for rows in by_type.values() for kind in rows}))
    count = len(next(iter(next(iter(by_type.values())).values())))
    table = np.zeros((count, len(by_type), len(types)))
    for tenant, name in enumerate(sorted(by_type)):
        for kind, numbers in by_type[name].items():
            table[:, tenant, types.index(kind)] = numbers
    number = np.arange(count)
    return Levels(
        starts=tuple(AT + n * MINUTE for n in range(count)),
        ends=tuple(AT + (n + 1) * MINUTE for n in range(count)),
        tenants=tuple(sorted(by_type)),
        types=types,
        requests=table,
        tokens=table * TOKENS,
        usual=number < usual,
        judged=number >= usual,
    )


def test_a_usual_level_has_at_least_poissons_variance() -> None:
    mean, sigma = usual_level(
        np.array([[9.0, 0.0, 0.0], [9.0, 0.0, 20.0], [99.0, 9.0, 9.0]]), np.array([True, True, False])
    )
    assert mean.tolist() == [9, 0, 10]
    assert sigma**2 == pytest.approx([9, 1, 200])  # 200 = ((-10)^2 + 10^2) / (2 - 1)


def test_one_tenant_of_three_bursts() -> None:
    calm = [20] * 10 + [20] * 6
    here = made(10, a=calm, b=calm, c=[10] * 10 + [10, 10, 60, 60, 60, 10])
    (burst,) = find_bursts(here)
    assert (burst.tenant, burst.types, burst.windows) == ("c", None, (12, 13, 14))
    assert burst.ratio == pytest.approx(6)
    assert burst.z == pytest.approx(50 / np.sqrt(10))
    assert (burst.needed, burst.usual) == (2.0, 10.0)
    growth = find_growth(here, [burst])
    assert (growth.tenants, growth.ratio, growth.found) == (("a", "b"), 1.0, False)


@pytest.mark.parametrize(
    ("peak", "why"),
    [
        ([60, 10, 10, 10], "one window alone"),
        ([19, 19, 19, 19], "below twice"),
        ([20, 20, 20, 20], "z = 10 / sqrt(10) = 3.2 is below 4"),
    ],
)
def test_what_is_no_burst(peak: list[int], why: str) -> None:
    calm = [20] * 16
    assert find_bursts(made(10, a=calm, b=calm, c=[10] * 12 + peak)) == [], why


def test_a_burst_of_little_weight_is_none() -> None:
    """8 requests more a minute beside 400 usual ones are 2 %; beside 100 they are 8 %."""
    assert find_bursts(made(10, a=[400] * 16, c=[2] * 12 + [10] * 4)) == []
    assert [one.tenant for one in find_bursts(made(10, a=[100] * 16, c=[2] * 12 + [10] * 4))] == ["c"]


def test_common_growth_is_nobodys_burst() -> None:
    here = made(10, **{name: [20] * 12 + [60] * 4 for name in "abcd"})
    assert find_bursts(here) == []
    growth = find_growth(here, [])
    assert growth.found
    assert (growth.ratio, growth.usual, growth.windows) == (3.0, 80.0, (12, 13, 14, 15))
    assert growth.z == pytest.approx(160 / np.sqrt(80))


def test_a_burst_on_top_of_common_growth() -> None:
    """Three grow 2x, the fourth 8x: it must reach 1.5 times 2 = 3, and leaves the growth of the others at 2."""
    here = made(10, a=[40] * 12 + [80] * 4, b=[40] * 12 + [80] * 4, c=[40] * 12 + [80] * 4, d=[20] * 12 + [160] * 4)
    (burst,) = find_bursts(here)
    assert (burst.tenant, burst.ratio, burst.needed) == ("d", 8.0, 3.0)
    growth = find_growth(here, [burst])
    assert (growth.tenants, growth.ratio) == (("a", "b", "c"), 2.0)


def test_a_dominant_tenant_does_not_hide_in_the_growth_it_makes() -> None:
    """70 % of the load goes fourfold: growth of all is 3.1, 1.5 times that is 4.65; the median tenant's is 1."""
    here = made(10, a=[140] * 12 + [560] * 4, b=[30] * 16, c=[30] * 16)
    assert [(one.tenant, one.ratio) for one in find_bursts(here)] == [("a", 4.0)]


def test_two_tenants_burst_and_the_growth_is_formed_again() -> None:
    here = made(10, a=[30] * 12 + [180] * 4, b=[30] * 12 + [120] * 4, c=[30] * 16, d=[30] * 16, e=[30] * 16)
    bursts = find_bursts(here)
    assert [(one.tenant, one.ratio) for one in bursts] == [("a", 6.0), ("b", 4.0)]
    assert find_growth(here, bursts).ratio == 1.0


def test_one_type_of_a_tenant_bursts() -> None:
    steady = {"chat": [40] * 16, "long": [5] * 16}
    here = made(10, a=steady, b={"chat": [40] * 16, "long": [5] * 12 + [40] * 4})
    assert [(one.tenant, one.types, one.ratio) for one in find_bursts(here)] == [("b", ("long",), 8.0)]


def test_growth_of_one_type_is_common_too() -> None:
    grown = {"chat": [10] * 12 + [40] * 4, "long": [30] * 16}
    assert find_bursts(made(10, a=grown, b=grown, c=grown)) == []


def test_a_new_tenant_bursts() -> None:
    (burst,) = find_bursts(made(10, a=[40] * 16, b=[0] * 12 + [30] * 4))
    assert (burst.tenant, burst.usual) == ("b", 0.0)
    assert burst.ratio == pytest.approx(300)  # over one request in the ten usual minutes


def test_few_requests_prove_nothing() -> None:
    """Ratio 3.3 is beyond 1.5 times the growth 2, but 9 usual requests are too few to know the usual level by."""
    here = made(3, a=[40] * 5 + [80] * 4, b=[40] * 5 + [80] * 4, c=[2, 4, 3, 3, 3, 10, 10, 10, 10])
    assert find_bursts(here) == []


def test_without_a_baseline_nothing_is_judged() -> None:
    here = made(0, a=[10, 90, 90, 90], b=[10] * 4)
    assert (find_bursts(here), find_growth(here, []).ratio, highest_ratio(here)) == ([], None, None)


def test_growth_needs_a_quarter_and_two_windows() -> None:
    assert not find_growth(made(10, a=[900] * 12 + [1100] * 4), []).found  # 1.22x, z 6.7
    assert not find_growth(made(10, a=[100] * 15 + [300]), []).found
    assert find_growth(made(10, a=[900] * 14 + [1200] * 2), []).found


# ---- levels ----


def test_levels_of_a_log() -> None:
    """Minute 4 is degraded before; the episode is minutes 8 and 9; minutes 6 and 7 are judged with it."""
    rows = [{"arrived_at": 60 * minute + 30, "tenant": "ab"[minute % 2]} for minute in range(10)]
    rows[9] |= {"prompt_tokens": None, "type": "chat"}
    frame = canonical(rows)
    start = datetime(1970, 1, 1, tzinfo=UTC)
    windows = pl.DataFrame(
        {
            "start": [start + n * MINUTE for n in range(10)],
            "end": [start + (n + 1) * MINUTE for n in range(10)],
            "degraded": [n in (4, 8, 9) for n in range(10)],
        }
    ).cast({"start": pl.Datetime("us", "UTC"), "end": pl.Datetime("us", "UTC")})
    here = levels(frame, windows, start + 8 * MINUTE, start + 10 * MINUTE)
    assert (here.tenants, here.types) == (("a", "b"), ("chat", "completion"))
    assert np.flatnonzero(here.usual).tolist() == [1, 2, 3, 5]  # the first minute may have begun in its midst
    assert np.flatnonzero(here.judged).tolist() == [6, 7, 8, 9]
    assert here.requests.sum(axis=(1, 2)).tolist() == [1] * 10
    assert here.requests[9].tolist() == [[0, 0], [1, 0]]
    assert here.tokens[9, 1, 0] == 12  # the tenant's median prompt of 10 stands for the unknown one


def test_two_windows_before_must_do_where_there_are_no_others() -> None:
    start = datetime(1970, 1, 1, tzinfo=UTC)
    stamp = pl.Datetime("us", "UTC")
    windows = pl.DataFrame(
        {"start": [start, start + MINUTE], "end": [start + MINUTE, start + 2 * MINUTE], "degraded": [False, True]}
    ).cast({"start": stamp, "end": stamp})
    here = levels(canonical([{"arrived_at": 0}, {"arrived_at": 90}]), windows, start + MINUTE, start + 2 * MINUTE)
    assert (here.usual.tolist(), here.judged.tolist()) == ([True, False], [True, True])
