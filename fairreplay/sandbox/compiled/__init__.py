"""The compiled engine: ``reference``'s decisions to the bit, at millions of requests a second."""

from pathlib import Path

from fairreplay.sandbox.compiled.engine import KINDS, StepSums, run, run_with_sums
from fairreplay.sandbox.compiled.kernel import advance
from fairreplay.sandbox.compiled.user_rank import compile_rank

__all__ = ["KINDS", "StepSums", "compile_rank", "is_compiled", "run", "run_with_sums"]


def is_compiled() -> bool:
    """Whether an earlier run has left the machine code in the cache; else the first replay compiles it."""
    folder = Path(advance._cache.cache_path)  # type: ignore[attr-defined]
    sources = max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))
    return any(path.stat().st_mtime > sources for path in folder.glob("kernel*.nbc"))
