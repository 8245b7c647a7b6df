"""``fairreplay init``: a commented config from what the store holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairreplay.cli.console import out, out_json, printable
from fairreplay.cli.options import DEFAULT_STORE, JsonOption, QuietOption, StoreOption
from fairreplay.errors import UsageError


def init(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.toml", help="The config to write.")] = Path(
        "fairreplay.toml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a commented fairreplay.toml: the store's tenants, models and types, the defaults, and suggestions.

    As written it changes no result; edit it to say what production runs and what was promised.
    """
    from fairreplay.config.load import parse_config
    from fairreplay.planning.config_file import write_atomically
    from fairreplay.planning.initial import initial_config
    from fairreplay.store.store import open_store

    if output.exists() and not force:
        raise UsageError(f"{output}: is there already; --force writes over it, -o FILE elsewhere")
    text = initial_config(open_store(store))
    config = parse_config(text, str(output))  # what is written can be read
    write_atomically(output, text)
    if json:
        out_json({"output": str(output), "tenants": list(config.tenants), "models": list(config.models)})
    elif not quiet:
        out(printable(f"{output} written: {len(config.tenants)} tenants; next: edit it, then `fairreplay check`"))
