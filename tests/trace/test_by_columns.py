"""Formats that prepare their records, mappings and joins: whole columns give what records one by one give."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fairreplay.errors import BadInputError, UsageError
from fairreplay.trace import blocks as blocks_module
from fairreplay.trace import gateway as gateway_module
from fairreplay.trace import read as read_module
from fairreplay.trace.asked import Asked
from fairreplay.trace.fields import Format
from fairreplay.trace.gateway import read_gateway
from fairreplay.trace.join import Gateway, JoinKey
from fairreplay.trace.mapping import parse_mapping
from fairreplay.trace.read import SourceRead, read_source
from fairreplay.trace.rules import Reading

PROPERTY = settings(
    derandomize=True,
    max_examples=40,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
SEEDS = st.integers(0, 2**32)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 2500)
    monkeypatch.setattr(blocks_module, "SMALL_BYTES", 200)


def tried(path: Path, wanted: str | Format, asked: Asked) -> SourceRead | str:
    try:
        return read_source(path, Reading(zone=ZoneInfo("Europe/Berlin"), zone_name="Europe/Berlin"), wanted, asked)
    except (BadInputError, UsageError) as error:
        return str(error)


def strictly(path: Path, wanted: str | Format, asked: Asked) -> SourceRead | str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_module, "is_plain", lambda *_: False)
        return tried(path, wanted, asked)


def check(path: Path, wanted: str | Format = "auto", strict: Asked | None = None, fast: Asked | None = None) -> None:
    one, other = strictly(path, wanted, strict or Asked()), tried(path, wanted, fast or strict or Asked())
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    assert other.frame.to_dicts() == one.frame.to_dicts()
    assert other.rejects == one.rejects
    left_out = ("frame", "rejects", "format", "applied")
    assert {name: value for name, value in vars(other).items() if name not in left_out} == {
        name: value for name, value in vars(one).items() if name not in left_out
    }
    assert other.applied.remarks() == one.applied.remarks()
    if one.applied.join is not None:
        assert other.applied.join is not None
        assert other.applied.join.counts(other.records) == one.applied.join.counts(one.records)


# -- CSV --------------------------------------------------------------------------------------------------------------

CELLS = ["", "-", "0", "0.0", "-1", "76.0", "1.5", "x", "NaN", "1e3", "99999999999", " 5", "API log", "é"]


@PROPERTY
@given(seed=SEEDS, third=st.booleans())
def test_burstgpt(tmp_path: Path, seed: int, third: bool) -> None:
    rng = random.Random(seed)
    names = ["Timestamp", *(["Session ID", "Elapsed time"] if third else []), "Model", "Request tokens"]
    names += ["Response tokens", "Total tokens", "Log Type"]
    lines = [",".join(names)]
    for number in range(rng.randrange(1, 60)):
        row = {"Timestamp": f"{number * 3}.0", "Session ID": rng.choice(["", "s1"]), "Elapsed time": "4"}
        row |= {"Model": "GPT-4", "Request tokens": str(rng.randrange(1, 90)), "Total tokens": "7"}
        row |= {
            "Response tokens": str(rng.choice([0, 0, 5, 9])),
            "Log Type": rng.choice(["Conversation log", "API log"]),
        }
        if rng.random() < 0.1:
            row[rng.choice(names)] = rng.choice(CELLS)
        lines.append(",".join(row[name] for name in names) + (",extra" if rng.random() < 0.02 else ""))
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines))
    check(path)


MAPPING = """
version = 1
name = "acme"
[read]
kind = "KIND"
keep = [{ column = "event", in = ["done", 7] }]
[clock.wall]
kind = "wall"
format = "%d/%m/%Y %H:%M:%S%.f"
[clock.mono]
kind = "relative"
unit = "ms"
[columns]
arrived_at = { column = "at", clock = "wall" }
scheduled_at = { column = "queue", unit = "ms", after = "arrived_at", null = [0, "-1"] }
first_token_at = { column = "ttft", unit = "ms", after = "scheduled_at" }
finished_at = { column = "end", clock = "mono", minus = "begin", after = "arrived_at" }
prompt_tokens = { sum = ["fresh", "cached"] }
output_tokens = { column = "out", default = 3 }
cached_tokens = "cached"
priority = { column = "prio", negate = true }
tenant = { column = "auth", regex = "^sk-([a-z]+)-", else = ["team"] }
[constants]
weight = 1.5
model = "m"
[status]
column = "code"
map = { "200" = "ok", "429" = "rejected" }
default = "failed"
[[type]]
when = { column = "fresh", min = 50 }
is = "long"
[[type]]
when = { column = "event", regex = "^d" }
is = "chat"
"""


def mapped_record(rng: random.Random, number: int) -> dict[str, Any]:
    record: dict[str, Any] = {"event": "done", "at": f"02/03/2026 08:00:{number % 60:02}.{rng.randrange(1000)}"}
    record |= {"queue": rng.choice([0, 5, -1, 2]), "ttft": 40, "begin": 1000, "end": 1000 + rng.randrange(60, 900)}
    record |= {"fresh": rng.randrange(1, 99), "cached": rng.choice([0, 4]), "out": rng.randrange(1, 9)}
    record |= {"prio": rng.randrange(-3, 3), "auth": rng.choice(["sk-red-1", "sk-1", "none"]), "team": "blue"}
    return record | {"code": rng.choice([200, 200, 200, 429, 500])}


SPOILT = [
    None,
    "",
    "-",
    0,
    -1,
    7,
    1.5,
    "x",
    "200.0",
    200.0,
    True,
    [1],
    {"a": 1},
    10**25,
    "31/02/2026 08:00:00",
    "undone",
]


@PROPERTY
@given(seed=SEEDS, kind=st.sampled_from(["jsonl", "csv"]))
def test_mappings(tmp_path: Path, seed: int, kind: str) -> None:
    rng = random.Random(seed)
    records = [mapped_record(rng, number) for number in range(rng.randrange(1, 50))]
    for record in records:
        if rng.random() < 0.1:
            name = rng.choice(list(record))
            if rng.random() < 0.8:
                record[name] = rng.choice(SPOILT)
            elif kind == "jsonl":
                del record[name]
    path = tmp_path / "log"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, records)))
    else:
        cells = [[str(value).replace(",", ";") for value in record.values()] for record in records]
        path.write_text("\n".join(",".join(row) for row in [list(mapped_record(rng, 0)), *cells]))
    check(path, parse_mapping(MAPPING.replace("KIND", kind), "acme.toml"))


# -- JSON lines -------------------------------------------------------------------------------------------------------


@PROPERTY
@given(seed=SEEDS, named=st.booleans())
def test_bailian(tmp_path: Path, seed: int, named: bool) -> None:
    rng = random.Random(seed)
    lines = []
    for number in range(rng.randrange(1, 60)):
        chat: Any = rng.randrange(60) if rng.random() < 0.1 else number
        parent: Any = rng.choice([-1, rng.randrange(60), 999])
        if named:
            chat, parent = f"c{chat}", f"c{parent}" if parent != -1 else "-1"
        record = {"chat_id": chat, "parent_chat_id": parent, "timestamp": number / 8, "input_length": 20}
        record |= {"output_length": rng.randrange(9), "type": "text", "turn": 1, "hash_ids": [1, 2]}
        if rng.random() < 0.05:
            record[rng.choice(list(record))] = rng.choice([None, "", 1.5, "x", True, -3])
        lines.append(json.dumps(record) if rng.random() < 0.98 else "{")
    path = tmp_path / "log"
    path.write_text("\n".join(lines))
    check(path)


def engine_record(rng: random.Random, number: int) -> dict[str, Any]:
    at = 1772438400000 + number * 100
    record: dict[str, Any] = {"request_id": f"chatcmpl-{number}", "arrived_at_ms": at, "prompt_tokens": 9}
    return record | {"output_tokens": 4, "tenant": rng.choice(["default", "own", ""]), "first_token_at_ms": at + 50}


def envoy_record(rng: random.Random, number: int) -> dict[str, Any]:
    record: dict[str, Any] = {"start_time": f"2026-03-02T08:00:{number % 60:02}.001Z", "duration": 900}
    record |= {"response_code": rng.choice([200, 200, 200, 429, 0]), "x-request-id": str(number), "response_flags": "-"}
    record |= {"tenant.id": rng.choice(["a", "b"]), "x-envoy-origin-path": rng.choice(["/v1/completions", "/health"])}
    record |= {"gen_ai.request.model": "m", "gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 3}
    return record | {"token_latency_ttft": rng.choice([0, 30])}


def spoilt(rng: random.Random, records: list[dict[str, Any]]) -> str:
    for record in records:
        if rng.random() < 0.15:
            record[rng.choice(list(record))] = rng.choice([None, "", "-", "x", 1.5, -2, [1], {"b": 1}, "ok", "200"])
    return "\n".join(json.dumps(record) if rng.random() < 0.98 else "[" for record in records)


@PROPERTY
@given(seed=SEEDS)
def test_envoy(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "log"
    path.write_text(spoilt(rng, [envoy_record(rng, number) for number in range(rng.randrange(1, 50))]))
    check(path)
    check(path, strict=Asked(tenant_from="gen_ai.request.model"))


def read_right(path: Path, key: JoinKey) -> Gateway | str:
    try:
        return read_gateway(path, Reading(), key, "gateway")
    except (BadInputError, UsageError) as error:
        return str(error)


@PROPERTY
@given(seed=SEEDS)
def test_joins(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    left, right = tmp_path / "left", tmp_path / "right"
    numbers = [rng.randrange(60) for _ in range(rng.randrange(1, 50))]
    left.write_text(spoilt(rng, [engine_record(rng, number) for number in numbers]))
    right.write_text(spoilt(rng, [envoy_record(rng, rng.randrange(60)) for _ in range(rng.randrange(1, 50))]))
    key = JoinKey.parse("request_id=x-request-id", ["chatcmpl-"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway_module, "is_plain", lambda *_: False)
        one = read_right(right, key)
    other = read_right(right, key)
    if isinstance(one, str) or isinstance(other, str):
        assert other == one
        return
    assert (other.entries, other.records) == (one.entries, one.records)
    assert str(other.refused) == str(one.refused)
    check(left, strict=Asked(key=key, gateway=one), fast=Asked(key=key, gateway=other))


def test_many_rows_go_by_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean log is never taken apart, joined or mapped."""
    rng = random.Random(0)
    left, right = tmp_path / "left", tmp_path / "right"
    left.write_text("\n".join(json.dumps(engine_record(rng, number)) for number in range(300)))
    served = [envoy_record(rng, number) | {"response_code": 200} for number in range(300)]
    right.write_text("\n".join(json.dumps(record | {"x-envoy-origin-path": "/v1/responses"}) for record in served))
    monkeypatch.setattr(read_module, "prepared_records", None)
    monkeypatch.setattr(gateway_module, "prepared_records", None)
    key = JoinKey.parse("request_id=x-request-id", ["chatcmpl-"])
    gateway = read_gateway(right, Reading(), key, "gateway")
    read = read_source(left, Reading(), asked=Asked(key=key, gateway=gateway))
    assert read.accepted == 300
    assert set(read.frame["type"]) == {"chat"}
    assert set(read.frame["tenant"]) == {"a", "b", "own"}
    assert read_source(right, Reading()).frame["status"].to_list() == ["ok"] * 300
