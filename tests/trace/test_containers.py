"""Files in every wrapping give the same records; damage is one line that names the place."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
import zstandard

from fairreplay.errors import BadInputError
from fairreplay.trace.containers import LINE_BYTES_MAX
from fairreplay.trace.read import SourceRead, read_source
from fairreplay.trace.rules import Reading
from fairreplay.trace.schema import check_frame

ROWS = [
    {
        "request_id": f"r{index}",
        "tenant": "a,b",
        "arrived_at_ms": 1772438400000 + index,
        "prompt_tokens": 9,
        "output_tokens": 1,
    }
    for index in range(5)
]
LINES = [json.dumps(row).encode() for row in ROWS]


def read(path: Path, content: bytes | None = None, wanted: str = "auto") -> SourceRead:
    if content is not None:
        path.write_bytes(content)
    result = read_source(path, Reading(), wanted)
    check_frame(result.frame)
    assert result.rows == result.frame.height + len(result.rejects)
    return result


PLAIN = b"\n".join(LINES)
CONTENTS = {
    "no last newline": PLAIN,
    "last newline": PLAIN + b"\n",
    "CRLF and blank lines": b"\r\n\r\n".join(LINES) + b"\r\n\r\n",
    "BOM": b"\xef\xbb\xbf" + PLAIN,
    "gzip": gzip.compress(PLAIN),
    "gzip of two members": gzip.compress(PLAIN[:100]) + gzip.compress(PLAIN[100:]),
    "zstd": zstandard.compress(PLAIN),
    "zstd of two frames": zstandard.compress(PLAIN[:100]) + zstandard.compress(PLAIN[100:]),
    "gzip with a BOM": gzip.compress(b"\xef\xbb\xbf" + PLAIN),
    "array": json.dumps(ROWS).encode(),
    "pretty array": json.dumps(ROWS, indent=2).encode(),
    "array on lines": b"[" + b",\n".join(LINES) + b"]",
    "API page": json.dumps({"data": ROWS, "meta": {"page": 1}}).encode(),
    "pretty API page": json.dumps({"data": ROWS, "meta": {"page": 1}}, indent=1).encode(),
    "concatenated on one line": b"".join(LINES),
    "concatenated, pretty": b"\n".join(json.dumps(row, indent=2).encode() for row in ROWS),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_every_wrapping_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    result = read(tmp_path / "log", CONTENTS[name])
    assert result.format.name == "native"
    assert result.frame["request_id"].to_list() == [row["request_id"] for row in ROWS]
    assert result.frame["seq"].to_list() == [0, 1, 2, 3, 4]
    assert result.frame["tenant"].unique().to_list() == ["a,b"]
    assert not result.rejects


def test_one_pretty_object_is_one_record(tmp_path: Path) -> None:
    assert read(tmp_path / "log", json.dumps(ROWS[0], indent=2).encode()).rows == 1


def test_parquet_with_typed_times(tmp_path: Path) -> None:
    instants = [datetime(2026, 3, 2, 8, 0, 0, micros, UTC) for micros in (1, 2)]
    frame = pl.DataFrame(
        {
            "arrived_at": pl.Series(instants).dt.cast_time_unit("ns"),
            "first_token_at": pl.Series([instants[1], None]),
            "finished_at": pl.Series(["2026-03-02T08:00:01Z", None]),
            "prompt_tokens": pl.Series([3, 4], dtype=pl.UInt8),
            "output_tokens": [1.0, 2.0],
            "prefix_ids": pl.Series([[1, 2], None], dtype=pl.List(pl.UInt64)),
            "tenant": pl.Series(["a", "b"], dtype=pl.Categorical),
            "extra": [1, 2],
        }
    )
    frame.write_parquet(tmp_path / "log.parquet")
    result = read(tmp_path / "log.parquet")
    assert result.frame["arrived_at"].to_list() == instants
    assert result.frame["first_token_at"].to_list() == [instants[1], None]
    assert result.frame["finished_at"].to_list() == [datetime(2026, 3, 2, 8, 0, 1, tzinfo=UTC), None]
    assert result.frame["output_tokens"].to_list() == [1, 2]
    assert result.frame["prefix_ids"].to_list() == [[1, 2], None]
    assert result.frame["tenant"].to_list() == ["a", "b"]
    assert result.ignored_columns == ("extra",)


def test_an_empty_parquet_file_of_the_schema_is_no_rows(tmp_path: Path) -> None:
    pl.DataFrame(schema={"arrived_at_s": pl.Int64, "prompt_tokens": pl.Int64, "output_tokens": pl.Int64}).write_parquet(
        tmp_path / "log.parquet"
    )
    assert read(tmp_path / "log.parquet").rows == 0


ZIPPED = gzip.compress(PLAIN)
REFUSED = {
    "empty": (b"", "empty file"),
    "blank lines": (b"\n\r\n\n", "empty file"),
    "gzip of nothing": (gzip.compress(b""), "empty file"),
    "truncated gzip": (ZIPPED[:-1], f"gzip ends in the middle of its data at byte {len(ZIPPED) - 1}"),
    "gzip cut early": (ZIPPED[:20], "gzip ends in the middle of its data at byte 20"),
    "truncated zstd": (zstandard.compress(PLAIN)[:-1], "zstd ends in the middle of its data"),
    "damaged gzip": (ZIPPED[:30] + b"\xff\xff\xff" + ZIPPED[33:], "gzip damaged"),
    "Parquet without footer": (b"PAR1" + b"x" * 100, "Parquet without its footer, ends at byte 104"),
    "Parquet with a wrong footer": (b"PAR1" + b"x" * 100 + b"PAR1", "damaged Parquet"),
    "broken array": (b'[\n{"a": 1},\n', "not JSON"),
    "broken object": (b'{"a": 1', "not JSON"),
    "numbers": (b"[1, 2, 3]", "no known format"),
    "text": (b"hello", "no known format"),
    "CSV with a column twice": (b"a,b,a\n1,2,3\n", "column a stands twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, name: str) -> None:
    content, message = REFUSED[name]
    with pytest.raises(BadInputError, match=message) as caught:
        read(tmp_path / "log", content)
    assert str(tmp_path / "log") in str(caught.value)
    assert "\n" not in str(caught.value)


BAD_LINES = {
    "no JSON": b"{bad",
    "text": b"[2026-03-02][info] starting",
    "number": b"17",
    "array": b"[1]",
    "not UTF-8": b'{"tenant": "\xff"}',
    "half a surrogate pair": LINES[0].replace(b'"a,b"', b'"\\ud83d"'),
    "nested too deeply": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "beyond the line cap": LINES[0].replace(b'"a,b"', b'"' + b"x" * LINE_BYTES_MAX + b'"'),
    "huge exponent": LINES[0].replace(b"9,", b"1e99999999999999999999,"),
    "5000 digits": LINES[0].replace(b"9,", b"9" * 5000 + b","),
}


@pytest.mark.parametrize("name", BAD_LINES)
@pytest.mark.parametrize("first", [True, False])
def test_a_bad_line_is_one_reject_and_hides_no_other(tmp_path: Path, name: str, first: bool) -> None:
    """polars#10041: rows after a bad one were dropped."""
    lines = [BAD_LINES[name], *LINES] if first else [*LINES[:2], BAD_LINES[name], *LINES[2:]]
    result = read(tmp_path / "log", b"\n".join(lines) + b"\n")
    assert result.frame["request_id"].to_list() == [row["request_id"] for row in ROWS]
    (reject,) = result.rejects
    assert reject.row == (0 if first else 2)
    number = name in ("huge exponent", "5000 digits")
    assert (reject.reason, reject.column) == (
        ("unparsable_number", "prompt_tokens") if number else ("unparsable_record", None)
    )
    assert reject.line
    assert len(reject.line) < LINE_BYTES_MAX


def test_a_long_number_in_an_unknown_column_is_no_fault(tmp_path: Path) -> None:
    line = LINES[0].replace(b"{", b'{"note": ' + b"9" * 5000 + b", ")
    assert not read(tmp_path / "log", line + b"\n").rejects


def test_a_whole_surrogate_pair_is_text(tmp_path: Path) -> None:
    assert read(tmp_path / "log", LINES[0].replace(b'"a,b"', b'"\\ud83d\\ude00"')).frame["tenant"].to_list() == ["😀"]


HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
CSV_ROW = b"2023-11-16 18:17:03.9799600,%d,1"


def csv_lines(count: int) -> list[bytes]:
    return [CSV_ROW % (index + 1) for index in range(count)]


@pytest.mark.parametrize(
    "bad", [b'2023-11-16 18:17:03,"5,1', b"2023-11-16 18:17:03,5", b"a,b,c,d", b'x"y', b"\xff,1,1", b"x" * (2 << 20)]
)
def test_a_bad_csv_line_hides_no_other(tmp_path: Path, bad: bytes) -> None:
    """An open quote would swallow every line after it."""
    lines = csv_lines(200)
    result = read(tmp_path / "log.csv", HEADER + b"\r\n".join([*lines[:100], bad, *lines[100:]]))
    assert result.frame["prompt_tokens"].to_list() == list(range(1, 201))
    assert [(reject.row, reject.reason) for reject in result.rejects] == [(100, "unparsable_record")]


def test_a_quoted_cell_may_hold_commas_quotes_and_line_ends(tmp_path: Path) -> None:
    header = b"prompt_tokens,generation_tokens,ttft,user_id,launch_time,finish_time\n"
    result = read(tmp_path / "log.csv", header + b'5,1,0.5,"a,""b""\nc",1746575327.5,1746575329\n')
    assert result.frame["tenant"].to_list() == ['a,"b"\nc']


def test_a_128_kib_cell_is_read(tmp_path: Path) -> None:
    """Python's csv module stops at 131,072 characters unless told otherwise."""
    header = b"note,TIMESTAMP,ContextTokens,GeneratedTokens\n"
    note = b'"[' + b"1.5, " * 40_000 + b']"'
    result = read(tmp_path / "log.csv", header + note + b",2023-11-16 18:17:03,5,1\n")
    assert (result.frame.height, result.ignored_columns) == (1, ("note",))


def test_a_gzip_bomb_of_one_line_is_one_reject(tmp_path: Path) -> None:
    bomb = gzip.compress(LINES[0] + b"\n" + b'{"a":"' + b"x" * (64 << 20) + b'"}\n' + LINES[1])
    result = read(tmp_path / "log.gz", bomb)
    assert (result.frame.height, len(result.rejects)) == (2, 1)


def test_a_gzip_bomb_at_the_head_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairreplay.trace.containers.DOCUMENT_BYTES_MAX", 4 << 20)
    with pytest.raises(BadInputError, match="more than 4194304 bytes"):
        read(tmp_path / "log.gz", gzip.compress(b'{"a":"' + b"x" * (8 << 20) + b'"}\n'))


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(PLAIN)
    real = read_source.__globals__["detect"]

    def detect_and_append(*args: object) -> object:
        path.write_bytes(PLAIN + b"\n" + LINES[0])
        return real(*args)

    monkeypatch.setattr("fairreplay.trace.read.detect", detect_and_append)
    with pytest.raises(BadInputError, match="changed while it was read"):
        read(path)


def test_a_restarted_clock_is_named(tmp_path: Path) -> None:
    rows = [
        dict(ROWS[0], request_id=str(hour), arrived_at_ms=1772438400000 + hour * 3_600_000)
        for hour in (0, 5, 6, 2, 1, 0)
    ]
    result = read(tmp_path / "log", "\n".join(map(json.dumps, rows)).encode())
    assert result.runs == ("row 3: 2026-03-02T10:00:00.000000Z",)  # an hour back exactly is no restart
    assert result.out_of_order == 3


PAGES = {
    "litellm": {"data": [], "total": 0, "page": 1, "page_size": 50, "total_pages": 0},
    "langfuse": {"data": [], "meta": {"page": 1, "totalItems": 0}},
}


@pytest.mark.parametrize("name", PAGES)
def test_an_empty_page_of_an_api_is_no_rows(tmp_path: Path, name: str) -> None:
    path = tmp_path / "page.json"
    path.write_text(json.dumps(PAGES[name], indent=1))
    read = read_source(path, Reading())
    assert (read.format.name, read.records, read.ignored_columns) == (name, 0, ())
    assert read.assumptions == ("there is no record in it",)


@pytest.mark.parametrize("content", ["[]", '{"data": []}', "[\n]\n"])
def test_an_empty_document_is_what_a_person_says(tmp_path: Path, content: str) -> None:
    path = tmp_path / "page.json"
    path.write_text(content)
    assert read_source(path, Reading(), "litellm").records == 0
    with pytest.raises(BadInputError, match="holds no record, so nothing tells its format; say which with --format"):
        read_source(path, Reading())


def test_an_empty_page_among_others_is_no_record(tmp_path: Path) -> None:
    row = {"id": "o", "traceId": "t", "startTime": "2026-03-02T08:00:00Z", "endTime": "2026-03-02T08:00:01Z"}
    row |= {"type": "GENERATION", "usageDetails": {"input": 3, "output": 4}}
    pages = [{"data": [], "meta": {}}, {"data": [row], "meta": {}}, {"data": [], "meta": {}}]
    path = tmp_path / "pages.jsonl"
    path.write_text("\n".join(map(json.dumps, pages)))
    assert read_source(path, Reading()).records == 1
