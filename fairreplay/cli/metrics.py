"""``fairreplay metrics``: the windowed metrics of the log and of every replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairreplay.cli.console import note, out, out_json, table
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
from fairreplay.cli.period import period
from fairreplay.report.text import iso

if TYPE_CHECKING:
    from fairreplay.causes.review import Source

WINDOWS_SHOWN = 40


def metrics(
    since: SinceOption = None,
    until: UntilOption = None,
    window: WindowOption = None,
    min_samples: MinSamplesOption = None,
    strict_samples: StrictSamplesOption = False,
    refusals: RefusalsOption = "miss",
    spread: SpreadOption = "phases",
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show SCR, JFI and type fairness by window and model, for the log and for every replay."""
    from fairreplay.causes.review import sources
    from fairreplay.config.load import load_config
    from fairreplay.metrics.options import measure_options
    from fairreplay.store.store import open_store

    begin, end = period(since, until)
    settings = load_config(config)
    options = measure_options(settings, window, min_samples, strict_samples, refusals, spread, begin, end)
    found = sources(open_store(store), settings, options)
    if json:
        out_json({"windows": [row for source in found for row in documents(source)]})
        return
    if quiet:
        return
    for source in found:
        rows = documents(source)
        out(f"{source.name}: {len(rows)} windows")
        out(table(_COLUMNS, [_row(row) for row in rows[:WINDOWS_SHOWN]]))
        if len(rows) > WINDOWS_SHOWN:
            out(f"... and {len(rows) - WINDOWS_SHOWN} more windows (--json shows all)")
        out("")
    for said in found[0].measured.assumptions:
        note(said)


_COLUMNS = ("window (UTC)", "model", "requests", "SCR", "JFI", "min x", "of tenant", "TFR", "of type", "failing")


def _row(row: dict[str, Any]) -> list[object]:
    return [
        row["start"][:19].replace("T", " "),
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


def documents(source: Source) -> list[dict[str, Any]]:
    """One JSON object a window of the source, in time order by model."""
    measured = source.measured
    tenants: dict[tuple[object, object], dict[str, Any]] = {}
    for row in measured.tenants.sort("model", "start", "tenant", nulls_last=False).iter_rows(named=True):
        of_window = tenants.setdefault((row["model"], row["start"]), {})
        of_window[row["tenant"]] = {name: row[name] for name in ("requests", "served", "entitlement", "x", "pass")}
    types: dict[tuple[object, object], dict[str, Any]] = {}
    for row in measured.types.sort("model", "start", "type", nulls_last=False).iter_rows(named=True):
        of_window = types.setdefault((row["model"], row["start"]), {})
        of_window[row["type"]] = {name: row[name] for name in ("share", "floor", "ratio", "ratio_raw", "leak")}
    return [
        row
        | {"start": iso(row["start"]), "end": iso(row["end"])}
        | {
            "tenants": tenants.get((row["model"], row["start"]), {}),
            "types": types.get((row["model"], row["start"]), {}),
        }
        for row in measured.windows.iter_rows(named=True)
    ]
