"""The page in Chromium: no request, no error, charts, anchors, zones, themes, paper, accessibility, narrow screens.

All tests share one browser and one written page; each has a context of its own.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Download, Page, sync_playwright

from fairreplay.report import text
from fairreplay.report.charts import charts
from fairreplay.report.controls import control_facts
from fairreplay.report.html import render
from fairreplay.report.previous import difference
from fairreplay.report.schema import ControlFacts, Document
from fairreplay.report.versions import upgraded
from fairreplay.report.words import CONTROL_DEEDS
from fairreplay.report.write import encode
from fairreplay.store.replays import CONTROL_SCHEMA
from tests.report.documents import renamed, stored

pytestmark = pytest.mark.xdist_group("browser")

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
DRAWN = "html[data-charts=drawn]"
HEADINGS = (
    "Verdict",
    "Timeline",
    "Can the sandbox be believed?",
    "Policies side by side",
    "Episodes",
    "Preemption audit",
    "Controls",
    "Cost estimates",
    "Data quality and method",
)
OPEN_ALL = "document.querySelectorAll('details').forEach((fold) => { fold.open = true; })"


def several() -> Document:
    """The stored document from 10:22 on, with two episodes, a held-out log and a previous report."""
    document = stored()
    document["validation"] = upgraded(stored(1))["validation"]
    for series in document["timeline"]:
        for key, column in series.items():
            if isinstance(column, list):
                series[key] = column[22:]  # type: ignore[literal-required]
    for one in document["heat"]:
        one["start"], one["x"] = one["start"][22:], [row[22:] for row in one["x"]]
    first = document["episodes"][0]
    other = copy.deepcopy(first)
    other["id"] = "ep-0000000001"
    other["start"], other["end"] = "2026-01-01T10:11:00.000000Z", "2026-01-01T10:12:00.000000Z"
    document["episodes"].append(other)
    document["previous"] = difference(document, stored(1))
    document["controls"] = held_back(document)
    return document


def held_back(document: Document) -> list[ControlFacts]:
    """Everything that controls can do, under each replay, to a tenant or a type in each of three minutes."""
    model, starts = document["period"]["models"][0], document["timeline"][0]["start"][:3]
    rows = [
        (model, "0", text.parse(start), control, what, None, "chat", 1234.5 + minute)
        if what == "cap"
        else (model, "0", text.parse(start), control, what, ("acme", "globex")[number % 2], None, 3.0 * number + minute)
        for number, (control, what) in enumerate(CONTROL_DEEDS)
        for minute, start in enumerate(starts, start=1)
    ]
    frame = pl.DataFrame(rows, schema=CONTROL_SCHEMA, orient="row")
    names = [source["name"] for source in document["sources"] if source["role"] != "logged"]
    return [control_facts(name, frame, 60_000_000) for name in names]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def document() -> Document:
    return several()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, document: Document) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(document), encoding="utf-8")
    return path


class Watched:
    """A page in a context of its own, with everything it asked for and complained about."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(60_000)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page: Page = self.context.new_page()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.route("**/*", lambda route: route.continue_() if _is_ours(route.request.url) else route.abort())

    def open(self, path: Path, anchor: str = "", *, drawn: bool = True) -> Page:
        self.page.goto(path.as_uri() + anchor)
        if drawn:
            self.page.wait_for_selector(DRAWN)
        return self.page

    def foreign(self) -> list[str]:
        return [url for url in self.requests if not _is_ours(url)]

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


@pytest.fixture(scope="module")
def shown(browser: Browser, report: Path) -> Iterator[Watched]:
    """The page once drawn, for the tests that leave it as they found it."""
    with Watched(browser, timezone_id="Asia/Kolkata", color_scheme="light") as watched:
        watched.open(report)
        yield watched


def _is_ours(url: str) -> bool:
    return url.startswith(("file:", "blob:", "data:"))


def until(page: Page, holds: Callable[[], bool]) -> bool:
    """Polled from outside: the page's policy forbids what a waiting predicate needs."""
    for _ in range(200):
        if holds():
            return True
        page.wait_for_timeout(50)
    return False


def test_draws_every_chart_without_a_request_or_a_complaint(shown: Watched, report: Path, document: Document) -> None:
    page = shown.page
    wanted = [chart.id for chart in charts(document)]
    assert sorted(page.locator(".plot").evaluate_all("(plots) => plots.map((plot) => plot.id)")) == sorted(wanted)
    for name in wanted:
        assert page.locator(f"#{name} .main-svg").count() >= 1, name
        drawn = page.locator(f"#{name} :is(.scatterlayer .trace, .barlayer .point, .heatmaplayer image)")
        assert drawn.count() > 0, name
    assert page.locator("#timeline-0 .scatterlayer .trace").count() == 12  # three sources, four metrics
    assert page.evaluate("document.querySelector('#causes').data.map((bar) => bar.x.length)") == [2] * len(
        document["episodes"][0]["shares"] or {}
    )
    assert shown.foreign() == []
    assert [url for url in shown.requests if url.startswith("file:")] == [report.as_uri()]
    assert shown.complaints == []


def test_timeline_zooms_and_keeps_its_ticks_readable(shown: Watched, report: Path) -> None:
    page = shown.page
    before = page.locator("#timeline-0 .xtick text").all_text_contents()
    pane = page.locator("#timeline-0 .nsewdrag").first
    pane.scroll_into_view_if_needed()
    box = pane.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 22, steps=4)
    page.mouse.up()
    ticks = page.locator("#timeline-0 .xtick text")
    assert until(page, lambda: ticks.all_text_contents() != before)
    assert 2 <= ticks.count() <= 10
    page.mouse.dblclick(box["x"] + box["width"] * 0.5, box["y"] + 20)
    assert until(page, lambda: ticks.all_text_contents() == before)
    assert shown.complaints == []


@pytest.mark.parametrize(
    "names",
    [
        ("</script><img src=x onerror=alert(1)>", '<a href="https://example.org">x</a>', "=HYPERLINK(1)", ""),
        ('"><svg/onload=alert(1)>', "\u202egnp.exe\x1b[31m", "x" * 10_000, "**b** | `c` %{x} {{ 7*7 }}"),
    ],
    ids=["tags, formula, empty", "attribute, marks, long, markdown"],
)
def test_hostile_names_stay_text(browser: Browser, tmp_path: Path, names: tuple[str, ...]) -> None:
    document = stored()
    for old, new in zip(("acme", "globex", "initech", "umbrella"), names, strict=True):
        document = renamed(document, old, new)
    document = renamed(document, "chat", names[0])
    path = tmp_path / "report.html"
    path.write_text(render(document), encoding="utf-8")
    with Watched(browser) as watched:
        page = watched.open(path)
        assert page.locator("a[href^=http], img, .plot a").count() == 0
        assert watched.foreign() == []
        assert watched.complaints == []
        assert page.locator(".plot:has(.main-svg)").count() == 8  # the page is whole
        labels = page.locator("#tenants-0 .ytick text").all_text_contents()
        shown = page.locator("#tenants tbody th").all_text_contents()
        for name in names:
            begins = text.visible(name)[:8]
            assert any(label.startswith(begins) for label in labels)
            assert any(cell.startswith(begins) for cell in shown)
        page.evaluate(OPEN_ALL)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_an_anchor_opens_its_episode(browser: Browser, report: Path, document: Document) -> None:
    first, second = (episode["id"] for episode in document["episodes"][:2])
    with Watched(browser) as watched:
        page = watched.open(report, f"#{second}", drawn=False)
        page.wait_for_selector(f"#{second}[open]")
        assert page.locator(f"#{second} dl").first.is_visible()
        page.evaluate(f"document.getElementById('{first}').open = false; location.hash = '{first}'")
        page.wait_for_selector(f"#{first}[open]")


def test_readable_without_scripts(browser: Browser, report: Path, document: Document) -> None:
    with Watched(browser, java_script_enabled=False) as watched:
        page = watched.open(report, drawn=False)
        shown = page.locator("body").inner_text()
        assert [heading.strip() for heading in page.locator("h2").all_inner_texts()] == list(HEADINGS)
        for heading in HEADINGS:
            assert page.get_by_role("heading", name=heading, exact=True).is_visible()
        assert document["verdict"]["sentence"] in shown
        for episode in document["episodes"]:
            assert episode["reason"] is not None
            assert episode["reason"] in shown
            assert episode["cause"] in shown
        assert "emergency" in shown
        assert page.locator(".plot:visible, button:visible, select:visible").count() == 0  # nothing that needs them
        assert page.locator("table").count() > 20


def test_the_zone_changes_labels_and_not_data(shown: Watched, report: Path, document: Document) -> None:
    data = (
        "JSON.stringify([...document.querySelectorAll('.plot')].map((plot) => plot.data.map((t) => [t.x, t.y, t.z])))"
    )
    cells = (
        "[...document.querySelectorAll('td')].filter((cell) => !cell.querySelector('time')).map((c) => c.textContent)"
    )
    start = document["episodes"][0]["start"]
    page = shown.page
    when = page.locator(f"#{document['episodes'][0]['id']} summary time").first
    assert when.inner_text() == "2026-01-01 10:20"
    assert page.locator("#zone option").nth(1).get_attribute("value") in ("Asia/Kolkata", "Asia/Calcutta")
    before, unchanged = page.evaluate(data), page.evaluate(cells)
    page.select_option("#zone", index=1)
    assert when.inner_text() == "2026-01-01 15:50"  # five and a half hours later
    assert when.get_attribute("datetime") == start
    ticks = page.locator("#timeline-0 .xtick text")
    assert until(page, lambda: any(tick.startswith("15:") for tick in ticks.all_text_contents()))
    assert re.search(r"\(Asia/(Kolkata|Calcutta)\)", page.locator("#timeline-0 .xtitle").text_content() or "")
    assert page.locator("table .zone").first.inner_text() != "UTC"
    assert page.locator(".utc-note:visible").count() > 0  # sentences keep their times, and say so
    assert page.evaluate(data) == before
    assert page.evaluate(cells) == unchanged
    page.select_option("#zone", "America/New_York")
    assert when.inner_text() == "2026-01-01 05:20"
    page.select_option("#zone", "UTC")
    assert when.inner_text() == "2026-01-01 10:20"
    assert until(page, lambda: any(tick.startswith("10:") for tick in ticks.all_text_contents()))
    assert shown.complaints == []


def test_axe_finds_nothing(shown: Watched, report: Path) -> None:
    page = shown.page
    page.evaluate(OPEN_ALL)
    outside = {"exclude": [[".main-svg"]]}  # axe judges no colours of SVG text; the plots' own elements it does
    found = Axe().run(page, context=outside)
    assert found.violations_count == 0, found.generate_report()
    page.emulate_media(color_scheme="dark")  # what depends on the scheme is contrast
    found = Axe().run(page, context=outside, options={"runOnly": ["color-contrast"]})
    assert found.violations_count == 0, found.generate_report()
    page.emulate_media(color_scheme="light")


def test_the_keyboard_reaches_everything(browser: Browser, report: Path, document: Document) -> None:
    with Watched(browser) as watched:
        page = watched.open(report, drawn=False)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
        assert page.locator(".skip").bounding_box()["x"] >= 0  # type: ignore[index]
        second = document["episodes"][1]["id"]
        page.locator(f"#{second} > summary").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector(f"#{second}[open]")
        # what scrolls by itself can be reached, so that arrows scroll it
        assert page.evaluate("[...document.querySelectorAll('.scroll')].every((frame) => frame.tabIndex === 0)")


def test_dark_follows_the_reader(shown: Watched, report: Path) -> None:
    line = "document.querySelector('#timeline-0').data[0].line.color"
    page = shown.page
    assert until(page, lambda: page.evaluate(line) == "#1b1f24")  # drawn anew after an earlier test's dark
    page.emulate_media(color_scheme="dark")
    assert until(page, lambda: page.evaluate(line) == "#e6e9ed")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 24)"
    page.emulate_media(color_scheme="light")
    assert until(page, lambda: page.evaluate(line) == "#1b1f24")


def test_a_narrow_screen_scrolls_tables_not_the_page(shown: Watched, report: Path) -> None:
    page = shown.page
    page.set_viewport_size({"width": 360, "height": 800})
    page.evaluate(OPEN_ALL)
    assert until(page, lambda: page.evaluate("document.documentElement.scrollWidth") <= 360)  # charts follow
    page.set_viewport_size({"width": 1280, "height": 720})


def test_works_in_a_sandboxed_frame(browser: Browser, report: Path, tmp_path: Path) -> None:
    ticket = tmp_path / "ticket.html"
    report_here = tmp_path / "report.html"
    report_here.write_bytes(report.read_bytes())
    ticket.write_text('<iframe sandbox="allow-scripts" src="report.html" width="900" height="600"></iframe>')
    with Watched(browser) as watched:
        watched.page.goto(ticket.as_uri())
        frame = watched.page.frames[1]
        frame.wait_for_selector(DRAWN)
        assert frame.locator("#timeline-0 .main-svg").count() >= 1
        frame.select_option("#zone", "Asia/Tokyo")
        assert frame.locator("header time").first.inner_text() == "2026-01-01 19:00:00"
        frame.locator(".episode .link button").first.click()
        assert until(watched.page, lambda: "opied" in frame.locator("#status").inner_text() or "copy" in
                     frame.locator("#status").inner_text())  # fmt: skip
        assert watched.complaints == []


def test_saves_the_document_and_tables_and_copies_links(browser: Browser, tmp_path: Path, document: Document) -> None:
    evil, plus, long = '=HYPERLINK("x")', "+49, call", "n" * 60
    for old, new in (("acme", evil), ("globex", plus), ("initech", long)):
        document = renamed(document, old, new)
    path = tmp_path / "report.html"
    path.write_text(render(document), encoding="utf-8")
    with Watched(browser, permissions=["clipboard-read", "clipboard-write"], accept_downloads=True) as watched:
        page = watched.open(path)

        def saved(button: str) -> bytes:
            with page.expect_download() as got:
                page.get_by_role("button", name=button, exact=True).first.click()
            download: Download = got.value
            return Path(download.path()).read_bytes()

        assert saved("Save JSON") == encode(document)
        assert json.loads(saved("Save JSON"))["schema_version"] == document["schema_version"]
        rows = list(csv.reader(io.StringIO(saved("Save as CSV: Tenants, hurt most first").decode())))
        assert len({len(row) for row in rows}) == 1
        assert rows[0][:3] == ["tenant", "logged SLO", "logged n"]
        assert {row[0] for row in rows[1:]} == {f"'{evil}", f"'{plus}", long, "umbrella"}
        numbers = list(csv.reader(io.StringIO(saved("Save as CSV: Would gain under vtc").decode())))
        assert float(numbers[1][2]) < 0  # a negative number is no formula
        page.locator(".episode .link button").first.click()
        assert until(page, lambda: page.locator("#status").inner_text() == "Link copied.")
        link = page.evaluate("navigator.clipboard.readText()")
        assert link == f"{path.as_uri()}#{document['episodes'][0]['id']}"
        assert watched.complaints == []


def test_paper_shows_the_folds_in_light_colours(shown: Watched, report: Path) -> None:
    page = shown.page
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = false; })")
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.querySelector('#timeline-0').data[0].line.color") == "#1b1f24"
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0
    page.emulate_media(media="null", color_scheme="light")


def test_paper_holds_every_cell(shown: Watched, tmp_path: Path) -> None:
    assert lost_on_paper(shown.page, tmp_path / "report.pdf") == set()
    assert shown.complaints == []


def test_paper_holds_every_cell_without_scripts(browser: Browser, report: Path, tmp_path: Path) -> None:
    with Watched(browser, java_script_enabled=False) as watched:
        page = watched.open(report, drawn=False)
        assert lost_on_paper(page, tmp_path / "report.pdf") == set()


def lost_on_paper(page: Page, path: Path) -> set[str]:
    """Cells of the page whose text is not in the printed page; what breaks over lines counts word by word."""
    page.pdf(path=str(path), prefer_css_page_size=True)
    cells = page.locator("td, th").all_text_contents()
    assert len(cells) > 500
    printed = subprocess.run(["pdftotext", "-layout", path, "-"], capture_output=True, check=True).stdout.decode()
    words, squeezed = set(printed.split()), re.sub(r"\s+", "", printed)
    return {cell for cell in cells if re.sub(r"\s+", "", cell) not in squeezed and not set(cell.split()) <= words}
