"""The compiled engine: ``reference``'s decisions to the bit, at millions of requests a second."""

from fairreplay.sandbox.compiled.engine import KINDS, StepSums, run, run_with_sums
from fairreplay.sandbox.compiled.parts import compile_parts, missing

__all__ = ["KINDS", "StepSums", "compile_engine", "is_compiled", "run", "run_with_sums"]


def is_compiled() -> bool:
    """Whether an earlier run has left the machine code in the cache; else the first replay compiles it."""
    return not missing()


def compile_engine() -> None:
    """Compile what every replay needs, where the cache does not have it."""
    compile_parts(missing())
