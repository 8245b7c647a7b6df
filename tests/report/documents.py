"""Documents for the tests: the stored ones of every version, with other names in them, and as a page reads."""

from __future__ import annotations

import base64
import copy
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fairreplay.report.schema import Document

DATA = Path(__file__).parent / "data"
PACKED = re.compile(r'<script type="application/octet-stream" id="([\w-]+)"[^>]*>(.*?)</script>')

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


def stored(version: int = 2) -> Document:
    """The document of a version as it was written. Version 2: the packaged sample, four tenants of it under new names.

    It was redacted, so that other tenants carry pseudonyms.
    """
    document: Document = json.loads((DATA / f"document-{version}.json").read_text(encoding="utf-8"))
    return document


def unpacked(html: str, element: str) -> bytes:
    """The data that the page carries gzipped, in base64."""
    return next(inflated(body) for name, body in PACKED.findall(html) if name == element)


def opened(html: str) -> str:
    """The page with its packed data, plotly.js left out, as the text that it is: base64 may spell anything."""
    return PACKED.sub(lambda found: "" if found[1] == "plotly" else inflated(found[2]).decode(), html)


def inflated(packed: str) -> bytes:
    return gzip.decompress(base64.b64decode(packed))


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
    for old in ("acme", "completion", "prod.jsonl"):
        document = renamed(document, old, name)
    return document


class Page(HTMLParser):
    """The page as a browser without scripts reads it: tags with attributes, and text outside scripts and style."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.headings: list[str] = []
        self.rows: list[list[str]] = []
        self._text: list[str] = []
        self._inside: str | None = None
        self._cell = False
        self.feed(html)
        self.text = " ".join("".join(self._text).split())
        self.cells = "\n".join(" ".join(" ".join(cell.split()) for cell in row) for row in self.rows)
        """Every table's rows, a line each, cells apart by a space."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag == "h2":
            self.headings.append("")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = None
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attrs, body = self.scripts[-1]
            self.scripts[-1] = (attrs, body + data)
        elif self._inside != "style":
            self._text.append(data)
            if self._cell:
                self.rows[-1][-1] += data
            if self._inside == "h2":
                self.headings[-1] += data
