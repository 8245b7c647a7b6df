"""``fairreplay ingest`` and what can be asked of it: dry runs, joins, periods, pseudonyms; and what it never stores."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fairreplay.errors import UsageError
from fairreplay.store.store import open_store
from tests.cli.test_ingest import Done, run

DATA = Path(__file__).parents[1] / "data"
FORMATS = DATA / "formats"
T0_MS = 1772438400000


def native(index: int, **more: Any) -> dict[str, Any]:
    record = {"request_id": f"r{index}", "arrived_at_ms": T0_MS + index, "prompt_tokens": 9, "output_tokens": 3}
    return record | more


def written(path: Path, *records: dict[str, Any] | str) -> Path:
    path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in records))
    return path


def content(path: Path) -> dict[str, bytes]:
    return {str(item.relative_to(path)): item.read_bytes() for item in path.rglob("*") if item.is_file()}


def sources(done: Done) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["sources"]
    return found


# -- --dry-run --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_new", [True, False])
def test_a_dry_run_says_what_a_run_would_and_touches_nothing(tmp_path: Path, is_new: bool) -> None:
    store = tmp_path / "store"
    if not is_new:
        run(written(tmp_path / "first", native(0), native(1)), "--store", store)
    log = written(tmp_path / "log", native(1), native(2, tenant="acme"), native(0, prompt_tokens=0))
    before = content(tmp_path)
    arguments = (log, "--store", store, "--max-reject-rate", "0.5")
    dry = run(*arguments, "--dry-run", "--json")
    text = run(*arguments, "--dry-run")
    assert content(tmp_path) == before
    wet = sources(run(*arguments, "--json"))
    (item,) = sources(dry)
    rows = item.pop("first_rows")
    assert [item] == wet
    assert json.loads(dry.stdout)["dry_run"] is True
    assert [row["seq"] for row in rows] == ([0, 1] if is_new else [1])
    assert rows[-1]["arrived_at"] == "2026-03-02T08:00:00.002000Z"
    assert rows[-1]["preemptions"] is None
    for said in ("first rows of log as they would be stored:", "record 1", "acme", "dry run: nothing was stored"):
        assert said in text.stdout
    assert max(map(len, text.stdout.splitlines()[:2])) <= 100


def test_a_dry_run_of_too_many_rejects_ends_as_the_run_would(tmp_path: Path) -> None:
    log = written(tmp_path / "log", native(0, prompt_tokens=0))
    done = run(log, "--store", tmp_path / "store", "--dry-run")
    assert done.returncode == 3
    assert "without --dry-run they are left beside the log" in done.stderr
    assert [item.name for item in tmp_path.iterdir()] == ["log"]


# -- the same again ---------------------------------------------------------------------------------------------------


def test_the_same_rows_from_another_container_change_nothing(tmp_path: Path) -> None:
    rows = [native(index, tenant=f"t{index % 3}") for index in range(50)] + [native(50, prompt_tokens=0)]
    store = tmp_path / "store"
    run(written(tmp_path / "log.jsonl", *rows), "--store", store, "--max-reject-rate", "1")
    before = content(store)
    times = pl.from_epoch(pl.col("arrived_at_ms"), "ms").dt.replace_time_zone("UTC").alias("arrived_at")
    pl.DataFrame(rows).with_columns(times).drop("arrived_at_ms").write_parquet(tmp_path / "log.parquet")
    done = run(tmp_path / "log.parquet", "--store", store, "--max-reject-rate", "1", "--json")
    (item,) = sources(done)
    assert (item["rows"], item["accepted"], item["rejected"], item["duplicates"]) == (51, 0, 1, 50)
    assert item["changed"] is False
    assert "log.parquet: all 50 requests are in the store already; nothing changed" in done.stderr
    assert content(store) == before
    (tmp_path / "log.json").write_text(json.dumps([*rows, native(99)]))
    (item,) = sources(run(tmp_path / "log.json", "--store", store, "--max-reject-rate", "1", "--json"))
    assert (item["accepted"], item["duplicates"], item["changed"]) == (1, 50, True)


def test_the_same_bytes_with_other_options_are_not_read_again_and_it_says_so(tmp_path: Path) -> None:
    log = written(tmp_path / "log", native(0))
    run(log, "--store", tmp_path / "store", "--tenant", "acme")
    same, other = (run(log, "--store", tmp_path / "store", "--tenant", name) for name in ("acme", "blue"))
    assert "with other options" not in same.stderr
    assert "read with other options then; nothing changed. Ingest into a new store" in other.stderr
    assert open_store(tmp_path / "store").requests()["tenant"].to_list() == ["acme"]


# -- --join -----------------------------------------------------------------------------------------------------------


def test_what_the_gateway_refused_becomes_a_source_of_its_own(tmp_path: Path) -> None:
    """Two engines behind one gateway: what neither knows and is not ok never reached an engine."""
    engines = [written(tmp_path / f"e{index}", native(index), native(index + 10)) for index in range(2)]
    gateway = [native(index, tenant="acme") for index in (0, 1, 10)]
    gateway += [
        native(20, tenant="greedy", status="rejected", prompt_tokens=0),
        native(21, tenant="greedy", status="failed"),
        native(22, tenant="elsewhere"),
        native(23, status="rejected", arrived_at_ms="x"),
    ]
    right = written(tmp_path / "gateway.jsonl", *gateway)
    arguments = (*engines, "--join", right, "--on", "request_id", "--store", tmp_path / "s", "--json")
    done = run(*arguments, "--max-reject-rate", "0.5")
    first, second, refused = sources(done)
    assert first["join"] == {"left_records": 2, "right_records": 7, "matched": 2, "left_only": 0, "right_only": 5}
    assert second["join"] == {"left_records": 2, "right_records": 7, "matched": 1, "left_only": 1, "right_only": 6}
    assert "only 1 of 2 keys have a partner" in " ".join(second["assumptions"])
    assert refused["path"] == str(right)
    assert (refused["rows"], refused["accepted"], refused["rejected"]) == (3, 2, 1)
    assert refused["by_status"] == {"failed": 1, "rejected": 1}
    frame = open_store(tmp_path / "s").requests()
    assert dict(frame.group_by("tenant").len().sort("tenant").rows()) == {"acme": 3, "default": 1, "greedy": 2}
    before = content(tmp_path / "s")
    assert [item["changed"] for item in sources(run(*arguments, "--max-reject-rate", "0.5"))] == [False] * 3
    assert content(tmp_path / "s") == before


def test_without_a_common_clock_refusals_are_only_counted(tmp_path: Path) -> None:
    left = written(tmp_path / "engine", native(0) | {"arrived_at_ms": 5})
    right = written(tmp_path / "gateway", native(0, tenant="a"), native(1, tenant="b", status="rejected"))
    done = run(left, "--join", right, "--on", "request_id", "--store", tmp_path / "s", "--json")
    (item,) = sources(done)
    assert item["join"]["right_only"] == 1
    assert "1 refused requests of the joined log are left out: one of the two logs does not tell the time of day" in (
        " ".join(item["assumptions"])
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--join", "x"], "--join and --on go together"),
        (["--on", "x"], "--join and --on go together"),
        (["--on-strip", "x"], "--on-strip cuts a prefix of joined ids"),
        (["--join", "nowhere", "--on", "x"], "nowhere: no such file"),
        (["--since", "soon"], "--since 'soon': not an ISO 8601 instant"),
        (["--since", "2026-03-03", "--until", "2026-03-02"], "is not after --since"),
        (["--pseudonymise", "model"], "only 'tenant'"),
        (["--pseudonymise", "tenant"], "needs a key"),
        (["--pseudonymise", "tenant", "--key-file", "nowhere"], "--key-file nowhere: cannot be read"),
        (["--pseudonymise", "tenant", "--key-file", "log"], "not 16 to 64"),
        (["--key-file", "log"], "give both"),
        (["--tenant-from", "team"], "--tenant-from team: in no record"),
    ],
)
def test_options_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAIRREPLAY_PSEUDONYM_KEY", raising=False)
    written(tmp_path / "log", native(0))
    done = run("log", "--store", "s", *arguments)
    assert done.returncode == UsageError.exit_code
    assert said in done.stderr
    assert not (tmp_path / "s").exists()


# -- periods and types ------------------------------------------------------------------------------------------------


def test_a_period_and_the_types_of_the_config(tmp_path: Path) -> None:
    log = written(tmp_path / "log", *(native(index * 1000, prompt_tokens=4000 * (index + 1)) for index in range(4)))
    config = tmp_path / "own.toml"
    config.write_text('[[type_rules]]\nwhen = { column = "prompt_tokens", min = 8000 }\nis = "long"\n')
    period = ("--since", "2026-03-02T08:00:01Z", "--until", "2026-03-02T08:00:03")
    done = run(log, "--store", tmp_path / "s", "--config", config, *period, "--json")
    (item,) = sources(done)
    assert (item["records"], item["rows"], item["skips"]) == (4, 2, {"outside_period": 2})
    assert json.loads(done.stdout)["types"] == {"long": 2}


# -- what is never stored ---------------------------------------------------------------------------------------------

KEY = "0123456789abcdef-only-for-this-test"


def everything(folder: Path) -> bytes:
    """All bytes of a store, Parquet cells in the clear."""
    cells = [str(pl.read_parquet(path).rows()).encode() for path in sorted(folder.rglob("*.parquet"))]
    return b"".join(cells) + b"".join(content(folder).values())


def test_a_pseudonymised_store_holds_neither_names_nor_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRREPLAY_PSEUDONYM_KEY", KEY)
    rows = [native(0, tenant="acme"), native(1, tenant="acme", session_id="acme"), native(2), "{acme"]
    log = written(tmp_path / "log", *rows, native(3, tenant="acme", output_tokens=-1))
    arguments = (
        "--store",
        tmp_path / "s",
        "--pseudonymise",
        "tenant",
        "--max-reject-rate",
        "1",
        "--tenant",
        "acme-too",
    )
    done = run(log, *arguments)
    digest = hashlib.blake2b(b"acme", digest_size=8, key=KEY.encode(), person=b"tenant").hexdigest()
    assert f"t-{digest}" in open_store(tmp_path / "s").requests()["tenant"].to_list()
    stored = everything(tmp_path / "s")
    assert b"acme" not in stored
    assert KEY.encode() not in stored
    assert "acme" not in done.stdout
    key_file = tmp_path / "key"
    key_file.write_text(KEY + "\n")
    assert "nothing changed" in run(log, *arguments, "--key-file", key_file).stderr
    more = written(tmp_path / "more", native(9, tenant="blue"))
    monkeypatch.setenv("FAIRREPLAY_PSEUDONYM_KEY", KEY + "x")
    assert "pseudonyms of another key" in run(more, *arguments).stderr
    assert "holds tenants under pseudonyms;" in run(more, "--store", tmp_path / "s").stderr
    run(more, "--store", tmp_path / "plain")
    other = run(log, "--store", tmp_path / "plain", "--pseudonymise", "tenant", "--max-reject-rate", "1")
    assert "holds tenants under their own names" in other.stderr


SECRET = "Frobnicate the quux, Dr. Strange"


def poisoned(record: dict[str, Any]) -> dict[str, Any]:
    """A record of any format with texts in it, and a fault."""
    return record | {
        "messages": [{"role": "user", "content": SECRET}],
        "prompt": SECRET,
        "response": {"choices": [{"message": {"content": SECRET}}]},
        "extra": json.dumps({"request_body": {"prompt": SECRET}}),
        "notes": SECRET,
    }


@pytest.mark.parametrize(
    "name",
    ["litellm/standard_logging.jsonl", "langfuse/observations.jsonl", "sglang/sglang-request-metrics-20260302_08.log"],
)
def test_no_prompt_and_no_answer_is_stored_whatever_the_log_holds(tmp_path: Path, name: str) -> None:
    records = [json.loads(line) for line in (FORMATS / name).read_text().splitlines() if line.endswith("}")]
    lines = [json.dumps(poisoned(record)) for record in records]
    lines += [text[: len(text) // 2] for text in lines] + [text[len(text) // 2 :] for text in lines] + [SECRET]
    log = written(tmp_path / "log.jsonl", *lines)
    done = run(log, "--store", tmp_path / "s", "--max-reject-rate", "1")
    assert done.returncode == 0, done.stderr
    assert "no prompt, no answer is stored" in done.stdout
    stopped = run(log, "--store", tmp_path / "other")
    assert stopped.returncode == 3
    beside = (tmp_path / "log.jsonl.rejects.jsonl").read_bytes()
    for text in (everything(tmp_path / "s"), beside, done.stdout.encode(), stopped.stderr.encode()):
        assert b"Frobnicate" not in text
        assert b"Strange" not in text


def test_texts_of_a_native_log_are_not_stored_either(tmp_path: Path) -> None:
    rows = [poisoned(native(0)), poisoned(native(1, prompt_tokens=0)), json.dumps(poisoned(native(2)))[:-40]]
    done = run(written(tmp_path / "log", *rows), "--store", tmp_path / "s", "--max-reject-rate", "1")
    assert done.returncode == 0
    assert b"Frobnicate" not in everything(tmp_path / "s")
