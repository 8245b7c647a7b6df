"""Sources into the store: whole or not at all, the same bytes once, the same store from the same input."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairreplay.errors import BadInputError, FairReplayError, StoreError, UsageError
from fairreplay.store import store as store_module
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import open_store
from fairreplay.trace.rules import Reading

DATA = Path(__file__).parents[1] / "data"
EVERYTHING = IngestOptions(max_reject_rate=1.0)


def line(index: int, **change: Any) -> str:
    record = {"request_id": f"r{index}", "arrived_at_ms": 1772438400000 + index, "prompt_tokens": 9, "output_tokens": 1}
    return json.dumps(record | change)


def log(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def content(path: Path) -> dict[str, bytes]:
    files = (item for item in path.rglob("*") if item.is_file() and item.name != "lock")
    return {str(item.relative_to(path)): item.read_bytes() for item in files}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A store that holds one source."""
    ingest([log(tmp_path / "first.jsonl", *(line(index) for index in range(3)))], tmp_path / "store", IngestOptions())
    return tmp_path / "store"


def test_the_same_bytes_again_change_nothing(tmp_path: Path, filled: Path) -> None:
    """sleeper#930: the same file, renamed, was ingested twice."""
    before = content(filled)
    (tmp_path / "renamed.jsonl").write_bytes((tmp_path / "first.jsonl").read_bytes())
    summary = ingest([str(tmp_path / "renamed.jsonl")], filled, IngestOptions())
    assert summary.sources[0].already
    assert summary.sources[0].segment.accepted == 3
    assert summary.tenants == {"default": 3}
    assert content(filled) == before


def test_duplicates_are_one_row_and_contradictions_are_rejects(tmp_path: Path) -> None:
    path = log(tmp_path / "log", line(0), line(1), line(0), line(1, output_tokens=2), line(1), line(2, arrived_at_ms=0))
    summary = ingest([path], tmp_path / "store", EVERYTHING)
    segment = summary.sources[0].segment
    assert (segment.rows, segment.accepted, segment.rejected, segment.duplicates) == (6, 2, 2, 2)
    assert segment.rejects == {"missing_time": 1, "conflicting_duplicate": 1}
    store = open_store(tmp_path / "store")
    assert store.requests()["seq"].to_list() == [0, 1]
    rejects = store.rejects().select("row", "column", "value", "reason", "line").rows()
    assert rejects == [
        (3, "request_id", "r1", "conflicting_duplicate", line(1, output_tokens=2)),
        (5, "arrived_at_ms", "0", "missing_time", line(2, arrived_at_ms=0)),
    ]


def test_duplicates_of_another_file_are_found_too(tmp_path: Path, filled: Path) -> None:
    path = log(tmp_path / "second.jsonl", line(2), line(1, tenant="b"), line(7))
    segment = ingest([path], filled, EVERYTHING).sources[0].segment
    assert (segment.rows, segment.accepted, segment.rejected, segment.duplicates) == (3, 1, 1, 1)
    assert open_store(filled).requests()["request_id"].to_list() == ["r0", "r1", "r2", "r7"]


def test_two_runs_of_the_vllm_benchmark_fit_into_one_store(tmp_path: Path) -> None:
    """Both call their requests bench-0, bench-1, ..."""
    logs = sorted(str(path) for path in (DATA / "vllm_requests").iterdir())
    summary = ingest(logs, tmp_path / "s", IngestOptions())
    assert [source.segment.accepted for source in summary.sources] == [300, 300]
    assert open_store(tmp_path / "s").requests()["request_id"].n_unique() == 600


def test_equal_rows_without_ids_are_separate_requests(tmp_path: Path) -> None:
    row = '{"timestamp": 5, "input_length": 9, "output_length": 1}'
    segment = ingest([log(tmp_path / "log", row, row)], tmp_path / "store", IngestOptions()).sources[0].segment
    assert (segment.accepted, segment.duplicates) == (2, 0)


def test_too_many_rejects_stop_the_source_and_lie_beside_it(tmp_path: Path, filled: Path) -> None:
    before = content(filled)
    lines = [line(index) for index in range(98)] + [line(98, prompt_tokens=0), "x"]
    path = log(tmp_path / "log.jsonl", *lines)
    with pytest.raises(
        BadInputError, match=r"log\.jsonl: 2 of 100 rows rejected \(unparsable_record 1, zero_prompt 1\)"
    ):
        ingest([path], filled, IngestOptions())
    assert content(filled) == before
    rejects = [json.loads(text) for text in Path(path + ".rejects.jsonl").read_text().splitlines()]
    assert [(item["row"], item["reason"], item["line"]) for item in rejects] == [
        (98, "zero_prompt", lines[98]),
        (99, "unparsable_record", "x"),
    ]
    allowed = ingest([path], filled, IngestOptions(max_reject_rate=0.02))
    assert allowed.sources[0].segment.rejected == 2


def test_sources_before_a_bad_one_stay(tmp_path: Path) -> None:
    good, bad = log(tmp_path / "good", line(0)), log(tmp_path / "bad", "x")
    with pytest.raises(BadInputError):
        ingest([good, bad], tmp_path / "store", IngestOptions())
    assert open_store(tmp_path / "store").requests().height == 1


def parquet_of_another_schema(path: Path) -> None:
    pl.DataFrame({"ts": [1], "user": ["a"]}).write_parquet(path)


BAD: dict[str, tuple[Any, type[FairReplayError], str]] = {
    "missing": (None, UsageError, "no such file"),
    "empty": (b"", BadInputError, "empty file"),
    "truncated gzip": (gzip.compress(line(0).encode())[:-3], BadInputError, "ends in the middle of its data at byte"),
    "Parquet of another schema": (
        parquet_of_another_schema,
        BadInputError,
        "no known format .*columns found: ts, user",
    ),
    "no arrival times": (
        (DATA / "llmperf" / "lepton_13b.json").read_bytes(),
        BadInputError,
        "no arrival time; FairReplay cannot replay it; columns found: .*ttft_s",
    ),
    "first token before arrival": (
        line(0, first_token_at_ms=1772438399999).encode(),
        BadInputError,
        "1 of 1 rows rejected .first_token_before_arrival 1.*row 0, column first_token_at_ms",
    ),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("is_new", [False, True])
def test_bad_input_is_one_line_and_the_store_is_as_before(
    tmp_path: Path, filled: Path, name: str, is_new: bool
) -> None:
    given_content, error, message = BAD[name]
    path = tmp_path / "bad.log"
    if callable(given_content):
        given_content(path)
    elif given_content is not None:
        path.write_bytes(given_content)
    store = tmp_path / "new" / "store" if is_new else filled
    before = content(filled)
    with pytest.raises(error, match=message) as caught:
        ingest([str(path)], store, IngestOptions())
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert content(filled) == before
    assert not (tmp_path / "new").exists()


def test_an_empty_folder_given_as_store_stays_empty(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(BadInputError):
        ingest([log(tmp_path / "log", "x")], tmp_path / "store", IngestOptions())
    assert list((tmp_path / "store").iterdir()) == []


def test_a_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "thesis.doc").write_text("mine")
    with pytest.raises(StoreError, match="holds other files"):
        ingest([log(tmp_path / "log", line(0))], tmp_path / "store", IngestOptions())
    assert [item.name for item in (tmp_path / "store").iterdir()] == ["thesis.doc"]


def test_a_name_with_brackets_is_a_name(tmp_path: Path) -> None:
    """``[prod].jsonl`` read as a pattern is ``p.jsonl``: another file."""
    log(tmp_path / "p.jsonl", line(1, tenant="wrong"))
    literal = log(tmp_path / "[prod].jsonl", line(0, tenant="right"))
    assert ingest([literal], tmp_path / "store", IngestOptions()).tenants == {"right": 1}


def test_patterns_and_folders_are_read_in_sorted_order(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / "deep").mkdir(parents=True)
    for name in ("b.jsonl", "a.jsonl", "deep/c.jsonl"):
        log(logs / name, line(0, request_id=name))
    log(logs / ".hidden", "x")
    log(logs / "a.jsonl.rejects.jsonl", "x")
    names = ["a.jsonl", "b.jsonl", "c.jsonl"]
    by_folder = ingest([str(logs)], logs / "store", IngestOptions())
    assert [source.segment.name for source in by_folder.sources] == names
    again = ingest([str(logs)], logs / "store", IngestOptions())  # the store's own files are no logs
    assert [source.segment.name for source in again.sources] == names
    by_pattern = ingest([str(logs / "[ab].jsonl"), str(logs / "a.jsonl")], tmp_path / "other", IngestOptions())
    assert [source.segment.name for source in by_pattern.sources] == names[:2]


def test_an_empty_folder_and_a_device_are_usage_errors(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with pytest.raises(UsageError, match="no files in this folder"):
        ingest([str(tmp_path / "logs")], tmp_path / "store", IngestOptions())
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        ingest([os.devnull], tmp_path / "store", IngestOptions())


def test_a_kill_between_segment_and_manifest_leaves_the_old_store(
    tmp_path: Path, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    before = content(filled)
    path = log(tmp_path / "second.jsonl", line(8))
    monkeypatch.setattr(store_module, "write_manifest", die)
    with pytest.raises(Killed):
        ingest([path], filled, IngestOptions())
    monkeypatch.undo()
    assert open_store(filled).requests().height == 3
    with pytest.raises(BadInputError):
        ingest([log(tmp_path / "bad", "x")], filled, IngestOptions())  # the next run clears what is left
    assert content(filled) == before
    ingest([path], filled, IngestOptions())
    assert open_store(filled).requests().height == 4


def test_the_manifest_says_what_was_read_and_assumed(tmp_path: Path) -> None:
    source = DATA / "vtc_arena" / "LShare_rpm20.all_results_real.jsonl"
    reading = Reading(t0_us=1772438400000000, model="llama-7b")
    summary = ingest([str(source)], tmp_path / "store", IngestOptions(reading=reading))
    segment = open_store(tmp_path / "store").manifest.segments[0]
    assert segment == summary.sources[0].segment
    assert (segment.name, segment.format, segment.rows) == (source.name, "vtc", 1500)
    assert segment.first_arrival == "2026-03-02T08:00:00.000000Z"
    assert segment.assumptions == (
        "req_time counts s from the log's own start, taken as 2026-03-02T08:00:00.000000Z (--t0)",
        "all rows without type, taken as 'completion' (--type)",
    )
    assert "preemptions" in segment.empty_columns
    assert segment.prefix_block_tokens is None
    frame = open_store(tmp_path / "store").requests()
    assert frame["model"].unique().to_list() == ["llama-7b"]
    assert frame["preemptions"].null_count() == 1500  # unknown, never 0
    mooncake = ingest([str(DATA / "mooncake" / "synthetic_trace.head300.jsonl")], tmp_path / "store", IngestOptions())
    assert mooncake.sources[0].segment.prefix_block_tokens == 512


REAL = [
    "vtc_arena",
    "vidur",
    "mooncake",
    "vllm_requests",
    "lmbenchmark/vllm-llama8B-high-qps.LMBench_long_input_output_3.5.csv",
    "azure2023/AzureLLMInferenceTrace_code.tail200.csv",
]


def test_stores_are_byte_equal_whatever_the_hash_seed(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    log(bad, line(0, tenant="é", extra=1), line(0, tenant="x"), line(1, note=2, prompt_tokens=0), "x", line(2, other=1))
    program = (
        "import sys, pathlib; from fairreplay.store.ingest import IngestOptions, ingest\n"
        "ingest(sys.argv[2:], pathlib.Path(sys.argv[1]), IngestOptions(max_reject_rate=1.0))"
    )
    sources = [str(bad), *(str(DATA / name) for name in REAL)]
    for seed in ("0", "1"):
        command = [sys.executable, "-c", program, str(tmp_path / f"store{seed}"), *sources]
        threads = {"PYTHONHASHSEED": seed, "POLARS_MAX_THREADS": str(1 + int(seed))}
        subprocess.run(command, check=True, env=os.environ | threads)
    assert content(tmp_path / "store0") == content(tmp_path / "store1")
    assert str(tmp_path).encode() not in b"".join(content(tmp_path / "store0").values())


VALUES = st.one_of(
    st.none(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=5),
    st.booleans(),
    st.sampled_from(["2026-03-02T08:00:00Z", 1772438400, "-", "-1", "76.0", [], {}, [1], "rejected", "ok", "embed"]),
)
KEYS = st.sampled_from(
    [
        "request_id",
        "tenant",
        "type",
        "status",
        "arrived_at",
        "arrived_at_s",
        "first_token_at",
        "finished_at_s",
        "prompt_tokens",
        "output_tokens",
        "weight",
        "prefix_ids",
        "preemptions",
        "other",
    ]
)
PLAUSIBLE = {"arrived_at": "2026-03-02T08:00:00Z", "prompt_tokens": 5, "output_tokens": 5}
RECORDS = st.dictionaries(KEYS, VALUES, max_size=4).map(lambda change: json.dumps(PLAUSIBLE | change))
RECORDS_IN = {"{}{}": 2, "[]": 0}
JUNK = st.sampled_from(["{", "x", "[]", "17", '{"a"', "{}{}", "\x00", '"'])


@settings(derandomize=True, max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.one_of(RECORDS, RECORDS, JUNK), max_size=12), seed=st.integers(0, 2**32))
def test_every_record_is_accepted_rejected_or_a_duplicate(tmp_path: Path, lines: list[str], seed: int) -> None:
    lines = [json.dumps(PLAUSIBLE), *lines]
    random.Random(seed).shuffle(lines)
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir()
    path, refusal = log(folder / "log", *lines), None
    try:
        segment = ingest([path], folder / "store", EVERYTHING).sources[0].segment
    except BadInputError as error:
        refusal = str(error)
    if refusal is not None:  # as a whole
        assert "mixes magnitudes" in refusal or "years apart" in refusal
        assert not (folder / "store").exists()
        return
    assert segment.rows == segment.accepted + segment.rejected + segment.duplicates
    assert segment.rows == sum(RECORDS_IN.get(text, 1) for text in lines)
    assert segment.rejected == sum(segment.rejects.values())
    store = open_store(folder / "store")
    assert store.requests().height == segment.accepted
    assert store.rejects().height == segment.rejected
    assert store.requests()["request_id"].n_unique() == segment.accepted


PREFIXES = st.sampled_from([b"", b"\x1f\x8b\x08", b"PAR1", b"\x28\xb5\x2f\xfd", b"{", b"[", b"\xef\xbb\xbf", b"a,b\n"])


@settings(
    derandomize=True, max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(prefix=PREFIXES, body=st.binary(max_size=200))
def test_random_bytes_are_an_error_and_never_a_traceback(tmp_path: Path, prefix: bytes, body: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(prefix + body)
    with pytest.raises(BadInputError) as caught:
        ingest([str(path)], tmp_path / "store", EVERYTHING)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "store").exists()


@settings(derandomize=True, max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_of_a_real_log_never_break_the_count(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray((DATA / "azure2024" / "AzureLLMInferenceTrace_conv_1week.csv").read_bytes())
    start = whole.index(b"\n") + 1
    for _ in range(data.draw(st.integers(1, 5))):
        whole[data.draw(st.integers(start, len(whole) - 1))] = data.draw(st.integers(0, 255))
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir()
    (folder / "log.csv").write_bytes(bytes(whole))
    segment = ingest([str(folder / "log.csv")], folder / "store", EVERYTHING).sources[0].segment
    lines = [text for text in bytes(whole)[start:].split(b"\n") if text.strip()]
    assert segment.rows == segment.accepted + segment.rejected
    assert segment.rows in range(len(lines) - 4, len(lines) + 1)
