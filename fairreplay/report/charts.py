"""Plotly figures of the report, as plain figure JSON. Nothing is computed here but positions, ranges and titles.

Colours of the page's theme are written as ``var(--name)`` and resolved in the page, so that one figure serves light
and dark. Every name of the log passes ``text.plotly_label``: Plotly reads labels as a subset of HTML.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from fairreplay.report import text
from fairreplay.report.levels import slo_use
from fairreplay.report.schema import Document, EpisodeRow, Series, Source, TenantRow, Validation

Json = dict[str, Any]
"""A fragment of Plotly's figure JSON."""

POINTS_MAX: Final = 40_000
"""Points of all timelines of a page together; Plotly stays quick below 50,000."""
MARKERS_MAX: Final = 200
"""Windows of a series up to which each window has a marker."""
TENANTS_MAX: Final = 25

OKABE_ITO: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: Final = ("dash", "dot", "dashdot", "longdash", "longdashdot", "5px,2px")
SYMBOLS: Final = ("circle-open", "diamond", "square", "triangle-up", "x", "star")
KNOWN: Final = ("fcfs", "vtc", "type-priority", "priority", "wfq", "quantile")
"""Policies with a colour of their own in every report; others take what is left, in order."""


@dataclass(frozen=True)
class Style:
    color: str
    dash: str
    symbol: str


@dataclass(frozen=True)
class Chart:
    """``title`` is a sentence that says what is shown; ``note`` names what was left out or thinned, or is empty."""

    id: str
    title: str
    note: str
    figure: Json


def styles(sources: Sequence[Source]) -> dict[str, Style]:
    """One colour, dash and marker per source for the whole page; the log is the page's ink, solid."""
    named = [source["policy"] or source["name"] for source in sources if source["role"] != "logged"]
    slots = {name: KNOWN.index(name) for name in named if name in KNOWN}
    free = [slot for slot in range(len(OKABE_ITO)) if slot not in slots.values()] or list(range(len(OKABE_ITO)))
    for position, name in enumerate(name for name in dict.fromkeys(named) if name not in slots):
        slots[name] = free[position % len(free)]
    found = {}
    for source in sources:
        if source["role"] == "logged":
            found[source["name"]] = Style("var(--ink)", "solid", "circle")
        else:
            slot = slots[source["policy"] or source["name"]]
            found[source["name"]] = Style(OKABE_ITO[slot], DASHES[slot], SYMBOLS[slot])
    return found


def charts(document: Document) -> list[Chart]:
    """Every chart of the page that has something to show, in the order of the page."""
    looks = styles(document["sources"])
    found: list[Chart | None] = []
    validation = document["validation"]
    if validation is not None:
        found.append(_held_out(validation))
    for index, model in enumerate(document["period"]["models"]):
        found += [
            _timeline(document, model, index, looks),
            _ttft(document, model, index, looks),
            _attainment(document, model, index, looks),
        ]
    return [chart for chart in found if chart is not None]


# --- timeline -------------------------------------------------------------------------------------------------------

ROWS: Final = (("scr", "SCR"), ("jfi", "JFI"), ("min_x", "min x"), ("tfr", "TFR"))
TFR_TOP: Final = 2.0


def _timeline(document: Document, model: str | None, index: int, looks: dict[str, Style]) -> Chart | None:
    series = [one for one in document["timeline"] if one["model"] == model and one["start"]]
    judged = [one for one in series if any(value is not None for key, _ in ROWS for value in _column(one, key))]
    if not judged or max(len(one["start"]) for one in judged) < 2:
        return None
    types = sum(row["model"] == model for row in document["types"])
    rows = ROWS if types > 1 else ROWS[:-1]  # type fairness of one type compares nothing
    budget = POINTS_MAX // len(document["timeline"]) // len(rows)
    every = max(math.ceil(len(one["start"]) / budget) for one in judged)
    thresholds = document["method"]["thresholds"]
    episodes = [one for one in document["episodes"] if one["model"] == model]
    traces: list[Json] = []
    for row, (key, label) in enumerate(rows, start=1):
        for one in judged:
            traces.append(_line(one, key, label, row, every, looks[one["source"]]))
    layout = _layout(height=140 * len(rows), hovermode="x unified")
    layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    layout["shapes"] = _bands(episodes)
    share = 1 / len(rows)
    for row, (key, label) in enumerate(rows, start=1):
        limit = TFR_TOP if key == "tfr" else 1.0
        layout[f"yaxis{row}" if row > 1 else "yaxis"] = _axis(
            title={"text": label},
            domain=[max(1 - row * share + 0.03, 0), 1 - (row - 1) * share - 0.015],
            range=[-0.04 * limit, 1.06 * limit],
            anchor="x",
            nticks=4,
        )
        layout["shapes"] += _threshold_lines(thresholds.get(key, {}), row)
    layout["xaxis"] = _axis(
        title={"text": f"start of window ({document['period']['zone']})"},
        type="date",
        anchor=f"y{len(rows)}",
        showspikes=True,
    )
    note = ""
    if every > 1:
        note = f"Lowest of each {every} windows drawn; every window stands in report.json."
    if types > 1 and any(value is not None and value > TFR_TOP for one in judged for value in one["tfr"]):
        note = f"{note} TFR above {TFR_TOP:.0f} lies outside the axis.".strip()
    logged = judged[0]
    return Chart(f"timeline-{index}", timeline_title(logged, thresholds), note, {"data": traces, "layout": layout})


def timeline_title(series: Series, thresholds: dict[str, dict[str, float]]) -> str:
    """What the timeline of the log shows: which metric fell below its yellow level, in how many windows, and when."""
    parts = []
    for key, label in (("scr", "SCR"), ("jfi", "JFI"), ("min_x", "min x"), ("tfr", "TFR")):
        limit = thresholds.get(key, {}).get("yellow")
        pairs = [
            (start, value)
            for start, value, drain in zip(series["start"], _column(series, key), series["drain"], strict=True)
            if value is not None and not drain
        ]
        low = [start for start, value in pairs if limit is not None and value < limit]
        if not low:
            continue
        day = text.parse(low[0]).date() != text.parse(low[-1]).date()
        ends = " – ".join(text.instant(at, day=day) for at in dict.fromkeys((low[0], low[-1])))
        parts.append(f"{label} below {limit:g} in {len(low)} of {text.plural(len(pairs), 'window')} ({ends})")
    name = series["source"]
    if not parts:
        return f"{name}: no judged window below a threshold"
    return f"{name}: " + "; ".join(parts)


def _line(series: Series, key: str, label: str, row: int, every: int, look: Style) -> Json:
    starts, values = _lowest(series["start"], _column(series, key), every)
    few = len(starts) <= MARKERS_MAX
    trace: Json = {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "name": text.plotly_label(series["source"]),
        "legendgroup": text.plotly_label(series["source"]),
        "showlegend": row == 1,
        "x": [_plot_time(start) for start in starts],
        "y": values,
        "yaxis": f"y{row}" if row > 1 else "y",
        "line": {"color": look.color, "dash": look.dash, "width": 1.6},
        "connectgaps": False,
        "hovertemplate": f"{label} %{{y:.3f}}",
    }
    if few:
        trace["marker"] = {"color": look.color, "symbol": look.symbol, "size": 5 if len(starts) <= 60 else 3}
    return trace


def _lowest(starts: list[str], values: list[float | None], every: int) -> tuple[list[str], list[float | None]]:
    """The lowest value of each ``every`` windows: a bad moment is never thinned away."""
    if every <= 1:
        return starts, values
    kept_starts: list[str] = []
    kept: list[float | None] = []
    for first in range(0, len(starts), every):
        chunk = [value for value in values[first : first + every] if value is not None]
        kept_starts.append(starts[first])
        kept.append(min(chunk) if chunk else None)
    return kept_starts, kept


def _column(series: Series, key: str) -> list[float | None]:
    column: list[float | None] = series[key]  # type: ignore[literal-required]
    return column


def _bands(episodes: Sequence[EpisodeRow]) -> list[Json]:
    return [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": _plot_time(episode["start"]),
            "x1": _plot_time(episode["end"]),
            "y0": 0,
            "y1": 1,
            "fillcolor": "var(--band)",
            "line": {"width": 0},
            "layer": "below",
        }
        for episode in episodes
    ]


def _threshold_lines(levels: dict[str, float], row: int) -> list[Json]:
    axis = f"y{row}" if row > 1 else "y"
    return [
        {
            "type": "line",
            "xref": "paper",
            "yref": axis,
            "x0": 0,
            "x1": 1,
            "y0": levels[level],
            "y1": levels[level],
            "line": {"color": f"var(--{level})", "width": 1, "dash": dash},
            "layer": "below",
        }
        for level, dash in (("yellow", "dash"), ("red", "dot"))
        if level in levels
    ]


# --- TTFT -----------------------------------------------------------------------------------------------------------


def _ttft(document: Document, model: str | None, index: int, looks: dict[str, Style]) -> Chart | None:
    curves = [curve for curve in document["curves"] if curve["model"] == model and curve["q"]]
    if not curves:
        return None
    traces: list[Json] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": text.plotly_label(curve["source"]),
            "x": [max(value, 1.0) / 1000 for value in curve["ttft_ms"]],
            "y": curve["q"],
            "line": {
                "color": looks[curve["source"]].color,
                "dash": looks[curve["source"]].dash,
                "width": 1.8,
                "shape": "hv",
            },
            "hovertemplate": "P%{y}: %{x:.3g} s",
        }
        for curve in curves
    ]
    layout = _layout(height=340, hovermode="closest")
    layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    layout["xaxis"] = _axis(title={"text": "TTFT (s, log scale)"}, type="log", dtick=1)
    layout["yaxis"] = _axis(title={"text": "requests with TTFT up to this (%)"}, range=[0, 101])
    slo = common_slo(document["tenants"], model)
    layout["shapes"] = []
    layout["annotations"] = []
    if slo is not None:
        for key, q in (("p50", 50), ("p90", 90), ("p99", 99)):
            at = slo[key] / 1000
            layout["shapes"].append(
                {"type": "line", "xref": "x", "yref": "y", "x0": at, "x1": at, "y0": 0, "y1": q}
                | {"line": {"color": "var(--muted)", "width": 1, "dash": "dot"}, "layer": "below"}
            )
            layout["annotations"].append(
                {"x": math.log10(at), "y": q, "xref": "x", "yref": "y", "showarrow": True, "arrowhead": 0, "ax": -22}
                | {
                    "ay": 0,
                    "text": f"SLO P{q}",
                    "font": {"size": 11, "color": "var(--muted)"},
                    "bgcolor": "var(--paper)",
                }
                | {"arrowcolor": "var(--muted)", "xanchor": "right"}
            )
    said = [
        f"{curve['source']} {text.seconds(_at(curve['q'], curve['ttft_ms'], 99))} s"
        for curve in curves
        if _at(curve["q"], curve["ttft_ms"], 99) is not None
    ]
    return Chart(f"ttft-{index}", "P99 TTFT: " + ", ".join(said), "", {"data": traces, "layout": layout})


def _at(qs: list[float], values: list[float], q: float) -> float | None:
    return values[qs.index(q)] if q in qs else None


def common_slo(tenants: Sequence[TenantRow], model: str | None) -> dict[str, float] | None:
    """The SLO, if every tenant has the same."""
    slos = [row["slo_ttft_ms"] for row in tenants if row["model"] == model]
    return slos[0] if slos and slos[0] is not None and all(slo == slos[0] for slo in slos) else None


# --- tenants --------------------------------------------------------------------------------------------------------


def _attainment(document: Document, model: str | None, index: int, looks: dict[str, Style]) -> Chart | None:
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
    layout = _layout(height=110 + 19 * len(rows), hovermode="closest")
    layout["legend"] = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0}
    layout["xaxis"] = _axis(title={"text": "worst TTFT quantile over its target (log)"}, type="log", dtick="D2")
    layout["yaxis"] = _axis(
        tickvals=list(range(len(rows))),
        ticktext=[text.plotly_label(row["tenant"], 24) for row in rows],
        range=[len(rows) - 0.4, -0.6],
        automargin=True,
    )
    layout["shapes"] = [
        {"type": "line", "xref": "x", "yref": "paper", "x0": 1, "x1": 1, "y0": 0, "y1": 1}
        | {"line": {"color": "var(--red)", "width": 1, "dash": "dot"}, "layer": "below"}
    ]
    said = []
    for source in points:
        judged = [under["passes"] for row in every for under in row["under"] if under["source"] == source]
        passing = sum(1 for passes in judged if passes)
        said.append(f"{passing} of {sum(1 for passes in judged if passes is not None)} under {source}")
    note = (
        f"The {len(rows)} tenants hurt most of {len(every)}; all stand in the table." if len(every) > len(rows) else ""
    )
    return Chart(f"tenants-{index}", "Tenants within SLO: " + ", ".join(said), note, {"data": traces, "layout": layout})


# --- held-out log ---------------------------------------------------------------------------------------------------


def _held_out(validation: Validation) -> Chart | None:
    rows = validation["tenants"]
    if not rows:
        return None
    real = [row["real_change_ms"] / 1000 for row in rows]
    predicted = [row["predicted_change_ms"] / 1000 for row in rows]
    low, high = min(*real, *predicted), max(*real, *predicted)
    margin = 0.05 * (high - low or 1.0)
    ends = [low - margin, high + margin]
    largest = max(row["requests"] for row in rows)
    traces: list[Json] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "prediction = reality",
            "x": ends,
            "y": ends,
            "line": {"color": "var(--muted)", "width": 1, "dash": "dot"},
            "hoverinfo": "skip",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "tenant (area: its requests)",
            "x": real,
            "y": predicted,
            "customdata": [[text.plotly_label(row["tenant"]), row["requests"]] for row in rows],
            "marker": {
                "color": OKABE_ITO[0],
                "opacity": 0.75,
                "size": [6 + 16 * math.sqrt(row["requests"] / largest) for row in rows],
                "line": {"width": 1, "color": "var(--paper)"},
            },
            "hovertemplate": "%{customdata[0]} (n %{customdata[1]}): "
            "predicted %{y:+.1f} s, real %{x:+.1f} s<extra></extra>",
        },
    ]
    layout = _layout(height=380, hovermode="closest")
    layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    layout["xaxis"] = _axis(title={"text": "real change of median TTFT (s)"}, range=ends, zeroline=True)
    layout["yaxis"] = _axis(title={"text": "predicted change (s)"}, range=ends, zeroline=True)
    title = (
        f"What {validation['after']} does to each tenant's median TTFT, predicted from the {validation['before']} log "
        f"and measured: Spearman {text.number(validation['spearman'], 3)} over {text.plural(len(rows), 'tenant')}"
    )
    return Chart("held-out", title, "", {"data": traces, "layout": layout})


# --- shared ---------------------------------------------------------------------------------------------------------


def _layout(height: int, hovermode: str) -> Json:
    return {
        "height": height,
        "hovermode": hovermode,
        "margin": {"l": 56, "r": 12, "t": 34, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "var(--ink)"},
        "hoverlabel": {"bgcolor": "var(--paper)", "bordercolor": "var(--line)", "font": {"color": "var(--ink)"}},
        "dragmode": "zoom",
    }


def _axis(**keys: Any) -> Json:
    return {
        "gridcolor": "var(--grid)",
        "linecolor": "var(--line)",
        "zerolinecolor": "var(--line)",
        "zeroline": False,
        "showline": True,
        "ticks": "outside",
        "tickcolor": "var(--line)",
        "ticklen": 4,
        **keys,
    }


def _plot_time(instant: str) -> str:
    """Plotly ignores offsets: the instant goes in as UTC without one, and the axis names the zone."""
    return text.parse(instant).strftime("%Y-%m-%d %H:%M:%S.%f")
