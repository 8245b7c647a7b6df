"""Routines are compiled once, kept by what they were made from, and do without where that cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fairreplay import machine_code
from fairreplay.machine_code import INTS, NUMBER, Routine, compiled, is_at_hand

TOTAL = """
def total(numbers, count):
    result = 0
    for place in range(count):
        result += numbers[place]
    return result
"""


@pytest.fixture
def routine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Routine]:
    """One of a module that only this test has, and an empty folder for what is compiled."""
    (tmp_path / "routine_of_a_test.py").write_text(TOTAL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    for cached in (machine_code.cache_folder, machine_code._file_name, machine_code.compiled):
        cached.cache_clear()
    yield Routine("routine_of_a_test", "total", INTS + NUMBER)
    for cached in (machine_code.cache_folder, machine_code._file_name, machine_code.compiled):
        cached.cache_clear()


def test_a_routine_is_compiled_once_and_kept_by_its_source(routine: Routine, tmp_path: Path) -> None:
    numbers = np.arange(10, dtype=np.int64)
    assert routine.python()(numbers, 10) == 45
    assert not is_at_hand(routine)
    code = compiled(routine)
    assert code is not None
    assert code(numbers.ctypes.data, 10) == 45
    assert is_at_hand(routine)
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.name.startswith("fairreplay-total-")
    (tmp_path / "routine_of_a_test.py").write_text(TOTAL.replace("+=", "-="))
    machine_code._file_name.cache_clear()
    assert not is_at_hand(routine)


def test_what_cannot_be_compiled_is_not_there(routine: Routine, tmp_path: Path) -> None:
    (tmp_path / "routine_of_a_test.py").write_text("def total(numbers, count):\n    return open('x')\n")
    assert compiled(routine) is None
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_debugger_gets_no_machine_code(routine: Routine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert compiled(routine) is None


def test_without_a_folder_there_is_none(routine: Routine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    machine_code.cache_folder.cache_clear()
    assert not is_at_hand(routine)
    assert compiled(routine) is None


def test_a_folder_that_cannot_be_written_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(machine_code, "FOLDER", blocked)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert machine_code.cache_folder.__wrapped__() == tmp_path / "caches" / "fairreplay"
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert machine_code.cache_folder.__wrapped__() is None
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "own"))
    assert machine_code.cache_folder.__wrapped__() == tmp_path / "own"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(blocked))
    assert machine_code.cache_folder.__wrapped__() is None
