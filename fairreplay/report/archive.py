"""A folder of reviews: the last good report, every review under the end of its period, and where the last one ended.

``report.html`` and ``report.json`` are the last good ones; ``report-<end>.html`` and ``.json`` are kept for each period
that was reviewed; ``review.json`` says which was the last, and is written last. Its bytes depend on the review alone:
when it was made is the file's own time of change.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

import orjson

from fairreplay.errors import StoreError, UsageError
from fairreplay.report.schema import Document
from fairreplay.report.write import Written, write_report
from fairreplay.store.files import replace_bytes
from fairreplay.store.objects import Place

STATE_NAME: Final = "review.json"
VERSION: Final = 1
_ARCHIVED: Final = re.compile(r"report-(\d{8}T\d{6}\.\d{6}Z)\.json")


@dataclass(frozen=True)
class State:
    """The last review. ``since`` is null where it began with the first request; ``until`` is not part of it."""

    since: datetime | None
    until: datetime
    report: str
    """The page's file name in the folder."""
    store_digest: str
    config_digest: str


def page_name(until: datetime) -> str:
    """``report-<end>.html``: names sort as the ends do."""
    return f"report-{until.astimezone(UTC):%Y%m%dT%H%M%S.%f}Z.html"


def read_state(folder: Place) -> State | None:
    """What the last review left in ``folder``; null where there was none.

    Raises:
        StoreError: the state file is damaged, or of a newer version.
    """
    path = folder / STATE_NAME
    try:
        found = orjson.loads(path.read_bytes())
        version = found.pop("version")
        if type(version) is int and version > VERSION:
            raise StoreError(f"{path}: state version {version} is newer than {VERSION}; use a newer fairreplay")
        instants = {key: None if found[key] is None else _instant(found[key]) for key in ("since", "until")}
        if instants["until"] is None:
            raise ValueError("until")
        return State(**{**found, **instants})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise StoreError(f"{path}: cannot be read or is damaged; remove it and the next review starts afresh") from None


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def reviewed_at_s(folder: Place) -> float:
    """When the last review was made: seconds since the epoch, of the machine's clock."""
    return (folder / STATE_NAME).stat().st_mtime


def earlier(folder: Place, until: datetime) -> list[Place]:
    """Documents of the reviews that ended before ``until``, the latest first."""
    own = page_name(until).removesuffix(".html") + ".json"
    found: list[Place] = [
        path for path in folder.glob("report-*.json") if _ARCHIVED.fullmatch(path.name) and path.name < own
    ]
    return sorted(found, key=lambda path: path.name, reverse=True)


def publish(folder: Place, document: Document, state: State) -> tuple[Written, Written]:
    """Put a review on disk: its own files first, then the last good report, the state last. The latter two.

    A run that is killed on the way leaves what was there or what is new of each, and the next run does the rest. A
    review that was made before does not count as made anew.

    Raises:
        UsageError: the folder cannot be written to.
    """
    kept = write_report(document, folder / state.report)
    latest = Written(html=folder / "report.html", json=folder / "report.json")
    content = orjson.dumps({"version": VERSION} | _plain(state), option=orjson.OPT_INDENT_2) + b"\n"
    path = folder / STATE_NAME
    try:
        for source, target in ((kept.json, latest.json), (kept.html, latest.html)):
            replace_bytes(target, source.read_bytes())
        if not path.exists() or path.read_bytes() != content:
            replace_bytes(path, content)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written ({error.strerror}); choose another -o") from None
    return latest, kept


def _plain(state: State) -> dict[str, object]:
    return {
        key: value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if isinstance(value, datetime) else value
        for key, value in asdict(state).items()
    }
