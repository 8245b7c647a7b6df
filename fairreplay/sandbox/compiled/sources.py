"""What the caches of compiled code are looked up by.

Numba finds out by itself only whether the file of the outermost function has changed, not the others whose functions
are compiled with it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest_of_sources() -> int:
    """A number for the text of all files of the compiled engine."""
    digest = hashlib.blake2b(digest_size=7)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest(), "big")
