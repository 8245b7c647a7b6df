"""What a counterfactual changes: the load that arrives, and what the cluster runs with.

Each hook takes a workload or a plan and gives a changed one; engines know nothing of them. They combine in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fairreplay.sandbox.engine import EngineSettings, Int64s, Plan, StepTime, TypeFloors, Workload

UInt64s = NDArray[np.uint64]


@dataclass(frozen=True)
class Thinning:
    """Of a tenant's arrivals in ``[since_ps, until_ps)`` the share ``keep`` (0 to 1) stays."""

    tenant: int
    since_ps: int
    until_ps: int
    keep: Fraction


def thin(workload: Workload, hashes: UInt64s, thinnings: Sequence[Thinning]) -> tuple[Workload, NDArray[np.bool_]]:
    """The workload without the thinned requests, and which rows stay.

    ``hashes`` are 64 bits of each request's id (``plan.stable_hash``): a request stays if its hash lies in the lowest
    ``keep`` of all hashes. So the same requests go on every machine, and a smaller share is part of a larger one.
    A request of several thinnings stays if each lets it stay.
    """
    stays = np.ones(len(workload), np.bool_)
    for thinning in thinnings:
        if not 0 <= thinning.keep <= 1:
            raise ValueError(f"a thinning keeps between none and all, not {thinning.keep}")
        limit = int(thinning.keep * 2**64)
        if limit == 2**64:
            continue
        concerned = (
            (workload.tenant == thinning.tenant)
            & (workload.arrival_ps >= thinning.since_ps)
            & (workload.arrival_ps < thinning.until_ps)
        )
        stays &= ~concerned | (hashes < np.uint64(limit))
    return select(workload, stays), stays


def select(workload: Workload, rows: NDArray[np.bool_]) -> Workload:
    """The requests where ``rows`` is true; tenants and types keep their numbers."""
    lengths = np.diff(workload.prefix_start)
    return replace(
        workload,
        arrival_ps=workload.arrival_ps[rows],
        prompt_tokens=workload.prompt_tokens[rows],
        output_tokens=workload.output_tokens[rows],
        priority=workload.priority[rows],
        tenant=workload.tenant[rows],
        type=workload.type[rows],
        request_weight=workload.request_weight[rows],
        prefix_start=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[rows])]),
        prefix_ids=workload.prefix_ids[np.repeat(rows, lengths)],
    )


def without_own_weights(workload: Workload) -> Workload:
    """Requests are charged with their tenant's weight, whatever they carried."""
    return replace(workload, request_weight=np.zeros_like(workload.request_weight))


def with_weights(plan: Plan, inverse: Int64s) -> Plan:
    """These inverse weights by tenant hold throughout; see ``without_own_weights`` for those of single requests."""
    return replace(plan, weights=((0, inverse),))


def with_reserve(plan: Plan) -> Plan:
    """Admission holds a request's whole KV, so that nobody is preempted."""
    return _map(plan, lambda state: replace(state, reserve_full_kv=True))


def with_floors(plan: Plan, floors: TypeFloors | None) -> Plan:
    """Soft type floors ahead of whatever policy is in force; None takes them away."""
    return _map(plan, lambda state: replace(state, policy=replace(state.policy, floors=floors)))


def scaled(plan: Plan, speed: Fraction = Fraction(1), kv: Fraction = Fraction(1)) -> Plan:
    """Steps ``speed`` times as fast and ``kv`` times the KV blocks, at every instant.

    Step times are rounded half to even and blocks down, to at least one usable one; the watermark scales along.
    """
    return _map(plan, lambda state: _scaled(state, speed, kv))


def scaled_between(plan: Plan, since_ps: int | None, until_ps: int | None, speed: Fraction, kv: Fraction) -> Plan:
    """As ``scaled``, in ``[since_ps, until_ps)`` only; None is the beginning or the end of time."""
    begin, end = since_ps or 0, 2**63 - 1 if until_ps is None else until_ps
    states: list[tuple[int, EngineSettings]] = []
    for number, (at_ps, state) in enumerate(plan.settings):
        at_ps = 0 if number == 0 else at_ps
        until = plan.settings[number + 1][0] if number + 1 < len(plan.settings) else 2**63 - 1
        for from_ps, to_ps, inside in ((at_ps, begin, False), (max(at_ps, begin), end, True), (end, until, False)):
            from_ps, to_ps = max(from_ps, at_ps), min(to_ps, until)
            if from_ps < to_ps:
                states.append((from_ps, _scaled(state, speed, kv) if inside else state))
    return replace(plan, settings=tuple(states))


def _scaled(state: EngineSettings, speed: Fraction, kv: Fraction) -> EngineSettings:
    if speed <= 0 or kv <= 0:
        raise ValueError(f"speed {speed} and KV {kv} must be above 0")
    time = state.step_time
    return replace(
        state,
        step_time=StepTime(
            base=round(time.base / speed),
            prefill_token=round(time.prefill_token / speed),
            decode_sequence=round(time.decode_sequence / speed),
            context_token=round(time.context_token / speed),
        ),
        num_gpu_blocks=1 + max(1, int((state.num_gpu_blocks - 1) * kv)),
        watermark_blocks=int(state.watermark_blocks * kv),
    )


def _map(plan: Plan, change: Callable[[EngineSettings], EngineSettings]) -> Plan:
    return replace(plan, settings=tuple((at_ps, change(state)) for at_ps, state in plan.settings))
