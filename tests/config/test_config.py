"""Config errors name the key, the line and the nearest key; layers resolve in the order of the design."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from fairreplay.config.load import load_config, parse_config
from fairreplay.config.model import Config, StepTime, resolve_cluster
from fairreplay.errors import UsageError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cluster]\nmax_num_seq = 3\n", "line 2: unknown key 'cluster.max_num_seq'; did you mean 'max_num_seqs'?"),
        ("[clustr]\n", "line 1: unknown key 'clustr'; did you mean 'cluster'?"),
        ("[tenants.acme]\nwieght = 2.0\n", "line 2: unknown key 'tenants.acme.wieght'; did you mean 'weight'?"),
        ("[[cluster.changes]]\nat = 2026-11-02T09:16:00Z\nblock_sise = 6\n", "did you mean 'block_size'?"),
        ("[cost]\nprompt = -1.0\n", "line 2: cost.prompt = -1.0: Input should be greater than or equal to 0"),
        ("[cluster]\nreplicas = 'two'\n", "line 2: cluster.replicas = 'two': Input should be a valid integer"),
        ("[cluster]\nbatching = 'prefil'\n", "cluster.batching = 'prefil'"),
        ("[cost]\nprompt = nan\n", "cost.prompt = nan"),
        ("cost = [\n", "not TOML"),
    ],
)
def test_errors_name_key_line_and_fix(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config(text, "fr.toml")
    assert str(caught.value).startswith("config fr.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_named_config_must_be_there_and_an_unnamed_one_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(None) == Config()
    with pytest.raises(UsageError, match="no such file"):
        load_config(tmp_path / "fr.toml")
    Path("fairreplay.toml").write_text("[cost]\noutput = 3\n")
    assert load_config(None).cost.output == 3


def test_model_over_cluster_and_changes_in_time_order() -> None:
    config = parse_config(
        """
        [cluster]
        num_gpu_blocks = 1000
        replicas = 2
        [cluster.step_time]
        base = 0.01
        [[cluster.changes]]
        at = 2026-11-03T00:00:00Z
        num_gpu_blocks = 500
        [[cluster.changes]]
        at = 2026-11-02T00:00:00
        speed = 0.5
        [models."big"]
        max_num_seqs = 7
        """,
        "fr.toml",
    )
    cluster = resolve_cluster(config, "big")
    assert (cluster.engine.max_num_seqs, cluster.engine.num_gpu_blocks, cluster.replicas) == (7, 1000, 2)
    assert cluster.engine.step_time == StepTime(base=0.01)
    assert [(at, engine.speed, engine.num_gpu_blocks) for at, engine in cluster.changes] == [
        (datetime(2026, 11, 2, tzinfo=UTC), 0.5, 1000),
        (datetime(2026, 11, 3, tzinfo=UTC), 0.5, 500),
    ]
    assert resolve_cluster(config, "other").engine.max_num_seqs == 256


def test_async_scheduling_is_on_as_in_a_stock_server_but_unknown_to_prefill_first_engines() -> None:
    assert resolve_cluster(Config(), None).engine.async_scheduling
    config = parse_config('[cluster]\nbatching = "prefill-first"\n', "fr.toml")
    assert not resolve_cluster(config, None).engine.async_scheduling
    with pytest.raises(UsageError, match=r"config fr.toml: \[cluster\]: async_scheduling = true does not go with"):
        parse_config('[cluster]\nbatching = "prefill-first"\nasync_scheduling = true\n', "fr.toml")
