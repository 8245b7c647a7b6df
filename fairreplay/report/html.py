"""The HTML view of the document: one file that stands alone.

Escaping happens at one place each: Jinja's autoescape for HTML, ``_script_data`` for data inside ``<script>``,
``text.plotly_label`` for chart labels. The policy in the page allows exactly the scripts and the style written here,
by hash, and no request at all.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fairreplay.errors import UsageError
from fairreplay.report import text
from fairreplay.report.charts import OKABE_ITO, Chart, charts, common_slo, styles
from fairreplay.report.schema import (
    SCHEMA_VERSION,
    Comparison,
    Curve,
    Document,
    HeldOutSide,
    Series,
    TenantRow,
    Validation,
)

SHAPES: Final = {"ok": "●", "yellow": "▲", "red": "◆", "emergency": "■"}
TITLES: Final = {
    "scr": "SCR, tenants within SLO",
    "jfi": "JFI, evenness of service",
    "tfr": "TFR, type fairness",
    "min_x": "min x, least served tenant",
}
MEANINGS: Final = {
    "scr": "Share of the judged tenants whose P50, P90 and P99 TTFT are all within target.",
    "jfi": "Jain's index over served / entitlement: the weighted max-min share of the delivered, capped by demand.",
    "tfr": "The least share of served tokens over its floor, over the request types; 1 and above is fair.",
    "min_x": "The smallest served / entitlement of a tenant owed at least 0.5 % of the window's tokens.",
}
DEFINITIONS: Final = {
    "SCR": MEANINGS["scr"] + " Quantiles are nearest rank; one with too few samples decides nothing.",
    "JFI": MEANINGS["jfi"] + " 1 where nobody waits or was refused.",
    "x": "Served over entitlement of a tenant. min x: " + MEANINGS["min_x"][0].lower() + MEANINGS["min_x"][1:],
    "TFR": MEANINGS["tfr"],
    "Degraded window": "SCR < 0.95, JFI < 0.9, TFR < 0.5, or x < 0.7 of a tenant with waiting or refused requests.",
    "Episode": "Degraded windows of one model group with at most two others between them.",
    "Period figure": "The mean over the judged windows; windows after the last arrival (drain) are left out.",
    "TTFT": "Time to first token, from arrival.",
    "Units": "Service is weighed at the price per token of [cost].",
    "Recompute tax": "Recomputed tokens over all computed tokens.",
}
WINDOW_ROWS_MAX: Final = 240
TENANT_ROWS: Final = 30
EPISODES_SHOWN: Final = 20
CURVE_QS: Final = (10, 25, 50, 75, 90, 95, 99, 99.9)
STROKES: Final = {
    "solid": "",
    "dash": "6,3",
    "dot": "2,2",
    "dashdot": "6,2,2,2",
    "longdash": "9,3",
    "longdashdot": "9,2,2,2",
}


def render(document: Document) -> str:
    """The page for ``document``; the same document gives the same text.

    Raises:
        UsageError: the document has a schema version that this version does not know.
    """
    if document["schema_version"] != SCHEMA_VERSION:
        raise UsageError(
            f"report document: schema_version {document['schema_version']} is not known; "
            f"this version renders {SCHEMA_VERSION}, so use a newer fairreplay"
        )
    drawn = {chart.id: chart for chart in charts(document)}
    css, js = _asset("style.css"), _asset("app.js")
    plotly = _plotly() if drawn else None
    looks = styles(document["sources"])
    period = document["period"]
    models = period["models"]
    held = document["validation"]
    return _environment().get_template("report.html").render(
        d=document,
        csp=_policy(css, [js, plotly[0]] if plotly else [js]),
        css=Markup(css),
        js=Markup(js),
        plotly=Markup(plotly[1]) if plotly else "",
        figures=_script_data(list(drawn.values())),
        charts=drawn,
        looks=looks,
        strokes={name: STROKES.get(look.dash, look.dash.replace("px", "")) for name, look in looks.items()},
        roles={source["name"]: source["role"] for source in document["sources"]},
        shapes=SHAPES,
        titles=TITLES,
        meanings=MEANINGS,
        definitions=DEFINITIONS,
        palette=OKABE_ITO,
        many_models=len(models) > 1,
        other_day=_spans_days(period["since"], period["until"]),
        window_tables=[_windows([one for one in document["timeline"] if one["model"] == model]) for model in models],
        curve_tables=[_curves([one for one in document["curves"] if one["model"] == model]) for model in models],
        losses=[_losses([one for one in document["comparison"] if one["model"] == model]) for model in models],
        tenant_tables=[_tenants(document, model) for model in models],
        held=held,
        held_sentence=_held_sentence(held) if held else "",
        held_rows=_held_rows(held) if held else [],
        first_episodes=document["episodes"][:EPISODES_SHOWN],
        more_episodes=document["episodes"][EPISODES_SHOWN:],
        uncaused=any(episode["cause"] == "unclassified" for episode in document["episodes"]),
    )  # fmt: skip


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fairreplay.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "short": text.short,
        "visible": text.visible,
        "number": text.number,
        "percent": text.percent,
        "signed_percent": text.signed_percent,
        "seconds": text.seconds,
        "minutes": text.minutes,
        "plural": text.plural,
        "instant": text.instant,
        "duration": text.duration,
        "known": lambda value: "unknown" if value is None else text.number(value),
        "cause": lambda cause: cause.replace("_", " "),
        "quantile": lambda q: f"{q:g}",
    }
    return environment


# --- the parts that need no escaping because they are ours, and the one that does -----------------------------------


def _asset(name: str) -> str:
    return files("fairreplay.report").joinpath("templates", name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _plotly() -> tuple[str, str]:
    """plotly.js, and the same gzipped in base64: a third of the size, inflated in the page."""
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script, base64.b64encode(gzip.compress(script.encode(), compresslevel=9, mtime=0)).decode()


def _policy(css: str, scripts: Sequence[str]) -> str:
    """The Content-Security-Policy: nothing but what stands in the page.

    The empty style is the sheet that Plotly creates and fills by rule; ``blob:`` images are its "download as PNG".
    """
    allowed = " ".join(_hash(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_hash(css)} {_hash('')}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _hash(source: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() + "'"


def _script_data(drawn: Sequence[Chart]) -> Markup:
    """Figures as JSON that cannot end its script element, open a comment, or break a line of JavaScript."""
    data = orjson.dumps([{"id": chart.id, "figure": chart.figure} for chart in drawn]).decode()
    for character in ("<", ">", "&", "\u2028", "\u2029"):
        data = data.replace(character, f"\\u{ord(character):04x}")
    return Markup(data)


# --- rows of the tables, from columns of the document ---------------------------------------------------------------


def _spans_days(since: str | None, until: str | None) -> bool:
    return since is not None and until is not None and text.parse(since).date() != text.parse(until).date()


def _windows(series: Sequence[Series]) -> dict[str, Any]:
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
                "cells": [_window_cell(one, at) for one, at in found],
            }
        )
    return {"title": title, "sources": [one["source"] for one in series], "rows": rows}


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


def _curves(curves: Sequence[Curve]) -> dict[str, Any]:
    rows = [
        curve | {"cells": [curve["ttft_ms"][curve["q"].index(q)] if q in curve["q"] else None for q in CURVE_QS]}
        for curve in curves
    ]
    return {"qs": CURVE_QS, "rows": rows}


def _losses(rows: Sequence[Comparison]) -> list[tuple[str, str]]:
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


def _tenants(document: Document, model: str | None) -> dict[str, Any]:
    sources = [source["name"] for source in document["sources"]]
    every = [row for row in document["tenants"] if row["model"] == model]
    rows = [_tenant(row, sources) for row in every]
    return {
        "sources": sources,
        "rows": rows[:TENANT_ROWS],
        "more": rows[TENANT_ROWS:],
        "slo": common_slo(document["tenants"], model),
        "weights": any(row["weight"] is not None for row in every),
        "commitments": any(row["commitment_share"] is not None for row in every),
        "long_names": [row["tenant"] for row in every if len(text.visible(row["tenant"])) > 28],
    }


def _tenant(row: TenantRow, sources: Sequence[str]) -> dict[str, Any]:
    under = {one["source"]: one for one in row["under"]}
    nothing: dict[str, float | None] = {"p50": None, "p90": None, "p99": None}
    return {
        "tenant": row["tenant"],
        "weight": row["weight"],
        "commitment_share": row["commitment_share"],
        "slo": row["slo_ttft_ms"] or nothing,
        "under": {source: under.get(source) for source in sources},
    }


def _held_sentence(held: Validation) -> str:
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


def _held_rows(held: Validation) -> list[dict[str, Any]]:
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
