"""The difference to an earlier report: by hand, over versions, and what is no report at all."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from fairreplay.errors import BadInputError, UsageError
from fairreplay.report.html import render
from fairreplay.report.previous import difference, load_previous
from fairreplay.report.schema import SCHEMA_VERSION, Document
from tests.report.documents import DATA, Page, stored


def moved(document: Document, *episodes: tuple[str, str, str]) -> Document:
    """``document`` with these episodes: id, start and end as HH:MM of 2026-01-01."""
    one = document["episodes"][0]
    document = copy.deepcopy(document)
    document["episodes"] = [
        copy.deepcopy(one)
        | {"id": name, "start": f"2026-01-01T{start}:00.000000Z", "end": f"2026-01-01T{end}:00.000000Z"}  # type: ignore[misc]
        for name, start, end in episodes
    ]
    return document


def test_new_ongoing_and_resolved_by_hand() -> None:
    before = moved(stored(), ("ep-a", "08:00", "08:10"), ("ep-b", "09:00", "09:10"), ("ep-c", "09:50", "10:00"))
    now = moved(
        stored(),
        ("ep-b", "09:00", "09:10"),  # the same: it lies in both periods
        ("ep-d", "10:02", "10:05"),  # two windows after c: it goes on
        ("ep-e", "10:13", "10:15"),
    )
    found = difference(now, before)
    assert found["ongoing"] == [{"id": "ep-b", "previous": "ep-b"}, {"id": "ep-d", "previous": "ep-c"}]
    assert found["new"] == ["ep-e"]
    assert [one["id"] for one in found["resolved"]] == ["ep-a"]
    assert found["sentence"] == "1 new episode, 2 ongoing, 1 resolved."
    assert found["same_settings"] is True
    assert (found["since"], found["until"]) == (before["period"]["since"], before["period"]["until"])


def test_three_windows_apart_is_another_episode() -> None:
    before = moved(stored(), ("ep-c", "09:50", "10:00"))
    assert difference(moved(stored(), ("ep-d", "10:03", "10:05")), before)["new"] == ["ep-d"]
    other = moved(stored(), ("ep-d", "10:02", "10:05"))
    other["episodes"][0]["model"] = "another"
    assert difference(other, before)["new"] == ["ep-d"]


def test_changes_of_the_figures() -> None:
    before, now = stored(), stored()
    before["verdict"]["groups"][0]["figures"][0] |= {"value": 0.9, "level": "yellow"}  # type: ignore[typeddict-item]
    before["verdict"]["groups"][0]["figures"][1]["value"] = None
    scr, jfi, tfr = difference(now, before)["figures"]
    value = now["verdict"]["groups"][0]["figures"][0]["value"]
    assert value is not None
    assert (scr["before"], scr["now"], scr["change"]) == (0.9, value, round(value - 0.9, 6))
    assert (scr["level_before"], scr["level_now"]) == ("yellow", "emergency")
    assert (jfi["before"], jfi["change"]) == (None, None)
    assert tfr["change"] == 0.0


def test_other_settings_are_said() -> None:
    before, now = stored(), stored()
    before["method"]["config_digest"] = "000000000000"
    now["previous"] = difference(now, before)
    page = Page(render(now))
    assert "It was made with other settings" in page.text


def test_the_page_tells_the_difference_in_the_verdict() -> None:
    before = moved(stored(), ("ep-a", "08:00", "08:10"))
    now = stored()
    now["previous"] = difference(now, before)
    page = Page(render(now))
    verdict = page.text[page.text.index("Since the previous report") : page.text.index("Timeline", 400)]
    assert "1 new episode, 0 ongoing, 1 resolved." in verdict
    assert f"{now['episodes'][0]['id']} new 2026-01-01" in page.cells
    assert "ep-a resolved 2026-01-01 08:00 2026-01-01 08:10" in page.cells
    assert "+0.000 since the previous report" in page.text


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_every_version_can_be_the_previous_one(version: int) -> None:
    previous = load_previous(DATA / f"document-{version}.json")
    assert previous["schema_version"] == SCHEMA_VERSION
    found = difference(stored(), previous)
    assert len(found["new"]) + len(found["ongoing"]) == len(stored()["episodes"])
    assert "Since the previous report" in Page(render(stored() | {"previous": found})).text  # type: ignore[operator,arg-type]


def test_what_is_no_report_is_said_in_a_line(tmp_path: Path) -> None:
    def given(content: str) -> Path:
        (tmp_path / "x.json").write_text(content, encoding="utf-8")
        return tmp_path / "x.json"

    with pytest.raises(UsageError, match=r"none\.json: cannot be read .*; give the report\.json"):
        load_previous(tmp_path / "none.json")
    with pytest.raises(BadInputError, match="no JSON"):
        load_previous(given("{"))
    for content in ("[]", "{}", '{"schema_version": 1}', '{"schema_version": 2}'):
        with pytest.raises(BadInputError, match="no report document"):
            load_previous(given(content))
    with pytest.raises(UsageError, match="schema_version 3 is not known"):
        load_previous(given('{"schema_version": 3}'))
    with pytest.raises(UsageError, match=r"schema_version \[1\] is not known"):
        load_previous(given('{"schema_version": [1]}'))
    document: Any = stored()
    document["episodes"][0]["start"] = 7
    with pytest.raises(BadInputError, match=r"\(episodes\.0\.start: .*string"):
        load_previous(given(json.dumps(document)))
