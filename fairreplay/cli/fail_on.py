"""``--fail-on``: exit 4 where the period has a metric at that level or a worse one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairreplay.cli.console import note
from fairreplay.errors import UsageError, nearest

if TYPE_CHECKING:
    from fairreplay.causes.review import Source
    from fairreplay.report.schema import Document

FAILED = 4
"""Exit code: a metric at or past the level."""
LEVELS = ("yellow", "red", "emergency")

FailOnOption = Annotated[
    str | None,
    typer.Option("--fail-on", metavar="LEVEL", help="Exit 4 if an episode or figure is yellow, red or emergency."),
]


def check_level(fail_on: str | None) -> None:
    """Before any work: the level is one.

    Raises:
        UsageError: it is not.
    """
    if fail_on is not None and fail_on not in LEVELS:
        raise UsageError(f"--fail-on {fail_on!r} is no level; {nearest(fail_on, list(LEVELS))}")


def fail_at(fail_on: str | None, found: tuple[str, str]) -> None:
    """End with 4 if ``found`` (the worst level, and where it is) is at or past ``fail_on``; says so on stderr."""
    level, where = found
    if fail_on is not None and level in LEVELS[LEVELS.index(fail_on) :]:
        note(f"--fail-on {fail_on}: {where}")
        raise typer.Exit(FAILED)


def worst_of_document(document: Document) -> tuple[str, str]:
    """The worst level of a report: of its episodes and of its period figures."""
    found = [("ok", "nothing below yellow")]
    found += [(row["level"], f"episode {row['id']} is {row['level']}") for row in document["episodes"]]
    for group in document["verdict"]["groups"]:
        for figure in group["figures"]:
            if figure["level"] is not None:
                found.append((figure["level"], f"{figure['metric'].upper()} of the period is {figure['level']}"))
    return max(found, key=lambda one: _rank(one[0]))


def worst_of_source(source: Source) -> tuple[str, str]:
    """As ``worst_of_document``, from the windows of the log, or of what stands for it.

    The level of a metric's worst window, the drain left out, is that of its worst episode; a degraded window is at
    least yellow.
    """
    import polars as pl

    from fairreplay.metrics.measure import models
    from fairreplay.report.levels import METRICS, level, longest_run
    from fairreplay.store.outcome_rows import of_model

    found = [("ok", "nothing below yellow")]
    for model in models(source.measured.windows):
        windows = of_model(source.measured.windows, model).sort("start").filter(~pl.col("drain"))
        if windows["degraded"].any():
            found.append(("yellow", "a window is degraded"))
        for metric in METRICS:
            values = windows[metric].to_list()
            known = [value for value in values if value is not None]
            reached = level(metric, min(known), longest_run(metric, values)) if known else None
            if reached is not None:
                found.append((reached, f"{metric.upper()} fell to {min(known):.2f}: {reached}"))
    return max(found, key=lambda one: _rank(one[0]))


def _rank(level: str) -> int:
    return ("ok", *LEVELS).index(level)
