"""Small workloads for engine tests: rows of (tenant, arrival_s, prompt, output), and plans that are easy to reckon."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairreplay.sandbox.engine import (
    PS_PER_SECOND,
    WEIGHT_SCALE,
    Controls,
    EngineResult,
    EngineSettings,
    Plan,
    PolicySpec,
    StepTime,
    Workload,
)

Row = tuple[str, float, int, int]

ONE_SECOND_A_DECODE = StepTime(base=0, prefill_token=0, decode_sequence=PS_PER_SECOND, context_token=0)
"""Prefill is free and a decode step takes a second."""


def workload(rows: Sequence[Row], *, types: Sequence[str] = (), priorities: Sequence[int] = ()) -> Workload:
    """Rows in arrival order; equal arrivals keep the order given."""
    count = len(rows)
    order = sorted(range(count), key=lambda index: rows[index][1])
    tenants = tuple(sorted({row[0] for row in rows}))
    kinds = tuple(sorted(set(types))) or ("completion",)
    zeros = np.zeros(count, np.int64)
    return Workload(
        arrival_ps=np.array([round(rows[index][1] * PS_PER_SECOND) for index in order], np.int64),
        prompt_tokens=np.array([rows[index][2] for index in order], np.int64),
        output_tokens=np.array([rows[index][3] for index in order], np.int64),
        priority=np.array([priorities[index] for index in order], np.int64) if priorities else zeros,
        tenant=np.array([tenants.index(rows[index][0]) for index in order], np.int64),
        type=np.array([kinds.index(types[index]) for index in order], np.int64) if types else zeros,
        request_weight=zeros,
        prefix_start=np.zeros(count + 1, np.int64),
        prefix_ids=np.zeros(0, np.int64),
        prefix_block_tokens=1,
        tenants=tenants,
        types=kinds,
    )


def plan(
    work: Workload,
    policy: str | PolicySpec = "fcfs",
    *,
    weights: dict[str, float] | None = None,
    controls: Controls | None = None,
    **settings: object,
) -> Plan:
    """One state of settings, by keyword of ``EngineSettings``."""
    spec = PolicySpec(policy) if isinstance(policy, str) else policy
    defaults: dict[str, object] = {"step_time": ONE_SECOND_A_DECODE, "policy": spec}
    inverse = [round(WEIGHT_SCALE / (weights or {}).get(tenant, 1.0)) for tenant in work.tenants]
    return Plan(
        settings=((0, EngineSettings(**{**defaults, **settings})),),  # type: ignore[arg-type]
        weights=((0, np.array(inverse, np.int64)),),
        controls=controls,
    )


def admission_order(work: Workload, result: EngineResult) -> str:
    """For instance ``"a1 b1 b2"``: tenants with the number of their request, by the time they were first scheduled."""
    numbers = [int(np.sum(work.tenant[:index] == work.tenant[index])) + 1 for index in range(len(work))]
    order = sorted(range(len(work)), key=lambda index: (result.scheduled_ps[index], index))
    return " ".join(f"{work.tenants[work.tenant[index]]}{numbers[index]}" for index in order)
