"""The plain engine: one replica, one step after the other, in vLLM V1's manner. It defines what every engine does.

A pass looks at all running requests, gives them tokens while the budget lasts, preempts when KV blocks run out, and
then admits waiting requests by the policy's rank; the first head that does not fit ends admission. There are no
separate prefill and decode phases in ``mixed`` batching: each pass brings a request's computed tokens ``computed``
up to its ``known`` tokens, and the pass that gets there samples one token.

``prefill-first`` batching (vLLM V0, TGI, LightLLM, S-LoRA) stops decoding for prefill batches that run alone: a batch
is tried when nothing decodes or ``prefill_interval`` decode steps have passed since the last one.

With async scheduling, pass k+1 is scheduled while step k executes, so a request's newest sample may be in flight.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.controls.build import settings_in_force, single_p99, weights_in_force
from fairreplay.sandbox.controls.gate import Gate, of_requests
from fairreplay.sandbox.disaggregation import run_pools
from fairreplay.sandbox.engine import (
    LIVELOCK,
    NEVER,
    NEVER_FITS,
    NO_REASON,
    OK,
    PASSES_WITHOUT_PROGRESS_MAX,
    PREEMPTION_DENIED,
    QUEUE_FULL,
    QUEUE_TIME,
    REFUSED,
    TOO_LONG,
    UNFINISHED,
    EngineResult,
    EngineSettings,
    Int64s,
    OnStep,
    Plan,
    PolicySpec,
    Step,
    StepTime,
    Workload,
    check_plan,
    victim_rule,
)
from fairreplay.sandbox.extras import MICRO, accepted_drafts, drawn_cost
from fairreplay.sandbox.floors import Floors
from fairreplay.sandbox.kv import NO_HIT, CountedKv, PrefixKv
from fairreplay.sandbox.policies import POLICIES
from fairreplay.sandbox.policies.base import HeadState, Policy
from fairreplay.sandbox.policies.rpm_limit import with_limits
from fairreplay.sandbox.policies.user import User
from fairreplay.sandbox.queues import WaitingQueues
from fairreplay.sandbox.speculation import Drafting

_NO_CAP = 2**62


@dataclass(slots=True)
class _Request:
    index: int
    prompt: int
    output: int
    """Output tokens to generate: 0 = prefill only; cut where prompt and output would pass ``max_model_len``."""
    priority: int
    arrival: int
    known: int
    """Prompt and sampled tokens."""
    computed: int = 0
    in_flight: int = 0
    """Samples of steps that are still executing (async only)."""
    tokens: int = 0
    """Tokens scheduled in the pass at hand."""
    best: int = 0
    """Most tokens ever computed: what lies below is recomputed."""
    preemptions: int = 0
    drafts: int = 0
    """Tokens drafted for it in the pass at hand (speculation)."""
    admitted: bool = False
    waiting: bool = False
    done: bool = False

    @property
    def sampled(self) -> int:
        return self.known - self.prompt

    @property
    def prefilling(self) -> bool:
        return self.computed < max(self.prompt, self.known - 1)

    @property
    def todo(self) -> int:
        """Tokens that a pass could give it now; 0 while it only waits for its last token."""
        if self.output and self.sampled + self.in_flight >= self.output:
            return 0
        return self.known + self.in_flight - self.computed


@dataclass(slots=True)
class _InFlight:
    """A step that executes: when it ends, and for each request that samples its preemption count and the samples."""

    end: int
    outputs: list[tuple[_Request, int, int]] = field(default_factory=list)


def run(
    workload: Workload, plan: Plan, on_step: OnStep | None = None, arrival_step: Int64s | None = None
) -> EngineResult:
    """Serve ``workload`` under ``plan`` until every request is finished or refused.

    Args:
        workload: the requests, sorted by (arrival, order in the source).
        plan: settings and weights over time.
        on_step: called after each pass that scheduled, preempted or took an output in.
        arrival_step: requests join at these pass numbers instead of at their arrival times (hand-written decision
            logs); passes are then numbered so that idle gaps are jumped over.

    Raises:
        ValueError: the plan contradicts itself (see ``check_plan``), or it has two pools and ``on_step`` is given.
    """
    check_plan(plan)
    if plan.disaggregated:
        if on_step or arrival_step is not None:
            raise ValueError("the steps of two pools are no single log")
        return run_pools(workload, plan, run)
    engine = _Engine(with_limits(workload, plan), plan, on_step, arrival_step)
    engine.run()
    return engine.result()


class _Engine:
    def __init__(self, workload: Workload, plan: Plan, on_step: OnStep | None, arrival_step: Int64s | None) -> None:
        self.gate = Gate(plan.controls, workload) if plan.controls else None
        self.source = workload
        self.workload = self.gate.tickets if self.gate else workload
        """With controls every arrival of a request is a ticket, and what is said of requests below is of tickets."""
        self.plan = plan
        self.on_step = on_step
        self.arrival_step = arrival_step
        self.mode = at.NO_MODE
        self.settings: EngineSettings = plan.settings[0][1]
        self.settings_next = 1
        self.weights_next = 1
        self.victims = victim_rule(self.settings)
        self.floors: Floors | None = None
        self.policy: Policy = self._make_policy(plan.weights[0][1])
        self.queues = WaitingQueues(self.workload)
        usable = self.settings.num_gpu_blocks - 1
        self.kv: CountedKv | PrefixKv = (
            PrefixKv(usable, self.settings.block_size, self.workload, to_back=self.settings.older.frees_to_back)
            if self.settings.enable_prefix_caching
            else CountedKv(usable)
        )
        self.requests: list[_Request] = []
        self.running: list[_Request] = []
        self.flying: deque[_InFlight] = deque()
        self.clock = 0
        self.busy_until = 0
        self.decode_steps = self.settings.prefill_interval
        self.pass_cap = _NO_CAP
        self.yielded = 0
        self.made_room_for = -1
        self.passes = 0
        self.idle_passes = 0
        self.steps = 0
        count = len(self.workload)
        self.scheduled_ps = np.full(count, NEVER, np.int64)
        self.first_token_ps = np.full(count, NEVER, np.int64)
        self.finished_ps = np.full(count, NEVER, np.int64)
        self.status = np.full(count, UNFINISHED, np.int64)
        self.reason = np.full(count, NO_REASON, np.int64)
        self.preemptions = np.zeros(count, np.int64)
        self.recomputed = np.zeros(count, np.int64)
        self.cached = np.zeros(count, np.int64)
        self.computed = np.zeros(count, np.int64)
        self.switched = np.zeros(count, np.int64)
        self.precision = NEVER
        self.drafting = Drafting(self.workload) if self.settings.speculation else None
        if self.gate:
            self.gate.set(settings_in_force(self.settings))
            self.gate.set(weights_in_force(plan.weights[0][1]))
        # what the pass at hand did, for the decision log
        self.scheduled: list[tuple[int, int, int]] = []
        self.arrived: list[int] = []
        self.admitted: list[tuple[int, int, int]] = []
        self.preempted: list[int] = []
        self.finished: list[int] = []

    # ---- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        while True:
            if not self._anything_unfinished():
                if self._next_arrival_ps() is None:
                    return
                self._jump_to_next_arrival()
            self._apply_changes()
            if self.floors:
                self.floors.advance(self.clock)
            self._take_arrivals()
            if self.gate:
                self._control(self.gate)
            if not self._anything_unfinished():
                continue  # all that arrived was refused at the door
            batch = self._schedule()
            free_scheduled = self.kv.free
            duration = self._start(batch)
            start = self.flying[-1].end - duration if batch else self.clock
            scheduled_at = self.clock
            overlap = self.settings.async_scheduling and bool(batch) and len(self.flying) == 1
            took_output = bool(self.flying) and not overlap
            if took_output:
                self._take_output(self.flying.popleft())
            self._guard_progress(batch, took_output)
            self._emit(batch, scheduled_at, duration, start, free_scheduled, took_output)
            self.passes += 1

    def _anything_unfinished(self) -> bool:
        return bool(self.running or len(self.queues) or self.flying)

    def _next_arrival_ps(self) -> int | None:
        """When the next request comes; None: nobody will."""
        upcoming = len(self.requests)
        if upcoming == len(self.workload) or self.workload.arrival_ps[upcoming] == at.FOREVER:
            return None
        return int(self.workload.arrival_ps[upcoming])

    def _jump_to_next_arrival(self) -> None:
        if self.arrival_step is not None:
            self.passes = max(self.passes, int(self.arrival_step[len(self.requests)]))
        else:
            self.clock = max(self.clock, self._next_arrival_ps() or 0)

    def _take_arrivals(self) -> None:
        workload = self.workload
        due = self.arrival_step if self.arrival_step is not None else self.workload.arrival_ps
        now = self.passes if self.arrival_step is not None else self.clock
        while len(self.requests) < len(self.workload) and due[len(self.requests)] <= now:
            index = len(self.requests)
            prompt = int(workload.prompt_tokens[index])
            request = _Request(
                index=index,
                prompt=prompt,
                output=min(int(self.workload.output_tokens[index]), max(0, self.settings.max_model_len - prompt)),
                priority=int(self.workload.priority[index]),
                arrival=int(self.workload.arrival_ps[index]),
                known=prompt + workload.handed_over,
                best=prompt * workload.handed_over,
            )
            self.requests.append(request)
            self.arrived.append(index)
            reason = self._refusal(request)
            if self.gate:
                reason = self.gate.arrive(index, reason)
            if reason:
                self._refuse(request, reason)
            else:
                self.policy.on_arrival(index)
                self._enqueue(request)

    def _refusal(self, request: _Request) -> int:
        """Why a request is turned away at the door, NO_REASON if it is not."""
        if request.prompt >= self.settings.max_model_len:
            return TOO_LONG
        if not self._ever_fits(request):
            return NEVER_FITS
        attempt = self.gate.attempt(request.index) if self.gate else 1
        if reason := self.policy.refuses(request.index, attempt):
            return reason
        return QUEUE_FULL if 0 < self.settings.queue_limit <= len(self.queues) else NO_REASON

    def _control(self, gate: Gate) -> None:
        """Ticks of the controls, an emergency that changes the policy, and who has waited too long."""
        gate.tick(self.clock)
        spec = self._spec()
        self.mode = gate.c[at.MODE]
        if self._spec() != spec:
            self._change_policy()
            if self.floors:
                self.floors.advance(self.clock)
        while (index := gate.expired(self.clock)) != at.NONE:
            self._leave_queue(self.requests[index])
            self._refuse(self.requests[index], QUEUE_TIME)

    def _apply_changes(self) -> None:
        """Settings and weights whose instant has come. A cache that shrank preempts until what is in use fits."""
        before, spec = self.settings, self._spec()
        while self.settings_next < len(self.plan.settings) and self.plan.settings[self.settings_next][0] <= self.clock:
            self.settings = self.plan.settings[self.settings_next][1]
            self.settings_next += 1
        while self.weights_next < len(self.plan.weights) and self.plan.weights[self.weights_next][0] <= self.clock:
            self.policy.weights = self.plan.weights[self.weights_next][1]
            self.policy.on_weights()
            if self.gate:
                self.gate.set(weights_in_force(self.policy.weights))
            self.weights_next += 1
        if self.settings is before:
            return
        self.victims = victim_rule(self.settings)
        if self.gate:
            self.gate.set(settings_in_force(self.settings))
        if self._spec() != spec:
            self._change_policy()
        if self.settings.num_gpu_blocks != before.num_gpu_blocks:
            self.kv.resize(self.settings.num_gpu_blocks - 1)
            while self.kv.free < 0:
                self._preempt(self._victim())
            for index in list(self.queues):
                request = self.requests[index]
                if not self._ever_fits(request):
                    self._leave_queue(request)
                    self._refuse(request, NEVER_FITS)

    def _make_policy(self, weights: Int64s) -> Policy:
        spec = self._spec()
        policy = User(spec, self.workload) if spec.rank else POLICIES[spec.name](spec, self.workload)
        policy.weights = weights
        policy.head_state = self._head_state
        policy.cached_tokens = self._cached_tokens
        self.floors = Floors(spec.floors, self.workload) if spec.floors else None
        return policy

    def _spec(self) -> PolicySpec:
        """What the policy in force is made of: the settings, or what an emergency puts in its place."""
        spec = self.settings.policy
        if self.mode != at.SINGLE_P99:
            return spec
        assert self.plan.controls is not None
        assert self.plan.controls.emergency is not None
        return single_p99(spec, self.plan.controls.emergency)

    def _head(self) -> int | None:
        """The waiting request that goes next, None if all are barred."""
        return self.queues.head(self.policy, self.floors, self._is_barred if self.gate else None)

    def _is_barred(self, index: int) -> bool:
        assert self.gate is not None
        usable = self.settings.num_gpu_blocks - 1
        self.gate.set({at.USED: usable - self.kv.free, at.USABLE: usable})
        return self.gate.is_barred(index, self.requests[index].known, self.clock)

    def _head_state(self, index: int) -> HeadState:
        request = self.requests[index]
        return HeadState(
            now_ps=self.clock,
            known_tokens=request.known,
            preemptions=request.preemptions,
            waiting=len(self.queues),
            running=len(self.running),
            prefill_token_ps=self.settings.step_time.prefill_token,
        )

    def _cached_tokens(self, index: int) -> int:
        return self.kv.hit(index, self.requests[index].known).count * self.settings.block_size

    def _change_policy(self) -> None:
        """The new policy starts with fresh counters and sees the waiting requests arrive in order."""
        self.policy = self._make_policy(self.policy.weights)
        waiting = list(self.queues)
        self.queues = WaitingQueues(self.workload)
        for index in waiting:
            self.policy.on_arrival(index)
            self.queues.push(index, self.policy)

    # ---- one pass -------------------------------------------------------------------------------------------------

    def _schedule(self) -> list[_Request]:
        """Decide the batch; ``tokens`` of each request in it says how many it computes."""
        settings = self.settings
        self._make_room()
        self.pass_cap = self._cap()
        if settings.prefill_first:
            return self._schedule_prefill_first()
        batch, left = self._schedule_running(self.running, settings.max_num_batched_tokens)
        if len(self.preempted) == self.yielded:
            batch += self._admit(left)
        return batch

    def _schedule_prefill_first(self) -> list[_Request]:
        prefilling = [request for request in self.running if request.prefilling]
        batch, left = self._schedule_running(prefilling, self.settings.max_num_batched_tokens)
        due = len(prefilling) == len(self.running) or self.decode_steps >= self.settings.prefill_interval
        if (prefilling or due) and len(self.preempted) == self.yielded:
            batch += self._admit(left)
        if batch:
            self.decode_steps = 0
            return batch
        batch, _left = self._schedule_running(self.running, self.settings.max_num_batched_tokens)
        if batch:
            self.decode_steps += 1
        return batch

    def _cap(self) -> int:
        """Most prefill tokens that one request may take in this pass; a lone request is not capped."""
        settings = self.settings
        unfinished = len(self.running) + len(self.queues)
        threshold = settings.long_prefill_token_threshold
        if threshold == 0 or (unfinished <= 1 and not settings.older.lone_capped):
            return _NO_CAP
        if settings.long_prefill_token_threshold_adaptive:
            return max(threshold, settings.max_num_batched_tokens // max(1, unfinished))
        return threshold

    def _schedule_running(self, candidates: list[_Request], budget: int) -> tuple[list[_Request], int]:
        """Tokens for running requests in list order; preempts where a request's blocks are not there."""
        cap = self.pass_cap
        batch: list[_Request] = []
        index = 0
        queue = candidates
        while index < len(queue) and budget > 0:
            request = queue[index]
            index += 1
            todo = request.todo
            drafts = 0
            if self.settings.speculation and todo and not request.prefilling:
                drafts = self.settings.speculation.drafts
                sampled = request.sampled + request.in_flight
                todo += min(self._accepted_drafts(request.index, sampled), request.output - sampled - 1)
            tokens = min(todo, cap, budget, self.settings.max_model_len - request.computed - 1)
            if tokens <= 0:
                continue
            needed = self._blocks(request.computed + tokens) - self.kv.owned(request.index)
            while needed > self.kv.free:
                victim = self._victim()
                position = next((at for at, other in enumerate(queue) if other is victim), None)
                if victim in batch:
                    batch.remove(victim)
                    budget += 0 if self.settings.older.victim_tokens_lost else victim.tokens
                self._preempt(victim)
                if position is not None:
                    if queue is not self.running:
                        queue.remove(victim)
                    if position < index:
                        index -= 1
                if victim is request:
                    break
            else:
                if needed > 0:
                    self.kv.grow(request.index, needed)
                self.kv.fill(request.index, min(request.computed + tokens, request.known))
                request.tokens = tokens
                request.drafts = drafts
                batch.append(request)
                budget -= tokens
                continue
            if self.victims == "last" or self.settings.older.self_preemption_ends:
                break
        return batch, budget

    def _admit(self, budget: int) -> list[_Request]:
        """Waiting requests by rank, until a head does not fit."""
        settings = self.settings
        batch: list[_Request] = []
        most = settings.max_num_active_seqs or settings.max_num_seqs
        while len(self.queues) and budget > 0 and len(self.running) < most:
            index = self._head()
            if index is None:
                break
            request = self.requests[index]
            if self.yielded and index != self.made_room_for:
                break
            hit = NO_HIT if self._drops_cache(index) else self.kv.hit(request.index, request.known)
            cached = max(hit.count * settings.block_size, self._in_host(request))
            is_handed = self.workload.handed_over and not request.preemptions
            computed = request.prompt if is_handed else cached
            if settings.precision_switch and self.running and self._precision(index) != self.precision:
                break
            wanted = min(request.known - computed, self.pass_cap)
            if wanted > budget and not settings.enable_chunked_prefill:
                break
            tokens = min(wanted, budget)
            blocks = self._blocks(self._final_tokens(request) if settings.reserve_full_kv else computed + tokens)
            checked = max(blocks, self._blocks(request.known)) if settings.scheduler_reserve_full_isl else blocks
            watermark = settings.watermark_blocks if self.running else 0
            if checked - hit.count + hit.evictable + watermark > self.kv.free:
                break
            if not request.admitted:
                self.policy.on_admit(request.index, cached)
            self._leave_queue(request)
            if settings.precision_switch:
                self._switch_precision(index)
            self.kv.admit(request.index, hit, blocks)
            if self.gate and request.admitted:
                self.gate.swap_in(request.index, hit.count * settings.block_size, self.clock)
            elif self.gate:
                self.gate.admit(request.index, cached, self.clock)
            request.computed = computed
            request.tokens = tokens
            request.drafts = 0
            self.kv.fill(request.index, min(computed + tokens, request.known))
            self.admitted.append((request.index, cached, int(request.admitted)))
            if not request.admitted:
                request.admitted = True
                self.cached[request.index] = cached
                self.scheduled_ps[request.index] = self.clock
                if self.floors:
                    self.floors.on_admit(request.index)
            self.running.append(request)
            batch.append(request)
            budget -= tokens
        return batch

    def _make_room(self) -> None:
        """SGLang's preemption: the head takes blocks and seat of much less urgent requests, by the policy's rank.

        Only if all of them together have what it lacks; then the least urgent first, of equals the latest, until it
        fits. In the same pass it alone is admitted, if the running ones have left it its blocks. Controls may deny
        it victims.
        """
        self.yielded = 0
        threshold = self.policy.spec.preemption_threshold
        unit = self.policy.threshold_unit
        if threshold is None or not unit or not len(self.queues) or not self.running:
            return
        index = self._head()
        if index is None:
            return
        head = self.requests[index]
        most = self.settings.max_num_active_seqs or self.settings.max_num_seqs
        if self._lacks(head) <= 0 and len(self.running) < most:
            return
        bound = self.policy.rank(index) + threshold * unit
        urgent = [request for request in self.running if self.policy.rank(request.index) > bound]
        urgent.sort(key=lambda request: (-self.policy.rank(request.index), -request.index))
        allowed = [request for request in urgent if self._may_give_way(request)]
        enough = allowed and self._lacks(head) <= sum(self.kv.owned(request.index) for request in allowed)
        if len(allowed) < len(urgent) and not enough:
            self._deny(head)
        if not enough:
            return
        for request in allowed:
            if self._lacks(head) <= 0 and len(self.running) < most:
                return
            if self.gate:
                self.gate.note(at.VOLUNTARY_PREEMPTED, request.index, request.computed, self.clock)
            self._preempt(request)
            self.yielded += 1
            self.made_room_for = index

    def _may_give_way(self, request: _Request) -> bool:
        if not self.gate:
            return True
        time, budget = self.settings.step_time, self.settings.max_num_batched_tokens
        return not self.gate.is_batch_full(budget) and self.gate.recovers_in_time(
            request.computed, time.base, time.prefill_token, budget
        )

    def _deny(self, head: _Request) -> None:
        """The controls leave ``head`` too few victims: it waits, or is refused if that is the rule."""
        assert self.gate is not None
        self.gate.note(at.PREEMPTION_DENIED_SEEN, head.index, 0, self.clock)
        if self.gate.c[at.DENIAL] and not head.admitted:
            self._leave_queue(head)
            self._refuse(head, PREEMPTION_DENIED)

    def _in_host(self, request: _Request) -> int:
        return self.gate.in_host(request.index) if self.gate else 0

    def _lacks(self, head: _Request) -> int:
        """Blocks that admission of ``head`` would need beyond the free ones, were it alone in its pass."""
        settings = self.settings
        hit = self.kv.hit(head.index, head.known)
        cached = max(hit.count * settings.block_size, self._in_host(head))
        computed = head.prompt if self.workload.handed_over and not head.preemptions else cached
        tokens = min(head.known - computed, settings.max_num_batched_tokens)
        blocks = self._blocks(self._final_tokens(head) if settings.reserve_full_kv else computed + tokens)
        if settings.scheduler_reserve_full_isl:
            blocks = max(blocks, self._blocks(head.known))
        watermark = settings.watermark_blocks if self.running else 0
        return blocks - hit.count + hit.evictable + watermark - self.kv.free

    def _wait_for(self, instant_ps: int) -> None:
        """Nothing runs and nobody may be admitted before ``instant_ps``; an arrival may come first."""
        upcoming_ps = self._next_arrival_ps()
        if upcoming_ps is not None and self.arrival_step is None:
            instant_ps = min(instant_ps, upcoming_ps)
        self.clock = max(self.clock, instant_ps)

    def _victim(self) -> _Request:
        if self.victims == "priority":
            return max(self.running, key=lambda request: (request.priority, request.arrival))
        if self.victims == "least-computed":
            return min(reversed(self.running), key=lambda request: request.computed)
        return self.running[-1]

    def _preempt(self, victim: _Request) -> None:
        """The victim loses its blocks and all computed tokens, keeps its sampled ones, and waits at the head."""
        self.running.remove(victim)
        self.kv.release(victim.index)
        if self.gate and self._ever_fits(victim):
            self.gate.swap_out(victim.index, victim.computed, self.clock)
        victim.computed = 0
        victim.in_flight = 0
        victim.preemptions += 1
        self.preempted.append(victim.index)
        if self._ever_fits(victim):
            self._enqueue(victim)
        else:
            self._refuse(victim, NEVER_FITS)

    # ---- execution and output -------------------------------------------------------------------------------------

    def _start(self, batch: list[_Request]) -> int:
        """Start the step of ``batch``; returns its duration (0 for an empty batch)."""
        if not batch:
            return 0
        prefill_tokens = decodes = context = 0
        step = _InFlight(0)
        progress = False
        for request in batch:
            if request.prefilling:
                prefill_tokens += request.tokens
            else:
                decodes += 1
            after = request.computed + request.tokens
            self.computed[request.index] += request.tokens
            self.recomputed[request.index] += max(0, min(after, request.best) - request.computed)
            progress = progress or after > request.best
            request.best = max(request.best, after)
            context += after
        if progress:
            self.idle_passes = 0
        duration = _step_ps(self.settings.step_time, prefill_tokens, decodes, context)
        if self.settings.moe:
            duration = _step_ps(self.settings.step_time, 0, 0, context) + sum(map(self._drawn_ps, batch))
        if self.drafting and self.settings.speculation:
            duration += self.drafting.step_ps(self.settings.speculation, [(r.index, r.drafts, r.tokens) for r in batch])
        if self.gate:
            duration += self.gate.wait_for_swaps()
            self.gate.set({at.UTILISED: sum(request.tokens for request in batch)})
        if self.on_step:
            self.scheduled = [(r.index, r.tokens, int(r.prefilling)) for r in batch]
        for request in batch:
            request.computed += request.tokens
            samples = request.computed - request.known - request.in_flight + 1
            if samples > 0:
                step.outputs.append((request, request.preemptions, samples))
                request.in_flight += samples if request.output else 0
        step.end = max(self.clock, self.busy_until) + duration
        self.busy_until = step.end
        self.flying.append(step)
        return duration

    def _take_output(self, step: _InFlight) -> None:
        """Deliver the step's samples in batch order; finished requests give their blocks back at once."""
        self.clock = step.end
        for request, preemptions, samples in step.outputs:
            if request.done:
                continue
            index = request.index
            if request.output:
                request.known += samples
                if request.preemptions == preemptions:
                    request.in_flight -= samples
                    if request.sampled < request.output:
                        self.kv.fill(index, min(request.computed - request.in_flight, request.known))
                self.policy.on_tokens(index, samples)
                if self.floors:
                    self.floors.on_tokens(index, samples)
                if self.gate:
                    self.gate.tokens(index, samples)
            if request.sampled <= 1:
                self.first_token_ps[index] = self.clock
                self.policy.on_first_token(index, self.clock - request.arrival)
                if self.gate:
                    self.gate.first_token(index, self.clock)
            if request.sampled >= request.output:
                self._finish(request)

    def _finish(self, request: _Request) -> None:
        if request.waiting:
            self._leave_queue(request)
        else:
            self.running.remove(request)
            self.kv.release(request.index)
        request.done = True
        self.finished_ps[request.index] = self.clock
        self.status[request.index] = OK
        self.finished.append(request.index)
        self.policy.on_finish(request.index, request.sampled)
        if self.gate:
            self.gate.finish(request.index)

    def _refuse(self, request: _Request, reason: int) -> None:
        """A request that is not (or no longer) in any queue is turned away for good."""
        request.done = True
        self.finished_ps[request.index] = self.clock
        self.status[request.index] = REFUSED
        self.reason[request.index] = reason
        if self.gate:
            self.gate.refuse(request.index, reason, self.clock)

    def _guard_progress(self, batch: list[_Request], took_output: bool) -> None:
        """An empty engine that admits nobody refuses the head; endless mutual preemption refuses the youngest."""
        self.idle_passes += 1
        if not batch and not took_output and not self.preempted and not self.running and len(self.queues):
            head = self._head()
            if head is None:
                self.idle_passes = 0
                ends = self.floors.window_end_ps if self.floors else at.FOREVER
                self._wait_for(min(ends, self.gate.wakes_ps(self.clock)) if self.gate else ends)
                return
            request = self.requests[head]
        elif self.idle_passes > PASSES_WITHOUT_PROGRESS_MAX:
            self.idle_passes = 0
            request = self.requests[max(self.queues, default=max((r.index for r in self.running), default=0))]
        else:
            return
        if request.waiting:
            self._leave_queue(request)
        else:
            self.running.remove(request)
            self.kv.release(request.index)
        self._refuse(request, LIVELOCK)

    # ---- small pieces ---------------------------------------------------------------------------------------------

    def _accepted_drafts(self, index: int, sampled: int) -> int:
        assert self.settings.speculation
        assert self.workload.draw is not None
        kind, seed = int(self.workload.type[index]), int(self.workload.draw[index])
        return accepted_drafts(self.settings.speculation, kind, seed, sampled)

    def _drawn_ps(self, request: _Request) -> int:
        """What the tokens of ``request`` take of a step whose experts differ in cost."""
        assert self.settings.moe
        assert self.workload.draw is not None
        time, tokens = self.settings.step_time, request.tokens if request.prefilling else 1
        kind, seed = int(self.workload.type[request.index]), int(self.workload.draw[request.index])
        cost = drawn_cost(self.settings.moe, kind, seed, request.computed, tokens)
        return (time.prefill_token if request.prefilling else time.decode_sequence) * cost // MICRO

    def _precision(self, index: int) -> int:
        assert self.workload.precision is not None
        return int(self.workload.precision[index])

    def _drops_cache(self, index: int) -> bool:
        """Whether a batch with ``index`` would find nothing cached, because it has another precision than the last."""
        if self.settings.precision_switch != "drop":
            return False
        return self.precision not in (NEVER, self._precision(index))

    def _switch_precision(self, index: int) -> None:
        """The batch has the precision of ``index``, which is admitted; if the last one had another, nobody runs now."""
        self.switched[index] |= self.precision not in (NEVER, self._precision(index))
        if self._drops_cache(index) and isinstance(self.kv, PrefixKv):
            self.kv.forget_all()
        self.precision = self._precision(index)

    def _enqueue(self, request: _Request) -> None:
        request.waiting = True
        self.queues.push(request.index, self.policy)

    def _leave_queue(self, request: _Request) -> None:
        request.waiting = False
        self.queues.remove(request.index, self.policy)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.settings.block_size)

    def _final_tokens(self, request: _Request) -> int:
        """KV tokens held at the finish: the last sampled token is never computed."""
        return request.prompt + max(0, request.output - 1)

    def _ever_fits(self, request: _Request) -> bool:
        return self._blocks(self._final_tokens(request)) <= self.settings.num_gpu_blocks - 1

    def _named(self, index: int) -> int:
        """The request of the workload that a ticket stands for."""
        return index if self.workload.of is None else int(self.workload.of[index])

    def _emit(
        self, batch: list[_Request], now_ps: int, duration: int, start: int, free_scheduled: int, took_output: bool
    ) -> None:
        if batch:
            self.steps += 1
        if self.on_step and (batch or self.preempted or took_output):
            self.on_step(
                Step(
                    step=self.passes,
                    t_ps=now_ps,
                    dt_ps=duration,
                    start_ps=start,
                    arrived=[self._named(index) for index in self.arrived],
                    admitted=[(self._named(one[0]), *one[1:]) for one in self.admitted],
                    scheduled=[(self._named(one[0]), *one[1:]) for one in self.scheduled] if batch else [],
                    preempted=[self._named(index) for index in self.preempted],
                    finished=[self._named(index) for index in self.finished],
                    free_blocks_scheduled=free_scheduled,
                    free_blocks=self.kv.free,
                    waiting=len(self.queues),
                    running=len(self.running),
                )
            )
            self.arrived = []
        self.admitted = []
        self.preempted = []
        self.finished = []
        if not self.on_step:
            self.arrived = []

    def result(self) -> EngineResult:
        for request in self.requests:
            self.preemptions[request.index] = request.preemptions
        columns = {
            "scheduled_ps": self.scheduled_ps,
            "first_token_ps": self.first_token_ps,
            "finished_ps": self.finished_ps,
            "status": self.status,
            "reason": self.reason,
            "preemptions": self.preemptions,
            "recomputed_tokens": self.recomputed,
            "cached_tokens": self.cached,
            "computed_tokens": self.computed,
        }
        details = {"switched": self.switched} if self.settings.precision_switch else {}
        details |= self.drafting.details() if self.drafting else {}
        if not self.gate:
            return EngineResult(**columns, steps=self.steps, end_ps=self.clock, details=details)
        return of_requests(
            columns, details, self.gate.t(), self.gate.events(), len(self.source), self.steps, self.clock
        )


def _step_ps(step_time: StepTime, prefill_tokens: int, decodes: int, context: int) -> int:
    return (
        step_time.base
        + step_time.prefill_token * prefill_tokens
        + step_time.decode_sequence * decodes
        + step_time.context_token * context
    )
