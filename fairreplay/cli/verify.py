"""``fairreplay verify``: does the sandbox decide as a real scheduler did, step by step?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairreplay.cli.console import out, out_json, table
from fairreplay.cli.options import JsonOption, QuietOption

if TYPE_CHECKING:
    from fairreplay.sandbox.decision_log import Verified

DIFFERENT = 1
"""Exit code: at least one log differs."""


def verify(
    paths: Annotated[
        list[Path], typer.Argument(help="Scenario files, or folders that hold them beside their step files.")
    ],
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Replay decision logs of a scheduler and name the first step and field where the sandbox decides otherwise.

    A log is NAME.scenario.json (settings and requests) beside NAME.steps.jsonl.gz (one line a scheduling pass).
    """
    from fairreplay.sandbox.decision_log import read_scenario, read_steps, scenario_files, steps_file, verify

    found = [verify(read_scenario(path), read_steps(steps_file(path))) for path in scenario_files(paths)]
    if json:
        out_json({"scenarios": [document(one) for one in found]})
    elif not quiet:
        out(table(_COLUMNS, [_row(one) for one in found]))
        equal = sum(one.equal for one in found)
        out(f"{equal} of {len(found)} logs equal, {sum(one.steps for one in found)} steps compared")
    if not all(one.equal for one in found):
        raise typer.Exit(DIFFERENT)


_COLUMNS = ("scenario", "steps", "equal", "first difference at step", "field", "log", "sandbox")


def _row(one: Verified) -> list[object]:
    first = one.first_difference
    if first is None:
        return [one.name, one.steps, "yes", None, None, None, None]
    return [one.name, one.steps, "no", first.step, first.field, str(first.logged), str(first.sandbox)]


def document(one: Verified) -> dict[str, Any]:
    first = one.first_difference
    return {
        "name": one.name,
        "steps": one.steps,
        "equal": one.equal,
        "first_difference": None
        if first is None
        else {"step": first.step, "field": first.field, "logged": first.logged, "sandbox": first.sandbox},
    }
