"""Read ``fairreplay.toml``: an error names the key, the line and the nearest key that exists."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import ValidationError

from fairreplay.config.commitments import with_commitments
from fairreplay.config.explain import explained
from fairreplay.config.model import Config, Floor, resolve_cluster
from fairreplay.errors import UsageError

DEFAULT_NAME = "fairreplay.toml"


def load_config(path: Path | None) -> Config:
    """The config at ``path``; without a path ``./fairreplay.toml`` if it is there, else all defaults.

    Raises:
        UsageError: no such file, not TOML, an unknown key, or a value of the wrong type or range.
    """
    if path is None:
        path = Path(DEFAULT_NAME)
        if not path.exists():
            return Config()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"config {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"config {path}: cannot be read: {error}") from None
    return parse_config(text, str(path))


def with_floor_mode(config: Config, mode: str | None) -> Config:
    """``config`` with ``[floor] enforce`` as ``mode`` says ("soft", "hard", "off"; None: as it is).

    Raises:
        UsageError: another mode, or what it needs is not set.
    """
    if mode is None:
        return config
    if mode not in ("soft", "hard", "off"):
        raise UsageError(f'--floors {mode}: write "soft", "hard" or "off"')
    enforce = None if mode == "off" else mode
    try:
        floor = Floor.model_validate(config.floor.model_dump() | {"enforce": enforce})
    except ValidationError as error:
        raise UsageError(f"--floors {mode}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    return config.model_copy(update={"floor": floor})


def with_estimation_error(config: Config, error: float | None) -> Config:
    """``config`` with ``[estimation] error`` (None: as it is).

    Raises:
        UsageError: it is below 0 or above 0.99.
    """
    if error is None:
        return config
    if not 0 <= error <= 0.99:
        raise UsageError(f"--estimation-error {error:g}: write a part from 0 to 0.99, such as 0.2")
    return config.model_copy(update={"estimation": config.estimation.model_copy(update={"error": error})})


def parse_config(text: str, name: str) -> Config:
    """The config in ``text``; ``name``, its path, stands in its errors, and files that it names stand beside it."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"config {name}: not TOML: {error}") from None
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"config {name}{explained(error, text, Config)}") from None
    for model in (None, *config.models):
        try:
            resolve_cluster(config, model)
        except ValidationError as error:
            where = "[cluster]" if model is None else f"[models.{model!r}]"
            reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise UsageError(f"config {name}: {where}: {reason}") from None
    folder = Path(name).parent
    if config.defaults.openslo is not None:
        from fairreplay.config.openslo import with_openslo

        config = with_openslo(config, folder)
    return with_commitments(config, folder)
