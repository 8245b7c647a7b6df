"""Type floors: who goes first because its type was served too little, and who is barred (``engine.TypeFloors``)."""

from __future__ import annotations

from fairreplay.sandbox.engine import FLOOR_SCALE, NO_CAP, TypeFloors, Workload


class Floors:
    """Tokens served by type since the current window began, and who is below its floor."""

    def __init__(self, floors: TypeFloors, workload: Workload) -> None:
        self._window_ps = floors.window_ps
        self._shares = [*floors.shares, *[0] * len(workload.types)][: len(workload.types)]
        self._caps = [*floors.caps, *[NO_CAP] * len(workload.types)][: len(workload.types)]
        self._workload = workload
        self._window = -1
        self._served = [0] * len(workload.types)

    def advance(self, now_ps: int) -> None:
        """A pass begins: counters start anew with each window."""
        if now_ps // self._window_ps != self._window:
            self._window = now_ps // self._window_ps
            self._served = [0] * len(self._served)

    def on_admit(self, request: int) -> None:
        self._served[self._workload.type[request]] += int(self._workload.prompt_tokens[request])

    def on_tokens(self, request: int, k: int) -> None:
        self._served[self._workload.type[request]] += k

    @property
    def window_end_ps(self) -> int:
        """When counters start anew."""
        return (self._window + 1) * self._window_ps

    def bars(self, kind: int) -> bool:
        """Whether nobody of this type is admitted any more in this window."""
        return self._served[kind] >= self._caps[kind]

    def rank(self, kind: int) -> int:
        """0 for a type below its floor, else 1."""
        return 0 if self._served[kind] * FLOOR_SCALE < self._shares[kind] * sum(self._served) else 1
