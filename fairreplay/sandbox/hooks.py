"""What a counterfactual changes: the load that arrives, and what the cluster runs with.

Each hook takes a workload or a plan and gives a changed one; engines know nothing of them. They combine in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fairreplay.sandbox.engine import EngineSettings, Int64s, Plan, StepTime, TypeFloors, Workload


def select(workload: Workload, rows: NDArray[np.bool_]) -> Workload:
    """The requests where ``rows`` is true; tenants and types keep their numbers."""
    lengths = np.diff(workload.prefix_start)

    def of(column: Int64s, chosen: NDArray[np.bool_] = rows) -> Int64s:
        part = column[chosen]
        part.flags.writeable = column.flags.writeable  # the engine is compiled anew for arrays of other flags
        return part

    return replace(
        workload,
        arrival_ps=of(workload.arrival_ps),
        prompt_tokens=of(workload.prompt_tokens),
        output_tokens=of(workload.output_tokens),
        priority=of(workload.priority),
        tenant=of(workload.tenant),
        type=of(workload.type),
        request_weight=of(workload.request_weight),
        prefix_start=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[rows])]),
        prefix_ids=of(workload.prefix_ids, np.repeat(rows, lengths)),
        over_limit=_of_some(workload.over_limit, of),
        draw=_of_some(workload.draw, of),
        cost=_of_some(workload.cost, of),
        estimate=_of_some(workload.estimate, of),
        cost_class=_of_some(workload.cost_class, of),
        precision=_of_some(workload.precision, of),
        placed=_of_some(workload.placed, of),
    )


def _of_some(column: Int64s | None, of: Callable[[Int64s], Int64s]) -> Int64s | None:
    return None if column is None else of(column)


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


def scaled(
    plan: Plan,
    speed: Fraction = Fraction(1),
    kv: Fraction = Fraction(1),
    since_ps: int | None = None,
    until_ps: int | None = None,
) -> Plan:
    """Steps ``speed`` times as fast and ``kv`` times the KV blocks, in ``[since_ps, until_ps)``; None: without end.

    Step times are rounded half to even and blocks down, to at least one usable one; the watermark scales along.
    """
    forever = 2**63 - 1
    begin, end = since_ps or 0, forever if until_ps is None else until_ps
    states: list[tuple[int, EngineSettings]] = []
    for number, (at_ps, state) in enumerate(plan.settings):
        at_ps = 0 if number == 0 else at_ps
        until = plan.settings[number + 1][0] if number + 1 < len(plan.settings) else forever
        for from_ps, to_ps, inside in ((0, begin, False), (begin, end, True), (end, forever, False)):
            from_ps, to_ps = max(from_ps, at_ps), min(to_ps, until)
            if from_ps < to_ps:
                states.append((from_ps, _scaled(state, speed, kv) if inside else state))
    return replace(plan, settings=tuple(states))


def _scaled(state: EngineSettings, speed: Fraction, kv: Fraction) -> EngineSettings:
    if speed <= 0 or kv <= 0:
        raise ValueError(f"speed {speed} and KV {kv} must be above 0")
    time, drafting = state.step_time, state.speculation
    return replace(
        state,
        step_time=StepTime(
            base=round(time.base / speed),
            prefill_token=round(time.prefill_token / speed),
            decode_sequence=round(time.decode_sequence / speed),
            context_token=round(time.context_token / speed),
        ),
        num_gpu_blocks=1 + max(1, int((state.num_gpu_blocks - 1) * kv)),
        decode_gpu_blocks=state.decode_gpu_blocks and 1 + max(1, int((state.decode_gpu_blocks - 1) * kv)),
        watermark_blocks=int(state.watermark_blocks * kv),
        speculation=drafting
        and replace(
            drafting,
            draft_ps=round(drafting.draft_ps / speed),
            verify_ps=round(drafting.verify_ps / speed),
        ),
    )


def _map(plan: Plan, change: Callable[[EngineSettings], EngineSettings]) -> Plan:
    return replace(plan, settings=tuple((at_ps, change(state)) for at_ps, state in plan.settings))
