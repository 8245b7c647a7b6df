"""Options that mean the same in every command, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairreplay.config.defaults import KEY_VARIABLE, STORE

if TYPE_CHECKING:
    from fairreplay.store.objects import Place as Place
else:
    Place = Path  # of a parameter with a parser typer does not look at the type


def place(text: str | Path) -> Place:
    """A folder or file, or an address such as ``s3://bucket/prefix``."""
    if "://" not in str(text):
        return Path(text)
    from fairreplay.store.objects import place as remote

    return remote(str(text))


DEFAULT_STORE: Place = Path(STORE)

StoreOption = Annotated[
    Place,
    typer.Option(
        "--store",
        envvar="FAIRREPLAY_STORE",
        help="The store: a folder, or s3://bucket/prefix (gs://, az://).",
        show_default=True,
        parser=place,
        metavar="DIR",
    ),
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

EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="local|ray",
        help='Where replays run: "local" threads, or "ray", as tasks of the cluster at RAY_ADDRESS (extra '
        "fairreplay[ray]); results do not depend on it.",
    ),
]


# How logs are read: ``ingest`` and ``review``.
SourcesArgument = Annotated[
    list[str],
    typer.Argument(metavar="SRC...", help="Logs: files, folders, patterns, - for stdin, s3://, gs://, az://."),
]
FormatOption = Annotated[str, typer.Option("--format", help="The logs' format; auto decides on the first records.")]
MapOption = Annotated[
    Path | None, typer.Option("--map", metavar="FILE.toml", help="What the columns of any other log mean.")
]
ZoneOption = Annotated[str, typer.Option("--tz", help="Zone of times that carry none.")]
T0Option = Annotated[
    str, typer.Option("--t0", help="Instant of clock value 0 in logs that count from their own start (ISO 8601).")
]
TenantOption = Annotated[str | None, typer.Option("--tenant", help="Tenant of rows that name none.")]
TenantFromOption = Annotated[
    str | None, typer.Option("--tenant-from", metavar="FIELD", help="Where the tenant stands instead (a.b.c).")
]
TypeOption = Annotated[str | None, typer.Option("--type", help="Request type of rows that name none.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Model of rows that name none.")]
JoinOption = Annotated[
    str | None, typer.Option("--join", metavar="GATEWAY", help="A gateway's log that knows the tenants.")
]
OnOption = Annotated[str | None, typer.Option("--on", metavar="KEY|LEFT=RIGHT", help="What both logs call a request.")]
OnStripOption = Annotated[
    list[str] | None,
    typer.Option("--on-strip", metavar="PREFIX", help='Prefix of joined ids, such as "chatcmpl-".'),
]
MaxRejectRateOption = Annotated[
    float, typer.Option("--max-reject-rate", min=0, max=1, help="Share of rejects that stops a source.")
]
MaxSkewOption = Annotated[
    str, typer.Option("--max-skew", help='Clock skew that is clamped, not rejected, such as "5ms".')
]
PseudonymiseOption = Annotated[
    str | None, typer.Option("--pseudonymise", metavar="tenant", help="Store tenants as keyed hashes.")
]
KeyFileOption = Annotated[
    Path | None, typer.Option("--key-file", help=f"Key of --pseudonymise [default: ${KEY_VARIABLE}].")
]
