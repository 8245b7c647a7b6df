"""How a period is measured: window, sample sizes, what a refusal counts as, where served tokens lie in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from fairreplay.config.durations import WHOLE_PERIOD, window_us
from fairreplay.config.model import STRICT_SAMPLES, Config, MinSamples
from fairreplay.errors import UsageError

__all__ = ["WHOLE_PERIOD", "MeasureOptions", "hop_us", "measure_options", "window_us"]


@dataclass(frozen=True)
class MeasureOptions:
    """``window_us`` 0 is the whole period as one window. ``since`` and ``until`` bound arrivals, end excluded."""

    window_us: int = 60_000_000
    min_samples: MinSamples = field(default_factory=MinSamples)
    refusals: Literal["miss", "drop"] = "miss"
    spread: Literal["phases", "decode"] = "phases"
    since: datetime | None = None
    until: datetime | None = None
    offset_us: int = 0
    """Windows begin this much after whole multiples of their size since the epoch."""


def measure_options(
    config: Config,
    window: str | None = None,
    min_samples: int | None = None,
    strict_samples: bool = False,
    refusals: str = "miss",
    spread: str = "phases",
    since: datetime | None = None,
    until: datetime | None = None,
) -> MeasureOptions:
    """Options of the command line over those of the config.

    Raises:
        UsageError: a value that the option does not know; names the option.
    """
    if min_samples is not None and strict_samples:
        raise UsageError("--min-samples does not go with --strict-samples")
    samples = config.window.min_samples
    if min_samples is not None:
        samples = MinSamples(p50=min_samples, p90=min_samples, p99=min_samples)
    elif strict_samples:
        samples = STRICT_SAMPLES
    if refusals not in ("miss", "drop"):
        raise UsageError(f'--refusals {refusals!r}: must be "miss" or "drop"')
    if spread not in ("phases", "decode"):
        raise UsageError(f'--spread {spread!r}: must be "phases" or "decode"')
    return MeasureOptions(
        window_us=window_us(window or config.window.size, "--window" if window else "window.size"),
        min_samples=samples,
        refusals="drop" if refusals == "drop" else "miss",
        spread="decode" if spread == "decode" else "phases",
        since=since,
        until=until,
    )


def hop_us(text: str, option: str, size_us: int) -> int:
    """How far apart the starts of sliding windows lie: a whole part of their size.

    Raises:
        UsageError: it is none; names the option.
    """
    hop = window_us(text, option)
    if hop == WHOLE_PERIOD or size_us == WHOLE_PERIOD or size_us % hop:
        raise UsageError(f"{option} {text!r}: must be a whole part of the window's size, {size_us / 1e6:g} s")
    return hop
