"""What the terminal shows: plain tables that fit 100 columns, progress and notes on stderr.

Names from a log are hostile: nothing from data is ever read as markup, and control characters are shown, not obeyed.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Sequence

WIDTH_MAX = 100
CELL_MAX = 36
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str) -> str:
    """``text`` with control, format and direction characters written as escapes, on one line."""
    return "".join(
        character if unicodedata.category(character) not in _INVISIBLE else f"\\u{ord(character):04x}"
        for character in text
    )


def cell(value: object) -> str:
    """One table cell: missing is a dash, a long name is cut in the middle."""
    if value is None:
        return "–"
    text = printable(str(value))
    if len(text) > CELL_MAX:
        half = (CELL_MAX - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return text


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as text: first column left, the others right-aligned, widths from the cells."""
    body = [[cell(value) for value in row] for row in rows]
    widths = [max(len(line[index]) for line in [list(columns), *body]) for index in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        rest = [text.rjust(width) for text, width in zip(cells[1:], widths[1:], strict=True)]
        return "  ".join([first, *rest]).rstrip()

    return "\n".join([line(list(columns)), line(["-" * width for width in widths]), *(line(row) for row in body)])


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
    stream.write(safe + "\n")  # type: ignore[attr-defined]


def out_json(document: object) -> None:
    """One JSON document on stdout, keys in their order, NaN refused."""
    import orjson

    sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")
