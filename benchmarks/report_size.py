"""Size and speed of the report's page: a fortnight of 10 million requests, 500 tenants, 200 episodes, three sources.

The tables are made up (nothing in the document grows with the requests but the digits of counts); ``build``, ``render``
and the browser are the real ones. Limits: 8 MB, 50,000 points, first chart below 3 s in Chromium. The packaged sample:
3 MB. Needs no network; without Chromium the time of the first chart is left out and said to be.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from fairreplay.causes.episodes import Episode
from fairreplay.causes.verdict import Counterfactual, MetricVerdict, Recommendation, Signature, Verdict
from fairreplay.config.load import parse_config
from fairreplay.metrics.measure import TENANT_SCHEMA, TYPE_SCHEMA, WINDOW_SCHEMA, Measured
from fairreplay.metrics.options import MeasureOptions
from fairreplay.report.chart_parts import points
from fairreplay.report.charts import charts
from fairreplay.report.document import build
from fairreplay.report.facts import SourceFacts
from fairreplay.report.html import encoded, render
from fairreplay.report.provenance import StoreFacts
from fairreplay.report.schema import Decisions, Document, Role
from fairreplay.store.store import REJECT_SCHEMA
from fairreplay.trace.schema import SCHEMA

REQUESTS: Final = 10_000_000
ROWS: Final = 400_000
"""Rows that stand for them: what is counted over rows only loses digits."""
TENANTS: Final = 500
EPISODES: Final = 200
WINDOWS: Final = 20_160
ACTIVE: Final = 40
"""Tenants with requests in a window."""
BYTES_MAX: Final = 8_000_000
SAMPLE_BYTES_MAX: Final = 3_000_000
FIRST_CHART_S_MAX: Final = 3.0
T0: Final = datetime(2026, 11, 2, tzinfo=UTC)
MINUTE: Final = timedelta(minutes=1)
NAMES: Final = [f"tenant-{number:03}-of-the-platform" for number in range(TENANTS)]
TYPES: Final = ("chat", "completion", "embed", "long")
SAMPLE: Final = Path(__file__).parents[1] / "reports" / "example" / "report.json"


def main() -> None:
    document = made()
    start = time.perf_counter()
    html = render(document)
    rendered_s = time.perf_counter() - start
    counted = [points(chart.figure) for chart in charts(document)]
    figures: dict[str, Any] = {
        "html_mb": round(len(html.encode()) / 1e6, 2),
        "json_mb": round(len(encoded(document)) / 1e6, 2),
        "render_s": round(rendered_s, 2),
        "charts": len(counted),
        "points": sum(total for total, _ in counted),
        "markers": sum(markers for _, markers in counted),
        "sample_html_mb": round(len(render(json.loads(SAMPLE.read_text())).encode()) / 1e6, 2),
        "first_chart_s": first_chart_s(html),
    }
    print(json.dumps(figures, indent=2))
    failed = [
        name
        for name, limit in (("html_mb", BYTES_MAX / 1e6), ("sample_html_mb", SAMPLE_BYTES_MAX / 1e6))
        if figures[name] > limit
    ]
    if figures["points"] >= 50_000 or figures["markers"] >= 5_000:
        failed.append("points")
    if figures["first_chart_s"] is not None and figures["first_chart_s"] > FIRST_CHART_S_MAX:
        failed.append("first_chart_s")
    if failed:
        sys.exit(f"over the limit: {', '.join(failed)}")


def first_chart_s(html: str) -> float | None:
    """Seconds from the request of the page to its first chart, by the page's own clock; null without Chromium."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        page_file = Path(folder) / "report.html"
        page_file.write_text(html, encoding="utf-8")
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu", "--no-first-run"]
                )
                page = browser.new_page()
                page.goto(page_file.as_uri(), wait_until="commit")
                page.wait_for_selector("html[data-first]", timeout=120_000)
                found = page.evaluate("performance.getEntriesByName('first-chart')[0].startTime / 1000")
                browser.close()
        except Error as error:
            print(f"no Chromium: {error}", file=sys.stderr)
            return None
    return round(float(found), 2)


# --- a document of that size ----------------------------------------------------------------------------------------


def made() -> Document:
    """The document, through the real ``build``."""
    config = parse_config("[defaults]\nslo_ttft_ms = { p50 = 200, p90 = 500, p99 = 1000 }\n", "benchmark")
    sources = [facts(0, "logged", "logged"), facts(1, "fcfs", "baseline"), facts(2, "vtc", "policy")]
    found = episodes()
    return build(
        config=config,
        options=MeasureOptions(),
        store=StoreFacts("0123456789abcdef", (), pl.DataFrame(schema=REJECT_SCHEMA)),
        sources=sources,
        episodes=found,
        differences=[decided("fcfs", TENANTS), decided("vtc", TENANTS)],
        episode_differences={one.id: [decided("fcfs", 8), decided("vtc", 8)] for one in found},
    )


def facts(seed: int, name: str, role: Role) -> SourceFacts:
    draw = np.random.default_rng(seed)
    measured_here = measured(draw, name, WINDOWS, MINUTE)
    return SourceFacts(
        name=name,
        role=role,
        policy=None if role == "logged" else name,
        config_hash=None if role == "logged" else "0123456789ab",
        outcome=outcome(draw),
        measured=measured_here,
        whole=measured(draw, name, 1, WINDOWS * MINUTE),
    )


def outcome(draw: np.random.Generator) -> pl.DataFrame:
    us = np.sort(draw.integers(0, WINDOWS * 60_000_000, ROWS))
    ttft = draw.lognormal(11, 1, ROWS).astype(np.int64)
    arrived = pl.Series(us + int(T0.timestamp()) * 1_000_000)
    stamp = pl.Datetime("us", "UTC")
    columns = {
        "request_id": pl.Series(np.arange(ROWS)).cast(pl.String),
        "tenant": pl.Series([NAMES[number] for number in draw.integers(0, TENANTS, ROWS)]),
        "type": pl.Series([TYPES[number] for number in draw.integers(0, len(TYPES), ROWS)]),
        "arrived_at": arrived.cast(stamp),
        "scheduled_at": (arrived + ttft // 2).cast(stamp),
        "first_token_at": (arrived + ttft).cast(stamp),
        "finished_at": (arrived + 5 * ttft).cast(stamp),
        "prompt_tokens": pl.Series(draw.integers(1, 4000, ROWS)).cast(pl.UInt32),
        "output_tokens": pl.Series(draw.integers(1, 800, ROWS)).cast(pl.UInt32),
        "preemptions": pl.Series(draw.poisson(0.08, ROWS)).cast(pl.UInt16),
        "recomputed_tokens": pl.Series(draw.integers(0, 2000, ROWS)).cast(pl.UInt32),
        "batch_utilization": pl.Series(draw.random(ROWS)).cast(pl.Float32),
        "seq": pl.Series(np.arange(ROWS)).cast(pl.UInt64),
    }
    frame = pl.DataFrame(columns).with_columns(status=pl.lit("ok"), source=pl.lit("s"))
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in SCHEMA.items() if name not in frame.columns]
    return frame.with_columns(missing).select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())


def measured(draw: np.random.Generator, name: str, windows: int, size: timedelta) -> Measured:
    starts = pl.Series([T0 + number * size for number in range(windows)])
    low = 0.5 + 0.5 * draw.random(windows)

    def table(schema: dict[str, pl.DataType], rows: int, columns: dict[str, Any]) -> pl.DataFrame:
        frame = pl.DataFrame(columns | {"source": [name] * rows})
        missing = [pl.lit(None, dtype).alias(key) for key, dtype in schema.items() if key not in frame.columns]
        return frame.with_columns(missing).select(pl.col(key).cast(dtype) for key, dtype in schema.items())

    active = ACTIVE if windows > 1 else TENANTS
    of_window = np.repeat(np.arange(windows), active)
    who = (of_window * 7 + np.tile(np.arange(active), windows) * 11) % TENANTS
    x = draw.random(len(who)) * 1.4
    of_type = np.repeat(np.arange(windows), len(TYPES))
    return Measured(
        windows=table(
            WINDOW_SCHEMA,
            windows,
            {
                "start": starts,
                "end": starts.dt.offset_by(f"{int(size.total_seconds())}s"),
                "requests": [REQUESTS // windows] * windows,
                **{key: low * draw.random(windows) for key in ("scr", "scr_weighted", "jfi", "jfi_raw", "min_x")},
                **dict.fromkeys(("tfr", "tfr_raw", "service_gap"), low * 3),
                "min_x_tenant": [NAMES[number] for number in draw.integers(0, TENANTS, windows)],
                "drain": [False] * windows,
                "degraded": low < 0.55,
            },
        ),
        tenants=table(
            TENANT_SCHEMA,
            len(who),
            {
                "start": starts.gather(of_window),
                "tenant": pl.Series(NAMES).gather(who),
                "served": x * 40_000,
                "demand": np.full(len(x), 60_000.0),
                "entitlement": np.full(len(x), 40_000.0),
                "x": x,
                "pass": x > 0.7,
                "backlog": x < 0.7,
                "weight": np.ones(len(x)),
            },
        ),
        types=table(
            TYPE_SCHEMA,
            len(of_type),
            {
                "start": starts.gather(of_type),
                "type": list(TYPES) * windows,
                **{key: draw.random(len(of_type)) for key in ("share", "floor", "ratio", "ratio_raw", "leak")},
            },
        ),
        slo={},
        assumed_slo=False,
        assumptions=(),
    )


def episodes() -> list[Episode]:
    found = []
    for number in range(EPISODES):
        start = T0 + (100 * number + 20) * MINUTE
        told = verdict(f"ep-{number:010x}", start)
        found.append(
            Episode(
                id=told.episode,
                start=start,
                end=start + 12 * MINUTE,
                source="logged",
                model=None,
                windows=12,
                degraded_windows=10,
                metrics={"scr": 0.2, "jfi": 0.4, "tfr": 0.3},
                min_x=0.01,
                deficits={"scr": 4.0 + number, "jfi": 3.0, "tfr": 1.0},
                tenants=tuple(NAMES[:60]),
                types=TYPES,
                requests_hurt=12_345,
                tokens_hurt=12_345_678,
                cause=told.cause,
                reason=told.reason,
                shares=told.shares,
                by_metric={key: {"cause": one.cause, "shares": one.shares} for key, one in told.by_metric.items()},
                confidence="high",
                signatures={
                    key: {"found": one.found, "suspected": False, "measure": one.measure, "number": one.number}
                    | {"threshold": one.threshold, "baseline": one.baseline, "says": one.says, "details": {}}
                    for key, one in told.signatures.items()
                },
                recommendation=told.recommendations[0].title,
                verdict=told,
            )
        )
    return found


def verdict(name: str, start: datetime) -> Verdict:
    shares = {"burst": 0.61, "capacity_shortfall": 0.24, "weight_skew": 0.1, "unexplained": 0.05}
    causes = ("burst", "preemption_thrash", "type_starvation", "weight_skew", "capacity_shortfall", "low_demand")
    values = {"scr": 0.51, "jfi": 0.62, "tfr": 0.73, "min_x": 0.1}
    span = [(start - 5 * MINUTE).isoformat(), (start + 13 * MINUTE).isoformat()]
    inputs = {"model": None, "interval": span, "windows": span, "policy": "fcfs", "interventions": [{"kind": "thin"}]}
    deficits = {"scr": 4.0, "jfi": 3.0, "tfr": 1.0}
    signature = Signature(
        cause="burst", found=True, suspected=False, measure="requests over usual requests, of the tenant that bursts",
        number=8.12, threshold=2.0, baseline=1.0, says="4 tenants sent up to 8.1 times the usual number of requests",
        tenants=tuple(NAMES[:4]),
    )  # fmt: skip
    fix = Recommendation(
        cause="burst", title="Limit the 4 bursting tenants at the gateway to 2 times the usual requests a minute",
        snippet="\n".join(f'"{tenant}" = 120' for tenant in NAMES[:4]), before=values, after=values,
        metrics=("scr", "jfi"), removed=0.8, removed_all=0.7, period_before=values, period_after=values,
        hurts_period=False, inputs=inputs,
    )  # fmt: skip
    return Verdict(
        episode=name,
        cause="burst",
        further=("capacity_shortfall",),
        shares=shares,
        by_metric={
            key: MetricVerdict(key, "burst", (), shares, "high", deficits[key], deficits[key]) for key in deficits
        },
        confidence="high",
        reason=f"Tenant {NAMES[0]} sent 8.1x its usual requests and 3 more tenants at least 4.0x from 10:04 to 10:11; "
        "without it SCR would have been 1.00 instead of 0.71.",
        signatures={cause: replace(signature, cause=cause) for cause in causes},
        counterfactuals=tuple(
            Counterfactual(without, deficits, deficits, values, inputs)
            for without in ((), ("burst",), ("capacity_shortfall",), ("burst", "capacity_shortfall"))
        ),
        recommendations=(
            fix,
            replace(fix, title="Share the cluster among tenants (vtc) instead of serving by arrival"),
        ),
        assumptions=("no preemption counts in the log: thrashing is suspected at most, and judged by replays alone",),
    )


def decided(policy: str, tenants: int) -> Decisions:
    half = max(1, tenants // 2)
    quantiles: dict[str, float | None] = {"p50": 1234.567, "p90": 2345.678, "p99": 34567.891}
    size = min(tenants, 14)
    rows = [
        {
            "tenant": NAMES[number],
            "requests": 20_000 + number,
            "answered": 19_000,
            "production_ttft_ms": quantiles,
            "replay_ttft_ms": quantiles,
            "mean_change_ms": -1234.5 + number,
            "production_refused": 1,
            "replay_refused": 2,
        }
        for number in range(tenants)
    ]
    square = [[1000 * i + j for j in range(size + 1)] for i in range(size + 1)]
    found: Any = {
        "policy": policy, "production": "logged", "simulated": False,
        "sentence": f"Under {policy} 250 tenants would gain ({NAMES[0]}: mean TTFT -1.2 s, P90 4.1 to 2.9 s; "
        f"{NAMES[1]}: mean TTFT -1.1 s, P90 4.0 to 2.9 s; and 248 more) and 250 tenants would pay ({NAMES[-1]}: mean "
        "TTFT +1.3 s, P90 2.3 to 3.6 s; and 249 more).",
        "requests": REQUESTS, "only_production": 10, "only_replay": 0, "refused_only_production": 1,
        "refused_only_replay": 2, "preemptions_production": 3, "preemptions_replay": 4, "ordered_by": "scheduled_at",
        "ordered": REQUESTS, "pairs": REQUESTS**2 // 2, "inversions": REQUESTS**2 // 20, "tenants_gain": half,
        "tenants_pay": tenants - half, "tenants_same": 0, "gains": rows[:half], "pays": rows[half:],
        "matrix": {"tenants": NAMES[:size], "others": True, "pairs": square, "tokens": square},
        "windows": [
            {"start": "2026-11-02T10:00:00.000000Z", "model": None, "requests": 500, "moved_ms": 12345.678}
            | {"mean_change_ms": 24.691, "refused_otherwise": 3}
        ] * 10,
        "largest": [
            {"request_id": "chatcmpl-0123456789abcdef", "tenant": NAMES[0], "type": "chat", "model": None}
            | {"arrived_at": "2026-11-02T10:00:00.123456Z", "tokens": 1234}
            | {f"{side}_{what}_ms": 1.5 for what in ("wait", "ttft", "finish") for side in ("production", "replay")}
            | {"production_refused": False, "replay_refused": False}
        ] * 10,
    }  # fmt: skip
    decisions: Decisions = found
    return decisions


if __name__ == "__main__":
    main()
