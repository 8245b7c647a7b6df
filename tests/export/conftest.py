"""Stores to export from: a real log with two replays, and a log whose every name is hostile."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from fairreplay.config.load import load_config
from fairreplay.config.model import Config
from fairreplay.export.results import Results
from fairreplay.metrics.options import MeasureOptions, measure_options
from fairreplay.sandbox.replay import replay
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import Store, open_store

SAMPLE = Path(__file__).parents[2] / "fairreplay" / "sample"

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    '<a href="https://example.org">x</a>',
    "[x](javascript:alert(1)) | **b**",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "@sum(a1)",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202eevil\u200f",
    "two\nlines\r\nand\ttabs",
    'back\\slash "quoted" \\n',
    "../../x'; DROP TABLE requests; --",
    "[/x]%{y}",
    '{a="b"} 1\n# TYPE x gauge',
    "n" * 10_000,
)


@dataclass(frozen=True)
class Place:
    store: Store
    config: Config
    config_file: Path
    options: MeasureOptions

    @cached_property
    def results(self) -> Results:
        return Results(self.store, self.config, self.options)


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The sample: 1,500 requests of 27 tenants under FCFS, replayed under fcfs and vtc."""
    folder = tmp_path_factory.mktemp("arena")
    config_file = SAMPLE / "vtc_arena.toml"
    config = load_config(config_file)
    ingest([str(SAMPLE / "vtc_arena.fcfs.jsonl")], folder / "store", IngestOptions())
    store = open_store(folder / "store")
    replay(store, config, ["fcfs", "vtc"])
    return Place(store, config, config_file, measure_options(config))


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Two minutes of tenants, types and models with hostile names, each refused or served late in the second."""
    folder = tmp_path_factory.mktemp("hostile")
    lines = []
    for number, name in enumerate(HOSTILE):
        for minute in (0, 1):
            for index in range(6):
                arrived = 1_772_438_400_000_000 + minute * 60_000_000 + index * 5_000_000 + number
                row = {
                    "arrived_at_us": arrived,
                    "tenant": name,
                    "type": name,
                    "model": name if number % 2 else None,
                    "prompt_tokens": 10,
                    "output_tokens": 10,
                    "first_token_at_us": arrived + (100_000 if minute == 0 else 9_000_000),
                    "finished_at_us": arrived + 10_000_000,
                    "session_id": name,
                }
                lines.append(json.dumps(row))
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "fairreplay.toml").write_text("[defaults]\nslo_ttft_ms = { p50 = 1000, p90 = 2000, p99 = 4000 }\n")
    config = load_config(folder / "fairreplay.toml")
    ingest([str(folder / "log.jsonl")], folder / "store", IngestOptions())
    return Place(open_store(folder / "store"), config, folder / "fairreplay.toml", measure_options(config))
