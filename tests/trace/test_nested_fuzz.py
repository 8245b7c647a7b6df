"""Whatever stands in a nested log, every record is accepted, rejected, skipped or the file refused: no traceback."""

from __future__ import annotations

import copy
import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.errors import FairReplayError
from fairreplay.trace.read import read_source
from fairreplay.trace.reject import REASONS
from fairreplay.trace.rules import Reading

FIXTURES = Path(__file__).parents[1] / "data" / "formats"
LOGS = {
    "litellm": ["litellm/spend_logs.json", "litellm/standard_logging.jsonl"],
    "langfuse": ["langfuse/observations.jsonl"],
    "envoy-ai-gateway": ["envoy-ai-gateway/access.log"],
    "otlp": ["otlp-genai/spans.jsonl", "otlp-vllm/traces.jsonl"],
    "vllm-bench": ["vllm-bench/bench.json"],
    "guidellm": ["guidellm/benchmarks.json"],
    "sglang": ["sglang/sglang-request-metrics-20260302_08.log"],
    "dynamo": ["dynamo/request_trace.000000.jsonl.gz"],
    "bailian": ["bailian/qwen_traceA_blksz_16.jsonl"],
    "aiperf": ["../aiperf/profile_export.head30.jsonl"],
    "ragpulse": ["../ragpulse/0_trace.tail-blank-last-line.jsonl"],
    "mooncake": ["../mooncake/synthetic_trace.head300.jsonl"],
    "vllm-requests": ["../vllm_requests/RTXPRO6000_Llama-3.1-8B.requests.jsonl"],
}
ODD = st.sampled_from(
    [None, True, False, 0, -1, 1.5, 10**30, float("nan"), float("-inf"), "", "-", "x", "{", "[1]", '{"a": 1}', "429",
     "NaN", [], {}, [None], [[1]], {"": None}, [{"key": {}, "value": []}], "\x00", "9" * 50, "1e999", "2026-02-30"]
)  # fmt: skip


def values(path: Path) -> list[Any]:
    """The JSON values of a fixture."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")][:8]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in ``value``."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield value, key
            yield from places(inner)


@pytest.mark.parametrize(("name", "log"), [(name, log) for name, logs in LOGS.items() for log in logs])
@settings(max_examples=25, derandomize=True, deadline=None)
@given(data=st.data())
def test_odd_values_anywhere(name: str, log: str, data: st.DataObject) -> None:
    changed = copy.deepcopy(values(FIXTURES / log))
    for _ in range(data.draw(st.integers(1, 4))):
        container, key = data.draw(st.sampled_from(list(places(changed))))
        container[key] = copy.deepcopy(data.draw(ODD))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_text("".join(json.dumps(item) + "\n" for item in changed), encoding="utf-8")
        try:
            read = read_source(path, Reading(), name)
        except FairReplayError:
            return
    assert {item.reason for item in read.rejects} <= set(REASONS)
    numbers = [*read.frame["seq"], *(item.row for item in read.rejects)]
    assert len(set(numbers)) == len(numbers)
    assert read.rows == len(numbers)
