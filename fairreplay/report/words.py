"""What is said of the things that controls do: the words of the page, of tickets and of the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fairreplay.report import text

CONTROL_DEEDS: Final = {
    ("refusal", "queue_full"): "refused (queue full)",
    ("refusal", "tenant_queue_full"): "refused (queue of its tenant full)",
    ("refusal", "queue_time"): "refused (too long in the queue)",
    ("refusal", "backpressure"): "refused (backpressure)",
    ("refusal", "preemption_denied"): "refused (no victim allowed)",
    ("refusal", "rate_limited"): "refused (requests a minute)",
    ("refusal", "never_fits"): "refused (can never fit)",
    ("refusal", "too_long"): "refused (too long for the model)",
    ("refusal", "livelock"): "given up (livelock)",
    ("retry", "came_back"): "came back after a refusal",
    ("backpressure", "limited_s"): "s below the configured rate",
    ("backpressure", "rate_per_s"): "requests/s at the lowest rate",
    ("kv_admission", "long"): "long ones let in near KV saturation",
    ("kv_admission", "long_tokens"): "tokens of these",
    ("preemption", "voluntary"): "preempted for a head",
    ("preemption", "voluntary_tokens"): "tokens taken from these",
    ("preemption", "denied"): "passes that denied a head its victims",
    ("swap", "out"): "swapped out",
    ("swap", "out_tokens"): "tokens swapped out",
    ("swap", "in"): "swapped in",
    ("swap", "in_tokens"): "tokens swapped in",
    ("swap", "no_room"): "found no room in host memory",
    ("swap", "no_room_tokens"): "tokens of these, to be computed again",
    ("emergency", "entered_single-p99"): "time(s) into the mode single-p99 (SCR)",
    ("emergency", "left_single-p99"): "time(s) out of it",
    ("emergency", "single-p99_s"): "s in the mode single-p99",
    ("emergency", "entered_throttle"): "time(s) into the mode throttle (JFI)",
    ("emergency", "left_throttle"): "time(s) out of it",
    ("emergency", "throttle_s"): "s in the mode throttle",
    ("emergency", "entered_isolation"): "time(s) into the mode isolation (TFR)",
    ("emergency", "left_isolation"): "time(s) out of it",
    ("emergency", "isolation_s"): "s in the mode isolation",
    ("emergency", "cap"): "units of cost a window at the lowest cap",
}
"""(control, what) of ``CONTROL_SCHEMA`` in the order in which they are told -> what follows the number."""
LOWEST: Final = ("rate_per_s", "cap")
"""Of these the lowest is told; everything else is summed."""


def control_words(control: str, what: str) -> str:
    return CONTROL_DEEDS.get((control, what), f"{control}: {what}".replace("_", " "))


def amount(value: float) -> str:
    """Counts without a fraction, rates and seconds with what they need of it."""
    return f"{value:,.0f}" if value.is_integer() else text.number(value, 3 if abs(value) < 10 else 1)


def control_line(deeds: Sequence[Mapping[str, Any]]) -> str:
    """Deeds of the document, of all models, in one line: ``12 refused (queue full), 9 came back after a refusal``."""
    known: dict[tuple[str, str], list[float]] = {}
    for deed in deeds:
        known.setdefault((deed["control"], deed["what"]), []).append(deed["value"])
    places = list(CONTROL_DEEDS)
    order = sorted(known, key=lambda deed: places.index(deed) if deed in CONTROL_DEEDS else len(places))
    said = [
        f"{amount(min(values) if what in LOWEST else sum(values))} {control_words(control, what)}"
        for (control, what) in order
        for values in [known[control, what]]
    ]
    return ", ".join(said) or "nothing"
