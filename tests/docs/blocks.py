"""Documentation that runs: the Python blocks of a page, each with the text that it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and content of every fenced block, in order."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def run_python(page: Path) -> list[tuple[str, str, str]]:
    """Code, what it printed, and what the page says it prints, of each Python block; names live on between them."""
    found = blocks(page)
    names: dict[str, Any] = {"__name__": page.stem}
    ran = []
    for number, (language, code) in enumerate(found):
        if language != "python":
            continue
        follows = found[number + 1] if number + 1 < len(found) else ("", "")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"{page.name}, block {number}", "exec"), names)
        ran.append((code, printed.getvalue(), follows[1] if follows[0] == "text" else ""))
    return ran
