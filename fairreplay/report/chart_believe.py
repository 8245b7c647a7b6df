"""The sandbox against a log that it never saw."""

from __future__ import annotations

import math

from fairreplay.report import text
from fairreplay.report.chart_parts import LEGEND, OKABE_ITO, Chart, Json, axis, layout
from fairreplay.report.schema import Validation


def held_out(validation: Validation) -> Chart | None:
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
    figure = layout(height=380, hovermode="closest")
    figure["legend"] = LEGEND
    figure["xaxis"] = axis(title={"text": "real change of median TTFT (s)"}, range=ends, zeroline=True)
    figure["yaxis"] = axis(title={"text": "predicted change (s)"}, range=ends, zeroline=True)
    title = (
        f"What {validation['after']} does to each tenant's median TTFT, predicted from the {validation['before']} log "
        f"and measured: Spearman {text.number(validation['spearman'], 3)} over {text.plural(len(rows), 'tenant')}"
    )
    return Chart("held-out", title, "", {"data": traces, "layout": figure})
