"""The same request id twice, against a plain loop."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.store.duplicates import settle
from fairreplay.trace.schema import SCHEMA


def frame_of(source: str, rows: list[tuple[str, str, list[int] | None]]) -> pl.DataFrame:
    values: dict[str, Any] = {name: [None] * len(rows) for name in SCHEMA}
    values |= {
        "request_id": [row[0] for row in rows],
        "tenant": [row[1] for row in rows],
        "prefix_ids": [row[2] for row in rows],
        "seq": list(range(len(rows))),
        "source": [source] * len(rows),
    }
    return pl.DataFrame(values, schema=SCHEMA)


ROWS = st.tuples(st.sampled_from("abcd"), st.sampled_from("xy"), st.sampled_from([None, [], [1], [1, 2]]))


@settings(derandomize=True, max_examples=150, deadline=None)
@given(stored=st.lists(ROWS, max_size=4, unique_by=lambda row: row[0]), rows=st.lists(ROWS, max_size=12))
def test_settle_agrees_with_a_loop(stored: list[Any], rows: list[Any]) -> None:
    first = {row[0]: row for row in stored}
    kept, conflicts, duplicates = [], [], 0
    for number, row in enumerate(rows):
        if row[0] not in first:
            first[row[0]] = row
            kept.append(number)
        elif first[row[0]] == row:
            duplicates += 1
        else:
            conflicts.append((number, row[0]))
    settled = settle(frame_of("new", rows), frame_of("old", stored))
    assert settled.kept["seq"].to_list() == kept
    assert settled.duplicates == duplicates
    assert list(settled.conflicts) == conflicts
