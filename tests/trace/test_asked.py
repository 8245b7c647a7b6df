"""Tenants from a field, periods, pseudonyms: each on the rows of a log."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fairreplay.errors import UsageError
from fairreplay.trace.asked import Asked
from fairreplay.trace.pseudonyms import Pseudonyms
from fairreplay.trace.read import read_source
from fairreplay.trace.rules import Reading

DATA = Path(__file__).parents[1] / "data"
KEY = b"0123456789abcdef"


def written(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def native(index: int, **more: Any) -> dict[str, Any]:
    return {"arrived_at_ms": 1772438400000 + index, "prompt_tokens": 9, "output_tokens": 3} | more


# -- --tenant-from ----------------------------------------------------------------------------------------------------


def tenants(path: Path, field: str) -> list[str]:
    frame = read_source(path, Reading(), asked=Asked(tenant_from=field)).frame
    return frame["tenant"].to_list()


def test_the_field_overrides_and_its_absence_is_the_default(tmp_path: Path) -> None:
    rows = [native(0, tenant="x", team="acme"), native(1, tenant="x"), native(2, team="-"), native(3, team=7)]
    assert tenants(written(tmp_path / "log", *rows), "team") == ["acme", "default", "default", "7"]


def test_a_path_walks_objects_json_text_and_keys_with_dots(tmp_path: Path) -> None:
    rows = [native(0, meta={"user": {"team.id": "a"}}), native(1, meta='{"user": {"team.id": "b"}}')]
    path = written(tmp_path / "log", *rows)
    assert tenants(path, r"meta.user.team\.id") == ["a", "b"]
    assert tenants(path, "team.id") == ["a", "b"]
    assert tenants(written(tmp_path / "flat", native(0, **{"tenant.id": "c"})), "tenant.id") == ["c"]


def test_a_csv_column_can_be_the_tenant() -> None:
    path = DATA / "lmbenchmark" / "vllm-llama8B-high-qps.LMBench_long_input_output_3.5.csv"
    by_column = read_source(path, Reading(), asked=Asked(tenant_from="prompt_tokens")).frame
    assert by_column["tenant"].cast(float).to_list() == by_column["prompt_tokens"].to_list()
    assert by_column["session_id"].null_count() == 0  # the column user_id still says the session


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("taem", r"--tenant-from taem: in no record \(did you mean 'team'\?\)"),
        ("id", r"stands at a\.id, b\.id; name one"),
        ("request.messages", "holds prompts or answers"),
        ("prompt", "holds prompts or answers"),
    ],
)
def test_a_field_that_cannot_be_the_tenant(tmp_path: Path, field: str, said: str) -> None:
    rows = written(tmp_path / "log", native(0, team="x", a={"id": 1}, b={"id": 2}, prompt="hello"))
    with pytest.raises(UsageError, match=said):
        tenants(rows, field)


# -- --since, --until -------------------------------------------------------------------------------------------------


def test_a_period_takes_its_first_instant_and_not_its_last(tmp_path: Path) -> None:
    path = written(tmp_path / "log", *(native(index) for index in range(4)))
    first_us = 1772438400000_000
    read = read_source(path, Reading(), asked=Asked(since_us=first_us + 1000, until_us=first_us + 3000))
    assert read.frame["seq"].to_list() == [1, 2]
    assert read.skipped == {"outside_period": 2}
    assert (read.rows, read.records) == (2, 4)


# -- --pseudonymise ---------------------------------------------------------------------------------------------------


def test_a_pseudonym_is_the_keyed_hash_that_the_readme_states() -> None:
    digest = hashlib.blake2b(b"acme", digest_size=8, key=KEY, person=b"tenant").hexdigest()
    assert Pseudonyms(KEY).name("acme") == f"t-{digest}"
    assert Pseudonyms(KEY).name("default") == "default"
    assert Pseudonyms(KEY[::-1]).name("acme") != Pseudonyms(KEY).name("acme")
    assert digest not in Pseudonyms(KEY).fingerprint()
    assert "0123456789" not in repr(Pseudonyms(KEY))


@pytest.mark.parametrize("key", [b"", b"short", b"x" * 65])
def test_a_key_that_is_none(key: bytes) -> None:
    with pytest.raises(UsageError, match="not 16 to 64"):
        Pseudonyms(key)


def test_a_tenant_is_hidden_wherever_its_name_stands(tmp_path: Path) -> None:
    rows = [
        native(0, tenant="acme", session_id="acme", model="m", request_id="r0"),
        native(1, tenant="acme", session_id="s1", replica="acme"),
        native(2),
        native(3, tenant="acme", prompt_tokens=0),
        native(4, tenant="acme", arrived_at_ms="soon at acme"),
    ]
    path = written(tmp_path / "log", *rows)
    with path.open("a") as stream:
        stream.write('{"tenant": "acme", "broken')
    read = read_source(path, Reading(), asked=Asked(pseudonyms=Pseudonyms(KEY)))
    hidden = Pseudonyms(KEY).name("acme")
    assert read.frame.select("tenant", "session_id", "model", "replica").rows() == [
        (hidden, hidden, "m", None),
        (hidden, "s1", None, hidden),
        ("default", None, None, None),
    ]
    assert [item.reason for item in read.rejects] == ["zero_prompt", "unparsable_time", "unparsable_record"]
    zero, late, broken = read.rejects
    assert late.value == "[removed: 12 characters]"
    assert json.loads(zero.line) == native(3, tenant="[removed: 4 characters]", prompt_tokens=0)
    assert "acme" not in zero.line + late.line + broken.line + str(broken.value)


def test_a_tenant_of_a_real_log_leaves_no_trace() -> None:
    """lmbench: the user is tenant and session at once."""
    path = DATA / "lmbenchmark" / "vllm-llama8B-high-qps.LMBench_long_input_output_3.5.csv"
    plain = read_source(path, Reading()).frame
    hidden = read_source(path, Reading(), asked=Asked(pseudonyms=Pseudonyms(KEY))).frame
    assert hidden["tenant"].n_unique() == plain["tenant"].n_unique()
    assert (hidden["tenant"] == hidden["session_id"]).all()
    assert not set(hidden["session_id"]) & set(plain["tenant"])
    assert hidden.drop("tenant", "session_id").equals(plain.drop("tenant", "session_id"))
