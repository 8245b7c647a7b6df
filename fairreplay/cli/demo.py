"""``fairreplay demo``: a real log, ingested, replayed and reported in under a minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairreplay.cli.console import note, out, out_json
from fairreplay.cli.options import JsonOption, QuietOption
from fairreplay.cli.replay import note_compilation
from fairreplay.cli.report import summary, summary_text

if TYPE_CHECKING:
    from fairreplay.report.schema import Validation

SAMPLE = Path(__file__).parents[1] / "sample"
LOG = "vtc_arena.fcfs.jsonl"
HELD_OUT_LOG = "vtc_arena.vtc.jsonl"
CONFIG = "vtc_arena.toml"
POLICIES = ("fcfs", "vtc")


def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the store and the report.")] = Path(
        "fairreplay-demo"
    ),
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Report on the packaged sample: 27 tenants under first come first served, and what a fair scheduler would do.

    The sandbox was fitted to this log alone. A second real log, of the same arrivals under VTC, shows how well it
    predicts a change of policy that it has never seen.
    """
    from fairreplay.config.load import load_config
    from fairreplay.metrics.options import measure_options
    from fairreplay.report.gather import report_document
    from fairreplay.report.validation import held_out
    from fairreplay.report.write import write_report
    from fairreplay.sandbox.replay import find_replays, replay
    from fairreplay.store.ingest import IngestOptions, ingest
    from fairreplay.store.outcomes import LOGGED, outcome
    from fairreplay.store.store import open_store

    quiet = quiet or json
    settings = load_config(SAMPLE / CONFIG)
    note(f"ingest   {LOG}: 1,500 requests of 27 tenants, served first come first served (VTC artifact)", quiet=quiet)
    for log, folder in ((LOG, "store"), (HELD_OUT_LOG, "held-out")):
        ingest([str(SAMPLE / log)], output / folder, IngestOptions())
    store, held_out_store = open_store(output / "store"), open_store(output / "held-out")
    note(f"replay   {' and '.join(POLICIES)} in the sandbox, fitted to that log alone", quiet=quiet)
    note_compilation(quiet=quiet)
    replay(store, settings, POLICIES)
    found = find_replays(store, settings)
    before, after = (outcome(store, found[policy]) for policy in POLICIES)
    slo = settings.defaults.slo_ttft_ms
    assert slo is not None, "the sample's config sets an SLO"
    validation = held_out(
        before=POLICIES[0],
        after=POLICIES[1],
        before_logged=outcome(store, LOGGED),
        after_logged=outcome(held_out_store, LOGGED),
        before_replayed=before,
        after_replayed=after,
        slo=slo,
    )
    note("report   metrics, episodes, policies side by side", quiet=quiet)
    document = report_document(store, settings, measure_options(settings), validation)
    written = write_report(document, output / "report.html")
    if json:
        out_json(summary(document, written))
    elif not quiet:
        out(f"\n{checked(validation)}\n")
        out(summary_text(document, written))


def checked(found: Validation) -> str:
    """What the sandbox said of a policy that its log never saw, beside what really happened."""
    said, real = found["after_replayed"], found["after_logged"]
    p99 = [side["ttft_ms"]["p99"] for side in (said, real)]
    seconds = " and ".join("–" if value is None else f"{value / 1000:.1f} s" for value in p99)
    rank = "–" if found["spearman"] is None else f"{found['spearman']:.3f}"
    return (
        f"Can the sandbox be believed? From the {found['before']} log alone it predicted {said['passing']} of "
        f"{said['judged']} tenants within SLO under {found['after']};\nthe real {found['after']} log has "
        f"{real['passing']} of {real['judged']}. TTFT P99 predicted and real: {seconds}; rank "
        f"correlation of the tenants' change: {rank}."
    )
