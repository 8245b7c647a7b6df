"""What controls did, from the rows that a replay keeps to the page, to tickets and to a redacted report."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fairreplay.cli.report import summary_text
from fairreplay.config.load import parse_config
from fairreplay.config.model import Config
from fairreplay.metrics.options import measure_options
from fairreplay.report.chart_controls import POINTS_MAX, controls
from fairreplay.report.chart_parts import points, styles
from fairreplay.report.controls import control_facts, in_episode
from fairreplay.report.gather import report_document
from fairreplay.report.html import render
from fairreplay.report.redaction import OURS, Redaction
from fairreplay.report.schema import ControlFacts, Document
from fairreplay.report.ticket import ticket
from fairreplay.report.versions import checked
from fairreplay.report.words import CONTROL_DEEDS, amount, control_line, control_words
from fairreplay.report.write import Written
from fairreplay.sandbox.controls.record import COUNTED, MODES
from fairreplay.sandbox.engine import REASON_NAMES
from fairreplay.sandbox.replay import config_hash, find_replays
from fairreplay.store.replays import CONTROL_SCHEMA
from fairreplay.store.store import Store
from fairreplay.trace.pseudonyms import Pseudonyms
from tests.report import scene
from tests.report.documents import HOSTILE, Page, unpacked
from tests.report.documents import stored as stored_document

MINUTE_US = 60_000_000
DAY = datetime(2026, 3, 2, tzinfo=UTC)


def at(minute: int) -> str:
    return (DAY + timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def rows(*told: tuple[int, str, str, str | None, str | None, float], model: str | None = None) -> pl.DataFrame:
    """Rows of (minute, control, what, tenant, type, value), each of a replica of its own."""
    return pl.DataFrame(
        [(model, str(number), DAY + timedelta(minutes=one[0]), *one[1:]) for number, one in enumerate(told)],
        schema=CONTROL_SCHEMA,
        orient="row",
    )


BY_HAND = rows(
    (3, "refusal", "queue_time", "b", None, 2.0),
    (1, "refusal", "queue_time", "a", None, 5.0),
    (3, "refusal", "queue_time", "a", None, 4.0),
    (3, "refusal", "queue_time", "a", None, 1.0),
    (1, "backpressure", "rate_per_s", "a", None, 0.5),
    (2, "backpressure", "rate_per_s", "b", None, 0.25),
    (2, "backpressure", "rate_per_s", "a", None, 2.0),
    (2, "emergency", "cap", None, "chat", 90.0),
    (9, "emergency", "isolation_s", None, None, 12.5),
    (1, "retry", "came_back", "a", None, 3.0),
)


def test_deeds_by_hand() -> None:
    """Sums over replicas and tenants, of rates and caps the lowest; in the order of the words, whom most first."""
    facts = control_facts("vtc", BY_HAND, MINUTE_US)
    assert (facts["source"], facts["window_s"]) == ("vtc", 60.0)
    told = [(one["control"], one["what"], one["value"], one["most"], one["most_at"]) for one in facts["deeds"]]
    assert told == [
        ("refusal", "queue_time", 12.0, 7.0, at(3)),
        ("retry", "came_back", 3.0, 3.0, at(1)),
        ("backpressure", "rate_per_s", 0.25, 0.25, at(2)),
        ("emergency", "isolation_s", 12.5, 12.5, at(9)),
        ("emergency", "cap", 90.0, 90.0, at(2)),
    ]
    refused, _, rates, mode, cap = facts["deeds"]
    assert (refused["start"], refused["values"]) == ([at(1), at(3)], [5.0, 7.0])
    assert [(one["tenant"], one["value"]) for one in refused["who"]] == [("a", 10.0), ("b", 2.0)]
    assert (rates["start"], rates["values"]) == ([at(1), at(2)], [0.5, 0.25])
    assert [(one["tenant"], one["value"]) for one in rates["who"]] == [("b", 0.25), ("a", 0.5)]
    assert mode["who"] == []
    assert cap["who"] == [{"tenant": None, "type": "chat", "value": 90.0}]


def test_an_episode_has_the_windows_that_touch_it() -> None:
    facts = [control_facts("vtc", BY_HAND, MINUTE_US), control_facts("fcfs", BY_HAND.clear(), MINUTE_US)]
    vtc, fcfs = in_episode(facts, None, at(2), at(4))
    assert vtc["source"] == "vtc"
    assert [(one["control"], one["what"], one["value"]) for one in vtc["deeds"]] == [
        ("refusal", "queue_time", 7.0),
        ("backpressure", "rate_per_s", 0.25),
        ("emergency", "cap", 90.0),
    ]
    assert fcfs == {"source": "fcfs", "deeds": []}
    assert in_episode(facts, "another model", at(0), at(20))[0]["deeds"] == []
    half = (DAY + timedelta(minutes=1, seconds=30)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert in_episode(facts, None, half, at(2))[0]["deeds"][0] == {
        "control": "refusal",
        "what": "queue_time",
        "value": 5.0,
    }


def test_models_are_told_apart_and_added_in_the_terminal() -> None:
    both = pl.concat([BY_HAND, rows((1, "refusal", "queue_time", "a", None, 8.0), model="llama")])
    deeds = control_facts("vtc", both, MINUTE_US)["deeds"]
    assert [one["model"] for one in deeds] == [None] * 5 + ["llama"]
    assert control_line(deeds) == (
        "20 refused (too long in the queue), 3 came back after a refusal, 0.250 requests/s at the lowest rate, "
        "12.5 s in the mode isolation, 90 units of cost a window at the lowest cap"
    )
    assert control_line([]) == "nothing"


def test_everything_that_a_replay_records_has_words() -> None:
    recorded = {("refusal", name) for name in REASON_NAMES.values() if name}
    for control, what in COUNTED.values():
        recorded |= {(control, what)} | ({(control, f"{what}_tokens")} if what != "denied" else set())
    for mode in MODES.values():
        recorded |= {("emergency", f"entered_{mode}"), ("emergency", f"left_{mode}"), ("emergency", f"{mode}_s")}
    recorded |= {("retry", "came_back"), ("backpressure", "limited_s"), ("backpressure", "rate_per_s")}
    assert recorded | {("emergency", "cap")} == set(CONTROL_DEEDS)
    assert {part for deed in CONTROL_DEEDS for part in deed} <= OURS
    assert control_words("quota", "over_it") == "quota: over it"  # of a later version


@pytest.mark.parametrize(
    ("value", "shown"), [(3.0, "3"), (1204.0, "1,204"), (0.444, "0.444"), (9.5, "9.500"), (59.429, "59.4")]
)
def test_amounts(value: float, shown: str) -> None:
    assert amount(value) == shown


# ---- the chart ----


def drawn(facts: list[ControlFacts]) -> Any:
    document = stored_document()
    document["controls"] = facts
    return controls(document, document["period"]["models"][0], 0, styles(document["sources"]))


def of_the_sample(minutes: dict[int, float]) -> ControlFacts:
    """Refusals in minutes after the first window of the stored document, under its first replay."""
    document = stored_document()
    first = datetime.fromisoformat(document["timeline"][0]["start"][0])
    model = document["period"]["models"][0]
    told = pl.DataFrame(
        [
            (model, "0", first + timedelta(minutes=minute), "refusal", "queue_full", "acme", None, value)
            for minute, value in minutes.items()
        ],
        schema=CONTROL_SCHEMA,
        orient="row",
    )
    name = next(source["name"] for source in document["sources"] if source["role"] != "logged")
    return control_facts(name, told, MINUTE_US)


def test_the_chart_has_the_empty_windows_beside_the_full_ones() -> None:
    chart = drawn([of_the_sample({4: 2.0, 5: 7.0, 9: 1.0})])
    (line,) = chart.figure["data"]
    document = stored_document()
    series = document["timeline"][0]["start"]
    first = datetime.fromisoformat(series[0])
    minutes = [(datetime.fromisoformat(x).replace(tzinfo=UTC) - first).total_seconds() / 60 for x in line["x"]]
    last = (datetime.fromisoformat(series[-1]) - first).total_seconds() / 60
    assert list(zip(minutes, line["y"], strict=True)) == [
        (0, 0), (3, 0), (4, 2), (5, 7), (6, 0), (8, 0), (9, 1), (10, 0), (last, 0),
    ]  # fmt: skip
    assert chart.title == "Controls: 10 refused under fcfs in 3 windows"


def test_no_chart_of_a_single_window() -> None:
    assert drawn([of_the_sample({4: 2.0})]) is None
    assert drawn([of_the_sample({})]) is None


def test_a_long_chart_keeps_the_highest_window() -> None:
    chart = drawn([of_the_sample({minute: 1.0 + (minute == 7777) for minute in range(20_160)})])
    assert max(chart.figure["data"][0]["y"]) == 2.0
    assert points(chart.figure)[0] <= POINTS_MAX + 4
    assert "Highest of each 6 windows drawn" in chart.note


# ---- the whole way ----

TENANTS = ("acme", "<b>globex</b>", "queue_time", "refusal")
"""One that looks like markup, and two that are called what the record calls things."""
CONTROLS = """
[retry]
attempts = 1
retry_after_ms = 2000
[backpressure]
rate_per_s = 3.0
window_ms = 5000
[emergency]
enabled = true
"""


def config(controls: str = CONTROLS) -> Config:
    text = scene.SETTINGS.replace("[cluster]", "[cluster]\nqueue_time_limit_ms = 8000" if controls else "[cluster]", 1)
    for old, new in zip(scene.TENANTS, TENANTS, strict=True):
        text = text.replace(f"[tenants.{old}]", f"[tenants.{json.dumps(new)}]")
    return parse_config(text + controls, "controls.toml")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return scene.stored(tmp_path_factory.mktemp("controls"), scene.log(TENANTS), config())


@pytest.fixture(scope="module")
def document(store: Store) -> Document:
    return report_document(store, config(), measure_options(config()))


def test_the_document_holds_what_the_replays_keep(store: Store, document: Document) -> None:
    found = find_replays(store, config())
    assert [facts["source"] for facts in document["controls"]] == list(found)
    for facts in document["controls"]:
        kept = store.replay_meta(found[facts["source"]])["controls"]
        told = {f"{deed['control']}.{deed['what']}": deed["value"] for deed in facts["deeds"]}
        lowest = told.pop("backpressure.rate_per_s")
        assert {**told, "backpressure.lowest_rate_per_s": lowest} == pytest.approx(kept)
        for deed in facts["deeds"]:
            if deed["what"] != "rate_per_s":
                assert sum(deed["values"]) == pytest.approx(deed["value"])
                assert sum(one["value"] for one in deed["who"]) in (0, pytest.approx(deed["value"]))
    assert checked(json.loads(json.dumps(document)), "report.json") == document


def test_the_page_shows_it(document: Document) -> None:
    html = render(document)
    page = Page(html)
    assert "Controls" in page.headings
    assert "<b>globex" not in html
    assert b'"controls-0"' in unpacked(html, "figures")
    for facts in document["controls"]:
        for deed in facts["deeds"]:
            words = control_words(deed["control"], deed["what"])
            assert any(row[:2] == [amount(deed["value"]), words] for row in page.rows)
    named = {one["tenant"] for facts in document["controls"] for deed in facts["deeds"] for one in deed["who"]}
    assert named == set(TENANTS)
    rows_of = {row[0] for row in page.rows if row}
    assert named <= rows_of


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_escaped_whatever_they_are(name: str, document: Document) -> None:
    changed = json.loads(json.dumps(document))
    for facts in changed["controls"]:
        for deed in facts["deeds"]:
            for one in deed["who"]:
                one["tenant"] = name if one["tenant"] == "acme" else one["tenant"]
    before, after = Page(render(document)), Page(render(changed))
    assert [tag for tag, _ in after.tags if tag != "bdi"][:50] == [tag for tag, _ in before.tags if tag != "bdi"][:50]
    allowed = {tag for tag, _ in before.tags} | {"details", "ul", "li"}
    assert {tag for tag, _ in after.tags} <= allowed
    assert not any(key.startswith("on") for _, attrs in after.tags for key in attrs)


def test_tickets_and_the_terminal_say_it(document: Document) -> None:
    (episode, *_) = document["episodes"]
    assert [one["source"] for one in episode["controls"]] == ["fcfs", "vtc"]
    said = ticket(episode)
    assert "## What the sandbox's controls did in these windows\n\n- Under `fcfs`: " in said
    assert "came back after a refusal" in said
    shown = summary_text(document, Written(Path("a.html"), Path("a.json"), ()))
    assert "Controls under vtc: " in shown
    assert max(len(line) for line in shown[shown.index("Controls under") :].splitlines()) <= 100


def test_no_name_is_left_where_names_are_hidden(store: Store, document: Document) -> None:
    redaction = Redaction(Pseudonyms(b"k" * 16))
    hidden = report_document(store, config(), measure_options(config()), redaction=redaction)
    for plain, told in zip(document["controls"], hidden["controls"], strict=True):
        assert [(one["control"], one["what"], one["value"], one["values"]) for one in told["deeds"]] == [
            (one["control"], one["what"], one["value"], one["values"]) for one in plain["deeds"]
        ]
        for before, after in zip(plain["deeds"], told["deeds"], strict=True):
            assert {one["tenant"]: one["value"] for one in after["who"]} == {
                redaction.name(str(one["tenant"])): one["value"] for one in before["who"]
            }
    text = json.dumps(hidden)
    assert "globex" not in text
    assert "acme" not in text
    page = render(hidden)
    assert "globex" not in page
    assert "globex" not in unpacked(page, "figures").decode()
    assert "refused (backpressure)" in Page(page).text


def test_without_controls_there_is_no_section(tmp_path: Path) -> None:
    plain = config(controls="")
    made = report_document(scene.stored(tmp_path, scene.log(TENANTS), plain), plain, measure_options(plain))
    assert "controls" not in made
    assert all("controls" not in episode for episode in made["episodes"])
    assert 'id="controls"' not in render(made)


def test_controls_that_had_nothing_to_do_say_so(store: Store, document: Document) -> None:
    idle: Document = {**document, "controls": [{"source": "fcfs", "window_s": 60.0, "deeds": []}]}
    assert "Nothing: no control had to act." in Page(render(idle)).text


def test_another_window_makes_another_replay(store: Store) -> None:
    """Controls are told by window: what was told by minutes is not taken for what is asked for by hours."""
    other = config().model_copy(update={"window": config().window.model_copy(update={"size": "3600s"})})
    assert find_replays(store, config()) != {}
    assert find_replays(store, other) == {}
    limit_only = parse_config("[cluster]\nqueue_time_limit_ms = 50\n", "t")
    longer = parse_config("[window]\nsize = '120s'\n[cluster]\nqueue_time_limit_ms = 50\n", "t")
    assert config_hash(store, limit_only, "fcfs") != config_hash(store, longer, "fcfs")
    assert config_hash(store, parse_config("", "t"), "fcfs") == config_hash(
        store, parse_config("[window]\nsize = '120s'\n", "t"), "fcfs"
    )
