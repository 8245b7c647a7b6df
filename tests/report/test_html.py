"""The page: empty first, then hostile names, then what it must hold."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from typing import Any

import plotly.graph_objects as go
import pytest

from fairreplay.errors import UsageError
from fairreplay.report import text
from fairreplay.report.chart_parts import points, styles
from fairreplay.report.charts import charts
from fairreplay.report.html import render
from fairreplay.report.schema import SCHEMA_VERSION
from fairreplay.report.versions import STEPS, upgraded
from fairreplay.report.write import encode
from tests.report.documents import HOSTILE, Page, hostile, stored, unpacked

ALL_CHARTS = ("timeline-0", "ttft-0", "causes", "fixes", "overtakes-1", "heat-0", "entitlement-0", "tenants-0")

HEADINGS = [
    "Verdict",
    "Timeline",
    "Can the sandbox be believed?",
    "Policies side by side",
    "Episodes",
    "Preemption audit",
    "Cost estimates",
    "Data quality and method",
]


def test_tags_are_ours_whatever_the_names(subtests: pytest.Subtests) -> None:
    ours = [tag for tag, _ in Page(render(stored())).tags]
    for name in HOSTILE:
        with subtests.test(name=name[:40]):
            page = Page(render(hostile(name)))
            # A fold for long names adds its own details, summary, ul, li and bdi, and nothing else.
            tags = [tag for tag, _ in page.tags]
            active = ("script", "img", "svg", "a", "iframe", "style", "button", "input", "form")
            assert Counter(tag for tag in tags if tag in active) == Counter(tag for tag in ours if tag in active)
            more = Counter(tags) - Counter(ours)
            assert not Counter(ours) - Counter(tags)
            assert set(more) <= {"details", "summary", "ul", "li", "bdi"}
            assert not [attrs for _, attrs in page.tags for key in attrs if key.startswith("on")]
            assert {attrs["href"][0] for tag, attrs in page.tags if tag == "a" and attrs["href"]} == {"#"}
            assert " ".join(text.visible(name).split()) in page.text


def test_script_data_ends_nowhere_and_parses_back(subtests: pytest.Subtests) -> None:
    for name in HOSTILE:
        with subtests.test(name=name[:40]):
            html = render(hostile(name))
            data = re.findall(r'<script type="application/octet-stream" id="([a-z-]+)">(.*?)</script>', html, re.DOTALL)
            assert [found for found, _ in data] == ["figures", "plotly", "names-data", "document"]
            assert all(re.fullmatch(r"[A-Za-z0-9+/=]*", body) for _, body in data)
            assert json.loads(unpacked(html, "figures")) == [
                {"id": chart.id, "figure": chart.figure} for chart in charts(hostile(name))
            ]
            assert unpacked(html, "document") == encode(hostile(name))
            assert all(len(whole) > 14 for whole in json.loads(unpacked(html, "names-data")))


def test_plotly_labels_hold_no_markup() -> None:
    assert text.plotly_label('<a href="https://example.org">x</a>', 99) == (
        '&lt;a href="https://example.org"&gt;x&lt;/a&gt;'
    )
    assert text.plotly_label("&lt;b&gt;") == "&amp;lt;b&amp;gt;"
    assert "%{" not in text.plotly_label("%{x}")
    for name in HOSTILE:
        figures = json.dumps([chart.figure for chart in charts(hostile(name))])
        assert "<a" not in figures
        assert "<img" not in figures


def test_names_are_shown_not_obeyed() -> None:
    assert text.visible("") == '""'
    assert text.visible("\x1b[31m") == "\\u001b[31m"
    assert text.visible("abc\u202egnp.exe") == "abc\\u202egnp.exe"
    assert text.visible("\ud800") == "\\ud800"
    assert text.visible("日本語 👩‍👩‍👧") == "日本語 👩‍👩‍👧"
    assert text.short("x" * 10_000) == "x" * 23 + "…" + "x" * 23


def test_a_lone_surrogate_in_a_name_can_be_written() -> None:
    assert "\\ud800" in render(hostile("a\ud800b")).encode("utf-8").decode("utf-8")


def test_everything_stands_without_scripts() -> None:
    document = stored()
    page = Page(render(document))
    assert page.headings == HEADINGS
    assert document["verdict"]["sentence"] in page.text
    for episode in document["episodes"]:
        assert episode["id"] in [attrs.get("id") for _, attrs in page.tags]
    for row in document["comparison"]:
        assert f"{row['period_passing']} of {row['period_judged']}" in page.text
        assert text.seconds(row["ttft_ms"]["p99"]) in page.text
    for tenant in document["tenants"]:
        assert tenant["tenant"] in page.text
    for cost in document["costs"]["estimates"] or []:
        assert f"{cost['p50']:.3f}" in page.text
    assert "Capacity" not in page.headings


def test_the_check_on_an_unseen_log_stands_first() -> None:
    document = stored(1)
    page = Page(render(document))
    assert page.text.index("tested on a log that it never saw") < page.text.index(document["verdict"]["sentence"])


def test_every_version_of_the_document_renders(subtests: pytest.Subtests) -> None:
    for version in (*STEPS, SCHEMA_VERSION):
        with subtests.test(version=version):
            document = stored(version)
            page = Page(render(document))
            assert page.headings == HEADINGS
            assert document["verdict"]["sentence"] in page.text
            assert f"(schema {SCHEMA_VERSION})" in page.text
            assert upgraded(document)["schema_version"] == SCHEMA_VERSION


def test_an_episode_says_all_that_is_known_of_it() -> None:
    document = stored()
    (episode,) = document["episodes"]
    page = Page(render(document))
    assert episode["reason"] is not None
    verdict: Any = episode["verdict"]
    for said in (
        episode["reason"],
        *(one["says"] for one in verdict["signatures"].values()),
        *(one["title"] for one in verdict["recommendations"]),
        *(one["sentence"] for one in episode["differences"]),
        *verdict["assumptions"],
    ):
        assert " ".join(said.split()) in page.text
    # evidence: number, threshold, usual; a counterfactual: metrics and deficits left; a fix: episode and period
    burst = verdict["signatures"]["burst"]
    assert f"burst yes {burst['number']:.2f} {burst['threshold']:.2f} {burst['baseline']:.2f}" in page.cells
    for one in verdict["counterfactuals"]:
        what = " and ".join(one["without"]).replace("_", " ") or "nothing (the baseline)"
        values = [text.number(one["metrics"][key], 3) for key in ("scr", "jfi", "tfr", "min_x")]
        left = [text.number(one["deficits"][key], 2) for key in ("scr", "jfi", "tfr")]
        assert " ".join([what, *values, *left]) in page.cells
    for one in verdict["recommendations"]:
        for over, before, after in (
            ("episode", one["before"], one["after"]),
            ("period", one["period_before"], one["period_after"]),
        ):
            pairs = [text.number(side[key], 3) for key in ("scr", "jfi", "tfr", "min_x") for side in (before, after)]
            assert " ".join([over, *pairs]) in page.cells


def test_who_gains_and_who_pays_under_each_policy() -> None:
    page = Page(render(stored()))
    assert "Flooded the queue: acme (78 % of what was asked beyond fair shares; got 3.0 times its own)" in page.text
    assert "Under vtc 3 tenants would gain (" in page.text
    assert "and 1 tenant would pay (acme: mean TTFT +" in page.text
    vtc = stored()["differences"][1]
    matrix = vtc["matrix"]
    flat = [(tokens, i, j) for i, row in enumerate(matrix["tokens"]) for j, tokens in enumerate(row) if tokens]
    for tokens, i, j in flat:
        cells = [matrix["tenants"][i], matrix["tenants"][j], f"{matrix['pairs'][i][j]:,}", f"{tokens:,}"]
        assert " ".join(cells) in page.cells
    assert flat


def test_the_audit_by_utilisation_and_recovery() -> None:
    document = stored()
    page = Page(render(document))
    row = document["preemption"][0]
    assert row["bands"] is not None
    for band in row["bands"]:
        share = text.percent(band["preempted_requests"] / band["requests"])
        assert f"{band['requests']} {band['preempted_requests']} {share} {band['preemptions']}" in page.cells.replace(
            ",", ""
        )
    assert row["recovery"] is not None
    assert "recovery over 100 ms" in page.text
    assert "acme 4.000 4.000 25.0 % 2.46 ◆skewed" in page.cells


def test_long_names_stand_whole_once() -> None:
    name = "n" * 10_000
    html = render(hostile(name))
    assert html.count(name) == 1
    assert json.loads(unpacked(html, "names-data")) == [name]
    assert 'data-name="0"' in html
    assert len(html.encode()) < 2_600_000


def test_policy_allows_exactly_the_scripts_of_the_page_and_no_request() -> None:
    html = render(stored())
    page = Page(html)
    policy = next(attrs["content"] for tag, attrs in page.tags if tag == "meta" and "http-equiv" in attrs)
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy
    executed = [body for attrs, body in page.scripts if "type" not in attrs]
    executed.append(unpacked(html, "plotly").decode())
    hashes = ["'sha256-" + base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() + "'" for body in executed]
    assert sorted(re.findall(r"'sha256-[^']+'", policy.split(";")[1])) == sorted(hashes)
    assert not [attrs for tag, attrs in page.tags if "src" in attrs or tag in ("link", "iframe", "object")]


def test_page_stays_small() -> None:
    assert len(render(stored()).encode()) < 3_000_000


def test_empty_sections_say_so() -> None:
    document = stored()
    document["episodes"] = []
    document["fidelity"] = []
    document["validation"] = None
    document["data_quality"]["rejects"] = []
    document["data_quality"]["assumptions"] = []
    page = Page(render(document))
    assert "None: no window of the log was below a threshold." in page.text
    assert "no replay of the baseline policy belongs to this config" in page.text
    assert "never saw" not in page.text


def test_each_model_group_stands_under_its_name() -> None:
    document = stored()
    document["period"]["models"] = [None, "llama-70b"]
    for key in ("timeline", "comparison", "curves", "tenants", "types", "preemption", "fidelity"):
        rows: list[dict[str, Any]] = document[key]  # type: ignore[literal-required]
        rows += [row | {"model": "llama-70b"} for row in rows]
    document["verdict"]["groups"].append(document["verdict"]["groups"][0] | {"model": "llama-70b"})  # type: ignore[arg-type,operator]
    page = Page(render(document))
    assert page.text.count("Model llama-70b") == 5  # verdict, timeline, fidelity, policies, tenants
    assert page.text.count("no model named") >= 5
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {"timeline-0", "timeline-1", "ttft-1", "tenants-1"} <= set(ids)


def test_an_unknown_document_version_is_refused() -> None:
    document = stored()
    document["schema_version"] = 99
    with pytest.raises(UsageError, match="schema_version 99 is not known"):
        render(document)


def test_figures_are_valid_plotly() -> None:
    """Plotly's own validators accept every key and value of every figure."""
    drawn = charts(upgraded(stored(1))) + charts(stored())
    assert {chart.id for chart in drawn} == {"held-out", *ALL_CHARTS}
    for chart in drawn:
        go.Figure(chart.figure)
        assert chart.title
        for key, axis in chart.figure["layout"].items():
            if key.startswith(("xaxis", "yaxis")) and "tickvals" not in axis and axis.get("type") != "category":
                assert axis["title"]["text"]  # with its unit, times with their zone
                assert axis.get("type") != "date" or axis["title"]["text"].endswith("(UTC)")


def test_a_chart_over_the_budget_is_left_out() -> None:
    document = stored()
    assert sum(points(chart.figure)[0] for chart in charts(document)) < 48_000
    heat = document["heat"][0]
    for one in document["heat"]:
        one["start"] = one["start"] * 500
        one["x"] = [row * 500 for row in one["x"]]
    assert len(heat["start"]) * len(heat["tenants"]) > 48_000
    assert {chart.id for chart in charts(document)} == set(ALL_CHARTS) - {"heat-0"}


def test_one_look_per_policy_and_ink_for_the_log() -> None:
    document = stored()
    looks = styles(document["sources"])
    assert looks["logged"].color == "var(--ink)"
    assert looks["logged"].dash == "solid"
    assert (looks["fcfs"].color, looks["vtc"].color) == ("#0072B2", "#D55E00")
    for chart in charts(document):
        for trace in chart.figure["data"]:
            if trace["name"] in looks and "line" in trace:
                assert trace["line"]["color"] == looks[trace["name"]].color
    # a policy without a place of its own takes a free one, never that of another
    extra = [source | {"name": name, "policy": name} for source in document["sources"][1:2] for name in ("vtc", "mine")]
    assert styles(extra)["mine"].color not in {"#D55E00"}  # type: ignore[arg-type]


def test_timeline_title_says_what_happened() -> None:
    # SCR of the log in the stored document: 1, 1, 1, 0, 0, 0, 0 and a drain window that does not count.
    title = next(chart.title for chart in charts(upgraded(stored(1))) if chart.id == "timeline-0")
    assert title.startswith("logged: SCR below 0.95 in 4 of 7 windows (00:03 – 00:06); JFI below 0.9 in")


def test_long_timelines_are_thinned_to_the_lowest_and_say_so() -> None:
    document = upgraded(stored(1))
    for series in document["timeline"]:
        times = 20_000 // len(series["start"])
        for key, column in series.items():
            if isinstance(column, list):
                series[key] = column * times  # type: ignore[literal-required]
        series["start"] = [
            text.iso(text.parse("2023-04-24T00:00:00Z") + timedelta(minutes=index))
            for index in range(len(series["start"]))
        ]
    chart = next(chart for chart in charts(document) if chart.id == "timeline-0")
    assert sum(len(trace["x"]) for trace in chart.figure["data"]) <= 36_000 + 12
    assert all(trace["mode"] == "lines" for trace in chart.figure["data"])
    assert min(value for value in chart.figure["data"][0]["y"] if value is not None) == 0.0
    assert "Lowest of each 7 windows drawn" in chart.note
    assert "240 lowest of" in Page(render(document)).text


def test_same_bytes_under_any_hash_seed() -> None:
    code = (
        "import hashlib; from tests.report.documents import stored; from fairreplay.report.html import render;"
        "print(hashlib.sha256(render(stored()).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(digests) == 1
