"""Put the report on disk: the page and its document, each either the old one or the new one."""

from __future__ import annotations

from dataclasses import dataclass

from fairreplay.errors import UsageError
from fairreplay.report.html import encoded as encode
from fairreplay.report.html import render
from fairreplay.report.schema import Document
from fairreplay.report.ticket import ticket, ticket_name
from fairreplay.store.files import replace_bytes
from fairreplay.store.objects import Place


@dataclass(frozen=True)
class Written:
    html: Place
    json: Place
    tickets: tuple[Place, ...] = ()


def write_report(document: Document, output: Place) -> Written:
    """Write the page to ``output``, the document beside it with the same stem and ``.json``, and each episode's ticket.

    ``output`` without ``.html`` is a folder: ``report.html`` and ``report.json`` go into it. The document is written
    first, so that a page never stands beside an older one of its numbers for want of space.

    Raises:
        UsageError: the place cannot be written to.
    """
    page = output if output.suffix.lower() in (".html", ".htm") else output / "report.html"
    beside = page.with_suffix(".json")
    tickets = tuple(page.parent / ticket_name(episode["id"]) for episode in document["episodes"])
    html = render(document).encode("utf-8")
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(beside, encode(document))
        for path, episode in zip(tickets, document["episodes"], strict=True):
            replace_bytes(path, ticket(episode).encode())
        replace_bytes(page, html)
    except OSError as error:
        raise UsageError(f"{page}: cannot be written ({error.strerror}); choose another -o") from None
    return Written(html=page, json=beside, tickets=tickets)
