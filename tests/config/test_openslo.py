"""TTFT targets from OpenSLO files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairreplay.config.load import load_config
from fairreplay.config.model import SloTtft
from fairreplay.errors import UsageError

COMMON = """\
apiVersion: openslo/v1
kind: Service
metadata: {name: gateway}
---
apiVersion: openslo/v1
kind: SLO
metadata:
  name: ttft-all
spec:
  service: gateway
  indicator:
    metadata: {name: ttft}
    spec:
      thresholdMetric:
        metricSource:
          type: Prometheus
          spec: {query: "vllm:time_to_first_token_seconds"}
  budgetingMethod: Occurrences
  objectives:
    - {op: lte, value: 0.2, target: 0.5}
    - {op: lte, value: 0.5, targetPercent: 90}
    - {op: lt, value: 1, target: 0.99}
"""
AVAILABILITY = """\
---
apiVersion: openslo/v1
kind: SLO
metadata: {name: availability}
spec:
  indicator:
    spec:
      ratioMetric: {good: {metricSource: {}}, total: {metricSource: {}}}
  objectives: [{target: 0.999}]
"""
ACME = """\
---
apiVersion: openslo/v1
kind: SLI
metadata: {name: first-token, annotations: {example.org/unit: ms}}
spec:
  thresholdMetric: {metricSource: {type: X, spec: {query: q}}}
---
apiVersion: openslo/v1
kind: SLO
metadata:
  name: acme
  labels: {tenant: [acme]}
spec:
  indicatorRef: first-token
  objectives:
    - displayName: P99
      op: lte
      value: 900
      target: 0.99
"""


def load(folder: Path, yaml: str, toml: str = ""):  # type: ignore[no-untyped-def]
    (folder / "slo.yaml").write_text(yaml, encoding="utf-8")
    (folder / "f.toml").write_text(f'[defaults]\nopenslo = "slo.yaml"\n{toml}')
    return load_config(folder / "f.toml")


def test_targets_of_all_and_of_a_tenant(tmp_path: Path) -> None:
    """Seconds by the metric's name, milliseconds by an annotation; a tenant's open quantiles are everybody's."""
    config = load(tmp_path, COMMON + AVAILABILITY + ACME)
    assert config.defaults.slo_ttft_ms == SloTtft(p50=200, p90=500, p99=1000)
    assert config.slo_ttft_ms("acme") == SloTtft(p50=200, p90=500, p99=900)
    assert config.slo_ttft_ms("other") == SloTtft(p50=200, p90=500, p99=1000)


def test_what_the_config_says_itself_goes_before(tmp_path: Path) -> None:
    toml = "slo_ttft_ms = { p50 = 1, p90 = 2, p99 = 3 }\n[tenants.acme]\nslo_ttft_ms = { p50 = 4, p90 = 5, p99 = 6 }\n"
    config = load(tmp_path, COMMON + ACME, toml)
    assert config.slo_ttft_ms("acme") == SloTtft(p50=4, p90=5, p99=6)
    assert config.slo_ttft_ms("other") == SloTtft(p50=1, p90=2, p99=3)


def test_other_latencies_are_left_alone_where_one_is_the_first_token(tmp_path: Path) -> None:
    other = COMMON.replace("ttft-all", "e2e").replace("name: ttft", "name: e2e").replace("time_to_first_token", "e2e")
    config = load(tmp_path, COMMON + "---\n" + other.replace("value: 1,", "value: 60,"))
    assert config.defaults.slo_ttft_ms == SloTtft(p50=200, p90=500, p99=1000)


@pytest.mark.parametrize(
    ("yaml", "says"),
    [
        (COMMON.replace("target: 0.99", "target: 0.95"), "document 2, line 22: target 0.95: FairReplay judges 0.5"),
        (COMMON.replace("op: lt,", "op: gt,"), "document 2, line 22: op 'gt': a latency is met from below"),
        (COMMON.replace("value: 0.2", "value: soon"), "document 2, line 20: value 'soon' is no number"),
        (COMMON.replace("value: 0.2", "value: 0"), "document 2, line 20: value 0: must be above 0"),
        (COMMON.replace(", target: 0.5", ""), "document 2, line 20: targetPercent is missing"),
        (COMMON.replace("_seconds", ""), "document 2, line 5: seconds or milliseconds?"),
        (COMMON.replace("    - {op: lt, value: 1, target: 0.99}\n", ""), "has no objective for p99"),
        (
            COMMON.replace("target: 0.99", "target: 0.5"),
            "line 22: a second p50 of the SLO of all tenants; the first is at line 20",
        ),
        (ACME.replace("indicatorRef: first-token", "indicatorRef: gone"), "line 14: indicatorRef 'gone' is no SLI"),
        (AVAILABILITY, "no SLO document with a threshold on the time to first token"),
        ("a: [1\n", "line 2: no YAML"),
        ("[" * 3000, "no YAML"),
    ],
)
def test_errors_name_file_document_and_line(tmp_path: Path, yaml: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, yaml)
    assert f"openslo {tmp_path / 'slo.yaml'}" in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_aliases_that_multiply_are_read_once(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
    with pytest.raises(UsageError, match="seconds or milliseconds"):
        load(
            tmp_path,
            f"kind: SLO\nspec:\n  indicator: {{spec: {{thresholdMetric: {{b: &x 1}}}}}}\n  objectives: [{{}}]\n{bomb}",
        )
