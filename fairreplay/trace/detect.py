"""Which format a file is: exactly one must match, or a person has to say."""

from __future__ import annotations

from pathlib import Path

from fairreplay.errors import BadInputError, UsageError, nearest
from fairreplay.trace.fields import Format, Sample, has_all
from fairreplay.trace.formats import FORMATS, REFUSED

COLUMNS_SHOWN = 20


def detect(path: Path, sample: Sample, wanted: str | Format = "auto") -> Format:
    """The format of ``path``, decided on its first records, or ``wanted`` if they can be of it.

    Raises:
        UsageError: no format is called ``wanted``.
        BadInputError: none matches, or several do, or the format is known to hold no arrival times.
    """
    if isinstance(wanted, Format):
        return _checked(path, sample, wanted)
    if wanted != "auto":
        return _named(path, sample, wanted)
    matching = [item for item in FORMATS.values() if item.recognises(sample)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(item.name for item in matching)
        raise BadInputError(f"{path}: could be {names}; say which with --format")
    if sample.is_empty_page:
        raise BadInputError(f"{path}: holds no record, so nothing tells its format; say which with --format")
    for name, (needs, reason) in REFUSED.items():
        if needs(sample) if callable(needs) else has_all(sample, needs):
            raise BadInputError(f"{path}: {name}: {reason}; columns found: {listed(sample)}")
    raise BadInputError(
        f"{path}: no known format ({', '.join(FORMATS)}); columns found: {listed(sample)}; "
        "say what they mean with --map FILE.toml, or write it in the native schema"
    )


def _named(path: Path, sample: Sample, wanted: str) -> Format:
    if wanted not in FORMATS:
        raise UsageError(f"--format {wanted}: no such format ({nearest(wanted, list(FORMATS))})")
    return _checked(path, sample, FORMATS[wanted])


def _checked(path: Path, sample: Sample, log_format: Format) -> Format:
    if sample.is_empty_page and "document" in log_format.containers:
        return log_format
    if not log_format.recognises(sample):
        raise BadInputError(
            f"{path}: not {log_format.name}, which is {' or '.join(log_format.containers)} with "
            f"{', '.join(log_format.needs)}; columns found: {listed(sample)}"
        )
    return log_format


def listed(sample: Sample) -> str:
    """The columns of a sample for a message, not all of them if there are many."""
    shown = [name if len(name) <= 60 else name[:59] + "…" for name in sample.columns[:COLUMNS_SHOWN]]
    more = len(sample.columns) - len(shown)
    return (", ".join(shown) or "none") + (f" and {more} more" if more > 0 else "")
