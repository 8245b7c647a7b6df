"""The verbs of the command line as functions: they take what its options take, and give Polars frames.

``fairreplay.ingest``, ``fairreplay.replay`` and so on are these; they are imported when first called, so that
``import fairreplay`` stays cheap. A mistake raises an error of ``fairreplay.errors``, of one line.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, cast

import polars as pl

from fairreplay.causes.review import slid
from fairreplay.config.defaults import STORE, T0, cores
from fairreplay.config.instants import period
from fairreplay.config.load import load_config, with_estimation_error, with_floor_mode
from fairreplay.config.model import QUANTILES
from fairreplay.errors import UsageError, nearest
from fairreplay.export.results import Results
from fairreplay.export.sql import answer
from fairreplay.metrics.options import hop_us, measure_options
from fairreplay.report.capacity import load_capacity
from fairreplay.report.gather import report_document
from fairreplay.report.previous import load_previous
from fairreplay.report.redaction import redaction_of
from fairreplay.report.write import write_report
from fairreplay.sandbox.plan import baseline_policy
from fairreplay.sandbox.replay import replay as run_replay
from fairreplay.store.ingest import ingest as run_ingest
from fairreplay.store.ingest_options import document, options_of
from fairreplay.store.objects import Place, place
from fairreplay.store.store import open_store

PathLike = str | os.PathLike[str]
"""A file or folder; of a store and a report also ``s3://bucket/prefix``."""
Instant = str | datetime
"""ISO 8601 text, UTC if it names no zone; a ``datetime`` likewise."""
Kind = Literal["windows", "tenants", "types"]
Part = Literal["models", "bounds", "tenants", "types", "cells", "tried"]

INGEST_SCHEMA: Final[dict[str, pl.DataType]] = {
    "path": pl.String(),
    "source": pl.String(),
    "format": pl.String(),
    "rows": pl.Int64(),
    "accepted": pl.Int64(),
    "rejected": pl.Int64(),
    "duplicates": pl.Int64(),
    "skipped": pl.Int64(),
    "changed": pl.Boolean(),
    "assumptions": pl.List(pl.String()),
}
"""One row per source; ``rows == accepted + rejected + duplicates``."""

REPLAY_SCHEMA: Final[dict[str, pl.DataType]] = {
    "name": pl.String(),
    "policy": pl.String(),
    "config_hash": pl.String(),
    "requests": pl.Int64(),
    "left_out": pl.Int64(),
    "ok": pl.Int64(),
    "rejected": pl.Int64(),
    "preemptions": pl.Int64(),
    **{f"ttft_{q}_ms": pl.Float64() for q in ("p50", "p90", "p99")},
    "tokens_per_s": pl.Float64(),
    "estimates": pl.String(),
}
"""One row per policy, in the order given; with ``[estimation] error`` one for each kind of ``estimates``, else null."""

_MODEL: Final[dict[str, pl.DataType]] = {"model": pl.String()}
CAPACITY_SCHEMAS: Final[dict[str, dict[str, pl.DataType]]] = {
    "models": {
        **_MODEL,
        "requests": pl.Int64(),
        "replicas": pl.Int64(),
        "b_total": pl.Float64(),
        "b_total_source": pl.String(),
        "b_alloc": pl.Float64(),
        "bound_by": pl.String(),
        "largest_load": pl.Float64(),
        "largest_load_scr": pl.Float64(),
        "largest_load_reason": pl.String(),
        "replicas_needed": pl.Int64(),
        "replicas_needed_scr": pl.Float64(),
        "replicas_needed_reason": pl.String(),
    },
    "bounds": {
        **_MODEL,
        "name": pl.String(),
        "tokens": pl.Float64(),
        "limits": pl.String(),
        "limited": pl.Float64(),
        "source": pl.String(),
    },
    "tenants": {
        **_MODEL,
        "tenant": pl.String(),
        "weight": pl.Float64(),
        "allocated": pl.Float64(),
        "demand": pl.Float64(),
        "peak": pl.Float64(),
        "headroom": pl.Float64(),
        "headroom_peak": pl.Float64(),
        **{f"phi_{q}": pl.Float64() for q in ("p50", "p90", "p99")},
    },
    "types": {
        **_MODEL,
        "type": pl.String(),
        "floor": pl.Float64(),
        "allocated": pl.Float64(),
        "demand": pl.Float64(),
    },
    "cells": {
        **_MODEL,
        "tenant": pl.String(),
        "type": pl.String(),
        "demand": pl.Float64(),
        "allocated": pl.Float64(),
    },
    "tried": {
        **_MODEL,
        "question": pl.String(),
        "percent": pl.Int64(),
        "replicas": pl.Int64(),
        "scr": pl.Float64(),
        "windows": pl.Int64(),
    },
}
"""By what ``capacity`` is asked for. Tokens are those of a window; ``largest_load`` is in loads of the trace; what was
not searched for or not found is null. ``question`` is ``load`` or ``replicas``."""


def ingest(
    sources: PathLike | Sequence[PathLike],
    store: PathLike = STORE,
    *,
    config: PathLike | None = None,
    format: str = "auto",  # noqa: A002
    map: PathLike | None = None,  # noqa: A002
    tz: str = "UTC",
    t0: str = T0,
    tenant: str | None = None,
    tenant_from: str | None = None,
    type: str | None = None,  # noqa: A002
    model: str | None = None,
    join: PathLike | None = None,
    on: str | None = None,
    on_strip: Sequence[str] = (),
    since: Instant | None = None,
    until: Instant | None = None,
    max_reject_rate: float = 0.01,
    max_skew: str = "0",
    pseudonymise: str | None = None,
    key_file: PathLike | None = None,
    dry_run: bool = False,
) -> pl.DataFrame:
    """Read logs into the store (made if it is not there): ``INGEST_SCHEMA``.

    Raises:
        UsageError, BadInputError, StoreError, StoreBusyError: as the command; the store is as it was before.
    """
    from dataclasses import replace

    names = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    options = options_of(
        log_format=format,
        map_file=_path(map),
        tz=tz,
        t0=t0,
        tenant=tenant,
        tenant_from=tenant_from,
        type_=type,
        model=model,
        join=None if join is None else os.fspath(join),
        on=on,
        on_strip=list(on_strip),
        since=_text(since),
        until=_text(until),
        max_reject_rate=max_reject_rate,
        max_skew=max_skew,
        pseudonymise=pseudonymise,
        key_file=_path(key_file),
        config=_path(config),
    )
    summary = run_ingest([os.fspath(name) for name in names], _place(store), replace(options, dry_run=dry_run))
    rows = document(summary)["sources"]
    return pl.DataFrame(
        [{name: row[name] for name in INGEST_SCHEMA} for row in rows], schema=INGEST_SCHEMA, orient="row"
    )


def replay(
    policies: str | Sequence[str] = (),
    store: PathLike = STORE,
    *,
    config: PathLike | None = None,
    since: Instant | None = None,
    until: Instant | None = None,
    jobs: int | None = None,
    engine: str = "local",
    floors: str | None = None,
    estimation_error: float | None = None,
) -> pl.DataFrame:
    """Run the period's requests through the sandbox under each policy and keep the outcome in the store.

    Args:
        policies: names, or ``path/file.py:function`` of your own; none is ``[cluster] policy``.
        jobs: threads; all cores without it. Results do not depend on it.
        engine: ``"ray"`` for tasks of the cluster at ``RAY_ADDRESS`` (extra ``fairreplay[ray]``). Nor on it.
        floors: ``"soft"``, ``"hard"`` or ``"off"``, in place of ``[floor] enforce``.
        estimation_error: in place of ``[estimation] error``; a policy that estimates costs is then replayed with exact,
            with wrong and with corrected estimates.

    Returns:
        ``REPLAY_SCHEMA``. What became of each request: ``sql("FROM replay_vtc")``.
    """
    settings = with_estimation_error(with_floor_mode(load_config(_path(config)), floors), estimation_error)
    begin, end = period(_text(since), _text(until))
    wanted = [policies] if isinstance(policies, str) else list(policies)
    made = run_replay(
        open_store(_place(store)),
        settings,
        wanted or [baseline_policy(settings)],
        begin,
        end,
        jobs=jobs or cores(),
        engine=engine,
    )
    rows = [
        {name: getattr(one, name, None) for name in REPLAY_SCHEMA}
        | {f"ttft_{q}_ms": value for q, value in one.ttft_ms.items()}
        for one in made
    ]
    return pl.DataFrame(rows, schema=REPLAY_SCHEMA, orient="row")


def metrics(
    store: PathLike = STORE,
    *,
    by: Kind = "windows",
    config: PathLike | None = None,
    since: Instant | None = None,
    until: Instant | None = None,
    window: str | None = None,
    hop: str | None = None,
    min_samples: int | None = None,
    strict_samples: bool = False,
    refusals: str = "miss",
    spread: str = "phases",
) -> pl.DataFrame:
    """SCR, JFI and type fairness of the log and of every replay, a row per window, model and ``source``.

    ``by="tenants"`` and ``by="types"`` give a row for each of them in a window; with ``hop`` windows overlap.
    """
    found = _results(store, config, since, until, window, min_samples, strict_samples, refusals, spread)
    distance = hop or found.config.window.hop
    if not distance:
        return found.measured(by)
    length = hop_us(distance, "--hop" if hop else "window.hop", found.options.window_us)
    return found.measured(by, [slid(source, found.config, found.options, length) for source in found.sources])


def episodes(
    store: PathLike = STORE,
    *,
    config: PathLike | None = None,
    since: Instant | None = None,
    until: Instant | None = None,
    window: str | None = None,
    min_samples: int | None = None,
    strict_samples: bool = False,
    refusals: str = "miss",
    spread: str = "phases",
    jobs: int = 1,
) -> pl.DataFrame:
    """Every degraded moment, merged into episodes: those of production with causes and shares, then the replays'."""
    found = _results(store, config, since, until, window, min_samples, strict_samples, refusals, spread, jobs)
    return found.episodes()


def report(
    output: PathLike = "reports/report.html",
    store: PathLike = STORE,
    *,
    config: PathLike | None = None,
    since: Instant | None = None,
    until: Instant | None = None,
    window: str | None = None,
    min_samples: int | None = None,
    strict_samples: bool = False,
    refusals: str = "miss",
    spread: str = "phases",
    previous: PathLike | None = None,
    capacity: PathLike | None = None,
    redact: str | None = None,
    redact_key: PathLike | None = None,
) -> Path:
    """Write the page, ``report.json`` and the tickets beside it; where the page is. A folder takes ``report.html``.

    Args:
        previous: ``report.json`` of an earlier report; what changed since is told.
        capacity: what ``fairreplay capacity -o`` wrote, for a section of its own.
        redact: ``"tenant"`` puts tenants under pseudonyms, by the key in ``redact_key``.
    """
    found = _results(store, config, since, until, window, min_samples, strict_samples, refusals, spread)
    document = report_document(
        found.store,
        found.config,
        found.asked,
        previous=None if previous is None else load_previous(_place(previous)),
        redaction=redaction_of(redact, _path(redact_key)),
        capacity=None if capacity is None else load_capacity(Path(capacity), found.store.digest()),
    )
    return cast(Path, write_report(document, _place(output)).html)  # in a bucket what reads and writes like one


def capacity(
    store: PathLike = STORE,
    *,
    by: Part = "models",
    output: PathLike | None = None,
    config: PathLike | None = None,
    model: str | None = None,
    policy: str | None = None,
    scr: float | None = None,
    load: float | None = None,
    no_search: bool = False,
    since: Instant | None = None,
    until: Instant | None = None,
    window: str | None = None,
    min_samples: int | None = None,
    strict_samples: bool = False,
    refusals: str = "miss",
) -> pl.DataFrame:
    """What the cluster can deliver, who gets how much of it, the largest load and the replicas that keep SCR.

    Args:
        by: a row per model, or per bound, tenant, type, tenant and type (``cells``), replay of the search (``tried``).
        output: also write the document there, for ``report(capacity=...)``.
        model: only this one.
        policy: of the searched replays; what production runs if none is named.
        scr: SCR to keep, in place of ``[capacity] scr``.
        load: count replicas for this many loads of the trace, in place of ``[capacity] load``.
        no_search: bounds and allocation alone; the search takes some twenty replays a model.

    Returns:
        ``CAPACITY_SCHEMAS[by]``.
    """
    from fairreplay.planning.capacity import capacity as reckon
    from fairreplay.planning.capacity import document, with_targets, write_document
    from fairreplay.planning.config_file import check_folder

    if by not in CAPACITY_SCHEMAS:
        raise UsageError(f"by={by!r}: {nearest(by, list(CAPACITY_SCHEMAS))}")
    if output is not None:
        check_folder(Path(output))
    begin, end = period(_text(since), _text(until))
    settings = with_targets(load_config(_path(config)), scr, load)
    options = measure_options(settings, window, min_samples, strict_samples, refusals, since=begin, until=end)
    opened = open_store(_place(store))
    made = document(reckon(opened, settings, options, model=model, policy=policy, search=not no_search), opened)
    if output is not None:
        write_document(made, Path(output))
    rows = [row for group in made["groups"] for row in _capacity_rows(group, by)]
    return pl.DataFrame(rows, schema=CAPACITY_SCHEMAS[by], orient="row")


def _capacity_rows(group: dict[str, Any], by: Part) -> list[dict[str, Any]]:
    """The rows of one model's cluster."""
    model = {"model": group["model"]}
    if by == "models":
        answers: dict[str, Any] = {}
        for name, key, unit in (("largest_load", "load", "percent"), ("replicas_needed",) * 2 + ("replicas",)):
            found = group[key] or {"answer": None, "reason": None}
            answer = found["answer"] or {unit: None, "scr": None}
            value = answer[unit] if unit == "replicas" or answer[unit] is None else answer[unit] / 100
            answers |= {name: value, f"{name}_scr": answer["scr"], f"{name}_reason": found["reason"]}
        kept = set(CAPACITY_SCHEMAS["models"]) & set(group)
        return [{name: group[name] for name in kept} | answers]
    if by == "tried":
        searched = (("load", group["load"]), ("replicas", group["replicas_needed"]))
        return [model | {"question": question} | row for question, found in searched if found for row in found["tried"]]
    if by == "tenants":
        nothing = dict.fromkeys(QUANTILES)
        return [
            model | row | {f"phi_{q}": value for q, value in (row["phi"] or nothing).items()}
            for row in group["tenants"]
        ]
    return [model | row for row in group["table" if by == "cells" else by]]


def sql(
    query: str,
    store: PathLike = STORE,
    *,
    config: PathLike | None = None,
    since: Instant | None = None,
    until: Instant | None = None,
    window: str | None = None,
    min_samples: int | None = None,
    strict_samples: bool = False,
    refusals: str = "miss",
    spread: str = "phases",
    jobs: int = 1,
) -> pl.DataFrame:
    """The answer to one ``SELECT`` over requests, rejects, windows, tenants, types, episodes and replays.

    The options of a measurement hold for what is measured; ``requests`` is all that is stored.
    """
    found = _results(store, config, since, until, window, min_samples, strict_samples, refusals, spread, jobs)
    with answer(found, query) as answered:
        return pl.concat([pl.DataFrame(schema=answered.schema), *answered.frames])


def _results(
    store: PathLike,
    config: PathLike | None,
    since: Instant | None,
    until: Instant | None,
    window: str | None,
    min_samples: int | None,
    strict_samples: bool,
    refusals: str,
    spread: str,
    jobs: int = 1,
) -> Results:
    begin, end = period(_text(since), _text(until))
    settings = load_config(_path(config))
    options = measure_options(settings, window, min_samples, strict_samples, refusals, spread, begin, end)
    return Results(open_store(_place(store)), settings, options, jobs)


def _place(place_: PathLike) -> Place:
    return place(os.fspath(place_))


def _path(path: PathLike | None) -> Path | None:
    return None if path is None else Path(path)


def _text(instant: Instant | None) -> str | None:
    return instant.isoformat() if isinstance(instant, datetime) else instant
