"""The one rounding rule of the document: floats to ``DIGITS`` decimals, half to even, by Python's ``round``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fairreplay.report.schema import DIGITS

RULE: Final = f"floats to {DIGITS} decimals; nothing else is rounded in report.json"


def rounded(value: float | int | None) -> float | None:
    """``value`` by the rule; not a finite number becomes null, and minus zero becomes zero."""
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), DIGITS) + 0.0


def rounded_all(values: Iterable[float | int | None]) -> list[float | None]:
    return [rounded(value) for value in values]


def plain(value: Any) -> Any:
    """JSON-able data of any shape, its floats rounded by the rule; tuples become lists."""
    if isinstance(value, float):
        return rounded(value)
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(part) for part in value]
    return value
