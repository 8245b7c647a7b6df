"""Sums of floats that do not depend on how many threads add."""

from __future__ import annotations

import os
import subprocess
import sys
from math import fsum

import numpy as np
import polars as pl
import pytest

from fairreplay.metrics.steady import mean_of, steady_mean, steady_sum, total_of

TOTALS = """
import numpy as np, polars as pl
from fairreplay.metrics.steady import steady_mean, steady_sum
drawn = np.random.default_rng(1)
rows = pl.DataFrame({"tenant": drawn.integers(0, 20, 400_000).astype(str), "x": drawn.random(400_000) * 1e3})
rows = pl.concat([rows, rows[:777], rows[5:70_000]], rechunk=False).filter(pl.col("x") < 990)
x = pl.col("x")
by_tenant = rows.group_by("tenant").agg(steady_sum(x), steady_mean(x).alias("mean")).sort("tenant")
print([value.hex() for column in ("x", "mean") for value in by_tenant[column]])
print([value.hex() for value in rows.select(steady_sum(x), steady_mean(x).alias("mean")).row(0)])
"""


def test_sums_and_means_are_the_same_on_any_number_of_threads() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", TOTALS],
            env=os.environ | {"POLARS_MAX_THREADS": threads},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for threads in ("1", "2", "7")
    }
    assert len(printed) == 1


def test_they_are_sums_and_means_by_group_without_nulls() -> None:
    rows = pl.DataFrame({"tenant": list("aabbc"), "x": [1.5, 2.5, None, 4.0, None]})
    x = pl.col("x")
    table = rows.group_by("tenant").agg(steady_sum(x).alias("sum"), steady_mean(x).alias("mean")).sort("tenant")
    assert table["sum"].to_list() == [4.0, 4.0, 0.0]
    assert table["mean"].to_list() == [2.0, 4.0, None]
    assert rows.select(steady_sum(x).alias("sum"), steady_mean(x).alias("mean")).row(0) == (8.0, 8.0 / 3)
    assert rows.clear().select(steady_sum(x).alias("sum"), steady_mean(x).alias("mean")).row(0) == (0.0, None)


def test_of_a_series() -> None:
    drawn = pl.Series(np.random.default_rng(2).random(10_000))
    assert total_of(drawn) == pytest.approx(fsum(drawn), rel=1e-14)
    assert mean_of(drawn) == pytest.approx(fsum(drawn) / 10_000, rel=1e-14)
    assert total_of(drawn.clear()) == 0.0
    assert mean_of(drawn.clear()) is None
    assert mean_of(pl.Series([None, 3, 4], dtype=pl.Int64)) == 3.5
