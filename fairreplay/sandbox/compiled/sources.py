"""What the caches of compiled code are looked up by.

Numba finds out by itself only whether the file of the outermost function has changed, not the others whose functions
are compiled with it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

DECIDER: Final = ("decider.py", "jit.py", "layout.py", "ranking.py", "service.py")
PLAIN: Final = ("__init__.py", "engine.py", "user_rank.py")
"""Python that nothing here compiles."""


def kernel_sources() -> list[Path]:
    """The files of the kernel."""
    apart = {*PLAIN, "decider.py", "ranking.py"}
    return [path for path in sorted(Path(__file__).parent.glob("*.py")) if path.name not in apart]


def decider_sources() -> list[Path]:
    """The files of the decider."""
    return [Path(__file__).parent / name for name in DECIDER]


def digest_of(sources: list[Path]) -> int:
    """A number for the text of these files."""
    digest = hashlib.blake2b(digest_size=7)
    for path in sources:
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest(), "big")
