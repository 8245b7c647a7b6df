"""Decision logs of a real scheduler: what it did, pass by pass, and whether the sandbox decides the same.

The form is ``NAME.scenario.json`` (settings and requests) beside ``NAME.steps.jsonl.gz`` (one line a pass).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairreplay.errors import BadInputError, UsageError
from fairreplay.sandbox.engine import (
    WEIGHT_SCALE,
    EngineSettings,
    Int64s,
    Plan,
    PolicySpec,
    Step,
    StepTime,
    Workload,
)
from fairreplay.sandbox.reference import run

PS_PER_NS = 1000
SCENARIO_SUFFIX = ".scenario.json"
STEPS_SUFFIX = ".steps.jsonl.gz"


@dataclass(frozen=True)
class Scenario:
    """Settings and requests of one decision log; ``arrival_step`` is set where requests join at pass numbers."""

    name: str
    workload: Workload
    plan: Plan
    arrival_step: Int64s | None


@dataclass(frozen=True)
class Difference:
    """The first place where the sandbox decides otherwise."""

    step: int
    field: str
    logged: object
    sandbox: object


@dataclass(frozen=True)
class Verified:
    name: str
    steps: int
    first_difference: Difference | None

    @property
    def equal(self) -> bool:
        return self.first_difference is None


def scenario_files(paths: Iterable[Path]) -> list[Path]:
    """The scenario files among ``paths`` and below the folders among them, sorted by folder.

    Raises:
        UsageError: a path that is not there, that is no scenario file, or a folder without any.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.rglob(f"*{SCENARIO_SUFFIX}"))
            if not inside:
                raise UsageError(f"{path}: no decision log here (NAME{SCENARIO_SUFFIX} beside NAME{STEPS_SUFFIX})")
            found += inside
        elif not path.exists():
            raise UsageError(f"{path}: no such file")
        elif not path.name.endswith(SCENARIO_SUFFIX):
            raise UsageError(f"{path}: not a scenario; give NAME{SCENARIO_SUFFIX}, its steps are found beside it")
        else:
            found.append(path)
    return found


def steps_file(scenario: Path) -> Path:
    """The steps beside a scenario file.

    Raises:
        UsageError: there are none.
    """
    path = scenario.with_name(scenario.name.removesuffix(SCENARIO_SUFFIX) + STEPS_SUFFIX)
    if not path.exists():
        raise UsageError(f"{path}: no such file; {scenario.name} needs its steps beside it")
    return path


def read_scenario(path: Path) -> Scenario:
    """The scenario file at ``path``.

    Raises:
        BadInputError: not JSON, or a key is missing; names the file and the key.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return _scenario(data)
    except KeyError as error:
        raise BadInputError(f"{path.name}: no key {error} in the scenario") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path.name}: not a scenario: {error}") from None


def _scenario(data: dict[str, Any]) -> Scenario:
    scheduler, clock = data["scheduler"], data["step_time_model"]
    requests = sorted(data["requests"], key=lambda request: (request["arrival_ns"], request["id"]))
    if data["arrival_mode"] == "step":
        requests = sorted(requests, key=lambda request: (request["arrival_step"], request["id"]))
    if [request["id"] for request in requests] != list(range(len(requests))):
        raise BadInputError(f"scenario {data['name']}: request ids are not numbered in order of entry")
    settings = EngineSettings(
        step_time=StepTime(
            base=clock["base_ns"] * PS_PER_NS,
            prefill_token=clock["per_scheduled_token_ns"] * PS_PER_NS,
            decode_sequence=clock["per_scheduled_token_ns"] * PS_PER_NS,
            context_token=clock["per_context_token_ns"] * PS_PER_NS,
        ),
        policy=PolicySpec(name=scheduler["policy"]),
        max_num_seqs=scheduler["max_num_seqs"],
        max_num_active_seqs=scheduler["max_num_active_seqs"] or 0,
        max_num_batched_tokens=scheduler["max_num_batched_tokens"],
        max_model_len=scheduler["max_model_len"],
        block_size=scheduler["block_size"],
        num_gpu_blocks=scheduler["num_gpu_blocks"],
        watermark_blocks=scheduler["watermark_blocks"],
        enable_chunked_prefill=scheduler["enable_chunked_prefill"],
        long_prefill_token_threshold=scheduler["long_prefill_token_threshold"],
        long_prefill_token_threshold_adaptive=scheduler["long_prefill_token_threshold_adaptive"],
        enable_prefix_caching=scheduler["enable_prefix_caching"],
        async_scheduling=scheduler["async_scheduling"],
        scheduler_reserve_full_isl=scheduler["scheduler_reserve_full_isl"],
    )
    if scheduler.get("prefill_schedule_interval", 1) != 1:
        raise BadInputError(f"scenario {data['name']}: prefill_schedule_interval above 1 is not simulated")

    def column(key: str) -> Int64s:
        return np.array([request[key] for request in requests], np.int64)

    prefixes = [request.get("hash_ids", []) for request in requests]
    tenants = tuple(sorted({request["tenant"] for request in requests}))
    zeros = np.zeros(len(requests), np.int64)
    workload = Workload(
        arrival_ps=column("arrival_ns") * PS_PER_NS,
        prompt_tokens=column("prompt_tokens"),
        output_tokens=column("output_tokens"),
        priority=column("priority"),
        tenant=np.array([tenants.index(request["tenant"]) for request in requests], np.int64),
        type=zeros,
        request_weight=zeros,
        prefix_start=np.cumsum([0, *map(len, prefixes)]).astype(np.int64),
        prefix_ids=np.array([prefix_id for prefix in prefixes for prefix_id in prefix], np.int64),
        prefix_block_tokens=data.get("hash_block_tokens", 1),
        tenants=tenants,
        types=("completion",),
    )
    weights = np.full(len(tenants), WEIGHT_SCALE, np.int64)
    return Scenario(
        name=data["name"],
        workload=workload,
        plan=Plan(settings=((0, settings),), weights=((0, weights),)),
        arrival_step=column("arrival_step") if data["arrival_mode"] == "step" else None,
    )


def step_line(step: Step, settings: EngineSettings) -> dict[str, object]:
    """``step`` with the keys and units of a decision log (times in whole nanoseconds)."""
    line: dict[str, object] = {
        "step": step.step,
        "t_ns": step.t_ps // PS_PER_NS,
        "dt_ns": step.dt_ps // PS_PER_NS,
        "arrived": step.arrived,
        "admitted": [list(entry) for entry in step.admitted],
        "scheduled": [list(entry) for entry in step.scheduled],
        "preempted": step.preempted,
        "free_blocks_scheduled": step.free_blocks_scheduled,
    }
    if settings.async_scheduling:
        line["start_ns"] = step.start_ps // PS_PER_NS
    return line | {
        "finished": step.finished,
        "free_blocks": step.free_blocks,
        "waiting": step.waiting,
        "running": step.running,
    }


def verify(scenario: Scenario, logged: Iterator[dict[str, Any]]) -> Verified:
    """Run the sandbox over the scenario and compare it with the log, line by line and field by field."""
    settings = scenario.plan.settings[0][1]
    lines: list[dict[str, object]] = []
    run(
        scenario.workload,
        scenario.plan,
        lambda step: lines.append(step_line(step, settings)),
        scenario.arrival_step,
    )
    count = 0
    for count, expected in enumerate(logged, start=1):
        if count > len(lines):
            return Verified(scenario.name, count, Difference(expected["step"], "step", expected["step"], None))
        own = lines[count - 1]
        for name in own:
            if own[name] != expected.get(name):
                return Verified(scenario.name, count, Difference(expected["step"], name, expected.get(name), own[name]))
    if len(lines) > count:
        extra = lines[count]
        return Verified(scenario.name, count, Difference(int(str(extra["step"])), "step", None, extra["step"]))
    return Verified(scenario.name, count, None)


def read_steps(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a steps file.

    Raises:
        BadInputError: names the file and the line that is not JSON, or the damage of the gzip.
    """
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):  # noqa: B007
                yield json.loads(text)
    except (EOFError, gzip.BadGzipFile, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path.name}: line {number or 1}: {error}") from None
