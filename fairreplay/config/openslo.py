"""``[defaults] openslo``: TTFT targets from an OpenSLO file (YAML, apiVersion ``openslo/v1``).

Read are documents of kind ``SLO`` whose indicator is a threshold on the time to first token: an objective with
``op: lte`` (or ``lt``), ``value`` and ``target`` 0.5, 0.9 or 0.99 is the P50, P90 or P99. The label or annotation
``tenant`` names the tenant; a document without one holds for all others. The unit is that of the label or annotation
``unit`` (``s``, ``ms``, ``us``), else of the metric's name (``..._seconds``). Other kinds and indicators are let be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from fairreplay.config.model import QUANTILES, Config, Quantile, SloTtft, Tenant
from fairreplay.errors import UsageError

TARGETS: Final[dict[float, Quantile]] = {0.5: "p50", 0.9: "p90", 0.99: "p99"}
UNITS_MS: Final[dict[str, float]] = {"s": 1000.0, "ms": 1.0, "us": 0.001}
_SPELLED: Final = {
    "second": "s",
    "seconds": "s",
    "sec": "s",
    "millisecond": "ms",
    "milliseconds": "ms",
    "microseconds": "us",
} | {unit: unit for unit in UNITS_MS}
_TTFT: Final = re.compile(r"ttft|first[ _-]?token", re.IGNORECASE)
_IN_NAME: Final = re.compile(r"_(seconds|milliseconds|microseconds|ms|us)(?![a-z])")
_AT_MOST: Final = ("lte", "lt")


@dataclass(frozen=True)
class _Target:
    """One objective: ``value_ms`` of a quantile of a tenant (null: of all others), and where it stands."""

    tenant: str | None
    quantile: Quantile
    value_ms: float
    where: str


def with_openslo(config: Config, folder: Path) -> Config:
    """``config`` with the targets of its OpenSLO file, which stands relative to ``folder``.

    Targets that the config sets itself, of a tenant or of all, go before those of the file.

    Raises:
        UsageError: it cannot be read, or says too little; the file, the document and the line are named.
    """
    assert config.defaults.openslo is not None, "there is a file"
    common, own = read_openslo(folder / config.defaults.openslo)
    tenants = dict(config.tenants)
    for name, slo in own.items():
        table = tenants.get(name, Tenant())
        if table.slo_ttft_ms is None:
            tenants[name] = table.model_copy(update={"slo_ttft_ms": slo})
    defaults = config.defaults
    if defaults.slo_ttft_ms is None and common is not None:
        defaults = defaults.model_copy(update={"slo_ttft_ms": common})
    return config.model_copy(update={"tenants": tenants, "defaults": defaults})


def read_openslo(path: Path) -> tuple[SloTtft | None, dict[str, SloTtft]]:
    """The targets of all tenants that have none of their own, and those of each that has.

    Raises:
        UsageError: as ``with_openslo``.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise UsageError(f"openslo {path}: cannot be read ({reason}); it stands relative to the config") from None
    try:
        documents = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node is not None]
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise UsageError(f"openslo {path}{line}: no YAML ({getattr(error, 'problem', None) or 'too deep'})") from None
    file = _File(path, tuple(documents))
    found: dict[str | None, dict[Quantile, _Target]] = {}
    for target in file.targets():
        earlier = found.setdefault(target.tenant, {}).get(target.quantile)
        if earlier is not None:
            raise UsageError(
                f"{target.where}: a second {target.quantile} of {_whose(target.tenant)}; the first is at "
                f"{earlier.where.rpartition(', ')[2]}"
            )
        found[target.tenant][target.quantile] = target
    if not found:
        raise UsageError(f"openslo {path}: no SLO document with a threshold on the time to first token")
    common = found.pop(None, {})
    slos = {tenant: _slo({**common, **own}, tenant) for tenant, own in found.items() if tenant is not None}
    return (_slo(common, None) if common else None), slos


def _slo(targets: dict[Quantile, _Target], tenant: str | None) -> SloTtft:
    """All three quantiles; those that a tenant does not set are everybody's."""
    missing = [quantile for quantile in QUANTILES if quantile not in targets]
    if missing:
        where = next(iter(targets.values())).where
        raise UsageError(
            f"{where}: {_whose(tenant)} has no objective for {', '.join(missing)}; targets 0.5, 0.9 and 0.99 are needed"
        )
    return SloTtft(**{quantile: targets[quantile].value_ms for quantile in QUANTILES})


def _whose(tenant: str | None) -> str:
    return "the SLO of all tenants" if tenant is None else f"tenant {tenant!r}"


@dataclass(frozen=True)
class _File:
    path: Path
    documents: tuple[yaml.Node, ...]

    def targets(self) -> Iterator[_Target]:
        slos = [
            (number, node) for number, node in enumerate(self.documents, start=1) if _text(_at(node, "kind")) == "SLO"
        ]
        thresholds = [(number, node, sli) for number, node in slos if (sli := self.indicator(number, node)) is not None]
        named = [entry for entry in thresholds if _TTFT.search(_words(entry[1]) + _words(entry[2]))]
        for number, node, sli in named or thresholds:
            yield from self.objectives(number, node, sli)

    def indicator(self, number: int, node: yaml.Node) -> yaml.Node | None:
        """The document's own indicator, or the one it refers to; null where it is no threshold."""
        spec = _at(node, "spec")
        sli = _at(spec, "indicator")
        reference = _at(spec, "indicatorRef")
        if sli is None and reference is not None:
            name = _text(reference)
            known = [other for other in self.documents if _text(_at(other, "kind")) == "SLI"]
            sli = next((other for other in known if _text(_at(_at(other, "metadata"), "name")) == name), None)
            if sli is None:
                raise UsageError(f"{self.at(number, reference)}: indicatorRef {name!r} is no SLI of this file")
        return sli if _at(_at(sli, "spec"), "thresholdMetric") is not None else None

    def objectives(self, number: int, node: yaml.Node, sli: yaml.Node) -> Iterator[_Target]:
        tenant = _tagged(node, "tenant")
        objectives = _at(_at(node, "spec"), "objectives")
        if not isinstance(objectives, yaml.SequenceNode) or not objectives.value:
            raise UsageError(f"{self.at(number, node)}: an SLO without spec.objectives")
        scale = self.unit_ms(number, node, sli)
        for one in objectives.value:
            where = self.at(number, one)
            op = _text(_at(one, "op"))
            if op not in _AT_MOST:
                raise UsageError(f"{where}: op {op!r}: a latency is met from below: lte or lt")
            value, target = self.number(number, one, "value"), self.target(number, one)
            if value * scale <= 0:
                raise UsageError(f"{where}: value {value:g}: must be above 0")
            yield _Target(tenant, target, value * scale, where)

    def target(self, number: int, one: yaml.Node) -> Quantile:
        if _at(one, "target") is not None:
            part = self.number(number, one, "target")
        else:
            part = self.number(number, one, "targetPercent") / 100
        quantile = next((name for known, name in TARGETS.items() if abs(known - part) < 1e-9), None)
        if quantile is None:
            raise UsageError(f"{self.at(number, one)}: target {part:g}: FairReplay judges 0.5, 0.9 and 0.99")
        return quantile

    def number(self, number: int, node: yaml.Node, key: str) -> float:
        found = _at(node, key)
        if found is None:
            raise UsageError(f"{self.at(number, node)}: {key} is missing")
        try:
            return float(_text(found) or "")
        except ValueError:
            raise UsageError(f"{self.at(number, found)}: {key} {_text(found)!r} is no number") from None

    def unit_ms(self, number: int, node: yaml.Node, sli: yaml.Node) -> float:
        """Milliseconds of one unit of the indicator."""
        said = _tagged(node, "unit") or _tagged(sli, "unit")
        if said is not None:
            if said not in _SPELLED:
                raise UsageError(f"{self.at(number, node)}: unit {said!r}: must be s, ms or us")
            return UNITS_MS[_SPELLED[said]]
        units = {_SPELLED[match] for match in _IN_NAME.findall(_words(_at(_at(sli, "spec"), "thresholdMetric")))}
        if len(units) != 1:
            raise UsageError(
                f"{self.at(number, node)}: seconds or milliseconds? set metadata.annotations unit: s, ms or us"
            )
        return UNITS_MS[units.pop()]

    def at(self, number: int, node: yaml.Node) -> str:
        return f"openslo {self.path}: document {number}, line {node.start_mark.line + 1}"


def _at(node: yaml.Node | None, key: str) -> yaml.Node | None:
    """The value of ``key`` in a mapping; null where there is none."""
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if _text(name) == key), None)


def _text(node: yaml.Node | None) -> str | None:
    return node.value if isinstance(node, yaml.ScalarNode) else None


def _tagged(node: yaml.Node, key: str) -> str | None:
    """A label or an annotation, whatever domain stands before its name; the first of several values."""
    for kind in ("labels", "annotations"):
        tags = _at(_at(node, "metadata"), kind)
        for name, value in tags.value if isinstance(tags, yaml.MappingNode) else ():
            if (_text(name) or "").rpartition("/")[2] == key:
                first = value.value[0] if isinstance(value, yaml.SequenceNode) and value.value else value
                return _text(first)
    return None


def _words(node: yaml.Node | None) -> str:
    """Every text below ``node``; what aliases share is read once."""
    words: list[str] = []
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, yaml.ScalarNode):
            words.append(one.value)
        elif isinstance(one, yaml.MappingNode):
            waiting += [part for pair in one.value for part in pair]
        else:
            waiting += one.value
    return " ".join(words)
