"""Parquet files of one log that are not quite alike."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairreplay.errors import BadInputError
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import open_store

T0 = 1772438400


def written(path: Path, **columns: Any) -> str:
    base = {"arrived_at_s": [T0], "prompt_tokens": [5], "output_tokens": [1], "request_id": [path.name]}
    pq.write_table(pa.table(base | columns), path)
    return str(path)


def test_a_column_that_only_later_files_have_is_not_lost(tmp_path: Path) -> None:
    """polars#23399: columns of later files vanished."""
    names = [written(tmp_path / "a"), written(tmp_path / "b", tenant=["x"], cached_tokens=[2], note=[1])]
    summary = ingest(names, tmp_path / "store", IngestOptions())
    assert [source.segment.unknown_columns for source in summary.sources] == [(), ("note",)]
    frame = open_store(tmp_path / "store").requests().sort("request_id")
    assert frame.select("tenant", "cached_tokens").rows() == [("default", None), ("x", 2)]


def test_numbers_of_any_kind_go_together_and_none_is_rounded(tmp_path: Path) -> None:
    """DuckDB takes the first file's schema and turns 1.5 into 2."""
    kinds = [[2], [2.0], [1.5], pa.array([Decimal("2.0")]), pa.array([2], pa.uint8()), pa.array([None], pa.null())]
    names = [written(tmp_path / str(index), cached_tokens=kind) for index, kind in enumerate(kinds)]
    summary = ingest(names, tmp_path / "store", IngestOptions(max_reject_rate=1.0))
    assert [source.segment.rejects for source in summary.sources] == [{}, {}, {"fractional_tokens": 1}, {}, {}, {}]
    frame = open_store(tmp_path / "store").requests().sort("request_id")
    assert frame["cached_tokens"].to_list() == [2, 2, 2, 2, None]


@pytest.mark.parametrize(
    ("column", "one", "other", "message"),
    [
        ("prompt_tokens", [5], ["5"], "column prompt_tokens holds text, but numbers in "),
        ("tenant", pl.Series(["a"], dtype=pl.Categorical).to_arrow(), [7], "column tenant holds numbers, but text in "),
        ("first_token_at", ["2026-03-02T08:00:00Z"], pa.array([T0], pa.timestamp("s")), "holds instants, but text in "),
    ],
)
def test_a_clash_names_both_files_before_anything_is_stored(
    tmp_path: Path, column: str, one: Any, other: Any, message: str
) -> None:
    first, second = written(tmp_path / "a", **{column: one}), written(tmp_path / "b", **{column: other})
    with pytest.raises(BadInputError, match=message) as caught:
        ingest([first, second], tmp_path / "store", IngestOptions())
    assert first in str(caught.value)
    assert second in str(caught.value)
    assert not (tmp_path / "store").exists()
    assert ingest([first], tmp_path / "store", IngestOptions()).sources[0].segment.accepted == 1


def test_other_logs_and_unread_columns_do_not_clash(tmp_path: Path) -> None:
    names = [written(tmp_path / "a", note=[1]), written(tmp_path / "b", note=["x"])]
    (tmp_path / "c").write_bytes(b"PAR1")
    ingest(names, tmp_path / "store", IngestOptions())
    with pytest.raises(BadInputError, match="without its footer"):
        ingest([*names, str(tmp_path / "c")], tmp_path / "store", IngestOptions())
