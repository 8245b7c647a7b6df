"""Put the report on disk: the page and its document, each either the old one or the new one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson

from fairreplay.errors import UsageError
from fairreplay.report.html import render
from fairreplay.report.schema import Document
from fairreplay.store.files import replace_bytes


@dataclass(frozen=True)
class Written:
    html: Path
    json: Path


def encode(document: Document) -> bytes:
    """The document as ``report.json`` holds it: keys in their order, two spaces, NaN refused."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"


def write_report(document: Document, output: Path) -> Written:
    """Write the page to ``output`` and the document beside it, with the same stem and ``.json``.

    ``output`` without ``.html`` is a folder: ``report.html`` and ``report.json`` go into it. The document is written
    first, so that a page never stands beside an older one of its numbers for want of space.

    Raises:
        UsageError: the place cannot be written to.
    """
    page = output if output.suffix.lower() in (".html", ".htm") else output / "report.html"
    beside = page.with_suffix(".json")
    html = render(document).encode("utf-8")
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(beside, encode(document))
        replace_bytes(page, html)
    except OSError as error:
        raise UsageError(f"{page}: cannot be written ({error.strerror}); choose another -o") from None
    return Written(html=page, json=beside)
