"""``fairreplay metrics``: the windowed metrics of the log and of every replay."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairreplay.cli.console import note, out, out_json, progress, table
from fairreplay.cli.fail_on import FailOnOption, check_level, fail_at, worst_of_source
from fairreplay.cli.options import (
    DEFAULT_STORE,
    ConfigOption,
    JsonOption,
    MinSamplesOption,
    QuietOption,
    RefusalsOption,
    SinceOption,
    SpreadOption,
    StoreOption,
    StrictSamplesOption,
    UntilOption,
    WindowOption,
)
from fairreplay.config.instants import period
from fairreplay.report.text import iso

if TYPE_CHECKING:
    from fairreplay.causes.review import Source
    from fairreplay.config.model import Config

WINDOWS_SHOWN = 40


def metrics(
    since: SinceOption = None,
    until: UntilOption = None,
    window: WindowOption = None,
    hop: Annotated[
        str | None,
        typer.Option("--hop", help='Sliding windows that begin so far apart ("10s"); episodes and figures are not.'),
    ] = None,
    min_samples: MinSamplesOption = None,
    strict_samples: StrictSamplesOption = False,
    refusals: RefusalsOption = "miss",
    spread: SpreadOption = "phases",
    fail_on: FailOnOption = None,
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show SCR, JFI and type fairness by window and model, for the log and for every replay."""
    from fairreplay.causes.review import period_of, production, slid, sources
    from fairreplay.config.load import load_config
    from fairreplay.metrics.options import hop_us, measure_options
    from fairreplay.store.store import open_store

    check_level(fail_on)
    begin, end = period(since, until)
    settings = load_config(config)
    options = measure_options(settings, window, min_samples, strict_samples, refusals, spread, begin, end)
    distance = hop or settings.window.hop
    hop_length = hop_us(distance, "--hop" if hop else "window.hop", options.window_us) if distance else None
    opened = open_store(store)
    with progress("metrics", "sources", quiet=quiet or json) as told:
        found = sources(opened, settings, options, told)
    shown = (
        found
        if hop_length is None
        else [slid(source, settings, period_of(opened, options), hop_length) for source in found]
    )
    if json:
        out_json(
            {
                "windows": [row for source in shown for row in documents(source)],
                "periods": [row for source in found for row in periods(source, settings)],
            }
        )
    elif not quiet:
        _show(found, shown, settings)
    fail_at(fail_on, worst_of_source(production(found)))


def _show(found: list[Source], shown: list[Source], settings: Config) -> None:
    for source, seen in zip(found, shown, strict=True):
        windows = seen.measured.windows
        out(f"{source.name}: {len(windows)} windows")
        out(table(_COLUMNS, [_row(row) for row in windows.head(WINDOWS_SHOWN).iter_rows(named=True)]))
        if len(windows) > WINDOWS_SHOWN:
            out(f"... and {len(windows) - WINDOWS_SHOWN} more windows (--json shows all)")
        out(table(_FIGURES, [row for period in periods(source, settings) for row in _figures(period)]))
        out("")
    for said in found[0].measured.assumptions:
        note(said)


_COLUMNS = ("window (UTC)", "model", "requests", "SCR", "JFI", "min x", "of tenant", "TFR", "of type", "failing")


def _row(row: dict[str, Any]) -> list[object]:
    return [
        f"{row['start']:%Y-%m-%d %H:%M:%S}",
        row["model"],
        row["requests"],
        *(_fixed(row[name]) for name in ("scr", "jfi", "min_x")),
        row["min_x_tenant"] if row["min_x"] is not None and row["min_x"] < 1 else None,
        _fixed(row["tfr"]),
        row["tfr_type"] if row["tfr"] is not None and row["tfr"] < 1 else None,
        len(row["failing"]),
    ]


def _fixed(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


_FIGURES = ("period", "model", "mean", "worst", "min below yellow", "red", "emergency", "alerts", "modes")


def _figures(period: dict[str, Any]) -> list[list[object]]:
    rows: list[list[object]] = []
    for metric, figure in period["figures"].items():
        alerts = [alert for alert in period["alerts"] if alert["metric"] == metric]
        modes = [mode for mode in period["emergency_modes"] if mode["metric"] == metric]
        minutes = [f"{figure[f'minutes_{level}']:.0f}" for level in ("yellow", "red", "emergency")]
        values = [_fixed(figure[name]) for name in ("mean", "worst")]
        rows.append([metric.upper(), period["model"], *values, *minutes, len(alerts), len(modes)])
    return rows


def periods(source: Source, config: Config) -> list[dict[str, Any]]:
    """One JSON object a model group of the source: figures without the drain, alerts, modes that would have fired."""
    from dataclasses import asdict

    from fairreplay.export.results import periods as of_period

    return [
        {
            "model": period.model,
            "source": period.source,
            "figures": {figure.metric: _stamped(asdict(figure)) for figure in period.figures},
            "alerts": [_stamped(asdict(alert)) for alert in period.alerts],
            "emergency_modes": [_stamped(asdict(mode)) for mode in period.modes],
        }
        for period in of_period(source, config)
    ]


def _stamped(row: dict[str, Any]) -> dict[str, Any]:
    return {key: iso(value) if isinstance(value, datetime) else value for key, value in row.items()}


_OF_TENANT = ("requests", "served", "entitlement", "x", "pass")
_MORE_OF_TENANT = ("demand", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "tail_ratio", "weight", "skew")


def documents(source: Source) -> list[dict[str, Any]]:
    """One JSON object a window of the source, in time order by model."""
    measured = source.measured
    tenants: dict[tuple[object, object], dict[str, Any]] = {}
    more: dict[tuple[object, object], dict[str, Any]] = {}
    for row in measured.tenants.sort("model", "start", "tenant", nulls_last=False).iter_rows(named=True):
        place = row["model"], row["start"]
        tenants.setdefault(place, {})[row["tenant"]] = {name: row[name] for name in _OF_TENANT}
        more.setdefault(place, {})[row["tenant"]] = {name: row[name] for name in _MORE_OF_TENANT}
    types: dict[tuple[object, object], dict[str, Any]] = {}
    for row in measured.types.sort("model", "start", "type", nulls_last=False).iter_rows(named=True):
        of_window = types.setdefault((row["model"], row["start"]), {})
        of_window[row["type"]] = {name: row[name] for name in ("share", "floor", "ratio", "ratio_raw", "leak")}
    return [
        row
        | {"start": iso(row["start"]), "end": iso(row["end"])}
        | {
            "tenants": tenants.get((row["model"], row["start"]), {}),
            "tenant_figures": more.get((row["model"], row["start"]), {}),
            "types": types.get((row["model"], row["start"]), {}),
        }
        for row in measured.windows.iter_rows(named=True)
    ]
