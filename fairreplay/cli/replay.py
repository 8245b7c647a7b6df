"""``fairreplay replay``: the period through sandbox policies, beside what production decided."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairreplay.cli.console import WIDTH_MAX, note, out, out_json, printable, progress, table
from fairreplay.cli.options import (
    DEFAULT_STORE,
    ConfigOption,
    EngineOption,
    JsonOption,
    QuietOption,
    SinceOption,
    StoreOption,
    UntilOption,
)
from fairreplay.config.defaults import cores
from fairreplay.config.instants import period
from fairreplay.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from fairreplay.config.model import Config
    from fairreplay.metrics.fidelity import Fidelity
    from fairreplay.report.schema import EstimateEffect
    from fairreplay.sandbox.replay import ReplaySummary
    from fairreplay.store.store import Store


def replay(
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            help="A policy, or path/file.py:function for your own; repeat for more [default: [cluster] policy].",
        ),
    ] = None,
    floors: Annotated[
        str | None,
        typer.Option("--floors", help='Type floors: "soft", "hard" or "off" [default: [floor] enforce].'),
    ] = None,
    estimation_error: Annotated[
        float | None,
        typer.Option(
            "--estimation-error",
            help="Part by which policies may misjudge costs, such as 0.2; SCR without and with it "
            "[default: [estimation] error].",
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Threads over replicas and policies [default: all cores].")
    ] = None,
    engine: EngineOption = "local",
    emit: Annotated[
        str | None,
        typer.Option("--emit", help='Write every step to -o: "steps" (JSON lines) or "perfetto" (for its viewer).'),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file that --emit writes.")] = None,
    emit_since: Annotated[
        str | None, typer.Option("--emit-since", help="First instant whose steps are written.")
    ] = None,
    emit_until: Annotated[
        str | None, typer.Option("--emit-until", help="Steps before this instant are written.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run the period's requests through the sandbox under each policy and keep the outcome in the store."""
    from fairreplay.config.load import load_config, with_estimation_error, with_floor_mode
    from fairreplay.sandbox.plan import baseline_policy, with_known_policies
    from fairreplay.sandbox.replay import find_replays
    from fairreplay.sandbox.replay import replay as run
    from fairreplay.store.store import open_store

    begin, end = period(since, until)
    interval = period(emit_since, emit_until, "--emit-since", "--emit-until")
    settings = with_estimation_error(with_floor_mode(load_config(config), floors), estimation_error)
    baseline = baseline_policy(settings)
    policies = policy or [baseline]
    _check_emit(emit, output, policies, interval)
    opened = open_store(store)
    for warning in with_known_policies(settings)[1].values():
        note(warning, quiet=quiet)
    note_compilation(policies, settings, quiet=quiet)
    with progress("replay", "requests", quiet=quiet or json) as told:
        summaries = run(opened, settings, policies, begin, end, jobs=jobs or cores(), engine=engine, progress=told)
    emitted = None
    if emit is not None and output is not None:
        from fairreplay.sandbox.emit import emit_steps

        emitted = emit_steps(opened, settings, policies[0], emit, output, (begin, end), interval)
    found = find_replays(opened, settings, begin, end)
    believed: Fidelity | None = None
    if baseline in found:
        believed = _fidelity(opened, found[baseline], begin, end)
    effects = _effects(opened, settings, policies, begin, end) if settings.estimation.error else []
    if json:
        document: dict[str, Any] = {
            "replays": [_document(summary) for summary in summaries],
            "fidelity": _errors(believed),
        }
        document |= {"estimates": effects} if settings.estimation.error else {}
        out_json(document | ({} if emitted is None else {"emitted_steps": emitted}))
        return
    if quiet:
        return
    out(table(_COLUMNS, [_row(summary) for summary in summaries]))
    for summary in summaries:
        if summary.controls:
            out(f"controls under {printable(summary.policy)}: {controls_line(summary.controls)}")
    if effects:
        out(_effects_text(settings, effects))
    elif settings.estimation.error:
        note("no policy replayed goes by estimates of costs: sjf, wfq, wfq+edf and qoserve do")
    left_out = summaries[0].left_out
    if left_out:
        note(f"left out as no load: {left_out} (refused by production, or of unknown prompt length)")
    out(_fidelity_line(baseline, baseline in found, believed))
    if emitted is not None:
        out(f"{emitted} steps in {output}")


def controls_line(totals: dict[str, float]) -> str:
    """What controls did in all, such as ``refusal.queue_time 12, retry.came_back 12``."""
    return ", ".join(f"{name} {value:g}" for name, value in totals.items())


def _effects(
    store: Store, settings: Config, policies: list[str], begin: datetime | None, end: datetime | None
) -> list[EstimateEffect]:
    from fairreplay.metrics.options import measure_options
    from fairreplay.report.estimates import effects_of

    return effects_of(store, settings, measure_options(settings, since=begin, until=end), policies)


def _effects_text(settings: Config, effects: list[EstimateEffect]) -> str:
    from textwrap import wrap

    from fairreplay.report.estimates import sentence

    several = len({row["model"] for row in effects}) > 1
    rows = [
        [
            printable(f"{row['policy']}, {row['estimates']}"),
            *([printable(row["model"] or "(no model)")] if several else []),
            None if row["scr"] is None else f"{row['scr']:.3f}",
            row["windows"],
        ]
        for row in effects
    ]
    said = sentence(settings, effects)
    columns = ("policy", *(["model"] if several else []), "SCR", "windows")
    return "\n".join([*wrap(f"E{said[1:]}:", WIDTH_MAX), table(columns, rows)])


def _fidelity(store: Store, replay: str, begin: datetime | None, end: datetime | None) -> Fidelity | None:
    from fairreplay.metrics.fidelity import FIDELITY_COLUMNS, fidelity
    from fairreplay.store.outcomes import outcome

    if all("first_token_at" in segment.empty_columns for segment in store.manifest.segments):
        return None
    logged = outcome(store, "logged", begin, end, FIDELITY_COLUMNS)
    return fidelity(logged, outcome(store, replay, begin, end, FIDELITY_COLUMNS))


def _check_emit(emit: str | None, output: Path | None, policies: list[str], interval: tuple[object, object]) -> None:
    """``--emit`` and what goes with it, before anything is run."""
    if emit is None:
        if output is not None or interval != (None, None):
            raise UsageError("-o, --emit-since and --emit-until go with --emit steps or --emit perfetto")
        return
    if emit not in ("steps", "perfetto"):
        raise UsageError(f"--emit {emit!r} is unknown: write steps or perfetto")
    if output is None:
        raise UsageError(f"--emit {emit} writes to a file: name it with -o FILE")
    if len(set(policies)) != 1:
        raise UsageError(f"--emit {emit} writes the steps of one policy: give --policy once")


def note_compilation(policies: Sequence[str] = (), settings: Config | None = None, *, quiet: bool) -> None:
    """Compile the engine on its first use, and say why that takes longer and how long it took."""
    from fairreplay.sandbox.compiled import compile_engine, is_compiled

    extras = settings is not None and settings.has_extras()
    controls = settings is not None and settings.has_controls()
    pools = settings is not None and settings.has_pools()
    estimates = settings is not None and settings.estimation.error > 0
    if is_compiled(policies, extras, pools, controls, estimates):
        return
    note("compiling the engine: once on this machine, up to a minute ...", quiet=quiet)
    started = time.monotonic()
    compile_engine(policies, extras, pools, controls, estimates)
    note(f"compiled in {time.monotonic() - started:.0f} s", quiet=quiet)


_COLUMNS = (
    "policy",
    "requests",
    "ok",
    "refused",
    "preemptions",
    "TTFT P50 s",
    "P90 s",
    "P99 s",
    "tokens/s",
)


def _row(summary: ReplaySummary) -> list[object]:
    ttft = [None if value is None else f"{value / 1000:.3f}" for value in summary.ttft_ms.values()]
    counts = [summary.requests, summary.ok, summary.rejected, summary.preemptions]
    name = summary.policy if summary.estimates is None else f"{summary.policy}, {summary.estimates}"
    return [name, *counts, *ttft, f"{summary.tokens_per_s:.1f}"]


def _document(summary: ReplaySummary) -> dict[str, Any]:
    return {
        "policy": summary.policy,
        "config_hash": summary.config_hash,
        "requests": summary.requests,
        "ok": summary.ok,
        "rejected": summary.rejected,
        "preemptions": summary.preemptions,
        "ttft_ms": summary.ttft_ms,
        "tokens_per_s": summary.tokens_per_s,
        **({} if summary.controls is None else {"controls": summary.controls}),
        **({} if summary.estimates is None else {"estimates": summary.estimates}),
        "engine_s": summary.engine_s,
        "requests_per_s": summary.requests / summary.engine_s if summary.engine_s > 0 else None,
        "wall_s": summary.wall_s,
    }


def _errors(believed: Fidelity | None) -> dict[str, Any] | None:
    return None if believed is None else asdict(believed)


def _fidelity_line(baseline: str, is_replayed: bool, believed: Fidelity | None) -> str:
    if not is_replayed:
        return f"Baseline {baseline} is not replayed yet: 'fairreplay replay' compares it with the log."
    if believed is None:
        return f"Baseline {baseline} against the log: nothing to compare, the log has no first tokens."
    errors = [
        f"P{q} {value:+.1%}"
        for q, value in (
            (50, believed.ttft_p50_error),
            (90, believed.ttft_p90_error),
            (99, believed.ttft_p99_error),
        )
        if value is not None
    ]
    line = f"Baseline {baseline} against the log: TTFT " + ", ".join(errors) + "."
    if believed.tenant_p50_error_median is not None:
        line += f"\nTenants' median TTFT: {believed.tenant_p50_error_median:.1%} off for the tenant in the middle."
    return line
