"""Rows of the page's tables, turned from columns of the document. Nothing is computed here but order and choice."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fairreplay.report import text
from fairreplay.report.chart_causes import fixes_of
from fairreplay.report.chart_decisions import OTHERS
from fairreplay.report.chart_tenants import heat_maps
from fairreplay.report.chart_ttft import common_slo
from fairreplay.report.schema import (
    Comparison,
    ControlDeed,
    ControlFacts,
    Curve,
    Decisions,
    Document,
    EpisodeRow,
    Flooded,
    HeldOutSide,
    Series,
    TenantRow,
    Validation,
)
from fairreplay.report.words import LOWEST

WINDOW_ROWS_MAX: Final = 240
TENANT_ROWS: Final = 30
CURVE_QS: Final = (10, 25, 50, 75, 90, 95, 99, 99.9)
SOURCES_WIDE: Final = 3
"""Sources side by side in a table that has many columns for each; more of them get further tables."""
HEAT_COLUMNS: Final = 6
DEEDS_WIDE: Final = 8
"""Things that controls did, as columns of one table."""
NAME_MAX: Final = 28
CHANGES_SHOWN: Final = 8
OVERTAKES_SHOWN: Final = 60


def windows(series: Sequence[Series]) -> dict[str, Any]:
    """One row per window, all sources beside each other; of many windows those with the lowest log figures."""
    starts = sorted({start for one in series for start in one["start"]})
    shown = starts
    title = f"{text.plural(len(starts), 'window')} as a table"
    if len(starts) > WINDOW_ROWS_MAX:
        first = series[0]
        harm = {
            start: min((value for value in (scr, jfi, x, tfr) if value is not None), default=2.0)
            for start, scr, jfi, x, tfr in zip(
                first["start"], first["scr"], first["jfi"], first["min_x"], first["tfr"], strict=True
            )
        }
        shown = sorted(sorted(starts, key=lambda start: (harm.get(start, 2.0), start))[:WINDOW_ROWS_MAX])
        title = f"The {WINDOW_ROWS_MAX} lowest of {len(starts):,} windows as a table (all stand in report.json)"
    places = [{start: place for place, start in enumerate(one["start"])} for one in series]
    rows = []
    for start in shown:
        found = [(one, place.get(start)) for one, place in zip(series, places, strict=True)]
        held = [(one, at) for one, at in found if at is not None]
        rows.append(
            {
                "start": start,
                "drain": held[0][0]["drain"][held[0][1]],
                "requests": held[0][0]["requests"][held[0][1]],
                "cells": {one["source"]: _window_cell(one, at) for one, at in found},
            }
        )
    names = [one["source"] for one in series]
    return {"title": title, "chunks": chunks(names), "rows": rows}


def _window_cell(one: Series, at: int | None) -> dict[str, Any]:
    if at is None:
        return {"scr": None, "jfi": None, "min_x": None, "tenant": None, "tfr": None}
    return {
        "scr": one["scr"][at],
        "jfi": one["jfi"][at],
        "min_x": one["min_x"][at],
        "tenant": one["min_x_tenant"][at],
        "tfr": one["tfr"][at],
    }


def curves(curves: Sequence[Curve]) -> dict[str, Any]:
    rows = [
        curve | {"cells": [curve["ttft_ms"][curve["q"].index(q)] if q in curve["q"] else None for q in CURVE_QS]}
        for curve in curves
    ]
    return {"qs": CURVE_QS, "rows": rows}


def losses(rows: Sequence[Comparison]) -> list[tuple[str, str]]:
    """The ways of not being served that occurred: an all-zero column says nothing that "served" does not."""
    return [
        (key, label)
        for key, label, counts in (
            ("rejected", "refused", [row["rejected"] for row in rows]),
            ("failed", "failed", [row["failed"] for row in rows]),
            ("unfinished", "unfinished", [row["unfinished"] for row in rows]),
        )
        if any(counts)
    ]


def tenants(document: Document, model: str | None) -> dict[str, Any]:
    sources = [source["name"] for source in document["sources"]]
    every = [row for row in document["tenants"] if row["model"] == model]
    rows = [_tenant(row, sources) for row in every]
    return {
        "chunks": [sources[:1], *chunks(sources[1:], 2)],
        "rows": rows[:TENANT_ROWS],
        "more": rows[TENANT_ROWS:],
        "slo": common_slo(document["tenants"], model),
        "weighed": [row for row in every if row["commitment_share"] is not None or row["weight"] is not None],
    }


def _tenant(row: TenantRow, sources: Sequence[str]) -> dict[str, Any]:
    under = {one["source"]: one for one in row["under"]}
    nothing: dict[str, float | None] = {"p50": None, "p90": None, "p99": None}
    return {
        "tenant": row["tenant"],
        "slo": row["slo_ttft_ms"] or nothing,
        "under": {source: under.get(source) for source in sources},
    }


def controls(document: Document, model: str | None) -> list[dict[str, Any]]:
    """What the controls of each replay did to a model: in all, by whom it was done to, by window."""
    return [_controls(facts, model) for facts in document.get("controls", [])]


def _controls(facts: ControlFacts, model: str | None) -> dict[str, Any]:
    deeds = [deed for deed in facts["deeds"] if deed["model"] == model]
    about = [deed for deed in deeds if deed["who"]]
    starts = sorted({start for deed in deeds for start in deed["start"]})
    shown = starts
    if len(starts) > WINDOW_ROWS_MAX:
        peaks = dict.fromkeys(starts, 0.0)  # the part of a deed's own peak, of the deed that is nearest to its own
        for deed in deeds:
            if deed["what"] not in LOWEST:
                for start, value in zip(deed["start"], deed["values"], strict=True):
                    peaks[start] = max(peaks[start], value / deed["most"] if deed["most"] else 0.0)
        shown = sorted(sorted(starts, key=lambda start: (-peaks[start], start))[:WINDOW_ROWS_MAX])
    return {
        "source": facts["source"],
        "deeds": deeds,
        "who": [(part, _done_to(part)) for part in _parts(about)],
        "windows": len(starts),
        "by_window": [(part, [(start, _cells(part, start)) for start in shown]) for part in _parts(deeds)],
    }


def _parts(deeds: Sequence[ControlDeed]) -> list[list[ControlDeed]]:
    return [list(deeds[first : first + DEEDS_WIDE]) for first in range(0, len(deeds), DEEDS_WIDE)]


def _done_to(deeds: Sequence[ControlDeed]) -> list[tuple[str, list[float | None]]]:
    """Tenants and types in the order in which the deeds name them: whom most was done to first."""
    values = {
        (one["tenant"], one["type"], place): one["value"] for place, deed in enumerate(deeds) for one in deed["who"]
    }
    names = dict.fromkeys((tenant, kind) for tenant, kind, _ in values)
    return [
        (kind if tenant is None else tenant, [values.get((tenant, kind, place)) for place in range(len(deeds))])  # type: ignore[misc]
        for tenant, kind in names
    ]


def _cells(deeds: Sequence[ControlDeed], start: str) -> list[float | None]:
    places = [bisect_left(deed["start"], start) for deed in deeds]
    return [
        deed["values"][place] if place < len(deed["start"]) and deed["start"][place] == start else None
        for deed, place in zip(deeds, places, strict=True)
    ]


def held_sentence(held: Validation) -> str:
    real, predicted = held["after_logged"], held["after_replayed"]
    return (
        f"From the {held['before']} log alone the sandbox predicted that {held['after']} brings "
        f"{predicted['passing']} of {predicted['judged']} tenants within SLO; the real {held['after']} log has "
        f"{real['passing']} of {real['judged']}. TTFT P50/P90/P99: {_three(predicted)} s predicted, "
        f"{_three(real)} s real. Predicted and real change of the tenants' median TTFT "
        f"have rank correlation {text.number(held['spearman'], 3)} over {text.plural(len(held['tenants']), 'tenant')}."
    )


def _three(side: HeldOutSide) -> str:
    return "/".join(text.seconds(side["ttft_ms"][q]) for q in ("p50", "p90", "p99"))


def held_rows(held: Validation) -> list[dict[str, Any]]:
    return [
        {"label": f"{held['before']}, real log", "side": held["before_logged"], "error": None, "logged": True},
        {
            "label": f"{held['before']}, sandbox",
            "side": held["before_replayed"],
            "error": held["before_error"],
            "logged": False,
        },
        {
            "label": f"{held['after']}, real log, never seen",
            "side": held["after_logged"],
            "error": None,
            "logged": True,
        },
        {
            "label": f"{held['after']}, sandbox's prediction",
            "side": held["after_replayed"],
            "error": held["after_error"],
            "logged": False,
        },
    ]


def chunks(names: Sequence[str], wide: int = SOURCES_WIDE) -> list[list[str]]:
    """Sources by table: a table of many columns for each source stays readable, on paper too."""
    return [list(names[first : first + wide]) for first in range(0, len(names), wide)]


def heat_tables(document: Document, model: str | None) -> list[dict[str, Any]]:
    """The maps that are drawn, as tables of a few tenants each; a row for each bin."""
    tables = []
    for one in heat_maps(document, model):
        for first in range(0, len(one["tenants"]), HEAT_COLUMNS):
            places = range(first, min(first + HEAT_COLUMNS, len(one["tenants"])))
            tables.append(
                {
                    "source": one["source"],
                    "tenants": [one["tenants"][place] for place in places],
                    "rows": [
                        {"start": start, "cells": [one["x"][place][at] for place in places]}
                        for at, start in enumerate(one["start"])
                    ],
                }
            )
    return tables


def judged(episode: EpisodeRow) -> list[dict[str, Any]]:
    """What the log alone says of each cause: found or not, number, threshold, the usual number."""
    rows = []
    for cause, value in episode["signatures"].items():
        if isinstance(value, Mapping):
            found = value.get("found")
            rows.append(
                {
                    "cause": cause,
                    "found": "unknown" if found is None else "yes" if found else "no",
                    "suspected": bool(value.get("suspected")),
                    "measure": value.get("measure"),
                    "number": value.get("number"),
                    "threshold": value.get("threshold"),
                    "baseline": value.get("baseline"),
                    "says": value.get("says", ""),
                }
            )
        else:
            rows.append(
                {"cause": cause, "found": "–", "suspected": False, "measure": None, "number": None}
                | {"threshold": None, "baseline": None, "says": str(value)}
            )
    return rows


def shares(episode: EpisodeRow) -> dict[str, Any] | None:
    """Shares by metric and in all, one column a cause; null without any."""
    by_metric: dict[str, Any] = dict(episode["by_metric"])
    rows = [
        (metric.upper(), one.get("cause"), one.get("shares") or {})
        for metric, one in by_metric.items()
        if isinstance(one, Mapping)
    ]
    if episode["shares"] is not None:
        rows.append(("all", episode["cause"], episode["shares"]))
    causes = list(dict.fromkeys(cause for _, _, found in rows for cause in found))
    causes.sort(key=lambda cause: cause == "unexplained")
    if not causes:
        return None
    return {"causes": causes, "rows": rows, "worse": any(x < 0 for _, _, found in rows for x in found.values())}


def counterfactuals(episode: EpisodeRow) -> list[Mapping[str, Any]]:
    found: Any = (episode["verdict"] or {}).get("counterfactuals")
    return list(found or ())


def fixes(episode: EpisodeRow) -> list[dict[str, Any]]:
    """Measured fixes in their order, each with its metrics before and after, in the episode and in the period."""
    rows = []
    for fix in fixes_of(episode):
        effects = [("episode", fix["before"], fix["after"])]
        if fix.get("period_before") and fix.get("period_after"):
            effects.append(("period", fix["period_before"], fix["period_after"]))
        rows.append({**fix, "effects": effects})
    return rows


def assumed(episode: EpisodeRow) -> list[str]:
    found: Any = (episode["verdict"] or {}).get("assumptions")
    return list(found or ())


def overtake_rows(decided: Decisions) -> list[dict[str, Any]]:
    """Cells of the matrix that are not empty, most tokens first."""
    matrix = decided["matrix"]
    names: list[str | None] = [*matrix["tenants"], *([None] if matrix["others"] else [])]
    cells = [
        {"overtaker": names[i], "overtaken": names[j], "pairs": matrix["pairs"][i][j], "tokens": tokens}
        for i, row in enumerate(matrix["tokens"])
        for j, tokens in enumerate(row)
        if matrix["pairs"][i][j]
    ]
    return sorted(cells, key=lambda cell: (-cell["tokens"], -cell["pairs"]))[:OVERTAKES_SHOWN]  # type: ignore[operator]


def others_label() -> str:
    return OTHERS


def flooding(document: Document) -> list[Flooded]:
    """Tenants that flooded the queue, over all models, the largest first."""
    found = [flooded for group in document["verdict"]["groups"] for flooded in group["flooded"]]
    return sorted(found, key=lambda one: (-one["share"], one["tenant"]))
