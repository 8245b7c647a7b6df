"""The page in Chromium: no request, no error, charts, anchors, themes, paper, accessibility, narrow screens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from fairreplay.report.html import render
from tests.report.documents import renamed, stored

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
DRAWN = "html[data-charts=drawn]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(stored()), encoding="utf-8")
    return path


class Watched:
    """A page in a context of its own, with everything it asked for and complained about."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page: Page = self.context.new_page()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.route("**/*", lambda route: route.continue_() if _is_file(route.request.url) else route.abort())

    def open(self, path: Path, anchor: str = "", *, drawn: bool = True) -> Page:
        self.page.goto(path.as_uri() + anchor)
        if drawn:
            self.page.wait_for_selector(DRAWN)
        return self.page

    def foreign(self) -> list[str]:
        return [url for url in self.requests if not _is_file(url)]

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


def _is_file(url: str) -> bool:
    return url.startswith("file:")


def test_draws_every_chart_without_a_request_or_a_complaint(browser: Browser, report: Path) -> None:
    with Watched(browser) as watched:
        page = watched.open(report)
        plots = page.locator(".plot")
        assert plots.count() == 4
        assert page.locator(".plot .main-svg").count() >= 4
        assert page.locator("#timeline-0 .scatterlayer .trace").count() == 12  # three sources, four metrics
        assert watched.foreign() == []
        assert len(watched.requests) == 1
        assert watched.complaints == []


def test_hostile_names_stay_text(browser: Browser, tmp_path: Path) -> None:
    names = {
        "acme": "</script><img src=x onerror=alert(1)>",
        "globex": '<a href="https://example.org">x</a>',
        "initech": '"><svg/onload=alert(1)>',
        "umbrella": "x" * 10_000,
    }
    document = stored()
    for old, new in names.items():
        document = renamed(document, old, new)
    path = tmp_path / "report.html"
    path.write_text(render(document), encoding="utf-8")
    with Watched(browser) as watched:
        page = watched.open(path)
        assert page.locator("a[href^=http], img, .plot a").count() == 0
        assert watched.foreign() == []
        assert watched.complaints == []
        labels = page.locator("#tenants-0 .ytick text").all_text_contents()
        for name in names.values():
            assert any(label.startswith(name[:8]) for label in labels)


def test_an_anchor_opens_its_episode(browser: Browser, report: Path) -> None:
    first, second = (episode["id"] for episode in stored()["episodes"])
    with Watched(browser) as watched:
        page = watched.open(report, f"#{second}")
        assert page.locator(f"#{second} dl").is_visible()
        page.evaluate(f"document.getElementById('{first}').open = false; location.hash = '{first}'")
        page.wait_for_selector(f"#{first}[open]")


def test_readable_without_scripts(browser: Browser, report: Path) -> None:
    document = stored()
    with Watched(browser, java_script_enabled=False) as watched:
        page = watched.open(report, drawn=False)
        shown = page.locator("body").inner_text()
        for heading in ("Verdict", "Timeline", "Can the sandbox be believed?", "Policies side by side", "Episodes",
                        "Preemption audit", "Cost estimates", "Data quality and method"):  # fmt: skip
            assert page.get_by_role("heading", name=heading, exact=True).is_visible()
        assert document["verdict"]["sentence"] in shown
        assert "emergency" in shown
        assert page.locator(".plot:visible").count() == 0  # no empty boxes


def test_axe_finds_nothing(browser: Browser, report: Path) -> None:
    with Watched(browser, color_scheme="light") as watched:
        page = watched.open(report)
        page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            found = Axe().run(page)
            assert found.violations_count == 0, found.generate_report()


def test_dark_follows_the_reader(browser: Browser, report: Path) -> None:
    line = "document.querySelector('#timeline-0').data[0].line.color"
    with Watched(browser, color_scheme="light") as watched:
        page = watched.open(report)
        assert page.evaluate(line) == "#1b1f24"
        page.emulate_media(color_scheme="dark")
        for _ in range(100):  # the page's policy forbids what a waiting predicate needs
            if page.evaluate(line) == "#e6e9ed":
                break
            page.wait_for_timeout(50)
        assert page.evaluate(line) == "#e6e9ed"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 24)"


def test_a_narrow_screen_scrolls_tables_not_the_page(browser: Browser, report: Path) -> None:
    with Watched(browser, viewport={"width": 400, "height": 800}) as watched:
        page = watched.open(report)
        page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400


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
        assert watched.complaints == []


def test_paper_shows_the_folds_in_light_colours(browser: Browser, report: Path, tmp_path: Path) -> None:
    with Watched(browser, color_scheme="dark") as watched:
        page = watched.open(report)
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.evaluate("document.querySelector('#timeline-0').data[0].line.color") == "#1b1f24"
        assert page.locator("details:not([open])").count() == 0
        page.pdf(path=str(tmp_path / "report.pdf"))
        assert (tmp_path / "report.pdf").stat().st_size > 10_000
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator("details:not([open])").count() > 0
