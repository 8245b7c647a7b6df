"""The compiled engine: what ``reference`` decides, millions of requests a second.

Workload and plan become arrays, the kernel runs over them, and its result arrays are the rows of one matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.parts import address_of, part
from fairreplay.sandbox.controls import places
from fairreplay.sandbox.controls.build import build, capacity, single_p99
from fairreplay.sandbox.controls.gate import of_requests, tickets_of
from fairreplay.sandbox.distinct import distinct_columns
from fairreplay.sandbox.engine import (
    DETAILS_OF_SPECULATION,
    NEVER,
    NO_CAP,
    QUANTILES,
    UNFINISHED,
    WEIGHT_SCALE,
    Controls,
    EngineResult,
    EngineSettings,
    Int32s,
    Int64s,
    OlderRules,
    Plan,
    PolicySpec,
    UserRank,
    Workload,
    check_plan,
    victim_rule,
)
from fairreplay.sandbox.extras import MICRO
from fairreplay.sandbox.policies import ESTIMATE, POLICIES
from fairreplay.sandbox.policies.deadlines import LOG_BITS, allowance
from fairreplay.sandbox.policies.rpm_limit import limited, with_limits
from fairreplay.sandbox.policies.user import failed

PASSES_A_CALL: Final = 200_000
"""Passes between two moments at which progress is told and an interrupt is noticed."""
COUNTER_MAX: Final = 2.0**62
AMPLE: Final = COUNTER_MAX / 1024
"""Bounds below it stay below ``COUNTER_MAX`` whatever an estimate makes of them (at most 199 times)."""
MAX_PS: Final = 2.0**63 - 2.0**56
ROWS: Final = 4096
"""Rows of step sums that the kernel gathers between two calls."""
POLICY_CODES: Final = {
    "fcfs": at.FCFS,
    "priority": at.PRIORITY,
    "vtc": at.VTC,
    "type-priority": at.TYPE_PRIORITY,
    "sjf": at.SJF,
    "user": at.USER,
    "drr": at.DRR,
    "wfq": at.WFQ,
    "edf": at.EDF,
    "wfq+edf": at.WFQ_EDF,
    "quantile": at.QUANTILE,
    "qoserve": at.QOSERVE,
    "round-robin": at.ROUND_ROBIN,
    "rpm-limit": at.RPM_LIMIT,
}
VICTIM_CODES: Final = {
    "last": at.LAST_VICTIM,
    "priority": at.PRIORITY_VICTIM,
    "least-computed": at.LEAST_VICTIM,
}

KEEP_RANKS: Final = frozenset({"vtc", "sjf", *(name for name, code in POLICY_CODES.items() if code >= at.KEEPS_RANKS)})
"""Policies that may need the decider: vtc and sjf with many tenants."""

Progress = Callable[[int], None]
"""Called now and then with the number of requests that have arrived so far."""


@dataclass(frozen=True)
class StepSums:
    """Passes summed by (second of their start, class), in that order; arrays of one length, all integers.

    ``kind`` is an index into ``KINDS``; ``running`` and ``waiting`` are sums over passes of the lengths at their end,
    ``used`` of the blocks in use after scheduling.
    """

    second: Int64s
    """Whole seconds since the instant that ``second_offset_ps`` counts from."""
    kind: Int64s
    steps: Int64s
    tokens: Int64s
    running: Int64s
    waiting: Int64s
    used: Int64s
    preempted: Int64s


KINDS: Final = ("decode", "mixed", "prefill")


def run(workload: Workload, plan: Plan, *, leap: bool = True, progress: Progress | None = None) -> EngineResult:
    """Serve ``workload`` under ``plan`` until every request is finished or refused.

    The result equals ``reference.run`` to the bit. ``leap=False`` steps one by one (the benchmarks' baseline).

    Raises:
        ValueError: the plan contradicts itself (see ``check_plan``).
        OverflowError: service counters do not fit into int64, or the last finish lies further away than int64
            picoseconds reach (104 days).
        UsageError: a user's rank does not compile, returns no integer, or raised an error.
    """
    return _run(workload, plan, leap, progress, None)[0]


def run_with_sums(
    workload: Workload, plan: Plan, second_offset_ps: int = 0, *, leap: bool = True, progress: Progress | None = None
) -> tuple[EngineResult, StepSums]:
    """As ``run``, and passes summed by second; instant 0 lies ``second_offset_ps`` after a whole second."""
    return _run(workload, plan, leap, progress, second_offset_ps)


def _run(
    workload: Workload, plan: Plan, leap: bool, progress: Progress | None, second_offset_ps: int | None
) -> tuple[EngineResult, StepSums]:
    check_plan(plan)
    if plan.disaggregated:
        return _run_pools(workload, plan, leap, progress, second_offset_ps)
    _check_counters(workload, plan)
    has_extras = workload.handed_over or plan.has_extras()
    leap = leap and not plan.has_extras() and not _steps_alone(plan)
    if not plan.settings[0][1].enable_prefix_caching:
        prefix_caching = 0
    elif leap and plan.controls is None and not _shares_prefixes(workload):
        prefix_caching = at.RUNS
    else:
        prefix_caching = at.BLOCKS
    # what controls decide shows request by request, and so does whose place a head takes by a rank that moves
    leap = leap and not plan.corrects()  # of requests that finish together, the order counts
    leap = leap and plan.controls is None and not any(_preempts_by_rank(state.policy) for _, state in plan.settings)
    return _run_plan(workload, plan, leap, progress, second_offset_ps, prefix_caching, has_extras)


def _run_pools(
    workload: Workload, plan: Plan, leap: bool, progress: Progress | None, second_offset_ps: int | None
) -> tuple[EngineResult, StepSums]:
    """Each replica of both pools; the steps of all of them are summed together."""
    from fairreplay.sandbox.disaggregation import run_pools

    sums: list[StepSums] = []

    def serve(part: Workload, alone: Plan) -> EngineResult:
        result, own = _run(part, alone, leap, progress, second_offset_ps)
        sums.append(own)
        return result

    result = run_pools(workload, plan, serve)
    columns = [
        np.concatenate([np.zeros(0, np.int64), *(getattr(own, field.name) for own in sums)])
        for field in fields(StepSums)
    ]
    keys, place = np.unique(np.stack(columns[:2]), axis=1, return_inverse=True)
    added = [np.zeros(keys.shape[1], np.int64) for _ in columns[2:]]
    for total, column in zip(added, columns[2:], strict=True):
        np.add.at(total, place.reshape(-1), column)
    return result, StepSums(*keys, *added)


def _preempts_by_rank(spec: PolicySpec) -> bool:
    return spec.preemption_threshold is not None and spec.name != "priority" and POLICIES[spec.name].threshold_unit > 0


def _shares_prefixes(workload: Workload) -> bool:
    """Whether two requests may have a prefix in common: their first ids are equal."""
    starts = workload.prefix_start[:-1][np.diff(workload.prefix_start) > 0]
    first = workload.prefix_ids[starts]
    return len(np.unique(first)) < len(first)


def _run_plan(
    workload: Workload,
    plan: Plan,
    leap: bool,
    progress: Progress | None,
    second_offset_ps: int | None,
    prefix_caching: int,
    has_extras: bool,
) -> tuple[EngineResult, StepSums]:
    workload = with_limits(workload, plan)
    source, controls = workload, plan.controls
    gated = controls is not None and (controls.longs is not None or controls.emergency is not None)
    callbacks = _compile_ranks({state.policy.rank for _, state in plan.settings if state.policy.rank})
    addresses = {rank: int(callback.address) for rank, callback in callbacks.items()}
    modes = plan.settings
    if controls and controls.emergency:
        emergency = controls.emergency
        modes += tuple(
            (at_ps, replace(state, policy=single_p99(state.policy, emergency), victim=victim_rule(state)))
            for at_ps, state in modes
        )
    settings, queue_rows, queue_facts = _settings_table(
        workload, modes, addresses, gated=gated, comes_back=controls is not None
    )
    settings[:, at.PREFIX - at.SETTINGS] = prefix_caching
    settings[0, at.AT_PS - at.SETTINGS] = 0
    first = plan.settings[0][1]
    most = max(state.max_num_active_seqs or state.max_num_seqs for _, state in plan.settings)
    cut = _cut_outputs(workload, plan)
    longest = int(cut.max(initial=0))
    widest = int((workload.prompt_tokens + cut).max(initial=1))
    control_rows: dict[int, Int64s] = {}
    if controls:
        workload, control_rows, cut, queue_rows = _tickets(controls, workload, cut, queue_rows)
    count = len(workload)
    slots = min(most, count) + 1
    model_len_varies = len({state.max_model_len for _, state in plan.settings}) > 1

    e = np.zeros(at.SCALARS, np.int64)
    e[at.SETTINGS : at.SETTINGS + at.SETTINGS_WIDTH] = settings[0]
    e[at.FREE] = first.num_gpu_blocks - 1
    e[at.NEXT_SETTINGS] = 1
    e[at.NEXT_WEIGHTS] = 1
    e[at.DECODE_STEPS] = first.prefill_interval
    e[at.MODEL_LEN_VARIES] = model_len_varies
    e[at.OWN_WEIGHTS] = bool(source.request_weight.any())
    e[at.STATES] = len(plan.settings)
    e[at.GATED] = gated
    e[at.LEAPING] = leap
    e[at.SUMMING] = second_offset_ps is not None
    e[at.SECOND_OFFSET] = second_offset_ps or 0
    e[at.FREE_SLOTS] = slots - 1
    run_ = np.zeros(slots * at.SLOT, np.int64)
    free_slots = np.arange(slots - 1, 0, -1, dtype=np.int64) * at.SLOT
    batch = np.zeros(slots, np.int64)
    parts = np.zeros(slots, np.int64)
    dues = np.zeros(2 * slots, np.int64)
    flights = np.zeros((2, 2 * slots + 2), np.int64)
    out = np.zeros((at.RESULTS, count), np.int64)
    out[[at.SCHEDULED, at.FIRST_TOKEN, at.FINISHED]] = NEVER
    out[at.STATUS] = UNFINISHED
    way: Int32s = np.zeros(count * at.WAY, np.int32)
    kept = np.zeros(count * at.KEPT, np.int64)
    entries = queue_facts.shape[1]
    queues = np.zeros(entries * at.QUEUE, np.int64)
    active = np.zeros(2 * entries, np.int64)
    ranks = np.zeros(2 * entries + 2 * -(-entries // at.GROUP), np.int64)
    e[at.STALE_AT] = entries
    head = np.zeros(at.HEAD_FIELDS + 1, np.int64)
    histories = [state.policy.history for _, state in plan.settings if state.policy.name == "quantile"]
    misses = np.zeros(max(histories, default=0) * len(workload.tenants) or 1, np.int64)
    blocks, table, own, found, chains, chain_table = _prefix_cache(e, source, plan, widest, slots, prefix_caching)
    if controls and prefix_caching:
        chains = np.zeros(len(source.prefix_ids) * (2 + controls.retries) + 1, np.int64)
    calendar = np.zeros(max(at.PLACES_MIN, 1 << (longest + 1).bit_length()), np.int64)
    marks = np.zeros((len(calendar) >> 6) + (len(calendar) >> 12), np.int64)
    phases = np.zeros(2 * first.block_size, np.int64)
    sums = np.zeros(3 * at.SUMS, np.int64)
    rows = np.zeros((ROWS, at.ROW), np.int64)
    gathered: list[Int64s] = []
    weights_at = np.array([at_ps for at_ps, _ in plan.weights], np.int64)
    weights = np.array([inverse for _, inverse in plan.weights], np.int64).reshape(len(plan.weights), -1)
    e[at.PASSES] = PASSES_A_CALL
    e[at.PREFIX_TOKENS] = workload.prefix_block_tokens
    e[at.STEPPER] = address_of("extra_stepper" if has_extras else "stepper")
    if controls:
        e[at.CONTROL] = address_of("control")  # as any other than the first part, never 0
    if (settings[:, at.POLICY - at.SETTINGS] >= at.KEEPS_RANKS).any():
        e[at.DECIDER] = address_of("estimating_decider" if plan.estimates() else "decider")
    arrays: dict[int, Int64s | Int32s] = {
        at.TO_RUN: run_,
        at.TO_FREE_SLOTS: free_slots,
        at.TO_BATCH: batch,
        at.TO_FLIGHTS: flights,
        at.TO_PARTS: parts,
        at.TO_DUES: dues,
        at.TO_CALENDAR: calendar,
        at.TO_MARKS: marks,
        at.TO_PHASES: phases,
        at.TO_OUT: out,
        at.TO_WAY: way,
        at.TO_KEPT: kept,
        at.TO_QUEUES: queues,
        at.TO_ACTIVE: active,
        at.TO_RANKS: ranks,
        at.TO_MISSES: misses,
        at.TO_HEAD: head,
        at.TO_QUEUE_ROWS: queue_rows,
        at.TO_QUEUE_FACTS: queue_facts,
        at.TO_BLOCKS: blocks,
        at.TO_TABLE: table,
        at.TO_OWN: own,
        at.TO_FOUND: found,
        at.TO_CHAINS: chains,
        at.TO_CHAIN_TABLE: chain_table,
        at.TO_PREFIX_START: workload.prefix_start,
        at.TO_PREFIX_IDS: source.prefix_ids,
        at.TO_SETTINGS: settings,
        at.TO_WEIGHTS_AT: weights_at,
        at.TO_WEIGHTS: weights,
        at.TO_ARRIVAL: workload.arrival_ps,
        at.TO_PROMPT: workload.prompt_tokens,
        at.TO_CUT: cut,
        at.TO_PRIORITY: workload.priority,
        at.TO_REQUEST_WEIGHT: workload.request_weight,
        at.TO_SUMS: sums,
        at.TO_ROWS: rows,
        **control_rows,
    }
    details = _add_extras(e, arrays, workload, first) if has_extras else {}
    if plan.estimates():
        arrays |= _estimates(source)
    linked = _link(e, arrays)
    advance = part("extra_kernel" if workload.handed_over else "kernel")
    happened: list[Int64s] = []
    done = 0
    while not done:
        done = advance(e.ctypes.data, 0, 0, 0, 0)
        gathered.append(rows[: e[at.ROWS]].copy())
        e[at.ROWS] = 0
        if controls:
            happened.append(_take_events(control_rows))
        if progress is not None:
            progress(int(control_rows[at.TO_C][places.NEXT_REQUEST] if controls else e[at.NEXT_ARRIVAL]))
    del linked
    if e[at.FAILED]:
        rank = next(state.policy.rank for _, state in plan.settings if state.policy.rank)
        raise failed(rank, int(e[at.FAILED]) - 1, "run it alone with that head's fields to see which")
    if e[at.CLOCK] > at.HORIZON_PS:
        raise OverflowError("the replay takes more than 104 days of simulated time: the cluster is far too slow for it")
    last = sums.reshape(3, at.SUMS)
    for kind in np.flatnonzero(last[:, at.SUM_STEPS]):
        gathered.append(np.array([[e[at.SECOND], kind, *last[kind]]], np.int64))
    gathered = gathered or [rows[:0]]
    columns = [np.concatenate([some[:, column] for some in gathered]) for column in range(at.ROW)]
    results = {
        "scheduled_ps": out[at.SCHEDULED],
        "first_token_ps": out[at.FIRST_TOKEN],
        "finished_ps": out[at.FINISHED],
        "status": out[at.STATUS],
        "reason": out[at.REASON],
        "preemptions": out[at.PREEMPTIONS],
        "recomputed_tokens": out[at.RECOMPUTED],
        "cached_tokens": out[at.CACHED],
        "computed_tokens": out[at.COMPUTED_TOKENS],
    }
    steps, end_ps = int(e[at.STEPS]), int(e[at.CLOCK])
    if not controls:
        return EngineResult(**results, steps=steps, end_ps=end_ps, details=details), StepSums(*columns)
    taken = int(control_rows[at.TO_C][places.TICKETS])
    t = control_rows[at.TO_T].reshape(-1, places.TICKET)[:taken]
    return of_requests(results, details, t, np.concatenate(happened), len(source), steps, end_ps), StepSums(*columns)


def _tickets(
    controls: Controls, source: Workload, cut: Int64s, queue_rows: Int64s
) -> tuple[Workload, dict[int, Int64s], Int64s, Int64s]:
    """Room for every arrival: the workload of tickets, the rows of the controls, outputs and queues by ticket."""
    rows = build(controls, source, room=EVENTS)
    asked = np.array(rows.s, np.int64).reshape(-1, places.SOURCE)
    asked[:, places.S_CUT] = cut
    asked[:, places.S_PRIORITY] = source.priority
    asked[:, places.S_WEIGHT] = source.request_weight
    extras = {places.S_COST: source.cost, places.S_DRAW: source.draw, places.S_PRECISION: source.precision}
    for place, column in extras.items():
        asked[:, place] = 0 if column is None else column
    most = capacity(controls, len(source))
    workload = tickets_of(source, most)
    workload.prefix_start[: len(source) + 1] = source.prefix_start
    linked = {
        at.TO_C: np.array(rows.c, np.int64),
        at.TO_S: asked.ravel(),
        at.TO_T: np.array(rows.t, np.int64),
        at.TO_W: np.array(rows.w, np.int64),
        at.TO_QUEUES_OF: queue_rows,
        at.TO_PREFIX_OF: source.prefix_start,
    }
    by_request = queue_rows.shape[1] == len(source)  # else all wait in one queue
    by_ticket = np.zeros((len(queue_rows), max(2, most) if by_request else 1), np.int64)
    return workload, linked, np.zeros(most, np.int64), by_ticket


def _take_events(control_rows: dict[int, Int64s]) -> Int64s:
    """What happened since the last call."""
    c, w = control_rows[at.TO_C], control_rows[at.TO_W].reshape(-1, places.EVENT)
    if c[places.LOST]:
        raise OverflowError("more happened at one instant than the record of controls holds")
    events = w[: c[places.EVENTS]].copy()
    c[places.EVENTS] = 0
    return events


def _add_extras(
    e: Int64s, arrays: dict[int, Int64s | Int32s], workload: Workload, state: EngineSettings
) -> dict[str, Int64s]:
    """What ``extra_stepper`` needs beyond the others; gives what it will count by request."""
    e[at.HANDED_OVER] = workload.handed_over
    e[at.PRECISION_SWITCH] = state.precision_switch != ""
    e[at.DROPS] = state.precision_switch == "drop"
    e[at.PRECISION] = at.NONE
    kinds = len(workload.types)
    by_kind = np.zeros((3, max(1, kinds)), np.int64)
    if state.speculation:
        e[at.DRAFTS] = state.speculation.drafts
        by_kind[at.ACCEPTED, :kinds] = state.speculation.accepted
    if state.moe:
        e[at.TOKEN_COSTS] = at.INDEPENDENT if state.moe.independent else at.SAME_EXPERTS
        by_kind[at.MEAN, :kinds], by_kind[at.SPREAD, :kinds] = state.moe.mean, state.moe.spread
    counts = np.zeros((at.SWITCHED + 1, len(workload)), np.int64)
    nothing = np.zeros(1, np.int64)
    arrays |= {
        at.TO_COST: nothing if workload.cost is None else workload.cost,
        at.TO_DRAW: nothing if workload.draw is None else workload.draw,
        at.TO_PRECISION: nothing if workload.precision is None else workload.precision,
        at.TO_KIND: workload.type,
        at.TO_TENANT: workload.tenant,
        at.TO_DETAILS: counts,
        at.TO_BY_KIND: by_kind,
        at.TO_BY_TENANT: np.zeros((2, len(workload.tenants)), np.int64),
    }
    details = dict(zip(DETAILS_OF_SPECULATION, counts, strict=False)) if state.speculation else {}
    return details | ({"switched": counts[at.SWITCHED]} if state.precision_switch else {})


def _estimates(workload: Workload) -> dict[int, Int64s | Int32s]:
    """What ``estimating_decider`` needs beyond the plain one."""
    if workload.estimate is None or workload.cost_class is None:
        raise ValueError("a policy that estimates costs needs Workload.estimate and cost_class")
    return {
        at.TO_ESTIMATE: workload.estimate,
        at.TO_COST_CLASS: workload.cost_class,
        at.TO_CORRECTIONS: np.zeros(1 + int(workload.cost_class.max(initial=0)), np.int64),
    }


def needed_parts(
    policies: Iterable[str],
    extras: bool = False,
    pools: bool = False,
    controls: bool = False,
    estimates: bool = False,
) -> list[str]:
    """The parts that replays under ``policies`` call, with what ``Plan.has_extras`` tells, two pools among it."""
    ranked = ["decider"] if KEEP_RANKS.intersection(policies) else []
    ranked += ["estimating_decider"] if estimates and set(ESTIMATE).intersection(policies) else []
    beyond = (["extra_stepper"] if extras else []) + (["extra_kernel"] if pools else [])
    return ["kernel", "stepper", *ranked, *beyond, *(["control"] if controls else [])]


def _link(e: Int64s, arrays: dict[int, Int64s | Int32s]) -> dict[int, Any]:
    """Tell the parts where the arrays are; what comes back must live as long as they run."""
    linked = {place: np.ascontiguousarray(array) for place, array in arrays.items()}
    for place, array in linked.items():
        if array.dtype != (np.int32 if place == at.TO_WAY else np.int64):
            raise TypeError(f"the engine takes arrays of int64, not of {array.dtype}")
        e[place] = array.ctypes.data
        e[place + 1 : place + 1 + array.ndim] = array.shape
    return linked


def _compile_ranks(ranks: set[UserRank]) -> dict[UserRank, Any]:
    """Callbacks of users' ranks; Numba compiles them, in this process and each time."""
    if not ranks:
        return {}
    from fairreplay.sandbox.compiled.user_rank import compile_rank

    return {rank: compile_rank(rank) for rank in sorted(ranks, key=lambda rank: (rank.name, rank.digest))}


def _check_counters(workload: Workload, plan: Plan) -> None:
    """Counters are int64; the plain engine's are unbounded, so what would not fit is refused."""
    outputs = workload.output_tokens
    for spec in {settings.policy for _, settings in plan.settings}:
        most = 0.0
        if counts_service(spec):
            most = _most_service(workload, plan, spec.prompt_cost * workload.prompt_tokens + spec.output_cost * outputs)
        elif spec.name in ("wfq", "wfq+edf"):
            expected = max(spec.predicted_output, int(outputs.max(initial=0)))
            prompts = workload.prompt_tokens
            if spec.by_cost:
                prompts = np.zeros_like(outputs) if workload.cost is None else workload.cost // MICRO
            most = _most_service(workload, plan, spec.prompt_cost * prompts + spec.output_cost * expected)
            most *= _largest_estimate(workload, spec)
        elif spec.name == "drr":
            most = _most_service(workload, plan, workload.prompt_tokens)
            most = max(most, most / (spec.quantum * WEIGHT_SCALE) * len(workload.tenants))
        if most > COUNTER_MAX:
            raise OverflowError("a tenant's weight is too small for its service to be counted in 64 bits")
        if not spec.slo_ps:
            continue
        latest = float(workload.arrival_ps.max(initial=0)) + max(max(slo) for slo in spec.slo_ps)
        longest = float(workload.prompt_tokens.max(initial=0)) * _largest_estimate(workload, spec)
        latest += spec.alpha_ps * longest + spec.gamma_ps * 64.0
        if latest > MAX_PS or spec.gamma_ps * 64.0 * (1 << LOG_BITS) > MAX_PS:
            raise OverflowError("deadlines lie further away than 104 days: a target, alpha or gamma is too large")


def _most_service(workload: Workload, plan: Plan, costs: Int64s) -> float:
    """The service of all requests together, each divided by the least weight that it ever has.

    Where the least weight of all leaves ample room, which is nearly always, that bound is the answer.
    """
    by_tenant = np.max([weights for _, weights in plan.weights], axis=0)
    largest = max(int(by_tenant.max(initial=0)), int(workload.request_weight.max(initial=0)))
    bound = float(costs.sum(dtype=np.float64)) * largest
    if bound <= AMPLE:
        return bound
    inverse = np.maximum(by_tenant[workload.tenant], workload.request_weight)
    return float((costs * inverse.astype(np.float64)).sum())


def _largest_estimate(workload: Workload, spec: PolicySpec) -> float:
    """How many times its true cost a request may be taken for."""
    if spec.estimation is None or workload.estimate is None:
        return 1.0
    least, most = float(workload.estimate.min(initial=MICRO)), float(workload.estimate.max(initial=MICRO))
    return most / (least if spec.estimation.alpha else MICRO)


def _cut_outputs(workload: Workload, plan: Plan) -> Int64s:
    """Output tokens that fit into ``max_model_len``; where that changes in mid-run, the kernel cuts at the arrival."""
    lengths = {state.max_model_len for _, state in plan.settings}
    if len(lengths) > 1:
        return workload.output_tokens.copy()
    room = np.maximum(0, lengths.pop() - workload.prompt_tokens)
    return np.minimum(workload.output_tokens, room)


EVENTS: Final = 1 << 16
"""What controls may do between two looks at their record."""

# ---- settings and queues ----


MANY: Final = 64
"""Queues from which on a look at each of them takes longer than keeping their ranks."""


def _policy_code(spec: PolicySpec, queues: int, is_plain: bool) -> int:
    if spec.name == "sjf" and (spec.by_cost or spec.estimation):
        return at.LEAST_COST
    if queues >= MANY and is_plain and spec.floors is None and spec.preemption_threshold is None:
        return {"sjf": at.SJF_OF_MANY, "vtc": at.VTC_OF_MANY}.get(spec.name, POLICY_CODES[spec.name])
    return POLICY_CODES[spec.name]


BY_HEAD: Final = frozenset({"sjf", "user", "drr", "wfq", "wfq+edf", "qoserve", "round-robin"})
"""Policies under which heads of one tenant can differ in rank: a queue for each (tenant, type, priority)."""


def counts_service(spec: PolicySpec) -> bool:
    """Whether tenants' service is counted token by token."""
    return spec.name in ("vtc", "user") or (spec.name == "quantile" and spec.gamma_ps > 0)


@dataclass(frozen=True)
class _Queues:
    """Where requests wait under one policy."""

    number: Int64s | None
    """Queue of each request; None: all in one."""
    facts: Int64s
    """By entry (queues, then tenants and types that count service apart): see ``layout.QUEUE_FACTS``."""
    first_type: int = at.NONE
    apart: bool = False
    """Tenants count their service in entries of their own."""


def _settings_table(
    workload: Workload,
    states: Sequence[tuple[int, EngineSettings]],
    addresses: dict[UserRank, int],
    *,
    gated: bool,
    comes_back: bool,
) -> tuple[Int64s, Int64s, Int64s]:
    """Rows of settings; in which queue a request waits under each policy; what is known of each queue."""
    queues: dict[PolicySpec, _Queues] = {}
    table = np.zeros((len(states), at.SETTINGS_WIDTH), np.int64)
    for row, (at_ps, settings) in enumerate(states):
        spec = settings.policy
        if spec not in queues:
            queues[spec] = _queues(workload, spec, gated=gated, comes_back=comes_back)
        address = addresses[spec.rank] if spec.rank else 0
        tenants = len(workload.tenants)
        _fill_settings(table[row], at_ps, settings, list(queues).index(spec), queues[spec], address, tenants, not gated)
    widest = max(kept.facts.shape[1] for kept in queues.values())
    facts = np.zeros((len(queues) * at.QUEUE_FACTS, widest), np.int64)
    rows = np.zeros(
        (len(queues), len(workload) if any(kept.number is not None for kept in queues.values()) else 1), np.int64
    )
    for number, kept in enumerate(queues.values()):
        first = number * at.QUEUE_FACTS
        facts[first : first + at.QUEUE_FACTS, : kept.facts.shape[1]] = kept.facts
        if kept.number is not None:
            rows[number] = kept.number
    return table, rows, facts


def _queues(workload: Workload, spec: PolicySpec, *, gated: bool, comes_back: bool) -> _Queues:
    """Requests share a queue where the policy and the floors cannot tell them apart but by their arrival."""
    if spec.name == "fcfs" and not spec.floors and not gated:
        return _Queues(None, np.zeros((at.QUEUE_FACTS, 1), np.int64))
    places = np.array([*spec.type_rank, *[len(spec.type_rank)] * len(workload.types)], np.int64)
    rank = {"priority": workload.priority, "type-priority": places[workload.type]}.get(spec.name)
    by_all = spec.name in BY_HEAD or gated  # controls bar heads one by one
    by_tenant = by_all or spec.name in ("vtc", "quantile")
    nothing = np.zeros(len(workload), np.int64)
    target: Int64s | None = None  # by request: what tells its queue from others beside the keys below
    if spec.name == "rpm-limit" and not comes_back:  # else the controls know who is refused at which attempt
        target = limited(workload, spec.rpm)
    elif spec.name in ("edf", "qoserve", "wfq+edf"):
        target = np.array([slo[spec.quantile] for slo in spec.slo_ps], np.int64)[workload.tenant]
    if spec.name == "vtc" and not spec.floors and not gated:
        number, first = workload.tenant, np.zeros((5, len(workload.tenants)), np.int64)
        first[1] = np.arange(len(workload.tenants))
    else:
        keys = np.stack(
            [
                nothing if rank is None else rank,
                workload.tenant if by_tenant else nothing,
                workload.type if by_all or spec.floors else nothing,
                workload.priority if by_all else nothing,
                nothing if target is None else target,
            ]
        )
        first, number = distinct_columns(keys)
    count = first.shape[1]
    one_each = count == len(workload.tenants) and len(np.unique(first[1])) == count and spec.name != "user"
    counts_apart = by_tenant and spec.name != "sjf" and not one_each
    tenants = len(workload.tenants) if counts_apart else 0
    types = len(workload.types) if spec.floors else 0
    facts = np.zeros((at.QUEUE_FACTS, count + tenants + types), np.int64)
    facts[0, :count] = first[0]
    facts[1, :count] = count + first[1] if counts_apart else np.arange(count)
    facts[2, :count] = count + tenants + first[2]
    facts[3:7, :count] = first[1:5]
    facts[3, count : count + tenants] = np.arange(tenants)
    if spec.name == "quantile":
        for entries in (slice(count), slice(count, count + tenants)):
            facts[7:10, entries] = np.array(spec.slo_ps, np.int64).T[:, facts[3, entries]]
    facts[1, count:] = np.arange(count, count + tenants + types)
    if spec.floors:
        shares = [*spec.floors.shares, *[0] * types][:types]
        facts[0, count + tenants :] = shares
        facts[6, count + tenants :] = [*spec.floors.caps, *[NO_CAP] * types][:types]
    return _Queues(number, facts, count + tenants if spec.floors else at.NONE, counts_apart)


def _older(rules: OlderRules) -> int:
    bits = (rules.lone_capped, rules.victim_tokens_lost, rules.self_preemption_ends, rules.frees_to_back)
    return sum(1 << place for place, holds in enumerate(bits) if holds)


def _steps_alone(plan: Plan) -> bool:
    """Whether older rules hold of which a leap knows nothing: what a preemption does to its pass, the free list."""
    return any(
        ((older.victim_tokens_lost or older.self_preemption_ends) and victim_rule(state) != "last")
        or (older.frees_to_back and state.enable_prefix_caching)
        for _, state in plan.settings
        if (older := state.older)
    )


def _fill_settings(
    row: Int64s,
    at_ps: int,
    settings: EngineSettings,
    number: int,
    queues: _Queues,
    rank_address: int,
    tenants: int,
    is_plain: bool,
) -> None:
    time, spec = settings.step_time, settings.policy
    power_of_two = settings.block_size & (settings.block_size - 1) == 0
    values = {
        at.BASE_PS: time.base,
        at.PREFILL_PS: time.prefill_token,
        at.DECODE_PS: time.decode_sequence,
        at.CONTEXT_PS: time.context_token,
        at.MOST_RUNNING: settings.max_num_active_seqs or settings.max_num_seqs,
        at.BUDGET: settings.max_num_batched_tokens,
        at.MODEL_LEN: settings.max_model_len,
        at.BLOCK_SIZE: settings.block_size,
        at.USABLE: settings.num_gpu_blocks - 1,
        at.WATERMARK: settings.watermark_blocks,
        at.CHUNKED: settings.enable_chunked_prefill,
        at.THRESHOLD: settings.long_prefill_token_threshold,
        at.ADAPTIVE: settings.long_prefill_token_threshold_adaptive,
        at.ASYNC: settings.async_scheduling,
        at.FULL_PROMPT: settings.scheduler_reserve_full_isl,
        at.PREFILL_FIRST: settings.prefill_first,
        at.INTERVAL: settings.prefill_interval,
        at.RESERVE: settings.reserve_full_kv,
        at.POLICY: _policy_code(spec, queues.facts.shape[1], is_plain),
        at.POLICY_NUMBER: number,
        at.QUEUE_ROW: at.NONE if queues.number is None else number,
        at.ENTRIES: queues.facts.shape[1],
        at.PROMPT_COST: spec.prompt_cost,
        at.OUTPUT_COST: spec.output_cost,
        at.LIFT: spec.lift and counts_service(spec) and spec.name != "user",
        at.SERVED: counts_service(spec),
        at.FIRST_TYPE: queues.first_type,
        at.FLOOR_WINDOW: spec.floors.window_ps if spec.floors else 0,
        at.DYNAMIC: counts_service(spec) or spec.name in ("wfq+edf", "qoserve") or spec.floors is not None,
        at.RANK_ADDRESS: rank_address,
        at.SHIFT: settings.block_size.bit_length() - 1 if power_of_two else at.NONE,
        at.VICTIM: VICTIM_CODES[victim_rule(settings)],
        at.APART: queues.apart,
        at.BY_NAME: spec.name in ("vtc", "wfq", "wfq+edf"),
        at.BOTH_HALVES: spec.name in ("wfq+edf", "quantile", "qoserve"),
        at.LISTENS: _listens(spec),
        at.ARRIVALS: (spec.lift and counts_service(spec))
        or spec.name in ("wfq", "wfq+edf", "rpm-limit")
        or settings.queue_limit > 0
        or spec.preemption_threshold is not None,
        at.TENANTS: tenants,
        at.QUANTUM: spec.quantum * WEIGHT_SCALE,
        at.PREDICTED: spec.predicted_output,
        at.SLACK: spec.slack_ps,
        at.ALPHA: spec.alpha_ps,
        at.GAMMA: spec.gamma_ps,
        at.HISTORY: spec.history,
        at.WIDEST: spec.quantiles[-1],
        at.GIVES_WAY: _gives_way(spec),
        at.TENANT_LIMIT: settings.tenant_queue_limit,
        at.QUEUE_TIME: settings.queue_time_ps,
        at.QUEUE_LIMIT: settings.queue_limit or at.NO_CAP,
        at.BY_COST: spec.by_cost,
        at.OLDER: _older(settings.older),
        at.ESTIMATING: spec.estimation is not None,
        at.LEARNING: spec.estimation.alpha if spec.estimation else 0,
        at.AT_PS: at_ps,
    }
    if settings.speculation:
        values[at.VERIFY_PS] = settings.speculation.verify_ps
        values[at.DRAFT_PS] = settings.speculation.draft_ps + settings.speculation.verify_ps
    for place, q in enumerate(QUANTILES):
        counts = place in spec.quantiles
        values[at.ALLOWED_50 + place] = allowance(q, spec.history) if counts else at.NO_CAP
    for name, value in values.items():
        row[name - at.SETTINGS] = value


def _listens(spec: PolicySpec) -> int:
    if spec.name in ESTIMATE and spec.estimation and spec.estimation.alpha:
        return at.FINISHES
    return {"wfq": at.FINISHES, "wfq+edf": at.FINISHES, "quantile": at.FIRST_TOKENS}.get(spec.name, 0)


def _gives_way(spec: PolicySpec) -> int:
    unit = POLICIES[spec.name].threshold_unit if spec.name in POLICIES else 0
    return at.NO_CAP if spec.preemption_threshold is None or not unit else spec.preemption_threshold * unit


# ---- prefix cache ----


def _prefix_cache(
    e: Int64s, workload: Workload, plan: Plan, tokens: int, slots: int, prefix_caching: int
) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s, Int64s]:
    """Blocks, hash table, blocks by slot, a buffer for one request's blocks, prefix numbers and their table.

    No request has more than ``tokens`` tokens.
    """
    first = plan.settings[0][1]
    nothing = np.zeros(1, np.int64)
    e[at.NEXT_BLOCK] = at.BLOCK
    if prefix_caching == at.RUNS:
        most = 2 * min(len(workload), max(state.num_gpu_blocks for _, state in plan.settings)) + 4
        runs = np.zeros((most + 1) * at.BLOCK, np.int64)
        return runs, nothing, nothing.reshape(1, 1), nothing, nothing, nothing
    if not prefix_caching:
        return nothing, nothing, nothing.reshape(1, 1), nothing, nothing, nothing
    sizes = [state.num_gpu_blocks - 1 for _, state in plan.settings]
    most = sizes[0] + sum(max(0, after - before) for before, after in pairwise(sizes))
    widest = min(max(sizes), -(-tokens // first.block_size)) + 1
    if widest >= 1 << at.INDEX_BITS:
        raise ValueError(f"a request of {tokens} tokens in blocks of {first.block_size} has too many blocks")
    blocks = np.zeros((most + 1) * at.BLOCK, np.int64)
    chains = np.zeros(max(1, len(workload.prefix_ids)), np.int64)
    chain_table = _empty_table(len(workload.prefix_ids), 3)
    own = np.empty((slots, widest), np.int64)
    return blocks, _empty_table(most, 2), own, np.zeros(widest, np.int64), chains, chain_table


def _empty_table(entries: int, numbers: int) -> Int64s:
    """A hash table at most half full."""
    return np.zeros(numbers << max(4, (2 * entries).bit_length()), np.int64)
