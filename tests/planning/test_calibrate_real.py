"""Calibration of a mixed engine on real vLLM logs: fitted on every second request, right on the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fairreplay.config.load import parse_config
from fairreplay.planning.calibrate import calibrate
from fairreplay.planning.first_guess import Observed
from fairreplay.planning.fixed_rate import fitted_rate, queue_ttft
from fairreplay.store.ingest import IngestOptions, ingest
from fairreplay.store.store import open_store

LOGS = Path(__file__).parents[1] / "data" / "vllm_requests"
SERVER = "[cluster]\nmax_num_batched_tokens = 2048\n"
"""As the server ran (``meta.json`` beside the log at its source); max_num_seqs is found by the fit."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    found = {}
    for model in ("Llama-3.1-8B", "Qwen3-32B"):
        store = tmp_path_factory.mktemp(model)
        ingest([str(LOGS / f"RTXPRO6000_{model}.requests.jsonl")], store, IngestOptions())
        found[model] = open_store(store).requests()
    return found


@pytest.mark.parametrize("settings", ["", SERVER], ids=["as given", "as it ran"])
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Qwen3-32B"])
def test_the_other_half_is_predicted(logs: dict[str, pl.DataFrame], model: str, settings: str) -> None:
    fitted = calibrate(logs[model], parse_config(settings, "fr.toml"))
    found, plain = fitted.after_held_out, fitted.fixed_rate.held_out
    assert found.requests == plain.requests == 150
    assert abs(found.ttft_p50_error) < 0.05
    assert abs(found.ttft_p90_error) < 0.05
    assert abs(found.ttft_p99_error) < 0.10
    assert found.decode_median_error < 0.02
    assert fitted.values["max_num_seqs"] == 128
    # a queue of a fixed rate knows no cap on running requests: its tail is too short
    assert -0.30 < plain.ttft_p99_error < -0.10
    assert plain.ttft_median_error > 3 * found.ttft_median_error


@pytest.mark.parametrize(
    ("model", "preset"),
    [("Llama-3.1-8B", "llama-3.1-8b/rtx-pro-6000"), ("Qwen3-32B", "qwen3-32b/2xrtx-pro-6000")],
)
def test_the_measured_presets_are_right_on_their_logs(logs: dict[str, pl.DataFrame], model: str, preset: str) -> None:
    text = f'{SERVER}engine = "vllm-0.28"\nmax_num_seqs = 128\n[cluster.step_time]\npreset = "{preset}"\n'
    as_given = calibrate(logs[model], parse_config(text, "fr.toml"), simulations=10)
    for half in (as_given.before_fitted, as_given.before_held_out):
        assert abs(half.ttft_p50_error) < 0.05
        assert abs(half.ttft_p99_error) < 0.10


def observed(arrival: list[float], prompt: list[float], output: list[float]) -> Observed:
    nothing = np.full(len(arrival), np.nan)
    return Observed(
        arrival=np.array(arrival),
        scheduled=nothing,
        first_token=nothing,
        finished=nothing,
        prompt=np.array(prompt),
        output=np.array(output),
        fitted=np.ones(len(arrival), np.bool_),
    )


def test_a_queue_of_a_fixed_rate_by_hand() -> None:
    # 10 tokens/s: a 0..2 s, b waits 1 s and ends at 5, the queue is empty until c comes at 9
    part = observed([0.0, 1.0, 9.0], [10.0, 20.0, 5.0], [10.0, 10.0, 5.0])
    assert queue_ttft(part, 10.0) == pytest.approx(np.array([1.0, 3.0, 0.5]))


def test_its_rate_is_found() -> None:
    random = np.random.default_rng(5)
    part = observed(
        np.cumsum(random.exponential(1.0, 80)).tolist(),
        random.integers(1, 60, 80).astype(float).tolist(),
        random.integers(1, 60, 80).astype(float).tolist(),
    )
    logged = queue_ttft(part, 47.0)
    rate = fitted_rate((part,), lambda rate: float(np.abs(np.log(queue_ttft(part, rate) / logged)).mean()))
    assert rate == pytest.approx(47.0, rel=1e-3)
