"""A Grafana dashboard over the exported metrics, and Prometheus rules with the alert levels and their channels."""

from __future__ import annotations

from typing import Any, Final

import orjson

from fairreplay.export.prometheus import PREFIX
from fairreplay.metrics.alerts import CHANNELS, ENTER, METRICS, MODES, STARVED_X, TARGETS, THRESHOLDS, Metric

DASHBOARD: Final = "dashboard.json"
RULES: Final = "rules.yml"

_CHOSEN: Final = 'model=~"$model",policy=~"$policy"'
_PRODUCTION: Final = f"{PREFIX}production == 1"
"""What the verdict of a report judges too: the log, or the baseline replay of one that holds arrivals only."""
_UNITS: Final = {"ratio": "none", "seconds": "s", "": "short"}

_Panel = tuple[str, str, str, str]
"""Title, kind of panel, unit, query."""

_PANELS: Final[tuple[_Panel, ...]] = (
    ("Service over entitlement, worst-off tenant", "timeseries", "ratio", "least_attainment_latest_ratio"),
    ("Time below level", "bargauge", "seconds", "below_level_seconds"),
    ("Alerts in the period", "bargauge", "", "alerts"),
    ("Emergency modes that would be on", "table", "", "emergency_mode_active"),
    ("Episodes by cause", "bargauge", "", "episodes"),
    ("TTFT of the period", "timeseries", "seconds", "ttft_seconds"),
    ("Requests", "timeseries", "", "requests"),
    ("Refused requests", "timeseries", "", "refused_requests"),
    ("Preemptions", "timeseries", "", "preemptions"),
    ("Recompute tax", "timeseries", "ratio", "recompute_tax_ratio"),
)
_TENANT_PANELS: Final[tuple[_Panel, ...]] = (
    ("TTFT by tenant, the ten slowest at P99", "table", "seconds", "tenant_ttft_seconds"),
    ("Windows in which a tenant missed its SLO", "bargauge", "", "tenant_windows_failed"),
    ("Service over entitlement by tenant, least ten", "bargauge", "ratio", "tenant_attainment_ratio"),
    ("Weight in force over committed share", "bargauge", "ratio", "tenant_weight_skew_ratio"),
    ("Type attainment of its floor", "bargauge", "ratio", "type_attainment_ratio"),
    ("Units that a type's floor lost", "bargauge", "", "type_leaked_units"),
)
_QUERIES: Final = {
    "tenant_ttft_seconds": f'topk(10, {PREFIX}tenant_ttft_seconds{{{_CHOSEN},percentile="99"}})',
    "tenant_windows_failed": f"topk(10, {PREFIX}tenant_windows_failed{{{_CHOSEN}}})",
    "tenant_attainment_ratio": f"bottomk(10, {PREFIX}tenant_attainment_ratio{{{_CHOSEN}}})",
    "tenant_weight_skew_ratio": f"topk(10, {PREFIX}tenant_weight_skew_ratio{{{_CHOSEN}}})",
    "emergency_mode_active": f"{PREFIX}emergency_mode_active{{{_CHOSEN}}} == 1",
}


def dashboard() -> bytes:
    """The dashboard as JSON for Grafana's import, the same bytes each time."""
    panels: list[dict[str, Any]] = []
    for number, metric in enumerate(METRICS):
        panels.append(_figure(metric, "mean", "stat", {"x": 8 * number, "y": 0, "w": 8, "h": 5}))
    for number, metric in enumerate(METRICS):
        panels.append(_figure(metric, "latest", "timeseries", {"x": 8 * number, "y": 5, "w": 8, "h": 8}))
    for number, panel in enumerate((*_PANELS, *_TENANT_PANELS)):
        panels.append(_panel(*panel, {"x": 12 * (number % 2), "y": 13 + 8 * (number // 2), "w": 12, "h": 8}))
    document = {
        "uid": "fairreplay",
        "title": "FairReplay: fairness of LLM serving",
        "description": "Figures of the period that `fairreplay export prometheus` measured last.",
        "tags": ["fairreplay", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "timezone": "utc",
        "time": {"from": "now-14d", "to": "now"},
        "refresh": "",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_datasource(), _choice("model"), _choice("policy")]},
        "panels": [panel | {"id": number} for number, panel in enumerate(panels, start=1)],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"


def _figure(metric: Metric, which: str, kind: str, place: dict[str, int]) -> dict[str, Any]:
    title = f"{metric.upper()}, {'mean of the period' if which == 'mean' else 'latest window'}"
    panel = _panel(title, kind, "ratio", f"{metric}_{which}_ratio", place)
    steps = [{"color": "dark-red", "value": None}] + [
        {"color": colour, "value": limit} for limit, colour in _steps(metric)
    ]
    panel["fieldConfig"]["defaults"]["thresholds"] = {"mode": "absolute", "steps": steps}
    panel["fieldConfig"]["defaults"]["decimals"] = 3
    if kind == "timeseries":
        panel["fieldConfig"]["defaults"]["custom"] = {"thresholdsStyle": {"mode": "line"}}
    return panel


def _steps(metric: Metric) -> list[tuple[float, str]]:
    """From each limit upward which colour holds; below the lowest it is that of an emergency."""
    limits = THRESHOLDS[metric]
    return sorted({limits["emergency"]: "red", limits["red"]: "yellow", limits["yellow"]: "green"}.items())


def _panel(title: str, kind: str, unit: str, name: str, place: dict[str, int]) -> dict[str, Any]:
    return {
        "title": title,
        "type": kind,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": _UNITS[unit]}, "overrides": []},
        "options": {},
        "targets": [
            {
                "refId": "A",
                "expr": _QUERIES.get(name, f"{PREFIX}{name}{{{_CHOSEN}}}"),
                "instant": kind in ("table", "bargauge"),
                "format": "table" if kind == "table" else "time_series",
            }
        ],
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _choice(label: str) -> dict[str, Any]:
    return {
        "name": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": f"label_values({PREFIX}requests, {label})",
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
        "sort": 1,
    }


def rules() -> bytes:
    """A Prometheus rules file: levels, channels and emergency modes of production's last judged window."""
    lines = [
        "# Alert levels of FairReplay, for the metrics of `fairreplay export prometheus`. The label `channel` is for",
        "# Alertmanager's routes. Each looks at the last judged window of what production did (where the log holds",
        "# arrivals only, of the baseline replay that stands for it).",
        "groups:",
        "  - name: fairreplay",
        "    rules:",
    ]
    for metric in METRICS:
        for level in ("yellow", "red"):
            lines += _rule(
                f"FairReplay{metric.capitalize()}{level.capitalize()}",
                _level_query(metric, level),
                {"severity": level, "channel": CHANNELS[metric][level], "metric": metric},
                f"{metric.upper()} is {level} ({_said(metric, level)})",
                f"{metric.upper()} of model {{{{ $labels.model }}}} is {{{{ $value | humanize }}}}, its target "
                f"{TARGETS[metric]:g}. fairreplay episodes says when and why.",
            )
    for metric in METRICS:
        mode = MODES[metric]
        lines += _rule(
            f"FairReplay{metric.capitalize()}Emergency",
            f'{PREFIX}emergency_mode_active{{metric="{metric}"}} == 1 and ignoring (metric, mode) {_PRODUCTION}',
            {"severity": "emergency", "channel": CHANNELS[metric]["red"], "metric": metric},
            f"{metric.upper()} calls for the mode {mode}",
            f"{metric.upper()} of model {{{{ $labels.model }}}} was below {THRESHOLDS[metric]['emergency']:g} in "
            f"{ENTER[metric]} windows in a row and has not recovered.",
        )
    return ("\n".join(lines) + "\n").encode()


def _level_query(metric: Metric, level: str) -> str:
    """One level at a time: yellow ends where red begins. JFI is yellow too where one tenant is starved."""
    value = f"{PREFIX}{metric}_latest_ratio"
    limits = THRESHOLDS[metric]
    if level == "red":
        return f"{value} < {limits['red']:g} and {_PRODUCTION}"
    yellow = f"({value} < {limits['yellow']:g}) >= {limits['red']:g}"
    if metric != "jfi":
        return f"{yellow} and {_PRODUCTION}"
    starved = f"{PREFIX}least_attainment_latest_ratio < {STARVED_X:g}"
    return f"(({yellow}) or ({starved} unless {value} < {limits['yellow']:g})) and {_PRODUCTION}"


def _said(metric: Metric, level: str) -> str:
    said = f"below {THRESHOLDS[metric][level]:g}"
    starved = f", or a tenant with backlog got less than {STARVED_X:g} of its entitlement"
    return said + (starved if metric == "jfi" and level == "yellow" else "")


def _rule(name: str, query: str, labels: dict[str, str], summary: str, description: str) -> list[str]:
    return [
        f"      - alert: {name}",
        f"        expr: {_quoted(query)}",
        "        labels:",
        *(f"          {label}: {_quoted(value)}" for label, value in labels.items()),
        "        annotations:",
        f"          summary: {_quoted(summary)}",
        f"          description: {_quoted(description)}",
    ]


def _quoted(text: str) -> str:
    """A YAML string in single quotes."""
    return "'" + text.replace("'", "''") + "'"
