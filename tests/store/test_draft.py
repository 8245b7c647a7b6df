"""Rows on their way into a segment: sorted and settled piece by piece as they would be in memory at once."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fairreplay.store import draft as draft_module
from fairreplay.store import duplicates as duplicates_module
from fairreplay.store import rows as rows_module
from fairreplay.store.draft import Draft
from fairreplay.store.duplicates import find_repeats, settle
from fairreplay.store.rows import RowGroups, read_row_groups
from fairreplay.trace.schema import ORDER, SCHEMA


def frame_of(arrivals: list[int], first_seq: int = 0, ids: list[str] | None = None, **values: Any) -> pl.DataFrame:
    rows = len(arrivals)
    columns: dict[str, Any] = {name: [None] * rows for name in SCHEMA}
    columns |= {
        "request_id": ids or [f"r{first_seq + index}" for index in range(rows)],
        "arrived_at": pl.Series(arrivals, dtype=pl.Int64).cast(SCHEMA["arrived_at"]),
        "prefix_ids": [[index, 2**64 - 1] if index % 3 else None for index in range(rows)],
        "seq": list(range(first_seq, first_seq + rows)),
        "source": ["s" * 16] * rows,
    } | values
    return pl.DataFrame(columns, schema=SCHEMA)


def written(path: Path, frames: list[pl.DataFrame], dropped: tuple[int, ...] = ()) -> pl.DataFrame:
    draft = Draft(path)
    for frame in frames:
        draft.add(frame)
    draft.drop(np.array(dropped, np.uint64))
    draft.finish()
    assert [item.name for item in path.parent.iterdir()] == [path.name]
    return pl.read_parquet(path, glob=False)


def test_nothing_is_an_empty_file_of_the_schema(tmp_path: Path) -> None:
    frame = written(tmp_path / "segments" / "a.parquet", [frame_of([])])
    assert frame.equals(pl.DataFrame(schema=SCHEMA))
    assert frame.schema == pl.Schema(SCHEMA)


@pytest.mark.parametrize("kind", ["in order", "late rows", "any order", "few instants", "one instant and others"])
def test_rows_come_out_in_order_whatever_their_order_and_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(draft_module, "SORTED_ROWS", 16)
    rng = random.Random(kind)
    arrivals = {
        "in order": list(range(300)),
        "late rows": [index - 40 * (index % 7 == 0) for index in range(300)],
        "any order": rng.sample(range(300), 300),
        "few instants": [rng.randrange(3) for _ in range(300)],
        "one instant and others": [rng.choice([5, 5, 5, rng.randrange(300)]) for _ in range(300)],
    }[kind]
    whole = frame_of(arrivals)
    cuts = [0, 1, 7, 7, 200, 300]
    blocks = [whole[start:end] for start, end in itertools.pairwise(cuts)]
    dropped = (0, 3, 250, 299)
    kept = whole.filter(~pl.col("seq").is_in(dropped)).sort(ORDER)
    assert written(tmp_path / "a" / "x.parquet", blocks).equals(whole.sort(ORDER))
    assert written(tmp_path / "b" / "x.parquet", blocks, dropped).equals(kept)
    assert written(tmp_path / "c" / "x.parquet", [kept]).equals(kept)
    assert (tmp_path / "b" / "x.parquet").read_bytes() == (tmp_path / "c" / "x.parquet").read_bytes()


def test_a_finished_draft_knows_its_period_and_its_filled_columns(tmp_path: Path) -> None:
    draft = Draft(tmp_path / "a" / "x.parquet")
    draft.add(frame_of([5, 9, 7]))
    draft.drop(np.array([1], np.uint64))
    draft.finish()
    assert (draft.rows, draft.period_us) == (2, (5, 7))
    assert draft.filled_columns == {"request_id", "arrived_at", "seq", "source", "prefix_ids"}


@pytest.mark.parametrize("share_rows", [1, 8, 1000])
def test_repeats_are_found_a_share_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share_rows: int) -> None:
    monkeypatch.setattr(duplicates_module, "SHARE_ROWS", share_rows)
    rng = random.Random(1)
    ids = [f"r{rng.randrange(60)}" for _ in range(200)]
    tenants = [rng.choice(["x", "y"]) for _ in range(200)]
    new = frame_of([7] * 200, ids=ids, tenant=tenants, prefix_ids=[None] * 200)
    stored = frame_of([7] * 20, ids=[f"r{index * 5}" for index in range(20)], tenant=["x"] * 20, prefix_ids=[None] * 20)
    stored = stored.with_columns(source=pl.lit("t" * 16))
    expected = settle(new, stored)
    draft = Draft(tmp_path / "a" / "x.parquet")
    for start in range(0, 200, 30):
        draft.add(new[start : start + 30])
    repeats = find_repeats(
        draft.hashes(),
        draft.frames,
        lambda: iter([stored.select("request_id")[:9], stored.select("request_id")[9:]]),
        lambda: iter([stored[:9], stored[9:]]),
        draft.path,
    )
    assert repeats.conflicts == expected.conflicts
    assert repeats.duplicates == expected.duplicates > 0
    assert set(repeats.dropped.tolist()) == set(range(200)) - set(expected.kept["seq"])
    draft.drop(repeats.dropped)
    draft.finish()
    assert pl.read_parquet(draft.path).equals(expected.kept)
    assert [item.name for item in draft.path.parent.iterdir()] == [draft.path.name]


def test_one_id_in_every_row_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates_module, "SHARE_ROWS", 4)
    frame = frame_of([7] * 50, ids=["same"] * 50, prefix_ids=[None] * 50)
    draft = Draft(tmp_path / "a" / "x.parquet")
    draft.add(frame)
    repeats = find_repeats(draft.hashes(), draft.frames, lambda: iter(()), lambda: iter(()), draft.path)
    assert (repeats.duplicates, repeats.conflicts, repeats.dropped.tolist()) == (49, (), list(range(1, 50)))
    draft.discard()
    assert list(draft.path.parent.iterdir()) == []


def test_row_groups_end_before_their_names_take_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "TEXT_BYTES_MAX", 1000)
    rows = RowGroups(tmp_path / "x.parquet")
    names = ["x" * length for length in (10, 10, 300, 300, 300, 2000, 10, 400, 400, 400)]
    nothing = pl.DataFrame(schema=SCHEMA)
    frame = pl.concat([nothing, pl.DataFrame({"tenant": names})], how="diagonal").with_columns(
        seq=pl.int_range(len(names), dtype=pl.UInt64),
        arrived_at=pl.int_range(len(names), dtype=pl.Int64).cast(SCHEMA["arrived_at"]),
    )
    rows.add(frame[:3])
    rows.add(frame[3:])
    rows.close()
    groups = [group["tenant"].str.len_bytes().to_list() for group in read_row_groups(tmp_path / "x.parquet")]
    assert [length for group in groups for length in group] == [len(name) for name in names]
    assert all(sum(group) <= 1000 or len(group) == 1 for group in groups)
