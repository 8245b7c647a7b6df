"""Small logs whose verdict is known by hand, and the command line as a process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import orjson

START_S = 1_780_000_020
"""2026-05-28 20:27 UTC: a whole minute."""
DAY_S = 86_400
SETTINGS = """
[cluster]
async_scheduling = false
enable_prefix_caching = false
[cluster.step_time]
base = 0.5
prefill_token = 0.0
decode_sequence = 0.0
context_token = 0.0
[defaults]
slo_ttft_ms = { p50 = 2000, p90 = 4000, p99 = 9000 }
[policies.vtc]
"""


def iso(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat().replace("+00:00", "Z")


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """Any rows as JSON lines."""
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def write_log(
    path: Path,
    *,
    day: float = 0,
    minutes: int = 3,
    late: Sequence[int] = (),
    tenants: Sequence[str] = ("calm", "loud"),
    more: Iterable[Mapping[str, object]] = (),
) -> Path:
    """A request of each tenant every 4 s, answered in 1 s; in the ``late`` minutes all but the first tenant wait 30 s.

    With targets of 2, 4 and 9 s, SCR is 1/2 in a late minute of two tenants and 1 in the others. ``more`` rows follow.
    """
    rows: list[Mapping[str, object]] = []
    for second in range(0, 60 * minutes, 4):
        for number, tenant in enumerate(tenants):
            at = START_S + day * DAY_S + second
            ttft = 30 if second // 60 in late and number else 1
            times = {"arrived_at": at, "first_token_at": at + ttft, "finished_at": at + ttft + 4}
            row = {"request_id": f"{tenant} {day} {second}", "tenant": tenant, "prompt_tokens": 40, "output_tokens": 5}
            rows.append(row | {name: iso(value) for name, value in times.items()})
    return write_rows(path, [*rows, *more])


def fairreplay(
    *arguments: object, cwd: Path, code: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command as a process; ``code`` runs before it."""
    start = f"{code}\nfrom fairreplay.cli.app import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", start, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1", **(env or {})},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def digest(folder: Path) -> dict[str, str]:
    """Every file below ``folder`` but locks, with its hash."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }
