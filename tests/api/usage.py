"""Every verb as a typed program calls it: `mypy --strict` reads this file, and `test_api` runs it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl

import fairreplay
from fairreplay.errors import UsageError
from fairreplay.metrics.alerts import LEAVE


def review(log: Path, config: Path, folder: Path) -> tuple[pl.DataFrame, ...]:
    """The two weeks in one function: what was ingested, replayed, measured, found, asked."""
    store = folder / "store"
    ingested: pl.DataFrame = fairreplay.ingest(log, store, config=config)
    replayed: pl.DataFrame = fairreplay.replay(["fcfs", "vtc"], store, config=str(config), jobs=1)
    windows: pl.DataFrame = fairreplay.metrics(store, config=config, window="60s", refusals="miss")
    since = datetime(1970, 1, 1, 0, 2, tzinfo=UTC)
    tenants: pl.DataFrame = fairreplay.metrics(
        store, by="tenants", config=config, since=since, until="1970-01-01T00:11"
    )
    episodes: pl.DataFrame = fairreplay.episodes(store, config=config)
    page: Path = fairreplay.report(folder / "report.html", store, config=config)
    bounds: pl.DataFrame = fairreplay.capacity(store, by="bounds", config=config, scr=0.9, no_search=True)
    assert "compute" in bounds["name"]
    answer: pl.DataFrame = fairreplay.sql("SELECT count(*) AS n FROM requests", store)
    assert page.exists()
    assert LEAVE == 5
    try:
        fairreplay.metrics(store, config=folder / "none.toml")
    except UsageError as error:
        said: int = error.exit_code
        assert said == 2
    return ingested, replayed, windows, tenants, episodes, answer


version: str = fairreplay.__version__
