"""What the terminal shows: plain tables that fit 100 columns, progress and notes on stderr.

Names from a log are hostile: nothing from data is ever read as markup, and control characters are shown, not obeyed.
"""

from __future__ import annotations

import os
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

WIDTH_MAX = 100
CELL_MAX = 36
COLUMN_MIN = 6
GRID_CELL_MAX = 200
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str) -> str:
    """``text`` with control, format and direction characters written as escapes, on one line."""
    return "".join(
        character if unicodedata.category(character) not in _INVISIBLE else f"\\u{ord(character):04x}"
        for character in text
    )


def cell(value: object) -> str:
    """One table cell: missing is a dash, a long name is cut in the middle."""
    return "–" if value is None else _cut(printable(str(value)), CELL_MAX)


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    left = width // 2
    return f"{text[:left]}…{text[len(text) - (width - left - 1) :]}"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as text of at most 100 columns: first column left, others right-aligned, the widest ones cut first."""
    lines = [list(columns), *([cell(value) for value in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    while sum(widths) + 2 * (len(widths) - 1) > WIDTH_MAX and max(widths) > COLUMN_MIN:
        widths[widths.index(max(widths))] -= 1
    lines.insert(1, ["-" * width for width in widths])

    def line(cells: Sequence[str]) -> str:
        fitted = [_cut(text, width) for text, width in zip(cells, widths, strict=True)]
        rest = [text.rjust(width) for text, width in zip(fitted[1:], widths[1:], strict=True)]
        return "  ".join([fitted[0].ljust(widths[0]), *rest]).rstrip()

    return "\n".join(line(cells) for cells in lines)


def grid(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Any number of columns as a table: as wide as the terminal, or as its cells where there is none.

    A cell is one line; what does not fit is cut with an ellipsis. Nothing in it is read as markup.
    """
    import io

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, name in enumerate(columns):
        numeric = all(isinstance(row[index], int | float | None) for row in rows)
        shown.add_column(
            Text(printable(name)), justify="right" if numeric else "left", no_wrap=True, overflow="ellipsis"
        )
    for row in rows:
        shown.add_row(*(Text(_grid_cell(value)) for value in row))
    wide = Console(file=io.StringIO(), width=1_000_000, color_system=None)
    width = wide.measure(shown).maximum
    if sys.stdout.isatty() and (terminal := Console().width) < width:
        if len(columns) * (COLUMN_MIN + 3) > terminal:  # whole columns would vanish
            return _upright(columns, rows)
        width = terminal
    drawn = Console(file=io.StringIO(), width=max(width, 1), color_system=None)
    drawn.print(shown)
    return "\n".join(line.rstrip() for line in drawn.file.getvalue().rstrip("\n").split("\n"))  # type: ignore[attr-defined]


def _upright(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Each row as lines of column and value."""
    names = [_cut(printable(name), CELL_MAX) for name in columns]
    width = max(map(len, names))
    return "\n\n".join(
        "\n".join(f"{name.ljust(width)}  {_grid_cell(value)}" for name, value in zip(names, row, strict=True))
        for row in rows
    )


def _grid_cell(value: object) -> str:
    if value is None:
        return "–"
    if value == "":
        return '""'
    if isinstance(value, bool | list | dict):
        import orjson

        value = orjson.dumps(value).decode()
    return _cut(printable(str(value)), GRID_CELL_MAX)


def out(text: str) -> None:
    """A result, on stdout. Characters that the terminal's encoding lacks are replaced, never an error."""
    _write(sys.stdout, text)


def note(text: str, *, quiet: bool = False) -> None:
    """A remark, on stderr."""
    if not quiet:
        _write(sys.stderr, text)


def _write(stream: object, text: str) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    safe = text.encode(encoding, errors="replace").decode(encoding)
    with _for_a_reader():
        stream.write(safe + "\n")  # type: ignore[attr-defined]


@contextmanager
def _for_a_reader() -> Iterator[None]:
    """Whoever read from the pipe may have seen enough (``| head``): then the rest goes nowhere, and no code changes."""
    try:
        yield
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """From here on stdout leads nowhere, also what is still to be flushed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def out_json(document: object) -> None:
    """One JSON document on stdout, keys in their order, NaN refused."""
    import orjson

    content = orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"
    with _for_a_reader():
        sys.stdout.flush()
        sys.stdout.buffer.write(content)  # JSON is UTF-8, whatever the terminal's encoding
        sys.stdout.buffer.flush()


PROGRESS_AFTER_S = 1.0
"""What takes less shows no bar."""


@contextmanager
def progress(what: str, unit: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """A bar with rate and time left, on stderr, for work over a second; None where there is no terminal to show it."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    task = bar.add_task(what, total=None, rate="")
    started = time.monotonic()

    def told(done: int, total: int) -> None:
        elapsed = time.monotonic() - started
        if elapsed < PROGRESS_AFTER_S:
            return
        bar.start()
        bar.update(task, completed=done, total=total or None, rate=f"{done / elapsed:,.0f} {unit}/s")

    try:
        yield told
    finally:
        bar.stop()
