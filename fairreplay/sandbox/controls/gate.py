"""The controls as the plain engine sees them: rows of integers behind a few named calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fairreplay.sandbox.controls import door, swap
from fairreplay.sandbox.controls import places as at
from fairreplay.sandbox.controls.build import build, capacity
from fairreplay.sandbox.controls.events import note
from fairreplay.sandbox.controls.tickets import prepare
from fairreplay.sandbox.engine import REFUSED, Controls, EngineResult, Int64s, Workload

ROOM = 1 << 16


class Gate:
    """Controls of one run. ``tickets`` are its arrivals as they become known: a workload that grows."""

    def __init__(self, controls: Controls, workload: Workload) -> None:
        rows = build(controls, workload, room=ROOM)
        self.c, self._s, self._t, self._w = rows.c, rows.s, rows.t, rows.w
        self._source = workload
        self._events: list[list[int]] = []
        self.tickets = tickets_of(workload, capacity(controls, len(workload)))
        self._prepare()

    def set(self, values: Mapping[int, int]) -> None:
        """Settings or weights that are in force from now on, by their places in ``c``."""
        for place, value in values.items():
            self.c[place] = value

    def _prepare(self) -> None:
        """The next arrival, as things stand, is one of ``tickets``."""
        if prepare(self.c, self._s, self._t) != at.FOREVER:
            ticket = self.c[at.TICKETS]
            copy_ticket(self.tickets, self._source, ticket, self._t[ticket * at.TICKET + at.OF])
            self.tickets.arrival_ps[ticket] = self._t[ticket * at.TICKET + at.ARRIVED]

    # ---- what the engine tells and asks ----

    def arrive(self, ticket: int, reason: int) -> int:
        """Why the next ticket is refused; ``reason`` is why the engine itself would."""
        reason = door.arrive(self.c, self._s, self._t, self._w, ticket, reason)
        self._prepare()
        return reason

    def attempt(self, ticket: int) -> int:
        """1 at the first arrival of the ticket's request."""
        return self._t[ticket * at.TICKET + at.ATTEMPT]

    def refuse(self, ticket: int, reason: int, now_ps: int) -> None:
        door.refuse(self.c, self._s, self._t, ticket, reason, now_ps)
        self._prepare()

    def tick(self, now_ps: int) -> None:
        door.tick(self.c, self._t, self._w, now_ps)
        self._drain()

    def expired(self, now_ps: int) -> int:
        return door.expired(self.c, self._t, now_ps)

    def is_barred(self, ticket: int, known: int, now_ps: int) -> bool:
        return door.is_barred(self.c, self._s, self._t, ticket, known, now_ps)

    def wakes_ps(self, now_ps: int) -> int:
        return door.wakes_ps(self.c, self._t, now_ps)

    def admit(self, ticket: int, cached: int, now_ps: int) -> None:
        door.admit(self.c, self._s, self._t, self._w, ticket, cached, now_ps)

    def first_token(self, ticket: int, now_ps: int) -> None:
        door.first_token(self.c, self._s, self._t, ticket, now_ps)

    def tokens(self, ticket: int, count: int) -> None:
        door.tokens(self.c, self._s, self._t, ticket, count)

    def finish(self, ticket: int) -> None:
        door.finish(self.c, self._t, ticket)

    def is_batch_full(self, budget: int) -> bool:
        return swap.is_batch_full(self.c, budget)

    def recovers_in_time(self, computed: int, base_ps: int, prefill_ps: int, budget: int) -> bool:
        return swap.recovers_in_time(self.c, computed, base_ps, prefill_ps, budget)

    def swap_out(self, ticket: int, computed: int, now_ps: int) -> None:
        swap.swap_out(self.c, self._t, self._w, ticket, computed, now_ps)

    def in_host(self, ticket: int) -> int:
        return swap.in_host(self._t, ticket)

    def swap_in(self, ticket: int, cached: int, now_ps: int) -> None:
        swap.swap_in(self.c, self._t, self._w, ticket, cached, now_ps)

    def wait_for_swaps(self) -> int:
        return swap.wait_for_swaps(self.c)

    def note(self, what: int, who: int, value: int, now_ps: int) -> None:
        note(self.c, self._w, now_ps, what, who, value)

    # ---- afterwards ----

    def _drain(self) -> None:
        for event in range(self.c[at.EVENTS]):
            self._events.append(self._w[event * at.EVENT : (event + 1) * at.EVENT])
        self.c[at.EVENTS] = 0

    def events(self) -> Int64s:
        self._drain()
        return np.array(self._events, np.int64).reshape(-1, at.EVENT)

    def t(self) -> Int64s:
        """Rows of the tickets that were taken."""
        return np.array(self._t[: self.c[at.TICKETS] * at.TICKET], np.int64).reshape(-1, at.TICKET)


def tickets_of(source: Workload, most: int) -> Workload:
    """Room for ``most`` arrivals of the requests of ``source``; none is known yet."""
    nothing = np.zeros(most, np.int64)
    return replace(
        source,
        arrival_ps=np.full(most, at.FOREVER, np.int64),
        prompt_tokens=nothing.copy(),
        output_tokens=nothing.copy(),
        priority=nothing.copy(),
        tenant=nothing.copy(),
        type=nothing.copy(),
        request_weight=nothing.copy(),
        prefix_start=np.zeros(most + 1, np.int64),
        prefix_ids=np.zeros(0, np.int64),
        over_limit=None,
        draw=None if source.draw is None else nothing.copy(),
        cost=None if source.cost is None else nothing.copy(),
        precision=None if source.precision is None else nothing.copy(),
        source=source,
        of=nothing.copy(),
    )


def copy_ticket(tickets: Workload, source: Workload, ticket: int, request: int) -> None:
    """``ticket`` is an arrival of ``request``."""
    assert tickets.of is not None
    tickets.of[ticket] = request
    for name in ("prompt_tokens", "output_tokens", "priority", "tenant", "type", "request_weight"):
        getattr(tickets, name)[ticket] = getattr(source, name)[request]
    for name in ("draw", "cost", "precision"):
        if getattr(source, name) is not None:
            getattr(tickets, name)[ticket] = getattr(source, name)[request]


def of_requests(
    by_ticket: Mapping[str, Int64s],
    details: Mapping[str, Int64s],
    t: Int64s,
    events: Int64s,
    requests: int,
    steps: int,
    end_ps: int,
) -> EngineResult:
    """What became of each request in the end, from the columns of ``EngineResult`` by ticket and the rows ``t``.

    Tokens and preemptions are those of the last ticket: who was refused had none.
    """
    last = np.zeros(requests, np.int64)
    last[t[:, at.OF]] = np.arange(len(t))
    refused = np.flatnonzero(by_ticket["status"][: len(t)] == REFUSED)
    refusals = [
        t[refused, at.OF],
        t[refused, at.ATTEMPT],
        by_ticket["finished_ps"][refused],
        by_ticket["reason"][refused],
    ]
    events = events.copy()
    of_tickets = np.isin(events[:, at.E_WHAT], at.ABOUT_TICKETS)
    events[of_tickets, at.E_WHO] = t[events[of_tickets, at.E_WHO], at.OF]
    return EngineResult(
        **{name: column[last] for name, column in by_ticket.items()},
        steps=steps,
        end_ps=end_ps,
        attempts=t[last, at.ATTEMPT],
        refusals=np.stack(refusals, axis=1),
        events=events,
        details={name: column[last] for name, column in details.items()},
    )
