"""Two pools: prefill replicas give first tokens, the KV moves, decode replicas do the rest.

Both pools run the engine of one replica. A prefill replica serves requests of one output token; it hands the KV to its
link at the first token and gives its blocks back at once (the report says how much KV was between the pools at most).
A link carries one KV after the other, in the order of first tokens. A decode replica sees a request arrive when its
KV has come, and admits it under the policy when it has blocks for it; nothing of its prompt is computed again unless it
is preempted there.

In the decode pool there is no prefix cache, prompts cost tenants nothing, nobody is preempted for a head, and what the
gateway does (limits of requests and queues, type floors, all controls) is done already. Requests that can never fit
there are refused at their arrival, and do not come back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.engine import (
    NEVER,
    NEVER_FITS,
    OK,
    REFUSED,
    Controls,
    EngineResult,
    EngineSettings,
    Int64s,
    Plan,
    Workload,
)
from fairreplay.sandbox.extras import Disaggregated, transfer_ps
from fairreplay.sandbox.hooks import select

DETAILS: Final = ("sent_ps", "handed_over_ps", "joined_ps")
"""When the KV of a request began to move, when it had come, and when it was admitted by its decode replica."""

Serve = Callable[[Workload, Plan], EngineResult]


def run_pools(workload: Workload, plan: Plan, serve: Serve) -> EngineResult:
    """Serve ``workload`` by both pools of ``plan``; ``serve`` runs one replica.

    ``steps`` are those of all replicas, counts of a request those of both stages together.
    """
    pools = plan.disaggregated
    assert pools is not None
    count = len(workload)
    outputs = np.minimum(
        workload.output_tokens, np.maximum(0, plan.settings[0][1].max_model_len - workload.prompt_tokens)
    )
    kept = _fit_decode_pool(workload, outputs, plan)
    total = _Total(workload)
    total.refuse(np.flatnonzero(~kept))

    # prefill: round-robin over all arrivals, as replicas of one pool alone would be
    replica = workload.placed if workload.placed is not None else np.arange(count) % pools.prefill_replicas
    first = replace(workload, output_tokens=np.minimum(outputs, 1))
    prefill = replace(plan, disaggregated=None, settings=tuple((at, _prefill(state)) for at, state in plan.settings))
    for number in range(pools.prefill_replicas):
        rows = np.flatnonzero(kept & (replica == number))
        if len(rows):
            total.add(rows, serve(select(first, _mask(rows, count)), prefill))
            _send(total, rows, workload.prompt_tokens, outputs, pools)

    # decode: round-robin in the order in which the KV comes
    moved = np.flatnonzero(total.details["handed_over_ps"] != NEVER)
    moved = moved[np.lexsort((moved, total.details["handed_over_ps"][moved]))]
    decode = replace(
        plan,
        disaggregated=None,
        controls=None,
        settings=tuple((at, _decode(state)) for at, state in plan.settings),
    )
    for number in range(pools.decode_replicas):
        rows = moved[number :: pools.decode_replicas]
        if len(rows):
            came = _take(workload, rows, total.details["handed_over_ps"][rows])
            total.add(rows, serve(came, decode), decode=True)
    return total.result(plan.controls)


def _prefill(state: EngineSettings) -> EngineSettings:
    return replace(state, speculation=None)


def _decode(state: EngineSettings) -> EngineSettings:
    """What a decode replica runs with."""
    spec = state.policy
    spec = replace(spec, name="fcfs") if spec.name == "rpm-limit" else spec
    return replace(
        state,
        policy=replace(spec, prompt_cost=0, floors=None, preemption_threshold=None),
        num_gpu_blocks=state.decode_gpu_blocks or state.num_gpu_blocks,
        enable_prefix_caching=False,
        precision_switch="",
        prefill_first=False,
        queue_limit=0,
        tenant_queue_limit=0,
        queue_time_ps=0,
    )


def _fit_decode_pool(workload: Workload, outputs: Int64s, plan: Plan) -> NDArray[np.bool_]:
    """Requests whose whole KV some state of a decode replica can hold; those of one token never come there."""
    blocks = max(state.decode_gpu_blocks or state.num_gpu_blocks for _, state in plan.settings)
    needed = -(-(workload.prompt_tokens + np.maximum(0, outputs - 1)) // plan.settings[0][1].block_size)
    return (outputs <= 1) | (needed <= blocks - 1)


def _send(total: _Total, rows: Int64s, prompt: Int64s, outputs: Int64s, pools: Disaggregated) -> None:
    """The link of a prefill replica: one KV after the other, in the order of first tokens."""
    rows = rows[(total.columns["status"][rows] == OK) & (outputs[rows] > 1)]
    ready = total.columns["first_token_ps"][rows]
    order = np.lexsort((rows, ready))
    rows, ready = rows[order], ready[order]
    lengths, place = np.unique(prompt[rows], return_inverse=True)
    takes = np.array([transfer_ps(int(tokens), pools) for tokens in lengths], np.int64)[place]
    # each begins at its first token or when the one before it has come
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(takes)])[:-1]
    sent = np.maximum.accumulate(ready - before) + before if len(rows) else ready
    total.details["sent_ps"][rows] = sent
    total.details["handed_over_ps"][rows] = sent + takes


class _Total:
    """The result of the whole, of those of its replicas."""

    def __init__(self, workload: Workload) -> None:
        count = len(workload)
        self.arrival_ps = workload.arrival_ps
        instants = ("scheduled_ps", "first_token_ps", "finished_ps")
        sums = ("status", "reason", "preemptions", "recomputed_tokens", "cached_tokens", "computed_tokens")
        self.columns = {name: np.full(count, NEVER, np.int64) for name in instants}
        self.columns |= {name: np.zeros(count, np.int64) for name in sums}
        self.details = {name: np.full(count, NEVER, np.int64) for name in DETAILS}
        self.attempts = np.ones(count, np.int64)
        self.refusals: list[Int64s] = []
        self.events: list[Int64s] = []
        self.steps = 0
        self.end_ps = 0

    def refuse(self, rows: Int64s) -> None:
        self.columns["finished_ps"][rows] = self.arrival_ps[rows]
        self.columns["status"][rows] = REFUSED
        self.columns["reason"][rows] = NEVER_FITS
        refusals = [rows, np.ones_like(rows), self.arrival_ps[rows], np.full_like(rows, NEVER_FITS)]
        self.refusals.append(np.stack(refusals, axis=1))

    def add(self, rows: Int64s, result: EngineResult, *, decode: bool = False) -> None:
        """What one replica did to ``rows``; the decode stage only adds to what stands."""
        columns = self.columns
        if decode:
            self.details["joined_ps"][rows] = result.scheduled_ps
        else:
            columns["scheduled_ps"][rows] = result.scheduled_ps
            columns["first_token_ps"][rows] = result.first_token_ps
            self._add_controls(rows, result)
        if decode:
            refused = np.flatnonzero(result.status == REFUSED)
            at_once = [rows[refused], self.attempts[rows[refused]], result.finished_ps[refused], result.reason[refused]]
            self.refusals.append(np.stack(at_once, axis=1))
        for name in ("finished_ps", "status", "reason"):
            columns[name][rows] = getattr(result, name)
        for name in ("preemptions", "recomputed_tokens", "cached_tokens", "computed_tokens"):
            columns[name][rows] += getattr(result, name)
        for name, values in result.details.items():
            self.details.setdefault(name, np.zeros(len(self.arrival_ps), np.int64))[rows] += values
        self.steps += result.steps
        self.end_ps = max(self.end_ps, result.end_ps)

    def _add_controls(self, rows: Int64s, result: EngineResult) -> None:
        """What controls did to the requests of one prefill replica, which counts them from 0."""
        if len(result.attempts):
            self.attempts[rows] = result.attempts
            refusals, events = result.refusals.copy(), result.events.copy()
            refusals[:, 0] = rows[refusals[:, 0]]
            of_requests = np.isin(events[:, at.E_WHAT], at.ABOUT_TICKETS)
            events[of_requests, at.E_WHO] = rows[events[of_requests, at.E_WHO]]
            self.refusals.append(refusals)
            self.events.append(events)

    def result(self, controls: Controls | None) -> EngineResult:
        result = EngineResult(**self.columns, steps=self.steps, end_ps=self.end_ps, details=self.details)
        if controls is None:
            return result
        refusals, events = np.concatenate(self.refusals), np.concatenate([result.events, *self.events])
        return replace(
            result,
            attempts=self.attempts,
            refusals=refusals[np.lexsort((refusals[:, 1], refusals[:, 0], refusals[:, 2]))],
            events=events[np.argsort(events[:, at.E_AT], kind="stable")],
        )


def _mask(rows: Int64s, count: int) -> NDArray[np.bool_]:
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    return mask


def _take(workload: Workload, rows: Int64s, arrival_ps: Int64s) -> Workload:
    """These requests in this order, without prefixes: the decode pool has no prefix cache."""

    def of(column: Int64s | None) -> Int64s | None:
        return None if column is None else column[rows]

    return replace(
        workload,
        arrival_ps=arrival_ps,
        prompt_tokens=workload.prompt_tokens[rows],
        output_tokens=workload.output_tokens[rows],
        priority=workload.priority[rows],
        tenant=workload.tenant[rows],
        type=workload.type[rows],
        request_weight=workload.request_weight[rows],
        prefix_start=np.zeros(len(rows) + 1, np.int64),
        prefix_ids=workload.prefix_ids[:0],
        over_limit=None,
        draw=of(workload.draw),
        cost=of(workload.cost),
        estimate=of(workload.estimate),
        cost_class=of(workload.cost_class),
        precision=None,
        placed=None,
        handed_over=True,
    )
