"""Windows in which only the raw index is low because a tenant asked for little: nobody is hurt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Final

import numpy as np
import polars as pl

from fairreplay.causes.episodes import GAP_WINDOWS_MAX, METRICS, Episode, deficits, episode_id, least
from fairreplay.causes.levels import BASELINE, VARIANCE_MIN, Bools, Floats
from fairreplay.causes.signatures import QUIET_RATIO, QUIET_SHARE, QUIET_Z
from fairreplay.causes.verdict import LOW_DEMAND, Signature
from fairreplay.metrics.measure import Measured
from fairreplay.store.outcome_rows import of_model

JFI_RAW_LOW: Final = 0.9


def low_demand_episodes(measured: Measured, outcome: pl.DataFrame) -> tuple[list[Episode], int]:
    """The episodes of low demand of one source, by model and start, and how many other windows are low in raw only.

    A window counts where ``jfi_raw`` is below .9 and nothing else is degraded; it is one of low demand where a tenant
    with at least 3 % of the requests of the hour before falls to a quarter of its own level or less (z <= -2.5). The
    hour before leaves out degraded windows and those already found.
    """
    found: list[Episode] = []
    others = 0
    for model in measured.windows["model"].unique(maintain_order=True).to_list():
        windows = of_model(measured.windows, model).sort("start")
        raw_only = windows.select(
            (pl.col("jfi_raw") < JFI_RAW_LOW).fill_null(False) & ~pl.col("degraded") & ~pl.col("drain")
        ).to_series()
        if not raw_only.any():
            continue
        tenants, counts = _counts(of_model(outcome, model), windows)
        degraded = windows["degraded"].to_numpy()
        quiet = _quiet(counts, raw_only.to_numpy(), degraded, windows)
        is_low: Bools = np.any(quiet, axis=1)
        others += int((raw_only.to_numpy() & ~is_low).sum())
        for first, last in _runs(is_low, degraded):
            found.append(_episode(windows[first : last + 1], model, tenants, quiet[first : last + 1], counts, first))
    return found, others


def _counts(rows: pl.DataFrame, windows: pl.DataFrame) -> tuple[list[str], Floats]:
    """Requests by window and tenant; shape (windows, tenants)."""
    tenants = sorted(rows["tenant"].unique().to_list())
    starts = windows["start"].to_physical().to_numpy()
    at = np.searchsorted(starts, rows["arrived_at"].to_physical().to_numpy(), side="right") - 1
    inside = (at >= 0) & (rows["arrived_at"] < windows["end"][-1]).to_numpy()
    who = rows["tenant"].cast(pl.Enum(tenants)).to_physical().to_numpy().astype(np.int64)
    flat = np.bincount(at[inside] * len(tenants) + who[inside], minlength=len(starts) * len(tenants))
    return tenants, flat.astype(np.float64).reshape(len(starts), len(tenants))


def _quiet(counts: Floats, raw_only: Bools, degraded: Bools, windows: pl.DataFrame) -> Bools:
    """Whose requests fell, by window; shape (windows, tenants)."""
    size = windows["end"][0] - windows["start"][0]
    hour = max(1, int(BASELINE / size)) if size > timedelta(0) else 1
    quiet: Bools = np.zeros(counts.shape, np.bool_)
    low = np.zeros(len(counts), np.bool_)
    for window in np.flatnonzero(raw_only).tolist():
        before = slice(max(0, window - hour), window)
        known = counts[before][~degraded[before] & ~low[before]]
        if len(known) == 0:
            continue
        mean = known.mean(axis=0)
        few = (mean >= QUIET_SHARE * mean.sum()) & (counts[window] <= QUIET_RATIO * mean) & (mean > 0)
        if not few.any():
            continue
        own = known.var(axis=0, ddof=1) if len(known) > 1 else np.zeros_like(mean)
        z = (counts[window] - mean) / np.sqrt(np.maximum(np.maximum(own, mean), VARIANCE_MIN))
        quiet[window] = few & (z <= QUIET_Z)
        low[window] = quiet[window].any()
    return quiet


def _runs(flags: Bools, degraded: Bools) -> list[tuple[int, int]]:
    """First and last of each run, joined over at most two other windows unless one of these is degraded."""
    runs: list[tuple[int, int]] = []
    for index in np.flatnonzero(flags).tolist():
        if runs and index - runs[-1][1] - 1 <= GAP_WINDOWS_MAX and not degraded[runs[-1][1] : index].any():
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return runs


def _episode(
    windows: pl.DataFrame, model: str | None, tenants: Sequence[str], quiet: Bools, counts: Floats, first: int
) -> Episode:
    start = windows["start"][0]
    fell: Bools = np.any(quiet, axis=0)
    who = [tenants[index] for index in np.flatnonzero(fell).tolist()]
    raw = least(windows["jfi_raw"])
    low = int(quiet.any(axis=1).sum())
    asked = counts[first : first + len(windows)][:, fell].mean()
    says = (
        f"{len(who)} tenant{'s' if len(who) > 1 else ''} sent a quarter of the usual requests or less in {low} of "
        f"{len(windows)} window{'s' if len(windows) > 1 else ''}: the raw index fell to {raw:.2f}, and nobody was hurt"
    )
    signature = Signature(
        cause=LOW_DEMAND,
        found=True,
        suspected=False,
        measure="requests over usual requests, of the tenant that fell most",
        number=None,
        threshold=QUIET_RATIO,
        baseline=1.0,
        says=says,
        tenants=tuple(who),
        details={"jfi_raw": raw, "requests_per_window": float(asked)},
    )
    return Episode(
        id=episode_id(model, start),
        start=start,
        end=windows["end"][-1],
        source=windows["source"][0],
        model=model,
        windows=len(windows),
        degraded_windows=0,
        metrics={name: least(windows[name]) for name in METRICS},
        min_x=least(windows["min_x"]),
        deficits=deficits(windows),
        tenants=tuple(who),
        types=(),
        requests_hurt=0,
        tokens_hurt=0,
        cause=LOW_DEMAND,
        reason=says[:1].upper() + says[1:] + ".",
        signatures={LOW_DEMAND: asdict(signature)},
    )
