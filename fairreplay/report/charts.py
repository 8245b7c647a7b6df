"""Plotly figures of the report, as plain figure JSON. Nothing is computed here but positions, ranges and titles.

Colours of the page's theme are written as ``var(--name)`` and resolved in the page, so that one figure serves light
and dark. Every name of the log passes ``text.plotly_label``: Plotly reads labels as a subset of HTML.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairreplay.report.chart_believe import held_out
from fairreplay.report.chart_causes import fixes, shares
from fairreplay.report.chart_controls import controls
from fairreplay.report.chart_decisions import overtakes
from fairreplay.report.chart_parts import Chart, points, styles
from fairreplay.report.chart_tenants import attainment, entitlement, heat
from fairreplay.report.chart_timeline import timeline
from fairreplay.report.chart_ttft import ttft
from fairreplay.report.schema import Document

POINTS_MAX: Final = 48_000
MARKERS_MAX: Final = 4_800
"""Of all charts of a page together: Plotly stays quick below 50,000 points and 5,000 markers."""
MATRICES_MAX: Final = 6
"""Policies with a chart of overtakes; the others have the table."""


def charts(document: Document) -> list[Chart]:
    """Every chart of the page that has something to show, in the order in which they are drawn.

    A chart that would go over the budget of the page is left out: its table stands.
    """
    found: list[Chart] = []
    total = markers = 0
    for chart in _every(document):
        if chart is None:
            continue
        more, dots = points(chart.figure)
        if total + more > POINTS_MAX or markers + dots > MARKERS_MAX:
            continue
        total, markers = total + more, markers + dots
        found.append(chart)
    return found


def _every(document: Document) -> Iterator[Chart | None]:
    looks = styles(document["sources"])
    models = list(enumerate(document["period"]["models"]))
    for index, model in models:
        yield timeline(document, model, index, looks)
    if document["validation"] is not None:
        yield held_out(document["validation"])
    for index, model in models:
        yield ttft(document, model, index, looks)
    yield shares(document)
    yield fixes(document)
    roles = {source["name"]: source["role"] for source in document["sources"]}
    policies = [place for place, one in enumerate(document["differences"]) if roles.get(one["policy"]) == "policy"]
    for place in policies[:MATRICES_MAX]:
        yield overtakes(document["differences"][place], place)
    for index, model in models:
        yield heat(document, model, index)
        yield entitlement(document, model, index, looks)
        yield attainment(document, model, index, looks)
    for index, model in models:
        yield controls(document, model, index, looks)
