"""The strict path on literal rows: what is accepted as what, and the reason of each reject."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from fairreplay.errors import BadInputError
from fairreplay.trace.fields import Columns, Sample
from fairreplay.trace.formats import FORMATS
from fairreplay.trace.formats.native import NATIVE
from fairreplay.trace.formats.vtc import VTC
from fairreplay.trace.reject import REASONS
from fairreplay.trace.rules import Reading, RejectedError, Rules
from fairreplay.trace.schema import COLUMNS
from fairreplay.trace.values import iso

T = "2026-03-02T08:00:0"
BASE = {"request_id": "r", "arrived_at": T + "1Z", "prompt_tokens": 10, "output_tokens": 5}


def native(*records: dict[str, Any], reading: Reading = Reading()) -> Rules:
    sample = Sample("jsonl", tuple({key: None for record in records for key in record}), records)
    return Rules(NATIVE.columns_for(sample), reading, "log.jsonl", "f" * 16)


def row_of(record: dict[str, Any], reading: Reading = Reading()) -> dict[str, Any]:
    return dict(zip(COLUMNS, native(record, reading=reading).row(record, 3), strict=False))


def reject_of(record: dict[str, Any], reading: Reading = Reading()) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        native(record, reading=reading).row(record, 3)
    return caught.value


def test_the_least_row_gets_the_defaults_and_nothing_else() -> None:
    row = row_of({"arrived_at": T + "1Z", "prompt_tokens": 10, "output_tokens": 5})
    assert iso(row["arrived_at"]) == T + "1.000000Z"
    given = {
        "tenant": "default",
        "type": "completion",
        "status": "ok",
        "prompt_tokens": 10,
        "output_tokens": 5,
        "seq": 3,
    }
    assert {name: row[name] for name in given} == given
    assert row["request_id"] == "ffffffffffffffff-3"  # content id and number
    assert {row[name] for name in COLUMNS[:-1] if name not in (*given, "request_id", "arrived_at")} == {None}


def test_every_native_column_is_read() -> None:
    record = BASE | {
        "tenant": "acme", "type": "batch_embed", "model": "m", "replica": 7, "cached_tokens": 4, "priority": -2,
        "scheduled_at": T + "2Z", "first_token_at": T + "3Z", "finished_at": T + "4Z", "preemptions": 0,
        "recomputed_tokens": 0, "weight": Decimal("2.5"), "batch_utilization": 1, "precision": "fp8", "session_id": "s",
        "prefix_ids": [1, 2**64 - 1], "status": "ok",
    }  # fmt: skip
    row = row_of(record)
    assert (row["type"], row["output_tokens"]) == ("embed", 0)  # an alias; embeds generate nothing
    assert (row["replica"], row["weight"], row["prefix_ids"]) == ("7", 2.5, [1, 2**64 - 1])
    assert (row["priority"], row["preemptions"], row["cached_tokens"]) == (-2, 0, 4)
    assert [iso(row[name])[18] for name in ("arrived_at", "scheduled_at", "first_token_at", "finished_at")] == list(
        "1244"  # what an embed answers first is all of its answer
    )


@pytest.mark.parametrize("unit", [("_s", 1), ("_ms", 10**3), ("_us", 10**6), ("_ns", 10**9)])
def test_numbers_take_the_unit_from_the_name(unit: tuple[str, int]) -> None:
    suffix, scale = unit
    record = {"prompt_tokens": 1, "output_tokens": 1, "arrived_at" + suffix: 1772438401 * scale}
    assert row_of(record)["arrived_at"] == 1772438401 * 10**6


def test_epoch_nanoseconds_are_not_read_through_a_double() -> None:
    record = {"prompt_tokens": 1, "output_tokens": 1, "arrived_at_ns": 1772438400123456789}
    assert row_of(record)["arrived_at"] == 1772438400123457
    record["arrived_at_ns"] = 1772438400123456500
    assert row_of(record)["arrived_at"] == 1772438400123456  # half to even; the double ...456512 would round up


def test_a_native_clock_that_starts_at_zero_is_relative() -> None:
    record = {"prompt_tokens": 1, "output_tokens": 1, "arrived_at_s": 0, "first_token_at_s": "0.5", "finished_at_s": 0}
    row = row_of(record, Reading(t0_us=10**12))
    assert (row["arrived_at"], row["first_token_at"], row["finished_at"]) == (10**12, 10**12 + 500_000, None)


def test_defaults_fill_only_what_the_row_does_not_name() -> None:
    reading = Reading(tenant="team", type_="chat", model="m")
    assert row_of(BASE, reading)["tenant"] == "team"
    assert row_of(BASE | {"tenant": "-", "type": ""}, reading)["type"] == "chat"
    own = row_of(BASE | {"tenant": "a", "type": "x", "model": "n"}, reading)
    assert (own["tenant"], own["type"], own["model"]) == ("a", "x", "n")


CASES: list[tuple[str, str | None, dict[str, Any]]] = [
    ("missing_time", "arrived_at", {"arrived_at": None}),
    ("missing_time", "arrived_at", {"arrived_at": 0}),
    ("unparsable_time", "arrived_at", {"arrived_at": "yesterday"}),
    ("unparsable_time", "arrived_at", {"arrived_at": 1772438401}),
    ("unparsable_time", "arrived_at", {"arrived_at": "1772438401.5"}),
    ("unparsable_time", "arrived_at", {"arrived_at": True}),
    ("unparsable_time", "first_token_at", {"first_token_at": "soon"}),
    ("unparsable_time", "finished_at_s", {"finished_at_s": float("nan")}),
    ("unparsable_record", "status", {"status": "great"}),
    ("unparsable_record", "tenant", {"tenant": ["a"]}),
    ("unparsable_record", "tenant", {"tenant": True}),
    ("unparsable_number", "prompt_tokens", {"prompt_tokens": float("nan")}),
    ("unparsable_number", "prompt_tokens", {"prompt_tokens": 2**32}),
    ("unparsable_number", "prompt_tokens", {"prompt_tokens": "many"}),
    ("unparsable_number", "weight", {"weight": "NaN"}),
    ("unparsable_number", "preemptions", {"preemptions": -1}),
    ("unparsable_number", "preemptions", {"preemptions": 70000}),
    ("unparsable_number", "priority", {"priority": Decimal("0.5")}),
    ("unparsable_number", "prefix_ids", {"prefix_ids": [1, -1]}),
    ("unparsable_number", "prefix_ids", {"prefix_ids": "1"}),
    ("missing_tokens", "prompt_tokens", {"prompt_tokens": None}),
    ("missing_tokens", "output_tokens", {"output_tokens": "-"}),
    ("fractional_tokens", "output_tokens", {"output_tokens": Decimal("1.5")}),
    ("negative_tokens", "output_tokens", {"output_tokens": -7}),
    ("negative_tokens", "cached_tokens", {"cached_tokens": -1}),
    ("zero_prompt", "prompt_tokens", {"prompt_tokens": 0}),
    ("contradictory", "first_token_at", {"output_tokens": 0, "first_token_at": T + "1Z"}),
    ("scheduled_before_arrival", "scheduled_at", {"scheduled_at": T + "0Z"}),
    ("first_token_before_arrival", "first_token_at", {"first_token_at": T + "0.999999Z"}),
    ("finish_before_arrival", "finished_at", {"finished_at": T + "0Z"}),
    ("finish_before_first_token", "finished_at", {"first_token_at": T + "3Z", "finished_at": T + "2Z"}),
]


@pytest.mark.parametrize(("reason", "column", "change"), CASES)
def test_an_impossible_row_names_its_reason_and_column(reason: str, column: str | None, change: dict[str, Any]) -> None:
    error = reject_of(BASE | change)
    assert (error.reason, error.column) == (reason, column)
    assert column is not None
    read = change[column]
    assert str(error.value) == str(None if read == "-" else read)


def test_the_first_reason_in_order_names_the_reject() -> None:
    """Two faults in one row: each reason stands before those that the rules list after it."""

    def columns(change: dict[str, Any]) -> set[str]:
        return {name.removesuffix("_s") for name in change}

    single = [(reason, change) for reason, _, change in CASES if reason != "unparsable_record"]
    for first, change in single:
        for second, other in single:
            if REASONS.index(first) < REASONS.index(second) and not columns(change) & columns(other):
                assert reject_of(BASE | other | change).reason == first, (change, other)


def test_76_point_0_is_76() -> None:
    assert row_of(BASE | {"prompt_tokens": Decimal("76.0"), "output_tokens": "20.0"})["prompt_tokens"] == 76


def test_a_first_token_of_zero_is_no_first_token() -> None:
    """guidellm#216: first-token time 0 once gave a mean TTFT of -1.7e12 ms."""
    record = {"prompt_tokens": 1, "output_tokens": 1, "arrived_at_s": "1750878498.07", "first_token_at_s": 0}
    assert row_of(record)["first_token_at"] is None
    assert row_of(BASE | {"first_token_at": 0, "finished_at": "0"})["finished_at"] is None


def test_a_failed_row_that_generated_nothing_has_no_first_token() -> None:
    row = row_of(BASE | {"status": "failed", "output_tokens": 0, "first_token_at": T + "1Z"})
    assert (row["first_token_at"], row["output_tokens"]) == (None, 0)


@pytest.mark.parametrize(
    ("status", "prompt", "output", "expected"),
    [
        ("rejected", 0, None, (None, 0)),
        ("rejected", None, None, (None, 0)),
        ("rejected", 30, 0, (30, 0)),
        ("failed", 0, None, (None, None)),
        ("cancelled", 30, 7, (30, 7)),
        ("unfinished", None, None, (None, None)),
    ],
)
def test_unserved_rows_need_no_counts(status: str, prompt: Any, output: Any, expected: tuple[Any, Any]) -> None:
    row = row_of(BASE | {"status": status, "prompt_tokens": prompt, "output_tokens": output})
    assert (row["prompt_tokens"], row["output_tokens"]) == expected


def test_an_embed_row_answers_when_it_finishes() -> None:
    row = row_of(BASE | {"type": "embeddings", "output_tokens": None, "finished_at": T + "2Z"})
    assert (row["type"], row["output_tokens"], row["first_token_at"]) == ("embed", 0, row["finished_at"])


def test_skew_is_clamped_up_to_the_limit_and_counted() -> None:
    record = BASE | {"first_token_at": T + "0.995Z"}
    rules = native(record, reading=Reading(max_skew_us=5000))
    row = dict(zip(COLUMNS, rules.row(record, 0), strict=False))
    assert row["first_token_at"] == row["arrived_at"]
    assert rules.tally.clamped == 1
    assert reject_of(record, Reading(max_skew_us=4999)).reason == "first_token_before_arrival"


def test_two_units_in_one_column_refuse_the_file() -> None:
    """datasets PR#8459: seconds and milliseconds mixed."""
    records = [BASE | {"arrived_at": None, "arrived_at_s": value} for value in (1700000000, 1700000000000)]
    rules = native(*records)
    rules.row(records[0], 0)
    with pytest.raises(BadInputError, match=r"log\.jsonl: column arrived_at_s mixes magnitudes"):
        rules.row(records[1], 1)


def test_two_clocks_in_one_row_refuse_the_file() -> None:
    """vllm PR#3220: wall clock minus monotonic clock."""
    record = {"prompt_tokens": 1, "output_tokens": 1, "arrived_at_s": "1710000000.1", "scheduled_at_s": "51234.5"}
    with pytest.raises(BadInputError, match="arrived_at_s and scheduled_at_s are 54 years apart"):
        native(record).row(record, 0)


def rules_of(columns: Columns) -> Rules:
    return Rules(columns, Reading(), "log", "f" * 16)


def test_monotonic_marks_meet_the_arrival_in_durations_only() -> None:
    record = {
        "request_id": "a", "input_toks": 5, "output_toks": 2, "arrival_time": Decimal("1710000000.1"),
        "queued_ts": Decimal("51.2"), "scheduled_ts": Decimal("51.3"), "first_token_ts": Decimal("51.7000005"),
        "last_token_ts": 0,
    }  # fmt: skip
    assert isinstance(FORMATS["vllm-requests"].columns, dict)
    row = dict(zip(COLUMNS, rules_of(FORMATS["vllm-requests"].columns).row(record, 0), strict=False))
    arrival = 1710000000_100000
    times = (row["arrived_at"], row["scheduled_at"], row["first_token_at"], row["finished_at"])
    assert times == (arrival, arrival + 100_000, arrival + 500_000, None)  # half of a microsecond goes to the even one


def test_minus_one_is_unknown_and_other_negative_durations_are_not() -> None:
    assert isinstance(VTC.columns, dict)
    record = {"adapter_dir": "a", "prompt_len": 5, "output_len": 2, "req_time": 1, "first_token_latency": -1}
    row = dict(zip(COLUMNS, rules_of(VTC.columns).row(record, 0), strict=False))
    assert row["first_token_at"] is None
    with pytest.raises(RejectedError) as caught:
        rules_of(VTC.columns).row(record | {"request_latency": -2}, 0)
    assert (caught.value.reason, caught.value.column) == ("finish_before_arrival", "request_latency")


def test_defaults_are_counted_on_accepted_rows_only() -> None:
    rules = native(BASE)
    rules.row(BASE | {"tenant": "a"}, 0)
    with pytest.raises(RejectedError):
        rules.row(BASE | {"prompt_tokens": 0}, 1)
    assert rules.tally.defaulted == {"type": 1}


def test_own_ids_depend_on_content_and_row_only() -> None:
    record = {"arrived_at": T + "1Z", "prompt_tokens": 1, "output_tokens": 1}
    ids = {native(record).row(record, number)[0] for number in (0, 1, 0)}
    assert len(ids) == 2
