"""``--since`` and ``--until`` as instants, ``--every`` as a length of time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from fairreplay.errors import UsageError


def instant(text: str | None, option: str) -> datetime | None:
    """ISO 8601 text as an instant in UTC; without a zone it is UTC. ``option`` is named in the error."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text!r}: not an ISO 8601 instant such as 2026-11-02T09:16:00Z") from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def period(
    since: str | None, until: str | None, since_option: str = "--since", until_option: str = "--until"
) -> tuple[datetime | None, datetime | None]:
    """Both ends of the period.

    Raises:
        UsageError: not an instant, or the end is not after the beginning.
    """
    begin, end = instant(since, since_option), instant(until, until_option)
    if begin is not None and end is not None and end <= begin:
        raise UsageError(f"{until_option} {until} is not after {since_option} {since}")
    return begin, end


_UNITS = {"s": "seconds", "m": "minutes", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def length(text: str, option: str) -> timedelta:
    """``14d``, ``2w``, ``12h`` as a length of time.

    Raises:
        UsageError: it is none.
    """
    match = re.fullmatch(r"([0-9]{1,6})(s|m|min|h|d|w)", text.strip())
    if match is None or int(match[1]) == 0:
        raise UsageError(f'{option} {text!r}: must be a number with a unit, such as "14d", "2w" or "12h"')
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
