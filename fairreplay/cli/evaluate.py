"""``fairreplay evaluate``: how often the causes named are the right ones, on labelled incidents from a seed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from fairreplay.cli.console import note, out, out_json, progress, table
from fairreplay.cli.options import JsonOption, QuietOption

SHORT = {
    "burst": "burst",
    "preemption_thrash": "thrash",
    "type_starvation": "starvation",
    "weight_skew": "skew",
    "capacity_shortfall": "capacity",
}
"""Headings of the confusion matrices."""


def evaluate(
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same incidents.")] = 0,
    incidents: Annotated[
        int, typer.Option("--incidents", "-n", help="How many: six of ten single, two pairs, one quiet, one healthy.")
    ] = 50,
    sandbox_error: Annotated[
        float,
        typer.Option(
            "--sandbox-error", help="Part by which the judging sandbox's step times are off, such as 0.2; up or down."
        ),
    ] = 0.0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Processes; the answers do not depend on it.")] = 1,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make labelled incidents, name their causes, and count how often that was right.

    The truth comes from undoing what was injected and serving the same requests again; an incident is judged on the
    metrics that it hurt.
    """
    from fairreplay.planning.evaluate import evaluate as run
    from fairreplay.planning.evaluate import figures

    with progress("evaluate", "incidents", quiet=quiet or json) as told:

        def on_incident(done: int) -> None:
            if told is not None:
                told(done, incidents)
            elif done % 10 == 0 or done == incidents:
                note(f"{done} of {incidents} incidents", quiet=quiet)

        answers = run(seed, incidents, sandbox_error, jobs, on_incident)
    found = figures(answers)
    if json:
        out_json(
            {"seed": seed, "incidents": incidents, "sandbox_error": sandbox_error}
            | found
            | {"cases": [asdict(answer) for answer in answers]}
        )
    elif not quiet:
        out(summary(seed, sandbox_error, found))


def summary(seed: int, sandbox_error: float, found: dict[str, Any]) -> str:
    """The confusion matrices and the rates, beside what they should reach."""
    counts = ", ".join(f"{count} {name}" for name, count in found["families"].items())
    off = f", sandbox step times {sandbox_error:.0%} off" if sandbox_error else ""
    lines = [f"{sum(found['families'].values())} incidents of seed {seed} ({counts}){off}"]
    for metric, cells in found["confusion"].items():
        lines += ["", *_confusion(metric, cells)]
    return "\n".join([*lines, "", *rates(found)])


def _confusion(metric: str, cells: dict[str, dict[str, int]]) -> list[str]:
    """Rows are true causes, columns are named ones."""
    if not cells:
        return [f"{metric.upper()}: no single incident hit it"]
    others = sorted({named for row in cells.values() for named in row} - set(SHORT))
    columns = [*SHORT, *others]
    rows = [
        (f"{SHORT.get(true, true)}", *(row.get(named, "") for named in columns), sum(row.values()))
        for true, row in sorted(cells.items(), key=lambda item: columns.index(item[0]))
    ]
    heading = (f"{metric.upper()}: true \\ named", *(SHORT.get(named, named) for named in columns), "all")
    return [table(heading, rows)]


def rates(found: dict[str, Any]) -> list[str]:
    """Every rate in a line of its own."""
    from fairreplay.planning.evaluate import GOALS

    names = {
        "scr": "cause of SCR right, singles",
        "jfi": "cause of JFI right, singles",
        "tfr": "cause of TFR right, singles",
        "pairs": "both causes named, pairs",
        "periods": "no false cause, calm periods",
    }
    rates = {**found["top1"], "pairs": found["pairs"], "periods": found["periods"]}
    rows = [
        (says, f"{rates[key]['right']} of {rates[key]['of']}", _part(rates[key]["rate"]), f">= {GOALS[key]:.2f}")
        for key, says in names.items()
    ]
    extra, delay = found["extra_causes"], found["delay_s"]
    false = ", ".join(
        f"{of['with_a_false_cause']} of {of['periods']} {name}" for name, of in found["false_causes"].items()
    )
    lines = [
        table(("", "right", "part", "goal"), rows),
        "",
        f"periods with a false cause: {false}",
        f"causes named beside the true ones: {extra['causes']} in {extra['incidents']} incidents",
    ]
    if delay["p50"] is not None:
        lines.append(
            f"detection after the start: P50 {delay['p50']:.0f} s, P90 {delay['p90']:.0f} s, largest "
            f"{delay['max']:.0f} s; missed: {delay['missed']} of {delay['incidents']}"
        )
    floods = found["victims_p99_growth"]
    if floods["p50"] is not None:
        lines.append(
            f"noisy neighbours: the victims' P99 of the first token grew {floods['p50']:.1f}-fold "
            f"(median of {floods['floods']})"
        )
    return lines


def _part(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:.3f}"
