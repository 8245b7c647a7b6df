"""The document of ``fairreplay capacity -o``, for a section of the report."""

from __future__ import annotations

from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from fairreplay.errors import BadInputError, UsageError
from fairreplay.report.schema import CapacityFacts

MAKE: str = "make it with fairreplay capacity -o FILE.json"


def load_capacity(path: Path, store_digest: str) -> CapacityFacts:
    """What ``capacity -o`` wrote, of the same store content.

    Raises:
        UsageError: no such file, or one of another store's content. BadInputError: no such document.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"--capacity {path}: cannot be read ({error.strerror}); {MAKE}") from None
    try:
        found = TypeAdapter(CapacityFacts).validate_python(orjson.loads(content), strict=True)
    except orjson.JSONDecodeError as error:
        raise BadInputError(f"--capacity {path}: no JSON ({error.msg}, line {error.lineno}); {MAKE}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "document"
        raise BadInputError(f"--capacity {path}: no capacity document ({place}: {first['msg']}); {MAKE}") from None
    if found["store_digest"] != store_digest:
        raise UsageError(f"--capacity {path}: reckoned from other requests than the store holds now; {MAKE} again")
    return found
