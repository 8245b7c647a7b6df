"""``fairreplay replay``: the period through sandbox policies, beside what production decided."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairreplay.cli.console import note, out, out_json, table
from fairreplay.cli.options import (
    DEFAULT_STORE,
    ConfigOption,
    JsonOption,
    QuietOption,
    SinceOption,
    StoreOption,
    UntilOption,
)
from fairreplay.cli.period import period

if TYPE_CHECKING:
    from fairreplay.metrics.fidelity import Fidelity
    from fairreplay.sandbox.replay import ReplaySummary


def replay(
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="A policy; repeat for more [default: [cluster] policy]."),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run the period's requests through the sandbox under each policy and keep the outcome in the store."""
    from fairreplay.config.load import load_config
    from fairreplay.metrics.fidelity import fidelity
    from fairreplay.sandbox.plan import baseline_policy, with_known_policies
    from fairreplay.sandbox.replay import find_replays
    from fairreplay.sandbox.replay import replay as run
    from fairreplay.store.outcomes import outcome
    from fairreplay.store.store import open_store

    begin, end = period(since, until)
    settings = load_config(config)
    opened = open_store(store)
    baseline = baseline_policy(settings)
    for warning in with_known_policies(settings)[1].values():
        note(warning, quiet=quiet)
    note_compilation(quiet=quiet)
    summaries = run(opened, settings, policy or [baseline], begin, end)
    found = find_replays(opened, settings, begin, end)
    believed: Fidelity | None = None
    if baseline in found:
        logged = outcome(opened, "logged", begin, end)
        believed = fidelity(logged, outcome(opened, found[baseline], begin, end))
    if json:
        out_json({"replays": [_document(summary) for summary in summaries], "fidelity": _errors(believed)})
        return
    if quiet:
        return
    out(table(_COLUMNS, [_row(summary) for summary in summaries]))
    left_out = summaries[0].left_out
    if left_out:
        note(f"left out as no load: {left_out} (refused by production, or of unknown prompt length)")
    out(_fidelity_line(baseline, baseline in found, believed))


def note_compilation(*, quiet: bool) -> None:
    """Say why the first replay on a machine takes longer."""
    from fairreplay.sandbox.compiled import is_compiled

    if not is_compiled():
        note("compiling the engine: once on this machine, up to a minute ...", quiet=quiet)


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
    return [summary.policy, *counts, *ttft, f"{summary.tokens_per_s:.1f}"]


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
