"""What the terminal shows of hostile names."""

from __future__ import annotations

import pytest

from fairreplay.cli import console
from fairreplay.cli.console import CELL_MAX, WIDTH_MAX, cell, printable, table


def test_control_format_and_direction_characters_are_shown_not_obeyed() -> None:
    assert printable("a\x1b[31mb\nc\u202ed\u2028e") == "a\\u001b[31mb\\u000ac\\u202ed\\u2028e"
    assert printable("[/x] [bold]") == "[/x] [bold]"


def test_cells() -> None:
    assert cell(None) == "–"
    assert cell("") == ""
    assert len(cell("x" * 10_000)) == CELL_MAX
    assert cell("x" * CELL_MAX) == "x" * CELL_MAX


def test_a_table_fits_the_terminal_and_cuts_the_widest_columns() -> None:
    text = table(["tenant", "a", "b", "c"], [["n" * 500, "v" * 500, "w" * 500, "12345"], ["short", None, "", "1"]])
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDTH_MAX
    assert lines[2].endswith("12345")
    assert len(lines) == 4


def test_a_small_table() -> None:
    assert table(["k", "n"], [["a", 1], ["bb", 23]]).splitlines() == ["k    n", "--  --", "a    1", "bb  23"]


def test_a_grid_too_wide_for_the_terminal_stands_upright(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    shown = console.grid([f"c{number}" for number in range(12)], [["x" * 9] * 12, [None] * 12])
    assert shown.splitlines()[:2] == ["c0   xxxxxxxxx", "c1   xxxxxxxxx"]
    assert shown.splitlines()[13] == "c0   –"
    narrow = console.grid(["tenant", "n"], [["t" * 90, 1]])
    assert max(map(len, narrow.splitlines())) == 40
    assert "…" in narrow
