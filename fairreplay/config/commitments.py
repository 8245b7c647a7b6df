"""``[weights] file``: what each tenant was promised and from when on, as billing hands it over (CSV).

Columns ``tenant``, ``committed_tokens_per_month`` and ``valid_from`` (ISO 8601; empty: always was); others are left
alone. A row holds until the tenant's next one; 0 tokens end a commitment.
"""

from __future__ import annotations

import csv
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from fairreplay.config.model import Commitment, Config, Tenant
from fairreplay.errors import UsageError, nearest

TENANT, TOKENS, FROM = "tenant", "committed_tokens_per_month", "valid_from"
_NEEDED: Final = (TENANT, TOKENS, FROM)
_TOKENS: Final = re.compile(r"[0-9]{1,18}")


def with_commitments(config: Config, folder: Path) -> Config:
    """``config`` with the commitments of its file, which stands relative to ``folder``, in its tenants.

    They go before ``committed_tokens_per_month`` of a tenant's own table from their ``valid_from`` on.

    Raises:
        UsageError: it cannot be read; the file, the row (1 is the header) and the column are named.
    """
    if config.weights.file is None:
        return config
    tenants = dict(config.tenants)
    for name, found in read_commitments(folder / config.weights.file).items():
        own = tenants.get(name, Tenant())
        both = sorted((*own.commitments, *found), key=lambda one: one.valid_from)
        tenants[name] = own.model_copy(update={"commitments": tuple(both)})
    return config.model_copy(update={"tenants": tenants})


def read_commitments(path: Path) -> dict[str, tuple[Commitment, ...]]:
    """Commitments by tenant, each in the order of time.

    Raises:
        UsageError: as ``with_commitments``.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise UsageError(
            f"[weights] file {path}: cannot be read ({reason}); it stands relative to the config"
        ) from None
    first_line = text.split("\n", 1)[0]
    reader = csv.reader(
        text.splitlines(keepends=True), delimiter="," if "," in first_line else ";", strict=True, skipinitialspace=True
    )
    found: dict[str, dict[datetime, tuple[int, int]]] = {}
    place: dict[str, int] | None = None
    row = 0
    try:
        for cells in reader:
            row += 1
            if not any(cell.strip() for cell in cells):
                continue
            if place is None:
                place = _places(cells, path)
                continue
            if len(cells) <= max(place.values()):
                raise UsageError(f"{path}: row {row}: {len(cells)} cells, fewer than the header names")
            tenant, valid_from, tokens = _row({name: cells[index] for name, index in place.items()}, path, row)
            earlier = found.setdefault(tenant, {}).get(valid_from)
            if earlier is not None:
                raise UsageError(
                    f"{path}: row {row}, column {FROM}: tenant {tenant!r} has a commitment from that instant on in row "
                    f"{earlier[1]} already; keep one of them"
                )
            found[tenant][valid_from] = tokens, row
    except csv.Error as error:
        raise UsageError(f"{path}: row {row + 1}: no CSV ({error})") from None
    if place is None:
        raise UsageError(f"{path}: empty; it needs the columns {', '.join(_NEEDED)}")
    return {
        tenant: tuple(
            Commitment(valid_from=at, committed_tokens_per_month=tokens) for at, (tokens, _) in sorted(dated.items())
        )
        for tenant, dated in found.items()
    }


def _places(header: list[str], path: Path) -> dict[str, int]:
    names = [cell.strip() for cell in header]
    for name in _NEEDED:
        if name not in names:
            others = [other for other in names if other not in _NEEDED and other]
            hint = f" ({nearest(name, others)})" if others else ""
            raise UsageError(f"{path}: row 1: column {name} is missing{hint}")
        if names.count(name) > 1:
            raise UsageError(f"{path}: row 1: column {name} is there twice")
    return {name: names.index(name) for name in _NEEDED}


def _row(cells: dict[str, str], path: Path, row: int) -> tuple[str, datetime, int]:
    if not cells[TENANT]:
        raise UsageError(f"{path}: row {row}, column {TENANT}: empty; name the tenant as the log does")
    tokens = cells[TOKENS].strip()
    if not _TOKENS.fullmatch(tokens):
        raise UsageError(f"{path}: row {row}, column {TOKENS}: {tokens!r} is no whole number of tokens")
    valid_from = cells[FROM].strip()
    try:
        at = datetime.fromisoformat(valid_from) if valid_from else datetime(1, 1, 2, tzinfo=UTC)
    except ValueError:
        raise UsageError(f"{path}: row {row}, column {FROM}: {valid_from!r} is no ISO 8601 date or instant") from None
    return cells[TENANT], at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC), int(tokens)
