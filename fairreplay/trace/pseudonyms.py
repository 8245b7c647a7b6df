"""Tenants under other names: a keyed hash, the same for the same name and key, and no way back without the key.

The key comes from a file or the environment and is never stored; a fingerprint of it is, so that one store never holds
one tenant under two names.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from fairreplay.errors import UsageError
from fairreplay.trace.schema import DEFAULT_TENANT

KEY_BYTES_MIN: Final = 16
KEY_BYTES_MAX: Final = 64
PREFIX: Final = "t-"
DIGEST_BYTES: Final = 8
_BESIDES: Final = ("request_id", "model", "replica", "session_id")
"""Columns in which some logs repeat the tenant's name."""


@dataclass(frozen=True)
class Pseudonyms:
    """``key``: 16 to 64 bytes that only the platform's owner knows."""

    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not KEY_BYTES_MIN <= len(self.key) <= KEY_BYTES_MAX:
            raise UsageError(
                f"--pseudonymise: the key has {len(self.key)} bytes, not {KEY_BYTES_MIN} to {KEY_BYTES_MAX}; "
                "make one with 'openssl rand -hex 32'"
            )

    def name(self, tenant: str) -> str:
        """``t-`` and 16 hex digits. The default tenant is nobody's name and stays."""
        return tenant if tenant == DEFAULT_TENANT else PREFIX + self._digest(tenant.encode(), b"tenant")

    def fingerprint(self) -> str:
        """Tells one key from another, and nothing else about it."""
        return self._digest(b"", b"fingerprint")

    def _digest(self, content: bytes, purpose: bytes) -> str:
        return hashlib.blake2b(content, digest_size=DIGEST_BYTES, key=self.key, person=purpose).hexdigest()

    def apply(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Canonical rows with pseudonyms for tenants, also where another column repeats the tenant's own name."""
        names = frame["tenant"].unique()
        new = pl.Series([self.name(name) for name in names], dtype=pl.String)
        tenant = pl.col("tenant")
        hidden = tenant.replace_strict(names, new, return_dtype=pl.String)
        return frame.with_columns(
            hidden,
            *(
                pl.when((pl.col(name) == tenant) & (tenant != DEFAULT_TENANT))
                .then(hidden)
                .otherwise(pl.col(name))
                .alias(name)
                for name in _BESIDES
            ),
        )
