"""Write the README's section on how often the causes are right, from two runs of ``fairreplay evaluate --json``.

    python docs/evaluation.py EXACT.json OFF.json

EXACT.json with exact step times, OFF.json with ``--sandbox-error``. Their figures go to docs/evaluation.json, and the
README's section is made from that file alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fairreplay.cli.evaluate import rates, summary

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "evaluation.json"
BEGIN, END = "<!-- made by docs/evaluation.py -->\n", "<!-- end -->\n"


def block(runs: list[dict[str, Any]]) -> str:
    """The part of the README between the marks."""
    exact, off = runs
    command = f"fairreplay evaluate --seed {exact['seed']} --incidents {exact['incidents']}"
    return "\n".join(
        [
            "```text",
            f"$ {command}",
            summary(exact["seed"], exact["sandbox_error"], exact),
            "",
            f"$ {command} --sandbox-error {off['sandbox_error']:g}",
            *rates(off),
            "```",
            "",
        ]
    )


def main(paths: list[str]) -> None:
    runs = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    for run in runs:
        run.pop("cases", None)
    FIGURES.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    readme = ROOT / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END, 1)[1]
    readme.write_text(before + BEGIN + block(runs) + END + after, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
