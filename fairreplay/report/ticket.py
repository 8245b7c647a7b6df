"""``episode-<id>.md``: one episode as a summary that pastes into a ticket.

Markdown is read by many tools with many extensions, and names from a log are hostile: a name stands in a code span, and
every other text from data has all its punctuation escaped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fairreplay.causes.differences import SIMULATED
from fairreplay.causes.episodes import METRICS
from fairreplay.causes.verdict import UNEXPLAINED, Recommendation
from fairreplay.causes.words import effect_of
from fairreplay.report import text
from fairreplay.report.schema import Decisions, EpisodeRow
from fairreplay.report.words import control_line

NAMES_MAX: Final = 20


def ticket_name(episode_id: str) -> str:
    """The file's name; ids are hashes, and hold nothing of the log's."""
    return f"episode-{episode_id}.md"


def ticket(episode: EpisodeRow) -> str:
    """The ticket of an episode: what, who, why, how sure, what to change, and how to recompute it."""
    model = "" if episode["model"] is None else f", model {code(episode['model'])}"
    parts = [
        f"# Episode {episode['id']}",
        f"{text.span(episode['start'], episode['end'])} UTC{model}, {text.plural(episode['windows'], 'window')}, "
        f"{episode['windows_degraded']} of them degraded. Level: {episode['level']}.",
        f"**{escaped(episode['reason'] or '')}**" if episode["reason"] else "",
        _table(("", "worst", "deficit"), [_metric_row(episode, name) for name in METRICS]),
        f"Requests hurt: {episode['requests_hurt']:,} ({text.plural(episode['tokens_hurt'], 'token')}). "
        f"Tenants hit: {_names(episode['tenants'])}. Types hit: {_names(episode['types'])}.",
    ]
    if episode["verdict"] is not None:
        parts += _verdict(episode["verdict"])
    if episode["differences"]:
        parts += ["## Who would gain and who would pay", *map(_decided, episode["differences"])]
    if episode.get("controls"):
        said = [f"- Under {code(one['source'])}: {escaped(control_line(one['deeds']))}." for one in episode["controls"]]
        parts.append("## What the sandbox's controls did in these windows\n\n" + "\n".join(said))
    return "\n\n".join(part for part in parts if part) + "\n"


def _decided(one: Decisions) -> str:
    against = f"{one['production']} ({SIMULATED})" if one["simulated"] else one["production"]
    others = one["only_production"] + one["only_replay"]
    said = [
        f"- {escaped(one['sentence'])} {one['requests']:,} requests compared with {escaped(against)}"
        + (f"; {text.plural(others, 'row')} that only one of them holds" if others else "")
        + (f"; {one['inversions'] / one['pairs']:.1%} of the pairs in the other order." if one["pairs"] else ".")
    ]
    return "\n".join(said)


def _verdict(verdict: Mapping[str, Any]) -> list[str]:
    further = f", further causes: {', '.join(verdict['further'])}" if verdict["further"] else ""
    sure = f" (confidence {verdict['confidence']})" if verdict["confidence"] else ""
    parts = [f"## Cause: {verdict['cause']}{sure}{further}"]
    if verdict["by_metric"]:
        parts.append(_shares(verdict))
    if verdict["signatures"]:
        parts += [
            "## What the log alone says",
            _table(
                ("cause", "found", "number", "threshold", "usual", ""),
                [
                    (
                        name,
                        "unknown" if one["found"] is None else "yes" if one["found"] else "no",
                        _number(one["number"]),
                        _number(one["threshold"]),
                        _number(one["baseline"]),
                        escaped(one["says"]),
                    )
                    for name, one in verdict["signatures"].items()
                ],
            ),
        ]
    if verdict["counterfactuals"]:
        parts += [
            "## What the sandbox says",
            _table(
                ("replayed without", "SCR", "JFI", "TFR", "deficits left (SCR / JFI / TFR)"),
                [
                    (
                        ", ".join(one["without"]) or "(nothing: the baseline)",
                        *(_number(one["metrics"].get(name)) for name in METRICS),
                        " / ".join(_number(one["deficits"].get(name)) for name in METRICS),
                    )
                    for one in verdict["counterfactuals"]
                ],
            ),
        ]
    if verdict["recommendations"]:
        parts.append("## What to change")
        parts += [_recommendation(one) for one in verdict["recommendations"] if one["cause"]]
        others = [one for one in verdict["recommendations"] if not one["cause"]]
        if others:
            rows = [(escaped(one["title"]), effect_of(Recommendation(**one))) for one in others]
            parts += ["### Listed changes in force, each taken back on its own", _table(("change", "effect"), rows)]
    if verdict["assumptions"]:
        parts.append("## Assumed\n\n" + "\n".join(f"- {escaped(said)}" for said in verdict["assumptions"]))
    if verdict["counterfactuals"]:
        inputs = verdict["counterfactuals"][0]["inputs"]
        parts.append(
            f"Replayed arrivals {inputs['interval'][0]} to {inputs['interval'][1]} under config "
            f"{code(str(inputs['config_hash']))}, seed {inputs['seed']}; report.json holds the inputs of every replay."
        )
    return parts


def _shares(verdict: Mapping[str, Any]) -> str:
    causes: dict[str, None] = {}
    for one in verdict["by_metric"].values():
        causes |= dict.fromkeys(one["shares"] or ())
    shown = [cause for cause in causes if cause != UNEXPLAINED] + [UNEXPLAINED]
    rows = [
        (
            name.upper(),
            one["cause"],
            *(_number(None if one["shares"] is None else one["shares"].get(cause)) for cause in shown),
        )
        for name, one in verdict["by_metric"].items()
    ]
    if verdict["shares"] is not None:
        rows.append(("all", verdict["cause"], *(_number(verdict["shares"].get(cause)) for cause in shown)))
    table = _table(("", "cause", *shown), rows)
    made_worse = any(x < -0.005 for one in verdict["by_metric"].values() for x in (one["shares"] or {}).values())
    return table + ("\n\nA negative share made it worse." if made_worse else "")


def _recommendation(one: Mapping[str, Any]) -> str:
    columns = ("scr", "jfi", "tfr", "min_x")
    rows = [_effect("episode before", one["before"], columns), _effect("episode after", one["after"], columns)]
    if one["period_before"] is not None and one["period_after"] is not None:
        rows.append(_effect("period before", one["period_before"], columns))
        rows.append(_effect("period after", one["period_after"], columns))
    lines = [f"### {escaped(one['title'])}", f"Against {one['cause']}: {effect_of(Recommendation(**one))}."]
    lines.append(_table(("", "SCR", "JFI", "TFR", "min x"), rows))
    if one["snippet"]:
        lines.append(fenced(one["snippet"]))
    return "\n\n".join(lines)


def _effect(name: str, values: Mapping[str, float | None], columns: Sequence[str]) -> tuple[str, ...]:
    return (name, *(_number(values.get(column)) for column in columns))


def _metric_row(episode: EpisodeRow, name: str) -> tuple[str, ...]:
    return name.upper(), _number(episode["metrics"].get(name)), _number(episode["deficits"].get(name))


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(code(name) for name in names[:NAMES_MAX]) or "none"
    more = len(names) - NAMES_MAX
    return shown if more <= 0 else f"{shown} and {more} more"


def _number(value: float | None) -> str:
    return text.number(value)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def escaped(said: str) -> str:
    """Text that no Markdown reader takes for markup, a link or a mention; on one line."""
    shown = re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text.visible(said))
    return shown.replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;").replace("\\@", "\\@&#8288;")


def code(name: str) -> str:
    """A name as a code span, also inside a table cell."""
    shown = text.visible(name).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def fenced(snippet: str) -> str:
    """A code block that nothing inside it can close."""
    lines = "\n".join(text.visible(line) if line else "" for line in snippet.split("\n"))
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", lines)), default=0))
    return f"{fence}\n{lines}\n{fence}"
