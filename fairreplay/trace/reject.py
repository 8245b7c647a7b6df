"""Records that are left out, and why. Reasons are tested in the order of ``REASONS``; the first names the reject."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REASONS: Final = (
    "unparsable_record",
    "missing_time",
    "unparsable_time",
    "unparsable_number",
    "missing_tokens",
    "fractional_tokens",
    "negative_tokens",
    "zero_prompt",
    "contradictory",
    "scheduled_before_arrival",
    "first_token_before_arrival",
    "finish_before_arrival",
    "finish_before_first_token",
    "conflicting_duplicate",
    "ambiguous_join",
)


@dataclass(frozen=True)
class Reject:
    """A record that was left out: ``line`` is all of it, ``column`` and ``value`` what is wrong with it."""

    row: int
    column: str | None
    value: str | None
    reason: str
    line: str

    def as_dict(self) -> dict[str, object]:
        return {
            "row": self.row,
            "column": self.column,
            "value": self.value,
            "reason": self.reason,
            "line": self.line,
        }
