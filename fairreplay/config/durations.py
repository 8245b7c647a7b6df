"""Lengths of time in words: ``"60s"``, ``"5m"``."""

from __future__ import annotations

import re
from typing import Final

from fairreplay.errors import UsageError

WHOLE_PERIOD: Final = 0
_UNITS_US: Final = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}


def window_us(text: str, option: str) -> int:
    """``"60s"``, ``"5m"``, ``"1h"``, ``"1d"`` in microseconds; ``"0"`` is the whole period."""
    if text.strip() == "0":
        return WHOLE_PERIOD
    match = re.fullmatch(r"\s*(\d{1,9})\s*([a-z]+)\s*", text)
    if match is None or match[2] not in _UNITS_US or int(match[1]) == 0:
        raise UsageError(f'{option} {text!r}: must be a number with a unit such as "60s", "5m", "1h", or "0"')
    return int(match[1]) * _UNITS_US[match[2]]
