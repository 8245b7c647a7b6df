"""Classes of requests by size: what costs of requests are compared, and corrected, within."""

from __future__ import annotations

from typing import Final

SIZES: Final = (512, 4096, 32768)
"""Borders of the size classes, in tokens."""
SIZE_NAMES: Final = ("below 512", "512 to 4,095", "4,096 to 32,767", "from 32,768")
