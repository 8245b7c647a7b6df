"""JSON lines of flat objects into columns by compiled code: for long logs, of which it reads several times as much in
a second as a reader of any JSON.

It knows numbers, names and lists of ids under known keys, in any order, each at most once. Whatever else a line holds
(an escape, an exponent, a nested value, a key that is not known), the line is *odd*: it gets a row of nulls, and the
strict path says what it is. A block with too many such lines is left to the other readers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from fairreplay.machine_code import BYTES, INTS, NUMBER, Routine
from fairreplay.trace.arrow import handed_over


class Kind(IntEnum):
    """What the value of a key is."""

    WHOLE = 0
    """A whole number or a decimal, of up to 18 digits in all."""
    NAME = 1
    REAL = 2
    IDS = 3
    """A list of whole numbers of up to 18 digits, none below 0; of one key at most."""
    OTHER = 4
    """A single value that nobody looks at."""


WHOLE: Final = int(Kind.WHOLE)
NAME: Final = int(Kind.NAME)
REAL: Final = int(Kind.REAL)
IDS: Final = int(Kind.IDS)
OTHER: Final = int(Kind.OTHER)
KEYS_MAX: Final = 62
ODD_SHARE: Final = 128
"""Of so many lines one may be odd."""
_COUNTED_BYTES: Final = 1 << 18
_VIEW_BYTES: Final = 16
"""Arrow's string views: the length, then the text itself, or its first 4 bytes and where it stands."""

READ_LINES: Final = Routine(
    __name__,
    "read_lines",
    BYTES + NUMBER + BYTES + INTS * 4 + NUMBER * 2 + INTS + BYTES * 3 + INTS * 4 + NUMBER * 2,
)

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FlatKey:
    """``digits`` after the point are kept of ``WHOLE`` numbers: the column's scale."""

    kind: Kind
    digits: int = 0


class FlatLines:
    """Reads blocks of lines with these keys."""

    def __init__(self, keys: Mapping[str, FlatKey], read: Callable[..., int]) -> None:
        """``read``: ``READ_LINES``, compiled or not."""
        self._keys = dict(keys)
        self._read = read
        quoted = [f'"{name}"'.encode() for name in self._keys]
        self._text = np.frombuffer(b"".join(quoted), np.uint8)
        self._starts = np.cumsum([0, *map(len, quoted)], dtype=np.int64)
        self._kinds = np.array([key.kind for key in self._keys.values()], np.int64)
        self._digits = np.array([key.digits for key in self._keys.values()], np.int64)
        self._slots = np.zeros(len(self._keys), np.int64)
        """Which of the columns of its kind a key fills."""
        self._is_text = (self._kinds == NAME) | (self._kinds == REAL)
        for filled in (self._kinds == WHOLE, self._is_text):
            self._slots[filled] = np.arange(int(filled.sum()))

    @staticmethod
    def takes(keys: Mapping[str, FlatKey]) -> bool:
        """These keys can be told apart as they stand in a line, and at most one has ``IDS``."""
        plain = all('"' not in name and "\\" not in name and all(letter >= " " for letter in name) for name in keys)
        return plain and 0 < len(keys) <= KEYS_MAX and sum(key.kind == Kind.IDS for key in keys.values()) <= 1

    def table(self, block: bytes, line_bytes_max: int) -> tuple[pl.DataFrame, Sequence[bytes]] | None:
        """The columns (but those of ``Kind.OTHER``), one row a line, and the odd lines; None where these are too many,
        or a line has ``line_bytes_max`` or is blank.

        ``block``: UTF-8.
        """
        if not block.endswith(b"\n"):
            block += b"\n"  # the end of the last line, by which every search ends
        content = np.frombuffer(block, np.uint8)
        rows = _count_lines(content)
        numbers = np.zeros((int((self._kinds == WHOLE).sum()), rows), np.int64)
        views = np.zeros((int(self._is_text.sum()), rows * _VIEW_BYTES), np.uint8)
        known = np.zeros((len(self._keys), rows), np.uint8)
        texts = np.empty(len(block), np.uint8)
        odd = np.zeros((rows // ODD_SHARE + 1, 2), np.int64)
        used = np.zeros(1, np.int64)
        ids = np.empty(len(block) // 2 if (self._kinds == IDS).any() else 0, np.int64)
        id_ends = np.zeros(rows + 1, np.int64)
        found = self._run(
            *(content, content.size, self._text, self._starts, self._kinds, self._digits, self._slots),
            *(len(self._keys), rows, numbers, views, known, texts, used),
            *(ids, id_ends[1:], odd, len(odd), line_bytes_max),
        )
        if found < 0:
            return None
        lists = pa.py_buffer(id_ends), pa.py_buffer(ids[: int(id_ends[-1])].copy())
        frame = self._frame(numbers, views, known.view(np.bool_), texts[: int(used[0])].copy(), lists)
        return frame, [block[begin:end] for begin, end in odd[:found].tolist()]

    def _run(self, *arguments: npt.NDArray[Any] | int) -> int:
        if self._read is read_lines:
            return self._read(*(item.reshape(-1) if isinstance(item, np.ndarray) else item for item in arguments))
        return self._read(*(item.ctypes.data if isinstance(item, np.ndarray) else item for item in arguments))

    def _frame(
        self, numbers: Ints, views: Bytes, known: npt.NDArray[np.bool_], texts: Bytes, lists: tuple[Any, Any]
    ) -> pl.DataFrame:
        columns: dict[str, Any] = {}
        rows = known.shape[1]
        for (name, key), slot, there in zip(self._keys.items(), self._slots.tolist(), known, strict=True):
            nulls = rows - int(np.count_nonzero(there))
            bits = pa.py_buffer(np.packbits(there, bitorder="little")) if nulls else None
            match key.kind:
                case Kind.NAME | Kind.REAL:
                    buffers = [bits, pa.py_buffer(views[slot]), pa.py_buffer(texts)]
                    array = pa.Array.from_buffers(pa.string_view(), rows, buffers, nulls)
                case Kind.WHOLE:
                    kind, values = pa.int64(), numbers[slot]
                    if key.digits:
                        kind, values = pa.decimal128(38, key.digits), np.stack([values, values >> 63], axis=1)
                    array = pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(values)], nulls)
                case Kind.IDS:
                    ends, ids = lists
                    inner = pa.Array.from_buffers(pa.uint64(), ids.size // 8, [None, ids])
                    array = pa.Array.from_buffers(pa.large_list(pa.uint64()), rows, [bits, ends], nulls, 0, [inner])
                case _:
                    continue
            columns[name] = array
        reals = [name for name, key in self._keys.items() if key.kind == Kind.REAL]
        return handed_over(pa.table(columns)).with_columns(pl.col(reals).cast(pl.Float64))


def _count_lines(content: Bytes) -> int:
    """A piece at a time, which the processor keeps at hand."""
    pieces = (content[start : start + _COUNTED_BYTES] for start in range(0, content.size, _COUNTED_BYTES))
    return sum(int(np.count_nonzero(piece == ord("\n"))) for piece in pieces)


def read_lines(
    block: Bytes,
    block_bytes: int,
    keys: Bytes,
    key_starts: Ints,
    kinds: Ints,
    digits: Ints,
    slots: Ints,
    key_count: int,
    rows: int,
    numbers: Ints,
    views: Bytes,
    known: Bytes,
    texts: Bytes,
    texts_used: Ints,
    ids: Ints,
    id_ends: Ints,
    odd: Ints,
    odd_max: int,
    line_bytes_max: int,
) -> int:
    """Fill the columns; how many lines are odd, or -1: the block is for others.

    ``block`` ends with a line feed, which is in no key: no search goes beyond it. ``numbers``, ``views`` and ``known``
    lie column by column, ``odd`` has beginnings and ends.
    """
    begin, row, odds, used, ids_used = 0, 0, 0, 0, 0
    while begin < block_bytes:
        at = begin
        first_id = ids_used
        seen = 0
        following = 0
        right = block[at] == 0x7B  # {
        at += 1
        while right:
            while block[at] == 0x20:
                at += 1
            # The key: mostly the one that comes next.
            key = -1
            for step in range(key_count):
                candidate = following + step
                if candidate >= key_count:
                    candidate -= key_count
                start = key_starts[candidate]
                length = key_starts[candidate + 1] - start
                same = 0
                while same < length and block[at + same] == keys[start + same]:
                    same += 1
                if same == length:
                    key = candidate
                    at += length
                    break
            if key < 0 or (seen >> key) & 1:
                right = False
                break
            seen |= 1 << key
            following = key + 1
            while block[at] == 0x20:
                at += 1
            if block[at] != 0x3A:  # :
                right = False
                break
            at += 1
            while block[at] == 0x20:
                at += 1
            # The value; of text that is kept the length, from start on.
            kind = kinds[key]
            length = -1
            letter = block[at]
            if letter == 0x22 and kind in (NAME, OTHER):  # "
                at += 1
                start = at
                while block[at] >= 0x20 and block[at] != 0x22 and block[at] != 0x5C:
                    at += 1
                if block[at] != 0x22:
                    right = False
                    break
                if kind == NAME:
                    length = at - start
                at += 1
            elif letter == 0x2D or 0x30 <= letter <= 0x39:  # - 0..9
                if kind in (NAME, IDS):
                    right = False
                    break
                start = at
                negative = letter == 0x2D
                if negative:
                    at += 1
                first = at
                value = 0
                while 0x30 <= block[at] <= 0x39:
                    if at - first < 18:
                        value = value * 10 + (int(block[at]) - 0x30)
                    at += 1
                count = at - first
                if count == 0 or (count > 1 and block[first] == 0x30):
                    right = False
                    break
                after = 0
                if block[at] == 0x2E and (kind != WHOLE or digits[key] > 0):  # .
                    at += 1
                    first = at
                    while 0x30 <= block[at] <= 0x39:
                        if count < 18:
                            value = value * 10 + (int(block[at]) - 0x30)
                        count += 1
                        at += 1
                    after = at - first
                    if after == 0:
                        right = False
                        break
                if kind != WHOLE:
                    if (block[at] | 0x20) == 0x65:  # e
                        at += 1
                        if block[at] == 0x2B or block[at] == 0x2D:
                            at += 1
                        first = at
                        while 0x30 <= block[at] <= 0x39:
                            at += 1
                        if at == first:
                            right = False
                            break
                    if kind == REAL:
                        length = at - start
                else:
                    missing = digits[key] - after
                    if missing < 0 or count + missing > 18:
                        right = False
                        break
                    for _ in range(missing):
                        value *= 10
                    numbers[slots[key] * rows + row] = -value if negative else value
                    known[key * rows + row] = 1
            elif letter == 0x6E:  # null
                if block[at + 1] != 0x75 or block[at + 2] != 0x6C or block[at + 3] != 0x6C:
                    right = False
                    break
                at += 4
            elif letter == 0x74 and kind == OTHER:  # true
                if block[at + 1] != 0x72 or block[at + 2] != 0x75 or block[at + 3] != 0x65:
                    right = False
                    break
                at += 4
            elif letter == 0x66 and kind == OTHER:  # false
                if block[at + 1] != 0x61 or block[at + 2] != 0x6C or block[at + 3] != 0x73 or block[at + 4] != 0x65:
                    right = False
                    break
                at += 5
            elif letter == 0x5B and kind == IDS:  # [
                at += 1
                while block[at] == 0x20:
                    at += 1
                more = block[at] != 0x5D
                while more:
                    first = at
                    value = 0
                    while 0x30 <= block[at] <= 0x39:
                        if at - first < 18:
                            value = value * 10 + (int(block[at]) - 0x30)
                        at += 1
                    count = at - first
                    if count == 0 or count > 18 or (count > 1 and block[first] == 0x30):
                        break
                    ids[ids_used] = value
                    ids_used += 1
                    while block[at] == 0x20:
                        at += 1
                    more = block[at] == 0x2C
                    if more:
                        at += 1
                        while block[at] == 0x20:
                            at += 1
                if block[at] != 0x5D or more:
                    right = False
                    break
                at += 1
                known[key * rows + row] = 1
            else:
                right = False
                break
            if length >= 0:
                view = (slots[key] * rows + row) * 16
                for place in range(4):
                    views[view + place] = (length >> (8 * place)) & 0xFF
                if length <= 12:
                    for place in range(length):
                        views[view + 4 + place] = block[start + place]
                else:
                    for place in range(4):
                        views[view + 4 + place] = block[start + place]
                        views[view + 12 + place] = (used >> (8 * place)) & 0xFF
                    for place in range(length):
                        texts[used + place] = block[start + place]
                    used += length
                known[key * rows + row] = 1
            while block[at] == 0x20:
                at += 1
            if block[at] == 0x2C:  # ,
                at += 1
            elif block[at] == 0x7D:  # }
                at += 1
                break
            else:
                right = False
        if right:
            while block[at] == 0x20:
                at += 1
            if block[at] == 0x0D:
                at += 1
            right = block[at] == 0x0A
        if not right:
            at = begin
            while block[at] != 0x0A:
                at += 1
            if odds == odd_max or block[begin] != 0x7B:
                return -1
            odd[2 * odds] = begin
            odd[2 * odds + 1] = at
            odds += 1
            ids_used = first_id
            for key in range(key_count):
                known[key * rows + row] = 0
                if kinds[key] == WHOLE:
                    numbers[slots[key] * rows + row] = 0
                elif kinds[key] in (NAME, REAL):
                    for place in range(16):
                        views[(slots[key] * rows + row) * 16 + place] = 0
        if at - begin >= line_bytes_max:
            return -1
        id_ends[row] = ids_used
        begin = at + 1
        row += 1
    texts_used[0] = used
    return odds
