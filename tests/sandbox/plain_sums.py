"""Step sums as the plain engine's steps give them: what the compiled engine's sums must equal."""

from __future__ import annotations

import polars as pl

from fairreplay.sandbox.engine import PS_PER_SECOND, PS_PER_US, Step
from fairreplay.sandbox.plan import Shard
from fairreplay.store.replays import STEP_SCHEMA


class StepSeconds:
    """Steps of one replica summed by (second of their start, class); sums are integers, means are made at the end."""

    def __init__(self, shard: Shard, start_us: int) -> None:
        self._model = shard.model
        self._replica = shard.replica
        self._start_ps = start_us * PS_PER_US
        self._usable = [(at_ps, settings.num_gpu_blocks - 1) for at_ps, settings in shard.plan.settings]
        self._sums: dict[tuple[int, str], list[int]] = {}

    def add(self, step: Step) -> None:
        prefills = sum(is_prefill for _, _, is_prefill in step.scheduled)
        decodes = len(step.scheduled) - prefills
        kind = "decode" if prefills == 0 else "prefill" if decodes == 0 else "mixed"
        while len(self._usable) > 1 and self._usable[1][0] <= step.t_ps:
            self._usable.pop(0)
        sums = self._sums.setdefault(((self._start_ps + step.start_ps) // PS_PER_SECOND, kind), [0] * 6)
        sums[0] += 1
        sums[1] += sum(tokens for _, tokens, _ in step.scheduled)
        sums[2] += step.running
        sums[3] += step.waiting
        sums[4] += self._usable[0][1] - step.free_blocks_scheduled
        sums[5] += len(step.preempted)

    def frame(self) -> pl.DataFrame:
        rows = [
            (
                self._model,
                self._replica,
                second,
                kind,
                steps,
                tokens,
                running / steps,
                waiting / steps,
                used / steps,
                preempted,
            )
            for (second, kind), (steps, tokens, running, waiting, used, preempted) in sorted(self._sums.items())
        ]
        return pl.DataFrame(rows, schema=dict(STEP_SCHEMA), orient="row")
