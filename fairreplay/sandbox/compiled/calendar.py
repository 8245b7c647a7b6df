"""When members of the cohort sample their last token: a calendar queue over ticks, with a bitmap to look ahead.

``calendar`` has a power of two of places, more than any request has output tokens; each leads to the members whose
last tick it is. ``marks`` has a bit for each place that is not empty and, behind these, a bit for each such word.
"""

from __future__ import annotations

from fairreplay.sandbox.compiled import layout as at
from fairreplay.sandbox.compiled.jit import compiled, inlined, trailing_zeros
from fairreplay.sandbox.engine import Int64s


@inlined
def enter(e: Int64s, run: Int64s, calendar: Int64s, marks: Int64s, slot: int) -> None:
    finish = run[slot + at.FINISH]
    place = finish & (len(calendar) - 1) & at.INDEX
    head = calendar[place] & at.INDEX
    run[slot + at.EARLIER] = 0
    run[slot + at.LATER] = head
    calendar[place] = slot
    if head != 0:
        run[head + at.EARLIER] = slot
    else:
        word = place >> 6
        marks[word] |= 1 << (place & 63)
        marks[(len(calendar) >> 6) + (word >> 6)] |= 1 << (word & 63)
    if finish < e[at.NEXT_FINISH]:
        e[at.NEXT_FINISH] = finish


@inlined
def clear_place(calendar: Int64s, marks: Int64s, place: int) -> None:
    calendar[place] = 0
    word = place >> 6
    marks[word] &= ~(1 << (place & 63))
    if marks[word] == 0:
        marks[(len(calendar) >> 6) + (word >> 6)] &= ~(1 << (word & 63))


@inlined
def leave(e: Int64s, run: Int64s, calendar: Int64s, marks: Int64s, slot: int) -> None:
    """A member goes before its last tick."""
    earlier = run[slot + at.EARLIER] & at.INDEX
    later = run[slot + at.LATER] & at.INDEX
    if later != 0:
        run[later + at.EARLIER] = earlier
    if earlier != 0:
        run[earlier + at.LATER] = later
        return
    place = run[slot + at.FINISH] & (len(calendar) - 1) & at.INDEX
    calendar[place] = later
    if later == 0:
        clear_place(calendar, marks, place)
        if run[slot + at.FINISH] == e[at.NEXT_FINISH]:
            find_next_finish(e, calendar, marks)


@inlined
def find_next_finish(e: Int64s, calendar: Int64s, marks: Int64s) -> None:
    """Set NEXT_FINISH to the first tick after this one at which somebody finishes."""
    base = e[at.TICK] + 1
    place = base & (len(calendar) - 1) & at.INDEX
    bits = marks[place >> 6] >> (place & 63)
    if bits != 0:
        e[at.NEXT_FINISH] = base + trailing_zeros(bits)
    else:
        _find_far_finish(e, calendar, marks, base)


@compiled
def _find_far_finish(e: Int64s, calendar: Int64s, marks: Int64s, base: int) -> None:
    mask = len(calendar) - 1
    words = len(calendar) >> 6
    place = base & mask
    first = ((place >> 6) + 1) & (words - 1)
    above = first >> 6
    bits = marks[words + above] >> (first & 63)
    if bits != 0:
        word = first + trailing_zeros(bits)
    else:
        word = -1
        groups = words >> 6
        for step in range(1, groups + 1):
            group = (above + step) & (groups - 1)
            if marks[words + group] != 0:
                word = (group << 6) + trailing_zeros(marks[words + group])
                break
        if word < 0:
            e[at.NEXT_FINISH] = at.NO_CAP
            return
    found = (word << 6) + trailing_zeros(marks[word])
    e[at.NEXT_FINISH] = base + ((found - place) & mask)
