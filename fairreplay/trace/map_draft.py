"""A first mapping file for a log, written from its first records."""

from __future__ import annotations

from pathlib import Path


def draft(path: Path) -> str:
    raise NotImplementedError
