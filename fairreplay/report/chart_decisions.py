"""Whose requests went ahead of whose under another policy."""

from __future__ import annotations

from typing import Final

from fairreplay.report import text
from fairreplay.report.chart_parts import Chart, Json, axis, labels, layout
from fairreplay.report.schema import Decisions

OTHERS: Final = "all others"


def overtakes(decided: Decisions, index: int) -> Chart | None:
    """The matrix of overtakes of one replay, tokens by overtaker and overtaken."""
    matrix = decided["matrix"]
    flat = [tokens for row in matrix["tokens"] for tokens in row]
    if not any(flat):
        return None
    names = labels(matrix["tenants"], 22) + ([OTHERS] if matrix["others"] else [])
    traces: list[Json] = [
        {
            "type": "heatmap",
            "name": "tokens ahead",
            "x": names,
            "y": names,
            "z": [[tokens or None for tokens in row] for row in matrix["tokens"]],
            "text": [[compact(tokens) if tokens else "" for tokens in row] for row in matrix["tokens"]],
            "texttemplate": "%{text}",
            "textfont": {"size": 10},
            "colorscale": [[0, "var(--heat)"], [1, "#3d96cf"]],
            "colorbar": {"title": {"text": "tokens", "side": "right"}, "thickness": 10, "outlinewidth": 0},
            "xgap": 1,
            "ygap": 1,
            "hoverongaps": False,
            "hovertemplate": "%{y} ahead of %{x}: %{z:,} tokens<extra></extra>",
        }
    ]
    figure = layout(height=150 + 24 * len(names), hovermode="closest")
    figure["xaxis"] = axis(
        title={"text": "went ahead of (overtaken)"}, type="category", tickangle=-45, automargin=True, ticks="",
        showgrid=False, tickfont={"size": 10}, dtick=1,
    )  # fmt: skip
    figure["yaxis"] = axis(
        title={"text": "overtaker"}, type="category", autorange="reversed", automargin=True, ticks="", showgrid=False,
        tickfont={"size": 10}, dtick=1,
    )  # fmt: skip
    return Chart(f"overtakes-{index}", overtakes_title(decided), "", {"data": traces, "layout": figure})


def overtakes_title(decided: Decisions) -> str:
    """Who was overtaken most, and by how many tokens."""
    matrix = decided["matrix"]
    names = [text.short(name, 32) for name in matrix["tenants"]] + ([OTHERS] if matrix["others"] else [])
    behind = [sum(row[at] for row in matrix["tokens"]) for at in range(len(names))]
    most = behind.index(max(behind))
    return (
        f"Under {decided['policy']} {names[most]} is overtaken most: others' requests with {compact(behind[most])} "
        f"tokens go ahead of its own, of {compact(sum(behind))} in all (a request counts once for each it overtakes)"
    )


def compact(value: int) -> str:
    """A count for a small place: 950, 12.4 k, 3.10 M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            size = value / limit
            return f"{size:.2f} {unit}" if size < 10 else f"{size:.1f} {unit}" if size < 100 else f"{size:.0f} {unit}"
    return str(value)
