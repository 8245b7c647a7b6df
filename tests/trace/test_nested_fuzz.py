"""Whatever stands in a nested log, every record is accepted, rejected, skipped or the file refused: no traceback.

And the same whether what was made of its records is judged one by one or by whole columns.
"""

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
from fairreplay.trace import read as read_module
from fairreplay.trace.read import SourceRead, read_source
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


def tried(path: Path, name: str, *, by_columns: bool) -> SourceRead | str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_module, "PREPARED_ROWS_MIN", 1)
        if not by_columns:
            patch.setattr(read_module, "is_plain", lambda *_: False)
        try:
            return read_source(path, Reading(), name)
        except FairReplayError as error:
            return str(error)


def facts(read: SourceRead) -> dict[str, Any]:
    others = ("frame", "rejects", "format", "applied")
    return {key: value for key, value in vars(read).items() if key not in others}


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
        read, strict = (tried(path, name, by_columns=by_columns) for by_columns in (True, False))
    if isinstance(read, str) or isinstance(strict, str):
        assert read == strict
        return
    assert read.frame.to_dicts() == strict.frame.to_dicts()
    assert read.rejects == strict.rejects
    assert facts(read) == facts(strict)
    assert {item.reason for item in read.rejects} <= set(REASONS)
    numbers = [*read.frame["seq"], *(item.row for item in read.rejects)]
    assert len(set(numbers)) == len(numbers)
    assert read.rows == len(numbers)


@pytest.mark.parametrize(("name", "log"), [(name, log) for name, logs in LOGS.items() for log in logs])
def test_a_log_as_it_is(name: str, log: str) -> None:
    read, strict = (tried(FIXTURES / log, name, by_columns=by_columns) for by_columns in (True, False))
    assert not isinstance(read, str)
    assert not isinstance(strict, str)
    assert read.frame.to_dicts() == strict.frame.to_dicts()
    assert read.rejects == strict.rejects
    assert facts(read) == facts(strict)


def test_columns_are_what_they_are_judged_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of LiteLLM's payloads and of OTLP spans only the odd rows go through the strict rules one by one."""
    odd: list[int] = []
    real = read_module.SourceReader._one_by_one

    def counting(self: Any, right: Any) -> Any:
        odd.append(len(right))
        return real(self, right)

    monkeypatch.setattr(read_module, "PREPARED_ROWS_MIN", 1)
    monkeypatch.setattr(read_module.SourceReader, "_one_by_one", counting)
    for name, log in (("litellm", "litellm/standard_logging.jsonl"), ("otlp", "otlp-vllm/traces.jsonl")):
        odd.clear()
        read = read_source(FIXTURES / log, Reading(), name)
        assert read.frame.height > 5
        assert sum(odd) <= len(read.rejects) + 1
