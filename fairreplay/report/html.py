"""The HTML view of the document: one file that stands alone.

Escaping happens at one place each: Jinja's autoescape for HTML, ``_packed`` for data inside ``<script>``,
``text.plotly_label`` for chart labels. The policy in the page allows exactly the scripts and the style written here,
by hash, and no request at all.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Final

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fairreplay.report import plotly_js, text, views
from fairreplay.report.chart_parts import CAUSES, cause_look, styles
from fairreplay.report.charts import charts
from fairreplay.report.schema import Document
from fairreplay.report.versions import upgraded
from fairreplay.report.words import amount, control_words

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
EPISODES_SHOWN: Final = 20
NAME_SHOWN: Final = 48
SAVED_MAX: Final = 12_000_000
"""Bytes of a document that a page carries whole, in about a tenth of them."""
STROKES: Final = {
    "solid": "",
    "dash": "6,3",
    "dot": "2,2",
    "dashdot": "6,2,2,2",
    "longdash": "9,3",
    "longdashdot": "9,2,2,2",
}


def render(document: Document) -> str:
    """The page for ``document``, of any known version; the same document gives the same text.

    Raises:
        UsageError: the document has a schema version that this version does not know.
    """
    given, document = document, upgraded(document)
    drawn = {chart.id: chart for chart in charts(document)}
    css, js = _asset("style.css"), _asset("app.js")
    plotly = _plotly() if drawn else None
    looks = styles(document["sources"])
    period = document["period"]
    models = period["models"]
    held = document["validation"]
    saved, whole = _saved(given)
    names = _LongNames()
    timeline, curves, comparison = document["timeline"], document["curves"], document["comparison"]
    return _environment().get_template("report.html").render(
        d=document,
        name=names.shown,
        csp=_policy(css, [js, plotly[0]] if plotly else [js]),
        css=Markup(css),
        js=Markup(js),
        plotly=Markup(plotly[1]) if plotly else "",
        figures=_packed(orjson.dumps([{"id": chart.id, "figure": chart.figure} for chart in drawn.values()])),
        saved=_packed(saved),
        saved_whole=whole,
        names=names,
        charts=drawn,
        looks=looks,
        strokes={name: STROKES.get(look.dash, look.dash.replace("px", "")) for name, look in looks.items()},
        roles={source["name"]: source["role"] for source in document["sources"]},
        shapes=SHAPES,
        titles=TITLES,
        meanings=MEANINGS,
        definitions=DEFINITIONS,
        cause_color=lambda cause: cause_look(cause)[0],
        causes=list(CAUSES),
        many_models=len(models) > 1,
        other_day=_spans_days(period["since"], period["until"]),
        window_tables=[views.windows([one for one in timeline if one["model"] == model]) for model in models],
        curve_tables=[views.curves([one for one in curves if one["model"] == model]) for model in models],
        losses=[views.losses([one for one in comparison if one["model"] == model]) for model in models],
        tenant_tables=[views.tenants(document, model) for model in models],
        heat_tables=[views.heat_tables(document, model) for model in models],
        control_tables=[views.controls(document, model) for model in models],
        held=held,
        held_sentence=views.held_sentence(held) if held else "",
        held_rows=views.held_rows(held) if held else [],
        flooding=views.flooding(document),
        views=views,
        control_words=control_words,
        episodes_by_id={episode["id"]: episode for episode in document["episodes"]},
        numbers={episode["id"]: number for number, episode in enumerate(document["episodes"], start=1)},
        first_episodes=document["episodes"][:EPISODES_SHOWN],
        more_episodes=document["episodes"][EPISODES_SHOWN:],
    )  # fmt: skip


def encoded(document: Document) -> bytes:
    """The document as ``report.json`` holds it: keys in their order, two spaces."""
    try:
        return orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"
    except TypeError:  # a name with half a character
        return json.dumps(document, indent=2, allow_nan=False).encode() + b"\n"


def _saved(document: Document) -> tuple[bytes, bool]:
    """What "Save JSON" saves: the document; one that is too large for a page without its windows."""
    content = encoded(document)
    if len(content) <= SAVED_MAX:
        return content, True
    return encoded({**document, "timeline": []}), False


class _LongNames:
    """Names that are too long for their place: cut there, and whole in a list of their own."""

    def __init__(self) -> None:
        self.whole: dict[str, int] = {}

    def shown(self, name: str, limit: int = NAME_SHOWN) -> Markup:
        """The name as text of its own direction; one that is cut points to where it stands whole."""
        visible = text.visible(name)
        if len(visible) <= limit:
            return Markup('<bdi class="name">{}</bdi>').format(visible)
        place = self.whole.setdefault(visible, len(self.whole))
        return Markup('<bdi class="name" data-name="{}">{}</bdi>').format(place, text.short(name, limit))

    def data(self) -> Markup:
        return _packed(orjson.dumps(list(self.whole)))


def _time(instant: str | None, day: bool = True) -> Markup | str:
    """An instant that the page can show in another zone."""
    if instant is None:
        return text.MISSING
    return Markup('<time datetime="{}"{}>{}</time>').format(
        instant, Markup("") if day else Markup(' class="clock"'), text.instant(instant, day=day)
    )


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
        "time": _time,
        "change": lambda value, digits=3: text.MISSING if value is None else f"{value:+.{digits}f}",
        "known": lambda value: "unknown" if value is None else text.number(value),
        "cause": lambda cause: cause.replace("_", " "),
        "quantile": lambda q: f"{q:g}",
        "amount": lambda value: text.MISSING if value is None else amount(value),
    }
    return environment


# --- the parts that need no escaping because they are ours, and the one that does -----------------------------------


def _asset(name: str) -> str:
    return files("fairreplay.report").joinpath("templates", name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _plotly() -> tuple[str, str]:
    """plotly.js, and the same gzipped in base64: less than half the size, inflated in the page."""
    script = plotly_js.source()
    return script, str(_packed(script.encode()))


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


def _packed(data: bytes) -> Markup:
    """Data gzipped in base64, which has no character that could end its element; inflated in the page."""
    return Markup(base64.b64encode(gzip.compress(data, compresslevel=9, mtime=0)).decode())


def _spans_days(since: str | None, until: str | None) -> bool:
    return since is not None and until is not None and text.parse(since).date() != text.parse(until).date()
