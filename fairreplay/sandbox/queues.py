"""The waiting requests of one replica: FIFO queues per (tenant, type, priority), ranked by the policy."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator

from fairreplay.sandbox.engine import Workload
from fairreplay.sandbox.floors import Floors
from fairreplay.sandbox.policies.base import Policy

QueueKey = tuple[int, int, int]


class WaitingQueues:
    """Requests are indices in arrival order, so a queue in index order is first come, first served.

    A preempted request arrived before everything that waits in its queue, so index order also puts it at the head.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._queues: dict[QueueKey, list[int]] = {}
        self._waiting_of_tenant: dict[int, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(request for queue in self._queues.values() for request in queue))

    def _key_of(self, request: int) -> QueueKey:
        work = self._workload
        return int(work.tenant[request]), int(work.type[request]), int(work.priority[request])

    def push(self, request: int, policy: Policy) -> None:
        key = self._key_of(request)
        insort(self._queues.setdefault(key, []), request)
        self._count += 1
        tenant = key[0]
        self._waiting_of_tenant[tenant] = self._waiting_of_tenant.get(tenant, 0) + 1
        if self._waiting_of_tenant[tenant] == 1:
            policy.on_queue_filled(tenant)

    def head(
        self, policy: Policy, floors: Floors | None = None, is_barred: Callable[[int], bool] | None = None
    ) -> int | None:
        """The request that goes next: lowest rank among the heads, those of types below their floor before others.

        Ties go by (arrival, order in the source); where the policy ranks tenants, by the tenant's name first. None: the
        types of all heads are barred, or all heads by the controls.
        """
        queues = {key: queue for key, queue in self._queues.items() if not (floors and floors.bars(key[1]))}
        if is_barred:
            queues = {key: queue for key, queue in queues.items() if not is_barred(queue[0])}
        if len(queues) <= 1:
            return next((queue[0] for queue in queues.values()), None)
        return min(
            (
                floors.rank(key[1]) if floors else 0,
                policy.rank(queue[0]),
                key[0] if policy.ranks_tenants else 0,
                queue[0],
            )
            for key, queue in queues.items()
        )[3]

    def remove(self, request: int, policy: Policy) -> None:
        key = self._key_of(request)
        queue = self._queues[key]
        queue.remove(request)
        if not queue:
            del self._queues[key]
        self._count -= 1
        tenant = key[0]
        self._waiting_of_tenant[tenant] -= 1
        if not self._waiting_of_tenant[tenant]:
            policy.on_queue_empty(tenant)
