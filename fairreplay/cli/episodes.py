"""``fairreplay episodes``: when it was unfair, worst first in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairreplay.cli.console import out, out_json, printable, progress, table
from fairreplay.cli.fail_on import FailOnOption, check_level, fail_at, worst_of_source
from fairreplay.cli.options import (
    DEFAULT_STORE,
    ConfigOption,
    JobsOption,
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
from fairreplay.config.instants import period
from fairreplay.report.text import iso

if TYPE_CHECKING:
    from fairreplay.causes.episodes import Episode


def episodes(
    since: SinceOption = None,
    until: UntilOption = None,
    window: WindowOption = None,
    min_samples: MinSamplesOption = None,
    strict_samples: StrictSamplesOption = False,
    refusals: RefusalsOption = "miss",
    spread: SpreadOption = "phases",
    fail_on: FailOnOption = None,
    jobs: JobsOption = 1,
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """List every degraded moment, merged into episodes, of the log (with causes) and of every replay."""
    from fairreplay.causes.review import explained, period_of, production, sources
    from fairreplay.cli.replay import note_compilation
    from fairreplay.config.load import load_config
    from fairreplay.metrics.options import measure_options
    from fairreplay.store.store import open_store

    check_level(fail_on)
    begin, end = period(since, until)
    settings = load_config(config)
    options = measure_options(settings, window, min_samples, strict_samples, refusals, spread, begin, end)
    note_compilation(quiet=quiet)
    opened = open_store(store)
    options = period_of(opened, options)
    hush = quiet or json
    with progress("metrics", "sources", quiet=hush) as told:
        measured = sources(opened, settings, options, told)
    with progress("episodes", "episodes", quiet=hush) as told:
        judged = explained(measured, settings, options, jobs=jobs, progress=told)
    found = [episode for source in judged for episode in source.episodes]
    if json:
        out_json({"episodes": [document(episode) for episode in found]})
    elif not quiet:
        _show(found)
    fail_at(fail_on, worst_of_source(production(judged)))


def _show(found: list[Episode]) -> None:
    if not found:
        out("No window is degraded.")
        return
    out(table(_COLUMNS, [_row(episode) for episode in found]))
    for episode in found:
        out(printable(f"{episode.id} ({episode.source}): {episode.reason}"))


_COLUMNS = ("episode", "source", "model", "start (UTC)", "end", "SCR", "JFI", "TFR", "tenants", "cause")


def _row(episode: Episode) -> list[object]:
    worst = [None if value is None else f"{value:.2f}" for value in episode.metrics.values()]
    start, end = f"{episode.start:%m-%d %H:%M}", f"{episode.end:%H:%M}"
    return [episode.id, episode.source, episode.model, start, end, *worst, len(episode.tenants), episode.cause]


def document(episode: Episode) -> dict[str, Any]:
    """The episode as JSON, with the documented keys first."""
    return {
        "id": episode.id,
        "start": iso(episode.start),
        "end": iso(episode.end),
        "source": episode.source,
        "model": episode.model,
        "metrics": dict(episode.metrics),
        "tenants": list(episode.tenants),
        "types": list(episode.types),
        "cause": episode.cause,
        "shares": episode.shares,
        "by_metric": dict(episode.by_metric),
        "confidence": episode.confidence,
        "reason": episode.reason,
        "signatures": dict(episode.signatures),
        "recommendation": episode.recommendation,
        "min_x": episode.min_x,
        "deficits": dict(episode.deficits),
        "windows": episode.windows,
        "degraded_windows": episode.degraded_windows,
        "requests_hurt": episode.requests_hurt,
        "tokens_hurt": episode.tokens_hurt,
    }
