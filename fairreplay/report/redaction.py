"""A report for outside readers: names of tenants under pseudonyms, everywhere, before anything is said of them.

Names are replaced in the rows, the measured tables and the config, so that every sentence, snippet and id that is made
afterwards is made of pseudonyms. What the store itself says (file names, remarks) and names that repeat a tenant's
(a model, a type) are searched for it. At last the whole document is searched once more.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, get_args

import polars as pl

from fairreplay.causes.episodes import episodes
from fairreplay.causes.review import Source
from fairreplay.causes.verdict import (
    CAUSES,
    LOW_DEMAND,
    UNEXPLAINED,
    Confidence,
    Counterfactual,
    Inferred,
    MetricVerdict,
    Recommendation,
    Signature,
    Verdict,
)
from fairreplay.config.model import Config
from fairreplay.errors import UsageError
from fairreplay.metrics.measure import Measured
from fairreplay.report import schema
from fairreplay.report.provenance import StoreFacts
from fairreplay.report.schema import Document, Level, Metric, Redacted, Role
from fairreplay.report.words import CONTROL_DEEDS
from fairreplay.store.manifest import Segment
from fairreplay.trace.pseudonyms import KEY_BYTES_MAX, KEY_BYTES_MIN, PREFIX, Pseudonyms
from fairreplay.trace.schema import DEFAULT_TENANT

WHOLE_WORD_BELOW: Final = 4
"""A shorter name is replaced in other texts only where it stands as a word of its own."""
OURS: Final = frozenset(
    (
        *(value for kind in (Level, Role, Metric, Confidence) for value in get_args(kind)),
        *(*CAUSES, LOW_DEMAND, UNEXPLAINED, "minor", "unclassified", "p50", "p90", "p99", "miss", "drop", "phases"),
        *("decode", "UTC", "tenant", "scheduled_at", "first_token_at"),
        *(part for deed in CONTROL_DEEDS for part in deed),
    )
)
"""Values that the page acts on: a tenant of that name does not take them away."""


@dataclass(frozen=True)
class Redaction:
    """``tenants``: every name that must not be read, in the log and in the config."""

    pseudonyms: Pseudonyms
    tenants: frozenset[str] = frozenset()

    def knowing(self, tenants: Collection[str]) -> Redaction:
        return replace(self, tenants=frozenset(tenants) - {DEFAULT_TENANT})

    def facts(self) -> Redacted:
        return {"what": "tenant", "key": self.pseudonyms.fingerprint()}

    def name(self, tenant: str) -> str:
        return self.pseudonyms.name(tenant)

    def text(self, said: str) -> str:
        """A name or a path with every tenant's name in it replaced, whatever its case."""
        return self._replaced(said, *_pattern(self.tenants, prose=False))

    def prose(self, said: str) -> str:
        """As ``text`` for our own sentences, in which a short name or a number may be a word that means no tenant."""
        return self._replaced(said, *_pattern(self.tenants, prose=True))

    def _replaced(self, said: str, pattern: re.Pattern[str] | None, names: Mapping[str, str]) -> str:
        if said in self.tenants:
            return self.name(said)
        return said if pattern is None else pattern.sub(lambda found: self.name(names[found.group().lower()]), said)

    # --- what a report is made of ---

    def source(self, source: Source) -> Source:
        """An outcome and its measured tables under pseudonyms, its episodes found again under them."""
        outcome = self.pseudonyms.apply(source.outcome).with_columns(
            self._mapped(source.outcome["model"], self.text).alias("model"),
            self._mapped(source.outcome["type"], self.text).alias("type"),
        )
        measured = self.measured(source.measured)
        return replace(source, outcome=outcome, measured=measured, episodes=tuple(episodes(measured, outcome)))

    def measured(self, measured: Measured) -> Measured:
        windows, tenants, types = measured.windows, measured.tenants, measured.types
        names = pl.Series([*self.tenants, DEFAULT_TENANT], dtype=pl.String)
        hidden = pl.Series([self.name(name) for name in names], dtype=pl.String)
        failing = pl.element().replace_strict(names, hidden, default=pl.element(), return_dtype=pl.String)
        return replace(
            measured,
            windows=windows.with_columns(
                self._mapped(windows["model"], self.text),
                pl.col("failing").list.eval(failing),
                self._mapped(windows["min_x_tenant"], self.name),
                self._mapped(windows["tfr_type"], self.text),
            ),
            tenants=tenants.with_columns(
                self._mapped(tenants["model"], self.text), self._mapped(tenants["tenant"], self.name)
            ),
            types=types.with_columns(self._mapped(types["model"], self.text), self._mapped(types["type"], self.text)),
            slo={self.name(tenant): slo for tenant, slo in measured.slo.items()},
            assumptions=tuple(self.prose(said) for said in measured.assumptions),
        )

    def config(self, config: Config) -> Config:
        return config.model_copy(
            update={
                "tenants": {self.name(name): table for name, table in config.tenants.items()},
                "models": {self.text(name): table for name, table in config.models.items()},
                "types": {self.text(name): table for name, table in config.types.items()},
                "policies": {
                    name: table.model_copy(update={"order": tuple(map(self.text, table.order))})
                    for name, table in config.policies.items()
                },
            }
        )

    def store(self, facts: StoreFacts) -> StoreFacts:
        """What the report says of the store; no rejected line or value is in it."""
        rejects = facts.rejects
        columns = [name for name in ("file", "column", "reason") if name in rejects.columns]
        return replace(
            facts,
            segments=tuple(self._segment(segment) for segment in facts.segments),
            rejects=rejects.with_columns(self._mapped(rejects[name], self.text) for name in columns),
        )

    def _segment(self, segment: Segment) -> Segment:
        return replace(
            segment,
            name=self.text(segment.name),
            assumptions=tuple(self.prose(said) for said in segment.assumptions),
            unknown_columns=tuple(self.text(column) for column in segment.unknown_columns),
        )

    def _mapped(self, values: pl.Series, function: Any) -> pl.Series:
        """Strings with each different one replaced once."""
        old = values.unique().drop_nulls()
        new = pl.Series([function(value) for value in old], dtype=pl.String)
        return values.replace_strict(old, new, default=None, return_dtype=pl.String) if len(old) else values

    # --- the last search ---

    def document(self, document: Document) -> Document:
        """``document`` searched once more, keys included; an earlier report's sentences are left out whole."""
        swept: Document = self._swept(document)
        swept["redacted"] = self.facts()
        for setting in swept["method"]["settings"]:
            if setting["value"].startswith('"'):
                setting["value"] = self.text(setting["value"])
        rows = [*swept["differences"], *(row for episode in swept["episodes"] for row in episode["differences"])]
        for request in (request for row in rows for request in row["largest"]):
            request["request_id"] = "r-" + self.name(request["request_id"]).removeprefix(PREFIX)
        if swept["previous"] is not None:
            for past in swept["previous"]["resolved"]:
                past["reason"] = None
        return swept

    def _swept(self, value: Any) -> Any:
        if isinstance(value, str):
            return value if value in OURS or _OUR_FORMS.fullmatch(value) else self.prose(value)
        if isinstance(value, dict):
            return {key if key in _OUR_KEYS else self.prose(key): self._swept(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self._swept(part) for part in value]
        return value


_OUR_FORMS: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)|ep-[0-9a-f]{10}|[0-9a-f]{12,64}")
"""Instants, ids of episodes, digests."""


def _keys() -> frozenset[str]:
    """Keys that the page reads: those of the schema, of verdicts, and of the metrics and causes in them."""
    found = {*OURS, "min_x", *(f"deficit_{metric}" for metric in get_args(Metric))}
    for value in vars(schema).values():
        found |= set(getattr(value, "__annotations__", {}))
    for one in (Verdict, Signature, Counterfactual, MetricVerdict, Recommendation, Inferred):
        found |= {field.name for field in fields(one)}
    return frozenset(found)


_OUR_KEYS: Final = _keys()


@lru_cache(maxsize=4)
def _pattern(tenants: frozenset[str], prose: bool) -> tuple[re.Pattern[str] | None, Mapping[str, str]]:
    """What finds the names, longest first, and lower-case form -> name."""
    names = sorted((name for name in tenants if name and not name.isspace()), key=lambda name: (-len(name), name))
    if prose:
        names = [name for name in names if len(name) >= WHOLE_WORD_BELOW and not name.isdigit()]
    if not names:
        return None, {}
    forms = [
        re.escape(name) if len(name) >= WHOLE_WORD_BELOW else rf"(?<![0-9a-z]){re.escape(name)}(?![0-9a-z])"
        for name in names
    ]
    return re.compile("|".join(forms), re.IGNORECASE), {name.lower(): name for name in reversed(names)}


# ---- the key ----


def redaction_of(
    what: str | None, key_file: Path | None, told: Callable[[str], None] = lambda _said: None
) -> Redaction | None:
    """The pseudonyms of ``--redact``; makes their key where there is none, readable by its owner only, and tells so.

    Raises:
        UsageError: an option without the other, or a key that cannot be read, made or used.
    """
    if what is None:
        if key_file is not None:
            raise UsageError("--redact-key is the key of --redact tenant; give both")
        return None
    if what != "tenant":
        raise UsageError(f"--redact {what}: only 'tenant' can stand under pseudonyms")

    path = key_file or _default_key()
    try:
        key = path.read_bytes().strip()
    except FileNotFoundError:
        key = _new_key(path)
        told(f"redact   new key in {path}; keep it apart from the report: it tells who is who")
    except OSError as error:
        raise UsageError(f"--redact-key {path}: cannot be read ({error.strerror}); choose another file") from None
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise UsageError(
            f"--redact-key {path}: {len(key)} bytes, not {KEY_BYTES_MIN} to {KEY_BYTES_MAX}; "
            "name a file that is not there yet, and a key is made"
        )
    return Redaction(Pseudonyms(key))


def _default_key() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "fairreplay" / "redact.key"


def _new_key(path: Path) -> bytes:
    key = secrets.token_hex(32).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key + b"\n")
    except OSError as error:
        raise UsageError(f"--redact-key {path}: cannot be made ({error.strerror}); choose another file") from None
    return key
