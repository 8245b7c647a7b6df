"""Random small cases in which everything that an engine does happens often: tight caches, preemption, changes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fairreplay.sandbox.engine import (
    FLOOR_SCALE,
    WEIGHT_SCALE,
    Backpressure,
    Controls,
    Emergency,
    EngineSettings,
    LongAdmission,
    Plan,
    PolicySpec,
    Preemption,
    StepTime,
    TypeFloors,
    UserRank,
    Workload,
)


def aged_prompt(prompt_tokens: int, now_ps: int, arrival_ps: int) -> int:
    return 100 * prompt_tokens - (now_ps - arrival_ps)


def odd_mixture(
    known_tokens: int,
    priority: int,
    tenant: int,
    type: int,  # noqa: A002
    preemptions: int,
    service: int,
    inverse_weight: int,
    waiting: int,
    running: int,
) -> int:
    return (service // inverse_weight + 7 * tenant - 5 * type + 3 * known_tokens * priority - waiting * preemptions) % (
        11 + running
    )


RANKS = tuple(
    UserRank(name=function.__name__, digest="", fields=tuple(inspect.signature(function).parameters), function=function)
    for function in (aged_prompt, odd_mixture)
)
NEW = ("drr", "wfq", "edf", "wfq+edf", "quantile", "qoserve", "round-robin", "rpm-limit")
POLICIES = ("fcfs", "priority", "vtc", "type-priority", "sjf", "user", *NEW)
YIELDING = ("priority", "vtc", "type-priority", "sjf", "edf")
TENANTS = ("a", "b", "c", "d")
TYPES = ("chat", "embed", "long")


def case(
    seed: int,
    *,
    most_requests: int = 12,
    time_scale: int = 1,
    policies: Sequence[str] = POLICIES,
    **fixed: object,
) -> tuple[Workload, Plan]:
    """The case of this seed; ``fixed`` settings hold throughout. A step takes some 1,000 ps times ``time_scale``."""
    rng = np.random.default_rng(seed)
    block_size = int(rng.choice([1, 2, 3, 4, 5, 8, 16, 32]))
    work = _workload(rng, most_requests, block_size)
    plan = _plan(rng, work, block_size, policies, fixed)
    return replace(work, arrival_ps=work.arrival_ps * time_scale), _slower(plan, time_scale)


def controlled(seed: int, **fixed: object) -> tuple[Workload, Plan]:
    """The case of this seed with controls: each of them in a half of the cases or fewer, limits that often bind."""
    work, plan = case(seed, **fixed)  # type: ignore[arg-type]
    rng = np.random.default_rng([seed, 1])
    span = int(work.arrival_ps[-1]) + 20_000
    scale = 10**8  # a step takes some 0.1 s, so that rates of requests a second mean something
    work = replace(work, arrival_ps=work.arrival_ps * scale)
    plan = _slower(plan, scale)
    span *= scale
    tenants, types = len(work.tenants), len(work.types)

    def sometimes(value: int, chance: float = 0.5) -> int:
        return value if rng.random() < chance else 0

    settings = []
    for at_ps, state in plan.settings:
        threshold = int(rng.choice([0, 2, 30])) if state.policy.name in YIELDING and rng.random() < 0.8 else None
        slower = tuple((a * scale, b * scale, c * scale) for a, b, c in state.policy.slo_ps)
        spec = replace(state.policy, preemption_threshold=threshold, slo_ps=slower)
        limits = {
            "tenant_queue_limit": sometimes(int(rng.integers(1, 4)), 0.2),
            "queue_time_ps": sometimes(int(rng.integers(1, span // 4)), 0.3),
            "queue_limit": sometimes(int(rng.integers(1, 5)), 0.2),
        }
        settings.append((at_ps, replace(state, policy=spec, **limits)))
    slos = tuple(
        (int(a), int(b), int(c))
        for a, b, c in (sorted(rng.integers(1, span, 3) // int(rng.choice([1, 30]))) for _ in range(tenants))
    )
    pressure = Backpressure(
        rates=tuple(int(rate) for rate in rng.choice([0, 300, 3000, 10**5], tenants)),
        targets_ps=tuple(max(10**9, slo[2]) for slo in slos),
        rate_min=int(rng.choice([1, 100, 2000])),
        step=int(rng.choice([1, 100, 10**4])),
        burst=int(rng.integers(1, 4)),
        window_ps=max(1, span // int(rng.choice([2, 20]))),
        hold_ps=max(1, span // int(rng.choice([3, 40]))),
        check_ps=max(1, span // int(rng.choice([7, 50]))),
        delay_ps=sometimes(span // 20),
        literal=bool(rng.random() < 0.3),
    )
    longs = LongAdmission(
        int(rng.integers(1, 40)), int(rng.choice([200, 5000])), int(rng.choice([0, 300_000, 700_000]))
    )
    preemption = Preemption(
        utilisation_max=int(rng.choice([100_000, 800_000, 10**9])),
        recovery_max_ps=scale * int(rng.choice([500, 5000, 10**8])),
        refuse=bool(rng.random() < 0.5),
        swap=bool(rng.random() < 0.6),
        host_tokens=int(rng.choice([5, 60, 10**6])),
        swap_token_ps=scale * int(rng.choice([0, 3, 200])),
    )
    emergency = Emergency(
        targets_ps=slos,
        floors=tuple(int(share) for share in rng.integers(0, FLOOR_SCALE // 2, types)) if rng.random() < 0.5 else (),
        low_weight=bool(rng.random() < 0.4),
        min_samples=(1, 1, 1) if rng.random() < 0.7 else (2, 3, 4),
    )
    controls = Controls(
        retries=int(rng.integers(0, 4)) * int(rng.random() < 0.6),
        retry_after_ps=max(1, int(rng.integers(1, span)) // int(rng.choice([1, 20, 400]))),
        tenant_limits=tuple(int(limit) for limit in rng.integers(0, 4, tenants)) if rng.random() < 0.2 else (),
        backpressure=pressure if rng.random() < 0.4 else None,
        longs=longs if rng.random() < 0.4 else None,
        preemption=preemption if rng.random() < 0.6 else None,
        emergency=emergency if rng.random() < 0.5 else None,
        window_ps=max(10, span // int(rng.choice([3, 12, 40]))),
        offset_ps=int(rng.integers(0, span)),
    )
    own = np.random.default_rng([seed, 2])
    if own.random() < 0.5:  # else what the limiter refuses is reckoned
        work = replace(work, over_limit=own.integers(0, controls.retries + 3, len(work)))
    return work, replace(plan, settings=tuple(settings), controls=controls)


def _slower(plan: Plan, time_scale: int) -> Plan:
    def slower(time: StepTime) -> StepTime:
        return StepTime(*(time_scale * getattr(time, name) for name in time.__dataclass_fields__))

    def longer(spec: PolicySpec) -> PolicySpec:
        floors = spec.floors
        return replace(spec, floors=replace(floors, window_ps=floors.window_ps * time_scale)) if floors else spec

    return Plan(
        settings=tuple(
            (at_ps * time_scale, replace(state, step_time=slower(state.step_time), policy=longer(state.policy)))
            for at_ps, state in plan.settings
        ),
        weights=tuple((at_ps * time_scale, inverse) for at_ps, inverse in plan.weights),
    )


def _workload(rng: np.random.Generator, most_requests: int, block_size: int) -> Workload:
    count = int(rng.integers(1, most_requests + 1))
    gap = int(rng.choice([0, 10, 300, 3000, 20_000]))
    arrival = np.cumsum(rng.integers(0, gap + 1, count) * rng.integers(0, 2, count)).astype(np.int64)
    longest_prompt = int(rng.choice([4, 20, 60, 200]))
    longest_output = int(rng.choice([1, 3, 12, 40, 120]))
    prompt = rng.integers(1, longest_prompt + 1, count)
    output = rng.integers(0, longest_output + 1, count)
    tenants = TENANTS[: int(rng.integers(1, 5))]
    types = TYPES[: int(rng.integers(1, 4))]
    prefix_tokens = int(rng.choice([1, 3, block_size, 16]))
    prefixes = [_prefix(rng, int(tokens), prefix_tokens) for tokens in prompt]
    own_weight = rng.integers(1, 4 * WEIGHT_SCALE, count) * (rng.random(count) < 0.2) * (rng.random() < 0.5)
    return Workload(
        arrival_ps=arrival,
        prompt_tokens=prompt.astype(np.int64),
        output_tokens=output.astype(np.int64),
        priority=rng.integers(0, int(rng.choice([1, 2, 4])), count).astype(np.int64),
        tenant=rng.integers(0, len(tenants), count).astype(np.int64),
        type=rng.integers(0, len(types), count).astype(np.int64),
        request_weight=own_weight.astype(np.int64),
        prefix_start=np.cumsum([0, *map(len, prefixes)]).astype(np.int64),
        prefix_ids=np.array([name for prefix in prefixes for name in prefix], np.int64),
        prefix_block_tokens=prefix_tokens,
        tenants=tenants,
        types=types,
    )


def _prefix(rng: np.random.Generator, tokens: int, prefix_tokens: int) -> list[int]:
    """Ids of the prompt's blocks, often shared from the start on, sometimes fewer than the prompt has."""
    count = -(-tokens // prefix_tokens)
    shared = int(rng.integers(0, count + 1))
    stem = int(rng.integers(0, 2)) * 1000
    ids = [stem + position if position < shared else int(rng.integers(10**6)) for position in range(count)]
    return ids[: int(rng.integers(0, count + 1))] if rng.random() < 0.3 else ids


def _plan(
    rng: np.random.Generator, work: Workload, block_size: int, policies: Sequence[str], fixed: dict[str, object]
) -> Plan:
    prefix = bool(rng.random() < 0.3)
    asynchronous = bool(rng.random() < 0.3)
    needed = int((-(-(work.prompt_tokens + np.maximum(0, work.output_tokens - 1)) // block_size)).max())
    total = int((-(-(work.prompt_tokens + work.output_tokens) // block_size)).sum())
    kept: dict[str, object] = {
        "block_size": block_size,
        "enable_prefix_caching": prefix,
        "async_scheduling": asynchronous,
        **fixed,
    }
    states = 1 + int(rng.integers(0, 4)) * int(rng.random() < 0.4)
    last = int(work.arrival_ps[-1]) + 20_000
    instants = sorted(int(rng.integers(0, last)) for _ in range(states))
    settings = [(at_ps, _settings(rng, work, needed, total, policies, kept)) for at_ps in instants]
    if rng.random() < 0.5:  # mostly one thing changes
        first = settings[0][1]
        names = ["num_gpu_blocks", "max_num_seqs", "policy", "step_time", "max_num_batched_tokens", "max_model_len"]
        name = str(rng.choice(names))
        settings = [(at_ps, replace(first, **{name: getattr(state, name)})) for at_ps, state in settings]
    weights = [
        (at_ps, rng.integers(1, 8 * WEIGHT_SCALE, len(work.tenants)))
        for at_ps in sorted(int(rng.integers(0, last)) for _ in range(1 + int(rng.integers(0, 3))))
    ]
    return Plan(settings=tuple(settings), weights=tuple(weights))


def _knobs(rng: np.random.Generator, work: Workload) -> dict[str, object]:
    """Parameters of the policies that know tenants' targets, rings and tags."""
    slos = [sorted(int(slo) for slo in rng.choice([50, 500, 3000, 10**5, 10**6], 3)) for _ in work.tenants]
    places = [(0, 1, 2), (2,), (0,), (0, 2), (1, 2)]
    return {
        "slo_ps": tuple((slo[0], slo[1], slo[2]) for slo in slos),
        "quantile": int(rng.integers(0, 3)),
        "quantiles": places[int(rng.integers(len(places)))],
        "history": int(rng.choice([1, 3, 10, 100])),
        "gamma_ps": int(rng.choice([0, 0, 7, 1000])),
        "alpha_ps": int(rng.choice([0, 3, 40])),
        "slack_ps": int(rng.choice([0, 100, 5000])),
        "quantum": int(rng.choice([1, 7, 60, 500])),
        "predicted_output": int(rng.choice([0, 5, 100])),
        "rpm": int(rng.choice([1, 2, 4])),
    }


def _floors(rng: np.random.Generator) -> TypeFloors:
    shares = tuple(int(share) for share in rng.integers(0, FLOOR_SCALE // 2, int(rng.integers(0, 4))))
    caps = (
        tuple(int(cap) for cap in rng.choice([0, 10, 100, 1000], int(rng.integers(0, 4)))) if rng.random() < 0.4 else ()
    )
    window_ps = int(rng.choice([300, 3000, 10**6]))
    return TypeFloors(shares, window_ps=window_ps, caps=tuple(max(1, cap) for cap in caps))


def _settings(
    rng: np.random.Generator,
    work: Workload,
    needed: int,
    total: int,
    policies: Sequence[str],
    kept: dict[str, object],
) -> EngineSettings:
    tight = rng.random() < 0.6
    usable = needed + int(rng.integers(0, 4)) if tight else needed + int(rng.integers(0, total + 1))
    if rng.random() < 0.05:
        usable = max(1, needed - 1)
    longest = int((work.prompt_tokens + work.output_tokens).max())
    policy = str(rng.choice(policies))
    values: dict[str, object] = {
        "step_time": StepTime(*(int(rng.integers(0, 60)) for _ in range(4))),
        "policy": PolicySpec(
            policy,
            prompt_cost=int(rng.integers(0, 3)),
            output_cost=int(rng.integers(0, 4)),
            lift=bool(rng.random() < 0.7),
            type_rank=tuple(rng.integers(0, 3, int(rng.integers(0, 4))).tolist()) if policy == "type-priority" else (),
            rank=RANKS[int(rng.integers(len(RANKS)))] if policy == "user" else None,
            floors=_floors(rng) if rng.random() < 0.25 else None,
            preemption_threshold=int(rng.integers(0, 3)) if policy == "priority" and rng.random() < 0.5 else None,
            **(_knobs(rng, work) if policy in NEW else {}),
        ),
        "max_num_seqs": int(rng.integers(1, 9)),
        "max_num_active_seqs": int(rng.integers(1, 5)) * int(rng.random() < 0.1),
        "max_num_batched_tokens": int(rng.choice([rng.integers(1, 12), rng.integers(8, 64), 512])),
        "max_model_len": int(rng.choice([longest + 1, longest + 100, max(1, longest - 3)], p=[0.4, 0.5, 0.1])),
        "num_gpu_blocks": 1 + max(1, usable),
        "watermark_blocks": int(rng.integers(0, 3)) * int(rng.random() < 0.3),
        "enable_chunked_prefill": bool(rng.random() < 0.8),
        "long_prefill_token_threshold": int(rng.integers(1, 20)) * int(rng.random() < 0.3),
        "long_prefill_token_threshold_adaptive": bool(rng.random() < 0.3),
        "scheduler_reserve_full_isl": bool(rng.random() < 0.6),
        "prefill_first": not kept["async_scheduling"] and bool(rng.random() < 0.3),
        "prefill_interval": int(rng.integers(0, 5)),
        "reserve_full_kv": bool(rng.random() < 0.25),
        "queue_limit": int(rng.integers(1, 6)) * int(rng.random() < 0.1),
        "victim": str(rng.choice(["", "last", "priority", "least-computed"], p=[0.7, 0.1, 0.1, 0.1])),
        **kept,
    }
    if kept["async_scheduling"]:
        values["prefill_first"] = False
    return EngineSettings(**values)  # type: ignore[arg-type]
