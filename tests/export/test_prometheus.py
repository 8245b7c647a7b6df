"""OpenMetrics text: what promtool says of it, names literally, figures those of ``metrics``, caps stated."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from fairreplay.config.model import Config
from fairreplay.export import prometheus
from fairreplay.export.prometheus import FAMILIES, PREFIX, exposition, rendered
from fairreplay.export.results import Results
from fairreplay.metrics.alerts import figures
from fairreplay.metrics.options import MeasureOptions
from fairreplay.sandbox.replay import replay
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import create_store, open_store
from tests.export.conftest import HOSTILE, Place

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parsed(text: str) -> Samples:
    """By the grammar of the format, one line a sample."""
    found: Samples = {}
    for line in _lines(text):
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line, flags=re.DOTALL)
        assert match, line
        pairs = _LABEL.findall(match[2] or "")
        assert ",".join(f'{name}="{value}"' for name, value in pairs) == (match[2] or "")
        labels = tuple((name, re.sub(r"\\.", lambda one: _UNESCAPED[one[0]], value)) for name, value in pairs)
        assert (match[1], labels) not in found
        found[match[1], labels] = float(match[3])
    return found


def _lines(text: str) -> Iterator[str]:
    assert text.endswith("# EOF\n")
    yield from (line for line in text.split("\n") if line and not line.startswith("#"))


def promtool(*arguments: str, stdin: str | None = None) -> str:
    assert shutil.which("promtool"), "the export tests need Debian's package prometheus"
    done = subprocess.run(["promtool", *arguments], input=stdin, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def labels(**values: str) -> tuple[tuple[str, str], ...]:
    return tuple(values.items())


def test_promtool_finds_no_fault(arena: Place) -> None:
    assert promtool("check", "metrics", stdin=exposition(arena.results)[0]) == ""


def test_the_figures_are_those_of_the_period(arena: Place) -> None:
    found = parsed(exposition(arena.results)[0])
    for source in arena.results.sources:
        group = labels(model="", policy=source.name)
        assert found["fairreplay_requests", group] == 1500
        for figure in figures(source.measured.windows):
            assert found[f"fairreplay_{figure.metric}_mean_ratio", group] == figure.mean
            assert found[f"fairreplay_{figure.metric}_worst_ratio", group] == figure.worst
            below = labels(model="", policy=source.name, metric=figure.metric, level="red")
            assert found["fairreplay_below_level_seconds", below] == 60 * figure.minutes_red
    # published: P50, P90, P99 of the real FCFS log
    ttft = [
        found["fairreplay_ttft_seconds", labels(model="", policy="logged", percentile=q)] for q in ("50", "90", "99")
    ]
    assert ttft == [39.041686, 112.743085, 136.93835]
    cause = labels(model="", policy="logged", cause=arena.results.named[0].episodes[0].cause)
    assert found["fairreplay_episodes", cause] == 1


def test_unknown_is_absent_and_never_0(arena: Place) -> None:
    """The log says nothing of preemptions; the replays do."""
    found = parsed(exposition(arena.results)[0])
    policies = {dict(names)["policy"] for metric, names in found if metric == "fairreplay_preemptions"}
    assert policies == {"fcfs", "vtc"}


def test_a_log_of_arrivals_is_not_judged_at_all(tmp_path: Path) -> None:
    """Nothing is known of what production did: no level, no alert, no service, rather than 0 of each."""
    rows = [{"arrived_at_us": 10**15 + second * 10**6, "prompt_tokens": 5, "output_tokens": 5} for second in range(90)]
    lines = map(json.dumps, rows)
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    ingest([str(tmp_path / "log.jsonl")], tmp_path / "store", IngestOptions())
    found = parsed(exposition(Results(open_store(tmp_path / "store"), Config(), MeasureOptions()))[0])
    names = {metric.removeprefix(PREFIX) for metric, _ in found}
    assert {"requests", "tenant_requests", "windows"} <= names
    assert not names & {
        "below_level_seconds",
        "alerts",
        "emergency_mode_active",
        "tenant_service_units",
        "ttft_seconds",
    }


def test_hostile_names_are_literal_and_stay_on_their_line(hostile: Place) -> None:
    text, _ = exposition(hostile.results)
    promtool("check", "metrics", stdin=text)
    found = parsed(text)
    for label in ("tenant", "type"):
        assert {dict(names)[label] for _, names in found if label in dict(names)} == set(HOSTILE)
    models = {dict(names)["model"] for _, names in found if "model" in dict(names)}
    assert models == {"", *HOSTILE[1::2]}


def test_an_empty_name() -> None:
    text = rendered([("tenant_requests", ("m", "logged", ""), 3.0)])
    assert 'fairreplay_tenant_requests{model="m",policy="logged",tenant=""} 3\n' in text
    promtool("check", "metrics", stdin=text)


def test_an_empty_store(tmp_path: Path) -> None:
    text, remarks = exposition(Results(create_store(tmp_path / "store"), Config(), MeasureOptions()))
    assert (list(_lines(text)), remarks) == (["fairreplay_models_left_out 0"], [])


def test_more_tenants_than_series_are_stated(arena: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "TENANTS_MAX", 5)
    text, remarks = exposition(arena.results)
    found = parsed(text)
    kept = {dict(names)["tenant"] for metric, names in found if metric == "fairreplay_tenant_requests"}
    counts = arena.store.requests().group_by("tenant").len().sort(["len", "tenant"], descending=[True, False])
    assert kept == set(counts["tenant"].head(5))
    assert found["fairreplay_tenants_left_out", labels(model="", policy="logged")] == 22
    assert remarks == ["22 tenants have no series: only the 5 with the most requests have"]


def test_every_metric_says_its_unit_and_has_samples(arena: Place) -> None:
    text, _ = exposition(arena.results)
    for name, family in FAMILIES.items():
        assert not family.unit or name.endswith("_" + family.unit)
        assert name.endswith("_left_out") or not re.search("_(total|count|sum|bucket|info)$", name)
    exported = {metric.removeprefix(PREFIX) for metric, _ in parsed(text)}
    assert set(FAMILIES) - exported == {"tenant_weight_skew_ratio"}  # the sample has no commitments


def test_the_same_bytes_again(arena: Place) -> None:
    again = Results(arena.store, arena.config, arena.options)
    assert exposition(again) == exposition(arena.results)


def test_tenants_sum_up(arena: Place) -> None:
    found = parsed(exposition(arena.results)[0])
    counts = arena.store.requests().group_by("tenant").len()
    for tenant, count in counts.iter_rows():
        assert found["fairreplay_tenant_requests", labels(model="", policy="logged", tenant=tenant)] == count
    judged = arena.results.sources[0].measured.tenants.filter(pl.col("pass").is_not_null())
    windows = [value for (metric, names), value in found.items()
               if metric == "fairreplay_tenant_windows_judged" and dict(names)["policy"] == "logged"]  # fmt: skip
    assert sum(windows) == len(judged)


@pytest.mark.parametrize("arrivals_only", [False, True])
def test_what_stands_for_production_is_what_a_report_judges(arena: Place, tmp_path: Path, arrivals_only: bool) -> None:
    """The log, or where it holds arrivals only the baseline replay: the figures that alert rules look at."""
    results = arena.results
    if arrivals_only:
        rows = arena.store.requests().select(
            "request_id", "tenant", "type", pl.col("arrived_at").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"),
            "prompt_tokens", "output_tokens",
        )  # fmt: skip
        (tmp_path / "log.jsonl").write_text(rows.write_ndjson(), encoding="utf-8")
        ingest([str(tmp_path / "log.jsonl")], tmp_path / "store", IngestOptions())
        store = open_store(tmp_path / "store")
        replay(store, arena.config, ["fcfs", "vtc"])
        results = Results(store, arena.config, arena.options)
    found = parsed(exposition(results)[0])
    stands = {
        dict(names)["policy"]: value for (metric, names), value in found.items() if metric == "fairreplay_production"
    }
    judged = "fcfs" if arrivals_only else "logged"
    assert stands == {name: float(name == judged) for name in ("logged", "fcfs", "vtc")}
    assert found["fairreplay_scr_latest_ratio", labels(model="", policy=judged)] <= 1
    assert any(metric == "fairreplay_episodes" and ("policy", judged) in names for metric, names in found)
