"""What nested logs have in common: paths into objects, JSON inside strings, HTTP statuses, paths, first of several."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC
from typing import Final

from fairreplay.trace.containers import decode_json
from fairreplay.trace.values import (
    Number,
    Ticks,
    UnparsableError,
    add,
    known,
    microseconds,
    parse_number,
    parse_ticks,
    parse_wall,
    whole,
)

INFERENCE_PATHS: Final = {
    "/chat/completions": "chat",
    "/responses": "chat",
    "/messages": "chat",
    "/completions": "completion",
    "/embeddings": "embed",
    "/pooling": "embed",
    "/rerank": "embed",
    "/score": "embed",
    "/classify": "embed",
}
"""End of a URL path -> request type; ``/chat/completions`` stands before ``/completions``, which it ends in too."""


_REFUSED_WORD = re.compile(r"(?<![\w.])(?:429|503)(?!\w|\.\d)", re.ASCII)


def opened(value: object) -> object:
    """``value``, or what is in it if it is JSON written into a string, or a map column's list of pairs."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return decode_json(value)
        except ValueError:
            return value
    if isinstance(value, list) and value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
        return dict(value)
    return value


def at(record: object, *path: str) -> object:
    """What stands at ``path``, objects in JSON strings opened on the way; None where it does not lead on."""
    value = record
    for key in path:
        if type(value) is not dict:
            value = opened(value)
            if not isinstance(value, Mapping):
                return None
        value = value.get(key)
    return value


def first_known(values: Iterable[object]) -> object:
    """The first of ``values`` that is known, else None."""
    return next((value for value in values if known(value)), None)


def prefixed(kind: str, value: object) -> object:
    """A fall-back for a tenant carries its kind: a user named like a team is not that team."""
    return f"{kind}:{value}" if known(value) else None


def number_of(value: object) -> Number | None:
    """``value`` as a number, or None if it is none."""
    try:
        return parse_number(value)
    except UnparsableError:
        return None


def unless_zero(value: object) -> object:
    """``value``; None where it is a 0 that stands for "unknown"."""
    return None if number_of(value) == 0 else value


def total(values: Iterable[object]) -> object:
    """The exact sum of the known ``values`` (None: there are none); a value that is no number stands for the sum."""
    sum_: Number | None = None
    for value in values:
        if not known(value):
            continue
        number = number_of(value)
        if number is None:
            return value
        sum_ = number if sum_ is None else add(sum_, number)
    return sum_


def same_instant(left: object, right: object) -> bool:
    """Two spellings of one instant of a source whose times without zone are UTC."""
    return left == right or (known(left) and known(right) and _instant(left) == _instant(right) is not None)


def _instant(value: object) -> Number | None:
    try:
        if isinstance(value, Ticks):
            return parse_ticks(value, UTC)[0]
        return parse_wall(value, UTC)[0]
    except UnparsableError:
        number = number_of(value)
        return microseconds(number, "s") if number is not None else None


def http_code(value: object) -> int | None:
    """An HTTP status code, number or text."""
    number = number_of(value)
    return whole(number) if number is not None else None


def http_status(code: int) -> str:
    """The canonical status of an HTTP status code; 0 is Envoy's for a client that left before an answer."""
    if 200 <= code < 300:
        return "ok"
    if code in (429, 503):
        return "rejected"
    return "cancelled" if code in (499, 0) else "failed"


def refused_by_message(message: object) -> bool:
    """An error message with the word 429 or 503."""
    return isinstance(message, str) and _REFUSED_WORD.search(message) is not None


def path_type(url: object) -> str | None:
    """The request type of a URL or its path; None if it is not one of an inference request."""
    if not isinstance(url, str):
        return None
    path = re.split(r"[?#]", url, maxsplit=1)[0].rstrip("/")
    return next((type_ for end, type_ in INFERENCE_PATHS.items() if path.endswith(end)), None)
