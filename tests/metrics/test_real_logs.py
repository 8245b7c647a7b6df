"""The windowed tables on real logs, against figures reckoned from the raw file in plain Python."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fairreplay.config.load import parse_config
from fairreplay.metrics.measure import Measured, measure
from fairreplay.metrics.options import measure_options
from tests.sandbox.frames import canonical

DATA = Path(__file__).parents[1] / "data"
ARENA = {name: DATA / "vtc_arena" / f"{name}.all_results_real.jsonl" for name in ("FCFS", "VTC", "LShare_rpm20")}
OVERLOAD = DATA / "vtc_overload" / "WVTC.all_results_overload-weighted.jsonl"
SLO_S = {50: 10, 90: 30, 99: 60}
CONFIG = "[defaults]\nslo_ttft_ms = { p50 = 10_000, p90 = 30_000, p99 = 60_000 }\n"
T0 = datetime(1970, 1, 1, tzinfo=UTC)


@cache
def responses(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text())["result"]["responses"]
    return rows


@cache
def log(path: Path) -> pl.DataFrame:
    rows = []
    for raw in responses(path):
        row = {"tenant": raw["adapter_dir"], "arrived_at": raw["req_time"], "prompt_tokens": raw["prompt_len"]}
        if raw["first_token_latency"] == -1:
            rows.append(row | {"status": "rejected", "output_tokens": 0})
            continue
        times = {
            "first_token_at": raw["req_time"] + raw["first_token_latency"],
            "finished_at": raw["req_time"] + raw["request_latency"],
        }
        rows.append(row | times | {"output_tokens": raw["output_len"]})
    return canonical(rows)


def measured(path: Path, **options: Any) -> Measured:
    config = parse_config(CONFIG, "test")
    return measure(log(path), config, measure_options(config, **options), "logged")


def meets(raw: list[dict[str, Any]], least: dict[int, int]) -> bool | None:
    """Nearest rank by sorting, a refusal infinitely late; None where no quantile has its ``least`` samples."""
    waits = sorted(r["first_token_latency"] if r["first_token_latency"] != -1 else float("inf") for r in raw)
    verdicts = [waits[-(-q * len(waits) // 100) - 1] <= target for q, target in SLO_S.items() if len(waits) >= least[q]]
    return all(verdicts) if verdicts else None


@pytest.mark.parametrize("name", ARENA)
@pytest.mark.parametrize(("min_samples", "least"), [(None, {50: 5, 90: 10, 99: 100}), (1, {50: 1, 90: 1, 99: 1})])
def test_scr_of_every_minute(name: str, min_samples: int | None, least: dict[int, int]) -> None:
    by_minute: dict[int, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for raw in responses(ARENA[name]):
        by_minute[int(raw["req_time"] // 60)][raw["adapter_dir"]].append(raw)
    windows = measured(ARENA[name], min_samples=min_samples).windows
    assert windows["start"].diff().drop_nulls().unique().to_list() == [timedelta(seconds=60)]
    for minute, window in enumerate(windows.iter_rows(named=True)):
        verdicts = {tenant: meets(rows, least) for tenant, rows in by_minute[minute].items()}
        judged = [verdict for verdict in verdicts.values() if verdict is not None]
        assert window["requests"] == sum(map(len, by_minute[minute].values()))
        assert window["failing"] == sorted(tenant for tenant, verdict in verdicts.items() if verdict is False)
        assert window["tenants_insufficient"] == len(verdicts) - len(judged)
        assert window["scr"] == (pytest.approx(sum(judged) / len(judged)) if judged else None)


def test_a_minute_limit_hides_its_harm_only_if_refusals_are_dropped() -> None:
    refused = {raw["adapter_dir"] for raw in responses(ARENA["LShare_rpm20"]) if raw["first_token_latency"] == -1}
    assert len(refused) == 4
    counted = measured(ARENA["LShare_rpm20"], window="0", min_samples=1).windows.row(0, named=True)
    dropped = measured(ARENA["LShare_rpm20"], window="0", min_samples=1, refusals="drop").windows.row(0, named=True)
    assert refused <= set(counted["failing"])
    assert set(counted["failing"]) - set(dropped["failing"]) == refused


@pytest.mark.parametrize("name", ARENA)
@pytest.mark.parametrize("spread", ["phases", "decode"])
def test_minutes_add_up_to_all_tokens_of_the_log(name: str, spread: str) -> None:
    cost: dict[str, int] = defaultdict(int)
    for raw in responses(ARENA[name]):
        if raw["first_token_latency"] != -1:
            cost[raw["adapter_dir"]] += raw["prompt_len"] + 2 * raw["output_len"]
    for window in ("60s", "7s", "0"):
        table = measured(ARENA[name], window=window, spread=spread).tenants
        summed = dict(table.group_by("tenant").agg(pl.col("served").sum()).iter_rows())
        assert {tenant: round(value, 6) for tenant, value in summed.items() if value} == dict(cost)


def test_service_of_the_weighted_log_in_any_interval_is_the_float_integral() -> None:
    for since, until in ((60, 360), (61.5, 62.25), (0, 1000)):
        expected: dict[str, float] = defaultdict(float)
        for raw in responses(OVERLOAD):
            begin, end = (raw["req_time"] + raw[key] for key in ("first_token_latency", "request_latency"))
            inside = max(0.0, min(end, until) - max(begin, since))
            expected[raw["adapter_dir"]] += (raw["prompt_len"] + 2 * raw["output_len"]) * inside / (end - begin)
        bounds = {"since": T0 + timedelta(seconds=since), "until": T0 + timedelta(seconds=until)}
        result = measured(OVERLOAD, window="0", spread="decode", **bounds)
        assert result.windows.select("start", "end").row(0) == (bounds["since"], bounds["until"])
        assert dict(result.tenants.select("tenant", "served").iter_rows()) == pytest.approx(expected, abs=0.1)


def test_the_weighted_scheduler_is_fair_by_its_weights_and_unfair_without_them() -> None:
    names = sorted({raw["adapter_dir"] for raw in responses(OVERLOAD)})
    weighted = "".join(f"[tenants.{name}]\nweight = {place}\n" for place, name in enumerate(names, start=1))
    found = []
    for text in (CONFIG + weighted, CONFIG):
        config = parse_config(text, "test")
        # The published 1:2:3:4 is of service in the decode phase; the log names no instant of scheduling.
        options = measure_options(
            config,
            window="0",
            spread="decode",
            since=T0 + timedelta(seconds=60),
            until=T0 + timedelta(seconds=360),
        )
        found.append(measure(log(OVERLOAD), config, options, "logged").windows.row(0, named=True))
    assert found[0]["jfi"] > 0.99999
    assert found[0]["min_x"] > 0.999
    # 1:2:3:4 against equal shares: 10^2 / (4 * 30) = 5/6, and the first gets 4/10 of its quarter.
    assert found[1]["jfi"] == pytest.approx(5 / 6, abs=1e-3)
    assert found[1]["min_x"] == pytest.approx(0.4, abs=1e-3)
    assert found[1]["min_x_tenant"] == names[0]


def test_unfinished_decode_work_is_not_demand_so_the_fair_log_is_served_in_proportion() -> None:
    fair, unfair = (measured(ARENA[name]).windows.filter(~pl.col("drain")) for name in ("VTC", "FCFS"))
    mean = {name: windows["jfi"].mean() for name, windows in (("VTC", fair), ("FCFS", unfair))}
    assert mean["VTC"] > mean["FCFS"]  # type: ignore[operator]
    assert fair.filter(pl.col("jfi") < 0.9).height < len(fair) / 2
