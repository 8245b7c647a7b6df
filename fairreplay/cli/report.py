"""``fairreplay report``: the period as one HTML file, and the document behind it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairreplay.cli.console import WIDTH_MAX, note, out, out_json, printable, progress, table
from fairreplay.cli.fail_on import FailOnOption, check_level, fail_at, worst_of_document
from fairreplay.cli.options import (
    DEFAULT_STORE,
    ConfigOption,
    JsonOption,
    MinSamplesOption,
    Place,
    QuietOption,
    RefusalsOption,
    SinceOption,
    SpreadOption,
    StoreOption,
    StrictSamplesOption,
    UntilOption,
    WindowOption,
    place,
)
from fairreplay.config.instants import period

if TYPE_CHECKING:
    from fairreplay.report.schema import ControlFacts, Document, EpisodeRow, GroupVerdict
    from fairreplay.report.write import Written

EPISODES_SHOWN = 15


def report(
    output: Annotated[
        Place,
        typer.Option(
            "-o",
            "--output",
            metavar="PATH",
            parser=place,
            help="The page, also s3://...; report.json goes beside it. A folder takes report.html.",
        ),
    ] = Path("reports/report.html"),
    since: SinceOption = None,
    until: UntilOption = None,
    window: WindowOption = None,
    min_samples: MinSamplesOption = None,
    strict_samples: StrictSamplesOption = False,
    refusals: RefusalsOption = "miss",
    spread: SpreadOption = "phases",
    fail_on: FailOnOption = None,
    previous: Annotated[
        Place | None,
        typer.Option(
            "--previous",
            metavar="FILE",
            parser=place,
            help="report.json of an earlier report, also s3://...: tell what changed since.",
        ),
    ] = None,
    capacity: Annotated[
        Path | None, typer.Option("--capacity", help="What `capacity -o` wrote: shown in a section of its own.")
    ] = None,
    redact: Annotated[
        str | None,
        typer.Option("--redact", metavar="tenant", help="For outside readers: tenants stand under keyed pseudonyms."),
    ] = None,
    redact_key: Annotated[
        Path | None,
        typer.Option(
            "--redact-key",
            help="Key of --redact, made (0600) where there is none [default: redact.key in ~/.config/fairreplay].",
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write the verdict on the period, its episodes and the policies beside each other as one HTML file.

    Beside it go report.json, with every number of it, and a Markdown file for each episode that pastes into a ticket.
    """
    from fairreplay.config.load import load_config
    from fairreplay.metrics.options import measure_options
    from fairreplay.report.capacity import load_capacity
    from fairreplay.report.gather import report_document
    from fairreplay.report.previous import load_previous
    from fairreplay.report.redaction import redaction_of
    from fairreplay.report.write import write_report
    from fairreplay.store.store import open_store

    check_level(fail_on)
    begin, end = period(since, until)
    settings = load_config(config)
    options = measure_options(
        settings,
        window=window,
        min_samples=min_samples,
        strict_samples=strict_samples,
        refusals=refusals,
        spread=spread,
        since=begin,
        until=end,
    )
    opened = open_store(store)
    planned = None if capacity is None else load_capacity(capacity, opened.digest())
    earlier = None if previous is None else load_previous(previous)
    redaction = redaction_of(redact, redact_key, lambda said: note(said, quiet=quiet or json))
    with progress("report", "episodes", quiet=quiet or json) as told:
        document = report_document(
            opened,
            settings,
            options,
            previous=earlier,
            redaction=redaction,
            capacity=planned,
            progress=told,
        )
    written = write_report(document, output)
    if json:
        out_json(summary(document, written))
    elif not quiet:
        out(summary_text(document, written))
    fail_at(fail_on, worst_of_document(document))


def summary(document: Document, written: Written) -> dict[str, Any]:
    """What ``--json`` prints: where the report is, and its verdict."""
    return {
        "report": str(written.html),
        "document": str(written.json),
        "schema_version": document["schema_version"],
        "verdict": document["verdict"],
        "episodes": len(document["episodes"]),
        "tickets": [str(path) for path in written.tickets],
        "previous": document["previous"],
    }


def summary_text(document: Document, written: Written) -> str:
    """Verdict, three figures, episodes worst first, the path last; at most 100 columns."""
    parts = [document["verdict"]["sentence"]]
    if document["previous"] is not None:
        parts.append(f"Since the previous report: {document['previous']['sentence']}")
    parts += [table(_FIGURES, _figure_rows(document["verdict"]["groups"]))] if document["verdict"]["groups"] else []
    shown = document["episodes"][:EPISODES_SHOWN]
    if shown:
        parts.append(table(_EPISODES, [_episode_row(episode) for episode in shown]))
    hidden = len(document["episodes"]) - len(shown)
    if hidden:
        parts.append(f"... and {hidden} more in the report")
    parts += [_controls(facts) for facts in document.get("controls", [])]
    parts.append(f"Report: {written.html} (numbers: {written.json})")
    return "\n\n".join(parts)


_FIGURES = ("figure", "mean", "level", "worst", "min < yellow", "< red", "emergency", "windows")
_EPISODES = ("episode", "start (UTC)", "end", "level", "SCR", "JFI", "TFR", "tenants", "cause")


def _figure_rows(groups: list[GroupVerdict]) -> list[list[object]]:
    from fairreplay.report.text import minutes

    several = len(groups) > 1
    return [
        [
            figure["metric"].upper() + (f" {group['model'] or '(no model)'}" if several else ""),
            _fixed(figure["value"], 3),
            figure["level"],
            _fixed(figure["worst"], 2),
            minutes(figure["minutes_yellow"]),
            minutes(figure["minutes_red"]),
            minutes(figure["minutes_emergency"]),
            figure["windows"],
        ]
        for group in groups
        for figure in group["figures"]
    ]


def _episode_row(episode: EpisodeRow) -> list[object]:
    from fairreplay.report.text import instant

    return [
        episode["id"],
        instant(episode["start"]),
        instant(episode["end"], day=episode["start"][:10] != episode["end"][:10]),
        episode["level"],
        *(_fixed(episode["metrics"].get(metric), 2) for metric in ("scr", "jfi", "tfr")),
        len(episode["tenants"]),
        episode["cause"],
    ]


def _controls(facts: ControlFacts) -> str:
    """What the controls of a replay did over the period."""
    from textwrap import fill

    from fairreplay.report.words import control_line

    said = f"Controls under {printable(facts['source'])}: {control_line(facts['deeds'])}."
    return fill(said, WIDTH_MAX, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _fixed(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"
