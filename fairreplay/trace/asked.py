"""What the command line asks for beyond reading a log as it is: tenants from elsewhere, a period, pseudonyms.

``Asked`` is the same for every source of a run; one ``Applied`` goes with one source from its format to its last row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from fairreplay.trace.adapt import TenantFrom
from fairreplay.trace.containers import Read
from fairreplay.trace.fields import After, Columns, Format, Sample
from fairreplay.trace.join import Gateway, Join, JoinKey
from fairreplay.trace.pseudonyms import Pseudonyms
from fairreplay.trace.redact import Keeping
from fairreplay.trace.rules import Reading

OUTSIDE: Final = "outside_period"


@dataclass(frozen=True)
class Asked:
    """Instants in epoch microseconds: rows that arrived in [``since_us``, ``until_us``) are taken."""

    tenant_from: str | None = None
    key: JoinKey | None = None
    gateway: Gateway | None = None
    since_us: int | None = None
    until_us: int | None = None
    pseudonyms: Pseudonyms | None = None

    @property
    def changes_records(self) -> bool:
        """Records go through more than their format says: only the strict path does that."""
        return self.tenant_from is not None or self.gateway is not None


class Applied:
    """``format`` is the source's format with what was asked for; ``keeping`` says what stays of its rejects."""

    def __init__(self, asked: Asked, log_format: Format, sample: Sample, file: str) -> None:
        self._asked = asked
        self._is_csv = sample.container == "csv"
        self._tenant_from: TenantFrom | None = None
        self.join: Join | None = None
        self.outside = 0
        """Rows that arrived outside the period."""
        if asked.tenant_from is not None:
            self._tenant_from = TenantFrom(asked.tenant_from)
            log_format = self._tenant_from.attach(log_format, sample)
        if asked.gateway is not None and asked.key is not None:
            self.join = Join(asked.gateway, asked.key)
            log_format = self.join.attach(log_format, sample, file)
        self.format = log_format
        self.columns = log_format.columns_for(sample)
        self.keeping = keeping_of(log_format, self.columns, hide_tenants=asked.pseudonyms is not None)

    def rows(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Canonical rows, a block at a time: those of the period, tenants under their pseudonyms."""
        asked = self._asked
        if asked.since_us is not None or asked.until_us is not None:
            arrival = pl.col("arrived_at").cast(pl.Int64)
            inside = frame.filter(
                pl.lit(True) if asked.since_us is None else arrival >= asked.since_us,
                pl.lit(True) if asked.until_us is None else arrival < asked.until_us,
            )
            self.outside += frame.height - inside.height
            frame = inside
        return asked.pseudonyms.apply(frame) if asked.pseudonyms is not None else frame

    def kept_line(self, read: Read, prepared: object) -> str:
        """What is kept of a readable record that is a reject.

        Formats that hold prompts, or put a record together from several, keep what they made of it.
        """
        if self.format.private or self.format.whole:
            return self.keeping.line(prepared if isinstance(prepared, dict) else {}, None)
        return self.keeping.line(read.value or {}, read.text, self._is_csv)

    def told(self, reading: Reading) -> Reading:
        """``reading`` as it may be named: a tenant given for rows without one has its pseudonym too."""
        if self._asked.pseudonyms is None or reading.tenant is None:
            return reading
        return replace(reading, tenant=self._asked.pseudonyms.name(reading.tenant))

    def check(self) -> None:
        """After the last record.

        Raises:
            UsageError: a field or a key that was named is in no record.
        """
        if self._tenant_from is not None and not (self.join is not None and self.join.gateway.names_tenants):
            self._tenant_from.check()
        if self.join is not None:
            self.join.check()

    def remarks(self) -> tuple[str, ...]:
        """What the summary has to say about it, one sentence each."""
        said = self.join.remarks() if self.join is not None else []
        if self._asked.pseudonyms is not None:
            said.append("tenants stand under pseudonyms (--pseudonymise)")
        if self.keeping.removed:
            said.append(
                f"texts were removed from {self.keeping.removed} rejected records: no prompt, no answer is stored"
            )
        return tuple(said)


def keeping_of(log_format: Format, columns: Columns, *, hide_tenants: bool) -> Keeping:
    """What stays of a reject of this format."""
    places = [place for fields in columns.values() for place in fields]
    reads = {place.column for place in places} | {
        place.minus for place in places if isinstance(place, After) and place.minus
    }
    tenants = {place.column for place in columns.get("tenant", ())}
    if not log_format.private:
        reads |= set(log_format.reads)
    return Keeping(log_format.name, reads | set(log_format.needs), tenants if hide_tenants else None)


def tenant_adapter(field: str | None) -> Callable[[Format, Sample], Format] | None:
    """``--tenant-from`` for the joined log: its tenants may stand there too."""
    return TenantFrom(field).attach if field is not None else None
