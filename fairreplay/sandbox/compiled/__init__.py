"""The compiled engine: ``reference``'s decisions to the bit, at millions of requests a second."""

from pathlib import Path

import numpy as np

from fairreplay.sandbox.compiled.engine import KINDS, StepSums, run, run_with_sums
from fairreplay.sandbox.compiled.kernel import advance
from fairreplay.sandbox.compiled.sources import kernel_sources
from fairreplay.sandbox.compiled.user_rank import compile_rank
from fairreplay.sandbox.engine import EngineSettings, Plan, StepTime, Workload

__all__ = ["KINDS", "StepSums", "compile_engine", "compile_rank", "is_compiled", "run", "run_with_sums"]


def is_compiled() -> bool:
    """Whether an earlier run has left the machine code in the cache; else the first replay compiles it."""
    folder = Path(advance._cache.cache_path)  # type: ignore[attr-defined]
    sources = max(path.stat().st_mtime for path in kernel_sources())
    return any(path.stat().st_mtime > sources for path in folder.glob("kernel*.nbc"))


def compile_engine() -> None:
    """Serve one request, which compiles the engine where the cache does not have it."""
    nothing, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    work = Workload(
        arrival_ps=nothing,
        prompt_tokens=one,
        output_tokens=one,
        priority=nothing,
        tenant=nothing,
        type=nothing,
        request_weight=nothing,
        prefix_start=np.zeros(2, np.int64),
        prefix_ids=nothing[:0],
        prefix_block_tokens=0,
        tenants=("",),
        types=("",),
    )
    run(work, Plan(settings=((0, EngineSettings(StepTime(1, 0, 0, 0))),), weights=((0, one),)))
