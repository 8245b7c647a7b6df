"""``fairreplay synth``: a labelled multi-tenant trace with incidents at known times."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairreplay.cli.console import note, out, out_json, printable, table
from fairreplay.cli.options import JsonOption, QuietOption
from fairreplay.errors import UsageError

if TYPE_CHECKING:
    from fairreplay.planning.synth import Synthesis

TRACE, CONFIG, LABELS = "trace.parquet", "fairreplay.toml", "labels.json"


def synth(
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="The folder to write: new, empty, or written by synth."),
    ],
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same bytes.")] = 0,
    duration: Annotated[str, typer.Option("--duration", help='Length of the trace, such as "3h" or "90m".')] = "6h",
    incident: Annotated[
        list[str] | None,
        typer.Option(
            "--incident",
            help='A kind, or "burst+thrash" for two at once; repeat for more, in this order; "none" for a healthy '
            "trace [default: one of each kind].",
        ),
    ] = None,
    tenants: Annotated[int, typer.Option("--tenants", help="Number of tenants; their sizes follow Zipf's law.")] = 8,
    rate: Annotated[float, typer.Option("--rate", help="Usual requests a second; the cluster grows with it.")] = 2.0,
    policy: Annotated[str, typer.Option("--policy", help='What production runs: "fcfs" or "vtc".')] = "fcfs",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a labelled trace: requests as a cluster would have logged them, its config, and what was injected when.

    DIR gets trace.parquet (for ingest), fairreplay.toml (the cluster behind it) and labels.json (the truth).
    """
    from fairreplay.planning.incidents import KINDS
    from fairreplay.planning.synth import Scenario, check, synthesise

    _check_folder(output)
    kinds = tuple(KINDS) if incident is None else () if incident == ["none"] else tuple(incident)
    scenario = check(
        Scenario(seed=seed, minutes=_minutes(duration), tenants=tenants, rate=rate, policy=policy, incidents=kinds)
    )
    note("drawing the requests and serving them in the sandbox ...", quiet=quiet)
    made = synthesise(scenario)
    _write(output, made)
    if json:
        out_json(_document(output, made))
    elif not quiet:
        out(_summary(output, made))


def _minutes(duration: str) -> int:
    """ "90m", "3h" or "14d" in minutes."""
    match = re.fullmatch(r"([0-9]{1,6})(m|min|h|d)", duration.strip())
    if match is None:
        raise UsageError(f'--duration {duration!r}: must be a number with a unit, such as "90m", "3h" or "14d"')
    return int(match[1]) * {"m": 1, "min": 1, "h": 60, "d": 1440}[match[2]]


def _check_folder(folder: Path) -> None:
    """A folder with anything in it that synth does not write is somebody else's."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"-o {folder}: is a file; choose a folder")
    foreign = sorted(item.name for item in folder.iterdir() if item.name not in (TRACE, CONFIG, LABELS))
    present = any(folder.iterdir())
    if foreign or (present and not (folder / LABELS).exists()):
        named = f" ({foreign[0]})" if foreign else ""
        raise UsageError(f"-o {folder}: holds files that synth did not write{named}; choose a new folder")


def _write(folder: Path, made: Synthesis) -> None:
    """All three files or none."""
    import orjson

    from fairreplay.store.files import replace_folder

    empty = [name for name in made.trace.columns if made.trace[name].null_count() == len(made.trace)]

    def write(temporary: Path) -> None:
        # order and content id are ingest's to give
        made.trace.drop("seq", "source", *empty).write_parquet(temporary / TRACE, compression="zstd")
        (temporary / CONFIG).write_bytes(made.config.encode())
        (temporary / LABELS).write_bytes(orjson.dumps(made.labels, option=orjson.OPT_INDENT_2) + b"\n")

    try:
        replace_folder(folder, write)
    except OSError as error:
        raise UsageError(f"-o {folder}: cannot be written: {error.strerror or error}") from None


def _document(folder: Path, made: Synthesis) -> dict[str, Any]:
    """``labels.json`` with counts in the place of the requests themselves."""
    counts = {
        name: {"added": len(requests["added"]), "removed": len(requests["removed"])}
        for name, requests in made.labels["requests"].items()
    }
    return (
        {"output": str(folder), "requests": len(made.trace)}
        | {key: value for key, value in made.labels.items() if key != "requests"}
        | {"injected": counts}
    )


def _summary(folder: Path, made: Synthesis) -> str:
    labels = made.labels
    rows = [
        (label["id"], label["start"][11:16], label["end"][11:16], ", ".join(label["metrics"]), _who(label))
        for label in labels["incidents"]
    ]
    many_days = labels["start"][:10] != labels["end"][:10]
    if many_days:
        rows = [
            (row[0], label["start"][:16], label["end"][:16], *row[3:])
            for row, label in zip(rows, labels["incidents"], strict=True)
        ]
    lines = [
        f"{len(made.trace)} requests of {len(labels['tenants'])} tenants, {labels['start']} to {labels['end']}, "
        f"seed {labels['seed']}"
    ]
    if rows:
        lines += ["", table(("incident", "from (UTC)", "to", "made to hit", "injected"), rows)]
    for label in labels["incidents"]:
        if "victims" in label:
            lines += ["", _noise(label)]
    where = printable(str(folder))
    lines += [
        "",
        f"{where}: {TRACE}, {CONFIG}, {LABELS}",
        f"next: fairreplay ingest {where}/{TRACE}, then fairreplay replay --config {where}/{CONFIG}",
    ]
    return "\n".join(lines)


def _who(label: dict[str, Any]) -> str:
    """The injection in a few words."""
    injection = label["injection"]
    parts = []
    if injection["traffic"]:
        few = injection["traffic"]["tenants"]
        who = ", ".join(few) if len(few) <= 2 else "all"
        ramp = " growing" if injection["traffic"]["ramp"] else ""
        parts.append(f"{who} x {injection['traffic']['factor']:g}{ramp}")
    parts += [f"{key} {change['usual']} -> {change['during']}" for key, change in injection["settings"].items()]
    if injection["weights"]:
        parts.append("weights reversed")
    if not injection["listed"]:
        parts.append("unlisted")
    return ", ".join(parts) or "nothing"


def _noise(label: dict[str, Any]) -> str:
    """What a flood did to the others, in a line."""
    before, after = (_seconds(label["victims"][key]) for key in ("p99_ttft_ms_without", "p99_ttft_ms"))
    who = ", ".join(label["tenants"])
    return f"{label['id']}: P99 of the first token of everybody but {who}: {before} without it, {after} with it"


def _seconds(ms: float | None) -> str:
    return "never" if ms is None else f"{ms / 1000:.2f} s"
