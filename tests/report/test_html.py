"""The page: empty first, then hostile names, then what it must hold."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from typing import Any

import plotly.graph_objects as go
import pytest

from fairreplay.errors import UsageError
from fairreplay.report import text
from fairreplay.report.charts import charts, styles
from fairreplay.report.html import render
from tests.report.documents import HOSTILE, Page, hostile, stored

HEADINGS = [
    "Verdict",
    "Timeline",
    "Can the sandbox be believed?",
    "Policies side by side",
    "Episodes",
    "Preemption audit",
    "Tenants",
    "Types",
    "Cost estimates",
    "Data quality and method",
]


def test_tags_are_ours_whatever_the_names(subtests: pytest.Subtests) -> None:
    ours = [tag for tag, _ in Page(render(stored())).tags]
    for name in HOSTILE:
        with subtests.test(name=name[:40]):
            page = Page(render(hostile(name)))
            # The fold of long names adds its own details, ul and li, and nothing else.
            long_name = len(text.visible(name)) > 28
            tags = [tag for tag, _ in page.tags]
            assert [tag for tag in tags if tag in ("script", "img", "svg", "a", "iframe", "style")] == [
                tag for tag in ours if tag in ("script", "img", "svg", "a", "iframe", "style")
            ]
            assert len(tags) - len(ours) == (5 if long_name else 0)
            assert not [attrs for _, attrs in page.tags for key in attrs if key.startswith("on")]
            assert {attrs["href"][0] for tag, attrs in page.tags if tag == "a" and attrs["href"]} == {"#"}
            assert " ".join(text.visible(name).split()) in page.text


def test_script_data_ends_nowhere_and_parses_back(subtests: pytest.Subtests) -> None:
    for name in HOSTILE:
        with subtests.test(name=name[:40]):
            html = render(hostile(name))
            raw = re.search(r'<script type="application/json" id="figures">(.*?)</script>', html, re.DOTALL)
            assert raw
            assert not set("<>&\u2028\u2029") & set(raw.group(1))
            assert json.loads(raw.group(1)) == [
                {"id": chart.id, "figure": chart.figure} for chart in charts(hostile(name))
            ]


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
    assert [heading for heading in page.headings if heading in HEADINGS] == HEADINGS
    assert document["verdict"]["sentence"] in page.text
    for episode in document["episodes"]:
        assert episode["id"] in [attrs.get("id") for _, attrs in page.tags]
    for row in document["comparison"]:
        assert f"{row['period_passing']} of {row['period_judged']}" in page.text
        assert text.seconds(row["ttft_ms"]["p99"]) in page.text
    for tenant in document["tenants"]:
        assert tenant["tenant"] in page.text
    assert "Not computed" in page.text  # the cost section says so
    assert page.text.index("tested on a log that it never saw") < page.text.index(document["verdict"]["sentence"])


def test_policy_allows_exactly_the_scripts_of_the_page_and_no_request() -> None:
    html = render(stored())
    page = Page(html)
    policy = next(attrs["content"] for tag, attrs in page.tags if tag == "meta" and "http-equiv" in attrs)
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy
    executed = [body for attrs, body in page.scripts if "type" not in attrs]
    packed = next(body for attrs, body in page.scripts if attrs.get("id") == "plotly")
    executed.append(gzip.decompress(base64.b64decode(packed)).decode())
    hashes = ["'sha256-" + base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() + "'" for body in executed]
    assert sorted(re.findall(r"'sha256-[^']+'", policy.split(";")[1])) == sorted(hashes)
    assert not [attrs for tag, attrs in page.tags if "src" in attrs or tag in ("link", "iframe", "object")]


def test_page_stays_small() -> None:
    assert len(render(stored()).encode()) < 2_500_000


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
    assert page.text.count("no model named") == 5
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {"timeline-0", "timeline-1", "ttft-1", "tenants-1"} <= set(ids)


def test_an_unknown_document_version_is_refused() -> None:
    document = stored()
    document["schema_version"] = 2
    with pytest.raises(UsageError, match="schema_version 2 is not known"):
        render(document)


def test_figures_are_valid_plotly() -> None:
    """Plotly's own validators accept every key and value of every figure."""
    drawn = charts(stored())
    assert [chart.id for chart in drawn] == ["held-out", "timeline-0", "ttft-0", "tenants-0"]
    for chart in drawn:
        go.Figure(chart.figure)


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
    title = next(chart.title for chart in charts(stored()) if chart.id == "timeline-0")
    # SCR of the log in the stored document: 1, 1, 1, 0, 0, 0, 0 and a drain window that does not count.
    assert title.startswith("logged: SCR below 0.95 in 4 of 7 windows (00:03 – 00:06); JFI below 0.9 in")


def test_long_timelines_are_thinned_to_the_lowest_and_say_so() -> None:
    document = stored()
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
    assert sum(len(trace["x"]) for trace in chart.figure["data"]) <= 40_000 + 12
    assert all(trace["mode"] == "lines" for trace in chart.figure["data"])
    assert min(value for value in chart.figure["data"][0]["y"] if value is not None) == 0.0
    assert chart.note.startswith("Lowest of each 7 windows drawn")
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
