"""What controls did over the period: a panel for each thing that any replay's did, a line for each replay."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final

from fairreplay.report import text
from fairreplay.report.chart_parts import LEGEND, Chart, Json, Style, axis, layout, plot_time, time_range
from fairreplay.report.schema import ControlFacts, Document
from fairreplay.report.words import amount

PANELS: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    ("refusal", (), "refused"),
    ("retry", ("came_back",), "came back"),
    ("backpressure", ("limited_s",), "s below rate"),
    ("kv_admission", ("long",), "long let in"),
    ("preemption", ("voluntary",), "preempted"),
    ("preemption", ("denied",), "denied"),
    ("swap", ("out",), "swapped out"),
    ("emergency", ("single-p99_s", "throttle_s", "isolation_s"), "s in a mode"),
)
"""Control, which of its deeds are added up (none: all), label."""
POINTS_MAX: Final = 4_000
"""Windows drawn of all lines together; the empty ones beside them make up to three points of each."""
MARKERS_MAX: Final = 60
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Amounts = dict[int, float]
"""By the number of the window; none where nothing happened."""


def controls(document: Document, model: str | None, index: int, looks: dict[str, Style]) -> Chart | None:
    """Null where controls did nothing in two windows."""
    facts = document.get("controls", [])
    starts = [one["start"] for one in document["timeline"] if one["model"] == model and one["start"]]
    if not starts or not facts:
        return None
    window_us = round(facts[0]["window_s"] * 1e6)
    first_window = _number(min(one[0] for one in starts), window_us)
    last_window = _number(max(one[-1] for one in starts), window_us)
    panels = [
        (label, found)
        for control, whats, label in PANELS
        if (
            found := {
                one["source"]: amounts for one in facts if (amounts := _amounts(one, model, control, whats, window_us))
            }
        )
    ]
    windows = {window for _, found in panels for amounts in found.values() for window in amounts}
    if len(windows) < 2:
        return None
    lines = sum(len(found) for _, found in panels)
    last_window = max(last_window, *windows)
    every = max(1, math.ceil((last_window - first_window + 1) * lines / POINTS_MAX))
    share = 1 / len(panels)
    figure = layout(height=110 * len(panels) + 90, hovermode="x unified")
    figure["legend"] = LEGEND
    traces: list[Json] = []
    named: set[str] = set()
    for row, (label, found) in enumerate(panels, start=1):
        for source, amounts in found.items():
            points = _points(_thinned(amounts, every), (first_window // every, last_window // every))
            traces.append(_line(source, points, every * window_us, label, row, looks[source], source not in named))
            named.add(source)
        figure[f"yaxis{row}" if row > 1 else "yaxis"] = axis(
            title={"text": label},
            domain=[max(1 - row * share + 0.04, 0), 1 - (row - 1) * share - 0.015],
            rangemode="tozero",
            anchor="x",
            nticks=4,
        )
    figure["xaxis"] = axis(
        title={"text": f"start of window ({document['period']['zone']})"},
        type="date",
        anchor=f"y{len(panels)}",
        range=time_range(starts),
        showspikes=True,
    )
    note = f"In windows of {text.duration(window_us / 1e6)}; a replay that is not in a panel did nothing of the kind."
    if every > 1:
        note += f" Highest of each {every} windows drawn; every window stands in report.json."
    return Chart(f"controls-{index}", _title(panels), note, {"data": traces, "layout": figure})


def _amounts(facts: ControlFacts, model: str | None, control: str, whats: tuple[str, ...], window_us: int) -> Amounts:
    found: Amounts = {}
    for deed in facts["deeds"]:
        if deed["model"] != model or deed["control"] != control or (whats and deed["what"] not in whats):
            continue
        for start, value in zip(deed["start"], deed["values"], strict=True):
            window = _number(start, window_us)
            found[window] = found.get(window, 0.0) + value
    return found


def _number(start: str, window_us: int) -> int:
    return (text.parse(start) - EPOCH) // timedelta(microseconds=window_us)


def _thinned(amounts: Amounts, every: int) -> Amounts:
    """The highest of each ``every`` windows."""
    found: Amounts = {}
    for window, value in amounts.items():
        found[window // every] = max(value, found.get(window // every, 0.0))
    return found


def _points(amounts: Amounts, ends: tuple[int, int]) -> list[tuple[int, float]]:
    """The windows with something, the empty ones on either side of them, and the ends of the period."""
    around = {window + step for window in amounts for step in (-1, 0, 1)} | set(ends)
    shown = [window for window in sorted(around) if ends[0] <= window <= ends[1] or window in amounts]
    return [(window, amounts.get(window, 0.0)) for window in shown]


def _line(
    source: str, points: list[tuple[int, float]], window_us: int, label: str, row: int, look: Style, is_first: bool
) -> Json:
    few = len(points) <= MARKERS_MAX
    trace: Json = {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "name": text.plotly_label(source),
        "legendgroup": text.plotly_label(source),
        "showlegend": is_first,
        "x": [plot_time(_instant(window, window_us)) for window, _ in points],
        "y": [value for _, value in points],
        "yaxis": f"y{row}" if row > 1 else "y",
        "line": {"color": look.color, "dash": look.dash, "width": 1.6},
        "hovertemplate": f"{label} %{{y:.4~g}}",
    }
    if few:
        trace["marker"] = {"color": look.color, "symbol": look.symbol, "size": 5}
    return trace


def _instant(window: int, window_us: int) -> str:
    return text.iso(EPOCH + timedelta(microseconds=window * window_us))


def _title(panels: list[tuple[str, dict[str, Amounts]]]) -> str:
    """What the first panel shows of each replay."""
    label, found = panels[0]
    said = [
        f"{amount(round(sum(amounts.values()), 3))} {label} under {source} in {text.plural(len(amounts), 'window')}"
        for source, amounts in found.items()
    ]
    return "Controls: " + ", ".join(said)
