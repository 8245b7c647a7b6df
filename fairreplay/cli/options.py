"""Options that mean the same in every command, declared once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


DEFAULT_STORE = Path("fairreplay-store")

StoreOption = Annotated[
    Path, typer.Option("--store", envvar="FAIRREPLAY_STORE", help="The store's folder.", show_default=True)
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", envvar="FAIRREPLAY_CONFIG", help="Config file [default: fairreplay.toml if it is there]."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary; errors only.")]
SinceOption = Annotated[str | None, typer.Option("--since", help="From this instant on (ISO 8601, UTC if no zone).")]
UntilOption = Annotated[str | None, typer.Option("--until", help="Before this instant (ISO 8601, UTC if no zone).")]
WindowOption = Annotated[
    str | None, typer.Option("--window", help='Window size such as "60s"; "0" = the whole period as one window.')
]
MinSamplesOption = Annotated[
    int | None, typer.Option("--min-samples", min=1, help="Judge every quantile from this many samples on.")
]
StrictSamplesOption = Annotated[
    bool, typer.Option("--strict-samples", help="Judge quantiles from 5/29/299 samples on (95 % evidence).")
]
RefusalsOption = Annotated[
    str, typer.Option("--refusals", help='"miss": a refused request misses its SLO; "drop": it is left out.')
]
SpreadOption = Annotated[
    str,
    typer.Option(
        "--spread",
        help='Where served tokens lie in time: "phases" (prompt before the first token, output after it) or "decode" '
        "(all of it between first token and finish).",
    ),
]
JobsOption = Annotated[int, typer.Option("--jobs", min=1, help="Threads for the replays; results do not depend on it.")]
