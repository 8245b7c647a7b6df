"""What controls did under each replay, from the table that the replay keeps (``controls.parquet``) to the document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from fairreplay.causes.review import Source
from fairreplay.config.model import Config
from fairreplay.metrics.options import MeasureOptions
from fairreplay.report import text
from fairreplay.report.redaction import Redaction
from fairreplay.report.rounding import rounded
from fairreplay.report.schema import ControlDeed, ControlFacts, ControlSum, EpisodeControls
from fairreplay.report.words import CONTROL_DEEDS, LOWEST
from fairreplay.sandbox.controls.configured import control_window_us
from fairreplay.store.store import Store

_ORDER: Final = {deed: place for place, deed in enumerate(CONTROL_DEEDS)}


def controls_of(
    store: Store, found: Iterable[Source], config: Config, options: MeasureOptions, redaction: Redaction | None = None
) -> list[ControlFacts]:
    """The facts of every replay that had controls, in the order of ``found``; windows that touch the period count."""
    window_us = control_window_us(config)
    facts = []
    for source in found:
        if source.replay is None or "controls" not in store.replay_meta(source.replay):
            continue
        rows = _within(store.replay_controls(source.replay), window_us, options.since, options.until)
        facts.append(control_facts(source.name, rows, window_us, redaction))
    return facts


def control_facts(source: str, rows: pl.DataFrame, window_us: int, redaction: Redaction | None = None) -> ControlFacts:
    """The facts of one replay; ``rows`` are ``CONTROL_SCHEMA``, of windows of ``window_us``."""
    keys = ["model", "control", "what"]
    groups = rows.group_by(keys, maintain_order=True)
    deeds = [_deed(model, control, what, own, redaction) for (model, control, what), own in groups]
    unknown = len(_ORDER)
    deeds.sort(
        key=lambda deed: (
            deed["model"] is not None,
            deed["model"] or "",
            _ORDER.get((deed["control"], deed["what"]), unknown),
            deed["what"],
        )
    )
    return {"source": source, "window_s": window_us / 1e6, "deeds": deeds}


def _within(rows: pl.DataFrame, window_us: int, since: datetime | None, until: datetime | None) -> pl.DataFrame:
    if since is not None:
        rows = rows.filter(pl.col("start") > since - timedelta(microseconds=window_us))
    if until is not None:
        rows = rows.filter(pl.col("start") < until)
    return rows


def _deed(model: object, control: object, what: object, rows: pl.DataFrame, redaction: Redaction | None) -> ControlDeed:
    lowest = what in LOWEST
    value = pl.col("value").min() if lowest else pl.col("value").sum()
    windows = rows.group_by("start").agg(value).sort("start")
    peak = windows.sort("value", "start", descending=[not lowest, False]).row(0, named=True)
    who = rows.filter(pl.col("tenant").is_not_null() | pl.col("type").is_not_null())
    told = who.group_by("tenant", "type").agg(value)
    named = [(_named(tenant, redaction), _typed(kind, redaction), one) for tenant, kind, one in told.iter_rows()]
    named.sort(key=lambda row: (row[2] if lowest else -row[2], row[0] or "", row[1] or ""))
    return {
        "model": None if model is None else _typed(str(model), redaction),
        "control": str(control),
        "what": str(what),
        "value": _number(windows["value"].min() if lowest else windows["value"].sum()),
        "most": _number(peak["value"]),
        "most_at": text.iso(peak["start"]),
        "who": [{"tenant": tenant, "type": kind, "value": _number(one)} for tenant, kind, one in named],
        "start": [text.iso(start) for start in windows["start"]],
        "values": [_number(one) for one in windows["value"]],
    }


def _named(tenant: str | None, redaction: Redaction | None) -> str | None:
    return tenant if redaction is None or tenant is None else redaction.name(tenant)


def _typed(name: str | None, redaction: Redaction | None) -> str | None:
    return name if redaction is None or name is None else redaction.text(name)


def _number(value: object) -> float:
    found = rounded(value)  # type: ignore[arg-type]
    assert found is not None, "a record holds finite numbers"
    return found


def in_episode(facts: Sequence[ControlFacts], model: str | None, start: str, end: str) -> list[EpisodeControls]:
    """What the controls of each replay did to ``model`` in the windows that touch [start, end)."""
    return [{"source": one["source"], "deeds": _sums(one, model, start, end)} for one in facts]


def _sums(facts: ControlFacts, model: str | None, start: str, end: str) -> list[ControlSum]:
    first = text.iso(text.parse(start) - timedelta(seconds=facts["window_s"]))
    sums: list[ControlSum] = []
    for deed in facts["deeds"]:
        inside = [value for at, value in zip(deed["start"], deed["values"], strict=True) if first < at < end]
        if deed["model"] == model and inside:
            value = min(inside) if deed["what"] in LOWEST else sum(inside)
            sums.append({"control": deed["control"], "what": deed["what"], "value": _number(value)})
    return sums
