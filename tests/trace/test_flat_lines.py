"""What compiled code makes of JSON lines, and which lines it leaves to others."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import polars as pl
import polars.testing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.machine_code import compiled
from fairreplay.trace import flat_lines as module
from fairreplay.trace.flat_lines import READ_LINES, FlatKey, FlatLines, Kind, read_lines

KEYS = {
    "id": FlatKey(Kind.NAME),
    "tokens": FlatKey(Kind.WHOLE),
    "at": FlatKey(Kind.WHOLE, 3),
    "weight": FlatKey(Kind.REAL),
    "blocks": FlatKey(Kind.IDS),
    "note": FlatKey(Kind.OTHER),
}
LINE_BYTES_MAX = 1 << 20


@pytest.fixture(autouse=True)
def any_line_may_be_odd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ODD_SHARE", 1)


def rows(*lines: str, keys: dict[str, FlatKey] = KEYS) -> tuple[list[tuple[Any, ...]], list[str]]:
    """The rows of the lines, and the odd lines."""
    found = FlatLines(keys, read_lines).table("\n".join(lines).encode(), LINE_BYTES_MAX)
    assert found is not None
    return found[0].rows(), [line.decode() for line in found[1]]


def test_values_by_kind() -> None:
    found, odd = rows(
        '{"id":"a","tokens":5,"at":1.5,"weight":0.25,"blocks":[7,8],"note":true}',
        '{"id": "a name of more than twelve bytes", "tokens": -5, "at": 7, "weight": 2e-1, "blocks": [ ], "note": ""}',
        '{"weight":1,"blocks":[0],"at":-0.001,"tokens":999999999999999999,"id":"é"}\r',
        '{"id":null,"tokens":null,"at":null,"weight":null,"blocks":null,"note":null}',
    )
    assert odd == []
    assert found == [
        ("a", 5, Decimal("1.500"), 0.25, [7, 8]),
        ("a name of more than twelve bytes", -5, Decimal("7.000"), 0.2, []),
        ("é", 999999999999999999, Decimal("-0.001"), 1.0, [0]),
        (None,) * 5,
    ]


@pytest.mark.parametrize(
    "line",
    [
        '{"id":"a","tokens":5}x',
        '{"id":"a","tokens":5},',
        '{"id":"a","tokens":5,}',
        '{"id":"a" "tokens":5}',
        '{"id":"a","tokens"5}',
        '{"id":"a","tokens":5',
        '{"id":"a","tokens":05}',
        '{"tokens":1.0}',  # a whole number to the strict rules, which say so
        '{"tokens":1e3}',
        '{"tokens":+1}',
        '{"tokens":-}',
        '{"tokens":"5"}',
        '{"tokens":true}',
        '{"tokens":1000000000000000000}',
        '{"at":0.0001}',
        '{"at":1.}',
        '{"at":1234567890123456.1}',
        '{"id":5}',
        '{"id":nul}',
        '{"id":"a\\n"}',
        '{"id":"a\tb"}',
        '{"id":"a}',
        '{"id":{}}',
        '{"id":["a"]}',
        '{"ID":"a"}',
        '{"id":"a","id":"a"}',
        '{"id":null,"id":"a"}',
        '{"other":1}',
        '{"weight":"1"}',
        '{"weight":NaN}',
        '{"weight":1.e5}',
        '{"weight":1e}',
        '{"weight":.5}',
        '{"blocks":[1,]}',
        '{"blocks":[,1]}',
        '{"blocks":[1 2]}',
        '{"blocks":[-1]}',
        '{"blocks":[null]}',
        '{"blocks":[01]}',
        '{"blocks":[1.0]}',
        '{"blocks":[1234567890123456789]}',
        '{"blocks":[1}',
        '{"blocks":1}',
        '{"note":[]}',
        '{"note":nan}',
        '{"note":tru}',
        '{"note":falsE}',
        '{"note":01}',
        "{}",
        '{ "id" : "a" } {',
    ],
)
def test_a_line_that_is_not_plainly_right_is_odd_and_its_neighbours_are_not(line: str) -> None:
    """Between two others: nothing of it stays in the rows beside it."""
    before = '{"id":"before it stands this","tokens":1,"at":0.1,"weight":1.5,"blocks":[1,2],"note":-1.5e+7}'
    after = '{"id":"after it stands that","tokens":2,"at":0.2,"weight":2.5,"blocks":[3],"note":0}'
    found, odd = rows(before, line, after)
    assert odd == [line]
    assert found == [
        ("before it stands this", 1, Decimal("0.100"), 1.5, [1, 2]),
        (None,) * 5,
        ("after it stands that", 2, Decimal("0.200"), 2.5, [3]),
    ]


@pytest.mark.parametrize("line", ["", " ", "[1]", "5", '"a"', ' {"id":"a"}', '\ufeff{"id":"a"}'])
def test_a_line_that_may_be_no_record_or_several_is_for_others(line: str) -> None:
    block = "\n".join(['{"id":"a"}', line, '{"id":"b"}']).encode()
    assert FlatLines(KEYS, read_lines).table(block, LINE_BYTES_MAX) is None


def test_too_many_odd_lines_are_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ODD_SHARE", 10)
    right, odd = '{"id":"a"}\n', '{"id":5}\n'
    flat = FlatLines(KEYS, read_lines)
    found = flat.table((right * 8 + odd * 2).encode(), LINE_BYTES_MAX)
    assert found is not None
    assert len(found[1]) == 2
    assert flat.table((right * 7 + odd * 3).encode(), LINE_BYTES_MAX) is None


def test_a_line_at_the_cap_is_for_others() -> None:
    flat = FlatLines(KEYS, read_lines)
    block = b'{"id":"abc"}\n{"id":"abcd"}\n'
    assert flat.table(block, 14) is not None
    assert flat.table(block, 13) is None


def test_keys_that_cannot_be_told_apart() -> None:
    name, ids = FlatKey(Kind.NAME), FlatKey(Kind.IDS)
    assert FlatLines.takes({"a": name, "é": ids})
    assert not FlatLines.takes({})
    assert not FlatLines.takes({'a"b': name})
    assert not FlatLines.takes({"a\\b": name})
    assert not FlatLines.takes({"a\nb": name})
    assert not FlatLines.takes({"a": ids, "b": ids})
    assert not FlatLines.takes({str(number): name for number in range(63)})


def test_a_key_that_begins_another() -> None:
    keys = {"a": FlatKey(Kind.WHOLE), "ab": FlatKey(Kind.WHOLE), "": FlatKey(Kind.WHOLE)}
    assert rows('{"ab":1,"a":2,"":3}', keys=keys) == ([(2, 1, 3)], [])


NAMES = st.text(st.characters(codec="utf-8", exclude_characters='"\\', min_codepoint=32), max_size=30)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "id": st.none() | NAMES,
            "tokens": st.none() | st.integers(-(10**18) + 1, 10**18 - 1),
            "weight": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "blocks": st.none() | st.lists(st.integers(0, 10**18 - 1), max_size=4),
            "note": st.none()
            | st.booleans()
            | NAMES
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False),
        },
    ).filter(bool),
    min_size=1,
    max_size=8,
)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(records=RECORDS, seed=st.integers(0, 2**32), tight=st.booleans())
def test_what_json_writes_is_read_as_it_was(records: list[dict[str, Any]], seed: int, tight: bool) -> None:
    """Keys in any order, spaces or none."""
    rng = random.Random(seed)
    shuffled = [dict(rng.sample(list(record.items()), len(record))) for record in records]
    separators = (",", ":") if tight else (" , ", " : ")
    found, odd = rows(*(json.dumps(record, ensure_ascii=False, separators=separators) for record in shuffled))
    assert odd == []
    names = ("id", "tokens", "at", "weight", "blocks")
    assert found == [tuple(record.get(name) for name in names) for record in records]


def test_compiled_and_plain_do_the_same() -> None:
    code = compiled(READ_LINES)
    assert code is not None
    rng = random.Random(7)
    lines = []
    for number in range(2000):
        record = {"id": "n" * rng.randrange(20), "tokens": number, "blocks": list(range(rng.randrange(4)))}
        record |= {
            "at": rng.randrange(10**6) / 1000,
            "weight": rng.random(),
            "note": rng.choice([None, "x", 1.5, False]),
        }
        line = json.dumps(dict(rng.sample(list(record.items()), rng.randrange(1, 7))))
        lines.append(line.replace(rng.choice('",:1}'), rng.choice("0 \\x"), 1) if rng.random() < 0.2 else line)
    block = "\n".join(lines).encode()
    one, other = (FlatLines(KEYS, read).table(block, LINE_BYTES_MAX) for read in (code, read_lines))
    assert one is not None
    assert other is not None
    assert 100 < len(one[1]) < 500
    assert one[1] == other[1]
    pl.testing.assert_frame_equal(one[0], other[0])
