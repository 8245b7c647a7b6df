"""Cost estimates: ratios by class, the moving average, the drift; by hand."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from fairreplay.metrics.costs import CostEstimates, corrections, cost_estimates, sentence
from tests.sandbox.frames import canonical


def outcomes(
    ratios: list[float], gap_s: float = 10.0, admitted: bool = True, tokens: int = 100, **columns: object
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Requests ``gap_s`` apart, estimated at 1 s in service, really ``ratio``; first tokens after half of it."""
    rows = canonical(
        [
            {"arrived_at": at * gap_s, "prompt_tokens": tokens - 10, "output_tokens": 10, **columns}
            for at in range(len(ratios))
        ]
    )

    def served(seconds: list[float], admission: bool) -> pl.DataFrame:
        took = pl.Series([timedelta(seconds=value) for value in seconds])
        half = pl.Series([timedelta(seconds=value / 2) for value in seconds])
        begin = rows["arrived_at"] + timedelta(seconds=2)
        return rows.with_columns(
            begin.alias("scheduled_at") if admission else pl.lit(None, begin.dtype).alias("scheduled_at"),
            (begin + half).alias("first_token_at"),
            (begin + took).alias("finished_at"),
        )

    return served(ratios, admitted), served([1.0] * len(ratios), True)


def found(*frames: pl.DataFrame, alpha: float = 0.5) -> CostEstimates:
    made = cost_estimates(frames[0], frames[1], alpha)
    assert made is not None
    return made


def test_ratios_and_their_moving_average() -> None:
    """1.2, 1.2, 0.8 with weight 1/2: known at the arrivals 1, 1.1, 1.15; at last 0.975."""
    (one,) = found(*outcomes([1.2, 1.2, 0.8])).estimates
    assert (one.requests, one.p10, one.p50, one.p99) == (3, 0.8, 1.2, 1.2)
    assert one.mean == pytest.approx(3.2 / 3)
    assert one.correction == pytest.approx(0.975)
    assert one.error == pytest.approx(0.2)
    assert one.error_corrected == pytest.approx((0.2 + (1.2 / 1.1 - 1) + (1 - 0.8 / 1.15)) / 3)


def test_only_what_had_finished_is_known_at_an_arrival() -> None:
    arrived, finished = np.array([0, 1, 9, 20]), np.array([10, 5, 12, 21])
    known, latest = corrections(arrived, finished, np.array([2.0, 1.5, 1.0, 1.0]), 0.5)
    # 1.5 is learnt at 5 (1.25), 2.0 at 10 (1.625), 1.0 at 12 (1.3125), 1.0 at 21
    assert known == pytest.approx([1.0, 1.0, 1.25, 1.3125])
    assert latest == pytest.approx(1.15625)


def test_decoding_alone_counts_where_admission_is_not_logged() -> None:
    logged, replayed = outcomes([1.5, 1.5], admitted=False)
    (one,) = found(logged, replayed).estimates
    assert one.p50 == pytest.approx(1.5)


def test_classes_are_model_type_and_size() -> None:
    parts = [
        outcomes([1.0], tokens=511, type="chat"),
        outcomes([1.1], tokens=512, type="chat"),
        outcomes([1.2], tokens=40_000, type="batch", model="a"),
    ]
    number = pl.Series(["x", "y", "z"])
    logged, replayed = (
        pl.concat([part[side] for part in parts]).with_columns(number.alias("request_id")) for side in range(2)
    )
    made = found(logged, replayed)
    assert [(one.model, one.type, one.size) for one in made.estimates] == [
        (None, "chat", "below 512"),
        (None, "chat", "512 to 4,095"),
        ("a", "batch", "from 32,768"),
    ]
    assert found(logged, replayed.reverse()) == made  # matched by id


def test_drift_is_the_last_quarter_against_the_first() -> None:
    made = found(*outcomes([1.0] * 20 + [1.1] * 20 + [1.15] * 20 + [1.3] * 20))
    (one,) = made.estimates
    assert [part.requests for part in one.parts] == [20, 20, 20, 20]
    assert [part.p50 for part in one.parts] == pytest.approx([1.0, 1.1, 1.15, 1.3])
    assert one.drift == pytest.approx(0.3)
    assert one.drifted
    assert sentence(made, 0.5).endswith(
        "with the online correction (weight 0.5); 1 of 1 classes drifted by 10% or more"
    )
    few = found(*outcomes([1.0] * 9 + [2.0] * 9)).estimates[0]
    assert few.drift is None
    assert not few.drifted


def test_what_production_or_the_replay_did_not_finish_says_nothing() -> None:
    logged, replayed = outcomes([1.2, 1.2, 1.2])
    refused = pl.when(pl.int_range(pl.len()) == 1).then(pl.lit("rejected")).otherwise("status").alias("status")
    assert found(logged.with_columns(refused), replayed).requests == 2
    assert found(logged, replayed.with_columns(refused)).requests == 2
    arrivals = logged.with_columns(pl.lit(None, logged["finished_at"].dtype).alias("finished_at"))
    assert cost_estimates(arrivals, replayed, 0.5) is None
    assert sentence(None, 0.5).startswith("unknown: ")
