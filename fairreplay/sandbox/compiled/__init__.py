"""The compiled engine: ``reference``'s decisions to the bit, at millions of requests a second."""

from collections.abc import Iterable

from fairreplay.sandbox.compiled.engine import KINDS, StepSums, needed_parts, run, run_with_sums
from fairreplay.sandbox.compiled.parts import compile_parts, missing

__all__ = ["KINDS", "StepSums", "compile_engine", "is_compiled", "run", "run_with_sums"]


def is_compiled(
    policies: Iterable[str] = (),
    extras: bool = False,
    pools: bool = False,
    controls: bool = False,
    estimates: bool = False,
) -> bool:
    """Whether earlier runs have left the machine code that replays under ``policies`` need; else it is compiled."""
    return not missing(needed_parts(policies, extras, pools, controls, estimates))


def compile_engine(
    policies: Iterable[str] = (),
    extras: bool = False,
    pools: bool = False,
    controls: bool = False,
    estimates: bool = False,
) -> None:
    """Compile what replays under ``policies`` need, where the cache does not have it."""
    compile_parts(missing(needed_parts(policies, extras, pools, controls, estimates)))
