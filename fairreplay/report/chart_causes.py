"""Why, and what would have helped: shares of the causes in each episode, and each fix before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairreplay.report import text
from fairreplay.report.chart_parts import LEGEND, Chart, Json, axis, cause_look, layout
from fairreplay.report.schema import Document, EpisodeRow

EPISODES_MAX: Final = 20
FIXES_MAX: Final = 16
METRICS: Final = (("scr", "SCR", 1.0), ("jfi", "JFI", 1.0), ("tfr", "TFR", 2.0))


def shares(document: Document) -> Chart | None:
    """A bar for each episode, worst first: what part of its deficit each cause explains."""
    told = [(number, one) for number, one in enumerate(document["episodes"], start=1) if one["shares"]]
    shown = told[:EPISODES_MAX]
    if not shown:
        return None
    causes = list(dict.fromkeys(cause for _, one in shown for cause in one["shares"] or ()))
    causes.sort(key=lambda cause: cause == "unexplained")
    traces: list[Json] = []
    for cause in causes:
        color, pattern = cause_look(cause)
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": cause.replace("_", " "),
                "x": [round(100 * (one["shares"] or {}).get(cause, 0.0), 4) for _, one in shown],
                "y": [episode_label(number, one) for number, one in shown],
                "marker": {
                    "color": color,
                    "pattern": {
                        "shape": pattern,
                        "fillmode": "overlay",
                        "fgcolor": "#ffffff",
                        "fgopacity": 0.7,
                        "size": 6,
                        "solidity": 0.25,
                    },
                    "line": {"width": 1, "color": "var(--paper)"},
                },
                "hovertemplate": "%{y}: %{x:.0f} %",
            }
        )
    figure = layout(height=96 + 26 * len(shown), hovermode="closest")
    figure |= {"barmode": "relative", "bargap": 0.35, "legend": LEGEND}
    figure["xaxis"] = axis(title={"text": "share of the episode's deficit (%)"}, zeroline=True)
    figure["yaxis"] = axis(type="category", autorange="reversed", automargin=True, ticks="", showgrid=False)
    counted: dict[str, int] = {}
    for _, one in told:
        counted[one["cause"]] = counted.get(one["cause"], 0) + 1
    said = ", ".join(
        f"{cause.replace('_', ' ')} in {count}" for cause, count in sorted(counted.items(), key=lambda c: (-c[1], c[0]))
    )
    title = f"Primary cause of {text.plural(len(told), 'episode')} with shares: {said}"
    note = f"The {len(shown)} worst of {len(told)}; all stand in the table." if len(told) > len(shown) else ""
    if any(share < 0 for _, one in shown for share in (one["shares"] or {}).values()):
        note = f"{note} A negative share made it worse.".strip()
    return Chart("causes", title, note, {"data": traces, "layout": figure})


def fixes(document: Document) -> Chart | None:
    """The metrics of an episode before and after each fix that the sandbox measured."""
    shown = fix_rows(document)
    every, shown = len(shown), shown[:FIXES_MAX]
    if not shown:
        return None
    starved = [fix[side].get("tfr") for _, _, fix in shown for side in ("before", "after")]
    panels = METRICS if any(value is not None and value < 1 for value in starved) else METRICS[:2]
    places = list(range(len(shown)))
    figure = layout(height=110 + 26 * len(shown), hovermode="closest")
    figure["legend"] = LEGEND
    figure["shapes"] = []
    traces: list[Json] = []
    width = 1 / len(panels)
    for panel, (metric, label, top) in enumerate(panels):
        number = "" if panel == 0 else str(panel + 1)
        ends = [(fix["before"].get(metric), fix["after"].get(metric)) for _, _, fix in shown]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [value for before, after in ends for value in (before, after, None)],
                "y": [at for place in places for at in (place, place, None)],
                "xaxis": f"x{number}",
                "line": {"color": "var(--muted)", "width": 1.5},
                "hoverinfo": "skip",
                "showlegend": False,
                "name": "change",
            }
        )
        for side, name, symbol, color in (
            (0, "before", "circle-open", "var(--ink)"),
            (1, "after", "diamond", "#0072B2"),
        ):
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "legendgroup": name,
                    "showlegend": panel == 0,
                    "x": [pair[side] for pair in ends],
                    "y": places,
                    "xaxis": f"x{number}",
                    "marker": {"color": color, "symbol": symbol, "size": 9, "line": {"width": 1.5, "color": color}},
                    "hovertemplate": f"{label} {name} %{{x:.3f}}<extra></extra>",
                }
            )
        figure[f"xaxis{number}"] = axis(
            title={"text": f"mean {label}"},
            range=[-0.04 * top, 1.06 * top],
            domain=[panel * width + (0.02 if panel else 0), (panel + 1) * width - 0.02],
            anchor="y",
        )
        limit = document["method"]["thresholds"].get(metric, {}).get("yellow")
        if limit is not None:
            figure["shapes"].append(
                {"type": "line", "xref": f"x{number}", "yref": "paper", "x0": limit, "x1": limit, "y0": 0, "y1": 1}
                | {"line": {"color": "var(--yellow)", "width": 1, "dash": "dash"}, "layer": "between"}
            )
    figure["yaxis"] = axis(
        tickvals=places,
        ticktext=[f"{number}: {text.plotly_label(fix['title'], 40)}" for number, _, fix in shown],
        range=[len(shown) - 0.4, -0.6],
        automargin=True,
        ticks="",
    )
    best = max(shown, key=lambda row: row[2]["removed_all"])
    title = (
        f"What the sandbox measured of {text.plural(every, 'fix', 'fixes')}: episode {best[0]}, "
        f"“{best[2]['title']}”, removes {100 * best[2]['removed_all']:.0f} % of the deficit"
    )
    note = f"The first {len(shown)} of {every}; all stand with their episodes." if every > len(shown) else ""
    return Chart("fixes", title, note, {"data": traces, "layout": figure})


def fix_rows(document: Document) -> list[tuple[int, EpisodeRow, Mapping[str, Any]]]:
    """Number of the episode, worst first, the episode, and each of its measured fixes, in their order."""
    return [
        (number, episode, fix)
        for number, episode in enumerate(document["episodes"], start=1)
        for fix in fixes_of(episode)
        if fix["cause"] is not None
    ]


def fixes_of(episode: EpisodeRow) -> list[Mapping[str, Any]]:
    found: Any = (episode["verdict"] or {}).get("recommendations")
    return list(found or ())


def episode_label(number: int, episode: EpisodeRow) -> str:
    model = "" if episode["model"] is None else f" {text.plotly_label(episode['model'], 16)}"
    return f"{number}{model} {text.instant(episode['start'])}"
