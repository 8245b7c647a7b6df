"""``fairreplay review``: ingest, replay and report in one; what cron runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairreplay.cli import console
from fairreplay.cli.fail_on import FailOnOption, check_level, fail_at, worst_of_document
from fairreplay.cli.options import (
    DEFAULT_STORE,
    ConfigOption,
    EngineOption,
    FormatOption,
    JoinOption,
    JsonOption,
    KeyFileOption,
    MapOption,
    MaxRejectRateOption,
    MaxSkewOption,
    MinSamplesOption,
    ModelOption,
    OnOption,
    OnStripOption,
    Place,
    PseudonymiseOption,
    QuietOption,
    RefusalsOption,
    SourcesArgument,
    SpreadOption,
    StoreOption,
    StrictSamplesOption,
    T0Option,
    TenantFromOption,
    TenantOption,
    TypeOption,
    UntilOption,
    WindowOption,
    ZoneOption,
    place,
)
from fairreplay.config.defaults import T0, cores
from fairreplay.config.instants import length, period

if TYPE_CHECKING:
    from fairreplay.report.review import Review, Waiting

LAST = "last"
clock_s = time.time
"""The one place where the machine's clock is asked what time it is: has ``--every`` passed?"""


def review(
    sources: SourcesArgument,
    output: Annotated[
        Place,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            parser=place,
            help="Folder of the reports, also s3://...; report.html is the last good one.",
        ),
    ] = Path("reports"),
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="One more policy; repeat for more [default: baseline, [policies.NAME]]."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help='From this instant on (ISO 8601), or "last": where the last review ended.'),
    ] = None,
    until: UntilOption = None,
    every: Annotated[
        str | None,
        typer.Option("--every", help='Do nothing until so much time ("14d") has passed since the last review.'),
    ] = None,
    fail_on: FailOnOption = None,
    window: WindowOption = None,
    min_samples: MinSamplesOption = None,
    strict_samples: StrictSamplesOption = False,
    refusals: RefusalsOption = "miss",
    spread: SpreadOption = "phases",
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Threads for the replays [default: all cores].")
    ] = None,
    engine: EngineOption = "local",
    log_format: FormatOption = "auto",
    map_file: MapOption = None,
    tz: ZoneOption = "UTC",
    t0: T0Option = T0,
    tenant: TenantOption = None,
    tenant_from: TenantFromOption = None,
    type_: TypeOption = None,
    model: ModelOption = None,
    join: JoinOption = None,
    on: OnOption = None,
    on_strip: OnStripOption = None,
    max_reject_rate: MaxRejectRateOption = 0.01,
    max_skew: MaxSkewOption = "0",
    pseudonymise: PseudonymiseOption = None,
    key_file: KeyFileOption = None,
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Ingest the logs, replay the period under the configured policies and write the report: what cron runs.

    The same command again gives the same bytes. Killed half-way it leaves the last good report, and the next run goes
    on; while another run holds the store it ends with 75.
    """
    from fairreplay.causes.review import configured
    from fairreplay.cli.replay import note_compilation
    from fairreplay.config.load import load_config
    from fairreplay.metrics.options import measure_options
    from fairreplay.report.review import review as run
    from fairreplay.report.review import waiting
    from fairreplay.store.ingest_options import options_of

    check_level(fail_on)
    _check_folder(output)
    begin, end = period(None if since == LAST else since, until)
    settings = load_config(config)
    configured(settings, policy or ())
    options = measure_options(settings, window, min_samples, strict_samples, refusals, spread, begin, end)
    ingesting = options_of(
        log_format=log_format,
        map_file=map_file,
        tz=tz,
        t0=t0,
        tenant=tenant,
        tenant_from=tenant_from,
        type_=type_,
        model=model,
        join=join,
        on=on,
        on_strip=on_strip,
        since=None,
        until=None,
        max_reject_rate=max_reject_rate,
        max_skew=max_skew,
        pseudonymise=pseudonymise,
        key_file=key_file,
        config=config,
    )
    if every is not None:
        not_due = waiting(output, length(every, "--every"), clock_s(), sources, store, ingesting)
        if not_due is not None:
            _say_not_due(not_due, every, json=json, quiet=quiet)
            return
    hush = quiet or json
    note_compilation(policy or (), settings, quiet=quiet)
    done = run(
        sources,
        store,
        output,
        settings,
        options,
        ingesting=ingesting,
        policies=policy or (),
        since_last=since == LAST,
        jobs=jobs or cores(),
        engine=engine,
        stage=lambda what, unit: console.progress(what, unit, quiet=hush),
    )
    for warning in done.warnings:
        console.note(warning, quiet=quiet)
    if json:
        console.out_json(document(done))
    elif not quiet:
        console.out(_text(done))
    fail_at(fail_on, worst_of_document(done.document))


def _check_folder(output: Place) -> None:
    from fairreplay.errors import UsageError

    if output.suffix.lower() in (".html", ".htm") or (output.exists() and not output.is_dir()):
        raise UsageError(f"-o {output}: reviews are kept in a folder; name one")


def document(done: Review) -> dict[str, Any]:
    """The documented keys of ``review --json``."""
    from fairreplay.cli.report import summary
    from fairreplay.report.text import iso
    from fairreplay.store.ingest_options import document as ingest_document

    return {
        "reviewed": True,
        "since": None if done.since is None else iso(done.since),
        "until": iso(done.until),
        **summary(done.document, done.latest),
        "level": worst_of_document(done.document)[0],
        "kept": {"report": str(done.kept.html), "document": str(done.kept.json)},
        "previous_report": None if done.previous is None else str(done.previous),
        "policies": list(done.policies),
        "replayed": [one.policy for one in done.replays],
        "removed_replays": list(done.removed),
        "ingest": ingest_document(done.ingested),
    }


def _text(done: Review) -> str:
    from fairreplay.cli.report import summary_text

    known = sum(one.already for one in done.ingested.sources)
    accepted = sum(one.segment.accepted for one in done.ingested.sources if one.changed)
    new = [one.policy for one in done.replays]
    old = [policy for policy in done.policies if policy not in new]
    logs = len(done.ingested.sources)
    lines = [
        f"ingest   {accepted} new requests; {known} of {logs} logs were known already",
        "replay   " + "; ".join([", ".join(new) or "nothing new", *([f"kept: {', '.join(old)}"] if old else [])]),
    ]
    told = "\n".join(map(console.printable, lines))
    return f"{told}\n\n{summary_text(done.document, done.latest)}\nKept as: {done.kept.html}"


def _say_not_due(found: Waiting, every: str, *, json: bool, quiet: bool) -> None:
    from fairreplay.report.text import iso

    if json:
        console.out_json(
            {
                "reviewed": False,
                "every": every,
                "last_until": iso(found.last_until),
                "days_since": round(found.wall.total_seconds() / 86400, 6),
                "trace_days_since": round(found.trace.total_seconds() / 86400, 6),
            }
        )
    elif not quiet:
        days = found.wall.total_seconds() / 86400
        console.out(
            f"No review is due: the last one, to {found.last_until:%Y-%m-%d %H:%M} UTC, was made {days:.1f} days ago, "
            f"and its trace has grown by {found.trace.total_seconds() / 86400:.1f} days; --every {every}."
        )
