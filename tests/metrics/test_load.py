"""A frame in memory, a scan that is held and a scan that is read in slices give the same tables."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from fairreplay.config.load import parse_config
from fairreplay.metrics import measure
from fairreplay.metrics.options import measure_options
from tests.metrics.test_real_logs import ARENA, CONFIG, log


@pytest.mark.parametrize("held", [0, 1 << 24])
def test_a_scan_measures_as_a_frame_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    frame = log(ARENA["LShare_rpm20"])
    models = pl.Series("model", [None, "m"]).gather(frame["tenant"].str.len_bytes() % 2)
    frame = frame.with_columns(models)
    config = parse_config(CONFIG, "test")
    frame.write_parquet(tmp_path / "log.parquet", row_group_size=100)
    monkeypatch.setattr(measure, "ROWS_HELD_MAX", held)
    monkeypatch.setattr(measure, "ROWS_MAX", 300)
    scan = pl.scan_parquet(tmp_path / "log.parquet")
    for options in (measure_options(config), measure_options(config, window="7s", spread="decode")):
        ours = measure.measure(scan, config, options, "logged")
        theirs = measure.measure(frame, config, options, "logged")
        for name in ("windows", "tenants", "types"):
            assert getattr(ours, name).equals(getattr(theirs, name)), name
        assert ours.assumptions == theirs.assumptions
