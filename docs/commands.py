"""Write the tables of the pages: options from the commands' own help texts, the rest from the README and the code.

    python docs/commands.py

What stands between ``<!-- NAME: made by docs/commands.py -->`` and ``<!-- end -->`` is made anew; the prose around it
is written by hand and stays. A command without a place gets one at the end of commands.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer.main

from fairreplay.cli.app import app
from fairreplay.export.prometheus import FAMILIES, PREFIX
from fairreplay.trace.reject import REASONS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SHARED = "options that commands share"
SHARED_FROM = 3
"""An option that so many commands have, with one help text, is described once."""


def commands() -> dict[str, Any]:
    """Every command of the application by name, in the order of ``--help``."""
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def options(command: Any) -> list[Any]:
    """Its parameters but ``--help``; arguments come first."""
    found = [one for one in command.params if "--help" not in one.opts]
    return sorted(found, key=lambda one: one.param_type_name != "argument")


def name_of(parameter: Any) -> str:
    """``--output FILE``, ``-o``: as it is typed. An argument by its place holder."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`".replace("|", "\\|")
    opts = sorted(parameter.opts, key=len, reverse=True)
    value = "" if getattr(parameter, "is_flag", False) else f" {parameter.metavar or _value(parameter)}"
    return ", ".join([f"`{opts[0]}{value}`", *(f"`{opt}`" for opt in opts[1:])]).replace("|", "\\|")


VALUES = {
    **dict.fromkeys(("since", "until", "t0", "emit_since", "emit_until"), "TIME"),
    **dict.fromkeys(("window", "hop"), "SIZE"),
    **dict.fromkeys(("max_skew", "duration", "every"), "LENGTH"),
    **dict.fromkeys(("config", "key_file", "redact_key", "previous"), "FILE"),
    "store": "DIR",
    "output": "PATH",
    **dict.fromkeys(("tenant", "type_", "model", "policy", "log_format", "tz"), "NAME"),
    **dict.fromkeys(
        ("jobs", "min_samples", "seed", "incidents", "simulations", "tenants", "rate", "sandbox_error"), "N"
    ),
    **dict.fromkeys(("max_reject_rate", "estimation_error"), "PART"),
    **dict.fromkeys(("scr", "load"), "X"),
    "at": "HH:MM",
    "day": "DAY",
}
"""What stands for an option's value, where the option itself does not say."""


def _value(parameter: Any) -> str:
    return VALUES.get(parameter.name, "WHAT")


def help_of(parameter: Any) -> str:
    """The help text, with what holds if it is not given."""
    text = " ".join((parameter.help or "").split()).replace("|", "\\|")
    default = parameter.default() if callable(parameter.default) else parameter.default
    silent = default is None or isinstance(default, bool) or default in ((), [], "", ...)
    return text if silent or "[default" in text or parameter.required else f"{text} [default: `{default}`]"


def shared() -> dict[tuple[str, str], int]:
    """(name, help) of the options that at least ``SHARED_FROM`` commands have."""
    counts: dict[tuple[str, str], int] = {}
    for command in commands().values():
        for one in options(command):
            if one.param_type_name == "option":
                counts[name_of(one), help_of(one)] = counts.get((name_of(one), help_of(one)), 0) + 1
    return {row: count for row, count in counts.items() if count >= SHARED_FROM}


def table(rows: list[tuple[str, str]]) -> str:
    return "".join(["| option | what it does |\n|---|---|\n", *(f"| {name} | {text} |\n" for name, text in rows)])


def made() -> dict[str, str]:
    """Every part of the page that is made, by its name."""
    common = shared()
    parts = {}
    for name, command in commands().items():
        own = [(name_of(one), help_of(one)) for one in options(command)]
        lead = " ".join((command.help or "").split("\n\n")[0].split())
        text = f"{lead}\n\n"
        if rows := [row for row in own if row not in common]:
            text += table(rows)
        if also := [row[0].split()[0].strip("`,") for row in own if row in common]:
            text += (
                f"\nShared: {', '.join(f'`{one}`' for one in also)}.\n"
                if rows
                else f"Shared: {', '.join(f'`{one}`' for one in also)}.\n"
            )
        parts[name] = text
    top = [(name_of(one), help_of(one)) for one in typer.main.get_command(app).params if "--help" not in one.opts]
    parts["before a command"] = table(top)
    parts[SHARED] = table(list(common))
    return parts


def copied() -> dict[str, dict[str, str]]:
    """Page -> parts of it that stand elsewhere too: tables of the README, and dict literals of the code."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    exported = [(f"`{PREFIX}{name}`", f"{one.help} {_labelled(one.labels)}".strip()) for name, one in FAMILIES.items()]
    return {
        "commands.md": {"exit codes": _table_after(readme, "| code | meaning |")},
        "policies.md": {"policies": _table_after(readme, "| policy | who goes next |")},
        "formats.md": {
            "formats": _table_after(readme, "| format | is |"),
            "rejects": ", ".join(f"`{reason}`" for reason in REASONS) + ".\n",
        },
        "operating.md": {"prometheus": table(exported).replace("| option | what it does |", "| metric | is |")},
    }


def _labelled(labels: tuple[str, ...]) -> str:
    return f"By {', '.join(labels)}." if labels else ""


def _table_after(text: str, header: str) -> str:
    return header + text.split(header)[1].split("\n\n")[0] + "\n"


def pages() -> dict[Path, str]:
    """Every page that has made parts, as it is to be."""
    texts = {name: (DOCS / name).read_text(encoding="utf-8") for name in copied()}
    made_parts = {name: {**(made() if name == "commands.md" else {}), **parts} for name, parts in copied().items()}
    return {DOCS / name: filled(text, made_parts[name]) for name, text in texts.items()}


def filled(text: str, parts: dict[str, str]) -> str:
    """``text`` with its parts between the marks; one without a place comes at the end."""
    for name, content in parts.items():
        begin = f"<!-- {name}: made by docs/commands.py -->\n"
        if begin not in text:
            text = text.rstrip("\n") + f"\n\n## {name}\n\n{begin}<!-- end -->\n"
        before, _, after = text.partition(begin)
        text = before + begin + content + after[after.index("<!-- end -->") :]
    return text


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
