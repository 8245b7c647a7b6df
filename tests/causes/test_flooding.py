"""Who flooded the queue, by hand and on a real log."""

from __future__ import annotations

import polars as pl
import pytest

from fairreplay.causes.flooding import floods
from fairreplay.config.load import parse_config
from fairreplay.metrics.measure import measure
from fairreplay.metrics.options import measure_options
from tests.metrics.test_real_logs import ARENA, CONFIG, log


def rows(*tenants: tuple[str, float, float, float]) -> pl.DataFrame:
    numbers = dict.fromkeys(("demand", "served", "entitlement"), pl.Float64)
    return pl.DataFrame(tenants, schema={"tenant": pl.String, **numbers}, orient="row")


def test_a_flood_by_hand() -> None:
    # Capacity 100: "loud" asks 300 and is entitled to 60, the others ask 20 each; "loud" gets 90.
    (loud,) = floods(rows(("loud", 300, 90, 60), ("a", 20, 5, 20), ("b", 20, 5, 20)))
    assert (loud.tenant, loud.excess, loud.share, loud.attained) == ("loud", 240, 1, 1.5)


def test_who_was_crowded_out_did_not_flood() -> None:
    # Two ask for more than their share of 50; only one gets more.
    found = floods(rows(("loud", 300, 90, 50), ("meek", 200, 10, 50)))
    assert [(flood.tenant, flood.share) for flood in found] == [("loud", 250 / 400)]


def test_nobody_floods_where_demand_is_met() -> None:
    assert floods(rows(("a", 70, 70, 70), ("b", 30, 30, 30))) == ()
    assert floods(rows()) == ()


def test_the_real_fcfs_log_was_flooded_by_the_tenants_that_pay_under_the_real_fair_scheduler() -> None:
    config = parse_config(CONFIG, "test")
    measured = measure(log(ARENA["FCFS"]), config, measure_options(config), "logged")
    found = floods(measured.tenants)
    assert [flood.tenant for flood in found] == ["dummy-lora-7b-rank-8-10", "dummy-lora-7b-rank-8-2"]
    assert all(flood.attained > 1.5 for flood in found)

    def mean_ttft(name: str) -> dict[str, float]:
        wait = (pl.col("first_token_at") - pl.col("arrived_at")).dt.total_milliseconds().mean()
        return dict(log(ARENA[name]).group_by("tenant").agg(wait).iter_rows())

    before, after = mean_ttft("FCFS"), mean_ttft("VTC")
    later = {tenant for tenant in before if after[tenant] > before[tenant]}
    assert later == {flood.tenant for flood in found}
    assert sum(flood.share for flood in found) == pytest.approx(0.75, abs=0.03)
