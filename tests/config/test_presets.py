"""Engine releases and step-time presets: the version table, the arithmetic, what is said of both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairreplay.config.assumed import assumptions
from fairreplay.config.engines import rules, unsettled
from fairreplay.config.hardware import GPUS, MODELS, pair
from fairreplay.config.load import parse_config
from fairreplay.config.model import Engine, StepTime, resolve_cluster
from fairreplay.config.step_times import MEASURED, preset
from fairreplay.errors import UsageError

ROOT = Path(__file__).parents[2]


def engine(text: str) -> Engine:
    return resolve_cluster(parse_config(text, "fr.toml"), None).engine


@pytest.mark.parametrize(
    ("version", "reserve", "asynchronous"),
    [("0.11", False, False), ("0.13", False, False), ("0.14", False, True), ("0.19", True, True), ("0.33", True, True)],
)
def test_defaults_of_a_release(version: str, reserve: bool, asynchronous: bool) -> None:
    found = engine(f'[cluster]\nengine = "vllm-{version}"\n')
    assert (found.scheduler_reserve_full_isl, found.async_scheduling) == (reserve, asynchronous)
    assert found.version == f"vllm-{version}"


def test_what_the_config_sets_goes_before_the_release() -> None:
    assert engine('[cluster]\nengine = "vllm-0.11"\nasync_scheduling = true\n').async_scheduling
    assert not engine("[cluster]\nscheduler_reserve_full_isl = false\n").scheduler_reserve_full_isl
    assert not engine('[cluster]\nengine = "vllm-0.28.0"\nbatching = "prefill-first"\n').async_scheduling


def test_a_model_may_run_another_release_than_the_rest() -> None:
    config = parse_config('[cluster]\nengine = "vllm-0.33"\n[models.old]\nengine = "vllm-0.11"\n', "fr.toml")
    assert not resolve_cluster(config, "old").engine.async_scheduling
    assert resolve_cluster(config, "new").engine.async_scheduling


def test_the_version_table() -> None:
    """golden/vllm/README.md, "Other versions"."""
    since = {
        "full_isl": 19,
        "victim_tokens_return": 19,
        "watermark": 27,
        "uncached_first": 27,
        "lone_uncapped": 33,
        "self_preemption_goes_on": 33,
        "active_seqs": 33,
    }
    for version in (11, 19, 23, 27, 30, 33):
        found = rules(f"vllm-0.{version}")
        for name, first in since.items():
            assert getattr(found, name) == (version >= first), (version, name)
        assert unsettled(f"vllm-0.{version}") == ()
    assert unsettled("vllm-0.28") == unsettled("vllm-0.21") == ()
    assert unsettled("vllm-0.25") == ("watermark", "uncached blocks freed to the front of the free list")


@pytest.mark.parametrize("name", ["vllm-0.10", "vllm-0.34", "vllm-1.0", "sglang-0.5", "vllm", "vllm-0.33rc1"])
def test_another_engine_is_one_line_with_the_range(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config(f'[cluster]\nengine = "{name}"\n', "fr.toml")
    assert str(caught.value) == (
        f"config fr.toml, line 2: cluster.engine = {name!r}: unknown engine {name!r}: write vllm-0.11 to vllm-0.33"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'engine = "vllm-0.23"\nwatermark = 0.01',
            r"watermark does not exist in vllm-0.23 \(known from",
        ),
        ('engine = "vllm-0.30"\nmax_num_active_seqs = 8', "max_num_active_seqs does not exist in vllm-0.30"),
        ('engine = "vllm-0.11"\nscheduler_reserve_full_isl = true', "scheduler_reserve_full_isl does not exist in"),
    ],
)
def test_a_setting_that_a_release_does_not_have_is_an_error(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_config(f"[cluster]\n{text}\n", "fr.toml")


def test_step_times_by_arithmetic() -> None:
    """Llama-3.1-8B on one H100: 16.06 GB over 80 % of 3.35 TB/s, 16.06 GFLOP a token over half of 989.4 TFLOP/s."""
    times = engine('[cluster.step_time]\npreset = "llama-3.1-8b/h100"\n').step_time
    assert times.base == pytest.approx(16.06e9 / 2.68e12, rel=1e-3)
    assert times.prefill_token == times.decode_sequence == pytest.approx(16.06e9 / 494.7e12, rel=1e-3)
    assert times.context_token == pytest.approx(131072 / 2.68e12, rel=1e-3)
    four = engine('[cluster.step_time]\npreset = "llama-3.1-70b/4xh100"\n').step_time
    assert four.base == pytest.approx(2 * 70.554e9 / (4 * 2.68e12), rel=1e-3)


def test_a_value_beside_a_preset_goes_before_it() -> None:
    times = engine('[cluster.step_time]\npreset = "llama-3.1-8b/h100"\nbase = 0.5\n').step_time
    assert times.base == 0.5
    assert times.prefill_token == preset("llama-3.1-8b/h100").values["prefill_token"]


def test_every_measured_preset_and_every_pair_that_fits_is_valid() -> None:
    for name, known in MEASURED.items():
        assert StepTime(preset=name).base == known.values["base"] > 0
    for model in MODELS:
        for gpu in GPUS:
            assert min(preset(f"{model}/8x{gpu}").values.values()) > 0


def test_kv_bytes_of_published_models() -> None:
    assert MODELS["llama-2-7b"].kv_bytes_per_token == 524_288
    assert MODELS["llama-3.1-8b"].kv_bytes_per_token == 131_072
    assert pair("llama-3.1-70b/2x-h100").count == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama-3.1-8b", "'llama-3.1-8b' is no MODEL/GPU or MODEL/NxGPU"),
        ("llama-3.1-8/h100", "did you mean 'llama-3.1-8b'?"),
        ("llama-3.1-8b/h1000", "did you mean 'h100'?"),
        (
            "llama-3.1-70b/h100",
            "weights of 141 GB do not fit 80 GB of memory: name more GPUs, as in llama-3.1-70b/2x",
        ),
    ],
)
def test_a_preset_that_does_not_exist_is_one_line(name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config(f'[cluster.step_time]\npreset = "{name}"\n', "fr.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_report_says_where_step_times_come_from_and_what_is_not_known_of_a_release() -> None:
    text = '[cluster]\nengine = "vllm-0.15"\n[cluster.step_time]\npreset = "llama-2-7b/a10g"\n'
    said = assumptions(parse_config(text, "fr.toml"))
    assert said[0].startswith("step times 'llama-2-7b/a10g' of [cluster]: fitted by `calibrate` to the S-LoRA log")
    assert said[1] == (
        "vllm-0.15: its sources were not read; taken to decide as the one before that was, without whole-prompt "
        "check at admission; tokens of an already scheduled priority victim returned to the budget"
    )
    assert assumptions(parse_config('[cluster]\nengine = "vllm-0.33"\n', "fr.toml")) == []


def test_the_page_names_every_model_gpu_and_measured_pair() -> None:
    page = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    assert {*MODELS, *GPUS, *MEASURED} <= set(re.findall(r"`([^`\n]+)`", page))
