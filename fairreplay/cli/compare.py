"""``fairreplay compare``: policies, configs or periods side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairreplay.cli.console import WIDTH_MAX, note, out, out_json, printable, progress, table
from fairreplay.cli.options import (
    DEFAULT_STORE,
    ConfigOption,
    JsonOption,
    MinSamplesOption,
    QuietOption,
    RefusalsOption,
    SinceOption,
    SpreadOption,
    StoreOption,
    StrictSamplesOption,
    UntilOption,
    WindowOption,
)
from fairreplay.config.defaults import cores
from fairreplay.config.instants import period
from fairreplay.errors import UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from fairreplay.report.compare import Best, Candidate, Cost
    from fairreplay.report.side_by_side import Compared

COSTS_SHOWN = 2


def compare(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="A B",
            help='Policies, configs (FILE.toml) or periods ("2026-11-02..2026-11-09"): two or more of one kind '
            "[default: the baseline and every replay].",
        ),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    window: WindowOption = None,
    min_samples: MinSamplesOption = None,
    strict_samples: StrictSamplesOption = False,
    refusals: RefusalsOption = "miss",
    spread: SpreadOption = "phases",
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Threads for the replays [default: all cores].")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show SCR, JFI, TFR, TTFT, refusals, recompute tax and tokens/s side by side, the best of each and what it costs.

    Replays that are missing are made and kept in the store. A config stands for its own baseline policy.
    """
    from functools import partial

    from fairreplay.cli.replay import controls_line, note_compilation
    from fairreplay.config.load import load_config
    from fairreplay.metrics.options import measure_options
    from fairreplay.report import side_by_side
    from fairreplay.report.compare import best
    from fairreplay.store.store import open_store

    names = list(dict.fromkeys(what or []))
    kind = _kind(names)
    begin, end = period(since, until)
    if kind == "periods" and (begin or end):
        raise UsageError("--since and --until do not go with periods: each names its own")
    measuring = partial(
        measure_options,
        window=window,
        min_samples=min_samples,
        strict_samples=strict_samples,
        refusals=refusals,
        spread=spread,
        since=begin,
        until=end,
    )
    settings = load_config(config)
    opened = open_store(store)
    note_compilation(quiet=quiet)

    def stage(done: str, unit: str) -> Any:
        return progress(done, unit, quiet=quiet or json)

    threads = jobs or cores()
    if kind == "configs":
        paths = [Path(name) for name in names]
        loaded = {side_by_side.label_of(path, paths): load_config(path) for path in paths}
        options = {label: measuring(one) for label, one in loaded.items()}
        compared = side_by_side.configs(opened, loaded, options, threads, stage)
    elif kind == "periods":
        spans = {name: _span(name) for name in names}
        compared = side_by_side.periods(opened, settings, measuring(settings), spans, threads, stage)
    else:
        compared = side_by_side.policies(opened, settings, measuring(settings), names, threads, stage)
    found = best(compared.candidates)
    if json:
        out_json(document(compared, found))
    elif not quiet:
        out(_text(compared, found))
        for name, totals in compared.controls.items():
            out(f"controls under {printable(name)}: {controls_line(totals)}")
        for said in compared.assumptions:
            note(said)


def _kind(names: list[str]) -> str:
    """What the arguments are.

    Raises:
        UsageError: of several kinds, or one of a kind that needs two.
    """
    kinds = {
        "configs" if name.endswith(".toml") else "periods" if _is_span(name) else "policies": name for name in names
    }
    if len(kinds) > 1:
        raise UsageError(
            f"compare: {' and '.join(kinds.values())} are of different kinds; give policies, configs or periods"
        )
    kind = next(iter(kinds), "policies")
    if kind != "policies" and len(names) < 2:
        raise UsageError(f"compare: give two or more {kind}")
    return kind


def _is_span(name: str) -> bool:
    return ".." in name and "/" not in name.replace("..", "", 1)


def _span(name: str) -> tuple[datetime | None, datetime | None]:
    """``A..B``: from A (included) to B (not included); either may be left out."""
    begin, _, end = name.partition("..")
    if not begin and not end:
        raise UsageError(f"compare {name!r}: name at least one end of the period")
    return period(begin or None, end or None, f"compare {name!r}: from", f"compare {name!r}: to")


def document(compared: Compared, found: list[Best]) -> dict[str, Any]:
    """The documented keys of ``compare --json``."""
    return {
        "kind": compared.kind,
        "candidates": [
            {"name": one.name, "model": one.model, "requests": one.requests, "ranked": one.is_ranked, **one.values}
            for one in compared.candidates
        ],
        "best": [
            {
                "model": one.model,
                "metric": one.metric,
                "names": list(one.names),
                "costs": {name: [_cost(cost) for cost in costs] for name, costs in one.costs.items()},
            }
            for one in found
        ],
        **({"controls": compared.controls} if compared.controls else {}),
        "assumptions": list(compared.assumptions),
    }


def _cost(cost: Cost) -> dict[str, Any]:
    return {"metric": cost.metric, "value": cost.value, "best": cost.best, "of": cost.of, "gap": cost.gap}


# ---- the tables ----


def _text(compared: Compared, found: list[Best]) -> str:
    parts = []
    groups = list(dict.fromkeys(one.model for one in compared.candidates))
    for model in groups:
        rows = [one for one in compared.candidates if one.model == model]
        marks = [one for one in found if one.model == model and one.names]
        title = [printable(f"model {model or '(none)'}:")] if len(groups) > 1 else []
        said = _sentences(marks) or ["All are equal."]
        parts.append("\n".join([*title, _table(compared.kind, rows, marks), "", *said]))
    return "\n\n".join(parts)


def _table(kind: str, rows: list[Candidate], marks: list[Best]) -> str:
    from fairreplay.report.compare import METRICS

    leading = {(one.metric, name) for one in marks for name in one.names}

    def shown(one: Candidate, metric: str) -> str | None:
        value = _value(one.values[metric], metric)
        return None if value is None else value + ("*" if (metric, one.name) in leading else "")

    titles = {metric: _TITLES.get(metric, METRICS[metric].title) for metric in METRICS}
    filled = [metric for metric in METRICS if any(one.values[metric] is not None for one in rows)]
    columns = (kind.removesuffix("s").replace("policie", "policy"), "requests", *(titles[metric] for metric in filled))
    return table(columns, [[one.name, one.requests, *(shown(one, metric) for metric in filled)] for one in rows])


_TITLES = {
    "ttft_p50_ms": "TTFT P50 s",
    "ttft_p90_ms": "P90 s",
    "ttft_p99_ms": "P99 s",
    "refused_share": "refused",
    "recompute_tax": "redone",
}


def _value(value: float | None, metric: str) -> str | None:
    if value is None:
        return None
    if metric.startswith("ttft"):
        return f"{value / 1000:.3f}"
    if metric in ("refused_share", "recompute_tax"):
        return f"{value:.1%}"
    return f"{value:.1f}" if metric == "tokens_per_s" else f"{value:.3f}"


def _sentences(marks: list[Best]) -> list[str]:
    """A sentence for each that is best by something: by what, and the largest of what it costs."""
    from textwrap import wrap

    from fairreplay.report.compare import METRICS

    won: dict[str, list[str]] = {}
    costs: dict[str, tuple[Cost, ...]] = {}
    for one in marks:
        for name in one.names:
            won.setdefault(name, []).append(METRICS[one.metric].title)
            costs[name] = one.costs[name]
    lines = []
    for name, metrics in won.items():
        paid = costs[name]
        pays = ", ".join(map(_paid, paid[:COSTS_SHOWN])) or "nothing in the others"
        more = f" and {len(paid) - COSTS_SHOWN} more" if len(paid) > COSTS_SHOWN else ""
        lines += wrap(printable(f"{name} is best by {', '.join(metrics)}. It costs {pays}{more}."), WIDTH_MAX)
    return lines


def _paid(cost: Cost) -> str:
    from fairreplay.report.compare import METRICS

    unit = " s" if cost.metric.startswith("ttft") else ""
    return (
        f"{METRICS[cost.metric].title} {_value(cost.value, cost.metric)}{unit} against "
        f"{_value(cost.best, cost.metric)}{unit} ({cost.of})"
    )
