"""Documents of earlier versions: each is brought one version further, until it is one of today's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from pydantic import TypeAdapter, ValidationError

from fairreplay.errors import BadInputError, UsageError
from fairreplay.report.schema import SCHEMA_VERSION, Document

NO_ESTIMATES: Final = "unknown: the trace holds no cost estimates, so there is nothing to compare with the actual cost"


def upgraded(document: Mapping[str, Any]) -> Document:
    """``document`` (of any known version) as one of this version; what an earlier one did not know is null or empty.

    Raises:
        UsageError: the version is not known.
    """
    found = document.get("schema_version")
    if found == SCHEMA_VERSION:
        return cast(Document, document)
    if not isinstance(found, int) or found not in STEPS:
        raise UsageError(
            f"report document: schema_version {found!r} is not known; this version reads "
            f"{', '.join(map(str, [*STEPS, SCHEMA_VERSION]))}, so use a newer fairreplay"
        )
    return upgraded(STEPS[found](document))


def checked(document: Any, name: str) -> Document:
    """``document`` upgraded, with the right keys and types throughout.

    Raises:
        BadInputError: it is not a report's document; names the first key that is wrong. UsageError: see ``upgraded``.
    """
    if not isinstance(document, dict) or "schema_version" not in document:
        raise BadInputError(f"{name}: no report document (no schema_version); give the report.json of a report")
    try:
        return TypeAdapter(Document).validate_python(upgraded(document), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInputError(
            f"{name}: no report document ({place}: {first['msg']}); give the report.json of a report"
        ) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInputError(
            f"{name}: no report document ({type(error).__name__}: {error}); give the report.json of a report"
        ) from None


def _from_1(document: Mapping[str, Any]) -> dict[str, Any]:
    """Version 2 added decision differences, the audit, heat maps, the difference to a previous report, redaction."""
    return {
        **document,
        "schema_version": 2,
        "redacted": None,
        "previous": None,
        "heat": [],
        "differences": [],
        "verdict": {
            **document["verdict"],
            "groups": [{**group, "flooded": []} for group in document["verdict"]["groups"]],
        },
        "episodes": [{"verdict": None, **row, "differences": []} for row in document["episodes"]],
        "preemption": [
            {**row, "preempted_once": None, "thrashing_unknown": None, "bands": None, "recovery": None}
            for row in document["preemption"]
        ],
        "tenants": [{**row, "weight_in_force": None, "skew": None, "skewed": None} for row in document["tenants"]],
        "types": [
            {**row, "under": [{**under, "windows": 0, "windows_below": 0} for under in row["under"]]}
            for row in document["types"]
        ],
        "costs": {"estimates": None, "reason": NO_ESTIMATES},
    }


STEPS: Final[dict[int, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {1: _from_1}
"""Version -> what makes the next one of it."""
