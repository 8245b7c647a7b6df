"""What holds for options that are not given, on the command line and in Python."""

from __future__ import annotations

import os
from typing import Final

STORE: Final = "fairreplay-store"
"""Folder of the store."""
T0: Final = "1970-01-01T00:00:00Z"
"""Instant of clock value 0 in logs that count from their own start."""
KEY_VARIABLE: Final = "FAIRREPLAY_PSEUDONYM_KEY"
"""Where the key of pseudonyms stands if no file is named."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
