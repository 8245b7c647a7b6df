"""Errors that a user can meet. Each carries its exit code; the text is one line: what, where, what to do."""


class FairReplayError(Exception):
    """Base of every expected failure. ``exit_code`` is what the command ends with."""

    exit_code = 70


class UsageError(FairReplayError):
    """A wrong option, a wrong or unknown config key, or a path that is not there."""

    exit_code = 2


class BadInputError(FairReplayError):
    """The data cannot be read as what it should be; the store is as it was before."""

    exit_code = 3


class StoreError(FairReplayError):
    """The store is damaged, missing, or was written by a newer version."""

    exit_code = 5


class ClusterError(FairReplayError):
    """The Ray cluster cannot be reached, or lost a replay's worker again and again."""

    exit_code = 69


class StoreBusyError(FairReplayError):
    """Another run holds the store (cron runs that overlap)."""

    exit_code = 75


def nearest(name: str, known: list[str]) -> str:
    """A hint that names the closest known spelling, or the known ones when nothing is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + ", ".join(sorted(known))
