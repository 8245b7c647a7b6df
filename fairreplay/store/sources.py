"""What the arguments of ``ingest`` name: files, folders, patterns, standard input, objects in a store of objects.

A reader passes over its file several times (hash, first records, rows), so what is no file here is copied to one first.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from glob import glob, has_magic
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final

from fairreplay.errors import BadInputError, FairReplayError, StoreError, UsageError
from fairreplay.store.files import is_full
from fairreplay.store.objects import Place

REJECTS_SUFFIX: Final = ".rejects.jsonl"
STDIN: Final = "-"
STDIN_NAME: Final = "stdin"
COPY_BYTES: Final = 1 << 20
HEAD_BYTES: Final = 1 << 20
REASON_SHOWN: Final = 240
GCS_PATIENCE: Final = timedelta(seconds=15)
"""The library itself tries for 15 minutes, also where nothing can be reached at all."""
_COMPRESSED: Final = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
_REMOTE: Final = re.compile(r"(s3|gs|az)://")


@dataclass(frozen=True)
class Source:
    """One log. ``shown`` is how messages call it; ``path`` is a file here, or an object's path in ``filesystem``."""

    shown: str
    path: Path | str
    filesystem: Any = None

    @property
    def is_local(self) -> bool:
        return isinstance(self.path, Path)

    @property
    def name(self) -> str:
        """The base name."""
        return STDIN_NAME if self.shown == STDIN else PurePosixPath(self.path).name

    @property
    def rejects_path(self) -> Path:
        """Where rejects are left for reading: beside the log, or in the working folder."""
        beside = self.path if isinstance(self.path, Path) else Path(self.name)
        return beside.with_name(beside.name + REJECTS_SUFFIX)


def expand(names: Sequence[str], store_path: Place) -> list[Source]:
    """The logs that ``names`` stand for: one by its literal name, all of a folder, else a pattern's matches, sorted.

    Hidden files, the rejects that an earlier run left beside a log and the store's own files are no logs.

    Raises:
        UsageError: nothing of that name is there.
    """
    own = store_path.absolute() if isinstance(store_path, Path) else None
    sources: list[Source] = []
    for name in names:
        if name == STDIN:
            sources.append(Source(STDIN, STDIN))
        elif _REMOTE.match(name):
            found = [one for one in _expand_remote(name) if own or not one.shown.startswith(f"{store_path}/")]
            if not found:
                raise UsageError(f"{name}: no object matches but those of the store; check the name")
            sources += found
        else:
            sources += [Source(str(path), path) for path in _expand_local(name, own)]
    return list({source.shown: source for source in sources}.values())


def single(name: str, store_path: Place) -> Source:
    """The one log that ``name`` stands for.

    Raises:
        UsageError: none or several.
    """
    found = expand([name], store_path)
    if len(found) != 1:
        raise UsageError(f"{name}: {len(found)} files; name one")
    return found[0]


def _expand_local(name: str, own: Path | None) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        found = sorted(item for item in path.rglob("*") if item.is_file() and _is_log(item, path, own))
        if not found:
            raise UsageError(f"{path}: no files in this folder; name a folder with logs")
        return found
    if path.is_file():
        return [path]
    if path.exists():
        raise UsageError(f"{path}: neither a file nor a folder; pipe its content in and name it '-'")
    if has_magic(name):
        matches = [Path(match) for match in sorted(glob(name, recursive=True))]  # noqa: PTH207 (may be absolute)
        if matches:
            return [match for match in matches if match.is_file() and _is_log(match, match.parent, own)]
        raise UsageError(f"{path}: no file matches; check the pattern")
    raise UsageError(f"{path}: no such file or folder; check the path")


def _is_log(path: Path, folder: Path, own: Path | None) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and not path.name.endswith(REJECTS_SUFFIX) and own not in path.absolute().parents


# -- objects ----------------------------------------------------------------------------------------------------------


def _expand_remote(name: str) -> list[Source]:
    import pyarrow as pa
    from pyarrow import fs

    try:
        filesystem, path = _filesystem(name)
        info = filesystem.get_file_info(path)
        if info.type == fs.FileType.File:
            return [_object(name, path, filesystem)]
        if info.type == fs.FileType.Directory:
            found = _listed(filesystem, path)
        elif has_magic(path):
            pattern = _pattern(path)
            found = [item for item in _listed(filesystem, _fixed_part(path)) if pattern.fullmatch(item)]
        else:
            raise UsageError(f"{name}: no such object; check the name")
    except (OSError, pa.ArrowException) as error:
        raise _unreachable(name, error) from None
    if not found:
        raise UsageError(f"{name}: no object matches; check the name")
    return [_object(name, item, filesystem) for item in found]


def _object(name: str, path: str, filesystem: Any) -> Source:
    """Shown without what may stand in an address beside the path: keys, options."""
    scheme = name.partition("://")[0]
    return Source(f"{scheme}://{path}", path, filesystem)


def _filesystem(name: str) -> tuple[Any, str]:
    """The library's file system of the address, and the path in it."""
    from pyarrow import fs

    scheme, _, rest = name.partition("://")
    path = rest.rstrip("/")
    if not path or path.startswith(("/", "?")):
        raise UsageError(f"{name}: names no bucket; write it as {scheme}://bucket/path")
    if "?" in path:  # endpoint_override, region, scheme: pyarrow's own form of an address
        location = path.partition("?")[0].rstrip("/")
        bucket, query = location.partition("/")[0], path.partition("?")[2]
        return fs.FileSystem.from_uri(f"{scheme}://{bucket}?{query}")[0], location.partition("@")[2] or location
    if scheme == "az":
        return _azure(name), path
    if scheme == "gs":
        return fs.GcsFileSystem(retry_time_limit=GCS_PATIENCE), path
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint is None and region is None:
        region = fs.resolve_s3_region(path.partition("/")[0])
    return fs.S3FileSystem(region=region, endpoint_override=endpoint), path


def _azure(name: str) -> Any:
    from pyarrow import fs

    account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME") or os.environ.get("AZURE_STORAGE_ACCOUNT")
    if not account:
        raise UsageError(f"{name}: whose? set AZURE_STORAGE_ACCOUNT_NAME (and AZURE_STORAGE_ACCOUNT_KEY, or sign in)")
    key = os.environ.get("AZURE_STORAGE_ACCOUNT_KEY") or os.environ.get("AZURE_STORAGE_KEY")
    return fs.AzureFileSystem(account, account_key=key, sas_token=os.environ.get("AZURE_STORAGE_SAS_TOKEN"))


def _listed(filesystem: Any, folder: str) -> list[str]:
    from pyarrow import fs

    selector = fs.FileSelector(folder, recursive=True, allow_not_found=True)
    files = [info.path for info in filesystem.get_file_info(selector) if info.type == fs.FileType.File]
    inside = len(folder.split("/"))
    return sorted(
        path
        for path in files
        if not any(part.startswith(".") for part in path.split("/")[inside:]) and not path.endswith(REJECTS_SUFFIX)
    )


def _fixed_part(path: str) -> str:
    """The folders of ``path`` before the first part that is a pattern."""
    parts = path.split("/")
    first = next(index for index, part in enumerate(parts) if has_magic(part))
    if first == 0:
        raise UsageError(f"{path}: a bucket has one name; use patterns after it")
    return "/".join(parts[:first])


def _pattern(path: str) -> re.Pattern[str]:
    """``*`` and ``[...]`` inside one part of the path, ``**`` for any number of parts."""
    regex = ""
    for part in path.split("/"):
        pieces = re.split(r"(\*|\[!?[^\]]+\])", part)
        inner = "".join(
            "[^/]*" if piece == "*" else piece.replace("[!", "[^") if piece.startswith("[") else re.escape(piece)
            for piece in pieces
        )
        regex += "(?:[^/]+/)*" if part == "**" else inner + "/"
    return re.compile(regex.removesuffix("/"))


def _unreachable(name: str, error: Exception) -> BadInputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    if len(reason) > REASON_SHOWN:
        reason = reason[:REASON_SHOWN] + "…"
    return BadInputError(f"{name}: cannot be read ({reason}); check the name, the credentials and the network")


# -- sizes ------------------------------------------------------------------------------------------------------------


def expected_rows(path: Path) -> int:
    """About how many rows a log has, for a progress bar: from a Parquet footer, or the lines at its beginning; 0: who
    knows (compressed, one document)."""
    import pyarrow as pa
    from pyarrow import parquet

    with path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    if head.startswith(b"PAR1"):
        try:
            rows: int = parquet.read_metadata(path).num_rows
        except (pa.ArrowException, OSError):
            return 0
        return rows
    lines = head.count(b"\n")
    return path.stat().st_size * lines // len(head) if lines and not head.startswith(_COMPRESSED) else 0


# -- copies -----------------------------------------------------------------------------------------------------------


@contextmanager
def local(source: Source) -> Iterator[Path]:
    """A file with the source's bytes: its own, or a copy that is gone afterwards. Errors name the source."""
    if isinstance(source.path, Path):
        yield source.path
        return
    with TemporaryDirectory(prefix="fairreplay-") as folder:
        copy = Path(folder) / source.name
        try:
            with copy.open("wb") as stream:
                _copy(source, stream)
        except OSError as error:
            if not is_full(error):
                raise
            raise StoreError(
                f"{source.shown}: no room for a copy in {copy.parent.parent} ({error.strerror}); "
                "point TMPDIR at a larger disk; nothing was stored"
            ) from None
        try:
            yield copy
        except FairReplayError as error:
            raise type(error)(str(error).replace(str(copy), source.shown)) from None


def _copy(source: Source, stream: BinaryIO) -> None:
    if source.shown == STDIN:
        if sys.stdin.isatty():
            raise UsageError("-: standard input is the terminal; pipe a log into it")
        shutil.copyfileobj(sys.stdin.buffer, stream, COPY_BYTES)
        return
    import pyarrow as pa

    try:
        reading = source.filesystem.open_input_stream(source.path, compression=None)
    except (OSError, pa.ArrowException) as error:
        raise _unreachable(source.shown, error) from None
    with reading:
        while True:
            try:
                content = reading.read(COPY_BYTES)
            except (OSError, pa.ArrowException) as error:
                raise _unreachable(source.shown, error) from None
            if not content:
                return
            stream.write(content)
