"""``fairreplay review``: the same bytes again, from the last end on, not too often, and nothing half done."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fairreplay.cli import review as command
from fairreplay.errors import BadInputError, StoreError, UsageError
from fairreplay.report.archive import earlier, page_name, read_state
from fairreplay.store.store import lock_folder
from tests.cli.logs import DAY_S, SETTINGS, START_S, digest, fairreplay, write_log

app = typer.Typer()
app.command()(command.review)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fairreplay.toml").write_text(SETTINGS)
    return tmp_path


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


def told(*arguments: object) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_same_review_again_gives_the_same_bytes(place: Path) -> None:
    write_log(place / "a.jsonl", late=[1])
    first = told("a.jsonl")
    assert first["policies"] == first["replayed"] == ["fcfs", "vtc"]
    assert [first["since"], first["until"]] == [None, "2026-05-28T20:29:56.000001Z"]
    assert first["level"] == "emergency"  # SCR 1/2
    before, changed = digest(place), (place / "reports" / "review.json").stat().st_mtime_ns
    assert {"reports/report.html", "reports/report-20260528T202956.000001Z.html"} <= before.keys()
    again = told("a.jsonl")
    assert again["replayed"] == []
    assert again["ingest"]["sources"][0]["changed"] is False
    assert digest(place) == before
    assert (place / "reports" / "review.json").stat().st_mtime_ns == changed


def test_two_places_and_two_hash_seeds_give_the_same_bytes(tmp_path: Path) -> None:
    found = []
    for seed in ("0", "1"):
        folder = tmp_path / seed
        folder.mkdir()
        (folder / "fairreplay.toml").write_text(SETTINGS)
        write_log(folder / "a.jsonl", late=[1])
        done = fairreplay("review", "a.jsonl", cwd=folder, env={"PYTHONHASHSEED": seed})
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "Kept as: reports/report-20260528T202956.000001Z.html"
        found.append(digest(folder))
    assert found[0] == found[1]


def test_since_last_begins_where_the_last_review_ended(place: Path) -> None:
    write_log(place / "a.jsonl", late=[1])
    write_log(place / "b.jsonl", day=1, late=[0, 2])
    first = told("a.jsonl", "--since", "last")
    second = told("*.jsonl", "--since", "last")
    assert first["since"] is None
    assert second["since"] == first["until"]
    assert second["until"] == "2026-05-29T20:29:56.000001Z"
    assert second["previous_report"] == "reports/report-20260528T202956.000001Z.json"
    changes = second["previous"]
    assert [len(changes[key]) for key in ("new", "ongoing", "resolved")] == [1, 0, 1]
    assert changes["until"] == first["until"].replace("000001Z", "000000Z")
    page = json.loads((place / "reports" / "report.json").read_text())
    assert page["period"]["requests"] == 90
    assert page["period"]["since"] == "2026-05-29T20:27:00.000000Z"
    before = digest(place)
    again = run("*.jsonl", "--since", "last", "--json")  # nothing new: the same period again
    assert json.loads(again.stdout)["since"] == second["since"]
    assert again.stderr == "no request arrived since the last review, to 2026-05-29 20:29 UTC: its period again\n"
    assert digest(place) == before


def test_replays_from_before_the_store_grew_are_removed(place: Path) -> None:
    write_log(place / "a.jsonl")
    told("a.jsonl")
    old = {path.name for path in (place / "fairreplay-store" / "replays").iterdir()}
    write_log(place / "b.jsonl", day=1)
    second = told("b.jsonl")
    assert set(second["removed_replays"]) == old
    assert {path.name.rpartition("-")[0] for path in (place / "fairreplay-store" / "replays").iterdir()} == {
        "fcfs",
        "vtc",
    }


@pytest.mark.parametrize(
    ("days", "is_due"), [(0.0, False), (7.0, False), (13.5, False), (13.9, True), (14.0, True), (15.0, True)]
)
def test_every_looks_at_the_clock(place: Path, monkeypatch: pytest.MonkeyPatch, days: float, is_due: bool) -> None:
    """Of a fortnight the last 3 h 21 min are forgiven: a timer's jitter and summer time."""
    write_log(place / "a.jsonl")
    assert told("a.jsonl", "--every", "14d")["reviewed"]
    before = digest(place)
    made = (place / "reports" / "review.json").stat().st_mtime
    monkeypatch.setattr(command, "clock_s", lambda: made + days * DAY_S)
    done = run("a.jsonl", "--every", "14d")
    assert done.exit_code == 0
    if is_due:
        assert "Report: reports/report.html" in done.stdout
    else:
        assert len(done.stdout.splitlines()) == 1
        assert done.stdout.startswith("No review is due: the last one, to 2026-05-28 20:29 UTC")
        assert told("a.jsonl", "--every", "14d")["days_since"] == pytest.approx(days, abs=1e-3)
        assert run("a.jsonl", "--every", "14d", "--quiet").stdout == ""
    assert digest(place) == before


def test_every_looks_at_the_trace(place: Path) -> None:
    """No time passes on the clock; the logs go on for 10 days, then for 15."""
    write_log(place / "a.jsonl")
    told("a.jsonl", "--every", "2w")
    write_log(place / "b.jsonl", day=10)
    before = digest(place)
    assert told("*.jsonl", "--every", "2w")["trace_days_since"] == pytest.approx(10)
    assert digest(place) == before  # not even ingested
    write_log(place / "c.jsonl", day=15)
    found = told("*.jsonl", "--every", "2w")
    assert found["reviewed"]
    assert found["ingest"]["first_arrival"].startswith("2026-05-28")
    assert found["since"] == "2026-05-29T20:29:56.000000Z"  # the 14 days before the last arrival


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders after one review, with a second day's log at hand, and after the second review too."""
    folder = tmp_path_factory.mktemp("reviewed")
    places = {name: folder / name for name in ("once", "twice")}
    for name, place in places.items():
        place.mkdir()
        (place / "fairreplay.toml").write_text(SETTINGS)
        write_log(place / "a.jsonl", late=[1])
        with contextlib.chdir(place):
            told("a.jsonl")
            write_log(place / "b.jsonl", day=1)
            if name == "twice":
                told("*.jsonl")
    return places


@pytest.mark.parametrize("write", range(6))
def test_killed_half_way_leaves_the_last_good_report(
    reviewed: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: int
) -> None:
    """Killed at each write of the second review in turn: its numbers, ticket and page, the last good two, the state."""
    killed = tmp_path / "killed"
    shutil.copytree(reviewed["once"], killed)
    good = digest(killed / "reports")
    code = f"""
import os, signal
from fairreplay.report import archive, write
from fairreplay.store import files
left = {write}
def dying(real):
    def replace(path, *rest):
        global left
        if left == 0:
            path.with_name(path.name + ".tmp").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        real(path, *rest)
    return replace
write.replace_bytes = dying(files.replace_bytes)
archive.replace_bytes, archive.replace_file = write.replace_bytes, dying(files.replace_file)
"""
    assert fairreplay("review", "*.jsonl", cwd=killed, code=code).returncode == -9
    after = digest(killed / "reports")
    names = ["report.json", "report.html", "review.json"]
    is_old = [after[name] == good[name] for name in names]
    assert is_old == [write < 4, write < 5, True]  # in this order, each whole
    monkeypatch.chdir(killed)
    told("*.jsonl")
    assert digest(killed) == digest(reviewed["twice"])


def test_an_earlier_report_that_cannot_be_read_stops_nothing(place: Path) -> None:
    write_log(place / "a.jsonl", late=[1])
    write_log(place / "b.jsonl", day=1)
    write_log(place / "c.jsonl", day=2)
    first = told("a.jsonl")
    told("b.jsonl", "--since", "last")
    (place / "reports" / "report-20260529T202956.000001Z.json").write_text("{}")
    done = run("c.jsonl", "--since", "last", "--json")
    assert done.stderr.startswith("not compared with: reports/report-20260529T202956.000001Z.json")
    assert json.loads(done.stdout)["previous_report"] == first["kept"]["document"]


def test_two_at_once_end_with_75_and_the_holder(place: Path) -> None:
    write_log(place / "a.jsonl")
    told("a.jsonl")
    before = digest(place)
    with lock_folder(place / "fairreplay-store"):
        done = fairreplay("review", "a.jsonl", cwd=place)
    assert done.returncode == 75
    assert done.stderr == (
        f"fairreplay: fairreplay-store: process {os.getpid()} holds the store; try again when it has ended\n"
    )
    assert digest(place) == before


@pytest.mark.parametrize(
    ("late", "fail_on", "code"),
    [([], "yellow", 0), ([1], "yellow", 4), ([1], "red", 4), ([1], "emergency", 4), ([], "emergency", 0)],
)
def test_fail_on(place: Path, late: list[int], fail_on: str, code: int) -> None:
    write_log(place / "a.jsonl", late=late)
    done = run("a.jsonl", "--fail-on", fail_on)
    assert done.exit_code == code
    assert "Report: reports/report.html" in done.stdout  # written all the same
    assert done.stderr.startswith(f"--fail-on {fail_on}: episode ep-") == (code == 4)


def test_fail_on_red_lets_yellow_pass(place: Path) -> None:
    """Of eleven tenants one is late: SCR 10/11 = .91 is yellow, and not red."""
    tenants = [f"t{number:02}" for number in range(11)]
    write_log(place / "a.jsonl", tenants=tenants)
    lines = (place / "a.jsonl").read_text().splitlines()
    slow = [json.loads(line) for line in lines]
    for row in slow:
        if row["tenant"] == "t03":
            row["first_token_at"] = row["finished_at"] = row["first_token_at"].replace("Z", "")[:-2] + "59Z"
    (place / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in slow))
    found = told("a.jsonl")
    assert found["level"] == "yellow"
    assert run("a.jsonl", "--fail-on", "red").exit_code == 0
    assert run("a.jsonl", "--fail-on", "yellow").exit_code == 4


def test_a_log_that_cannot_be_read_leaves_all_as_it_was(place: Path) -> None:
    (place / "bad.jsonl").write_text("not a log\n")
    with pytest.raises(BadInputError):
        run("bad.jsonl")
    assert not (place / "fairreplay-store").exists()
    assert not (place / "reports").exists()
    write_log(place / "a.jsonl")
    told("a.jsonl")
    before = digest(place)
    with pytest.raises(BadInputError):
        run("bad.jsonl")
    assert digest(place) == before


def test_mistakes_are_found_before_any_work(place: Path) -> None:
    write_log(place / "a.jsonl")
    for arguments, says in (
        (["--fail-on", "orange"], "--fail-on 'orange' is no level"),
        (["--every", "fortnight"], "--every 'fortnight'"),
        (["-o", "page.html"], "kept in a folder"),
        (["--policy", "vct"], "did you mean 'vtc'?"),
        (["--since", "yesterday"], "--since 'yesterday'"),
    ):
        with pytest.raises(UsageError, match=says.replace("?", r"\?")):
            run("a.jsonl", *arguments)
        assert not (place / "fairreplay-store").exists()


def test_the_state_file(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    (tmp_path / "review.json").write_text('{"version": 1, "until": null}')
    with pytest.raises(StoreError, match="remove it"):
        read_state(tmp_path)
    (tmp_path / "review.json").write_text('{"version": 2}')
    with pytest.raises(StoreError, match="newer"):
        read_state(tmp_path)


def test_earlier_reviews_by_their_ends(tmp_path: Path) -> None:
    from datetime import UTC, datetime, timedelta

    ends = [datetime.fromtimestamp(START_S, UTC) + timedelta(microseconds=part) for part in (0, 1, 500_000, 1_000_000)]
    for end in ends:
        (tmp_path / page_name(end)).with_suffix(".json").write_text("{}")
    (tmp_path / "report-mine.json").write_text("{}")
    assert [path.name for path in earlier(tmp_path, ends[2])] == [
        "report-20260528T202700.000001Z.json",
        "report-20260528T202700.000000Z.json",
    ]
