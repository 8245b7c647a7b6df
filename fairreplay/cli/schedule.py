"""``fairreplay schedule``: the entry that runs ``review`` from cron, systemd or Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairreplay.cli.console import out, out_json
from fairreplay.cli.options import DEFAULT_STORE, ConfigOption, JsonOption, Place, QuietOption, StoreOption, place
from fairreplay.config.instants import length
from fairreplay.errors import UsageError, nearest

KINDS = ("cron", "systemd", "k8s")


def schedule(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Whose entry is printed: cron, systemd or k8s.")],
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="The logs, as `review` takes them.")],
    output: Annotated[
        Place, typer.Option("-o", "--output", metavar="DIR", parser=place, help="Folder of the reports, also s3://...")
    ] = Path("reports"),
    every: Annotated[str, typer.Option("--every", help="How often, at the earliest.")] = "14d",
    at: Annotated[str, typer.Option("--at", help="Time of the day, in the scheduler's zone.")] = "03:00",
    day: Annotated[str, typer.Option("--day", help="Day of the week, where --every is a week or more.")] = "sun",
    more: Annotated[
        str, typer.Option("--with", metavar="OPTIONS", help='More options of `review`, such as "--fail-on red".')
    ] = "",
    image: Annotated[str | None, typer.Option("--image", help="Container image, for k8s.")] = None,
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Print the entry that runs `review` every so often; paste it where it says.

    Cron knows no fortnight, so the entry is weekly and `review --every 14d` does nothing in between.
    """
    import shlex

    from fairreplay import __version__
    from fairreplay.planning.schedule import cron_job, crontab, units, when

    if kind not in KINDS:
        raise UsageError(f"schedule {kind!r} is unknown; {nearest(kind, list(KINDS))}")
    if image is not None and kind != "k8s":
        raise UsageError("--image goes with schedule k8s")
    try:
        extra = shlex.split(more)
    except ValueError as error:
        raise UsageError(f"--with {more!r}: {error}") from None
    moment = when(length(every, "--every"), at, day)
    here = kind != "k8s"  # in a container paths are relative to its volume

    def path(given: Place) -> str:
        return str(given.absolute() if here and isinstance(given, Path) else given)

    logs = [name if not here or name == "-" or "://" in name else str(Path(name).absolute()) for name in sources]
    if "-" in logs:
        raise UsageError("schedule: a scheduled run has no standard input; name files, folders or patterns")
    command = [
        *(_program() if here else ["fairreplay"]),
        *("review", "--every", every, "--since", "last"),
        *("--store", path(store), "-o", path(output)),
        *(["--config", path(config)] if config is not None else []),
        *extra,
        "--",
        *logs,
    ]
    folder = str(Path.cwd())
    if kind == "cron":
        files = crontab(command, folder, moment)
    elif kind == "systemd":
        files = units(command, folder, moment)
    else:
        files = cron_job(command, moment, image or f"fairreplay:{__version__}")
    if quiet and not json:
        return
    if json:
        out_json({"kind": kind, "command": command, "files": files})
    else:
        out("\n".join(_shown(kind, name, text) for name, text in files.items()).rstrip("\n"))


_PLACES = {
    "cron": "# for `crontab -e`: weekly at most, `--every` passes over what is too early",
    "systemd": "# {name}: into ~/.config/systemd/user/, then `systemctl --user enable --now fairreplay-review.timer`",
    "k8s": "# {name}: for `kubectl apply -f`; the claim holds the logs, the store and the reports",
}


def _shown(kind: str, name: str, text: str) -> str:
    return f"{_PLACES[kind].format(name=name)}\n{text}"


def _program() -> list[str]:
    """What runs this command, by its whole path: schedulers have a short PATH."""
    import shutil
    import sys

    own = Path(sys.argv[0])
    if own.name == "fairreplay" and own.is_file():
        return [str(own.absolute())]
    found = shutil.which("fairreplay", path=str(Path(sys.executable).parent)) or shutil.which("fairreplay")
    return [found or "fairreplay"]
