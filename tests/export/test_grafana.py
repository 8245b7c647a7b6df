"""The dashboard names exported metrics only; promtool reads the rules; levels and channels are those of the metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fairreplay.export.grafana import dashboard, rules
from fairreplay.export.prometheus import FAMILIES, PREFIX
from tests.export.test_prometheus import promtool


def queries(node: Any) -> list[str]:
    """Every query of the dashboard: of panels and of variables."""
    if isinstance(node, dict):
        own = [node[key] for key in ("expr", "query") if isinstance(node.get(key), str)]
        return own + [query for value in node.values() for query in queries(value)]
    return [query for item in node for query in queries(item)] if isinstance(node, list) else []


def metrics_in(query: str) -> set[str]:
    return set(re.findall(rf"\b{PREFIX}\w+", query))


def labels_in(query: str) -> list[tuple[str, set[str]]]:
    return [(name, set(re.findall(r"(\w+)\s*=~?", inner))) for name, inner in re.findall(r"(\w+)\{([^}]*)\}", query)]


def test_every_query_names_an_exported_metric_and_its_labels() -> None:
    exported = {PREFIX + name for name in FAMILIES}
    asked = [query for query in queries(json.loads(dashboard())) if query != "prometheus"]
    asked += re.findall(r"expr: '(.*)'", rules().decode())
    assert len(asked) > 30
    for query in asked:
        assert metrics_in(query), query
        assert metrics_in(query) <= exported, query
        for name, labels in labels_in(query):
            assert labels <= set(FAMILIES[name.removeprefix(PREFIX)].labels), query


def test_promtool_reads_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_bytes(rules())
    assert "9 rules found" in promtool("check", "rules", str(tmp_path / "rules.yml"))


def series(metric: str, value: float, /, **labels: str) -> str:
    names = ",".join(f'{name}="{text}"' for name, text in ({"model": "m", "policy": "logged"} | labels).items())
    return f"""
      - series: 'fairreplay_{metric}{{{names}}}'
        values: '{value}x5'"""


@pytest.mark.parametrize("production", ["logged", "fcfs"])
@pytest.mark.parametrize(
    ("given", "alert", "channel"),
    [
        ({"scr_latest_ratio": 0.95}, None, None),
        ({"scr_latest_ratio": 0.949}, "FairReplayScrYellow", "slack"),
        ({"scr_latest_ratio": 0.9}, "FairReplayScrYellow", "slack"),
        ({"scr_latest_ratio": 0.899}, "FairReplayScrRed", "phone"),
        ({"jfi_latest_ratio": 0.89}, "FairReplayJfiYellow", "slack"),
        ({"jfi_latest_ratio": 0.79}, "FairReplayJfiRed", "slack"),
        ({"jfi_latest_ratio": 0.99, "least_attainment_latest_ratio": 0.49}, "FairReplayJfiYellow", "slack"),
        ({"jfi_latest_ratio": 0.99, "least_attainment_latest_ratio": 0.5}, None, None),
        ({"tfr_latest_ratio": 0.49}, "FairReplayTfrYellow", "ticket"),
        ({"tfr_latest_ratio": 0.39}, "FairReplayTfrRed", "slack"),
    ],
)
def test_the_rules_fire_at_the_levels_of_the_metrics(
    tmp_path: Path, given: dict[str, float], alert: str | None, channel: str | None, production: str
) -> None:
    """Prometheus itself evaluates the rules on one value of each level: once, of what stands for production."""
    (tmp_path / "rules.yml").write_bytes(rules())
    names = sorted(set(re.findall(r"alert: (\w+)", rules().decode())))
    tests = "".join(_expects(name, name == alert, channel) for name in names)
    inputs = "".join(
        series(metric, value, policy=policy) for policy in ("logged", "fcfs") for metric, value in given.items()
    )
    inputs += series("production", int(production == "logged")) + series(
        "production", int(production == "fcfs"), policy="fcfs"
    )
    text = f"""rule_files: [rules.yml]
tests:
  - interval: 1m
    input_series:{inputs}
    promql_expr_test:{tests}
"""
    (tmp_path / "test.yml").write_text(text)
    promtool("test", "rules", str(tmp_path / "test.yml"))


def test_an_emergency_mode_is_that_of_production(tmp_path: Path) -> None:
    """Under a policy that was only replayed a mode alarms nobody."""
    (tmp_path / "rules.yml").write_bytes(rules())
    inputs = "".join(
        series("emergency_mode_active", 1, policy=policy, metric=metric, mode="any", instance="a")
        + series("production", stands, policy=policy, instance="a")
        for policy, metric, stands in (("fcfs", "scr", 1), ("vtc", "jfi", 0))
    )
    names = sorted(set(re.findall(r"alert: (\w+)", rules().decode())))
    tests = "".join(_expects(name, name == "FairReplayScrEmergency", "phone") for name in names)
    (tmp_path / "test.yml").write_text(f"""rule_files: [rules.yml]
tests:
  - interval: 1m
    input_series:{inputs}
    promql_expr_test:{tests}
""")
    promtool("test", "rules", str(tmp_path / "test.yml"))


def _expects(name: str, fires: bool, channel: str | None) -> str:
    expected = f'[{{labels: \'{{alertname="{name}",channel="{channel}"}}\', value: 1}}]' if fires else "[]"
    return f"""
      - expr: count by (alertname, channel) (ALERTS{{alertname="{name}"}})
        eval_time: 3m
        exp_samples: {expected}"""


def test_the_same_bytes_again() -> None:
    assert dashboard() == dashboard()
    assert json.loads(dashboard())["uid"] == "fairreplay"
