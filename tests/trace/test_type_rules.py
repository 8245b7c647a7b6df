"""``[[type_rules]]``: the first that holds; records and frames agree."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairreplay.config.load import parse_config
from fairreplay.config.model import TypeRule
from fairreplay.errors import UsageError
from fairreplay.trace.read import read_source
from fairreplay.trace.rules import Reading
from fairreplay.trace.type_rules import check_type_rules, named_type, type_expression

RULES = """
[[type_rules]]
when = { column = "model", regex = "^(bge|e5)-" }
is = "embeddings"
[[type_rules]]
when = [{ column = "prompt_tokens", min = 8000 }, { column = "type", in = ["chat", "completion"] }]
is = "long"
[[type_rules]]
when = { column = "priority", min = 5, max = 9 }
is = "batch"
"""


def rules_of(text: str) -> tuple[TypeRule, ...]:
    return parse_config(text, "test").type_rules


def test_the_rules_name_the_types_of_a_log(tmp_path: Path) -> None:
    rows = [
        {"model": "bge-m3", "prompt_tokens": 9000},  # an embedding has no output
        {"model": "x-bge-", "prompt_tokens": 8000, "output_tokens": 1},
        {"prompt_tokens": 7999, "output_tokens": 1, "priority": 5},
        {"prompt_tokens": 9000, "output_tokens": 1, "type": "tools", "priority": 9},
        {"prompt_tokens": 10, "output_tokens": 1, "type": "chat", "priority": 10},
    ]
    path = tmp_path / "log"
    path.write_text("".join(json.dumps({"arrived_at_s": 1 + index, **row}) + "\n" for index, row in enumerate(rows)))
    frame = read_source(path, Reading(type_rules=rules_of(RULES))).frame
    assert frame["type"].to_list() == ["embed", "long", "batch", "batch", "chat"]
    assert frame["output_tokens"].to_list() == [0, 1, 1, 1, 1]


def test_a_rule_without_when_holds_for_all_that_is_left() -> None:
    rules = rules_of('[[type_rules]]\nwhen = { column = "tenant", in = ["a"] }\nis = "x"\n[[type_rules]]\nis = "y"')
    assert [named_type(rules, {"tenant": tenant}) for tenant in ("a", "b", None)] == ["x", "y", "y"]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ('when = { column = "prompt_tokens", regex = "x" }\nis = "x"', "prompt_tokens takes min or max"),
        ('when = { column = "tenant", min = 1 }\nis = "x"', "tenant takes regex or in"),
        ('when = { column = "tenant" }\nis = "x"', "says nothing: give min, max, regex or in"),
        ('when = { column = "ttft", min = 1 }\nis = "x"', "prompt_tokens"),
        ('when = { column = "tenant", inn = ["x"] }\nis = "x"', "unknown key"),
        ('when = { column = "tenant", in = ["x"] }', "is"),
    ],
)
def test_a_rule_that_is_none_is_an_error_with_its_line(rule: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_config(f"[[type_rules]]\n{rule}\n", "test")


def test_a_regex_that_is_none() -> None:
    with pytest.raises(UsageError, match=r"\[\[type_rules\]\] 1: regex '\(' is none: .*correct it"):
        check_type_rules(rules_of('[[type_rules]]\nwhen = { column = "model", regex = "(" }\nis = "x"'))


ROW = st.fixed_dictionaries(
    {
        "tenant": st.sampled_from(["a", "bge-1", "é"]),
        "type": st.sampled_from(["chat", "completion", "tools"]),
        "model": st.sampled_from([None, "bge-m3", "e5-x", "m"]),
        "prompt_tokens": st.sampled_from([None, 0, 7999, 8000, 2**32 - 1]),
        "priority": st.sampled_from([None, -5, 5, 9, 10]),
    }
)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=8))
def test_records_and_frames_agree(rows: list[dict[str, object]]) -> None:
    rules = rules_of(RULES)
    schema = dict.fromkeys(("tenant", "type", "model"), pl.String) | {"prompt_tokens": pl.UInt32, "priority": pl.Int32}
    frame = pl.DataFrame(rows, schema=schema).with_columns(type_expression(rules))  # type: ignore[arg-type]
    assert frame["type"].to_list() == [named_type(rules, row) or row["type"] for row in rows]
