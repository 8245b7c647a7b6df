"""``init`` writes a config that loads and changes nothing; ``check`` finds what is wrong before a review does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
import typer
from typer.testing import CliRunner

from fairreplay.cli.check import check
from fairreplay.cli.init import init
from fairreplay.config.load import load_config, parse_config
from fairreplay.config.model import Config
from fairreplay.errors import StoreError, UsageError
from fairreplay.planning.initial import key
from fairreplay.sandbox.replay import find_replays, replay
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import open_store
from tests.cli.logs import DAY_S, START_S, iso

HOSTILE = [
    "",
    "a.b",
    'x"] = 1\n[cluster]',
    "[/x]",
    "\u202e\x1b[31m",
    "日本 \U0001f600",
    "'; DROP TABLE",
    "\x7f\\u0041",
    "#",
]

app = typer.Typer()
app.command("init")(init)
app.command("check")(check)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with two days of requests of tenants with hostile names, two models and two types."""
    monkeypatch.chdir(tmp_path)
    rows = []
    for number in range(200):
        at = START_S + number * DAY_S / 100
        rows.append(
            {
                "request_id": f"r{number}",
                "tenant": HOSTILE[number % len(HOSTILE)] or "unnamed",
                "type": ("chat", 'em"bed')[number % 2],
                "model": ("m.1", "m 2")[number % 2],
                "arrived_at": iso(at),
                "first_token_at": iso(at + 1),
                "finished_at": iso(at + 2),
                "prompt_tokens": 100,
                "output_tokens": 20,
            }
        )
    (tmp_path / "log.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    ingest(["log.jsonl"], tmp_path / "fairreplay-store", IngestOptions())
    return tmp_path


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_is_a_toml_key(name: str) -> None:
    text = f"[tenants.{key(name)}]\nweight = 2.0\n"
    assert len(text.splitlines()) == 2
    assert {key: table.weight for key, table in parse_config(text, "t").tenants.items()} == {name: 2.0}


def test_what_init_writes_loads_and_changes_nothing(place: Path) -> None:
    store = open_store(place / "fairreplay-store")
    replay(store, Config(), ["fcfs", "vtc"])
    made = find_replays(store, Config())
    assert run("init").exit_code == 0
    config = load_config(None)
    assert set(config.tenants) == {name or "unnamed" for name in HOSTILE}
    assert set(config.models) == {"m.1", "m 2"}
    assert list(config.policies) == ["vtc"]
    assert find_replays(store, config) == made  # the same results: not even another replay
    assert all(config.slo_ttft_ms(tenant) is None for tenant in config.tenants)
    text = (place / "fairreplay.toml").read_text()
    assert "200 requests of 9 tenants, 2026-05-28 20:27 to 2026-05-30 20:12 UTC" in text
    assert "# slo_ttft_ms = { p50 = 1500, p90 = 1500, p99 = 1500 }" in text  # 1.5 times 1 s
    # 23 requests of 120 tokens in 1.99 days, for 30 days
    assert f"# committed_tokens_per_month = {round(23 * 120 * 30 / 1.99)}  # SUGGESTION" in text


def test_the_defaults_in_comments_are_the_defaults(place: Path) -> None:
    """Every commented setting, switched on, gives the config that holds without it."""
    run("init")
    text = re.sub(r"# A deploy.*?\n\n", "", (place / "fairreplay.toml").read_text(), flags=re.DOTALL)
    suggestions = ("slo_ttft_ms", "openslo", "file", "committed_tokens", "order")
    lines = [
        line[2:] if re.match(r"# [a-z_\[]+[a-z_.\]]* ?=", line) and not line[2:].startswith(suggestions) else line
        for line in text.splitlines()
    ]
    live = parse_config("\n".join(lines), "live")
    assert live.cluster.num_gpu_blocks == 20000
    assert live.window == Config().window
    assert (live.cost, live.floor, live.weights) == (Config().cost, Config().floor, Config().weights)
    store = open_store(place / "fairreplay-store")
    replay(store, Config(), ["fcfs"])
    assert find_replays(store, live).keys() == {"fcfs"}


def test_init_writes_over_nothing(place: Path) -> None:
    (place / "fairreplay.toml").write_text("# mine\n")
    with pytest.raises(UsageError, match="--force"):
        run("init")
    assert (place / "fairreplay.toml").read_text() == "# mine\n"
    assert run("init", "--force").exit_code == 0
    assert json.loads(run("init", "-o", "other.toml", "--json").stdout)["models"] == ["m 2", "m.1"]
    with pytest.raises(StoreError):
        run("init", "-o", "third.toml", "--store", "nowhere")


def findings(*arguments: object) -> tuple[int, list[str]]:
    done = run("check", "--json", *arguments)
    found = json.loads(done.stdout)
    assert found["ok"] == (done.exit_code == 0)
    return done.exit_code, [f"{one['level']} {one['where']}: {one['says']}" for one in found["findings"]]


def test_sound(place: Path) -> None:
    assert findings() == (0, [])
    assert run("check").stdout == "no config (defaults) and fairreplay-store: sound\n"


def test_what_the_config_names_and_nobody_has_seen(place: Path) -> None:
    (place / "fairreplay.toml").write_text(
        """
        [tenants."[/y]"]
        weight = 2.0
        [models."m.11"]
        [types.chatt]
        [[cluster.changes]]
        at = 2030-01-01T00:00:00Z
        speed = 0.5
        """
    )
    code, found = findings()
    assert code == 0
    assert found == [
        "warning config: tenants: tenant '[/y]' is in no stored request (did you mean '[/x]'?)",
        "warning config: models: model 'm.11' is in no stored request (did you mean 'm.1'?)",
        "warning config: types: type 'chatt' is in no stored request (did you mean 'chat'?)",
        "warning config: cluster.changes: 2030-01-01T00:00:00Z lies after the last stored arrival",
    ]


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        (
            "[cluster]\npolcy = 1\n",
            "config fairreplay.toml, line 2: unknown key 'cluster.polcy'; did you mean 'policy'?",
        ),
        ('[cluster]\npolicy = "vct"\n', "policy 'vct' is unknown; did you mean 'vtc'?"),
        ("[policies.type-priority]\n", 'policy "type-priority" needs [policies.type-priority] order'),
        ("[policies.edf]\n", "policy 'edf' needs TTFT targets, and tenant"),
        ('[weights]\nfile = "gone.csv"\n', "gone.csv: cannot be read"),
        ('[defaults]\nopenslo = "gone.yaml"\n', "gone.yaml: cannot be read"),
    ],
)
def test_a_wrong_config_ends_with_2(place: Path, toml: str, says: str) -> None:
    (place / "fairreplay.toml").write_text(toml)
    code, found = findings()
    assert code == 2
    assert says in found[0]
    assert found[0].startswith("error config: ")


def test_a_damaged_store_ends_with_5(place: Path) -> None:
    segment = next((place / "fairreplay-store" / "segments").iterdir())
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    code, found = findings()
    assert code == 5
    assert found == [
        f"error store: fairreplay-store/segments/{segment.name}: damaged (not the bytes that were written); "
        "restore it, or ingest 'log.jsonl' into a new store"
    ]
    assert findings("--store", "nowhere")[0] == 5
    (place / "fairreplay.toml").write_text("wrong")
    code, found = findings()
    assert code == 2
    assert [line.split(":")[0] for line in found] == ["error config", "error store"]


def test_replays_that_no_report_shows(place: Path) -> None:
    store = open_store(place / "fairreplay-store")
    replay(store, Config(), ["fcfs"])
    replay(store, parse_config("[cluster]\nmax_num_seqs = 3\n", "c"), ["fcfs"])
    used = find_replays(store, Config())["fcfs"]
    other = next(name for name in store.replay_names() if name != used)
    assert findings() == (0, [f"warning store: replay {other}: made with another config; not in any report"])
    (place / "fairreplay-store" / "replays" / used / "steps.parquet").write_bytes(b"x")
    code, found = findings()
    assert code == 5
    assert f"replays/{used}/steps.parquet: missing or damaged" in found[0]
