"""The manifest: what the store holds. A segment that it does not list does not exist."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from fairreplay.errors import StoreError
from fairreplay.store.files import replace_bytes
from fairreplay.store.objects import Place

VERSION = 1
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class Segment:
    """One ingested source. Counts hold ``rows == accepted + rejected + duplicates``; ``skipped`` stands beside them."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    source: str
    """Content id: sha256 of the input file's bytes, 16 hex digits."""
    name: str
    """The file's base name when it was first read; never a path of the machine."""
    format: str
    rows: int
    accepted: int
    rejected: int
    duplicates: int
    file_bytes: int
    file_sha256: str
    """Size and digest of the segment's Parquet file."""
    skipped: dict[str, int] = field(default_factory=dict)
    rejects: dict[str, int] = field(default_factory=dict)
    first_arrival: str | None = None
    last_arrival: str | None = None
    """ISO 8601, UTC, 6 digits; null where no row was accepted."""
    assumptions: tuple[str, ...] = ()
    """What was taken for granted in reading: units, zone, ``t0``, defaults."""
    unknown_columns: tuple[str, ...] = ()
    """Columns of the source that the format does not name; left out."""
    empty_columns: tuple[str, ...] = ()
    """Canonical columns that are null in every accepted row: unknown in this source."""
    out_of_order: int = 0
    """Accepted rows that the source lists after a later arrival."""
    clamped: int = 0
    """Times moved by at most ``--max-skew``."""
    runs: tuple[str, ...] = ()
    """Where the source's clock jumped back by more than an hour: the first arrival of each further run."""
    prefix_block_tokens: int | None = None
    """Tokens of one block of ``prefix_ids``; null = the source does not say."""
    join: dict[str, int] | None = None
    """Of a joined source: records of both sides, keys of both, of the left only, of the right only."""
    settings: dict[str, str] = field(default_factory=dict)
    """Options that changed what the source became, as given; of a key its fingerprint only."""


@dataclass(frozen=True)
class Manifest:
    """Segments sorted by ``source``."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    version: int = VERSION
    segments: tuple[Segment, ...] = ()

    def segment(self, source: str) -> Segment | None:
        return next((segment for segment in self.segments if segment.source == source), None)

    def with_segment(self, segment: Segment) -> Manifest:
        return Manifest(segments=tuple(sorted((*self.segments, segment), key=lambda item: item.source)))

    def digest(self) -> str:
        """16 hex digits over the segments: the identity of what is stored."""
        return hashlib.sha256(orjson.dumps([_plain(item) for item in self.segments])).hexdigest()[:16]


def _plain(segment: Segment) -> dict[str, Any]:
    """As written. Fields that came later are left out where they say nothing: older stores keep their digest."""
    return {name: value for name, value in asdict(segment).items() if value or name not in ("join", "settings")}


_ADAPTER = TypeAdapter(Manifest)


def read_manifest(folder: Place) -> Manifest:
    """The manifest of the store in ``folder``.

    Raises:
        StoreError: it is absent, unreadable, or of a newer version.
    """
    return read_tagged(folder)[0]


def read_tagged(folder: Place) -> tuple[Manifest, str | None]:
    """As ``read_manifest``, and by what ``write_manifest`` knows that nobody has written since (in a bucket)."""
    path, tag = folder / MANIFEST_NAME, None
    try:
        if isinstance(path, Path):
            content = path.read_bytes()
        else:
            content, tag = path.read()
    except FileNotFoundError:
        raise StoreError(f"{folder}: no store here (no {MANIFEST_NAME}); make one with 'fairreplay ingest'") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None
    try:
        document = orjson.loads(content)
        version = document["version"]
        if type(version) is not int:
            raise TypeError
    except (orjson.JSONDecodeError, TypeError, KeyError):
        raise StoreError(f"{path}: damaged manifest; restore it from a copy, or ingest into a new store") from None
    if version > VERSION:
        raise StoreError(f"{path}: store version {version} is newer than {VERSION}; use a newer fairreplay to read it")
    try:
        return _ADAPTER.validate_json(content), tag
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise StoreError(
            f"{path}: damaged manifest at {where}; restore it from a copy, or ingest into a new store"
        ) from None


def write_manifest(folder: Place, manifest: Manifest, tag: str | None = None) -> str | None:
    """Put the manifest in place; in a bucket only if it is still the one of ``tag`` (None: only if there is none), and
    give the new tag.

    Raises:
        ChangedError: it is not.
    """
    document = {"version": manifest.version, "segments": [_plain(item) for item in manifest.segments]}
    content, path = orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n", folder / MANIFEST_NAME
    if not isinstance(path, Path):
        return path.write(content, replaces=tag, new=tag is None)
    replace_bytes(path, content)
    return None
