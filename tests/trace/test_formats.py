"""Real logs with the peculiarities that their origin is known for, against a second, plain reading of the same file."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pytest

from fairreplay.trace.read import SourceRead, read_source
from fairreplay.trace.rules import Reading
from fairreplay.trace.schema import check_frame
from fairreplay.trace.values import parse_wall

DATA = Path(__file__).parents[1] / "data"


def read(name: str, **reading: Any) -> SourceRead:
    result = read_source(DATA / name, Reading(**reading))
    check_frame(result.frame)
    return result


def micros(frame: pl.DataFrame, column: str) -> list[int | None]:
    return frame[column].cast(pl.Int64).to_list()


def exact(*texts: str) -> int:
    """Seconds written as text, summed as fractions, in microseconds, half to even."""
    return round(sum(map(Fraction, texts)) * 1_000_000)


def json_rows(name: str) -> Any:
    return json.loads((DATA / name).read_text(), parse_float=str)


def csv_rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as stream:
        return list(csv.DictReader(stream))


def ttft_s(frame: pl.DataFrame) -> pl.Series:
    return (frame["first_token_at"] - frame["arrived_at"]).dt.total_microseconds() / 1e6


def quantiles(values: pl.Series, interpolation: Literal["linear", "nearest"], digits: int) -> list[float]:
    found = (values.quantile(quantile, interpolation) for quantile in (0.5, 0.9, 0.99))
    return [round(value, digits) for value in found if value is not None]


VTC = ["FCFS.all_results_real", "VTC.all_results_real", "LShare_rpm20.all_results_real"]


@pytest.mark.parametrize("name", [f"vtc_arena/{name}.jsonl" for name in VTC])
def test_vtc_rows_are_the_responses_inside_the_one_line(name: str) -> None:
    frame = read(name).frame
    rows = json_rows(name)["result"]["responses"]
    assert (frame.height, frame["tenant"].n_unique()) == (1500, 27)
    for index, row in enumerate(rows):
        aborted = row["first_token_latency"] == -1
        assert frame["tenant"][index] == row["adapter_dir"]
        assert frame["prompt_tokens"][index] == row["prompt_len"]
        assert frame["output_tokens"][index] == (0 if aborted else row["output_len"])
        assert frame["status"][index] == ("rejected" if aborted else "ok")
    first, finish, arrived = (micros(frame, name) for name in ("first_token_at", "finished_at", "arrived_at"))
    assert arrived == [exact(str(row["req_time"])) for row in rows]
    for column, times in (("first_token_latency", first), ("request_latency", finish)):
        assert times == [None if row[column] == -1 else exact(str(row["req_time"]), str(row[column])) for row in rows]


def test_vtc_known_ttfts_and_aborts() -> None:
    ttft = ttft_s(read(f"vtc_arena/{VTC[0]}.jsonl").frame)
    assert quantiles(ttft, "linear", 2) == [39.07, 112.76, 136.94]
    refused = read(f"vtc_arena/{VTC[2]}.jsonl").frame.filter(pl.col("status") == "rejected")
    assert (refused.height, refused["tenant"].n_unique(), refused["output_tokens"].sum()) == (342, 4, 0)


def test_vtc_arrivals_are_the_same_under_all_three_schedulers() -> None:
    columns = ["tenant", "arrived_at", "prompt_tokens", "seq"]
    frames = [read(f"vtc_arena/{name}.jsonl").frame.select(columns) for name in VTC]
    assert frames[0].equals(frames[1])
    assert frames[0].equals(frames[2])


def test_azure_code_is_bursty_and_azure_chat_is_not() -> None:
    frame = read("azure2023/AzureLLMInferenceTrace_code.head5000.csv").frame
    assert frame.height == 5000  # CRLF, and no newline after the last row
    gaps = frame["arrived_at"].diff().dt.total_microseconds() / 1e6
    assert round(gaps.std(ddof=0) / gaps.mean(), 1) == 13.7  # type: ignore[operator]
    seconds = frame["arrived_at"].dt.truncate("1s").value_counts()
    assert seconds["count"].max() == 67
    chat = read("azure2023/AzureLLMInferenceTrace_conv.head5000.csv").frame
    chat_gaps = chat["arrived_at"].diff().dt.total_microseconds()
    assert round(chat_gaps.std(ddof=0) / chat_gaps.mean(), 2) == 1.06  # type: ignore[operator]
    assert chat["arrived_at"][0] == datetime(2023, 11, 16, 18, 15, 46, 680590, UTC)
    assert read("azure2023/AzureLLMInferenceTrace_code.tail200.csv").frame.height == 200


def test_azure_times_without_zone_are_said_to_be_utc() -> None:
    result = read("azure2023/AzureLLMInferenceTrace_code.tail200.csv")
    assert result.assumptions[0] == "TIMESTAMP without zone, read as UTC (--tz)"
    assert not any("--tz" in line for line in read("azure2024/AzureLLMInferenceTrace_conv_1week.csv").assumptions)


def test_azure_2024_gives_the_expected_rows() -> None:
    (case,) = json.loads((DATA / "azure2024" / "expected.json").read_text())["cases"]
    result = read("azure2024/" + case["inputs"][0])
    assert result.source == case["source"]
    assert result.format.name == case["auto"]
    assert [(item.row, item.reason, item.column, item.value) for item in result.rejects] == [
        (item["record"], item["reason"], item["column"], str(item["value"])) for item in case["rejects"]
    ]
    times = [name for name in result.frame.columns if name.endswith("_at")]
    shown = result.frame.drop("source").with_columns(pl.col(times).dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"))
    rows = shown.to_dicts()
    assert [row | {"request_id": None} for row in rows] == case["rows"]
    assert len({row["request_id"] for row in rows}) == len(rows)


def test_azure_and_vidur_are_two_spellings_of_one_trace() -> None:
    """The Azure chat trace with wall times and with seconds from its start: the same rows but for ids and source."""
    azure = read("azure2023/AzureLLMInferenceTrace_conv.head5000.csv").frame.head(2000)
    t0_us, _ = parse_wall("2023-11-16 18:15:46.6805900", UTC)
    vidur = read("vidur/splitwise_conv.head2000.csv", t0_us=t0_us).frame
    assert vidur.height == 2000
    assert azure.drop("request_id", "source").equals(vidur.drop("request_id", "source"))


def test_mooncake_arrives_in_batches_and_equal_rows_are_no_duplicates() -> None:
    result = read("mooncake/conversation_trace.head1000.jsonl")
    frame = result.frame
    rows = [json.loads(line) for line in (DATA / "mooncake/conversation_trace.head1000.jsonl").read_text().splitlines()]
    assert frame["prefix_ids"].to_list() == [row["hash_ids"] for row in rows]
    assert micros(frame, "arrived_at") == [row["timestamp"] * 1000 for row in rows]
    assert frame["seq"].to_list() == list(range(1000))
    assert frame["arrived_at"].value_counts()["count"].max() == 17  # file order is the only order among them
    assert sum(row["timestamp"] % 3000 == 0 for row in rows) == 724
    assert frame["prompt_tokens"].max() == 121924
    assert result.own_ids
    assert frame["request_id"].n_unique() == 1000
    assert result.format.prefix_block_tokens == 512
    assert read("mooncake/synthetic_trace.head300.jsonl").frame.height == 300


@pytest.mark.parametrize(
    ("name", "known"),
    [("Llama-3.1-8B", [9.498, 16.840, 19.754]), ("Qwen3-32B", [40.783, 84.300, 93.343])],
)
def test_vllm_requests_measure_from_queueing(name: str, known: list[float]) -> None:
    """The marks are monotonic: ``first_token_ts - arrival_time`` would be -1.78e9 s."""
    path = f"vllm_requests/RTXPRO6000_{name}.requests.jsonl"
    frame = read(path).frame
    assert quantiles(ttft_s(frame), "nearest", 3) == known
    rows = [json.loads(line, parse_float=str) for line in (DATA / path).read_text().splitlines()]
    for column, mark in (
        ("scheduled_at", "scheduled_ts"),
        ("first_token_at", "first_token_ts"),
        ("finished_at", "last_token_ts"),
    ):
        assert micros(frame, column) == [exact(row["arrival_time"], row[mark], "-" + row["queued_ts"]) for row in rows]
    # bench-0, bench-1, ... are the same in every run of the benchmark: no name of a request beyond its file.
    assert frame["request_id"].to_list() == [f"{frame['source'][0]}-{number}" for number in range(len(rows))]


LMBENCH = sorted(path.name for path in (DATA / "lmbenchmark").iterdir())


@pytest.mark.parametrize("name", LMBENCH)
def test_lmbench_reads_every_file_alike(name: str) -> None:
    result = read(f"lmbenchmark/{name}")
    frame, rows = result.frame, csv_rows(f"lmbenchmark/{name}")
    assert not result.rejects
    assert frame["prompt_tokens"].to_list() == [int(float(row["prompt_tokens"])) for row in rows]  # 76.0 and 76
    assert micros(frame, "arrived_at") == [exact(row["launch_time"]) for row in rows]
    assert micros(frame, "first_token_at") == [exact(row["launch_time"], row["ttft"]) for row in rows]
    assert micros(frame, "finished_at") == [exact(row["finish_time"]) for row in rows]
    assert frame["tenant"].to_list() == [row.get("user_id", "default") for row in rows]
    assert frame["session_id"].to_list() == [row.get("user_id") for row in rows]


def test_lmbench_peculiar_files() -> None:
    assert read("lmbenchmark/lmcache-0310.LMBench_long_input_output_0.1.header-only.csv").rows == 0
    frame = read("lmbenchmark/vllm-70b-2replicas.LMBench_short_input_qps10.csv").frame
    assert (frame.height, frame["tenant"].n_unique()) == (1051, 372)
    assert (frame["arrived_at"].diff().dt.total_microseconds() < 0).sum() in range(300, 341)
    slow = ttft_s(read("lmbenchmark/vllm-llama8B-2replicas.LMBench_long_input_output_9.5.csv").frame)
    assert float(slow.max()) > 75  # type: ignore[arg-type]
