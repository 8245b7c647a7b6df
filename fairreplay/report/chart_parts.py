"""What all charts share: a look for each source and cause, axes, layout, and how names and instants enter a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from fairreplay.report import text
from fairreplay.report.schema import Source

Json = dict[str, Any]
"""A fragment of Plotly's figure JSON."""

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


def layout(height: int, hovermode: str) -> Json:
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


def axis(**keys: Any) -> Json:
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


def plot_time(instant: str) -> str:
    """Plotly ignores offsets: the instant goes in as UTC without one, and the axis names the zone."""
    return text.parse(instant).strftime("%Y-%m-%d %H:%M:%S.%f")


def time_range(starts: Sequence[Sequence[str]]) -> list[str]:
    """Of an axis from the first to the last window's start, with room for its marker; each in order, none empty."""
    first, last = min(one[0] for one in starts), max(one[-1] for one in starts)
    room = (text.parse(last) - text.parse(first)) * 0.02
    return [plot_time(text.iso(text.parse(first) - room)), plot_time(text.iso(text.parse(last) + room))]


LEGEND: Final[Json] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}

CAUSES: Final = {
    "burst": ("#D55E00", ""),
    "capacity_shortfall": ("#E69F00", "/"),
    "weight_skew": ("#0072B2", "\\"),
    "type_starvation": ("#009E73", "x"),
    "preemption_thrash": ("#CC79A7", "-"),
    "low_demand": ("#56B4E9", "|"),
    "unexplained": ("#8a929b", "."),
}
"""Cause -> colour and pattern: one look each in every report, told apart without colour too."""


def cause_look(cause: str) -> tuple[str, str]:
    return CAUSES.get(cause, CAUSES["unexplained"])


def labels(names: Sequence[str], limit: int = 24) -> list[str]:
    """Names as labels of an axis of categories: no two alike, however they are cut."""
    found: dict[str, None] = {}
    for name in names:
        label, number = text.plotly_label(name, limit), 2
        while label in found:
            label, number = f"{text.plotly_label(name, limit)} #{number}", number + 1
        found[label] = None
    return list(found)


def points(figure: Json) -> tuple[int, int]:
    """Points of a figure, cells of maps included, and how many of them are markers."""
    total = markers = 0
    for trace in figure["data"]:
        if trace["type"] == "heatmap":
            total += sum(len(row) for row in trace["z"])
            continue
        count = len(trace["x"])
        total += count
        markers += count if "markers" in trace.get("mode", "") else 0
    return total, markers
