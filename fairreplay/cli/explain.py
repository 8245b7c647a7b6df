"""``fairreplay explain``: one episode, why it happened, how sure that is, and what would have helped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairreplay.cli.console import note, out, out_json, printable, progress, table
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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairreplay.causes.differences import Differences
    from fairreplay.causes.episodes import Episode
    from fairreplay.causes.verdict import Recommendation, Verdict
    from fairreplay.report.schema import EpisodeRow

SHORT = {
    "preemption_thrash": "thrash",
    "type_starvation": "starvation",
    "weight_skew": "skew",
    "capacity_shortfall": "capacity",
}
METRICS = ("scr", "jfi", "tfr")
TENANTS_SHOWN = 12
TENANTS_OF_A_SIDE = 6


def explain(
    episode: Annotated[str, typer.Argument(metavar="ID", help="The episode, as `fairreplay episodes` names it.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write it as Markdown for a ticket; a folder takes episode-ID.md."),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    window: WindowOption = None,
    min_samples: MinSamplesOption = None,
    strict_samples: StrictSamplesOption = False,
    refusals: RefusalsOption = "miss",
    spread: SpreadOption = "phases",
    jobs: JobsOption = 1,
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Say why an episode happened: the log's evidence, the sandbox's counterfactuals, and what would have helped."""
    from fairreplay.causes.differences import of_episode
    from fairreplay.causes.review import explained, period_of, production, sources
    from fairreplay.causes.verdict import document as verdict_document
    from fairreplay.cli.episodes import document
    from fairreplay.cli.replay import note_compilation
    from fairreplay.config.load import load_config
    from fairreplay.metrics.options import measure_options
    from fairreplay.store.store import open_store

    begin, end = period(since, until)
    settings = load_config(config)
    options = measure_options(settings, window, min_samples, strict_samples, refusals, spread, begin, end)
    note_compilation(quiet=quiet)
    opened = open_store(store)
    options = period_of(opened, options)
    with progress("metrics", "sources", quiet=quiet or json) as on_source:
        found = sources(opened, settings, options, on_source)
    found = explained(found, settings, options, only="", recommend=False)  # names those of low demand too
    wanted = pick(production(found).episodes, episode)
    judged = production(explained(found, settings, options, only=wanted.id, jobs=jobs))
    told = next(one for one in judged.episodes if one.id == wanted.id)
    differ = of_episode(found, options, told)
    if output is not None:
        from fairreplay.report.controls import controls_of
        from fairreplay.report.differences import of_episodes
        from fairreplay.report.document import row_of

        decided = of_episodes(found, options, [told])[told.id]
        held = controls_of(opened, found, settings, options)
        written = write_ticket(row_of(told, judged.measured, decided, held), output)
        note(f"written: {written}", quiet=quiet or json)
    if json:
        verdict = told.verdict
        out_json(
            {
                "episode": document(told),
                "verdict": None if verdict is None else verdict_document(verdict),
                "differences": [_document(one) for one in differ],
            }
        )
    elif not quiet and output is None:
        out("\n\n".join([explanation(told), *map(_differences, differ)]))


def pick(episodes: Sequence[Episode], name: str) -> Episode:
    """The episode of that id, or of the only id that begins so.

    Raises:
        UsageError: none or several; names the nearest.
    """
    from fairreplay.errors import UsageError, nearest

    found = [one for one in episodes if one.id == name] or [
        one for one in episodes if one.id.startswith(name) or one.id.removeprefix("ep-").startswith(name)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"episode {name!r} could be any of {', '.join(one.id for one in found)}")
    if not episodes:
        raise UsageError(f"episode {name!r}: there is no episode in this period")
    raise UsageError(f"episode {name!r} is unknown; {nearest(name, [one.id for one in episodes])}")


def write_ticket(episode: EpisodeRow, output: Path) -> Path:
    """Write the Markdown file; returns where it is.

    Raises:
        UsageError: the place cannot be written to.
    """
    from fairreplay.errors import UsageError
    from fairreplay.report.ticket import ticket, ticket_name
    from fairreplay.store.files import replace_bytes

    path = output if output.suffix.lower() == ".md" else output / ticket_name(episode["id"])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, ticket(episode).encode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}); choose another -o") from None
    return path


def explanation(episode: Episode) -> str:
    """The whole explanation as text of at most 100 columns: sentence, shares, judges, fixes, assumptions."""
    from fairreplay.report.text import iso, plural, span

    model = "" if episode.model is None else f", model {episode.model}"
    head = f"{episode.id}  {span(iso(episode.start), iso(episode.end))} UTC{model}, {plural(episode.windows, 'window')}"
    tenants = ", ".join(episode.tenants[:TENANTS_SHOWN])
    more = len(episode.tenants) - TENANTS_SHOWN
    parts = [
        f"{printable(head)}\n{printable(episode.reason)}",
        f"{episode.requests_hurt} requests late or refused. Tenants hit: {printable(tenants) or 'none'}"
        + (f" and {more} more" if more > 0 else "")
        + (f". Types hit: {printable(', '.join(episode.types))}." if episode.types else "."),
    ]
    if episode.verdict is not None:
        parts += _verdict(episode, episode.verdict)
    return "\n\n".join(parts)


def _verdict(episode: Episode, verdict: Verdict) -> list[str]:
    sure = f", confidence {verdict.confidence}" if verdict.confidence else ""
    further = f"; further: {', '.join(verdict.further)}" if verdict.further else ""
    parts = [f"Cause: {verdict.cause}{sure}{further}"]
    if verdict.by_metric:
        parts.append(
            table(("metric", "worst", "deficit", "replayed", "cause", "confidence"), _metrics(episode, verdict))
        )
    if verdict.signatures:
        parts.append("The two judges: the log alone, and the sandbox without the cause\n" + _judges(verdict))
        parts.append("\n".join(f"{name}: {printable(one.says)}" for name, one in verdict.signatures.items()))
    if verdict.counterfactuals:
        parts.append("Replays of the episode\n" + _replays(verdict))
    parts += [_recommendation(one) for one in verdict.recommendations if one.cause]
    others = [one for one in verdict.recommendations if not one.cause]
    if others:
        parts.append("Listed changes in force, each taken back on its own\n" + _reverted(others))
    if verdict.assumptions:
        parts.append("Assumed: " + "; ".join(printable(said) for said in verdict.assumptions))
    return parts


def _metrics(episode: Episode, verdict: Verdict) -> list[list[object]]:
    return [
        [
            name.upper(),
            _fixed(episode.metrics.get(name)),
            _fixed(one.logged_deficit),
            _fixed(one.baseline_deficit),
            one.cause,
            one.confidence,
        ]
        for name, one in verdict.by_metric.items()
    ]


def _judges(verdict: Verdict) -> str:
    columns = ("cause", "in log", "number", "threshold", "usual", *(f"{name.upper()} share" for name in METRICS), "all")
    rows: list[list[object]] = []
    causes = [*verdict.signatures, "unexplained"]
    for cause in causes:
        one = verdict.signatures.get(cause)
        log = (
            [None] * 4 if one is None else [_found(one.found), *map(_fixed, (one.number, one.threshold, one.baseline))]
        )
        shares = [
            _share(verdict.by_metric[name].shares, cause) if name in verdict.by_metric else None for name in METRICS
        ]
        rows.append([cause, *log, *shares, _share(verdict.shares, cause)])
    return table(columns, rows)


def _differences(one: Differences) -> str:
    """Who would gain and who would pay under another policy."""
    from fairreplay.causes.differences import gains_and_pays

    against = f"{one.production} (simulated baseline)" if one.simulated else one.production
    others = one.only_production + one.only_replay
    said = f"Under {one.policy} against {against}: {one.requests} requests that both hold"
    said += f" ({others} that only one does)" if others else ""
    if one.pairs:
        said += f", {one.inversions / one.pairs:.0%} of the pairs in the other order"
    columns = ("", "tenant", "requests", "TTFT P50 s", "TTFT P90 s", "mean change s", "refused")
    rows: list[list[object]] = []
    for what, tenants in zip(("gains", "pays"), gains_and_pays(one, TENANTS_OF_A_SIDE), strict=True):
        for row in tenants.to_dicts():
            quantiles = [
                f"{row[f'ttft_{q}_us_production'] / 1e6:.2f} -> {row[f'ttft_{q}_us_replay'] / 1e6:.2f}"
                for q in ("p50", "p90")
            ]
            refused = f"{row['refused_production']} -> {row['refused_replay']}"
            change = f"{row['ttft_mean_change_us'] / 1e6:+.2f}"
            rows.append([what, row["tenant"], row["requests"], *quantiles, change, refused])
    return printable(said) + ("\n" + table(columns, rows) if rows else ": nobody's TTFT changes")


def _document(one: Differences) -> dict[str, Any]:
    names = ("requests", "only_production", "only_replay", "ordered_by", "ordered", "pairs", "inversions")
    head = {"production": one.production, "policy": one.policy, "simulated": one.simulated}
    return head | {name: getattr(one, name) for name in names} | {"tenants": one.tenants.to_dicts()}


def _replays(verdict: Verdict) -> str:
    rows: list[list[object]] = [
        [
            " + ".join(SHORT.get(cause, cause) for cause in one.without) or "(nothing: the baseline)",
            *(_fixed(one.metrics.get(name)) for name in METRICS),
            *(_fixed(one.deficits.get(name)) for name in METRICS),
        ]
        for one in verdict.counterfactuals
    ]
    return table(
        ("replay", *(name.upper() for name in METRICS), *(f"{name.upper()} deficit" for name in METRICS)), rows
    )


def _recommendation(one: Recommendation) -> str:
    from fairreplay.causes.words import effect_of

    head = f"Recommended against {one.cause}: {one.title} ({effect_of(one)})"
    rows = [_effect("episode", one.before, one.after)]
    if one.period_before is not None and one.period_after is not None:
        rows.append(_effect("period", one.period_before, one.period_after))
    lines = [printable(head), table(("", "SCR", "JFI", "TFR", "least x"), rows)]
    if one.snippet:
        lines += ["    " + printable(line) for line in one.snippet.split("\n")]
    return "\n".join(lines)


def _reverted(found: Sequence[Recommendation]) -> str:
    rows: list[list[object]] = [
        [one.title.removeprefix("Take back the "), f"{one.removed_all:+.0%}", *_effect("", one.before, one.after)[1:]]
        for one in found
    ]
    return table(("change", "removes", "SCR", "JFI", "TFR", "least x"), rows)


def _effect(name: str, before: Mapping[str, float | None], after: Mapping[str, float | None]) -> list[object]:
    pairs = [(_fixed(before.get(key)), _fixed(after.get(key))) for key in (*METRICS, "min_x")]
    return [name, *(f"{was or '–'} -> {now or '–'}" for was, now in pairs)]


def _found(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"


def _share(shares: Mapping[str, float] | None, cause: str) -> str | None:
    return None if shares is None or cause not in shares else _fixed(shares[cause])


def _fixed(value: Any) -> str | None:
    return None if value is None else f"{value:.2f}".replace("-0.00", "0.00")
