"""Tenants: how far from their targets, what they got of what they were owed, and when."""

from __future__ import annotations

import math
from typing import Final

from fairreplay.report import text
from fairreplay.report.chart_parts import LEGEND, Chart, Json, Style, axis, labels, layout, plot_time
from fairreplay.report.levels import slo_use
from fairreplay.report.schema import Document, Heat

TENANTS_MAX: Final = 25
ENTITLED_MAX: Final = 150
"""Tenants of a chart of entitlement against service, those owed most."""
X_LOW: Final = 0.7


def attainment(document: Document, model: str | None, index: int, looks: dict[str, Style]) -> Chart | None:
    every = [row for row in document["tenants"] if row["model"] == model]
    rows = every[:TENANTS_MAX]
    points: dict[str, list[tuple[int, float, str]]] = {}
    for position, row in enumerate(rows):
        for under in row["under"]:
            use = slo_use(under, row["slo_ttft_ms"])
            if use is not None and use > 0:
                points.setdefault(under["source"], []).append((position, use, text.plotly_label(row["tenant"])))
    if not points:
        return None
    traces: list[Json] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": text.plotly_label(source),
            "x": [use for _, use, _ in found],
            "y": [position for position, _, _ in found],
            "customdata": [name for _, _, name in found],
            "marker": {
                "color": looks[source].color,
                "symbol": looks[source].symbol,
                "size": 9,
                "line": {"width": 1.5, "color": looks[source].color},
            },
            "hovertemplate": "%{customdata}: %{x:.2f} times the target",
        }
        for source, found in points.items()
    ]
    figure = layout(height=110 + 19 * len(rows), hovermode="closest")
    figure["legend"] = LEGEND
    figure["xaxis"] = axis(title={"text": "worst TTFT quantile over its target (log)"}, type="log", dtick="D2")
    figure["yaxis"] = axis(
        tickvals=list(range(len(rows))),
        ticktext=[text.plotly_label(row["tenant"], 24) for row in rows],
        range=[len(rows) - 0.4, -0.6],
        automargin=True,
    )
    figure["shapes"] = [
        {"type": "line", "xref": "x", "yref": "paper", "x0": 1, "x1": 1, "y0": 0, "y1": 1}
        | {"line": {"color": "var(--red)", "width": 1, "dash": "dot"}, "layer": "between"}
    ]
    said = []
    for source in points:
        judged = [under["passes"] for row in every for under in row["under"] if under["source"] == source]
        passing = sum(1 for passes in judged if passes)
        said.append(f"{passing} of {sum(1 for passes in judged if passes is not None)} under {source}")
    note = (
        f"The {len(rows)} tenants hurt most of {len(every)}; all stand in the table." if len(every) > len(rows) else ""
    )
    return Chart(f"tenants-{index}", "Tenants within SLO: " + ", ".join(said), note, {"data": traces, "layout": figure})


def entitlement(document: Document, model: str | None, index: int, looks: dict[str, Style]) -> Chart | None:
    """Service against entitlement over the period: below the line a tenant got less than it was owed."""
    rows = [row for row in document["tenants"] if row["model"] == model]
    owed = {row["tenant"]: max((under["entitlement"] or 0.0 for under in row["under"]), default=0.0) for row in rows}
    shown = sorted(
        (row for row in rows if owed[row["tenant"]] > 0), key=lambda row: (-owed[row["tenant"]], row["tenant"])
    )
    every, shown = len(shown), shown[:ENTITLED_MAX]
    if not shown:
        return None
    positive = [under["served"] for row in shown for under in row["under"] if under["served"]]
    lowest = min([*positive, *(owed[row["tenant"]] for row in shown)])
    found: dict[str, list[tuple[float, float, str, float | None]]] = {}
    for row in shown:
        for under in row["under"]:
            if under["entitlement"]:
                found.setdefault(under["source"], []).append(
                    (
                        under["entitlement"],
                        max(under["served"] or 0.0, lowest / 2),
                        text.plotly_label(row["tenant"]),
                        under["served"],
                    )
                )
    if not found:
        return None
    low = min(min(x, y) for points in found.values() for x, y, _, _ in points)
    high = max(max(x, y) for points in found.values() for x, y, _, _ in points)
    ends = [low / 1.5, high * 1.5]
    traces: list[Json] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": ends,
            "y": [end * factor for end in ends],
            "line": {"color": color, "width": 1, "dash": dash},
            "hoverinfo": "skip",
        }
        for name, factor, color, dash in (
            ("served = entitled", 1.0, "var(--muted)", "dot"),
            (f"x = {X_LOW:g}", X_LOW, "var(--red)", "dash"),
        )
    ]
    traces += [
        {
            "type": "scatter",
            "mode": "markers",
            "name": text.plotly_label(source),
            "x": [x for x, _, _, _ in points],
            "y": [y for _, y, _, _ in points],
            "customdata": [[name, served or 0.0] for _, _, name, served in points],
            "marker": {
                "color": looks[source].color,
                "symbol": looks[source].symbol,
                "size": 8,
                "opacity": 0.85,
                "line": {"width": 1.2, "color": looks[source].color},
            },
            "hovertemplate": "%{customdata[0]}: served %{customdata[1]:,.0f} of %{x:,.0f} units",
        }
        for source, points in found.items()
    ]
    figure = layout(height=380, hovermode="closest")
    figure["legend"] = LEGEND
    span = [math.log10(end) for end in ends]
    figure["xaxis"] = axis(title={"text": "entitlement over the period (service units, log)"}, type="log", range=span)
    figure["yaxis"] = axis(title={"text": "served (service units, log)"}, type="log", range=span)
    said = [
        f"{sum(1 for x, _, _, served in points if (served or 0.0) < X_LOW * x)} of {len(points)} under {source}"
        for source, points in found.items()
    ]
    note = f"The {len(shown)} tenants owed most of {every}; all stand in the table." if every > len(shown) else ""
    title = f"Tenants that got less than {100 * X_LOW:.0f} % of their entitlement over the period: " + ", ".join(said)
    return Chart(f"entitlement-{index}", title, note, {"data": traces, "layout": figure})


def heat(document: Document, model: str | None, index: int) -> Chart | None:
    """Attainment of tenants over time under production, and below it under the first other policy."""
    maps = heat_maps(document, model)
    if not maps:
        return None
    rows, names = len(maps[0]["tenants"]), labels(maps[0]["tenants"])
    height = 15 * rows + 14
    figure = layout(height=len(maps) * (height + 34) + 92, hovermode="closest")
    figure["margin"]["t"] = 40
    figure["annotations"] = []
    traces: list[Json] = []
    share = 1 / len(maps)
    for place, one in enumerate(maps):
        number = "" if place == 0 else str(place + 1)
        traces.append(
            {
                "type": "heatmap",
                "name": text.plotly_label(one["source"]),
                "x": [*map(plot_time, one["start"]), plot_time(one["end"])],
                "y": names,
                "z": one["x"],
                "yaxis": f"y{number}",
                "zmin": 0,
                "zmax": 2,
                "colorscale": HEAT_SCALE,
                "showscale": place == 0,
                "colorbar": {
                    "title": {"text": "x", "side": "right"},
                    "thickness": 10,
                    "outlinewidth": 0,
                    "tickvals": [0, 0.5, X_LOW, 1, 2],
                    "ticktext": ["0", "0.5", "0.7", "1", "2+"],
                },
                "xgap": 1 if len(one["start"]) <= 60 else 0,
                "ygap": 1,
                "hoverongaps": False,
                "hovertemplate": "%{y}<br>%{customdata}: x %{z:.2f}<extra>%{fullData.name}</extra>",
            }
        )
        top = 1 - place * share
        figure[f"yaxis{number}"] = axis(
            type="category", autorange="reversed", automargin=True, domain=[max(top - share + 0.045, 0), top - 0.015],
            showgrid=False, ticks="", tickfont={"size": 10}, dtick=1,
        )  # fmt: skip
        figure["annotations"].append(
            {"x": 0, "y": top - 0.013, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
            | {"text": f"under {text.plotly_label(one['source'])}", "showarrow": False, "font": {"size": 11.5}}
        )
    last = "" if len(maps) == 1 else str(len(maps))
    figure["xaxis"] = axis(
        title={"text": f"{_bins(maps[0], document)} ({document['period']['zone']})"},
        type="date",
        anchor=f"y{last}",
        range=[plot_time(maps[0]["start"][0]), plot_time(maps[0]["end"])],
        showgrid=False,
    )
    note = "Colour: the least x of the tenant's windows in each bin; blank: owed nothing there."
    if maps[0]["left_out"]:
        note += f" The {rows} worst served of {rows + maps[0]['left_out']} tenants."
    return Chart(f"heat-{index}", heat_title(maps[0]), note, {"data": traces, "layout": figure})


HEAT_SCALE: Final = [
    [0, "#7a2e00"],
    [0.25, "#D55E00"],
    [0.35, "#f0a66b"],
    [0.5, "var(--heat)"],
    [0.6, "#8cc3e6"],
    [1, "#0072B2"],
]
"""0 and starving: dark orange; 1 and fair: next to nothing; 2 and more: blue."""


def heat_maps(document: Document, model: str | None) -> list[Heat]:
    """Production's map and, below it, that of the first policy that is not production's."""
    roles = {source["name"]: source["role"] for source in document["sources"]}
    maps = [one for one in document["heat"] if one["model"] == model and one["start"]]
    production = next((one for one in maps if roles[one["source"]] == "logged"), maps[0] if maps else None)
    if production is None:
        return []
    other = next((one for one in maps if roles[one["source"]] == "policy"), None)
    return [production] if other is None or other["start"] != production["start"] else [production, other]


def heat_title(one: Heat) -> str:
    """Who was served worst, and how often anybody got less than the threshold."""
    cells = [x for row in one["x"] for x in row if x is not None]
    low = sum(x < X_LOW for x in cells)
    if not low:
        return f"{one['source']}: no tenant shown ever got less than {100 * X_LOW:.0f} % of its entitlement"
    hurt = sum(any(x is not None and x < X_LOW for x in row) for row in one["x"])
    counts = [sum(x is not None and x < X_LOW for x in row) for row in one["x"]]
    longest = counts.index(max(counts))
    often = f"{text.plural(counts[longest], 'bin')} of {len(one['start'])}"
    return (
        f"{one['source']}: {hurt} of {text.plural(len(one['tenants']), 'tenant')} fell below {100 * X_LOW:.0f} % of "
        f"their entitlement, {text.short(one['tenants'][longest], 32)} most often ({often})"
    )


def _bins(one: Heat, document: Document) -> str:
    window_s = document["period"]["window_s"]
    if window_s is None:
        return "the period"
    return f"bins of {text.duration(window_s * one['bin_windows'])}"
