"""``fairreplay check``: is the config right, is the store whole, do they belong together?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from fairreplay.cli.console import out, out_json, printable
from fairreplay.cli.options import DEFAULT_STORE, ConfigOption, JsonOption, QuietOption, StoreOption

if TYPE_CHECKING:
    from fairreplay.planning.check import Finding

WRONG_CONFIG, DAMAGED_STORE = 2, 5
"""Exit codes, as those of the commands that would fail; a warning alone ends with 0."""


def check(
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Validate the config (keys, policies, files that it names) and the store (every file's digest), and compare them.

    Ends with 2 if the config is wrong, with 5 if the store is damaged or missing; both are told.
    """
    from pathlib import Path

    from fairreplay.config.load import DEFAULT_NAME, load_config
    from fairreplay.errors import StoreError, UsageError
    from fairreplay.planning.check import Finding, of_both, of_config, of_store
    from fairreplay.store.store import open_store

    found: list[Finding] = []
    settings, opened = None, None
    try:
        settings = load_config(config)
        found += of_config(settings)
    except UsageError as error:
        found.append(Finding("error", "config", str(error)))
    try:
        opened = open_store(store)
        found += of_store(opened, settings)
        if settings is not None:
            found += of_both(settings, opened)
    except StoreError as error:
        if str(error) not in [one.says for one in found]:
            found.append(Finding("error", "store", str(error)))
    path = config if config is not None else Path(DEFAULT_NAME)
    shown = str(path) if path.exists() or config is not None else None
    if json:
        out_json(
            {
                "config": shown,
                "store": str(store),
                "requests": None if opened is None else sum(one.accepted for one in opened.manifest.segments),
                "ok": not any(one.level == "error" for one in found),
                "findings": [{"level": one.level, "where": one.where, "says": one.says} for one in found],
            }
        )
    elif not quiet:
        for one in found:
            out(printable(f"{one.level:<7}  {one.where:<6}  {one.says}"))
        out(printable(_verdict(found, shown, str(store))))
    wrong = [one.where for one in found if one.level == "error"]
    if wrong:
        raise typer.Exit(WRONG_CONFIG if "config" in wrong else DAMAGED_STORE)


def _verdict(found: list[Finding], config: str | None, store: str) -> str:
    what = f"{config or 'no config (defaults)'} and {store}"
    errors = sum(one.level == "error" for one in found)
    counts = [f"{errors} error{'s' if errors != 1 else ''}"] if errors else []
    warnings = len(found) - errors
    counts += [f"{warnings} warning{'s' if warnings != 1 else ''}"] if warnings else []
    return f"{what}: {', '.join(counts) or 'sound'}"
