"""The difference to an earlier report: what is new, what goes on, what is over, and where the figures went."""

from __future__ import annotations

from typing import Final

import orjson

from fairreplay.errors import BadInputError, UsageError
from fairreplay.report import text
from fairreplay.report.rounding import rounded
from fairreplay.report.schema import Changes, Document, EpisodeRow, FigureChange, Ongoing, PastEpisode
from fairreplay.report.versions import checked
from fairreplay.store.objects import Place

GAP_WINDOWS_MAX: Final = 2
"""As within a report: episodes with at most so many windows between them are one, also across the border of periods."""


def load_previous(path: Place) -> Document:
    """The document of an earlier report (``report.json``), of any known version, as one of this version.

    Raises:
        UsageError: no such file, or a version that is not known. BadInputError: no report document.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}); give the report.json of an earlier report"
        ) from None
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise BadInputError(
            f"{path}: no JSON ({error.msg}, line {error.lineno}); give the report.json of an earlier report"
        ) from None
    return checked(found, str(path))


def difference(document: Document, previous: Document) -> Changes:
    """What changed since ``previous``.

    An episode goes on if the earlier report has it under the same id, or has one of the same model that overlaps it or
    ends at most two windows before it begins. Others are new; earlier ones that do not go on are resolved.
    """
    gap_s = GAP_WINDOWS_MAX * (document["period"]["window_s"] or 0.0)
    ongoing: list[Ongoing] = []
    new: list[str] = []
    for episode in document["episodes"]:
        earlier = _earlier(episode, previous["episodes"], gap_s)
        if earlier is None:
            new.append(episode["id"])
        else:
            ongoing.append({"id": episode["id"], "previous": earlier["id"]})
    kept = {one["previous"] for one in ongoing} | {
        one["id"] for one in previous["episodes"] if any(_meet(one, now, gap_s) for now in document["episodes"])
    }
    resolved: list[PastEpisode] = [_past(one) for one in previous["episodes"] if one["id"] not in kept]
    return {
        "since": previous["period"]["since"],
        "until": previous["period"]["until"],
        "same_settings": document["method"]["config_digest"] == previous["method"]["config_digest"]
        and document["period"]["window_s"] == previous["period"]["window_s"],
        "sentence": _sentence(len(new), len(ongoing), len(resolved)),
        "figures": _figures(document, previous),
        "new": new,
        "ongoing": ongoing,
        "resolved": resolved,
    }


def _earlier(episode: EpisodeRow, previous: list[EpisodeRow], gap_s: float) -> EpisodeRow | None:
    same = next((one for one in previous if one["id"] == episode["id"]), None)
    return same or next((one for one in previous if _meet(one, episode, gap_s)), None)


def _meet(earlier: EpisodeRow, now: EpisodeRow, gap_s: float) -> bool:
    if earlier["model"] != now["model"]:
        return False
    if earlier["id"] == now["id"]:
        return True
    begins = (text.parse(now["start"]) - text.parse(earlier["end"])).total_seconds()
    return begins <= gap_s and text.parse(earlier["start"]) < text.parse(now["end"])


def _past(one: EpisodeRow) -> PastEpisode:
    return {
        "id": one["id"],
        "model": one["model"],
        "start": one["start"],
        "end": one["end"],
        "level": one["level"],
        "cause": one["cause"],
        "reason": one["reason"],
    }


def _figures(document: Document, previous: Document) -> list[FigureChange]:
    """The three figures of each model group of this report; one that the earlier report lacks has no ``before``."""
    before = {
        (group["model"], figure["metric"]): figure
        for group in previous["verdict"]["groups"]
        for figure in group["figures"]
    }
    found: list[FigureChange] = []
    for group in document["verdict"]["groups"]:
        for figure in group["figures"]:
            was = before.get((group["model"], figure["metric"]))
            value = None if was is None else was["value"]
            known = value is not None and figure["value"] is not None
            found.append(
                {
                    "model": group["model"],
                    "metric": figure["metric"],
                    "before": value,
                    "now": figure["value"],
                    "change": rounded(figure["value"] - value) if known else None,  # type: ignore[operator]
                    "level_before": None if was is None else was["level"],
                    "level_now": figure["level"],
                }
            )
    return found


def _sentence(new: int, ongoing: int, resolved: int) -> str:
    if not new + ongoing + resolved:
        return "No episode then, none now."
    return f"{text.plural(new, 'new episode')}, {ongoing} ongoing, {resolved} resolved."
