"""Logs of load generators: ``vllm bench serve`` and GuideLLM, and the traps that their fixtures do not show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairreplay.errors import BadInputError

from .nested import column, outcome

# -- vllm bench serve -------------------------------------------------------------------------------------------------


def run(**changes: Any) -> dict[str, Any]:
    """Two requests."""
    return {
        "date": "20260302-090412", "endpoint_type": "openai", "model_id": "m", "num_prompts": 2,
        "request_throughput": 1.0, "input_lens": [10, 20], "output_lens": [5, 6], "ttfts": [0.25, 0.5],
        "latencies": [1.0, 2.0], "start_times": [100.0, 101.0], "errors": ["", ""], "generated_texts": ["a", "b"],
    } | changes  # fmt: skip


def without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


@pytest.mark.parametrize("line_by_line", [True, False])
def test_vllm_bench_appended_runs(line_by_line: bool, tmp_path: Path) -> None:
    runs = [run(), run(model_id="n", start_times=[200.0, 201.0])]
    text = (
        "\n".join(json.dumps(item) for item in runs)
        if line_by_line
        else "".join(json.dumps(item, indent=1) for item in runs)
    )
    done = outcome(tmp_path / "l", text, "vllm-bench")
    assert column(done.rows, "seq", "model") == [(0, "m"), (1, "m"), (2, "n"), (3, "n")]
    assert column(done.rows, "arrived_at")[2] == "1970-01-01T00:03:20.000000"
    assert any("start_times counts s of a monotonic clock" in line for line in done.read.assumptions)


@pytest.mark.parametrize(
    ("names", "type_"),
    [
        ({"endpoint_type": "openai-chat"}, "chat"),
        ({"endpoint_type": "openai-responses", "backend": "openai"}, "chat"),
        ({"endpoint_type": None, "backend": "openai-chat"}, "chat"),
        ({"backend": "openai-chat"}, "completion"),
        ({"endpoint_type": "vllm"}, "completion"),
    ],
)
def test_vllm_bench_type(names: dict[str, Any], type_: str, tmp_path: Path) -> None:
    assert column(outcome(tmp_path / "l", [run(**names)], "vllm-bench").rows, "type") == [type_] * 2


def test_vllm_bench_without_latencies_sums_the_gaps_between_tokens(tmp_path: Path) -> None:
    older = without(run(ttfts=[0.25, 0.5], itls=[[0.1, 0.2, 0.3], [0.1]], errors=["", "broken"]), "latencies")
    done = outcome(tmp_path / "l", [older], "vllm-bench")
    assert column(done.rows, "finished_at", "status") == [("1970-01-01T00:01:40.850000", "ok"), (None, "failed")]


def test_vllm_bench_sentinels(tmp_path: Path) -> None:
    document = run(
        start_times=[0.0, 100.0, 100.0, 100.0], ttfts=[0.25, 0.0, 0.0, None], latencies=[1.0, 0.0, 0.0, None],
        input_lens=[10, 10, 10, 10], output_lens=[5, 5, 0, 5], errors=["", "", "", ""],
        server_queue_times=[None, None, 0.125, 0.125],
    )  # fmt: skip
    done = outcome(tmp_path / "l", [document], "vllm-bench")
    assert done.rejects == {0: ("missing_time", "start_times", "0.0"), 2: ("contradictory", "ttfts", "0.0")}
    assert column(done.rows, "first_token_at", "finished_at", "scheduled_at") == [
        (None, None, None), (None, None, "1970-01-01T00:01:40.125000"),
    ]  # fmt: skip


def test_vllm_bench_arrays_of_unequal_length_lose_no_request(tmp_path: Path) -> None:
    done = outcome(tmp_path / "l", [run(output_lens=[5], errors=[""])], "vllm-bench")
    assert (list(done.rows), done.rejects) == ([0], {1: ("missing_tokens", "output_lens", None)})


@pytest.mark.parametrize(
    "document",
    [
        without(run(), "start_times"),
        without(run(), "start_times", "input_lens", "ttfts", "output_lens", "errors"),
        without(run(), "start_times", "input_lens", "ttfts", "output_lens", "errors", "latencies"),
        run(start_times=None),
    ],
)
def test_vllm_bench_without_start_times_is_refused(document: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"vllm-bench: .*no arrival time; FairReplay cannot replay it"):
        outcome(tmp_path / "l", document, "vllm-bench")


# -- GuideLLM ---------------------------------------------------------------------------------------------------------

T = 1772438400


def request(name: str, /, timings: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    marks = {"resolve_start": T - 1, "request_start": T, "first_token_iteration": T + 1, "last_token_iteration": T + 2}
    ends = {"request_end": T + 3, "resolve_end": T + 4, "scheduled_at": T - 5, "queued": T - 6, "dequeued": T - 5}
    info = {"conversation_id": None, "status": "completed", "error": None, **changes.pop("info", {})}
    entry = {"request_id": name, "prompt_tokens": 10, "output_tokens": 5, "cached_tokens": None}
    return entry | {"info": info | {"timings": marks | ends | (timings or {})}} | changes


def report(backend: dict[str, Any] | None = None, version: object = 2, **lists: Any) -> dict[str, Any]:
    metadata = {} if version is None else {"version": version}
    return {"metadata": metadata, "config": {"backend": backend or {}}, "benchmarks": [{"requests": lists}]}


def test_guidellm_marks_of_the_client_are_not_the_servers(tmp_path: Path) -> None:
    done = outcome(tmp_path / "l", report(successful=[request("a")], errored=[request("b")]), "guidellm")
    assert column(done.rows, "scheduled_at", "finished_at") == [(None, "08:00:02.000000"), (None, "08:00:03.000000")]


def test_guidellm_times_of_zero_are_none(tmp_path: Path) -> None:
    rows = [
        request("a", {"first_token_iteration": 0, "last_token_iteration": 0}),
        request("b", {"request_start": 0, "request_end": None, "last_token_iteration": None}),
        request("c", {"request_start": None, "resolve_start": 0.0}),
    ]
    done = outcome(tmp_path / "l", report(successful=rows), "guidellm")
    assert column(done.rows, "arrived_at", "first_token_at", "finished_at") == [
        ("08:00:00.000000", None, "08:00:03.000000"),
        ("07:59:59.000000", "08:00:01.000000", "08:00:04.000000"),
    ]
    assert done.skipped == {"never_sent": 1}


def test_guidellm_counts_from_the_metrics_where_the_request_has_none(tmp_path: Path) -> None:
    metrics = {
        "input_metrics": {
            "text_tokens": 7,
            "image_tokens": 5,
            "video_tokens": None,
            "cached_tokens": 3,
            "total_tokens": 99,
        },
        "output_metrics": {"text_tokens": 4, "audio_tokens": 2},
    }
    row = request("a", prompt_tokens=None, output_tokens=None, **metrics)
    done = outcome(tmp_path / "l", report(successful=[row]), "guidellm")
    assert column(done.rows, "prompt_tokens", "output_tokens", "cached_tokens") == [(12, 6, 3)]


@pytest.mark.parametrize(
    ("name", "info", "status"),
    [
        ("errored", {"error": "Server error '503 Service Unavailable' for url 'http://h:8000/v1'"}, "rejected"),
        ("errored", {"error": "Read timeout after 0.503 s"}, "failed"),
        ("errored", {"error": None}, "failed"),
        ("incomplete", {"status": "cancelled", "error": "429"}, "cancelled"),
        ("incomplete", {"status": "pending"}, "unfinished"),
        ("successful", {"status": "errored", "error": "429"}, "ok"),
    ],
)
def test_guidellm_status_is_of_the_list(name: str, info: dict[str, Any], status: str, tmp_path: Path) -> None:
    done = outcome(tmp_path / "l", report(**{name: [request("a", info=info)]}), "guidellm")
    assert column(done.rows, "status") == [status]


@pytest.mark.parametrize(
    ("backend", "type_"),
    [
        ({}, "chat"),
        ({"request_format": None}, "chat"),
        ({"request_format": "/v1/completions"}, "completion"),
        ({"request_format": "/v1/embeddings"}, "embed"),
    ],
)
def test_guidellm_type(backend: dict[str, Any], type_: str, tmp_path: Path) -> None:
    done = outcome(tmp_path / "l", report(backend | {"model": "m"}, successful=[request("a")]), "guidellm")
    assert column(done.rows, "type", "model", "first_token_at") == [
        (type_, "m", "08:00:02.000000" if type_ == "embed" else "08:00:01.000000")
    ]


def test_guidellm_runs_of_one_report_follow_each_other(tmp_path: Path) -> None:
    document = report(successful=[request("a")], total=None)
    document["benchmarks"] += report(successful=[request("b"), None], incomplete=[])["benchmarks"]
    done = outcome(tmp_path / "l", document, "guidellm")
    assert (column(done.rows, "request_id"), done.rejects[2][0]) == (["a", "b"], "unparsable_record")


@pytest.mark.parametrize(("version", "named"), [(1, "of version 1"), (3, "of version 3"), (None, "without a version")])
def test_guidellm_of_another_version_is_refused_by_name(version: object, named: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=f"guidellm: a report {named}, and only version 2 is read"):
        outcome(tmp_path / "l", report(version=version, successful=[request("a")]), "guidellm")
