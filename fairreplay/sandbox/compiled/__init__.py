"""The compiled engine: ``reference``'s decisions to the bit, millions of requests a second."""

from fairreplay.sandbox.compiled.engine import KINDS, StepSums, run, run_with_sums

__all__ = ["KINDS", "StepSums", "run", "run_with_sums"]
