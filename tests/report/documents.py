"""Documents for the tests: the stored one of version 1, with other names in it, and the empty one."""

from __future__ import annotations

import copy
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fairreplay.report.schema import Document

DATA = Path(__file__).parent / "data"

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    '<a href="https://example.org">x</a>',
    '" onmouseover="alert(1)',
    "'><svg onload=alert(1)>",
    "<!--",
    "]]>",
    "&lt;b&gt;",
    "%{x} {{ 7*7 }} ${7*7}",
    "=HYPERLINK(1)",
    "[/x]",
    "**bold** `code` | pipe",
    "\x1b[31mred",
    "abc\u202egnp.exe",
    "line\u2028separator\nnew",
    "",
    "x" * 10_000,
    "日本語 ✓ 👩‍👩‍👧",
)
"""Names as attackers and accidents write them."""


def stored() -> Document:
    document: Document = json.loads((DATA / "document-1.json").read_text(encoding="utf-8"))
    return document


def renamed(document: Document, old: str, new: str) -> Document:
    """``document`` with every string ``old`` replaced by ``new``."""

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item) for item in value]
        return new if value == old else value

    changed: Document = walk(copy.deepcopy(document))
    return changed


def hostile(name: str) -> Document:
    """A document in which a tenant, a type and a file are called ``name``."""
    document = stored()
    for old in ("acme", "completion", "FCFS.all_results_real.jsonl"):
        document = renamed(document, old, name)
    return document


class Page(HTMLParser):
    """The page as a browser without scripts reads it: tags with attributes, and text outside scripts and style."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.headings: list[str] = []
        self._text: list[str] = []
        self._inside: str | None = None
        self.feed(html)
        self.text = " ".join("".join(self._text).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag == "h2":
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attrs, body = self.scripts[-1]
            self.scripts[-1] = (attrs, body + data)
        elif self._inside != "style":
            self._text.append(data)
            if self._inside == "h2":
                self.headings[-1] += data
