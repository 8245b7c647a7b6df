"""``--format auto``: exactly one format matches, or a person has to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairreplay.errors import BadInputError, UsageError
from fairreplay.trace.containers import inspect
from fairreplay.trace.detect import detect
from fairreplay.trace.fields import Sample
from fairreplay.trace.formats import FORMATS

DATA = Path(__file__).parents[1] / "data"
REAL = {
    "vtc": ["vtc_arena", "vtc_overload"],
    "azure": ["azure2023"],
    "mooncake": ["mooncake"],
    "vidur": ["vidur"],
    "vllm-requests": ["vllm_requests"],
    "lmbench": ["lmbenchmark"],
    "aiperf": ["aiperf"],
    "inferencex": ["inferencex_agentic"],
    "ragpulse": ["ragpulse"],
}
FILES = [
    (name, path) for name, folders in REAL.items() for folder in folders for path in sorted((DATA / folder).iterdir())
]


@pytest.mark.parametrize(("name", "path"), FILES, ids=[path.name for _, path in FILES])
def test_every_real_log_matches_exactly_one_format(name: str, path: Path) -> None:
    sample = inspect(path).sample
    assert [item.name for item in FORMATS.values() if item.recognises(sample)] == [name]
    assert detect(path, sample).name == name
    assert detect(path, sample, name).name == name


def of(*records: dict[str, Any]) -> Sample:
    return Sample("jsonl", tuple({key: None for record in records for key in record}), records)


def test_the_names_of_the_formats_are_their_keys() -> None:
    assert [item.name for item in FORMATS.values()] == list(FORMATS)


def test_an_array_of_latencies_has_no_arrival_time() -> None:
    path = DATA / "llmperf" / "lepton_13b.json"
    with pytest.raises(BadInputError, match="no arrival time; FairReplay cannot replay it; columns found: error_code"):
        detect(path, inspect(path).sample)


@pytest.mark.parametrize(
    "record",
    [
        {"timestamp": 1, "input_length": 5, "output_length": 5, "chat_id": 3, "hash_ids": []},
        {"timestamp": "1", "input_length": 5, "output_length": 5, "hash_ids": {"history": []}},
        {"perf_metrics": {"kv_cache_metrics": {}}},
        {"arrived_at": "2026-03-02T08:00:00Z", "prompt_tokens": 5},
        {"result": {"responses": {}}},
        {"timestamp": 1, "event": {"schema": "dynamo.request.trace.v2"}},
        {"metadata": {"turn_index": 0}, "metrics": {}},
        {"request_parameters": {"rid": "a"}, "id": "a", "finish_reason": "stop"},
    ],
)
def test_neighbours_are_not_taken_for_what_they_resemble(record: dict[str, Any]) -> None:
    with pytest.raises(BadInputError, match="no known format"):
        detect(Path("log"), of(record))


def test_two_candidates_are_named() -> None:
    both = {"timestamp": 1, "input_length": 5, "output_length": 5, "input_toks": 1, "output_toks": 1, "arrival_time": 1}
    with pytest.raises(BadInputError, match="log: could be vllm-requests, mooncake; say which with --format"):
        detect(Path("log"), of(both))
    assert detect(Path("log"), of(both), "mooncake").name == "mooncake"


def test_a_wrong_or_unknown_format_says_so() -> None:
    with pytest.raises(BadInputError, match="not azure, which is csv with TIMESTAMP, ContextTokens, GeneratedTokens"):
        detect(Path("log"), of({"a": 1}), "azure")
    with pytest.raises(UsageError, match=r"no such format \(did you mean 'azure'"):
        detect(Path("log"), of({"a": 1}), "azur")


def test_names_are_case_sensitive(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("Timestamp,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n")
    with pytest.raises(BadInputError, match="columns found: Timestamp"):
        detect(path, inspect(path).sample)


def test_a_table_without_header_is_no_known_format(tmp_path: Path) -> None:
    path = tmp_path / "chunk-0-trace.csv"
    path.write_text("0,0.5,1.1,Gamma,0.8\n600,0,0,,0\n")
    with pytest.raises(BadInputError, match=r"no known format.*columns found: c0, c1, c2, c3, c4; say .* --map FILE"):
        detect(path, inspect(path).sample)


@pytest.mark.parametrize("path", sorted((DATA / "servegen").iterdir()), ids=lambda path: path.name)
def test_rates_are_no_requests(path: Path) -> None:
    with pytest.raises(BadInputError, match="ServeGen: rates instead of requests; FairReplay cannot replay it"):
        detect(path, inspect(path).sample)


def test_the_request_log_of_sglang_is_another_file() -> None:
    line = {"timestamp": "2026-03-02T08:00:00", "event": "request.finished", "rid": "a", "obj": {}, "out": {}}
    with pytest.raises(BadInputError, match=r"SGLang's request log: not the request metrics log; ingest the files"):
        detect(Path("log"), of(line))


def test_broken_lines_before_the_first_record_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log"
    record = {"arrived_at_s": 1, "prompt_tokens": 1, "output_tokens": 1}
    path.write_text("starting\n{broken\n" + json.dumps(record) + "\n")
    assert detect(path, inspect(path).sample).name == "native"
