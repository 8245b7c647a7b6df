"""SCR, JFI, min x and TFR over the period: the log against the replays, thresholds drawn, episodes shaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from fairreplay.report import text
from fairreplay.report.chart_parts import LEGEND, Chart, Json, Style, axis, layout, plot_time, time_range
from fairreplay.report.schema import Document, EpisodeRow, Series

POINTS_MAX: Final = 36_000
"""Points of all timelines of a page together."""
MARKERS_MAX: Final = 200
"""Windows of a series up to which each window has a marker."""
NAMED_EPISODES_MAX: Final = 8
"""So many episodes have their cause written above their band."""

ROWS: Final = (("scr", "SCR"), ("jfi", "JFI"), ("min_x", "min x"), ("tfr", "TFR"))
TFR_TOP: Final = 2.0


def timeline(document: Document, model: str | None, index: int, looks: dict[str, Style]) -> Chart | None:
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
    figure = layout(height=150 * len(rows) + 40, hovermode="x unified")
    figure["legend"] = LEGEND
    figure["shapes"] = _bands(episodes)
    figure["annotations"] = _causes(episodes)
    share = 1 / len(rows)
    for row, (key, label) in enumerate(rows, start=1):
        limit = TFR_TOP if key == "tfr" else 1.0
        figure[f"yaxis{row}" if row > 1 else "yaxis"] = axis(
            title={"text": label},
            domain=[max(1 - row * share + 0.03, 0), 1 - (row - 1) * share - 0.015],
            range=[-0.04 * limit, 1.06 * limit],
            anchor="x",
            nticks=4,
        )
        figure["shapes"] += _threshold_lines(thresholds.get(key, {}), row)
    figure["xaxis"] = axis(
        title={"text": f"start of window ({document['period']['zone']})"},
        type="date",
        anchor=f"y{len(rows)}",
        range=time_range([one["start"] for one in judged]),
        showspikes=True,
    )
    note = "Shaded: episodes. Dashed: yellow below, dotted: red below."
    if every > 1:
        note += f" Lowest of each {every} windows drawn; every window stands in report.json."
    if types > 1 and any(value is not None and value > TFR_TOP for one in judged for value in one["tfr"]):
        note += f" TFR above {TFR_TOP:.0f} lies outside the axis."
    logged = judged[0]
    return Chart(f"timeline-{index}", timeline_title(logged, thresholds), note, {"data": traces, "layout": figure})


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
        "x": [plot_time(start) for start in starts],
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
            "x0": plot_time(episode["start"]),
            "x1": plot_time(episode["end"]),
            "y0": 0,
            "y1": 1,
            "fillcolor": "var(--band)",
            "line": {"width": 0},
            "layer": "below",
        }
        for episode in episodes
    ]


def _causes(episodes: Sequence[EpisodeRow]) -> list[Json]:
    if len(episodes) > NAMED_EPISODES_MAX:
        return []
    return [
        {
            "x": plot_time(episode["start"]),
            "y": 1,
            "xref": "x",
            "yref": "paper",
            "xanchor": "left",
            "yanchor": "top",
            "text": episode["cause"].replace("_", " "),
            "showarrow": False,
            "font": {"size": 10.5, "color": "var(--muted)"},
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
            "layer": "between",  # above the grid, below the lines
        }
        for level, dash in (("yellow", "dash"), ("red", "dot"))
        if level in levels
    ]
