"""Whole columns and single records give the same, whatever is wrong with a log."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fairreplay.errors import BadInputError
from fairreplay.trace import blocks as blocks_module
from fairreplay.trace import containers as containers_module
from fairreplay.trace import flat_lines as flat_lines_module
from fairreplay.trace import pieces as pieces_module
from fairreplay.trace import read as read_module
from fairreplay.trace.containers import LINE_BYTES_MAX
from fairreplay.trace.read import SourceRead, SourceReader, read_source
from fairreplay.trace.rules import Reading
from fairreplay.trace.schema import check_frame

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many records went one by one."""
    counts = [0]
    real = SourceReader._judged

    def counting(self: SourceReader, reads: Any) -> Any:
        held = list(reads)
        counts[0] += len(held)
        return real(self, iter(held))

    monkeypatch.setattr(SourceReader, "_judged", counting)
    return iter([counts])


def strictly(path: Path, reading: Reading, wanted: str = "auto") -> SourceRead | str:
    """Every record one by one, in one run over the file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_module, "is_plain", lambda *_: False)
        return tried(path, reading, wanted)


def tried(path: Path, reading: Reading, wanted: str = "auto") -> SourceRead | str:
    try:
        return read_source(path, reading, wanted)
    except BadInputError as error:
        return str(error)


def as_a_long_log(path: Path, reading: Reading, wanted: str = "auto") -> SourceRead | str:
    """With what is compiled for long logs, as plain Python; every other line may be odd."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "LOADED_FROM_BYTES", 0)
        patch.setattr(blocks_module, "COMPILED_FROM_BYTES", 0)
        patch.setattr(blocks_module, "compiled", lambda routine: routine.python())
        patch.setattr(flat_lines_module, "ODD_SHARE", 2)
        return tried(path, reading, wanted)


def check(path: Path, reading: Reading | None = None, wanted: str = "auto") -> SourceRead | str:
    """All ways give the same rows, rejects and facts, or the same refusal."""
    reading = reading or Reading()
    strict = strictly(path, reading, wanted)
    check_same(as_a_long_log(path, reading, wanted), strict)
    return check_same(tried(path, reading, wanted), strict)


def check_same(fast: SourceRead | str, strict: SourceRead | str) -> SourceRead | str:
    if isinstance(strict, str) or isinstance(fast, str):
        assert strict == fast
        return strict
    check_frame(fast.frame)
    assert fast.frame.to_dicts() == strict.frame.to_dicts()
    assert fast.rejects == strict.rejects
    assert facts(fast) == facts(strict)
    assert fast.rows == fast.frame.height + len(fast.rejects)
    return fast


def facts(read: SourceRead) -> dict[str, Any]:
    others = ("frame", "rejects", "format", "applied")
    return {name: value for name, value in vars(read).items() if name not in others}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few lines are many blocks, and their halves."""
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 1500)
    monkeypatch.setattr(blocks_module, "SMALL_BYTES", 100)
    monkeypatch.setattr(pieces_module, "PARQUET_ROWS", 7)
    monkeypatch.setattr(pieces_module, "_SMALL_ROWS", 2)


# -- what goes fast ---------------------------------------------------------------------------------------------------

REAL = [
    "azure2023/AzureLLMInferenceTrace_code.head5000.csv",
    "azure2024/AzureLLMInferenceTrace_conv_1week.csv",
    "vidur/splitwise_conv.head2000.csv",
    "mooncake/synthetic_trace.head300.jsonl",
    "vllm_requests/RTXPRO6000_Llama-3.1-8B.requests.jsonl",
    *(f"lmbenchmark/{path.name}" for path in sorted((DATA / "lmbenchmark").iterdir())),
]


@pytest.mark.parametrize("name", REAL)
def test_real_logs_are_the_same_both_ways(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 20_000)
    assert not isinstance(check(DATA / name), str)


@pytest.mark.parametrize("name", [name for name in REAL if "2024" not in name])
def test_clean_logs_go_by_columns(counted: Iterator[list[int]], name: str) -> None:
    (counts,) = counted
    assert read_source(DATA / name, Reading()).format.name
    assert counts[0] == 0


# -- native JSON lines ------------------------------------------------------------------------------------------------

T0 = 1772438400
TIMES = ("arrived_at", "scheduled_at", "first_token_at", "finished_at")


def spelling(rng: random.Random, offset_us: int, kind: str) -> Any:
    instant_us = T0 * 10**6 + offset_us
    iso = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant_us)).isoformat()
    return {
        "iso": iso.replace("+00:00", "Z"),
        "iso naive": iso.removesuffix("+00:00"),
        "ms": instant_us // 1000,
        "us": instant_us,
        "ns": instant_us * 1000 + rng.choice([0, 499, 500, 501]),
        "s": Decimal(instant_us).scaleb(-6),
        "s long": Decimal(instant_us).scaleb(-6) + Decimal(rng.choice(["0.0000005", "0.00000049", "0.0000015", "0"])),
    }[kind]


KINDS = {"iso": "", "iso naive": "", "ms": "_ms", "us": "_us", "ns": "_ns", "s": "_s", "s long": "_s"}


def native_record(rng: random.Random, kind: str, number: int) -> dict[str, Any]:
    marks = [number * 10_000 + rng.randrange(5000)]
    for _ in range(3):
        marks.append(marks[-1] + rng.randrange(3_000_000))
    record: dict[str, Any] = {"request_id": f"r{number}", "tenant": rng.choice("ab"), "type": "chat", "model": "m"}
    record |= {
        name + KINDS[kind]: spelling(rng, mark, kind)
        for name, mark in zip(TIMES, marks, strict=True)
        if name == "arrived_at" or rng.random() < 0.9
    }
    record |= {"prompt_tokens": rng.randrange(1, 9000), "output_tokens": rng.randrange(1, 900)}
    if rng.random() < 0.3:
        record |= {"priority": rng.randrange(-5, 5), "preemptions": 0, "weight": rng.choice([1, 0.1, 2.5])}
    if rng.random() < 0.3:
        record |= {"prefix_ids": [rng.randrange(2**64) for _ in range(rng.randrange(3))], "session_id": "é\n"}
    return record


class Literal(str):
    """JSON as it is to stand in the line."""


def as_line(record: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {as_json(value)}" for key, value in record.items()) + "}"


def as_json(value: Any) -> str:
    if isinstance(value, Literal | Decimal):
        return str(value)
    return json.dumps(value)


VALUES = [
    *(Literal(text) for text in ("NaN", "Infinity", "76.0", "76.5", "1e2", "1e30", "-1", "0", "-0", "0.0", "7" * 5000)),
    *(Literal(text) for text in ("12345678901234567890123", "1e-25", "1.00", "-0.5", "1e400", "true", "null", "[]")),
    *(Literal(text) for text in ('"\\ud83d"', '"\\ud83d\\ude00"', '"\\u0000"', '{"a": [1]}', "[1, null]", "[1.0]")),
    *("", "-", "512", " 512", "76.0", "+5", "1e3", "x", "2026-03-02", "2026-03-02T08:00", "2026-03-02T08Z", "rejected"),
    *(
        "2026-03-02T08:00:00.1234567Z",
        "2026-03-02T08:00:60Z",
        "2026-03-02 08:00:00,5+05:30",
        "0",
        "embed",
        "batch_embed",
    ),
    *(Literal(str(T0)), Literal(str(T0 * 1000)), Literal("99999999999"), Literal("3000000000")),
    *("embed", "batch_embed", "failed", "cancelled", "ok", "unfinished", "long", "２"),
]
SPOILT = [
    *("{", "x", "[]", "17", '{"a"', "{}", "{}{}", "\x00", '"', "", "   ", "\t", "{" * 70 + "}" * 70),
    *(
        '{"data": [{"arrived_at_ms": 5}, 7]}',
        '{"data": 5}',
        "\ufeff{}",
        '{"a": 1, "a": 2}',
        '{"note": "x\x01"}',
        "[{}]",
    ),
    '{"a":' * 1500 + "1" + "}" * 1500,
]


@st.composite
def native_logs(draw: st.DrawFn) -> bytes:
    rng = random.Random(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(list(KINDS)))
    rows = draw(st.integers(1, 40))
    records = [native_record(rng, kind, number) for number in range(rows)]
    for _ in range(draw(st.integers(0, 4))):
        record = records[draw(st.integers(0, rows - 1))]
        key = draw(
            st.sampled_from([*record, "note", "seq", "status", "cached_tokens", "recomputed_tokens", "arrived_at_s"])
        )
        if draw(st.booleans()) or key not in record:
            record[key] = draw(st.sampled_from(VALUES))
        else:
            del record[key]
    lines = [as_line(record) for record in records]
    for _ in range(draw(st.integers(0, 2))):
        lines.insert(draw(st.integers(1, len(lines))), draw(st.sampled_from([*SPOILT, lines[0], lines[-1][:-9]])))
    end = draw(st.sampled_from(["\n", "\r\n", "\n\n", "\n \n"]))
    content = end.join(lines).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        content = content.replace(b"chat", b"ch\xffat", 1)
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + content + draw(st.sampled_from([b"", b"\n"]))


PROPERTY = settings(
    derandomize=True,
    max_examples=40,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
READINGS = st.sampled_from(
    [
        Reading(),
        Reading(zone=ZoneInfo("America/New_York"), zone_name="America/New_York"),
        Reading(max_skew_us=2_000_000, tenant="t", type_="embedding", model="m"),
        Reading(t0_us=Decimal("1772438400000000.5")),
    ]
)


@PROPERTY
@given(content=native_logs(), reading=READINGS)
def test_native_lines_are_the_same_both_ways(tmp_path: Path, content: bytes, reading: Reading) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    check(path, reading)


@pytest.mark.parametrize("kind", KINDS)
def test_clean_native_lines_go_by_columns(tmp_path: Path, counted: Iterator[list[int]], kind: str) -> None:
    (counts,) = counted
    rng = random.Random(kind)
    lines = [as_line(native_record(rng, kind, number)) for number in range(60)]
    (tmp_path / "log").write_text("\n".join(lines))
    result = read_source(tmp_path / "log", Reading())
    assert result.frame.height == 60
    assert counts[0] <= 15  # rows whose marks fall together are for the strict rules


@pytest.mark.parametrize("kind", ["s", "ms", "iso"])
@pytest.mark.parametrize(
    "name", ["first_token_at", "prompt_tokens", "preemptions", "tenant", "weight", "prefix_ids", "note"]
)
def test_strange_values_are_judged_by_the_strict_rules(tmp_path: Path, name: str, kind: str) -> None:
    rng = random.Random(1)
    values = [*VALUES, *map(Literal, ("9" * 39, "0.12345678901234567890", "1e17", "-1e-5", '"1e-999999999999"'))]
    records = [native_record(rng, kind, number) for number in range(2 * len(values))]
    for record, value in zip(records[::2], values, strict=True):
        record[name + (KINDS[kind] if name in TIMES else "")] = value
    (tmp_path / "log").write_text("\n".join(map(as_line, records)))
    check(tmp_path / "log")


@pytest.mark.parametrize("last", ["null", "9", '"9"', "9.0"])
@pytest.mark.parametrize("key", ["prompt_tokens", "note", "tenant"])
def test_a_key_twice_counts_the_last_time(tmp_path: Path, key: str, last: str) -> None:
    """Polars takes the first."""
    row = {"tenant": "a", "arrived_at_ms": T0 * 1000, "prompt_tokens": 5, "output_tokens": 1}
    line = json.dumps(row)
    short = json.dumps({name: value for name, value in row.items() if name != "tenant"})
    (tmp_path / "log").write_text("\n".join([line, line.replace("}", f', "{key}": {last}}}'), short]))
    result = check(tmp_path / "log")
    assert not isinstance(result, str)
    assert result.ignored_columns == (("note",) if key == "note" else ())


@pytest.mark.parametrize("name", ["plain", "null: x", "a:b", "{", 'quo"te', "null", "\\", "[x]"])
def test_names_that_look_like_syntax_are_names(tmp_path: Path, name: str) -> None:
    row = {"tenant": name, "arrived_at_ms": T0 * 1000, "prompt_tokens": 5, "output_tokens": 1}
    (tmp_path / "log").write_text("\n".join(map(json.dumps, [row, row | {"tenant": "b"}])))
    result = check(tmp_path / "log")
    assert not isinstance(result, str)
    assert result.frame["tenant"].to_list() == [name, "b"]


# -- CSV --------------------------------------------------------------------------------------------------------------

CELLS = [
    *(
        "",
        "-",
        "-1",
        "0",
        "0.0",
        "76",
        "76.0",
        "76.50",
        " 76",
        "1e3",
        "+7",
        "nan",
        "inf",
        "x",
        '"76"',
        '"a,b"',
        '"7',
        '7"',
    ),
    *(
        "1746575327.5",
        "1746575327.12345678901234567",
        "1746575327500",
        "9" * 30,
        "0x1F",
        "1_0",
        "\x00",
        "é",
        "1\r",
        "２",
    ),
]
HEADER = "prompt_tokens,generation_tokens,ttft,generation_time,user_id,question_id,launch_time,finish_time"


@st.composite
def lmbench_logs(draw: st.DrawFn) -> bytes:
    rng = random.Random(draw(st.integers(0, 2**32)))
    digits = draw(st.sampled_from([0, 3, 7, 16]))
    rows = []
    for number in range(draw(st.integers(1, 40))):
        arrival, ttft = 1746575327 + rng.randrange(100) + rng.random(), rng.random()
        times = [f"{item:.{digits}f}" for item in (ttft, 1.5, arrival, arrival + ttft + 1.5 + rng.random())]
        tokens = [f"{rng.randrange(1, 5000)}{rng.choice(['', '.0'])}" for _ in range(2)]
        rows.append([*tokens, times[0], times[1], str(number % 5), str(number), times[2], times[3]])
    for _ in range(draw(st.integers(0, 4))):
        row = rows[draw(st.integers(0, len(rows) - 1))]
        row[draw(st.integers(0, 7))] = draw(st.sampled_from(CELLS))
    lines = [HEADER, *(",".join(row) for row in rows)]
    for _ in range(draw(st.integers(0, 2))):
        spoilt = st.sampled_from(["", " ", "a", "1,2", '"', '1,2,"3', ",,,,,,,", "1" * 300, lines[-1] + ",", '""'])
        lines.insert(draw(st.integers(1, len(lines))), draw(spoilt))
    content = draw(st.sampled_from(["\n", "\r\n"])).join(lines).encode()
    if draw(st.integers(0, 9)) == 0:
        content = content[:200] + b"\xff" + content[200:]
    return content + draw(st.sampled_from([b"", b"\n"]))


@PROPERTY
@given(content=lmbench_logs(), reading=READINGS)
def test_csv_lines_are_the_same_both_ways(tmp_path: Path, content: bytes, reading: Reading) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(content)
    check(path, reading)


def test_an_open_quote_does_not_slow_the_rest_of_the_file(
    tmp_path: Path, counted: Iterator[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (counts,) = counted
    monkeypatch.setattr(containers_module, "LINE_BYTES_MAX", 1000)
    lines = [f"2023-11-16 18:17:03.{index:07d},{index + 1},1" for index in range(1000)]
    lines[500] = '2023-11-16 18:17:03,"5,1'
    (tmp_path / "log.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    result = read_source(tmp_path / "log.csv", Reading())
    assert [(reject.row, reject.reason) for reject in result.rejects] == [(500, "unparsable_record")]
    assert result.frame.height == 999
    assert 1 < counts[0] < 200


# -- Parquet ----------------------------------------------------------------------------------------------------------


def instants(kind: pa.DataType) -> st.SearchStrategy[Any]:
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    usual = st.integers(T0 * scale, (T0 + 100) * scale)
    return st.one_of(usual, usual, usual, st.none(), st.sampled_from([0, -1, 2**40]))


NUMBERS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), st.one_of(st.integers(1, 5000), st.none(), st.sampled_from([0, -1, 2**40, -(2**63)]))),
    "uint8": (pa.uint8(), st.integers(0, 255)),
    "uint64": (pa.uint64(), st.one_of(st.integers(1, 5000), st.just(2**64 - 1))),
    "double": (
        pa.float64(),
        st.one_of(st.integers(1, 5000).map(float), st.floats(), st.sampled_from([76.5, float(T0), -0.0])),
    ),
    "float": (pa.float32(), st.one_of(st.integers(1, 5000).map(float), st.floats(width=32))),
    "decimal": (pa.decimal128(20, 3), st.sampled_from([*map(Decimal, range(1, 50)), Decimal("1.5"), None])),
    "wide decimal": (pa.decimal128(38, 30), st.integers(1, 5000).map(Decimal)),
    "text": (
        pa.string(),
        st.one_of(st.integers(1, 5000).map(str), st.sampled_from(["", "-", "76.0", "1e2", "x", "+4"])),
    ),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["5", "76.0", "x", None])),
    "bool": (pa.bool_(), st.booleans()),
    "null": (pa.null(), st.none()),
    "binary": (pa.binary(), st.just(b"5")),
    "list": (pa.list_(pa.int64()), st.just([5])),
}
TEXTS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), st.sampled_from(["a", "b", "", "-", None, "é", "\x00"])),
    "large": (pa.large_string(), st.sampled_from(["a", None])),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "", None])),
    "int": (pa.int32(), st.integers(-5, 5)),
    "double": (pa.float64(), st.sampled_from([1.0, 1.5])),
    "bool": (pa.bool_(), st.booleans()),
    "struct": (pa.struct([("a", pa.int64())]), st.just({"a": 1})),
}
IDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "uint64": (pa.list_(pa.uint64()), st.sampled_from([[1, 2**64 - 1], [], None])),
    "int64": (pa.large_list(pa.int64()), st.sampled_from([[1], [-1], [None], None])),
    "double": (pa.list_(pa.float64()), st.just([1.0])),
}
WALLS = {
    f"{unit} {zone}": (pa.timestamp(unit, zone), instants(pa.timestamp(unit, zone)))
    for unit in ("s", "ms", "us", "ns")
    for zone in (None, "UTC", "America/New_York", "+02:00")
} | {"date": (pa.date32(), st.just(20000)), "text": (pa.string(), st.just("2026-03-02T08:00:00.123456Z"))}


@st.composite
def parquet_tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(1, 30))
    columns: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {}
    wall = draw(st.booleans())
    for name in TIMES[: draw(st.integers(1, 4))]:
        if wall:
            columns[name] = WALLS[draw(st.sampled_from(sorted(WALLS)))]
        else:
            kind = draw(st.sampled_from(["int64", "double", "decimal", "text", "uint64"]))
            place = NUMBERS[kind][0]
            columns[name + "_s"] = (
                place,
                st.integers(T0, T0 + 9).map(float if kind == "double" else str if kind == "text" else int),
            )
    for name in ("prompt_tokens", "output_tokens"):
        columns[name] = NUMBERS[draw(st.sampled_from(["int64", "int64", *NUMBERS]))]
    if draw(st.booleans()):
        columns["preemptions"] = NUMBERS[draw(st.sampled_from(sorted(NUMBERS)))]
        columns["weight"] = NUMBERS[draw(st.sampled_from(sorted(NUMBERS)))]
    for name in ("tenant", "request_id"):
        columns[name] = TEXTS[draw(st.sampled_from(["text", *TEXTS]))]
    if draw(st.booleans()):
        columns["prefix_ids"] = IDS[draw(st.sampled_from(sorted(IDS)))]
    columns["note"] = TEXTS[draw(st.sampled_from(sorted(TEXTS)))]
    arrays = {}
    for name, (kind, values) in columns.items():
        cells = draw(st.lists(values, min_size=rows, max_size=rows))
        if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
            arrays[name] = pa.array(cells, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)
        elif pa.types.is_decimal(kind):
            arrays[name] = pa.array([None if cell is None else Decimal(cell) for cell in cells], kind)
        else:
            arrays[name] = pa.array(cells, kind)
    return pa.table(arrays)


@PROPERTY
@given(table=parquet_tables(), reading=READINGS, group=st.sampled_from([3, 8, 100]))
def test_parquet_is_the_same_both_ways(tmp_path: Path, table: pa.Table, reading: Reading, group: int) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(table, path, row_group_size=group)
    check(path, reading, "native")


def test_a_right_parquet_file_goes_by_columns(tmp_path: Path, counted: Iterator[list[int]]) -> None:
    (counts,) = counted
    rows = 50
    frame = pl.DataFrame(
        {
            "request_id": [f"r{index}" for index in range(rows)],
            "tenant": pl.Series(["a", "b"] * 25, dtype=pl.Categorical),
            "arrived_at_ns": [T0 * 10**9 + index * 10**6 + 500 for index in range(rows)],
            "finished_at_s": [T0 + 5 + index / 7 for index in range(rows)],
            "prompt_tokens": pl.Series([Decimal("76.0")] * rows, dtype=pl.Decimal(10, 1)),
            "output_tokens": [5.0] * rows,
        }
    )
    frame.write_parquet(tmp_path / "log.parquet")
    result = check(tmp_path / "log.parquet")
    assert not isinstance(result, str)
    assert result.frame["prompt_tokens"].to_list() == [76] * rows
    counts[0] = 0
    read_source(tmp_path / "log.parquet", Reading())
    assert counts[0] == 0


# -- the file as a whole ----------------------------------------------------------------------------------------------


def test_mixed_units_are_found_across_blocks_and_name_the_same_numbers(tmp_path: Path) -> None:
    rows = [{"arrived_at_s": T0 + index, "prompt_tokens": 1, "output_tokens": 1} for index in range(200)]
    rows[150]["arrived_at_s"] *= 1000
    (tmp_path / "log").write_text("\n".join(map(json.dumps, rows)))
    message = check(tmp_path / "log")
    assert isinstance(message, str)
    assert "column arrived_at_s mixes magnitudes (1772438400 and 1772438550000)" in message


def test_two_clocks_name_the_first_row_that_shows_them(tmp_path: Path) -> None:
    rows = [
        {"arrived_at_s": T0 + index, "finished_at_s": T0 + 300, "prompt_tokens": 1, "output_tokens": 1}
        for index in range(200)
    ]
    rows[150]["finished_at_s"] += 10**9
    (tmp_path / "log").write_text("\n".join(map(json.dumps, rows)))
    message = check(tmp_path / "log")
    assert isinstance(message, str)
    assert "row 150: arrived_at_s and finished_at_s are 31 years apart" in message


def test_lines_beyond_the_cap_stand_between_their_neighbours(tmp_path: Path) -> None:
    line = json.dumps({"arrived_at_s": T0, "prompt_tokens": 1, "output_tokens": 1})
    long = [f'{{"a": "{"x" * size}"}}' for size in (LINE_BYTES_MAX - 9, LINE_BYTES_MAX - 8, LINE_BYTES_MAX, 3 << 20)]
    lines = [line, *(part for item in long for part in (item, line))]
    (tmp_path / "log.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    result = check(tmp_path / "log.gz")
    assert not isinstance(result, str)
    assert [reject.reason for reject in result.rejects] == ["missing_time", *["unparsable_record"] * 3]
    assert (result.frame.height, [reject.row for reject in result.rejects]) == (5, [1, 3, 5, 7])


def test_a_log_that_ends_in_the_middle_names_the_byte_after_whole_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 50_000)
    rng = random.Random(2)
    lines = [as_line(native_record(rng, "ms", number)) for number in range(3000)]
    whole = gzip.compress("\n".join(lines).encode())
    (tmp_path / "log.gz").write_bytes(whole[:-20])
    with pytest.raises(BadInputError, match=f"ends in the middle of its data at byte {len(whole) - 20}"):
        read_source(tmp_path / "log.gz", Reading())


def test_a_long_text_that_many_rows_share_is_held_once(tmp_path: Path) -> None:
    """A small Parquet file can stand for many gigabytes: here 64 KiB of text in each of 30,000 rows."""
    rows = 30_000
    table = pa.table(
        {
            "arrived_at_s": pa.array(range(T0, T0 + rows)),
            "prompt_tokens": pa.array([0] * rows),
            "output_tokens": pa.array([1] * rows),
            "note": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * (1 << 16)]),
        }
    )
    pq.write_table(table, tmp_path / "log.parquet")
    assert (tmp_path / "log.parquet").stat().st_size < 1 << 20
    reader = SourceReader(tmp_path / "log.parquet", Reading())
    first = next(iter(reader.blocks()))
    assert first.rejects[0].reason == "zero_prompt"
