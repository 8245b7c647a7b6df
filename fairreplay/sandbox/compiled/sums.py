"""Steps summed by (second of their start, class), as the report shows them."""

from __future__ import annotations

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import compiled, inlined
from fairreplay.sandbox.engine import PS_PER_SECOND, Int64s


@compiled
def flush(e: Int64s, sums: Int64s, rows: Int64s) -> None:
    """The second at hand is over: its sums become rows."""
    for kind in range(3):
        first = kind * at.SUMS
        if sums[first + at.SUM_STEPS] == 0:
            continue
        row = e[at.ROWS]
        e[at.ROWS] = row + 1
        rows[row, 0] = e[at.SECOND]
        rows[row, 1] = kind
        for column in range(at.SUMS):
            rows[row, 2 + column] = sums[first + column]
            sums[first + column] = 0


@inlined
def reach(e: Int64s, sums: Int64s, rows: Int64s, start_ps: int) -> None:
    """Make the second in which a step starts the one at hand."""
    second = (start_ps + e[at.SECOND_OFFSET]) // PS_PER_SECOND
    if second != e[at.SECOND]:
        flush(e, sums, rows)
        e[at.SECOND] = second


@inlined
def add_pass(
    e: Int64s, sums: Int64s, rows: Int64s, start_ps: int, prefills: int, decodes: int, tokens: int, used: int
) -> None:
    """One pass that has ended; ``prefills`` and ``decodes`` are requests, ``used`` blocks after scheduling."""
    reach(e, sums, rows, start_ps)
    kind = at.DECODE_CLASS if prefills == 0 else at.PREFILL_CLASS if decodes == 0 else at.MIXED_CLASS
    first = kind * at.SUMS
    sums[first + at.SUM_STEPS] += 1
    sums[first + at.SUM_TOKENS] += tokens
    sums[first + at.SUM_RUNNING] += e[at.RUNNING]
    sums[first + at.SUM_WAITING] += e[at.WAITING]
    sums[first + at.SUM_USED] += used
    sums[first + at.SUM_PREEMPTED] += e[at.PREEMPTED]
