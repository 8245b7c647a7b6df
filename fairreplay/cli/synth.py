"""``fairreplay synth``: a labelled multi-tenant trace with incidents at known times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairreplay.cli.console import out, out_json, table
from fairreplay.cli.options import JsonOption, QuietOption

FILES = ("trace.parquet", "fairreplay.toml", "labels.json")


def synth(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder to write; a new one, or one that synth wrote.")
    ],
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same bytes.")] = 1,
    incident: Annotated[
        list[str] | None,
        typer.Option("--incident", help="A kind; repeat for more, in this order [default: one of each kind]."),
    ] = None,
    healthy: Annotated[bool, typer.Option("--healthy", help="No incident at all.")] = False,
    tenants: Annotated[int, typer.Option("--tenants", help="Number of tenants, Zipf sizes.")] = 8,
    rate: Annotated[float, typer.Option("--rate", help="Mean requests a second before any incident.")] = 2.0,
    incident_minutes: Annotated[int, typer.Option("--incident-minutes", help="Length of each incident.")] = 8,
    quiet_minutes: Annotated[int, typer.Option("--quiet-minutes", help="Healthy time around each incident.")] = 22,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a labelled trace: trace.parquet (native schema), the fairreplay.toml behind it, and labels.json."""
    import orjson

    from fairreplay.errors import UsageError
    from fairreplay.planning.incidents import KINDS
    from fairreplay.planning.synth import scenario, synthesise
    from fairreplay.store.files import replace_folder

    if healthy and incident:
        raise UsageError("--healthy does not go with --incident")
    if output.exists() and (not output.is_dir() or {item.name for item in output.iterdir()} - set(FILES)):
        raise UsageError(f"-o {output}: holds other files; choose a new folder")
    kinds = [] if healthy else incident or list(KINDS)
    plan = scenario(seed, kinds, tenants, rate, incident_minutes, quiet_minutes)
    made = synthesise(plan)

    def write(folder: Path) -> None:
        made.trace.drop("source", "seq").write_parquet(folder / "trace.parquet", compression="zstd")
        (folder / "fairreplay.toml").write_text(made.config, encoding="utf-8")
        (folder / "labels.json").write_bytes(orjson.dumps(made.labels, option=orjson.OPT_INDENT_2) + b"\n")

    replace_folder(output, write)
    if json:
        out_json({"output": str(output), "requests": len(made.trace), "labels": made.labels})
        return
    if quiet:
        return
    minute = 60_000_000
    rows = [
        (item.kind, f"{item.start_us // minute} min", f"{item.end_us // minute} min", ", ".join(item.injection.hits))
        for item in plan.incidents
    ]
    out(f"{len(made.trace)} requests of {tenants} tenants, {plan.duration_us // minute} minutes, seed {seed}")
    if rows:
        out(table(("incident", "from", "to", "expected to hit"), rows))
    config = f"--config {output / FILES[1]}"
    out(f"next: fairreplay ingest {output / FILES[0]} {config}; fairreplay report {config}")
