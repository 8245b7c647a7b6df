"""Decision differences as rows of the document: the matrix, the sentence, the rows that only one side holds."""

from __future__ import annotations

import polars as pl
import pytest

from fairreplay.causes.differences import MATRIX_SCHEMA
from fairreplay.report.differences import matrix
from fairreplay.report.schema import Document
from tests.report.documents import stored

CELLS = pl.DataFrame(
    [("a", "b", 3, 30), ("b", "a", 1, 5), ("c", "a", 2, 20), (None, "a", 1, 1), ("d", "d", 4, 2)],
    schema=MATRIX_SCHEMA,
    orient="row",
)


def test_the_matrix_sums_up_what_has_no_row() -> None:
    # involved: a 30 + 5 + 20 + 1, b 35, c 20, d 2
    found = matrix(CELLS, 2)
    assert found["tenants"] == ["a", "b"]
    assert found["others"] is True
    assert found["tokens"] == [[0, 30, 0], [5, 0, 0], [21, 0, 2]]
    assert found["pairs"] == [[0, 3, 0], [1, 0, 0], [3, 0, 4]]


def test_the_matrix_of_few_tenants_has_no_others() -> None:
    found = matrix(CELLS.drop_nulls(), 9)
    assert (found["tenants"], found["others"]) == (["a", "b", "c", "d"], False)
    assert sum(map(sum, found["tokens"])) == 57


@pytest.fixture(scope="module")
def document() -> Document:
    return stored()


def test_the_baseline_is_not_said_to_be_a_gain(document: Document) -> None:
    fcfs, vtc = document["differences"]
    assert fcfs["sentence"].startswith("fcfs is the baseline")
    assert "would gain" in vtc["sentence"]


def test_everybody_is_counted(document: Document) -> None:
    for decided in [*document["differences"], *document["episodes"][0]["differences"]]:
        counted = decided["tenants_gain"] + decided["tenants_pay"] + decided["tenants_same"]
        assert counted == 4
        assert decided["requests"] + decided["only_production"] <= document["period"]["requests"]
        assert len(decided["gains"]) == decided["tenants_gain"]
        assert [row["mean_change_ms"] for row in decided["gains"]] == sorted(  # who gains most first
            row["mean_change_ms"] for row in decided["gains"] if row["mean_change_ms"] is not None
        )
        assert decided["inversions"] == sum(map(sum, decided["matrix"]["pairs"]))


def test_an_episode_holds_the_requests_that_arrived_in_it(document: Document) -> None:
    (episode,) = document["episodes"]
    vtc = episode["differences"][1]
    windows = [
        index
        for index, start in enumerate(document["timeline"][0]["start"])
        if episode["start"] <= start < episode["end"]
    ]
    assert vtc["requests"] == sum(document["timeline"][0]["requests"][index] for index in windows)
    assert all(episode["start"] <= row["arrived_at"] < episode["end"] for row in vtc["largest"])
