"""``fairreplay capacity``: what the cluster can deliver, who gets how much of it, and what more load would take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    StoreOption,
    StrictSamplesOption,
    UntilOption,
    WindowOption,
)
from fairreplay.config.instants import period

if TYPE_CHECKING:
    from fairreplay.planning.capacity import Bound, Capacity, Group
    from fairreplay.planning.load_search import Found

TENANTS_SHOWN = 20
REPLAYS_ABOUT = 20
"""Of a search, for the bar."""


def capacity(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.json", help="Write the document there, for `report --capacity`."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only this model's cluster.")] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="Policy of the searched replays [default: what production runs].")
    ] = None,
    scr: Annotated[
        float | None, typer.Option("--scr", min=0.01, max=1, help="SCR to keep [default: [capacity] scr, 0.99].")
    ] = None,
    load: Annotated[
        float | None,
        typer.Option("--load", min=0.1, max=64, help="Count replicas for this many loads of the trace [default: 1]."),
    ] = None,
    no_search: Annotated[
        bool, typer.Option("--no-search", help="Bounds and allocation alone: no largest load, no replicas.")
    ] = False,
    since: SinceOption = None,
    until: UntilOption = None,
    window: WindowOption = None,
    min_samples: MinSamplesOption = None,
    strict_samples: StrictSamplesOption = False,
    refusals: RefusalsOption = "miss",
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Bound what the cluster can deliver, share it out, and find the largest load and the replicas that keep SCR.

    The replays of the search are not kept.
    """
    from fairreplay.cli.replay import note_compilation
    from fairreplay.config.load import load_config
    from fairreplay.metrics.options import measure_options
    from fairreplay.planning.capacity import capacity as reckon
    from fairreplay.planning.capacity import document, with_targets, write_document
    from fairreplay.planning.config_file import check_folder
    from fairreplay.store.store import open_store

    if output is not None:
        check_folder(output)
    begin, end = period(since, until)
    settings = with_targets(load_config(config), scr, load)
    options = measure_options(
        settings,
        window=window,
        min_samples=min_samples,
        strict_samples=strict_samples,
        refusals=refusals,
        since=begin,
        until=end,
    )
    note_compilation(quiet=quiet)
    done = 0
    with progress("capacity", "replays", quiet=quiet or json or no_search) as told:

        def on_replay() -> None:
            nonlocal done
            done += 1
            if told is not None:
                told(done, REPLAYS_ABOUT)

        opened = open_store(store)
        found = reckon(opened, settings, options, model=model, policy=policy, search=not no_search, on_replay=on_replay)
    made = document(found, opened)
    if output is not None:
        write_document(made, output)
    if json:
        out_json(made)
    elif not quiet:
        out(text(found))
        for said in found.assumptions:
            note(said)
        if output is not None:
            note(f"written: {output}")


def text(found: Capacity) -> str:
    """The tables of every model's cluster."""
    from textwrap import wrap

    costs = "\n".join(wrap(f"Estimates: {found.costs_said}.", WIDTH_MAX))
    parts = [part for group in found.groups for part in _group(group, found, is_one_of_several=len(found.groups) > 1)]
    return "\n\n".join([*parts, costs])


def _group(group: Group, found: Capacity, *, is_one_of_several: bool) -> list[str]:
    from textwrap import wrap

    title = printable(f"model {group.model or '(none)'}: ") if is_one_of_several else ""
    replicas = f"{group.replicas} replica{'s' if group.replicas != 1 else ''}"
    head = (
        f"{title}{replicas} can deliver {_tokens(group.b_alloc)} tokens a window of {found.window_s:g} s "
        f"({group.b_alloc / found.window_s:,.0f} tokens/s), bound by {group.bound_by}."
    )
    known = [one for one in group.bounds if one.tokens is not None]
    bounds = [[one.name, _tokens(one.tokens), _limited(one)] for one in known]
    missing = ", ".join(one.name for one in group.bounds if one.tokens is None)
    sources = [f"{one.name}: {one.source}" for one in known]
    if missing:
        sources.append(f"not bounded: {missing} ([cluster.hardware] does not say, see docs/planning.md)")
    shown = sorted(group.tenants, key=lambda one: (one.headroom, one.tenant))[:TENANTS_SHOWN]
    tenants = [
        [
            one.tenant,
            f"{one.weight:.1%}",
            _tokens(one.allocated),
            _tokens(one.demand),
            _tokens(one.peak),
            _tokens(one.headroom),
            "–" if one.phi is None else "/".join(f"{value:.3f}" for value in one.phi.values()),
        ]
        for one in shown
    ]
    types = [[one.type, f"{one.floor:.1%}", _tokens(one.allocated), _tokens(one.demand)] for one in group.types]
    parts = [
        head,
        table(("bound", "tokens a window", "what it limits"), bounds),
        "\n".join(line for said in sources for line in wrap(said, WIDTH_MAX, subsequent_indent="  ")),
        table(("tenant", "weight", "allocated", "demand", "peak", "headroom", "phi P50/P90/P99"), tenants),
    ]
    hidden = len(group.tenants) - len(shown)
    if hidden:
        parts.append(f"... and {hidden} tenants with more headroom (--json has all, and the tenant x type table)")
    parts.append(table(("type", "floor", "allocated", "demand"), types))
    if group.load is not None and group.replicas_needed is not None:
        parts.append(_answers(group.load, group.replicas_needed, found))
    return parts


def _answers(load: Found, needed: Found, found: Capacity) -> str:
    from textwrap import wrap

    kept = f"SCR of at least {found.scr_target:g} under {printable(found.policy)}"
    if load.answer is None:
        largest = f"No load was found that keeps {kept}: {load.reason}."
    else:
        largest = f"The largest load with {kept}: {load.answer.percent / 100:g} times the trace's (SCR {_scr(load)})."
        largest += f" {load.reason}." if load.reason else ""
    times = f"{found.load_target:g} times the load" if found.load_target != 1 else "the trace's load"
    if needed.answer is None:
        replicas = f"No number of replicas was found for {times}: {needed.reason}."
    else:
        replicas = f"Replicas that {times} needs: {needed.answer.replicas} (SCR {_scr(needed)})."
    return "\n".join(line for said in (largest, replicas) for line in wrap(said, WIDTH_MAX))


def _limited(bound: Bound) -> str:
    return bound.limits if bound.limits == "all tokens" else f"{_tokens(bound.limited)} {bound.limits}"


def _scr(found: Found) -> str:
    return "–" if found.answer is None or found.answer.scr is None else f"{found.answer.scr:.4f}"


def _tokens(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"
