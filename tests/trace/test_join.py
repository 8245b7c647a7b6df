"""Joining an engine's log with the gateway's: what crosses, what never does, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fairreplay.errors import BadInputError, UsageError
from fairreplay.trace.asked import Asked
from fairreplay.trace.gateway import read_gateway
from fairreplay.trace.join import JoinKey
from fairreplay.trace.read import SourceRead, read_source
from fairreplay.trace.rules import Reading

T0_MS = 1772438400000


def engine(index: int, **more: Any) -> dict[str, Any]:
    """A row of an engine that knows no tenants."""
    record = {
        "request_id": f"chatcmpl-k{index}",
        "arrived_at_ms": T0_MS + index,
        "prompt_tokens": 9,
        "output_tokens": 3,
    }
    return record | more


def gate(index: int, tenant: str | None, **more: Any) -> dict[str, Any]:
    """A row of the gateway's log, in the canonical columns, with a clock of its own."""
    record = {"request_id": f"k{index}", "arrived_at_ms": T0_MS - 5, "prompt_tokens": 1, "output_tokens": 1}
    return record | ({"tenant": tenant} if tenant else {}) | more


def written(path: Path, *records: dict[str, Any] | str) -> Path:
    path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in records))
    return path


def joined(
    tmp_path: Path, left: list[Any], right: list[Any], on: str = "request_id", strip: tuple[str, ...] = ("chatcmpl-",)
) -> SourceRead:
    key = JoinKey.parse(on, strip)
    gateway = read_gateway(written(tmp_path / "gateway", *right), Reading(), key, "gateway")
    return read_source(written(tmp_path / "engine", *left), Reading(), asked=Asked(key=key, gateway=gateway))


def counts(read: SourceRead) -> dict[str, int]:
    assert read.applied.join is not None
    return read.applied.join.counts(read.records)


def test_names_cross_and_times_do_not(tmp_path: Path) -> None:
    right = gate(0, "acme", type="chat", model="m", session_id="s", priority=-2, weight=2.5, cached_tokens=4)
    read = joined(tmp_path, [engine(0)], [right])
    assert read.frame.row(0, named=True) | {"arrived_at": None, "source": None} == {
        "request_id": "chatcmpl-k0",
        "tenant": "acme",
        "type": "chat",
        "model": "m",
        "replica": None,
        "arrived_at": None,
        "prompt_tokens": 9,
        "output_tokens": 3,
        "cached_tokens": 4,
        "priority": -2,
        "scheduled_at": None,
        "first_token_at": None,
        "finished_at": None,
        "status": "ok",
        "preemptions": None,
        "recomputed_tokens": None,
        "weight": 2.5,
        "batch_utilization": None,
        "precision": None,
        "session_id": "s",
        "prefix_ids": None,
        "seq": 0,
        "source": None,
    }
    assert read.frame["arrived_at"].cast(pl.Int64).to_list() == [T0_MS * 1000]
    assert counts(read) == {"left_records": 1, "right_records": 1, "matched": 1, "left_only": 0, "right_only": 0}


def test_what_the_engine_says_itself_stays_unless_it_is_the_default(tmp_path: Path) -> None:
    left = [engine(0, tenant="own", type="embed", model="e"), engine(1, tenant="default", type="completion")]
    right = [gate(index, "acme", type="chat", model="g") for index in range(2)]
    read = joined(tmp_path, left, right)
    assert read.frame.select("tenant", "type", "model").rows() == [("own", "embed", "e"), ("acme", "chat", "g")]


def test_left_alone_is_kept_and_right_alone_counted(tmp_path: Path) -> None:
    left = [engine(0), engine(1), engine(2, request_id=None)]
    read = joined(tmp_path, left, [gate(0, "acme"), gate(7, "blue"), gate(8, "blue")])
    assert read.frame["tenant"].to_list() == ["acme", "default", "default"]
    assert counts(read) == {"left_records": 3, "right_records": 3, "matched": 1, "left_only": 1, "right_only": 2}
    warning = read.applied.remarks()[0]
    assert "only 1 of 2 keys have a partner" in warning
    assert "'k1' here, 'k7', 'k8' there" in warning


def test_ninety_percent_is_enough(tmp_path: Path) -> None:
    read = joined(tmp_path, [engine(index) for index in range(10)], [gate(index, "a") for index in range(9)])
    assert read.applied.remarks() == ()
    assert counts(read)["left_only"] == 1


def test_one_right_serves_several_lefts(tmp_path: Path) -> None:
    """A retry, or n > 1: every row of the key gets the tenant."""
    left = [engine(0, attempt=attempt, x="k0") | {"request_id": f"r{attempt}"} for attempt in range(3)]
    read = joined(tmp_path, left, [gate(0, "acme")], on="x=request_id")
    assert read.frame["tenant"].to_list() == ["acme"] * 3
    assert counts(read)["matched"] == 1


def test_several_rights_of_one_key(tmp_path: Path) -> None:
    right = [
        gate(0, "acme", type="chat"),
        gate(0, "acme", type="embed"),
        gate(1, "acme"),
        gate(1, "blue"),
        gate(2, None),
    ]
    read = joined(tmp_path, [engine(0), engine(1), engine(1, request_id="chatcmpl-k1", prompt_tokens=0)], right)
    assert read.frame.select("tenant", "type").rows() == [("acme", "chat")]
    assert [(item.row, item.column, item.value, item.reason) for item in read.rejects] == [
        (1, "request_id", "k1", "ambiguous_join"),
        (2, "prompt_tokens", "0", "zero_prompt"),  # an earlier reason names the reject
    ]


@pytest.mark.parametrize(
    ("value", "strip", "spellings"),
    [
        (" r1 ", (), ("r1",)),
        (17, (), ("17",)),
        ("", (), ()),
        ("-", (), ()),
        (None, (), ()),
        (True, (), ()),
        ("1B4E28BA-2FA1-11D2-883F-B9A761BDE3FB", (), ("1b4e28ba-2fa1-11d2-883f-b9a761bde3fb",)),
        ("ABC", (), ("ABC",)),
        ("chatcmpl-1B4E28BA-2FA1-11D2-883F-B9A761BDE3FB", ("chatcmpl-",), ("1b4e28ba-2fa1-11d2-883f-b9a761bde3fb",)),
        ("cmpl-x-0", ("chatcmpl-", "cmpl-"), ("x-0", "x")),
        ("cmpl-x-0", ("chatcmpl-",), ("cmpl-x-0",)),
        ("x-0", ("cmpl-",), ("x-0",)),
    ],
)
def test_how_keys_are_compared(value: object, strip: tuple[str, ...], spellings: tuple[str, ...]) -> None:
    assert JoinKey.parse("k", strip).spellings(value) == spellings


def test_completions_of_vllm_find_their_header(tmp_path: Path) -> None:
    """vLLM: ``cmpl-`` + ``X-Request-Id`` + ``-<choice>``."""
    left = [engine(index, request_id=f"cmpl-req-7-{index}") for index in range(2)]
    read = joined(tmp_path, left, [gate(0, "acme", request_id="req-7")], strip=("chatcmpl-", "cmpl-"))
    assert read.frame["tenant"].to_list() == ["acme", "acme"]


def test_a_key_by_path_by_its_last_name_and_as_json_text(tmp_path: Path) -> None:
    left = [engine(0, event={"request": {"x_request_id": "K"}})]
    for on in ("event.request.x_request_id=meta.rid", "x_request_id=rid"):
        read = joined(tmp_path, left, [gate(0, "acme", meta='{"rid": "K"}')], on=on)
        assert read.frame["tenant"].to_list() == ["acme"]


@pytest.mark.parametrize(
    ("on", "said"),
    [
        ("request_idd", r"--on request_idd: in no record of .*did you mean 'request_id'"),
        ("request_id=rid", r"--on rid: in no record of .*gateway"),
        ("=rid", "write KEY, or LEFT=RIGHT"),
        ("twice", "stands at a.twice, b.twice"),
    ],
)
def test_a_key_that_is_nowhere_or_twice(tmp_path: Path, on: str, said: str) -> None:
    left = engine(0, a={"twice": 1}, b={"twice": 1})
    with pytest.raises(UsageError, match=said):
        joined(tmp_path, [left], [gate(0, "acme", twice=1)], on=on)


def test_a_right_side_of_names_alone(tmp_path: Path) -> None:
    """A list of ids and tenants is no request log, and all that a join needs."""
    read = joined(tmp_path, [engine(0)], [{"id": "k0", "tenant": "acme", "note": 1}], on="request_id=id")
    assert read.frame["tenant"].to_list() == ["acme"]
    with pytest.raises(BadInputError, match=r"no column called tenant, type.*columns found: id, note"):
        joined(tmp_path, [engine(0)], [{"id": "k0", "note": 1}], on="request_id=id")


def test_refused_before_the_engine_is_a_row_of_its_own(tmp_path: Path) -> None:
    """Right without left: refused and failed records are rows, ``ok`` was served elsewhere, a broken line counts."""
    key = JoinKey.parse("request_id", ("chatcmpl-",))
    right = [
        gate(0, "acme", status="rejected"),
        gate(1, "acme", status="rejected", prompt_tokens=0),
        gate(2, "blue"),
        gate(3, "blue", status="failed", prompt_tokens=-1),
        "{",
        gate(4, "blue", status="cancelled"),
    ]
    gateway = read_gateway(written(tmp_path / "gateway", *right), Reading(), key, "gateway")
    assert gateway.records == 6
    assert gateway.on_wall_clock
    alone = list(gateway.without({"k0"}))
    assert [item.number for item in alone] == [1, 3, 5]
    assert [item.row is not None for item in alone] == [True, False, True]
    assert alone[1].fault is not None
    assert alone[1].fault.reason == "negative_tokens"


def test_a_clock_that_starts_with_the_log_is_no_wall_clock(tmp_path: Path) -> None:
    key = JoinKey.parse("request_id")
    relative = gate(0, "acme") | {"arrived_at_ms": 5}
    assert not read_gateway(written(tmp_path / "gateway", relative), Reading(), key, "gateway").on_wall_clock
