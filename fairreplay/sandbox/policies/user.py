"""A policy of the user's own: ``rank`` of a Python file, called with the fields of a head that it names.

For instance, shortest prompt first with ageing::

    def rank(prompt_tokens, now_ps, arrival_ps):
        return prompt_tokens - (now_ps - arrival_ps) // 10**9

or, with all fields at once, ``def rank(head): return head.prompt_tokens``. Lowest goes first, ties by (arrival, order
in the source). All fields and the result are integers. The function must be one that Numba compiles, and must not
depend on anything but its arguments.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from fairreplay.errors import UsageError, nearest
from fairreplay.sandbox.engine import WEIGHT_SCALE, PolicySpec, UserRank, Workload
from fairreplay.sandbox.policies.base import HeadState, Policy

HEAD_FIELDS: Final = {
    "now_ps": "clock of the pass, picoseconds since the period's start",
    "arrival_ps": "arrival, on the same clock",
    "prompt_tokens": "length of the prompt",
    "known_tokens": "prompt and tokens sampled so far (more than the prompt after a preemption)",
    "priority": "priority, lower is better",
    "tenant": "number of the tenant, in order of name",
    "type": "number of the request type, in order of name",
    "preemptions": "how often the request was preempted",
    "service": "the tenant's service so far: prompt_cost a prompt token at admission, output_cost an output token as "
    "it is sampled, each times the scaled inverse weight",
    "inverse_weight": "2**20 / weight that the request is charged with",
    "waiting": "requests that wait",
    "running": "requests that run",
}
"""Fields of a head that a rank may name as its parameters."""

Head = NamedTuple("Head", [(name, int) for name in HEAD_FIELDS])  # type: ignore[misc]
"""What a rank gets whose only parameter is ``head``."""
WHOLE_HEAD: Final = ("head",)


_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*:[A-Za-z_][A-Za-z0-9_]*")
"""The replay is named after the file and the function."""


class User(Policy):
    """Ranks heads by the user's function; counts each tenant's service for it."""

    def __init__(self, spec: PolicySpec, workload: Workload) -> None:
        super().__init__(spec, workload)
        assert spec.rank is not None
        self._rank = spec.rank
        self._service = [0] * len(workload.tenants)

    def rank(self, request: int) -> int:
        state = self.head_state(request)
        load, tenant = self.workload, int(self.workload.tenant[request])
        values = {
            "now_ps": state.now_ps,
            "arrival_ps": int(load.arrival_ps[request]),
            "prompt_tokens": int(load.prompt_tokens[request]),
            "known_tokens": state.known_tokens,
            "priority": int(load.priority[request]),
            "tenant": tenant,
            "type": int(load.type[request]),
            "preemptions": state.preemptions,
            "service": self._service[tenant],
            "inverse_weight": self.inverse_weight(request),
            "waiting": state.waiting,
            "running": state.running,
        }
        try:
            if self._rank.fields == WHOLE_HEAD:
                return int(self._rank.function(Head(**values)))
            return int(self._rank.function(*(values[name] for name in self._rank.fields)))
        except Exception as error:
            raise failed(self._rank, request, repr(error)) from None

    def on_admit(self, request: int, cached: int) -> None:
        self._charge(request, self.spec.prompt_cost * int(self.workload.prompt_tokens[request]))

    def on_tokens(self, request: int, k: int) -> None:
        self._charge(request, self.spec.output_cost * k)

    def _charge(self, request: int, units: int) -> None:
        self._service[int(self.workload.tenant[request])] += units * self.inverse_weight(request)


def failed(rank: UserRank, request: int, why: str) -> UsageError:
    return UsageError(f"policy {rank.name}: rank raised an error for request number {request}: {why}")


def load_rank(text: str) -> UserRank:
    """The function that ``path/file.py:function`` names.

    Raises:
        UsageError: no such file or function, the file does not run, or a parameter is no field of a head.
    """
    where, _, name = text.rpartition(":")
    path = Path(where)
    if not _PLAIN.fullmatch(f"{path.name}:{name}"):
        raise UsageError(f"policy {text!r}: write path/file.py:function, with letters, digits, '_', '-' and '.' alone")
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"policy {text!r}: cannot read {where!r} ({error}); write path/file.py:function") from None
    space: dict[str, object] = {"__name__": path.stem, "__file__": str(path)}
    try:
        exec(compile(source, str(path), "exec"), space)
    except Exception as error:
        raise UsageError(f"policy {text!r}: the file does not run: {error!r}") from None
    function = space.get(name)
    if not inspect.isfunction(function):
        raise UsageError(f"policy {text!r}: {path.name} has no function {name!r}")
    fields = tuple(inspect.signature(function).parameters)
    for parameter in () if fields == WHOLE_HEAD else fields:
        if parameter not in HEAD_FIELDS:
            hint = nearest(parameter, list(HEAD_FIELDS))
            raise UsageError(f"policy {text!r}: parameter {parameter!r} is no field of a head; {hint}")
    digest = hashlib.sha256(f"{name}\n{source}".encode()).hexdigest()[:16]
    return UserRank(name=f"{path.name}:{name}", digest=digest, fields=fields, function=function)


TRIED_REQUESTS: Final = 1000


def try_rank(rank: UserRank, workload: Workload) -> None:
    """Rank the first requests as if each stood alone: what would fail at once, fails before the run.

    Raises:
        UsageError: the function raised an error.
    """
    policy = User(PolicySpec("user", rank=rank), workload)
    policy.weights = np.full(len(workload.tenants), WEIGHT_SCALE, np.int64)
    policy.head_state = lambda request: HeadState(
        now_ps=int(workload.arrival_ps[request]),
        known_tokens=int(workload.prompt_tokens[request]),
        preemptions=0,
        waiting=1,
        running=0,
    )
    for request in range(min(len(workload), TRIED_REQUESTS)):
        policy.rank(request)
