"""``--since`` and ``--until`` as instants."""

from __future__ import annotations

from datetime import UTC, datetime

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
