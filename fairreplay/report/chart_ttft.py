"""How long requests waited for their first token: the distribution under each source, on a log scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fairreplay.report import text
from fairreplay.report.chart_parts import LEGEND, Chart, Json, Style, axis, layout
from fairreplay.report.schema import Document, TenantRow


def ttft(document: Document, model: str | None, index: int, looks: dict[str, Style]) -> Chart | None:
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
    figure = layout(height=340, hovermode="closest")
    figure["legend"] = LEGEND
    figure["xaxis"] = axis(title={"text": "TTFT (s, log scale)"}, type="log", dtick=1)
    figure["yaxis"] = axis(title={"text": "requests with TTFT up to this (%)"}, range=[0, 101])
    slo = common_slo(document["tenants"], model)
    figure["shapes"] = []
    figure["annotations"] = []
    if slo is not None:
        for key, q in (("p50", 50), ("p90", 90), ("p99", 99)):
            at = slo[key] / 1000
            figure["shapes"].append(
                {"type": "line", "xref": "x", "yref": "y", "x0": at, "x1": at, "y0": 0, "y1": q}
                | {"line": {"color": "var(--muted)", "width": 1, "dash": "dot"}, "layer": "between"}
            )
            figure["annotations"].append(
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
    return Chart(f"ttft-{index}", "P99 TTFT: " + ", ".join(said), "", {"data": traces, "layout": figure})


def _at(qs: list[float], values: list[float], q: float) -> float | None:
    return values[qs.index(q)] if q in qs else None


def common_slo(tenants: Sequence[TenantRow], model: str | None) -> dict[str, float] | None:
    """The SLO, if every tenant has the same."""
    slos = [row["slo_ttft_ms"] for row in tenants if row["model"] == model]
    return slos[0] if slos and slos[0] is not None and all(slo == slos[0] for slo in slos) else None
