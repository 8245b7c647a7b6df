"""No prompt and no answer survives in what is kept of a reject, whatever the key and whatever broke."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.trace.read import read_source
from fairreplay.trace.redact import Keeping, holds_text
from fairreplay.trace.rules import Reading

SECRET = "Frobnicate the quux"
READS = {"arrived_at", "tenant", "prompt_tokens", "output_tokens", "request_id"}


def kept(record: dict[str, Any]) -> Any:
    return json.loads(Keeping("native", READS).line(record, None))


@pytest.mark.parametrize(
    "key",
    ["prompt", "messages", "response", "gen_ai.input.messages", "generatedText", "proxy_server_request", "user_input"],
)
def test_keys_of_texts(key: str) -> None:
    assert holds_text(key)
    assert holds_text(f"request.{key}")
    assert "one" not in json.dumps(kept({key: "one"}))  # a prompt may look like a name


@pytest.mark.parametrize("key", ["prompt_tokens", "ContextTokens", "response_code", "input_length", "request_id", "ts"])
def test_keys_that_only_count_texts(key: str) -> None:
    assert not holds_text(key)


def test_what_a_request_is_made_of_stays() -> None:
    record = {
        "request_id": "chatcmpl-1",
        "startTime": "2026-03-02 08:00:00.123",
        "model": "small-8b",
        "status": "failure",
        "metadata": {"user_api_key_team_id": "acme", "usage": {"total_tokens": 12.5}},
        "tenant": "the acme company",
        "latency": "12.5ms",
        "x": "1b4e28ba-2fa1-11d2-883f-b9a761bde3fb",
        "flags": [True, None, 1],
    }
    keeping = Keeping("litellm", READS)
    assert keeping.line(record, '{"as": "read"}') == '{"as": "read"}'
    assert keeping.removed == 0


def test_texts_go_from_any_depth_and_leave_their_length() -> None:
    record = {
        "request_id": "r",
        "messages": [
            {"role": "user", "content": SECRET},
            {"role": "user", "content": [{"type": "text", "text": SECRET}]},
        ],
        "metadata": json.dumps({"requester": {"prompt": SECRET}, "team_id": "acme"}),
        "whatever": SECRET,
        SECRET: 1,
        "error": {"error_message": f"bad prompt: {SECRET}"},
        "input_ids": list(range(100)),
        "list": ["Frobnicate"],
    }
    said = json.dumps(kept(record))
    assert "Frobnicate" not in said
    assert "acme" in said
    assert kept(record)["whatever"] == f"[removed: {len(SECRET)} characters]"
    assert kept(record)["input_ids"] == ["[removed: 100 items]"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            '{"request_id": "r1", "prompt_tokens": 5, "out',
            '{"request_id": "r1", "prompt_tokens": 5, "[removed: 3 characters]',
        ),
        ('{"request_parameters": "{\\"rid\\": \\"5f0c16\\""', '{"request_parameters": "{\\"rid\\": \\"5f0c16\\""'),
        ("x", "x"),
        ('{"request_id": "r1", "prompt": "' + SECRET, '{"request_id": "r1", "prompt": "[removed: 19 characters]'),
        ('{"prompt": "' + SECRET + '", "model": "m"', '{"prompt": "[removed: 19 characters]", "model": "m"'),
        ("the rest of a prompt", "[removed: 20 characters]"),
        (f'{SECRET}", "model": "m"}}', "[removed: 35 characters]"),
        (f'{{"a": {SECRET}, "model": "m"}}', '{"a": … "model": "m"}'),
    ],
)
def test_lines_that_broke(line: str, says: str) -> None:
    assert Keeping("litellm", READS).broken(line) == says


def test_a_line_of_a_log_without_texts_is_kept_whole() -> None:
    line = "[2026-03-02 08:00:00.450][1][info][main] starting main dispatch loop"
    assert Keeping("envoy-ai-gateway", READS).broken(line) == line


def test_rejects_of_a_csv_log_lose_the_cell_only(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f'TIMESTAMP,ContextTokens,GeneratedTokens,Note\n2026-03-02 08:00:00,0,5,"{SECRET}, ""x"""\n')
    (reject,) = read_source(path, Reading()).rejects
    assert reject.line == "2026-03-02 08:00:00,0,5,[removed: 24 characters]"
    assert (reject.column, reject.value) == ("ContextTokens", "0")


TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=30).map(lambda text: f"{text} {SECRET} {text}")
VALUES: Any = st.recursive(
    st.one_of(TEXT, st.integers(), st.none(), st.booleans()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["role", "x", "meta", "text"]), inner, max_size=3)
    ),
    max_leaves=6,
)
RECORDS = st.dictionaries(st.sampled_from(["prompt", "a", "messages", "raw", "input", "note 1"]), VALUES, max_size=4)


def tells(kept_text: str) -> bool:
    return any(word in kept_text for word in SECRET.split())


@settings(derandomize=True, max_examples=150, deadline=None)
@given(record=RECORDS, cut=st.integers(0, 400), nested=st.booleans())
def test_a_text_never_survives_a_cut_anywhere(record: dict[str, Any], cut: int, nested: bool) -> None:
    keeping = Keeping("native", READS)
    whole = {"arrived_at": "x", "blob": json.dumps(record)} if nested else record
    assert not tells(keeping.line(whole, None))
    assert not tells(keeping.broken(json.dumps(whole)[:cut]))
    assert not tells(keeping.broken(json.dumps(whole, ensure_ascii=False)[cut:]))
