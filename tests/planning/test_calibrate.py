"""Calibration finds the values that made a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fairreplay.config.load import parse_config
from fairreplay.config.model import Config, StepTime, resolve_cluster
from fairreplay.errors import BadInputError, UsageError
from fairreplay.planning.calibrate import Calibration, calibrate, with_values
from fairreplay.planning.config_file import edited, write_atomically
from fairreplay.planning.first_guess import Observed, _ramp, first_guess
from fairreplay.sandbox.plan import shards, take_load
from fairreplay.sandbox.replay import run_shards
from fairreplay.trace.schema import SCHEMA
from tests.sandbox.frames import canonical

TRUE = {"base": 0.02, "prefill_token": 2e-4, "decode_sequence": 4e-4, "context_token": 2e-6}
STEP_TIME = "[cluster.step_time]\n" + "\n".join(f"{key} = {value!r}" for key, value in TRUE.items())
MIXED = "[cluster]\nenable_prefix_caching = false\nasync_scheduling = false\n"
PREFILL_FIRST = '[cluster]\nenable_prefix_caching = false\nbatching = "prefill-first"\nadmission = "reserve"\n'


def config(text: str) -> Config:
    return parse_config(text, "test.toml")


def log_of(text: str, requests: int = 200, gap_s: float = 0.12, **columns: Any) -> pl.DataFrame:
    """What the engine itself logs under the settings in ``text``: Poisson arrivals, log-normal lengths."""
    random = np.random.default_rng(7)
    at = 0.0
    rows = []
    for _ in range(requests):
        at += random.exponential(gap_s)
        row = {
            "arrived_at": round(at, 6),
            "prompt_tokens": int(random.lognormal(5, 0.7)) + 1,
            "output_tokens": int(random.lognormal(3.3, 0.5)) + 2,
        }
        rows.append(row | columns)
    load = take_load(canonical(rows))
    done = run_shards(load, shards(load, config(text), "fcfs")).requests
    return load.frame.with_columns(done["scheduled_at"], done["first_token_at"], done["finished_at"])


def without_scheduled(log: pl.DataFrame) -> pl.DataFrame:
    return log.with_columns(scheduled_at=pl.lit(None, SCHEMA["scheduled_at"]))


def step_s(found: dict[str, float], decodes: int = 20, context: int = 3000) -> float:
    """A typical decode step."""
    return found["base"] + found["decode_sequence"] * decodes + found["context_token"] * context


@pytest.fixture(scope="module")
def recovered() -> Calibration:
    log = log_of(PREFILL_FIRST + "prefill_interval = 5\nnum_gpu_blocks = 151\n" + STEP_TIME)
    return calibrate(log, config(PREFILL_FIRST))


def test_prefill_first_values_are_recovered(recovered: Calibration) -> None:
    found = recovered.values["step_time"]
    assert recovered.values["prefill_interval"] == 5
    assert recovered.values["num_gpu_blocks"] == pytest.approx(151, rel=0.01)
    assert found["base"] == pytest.approx(TRUE["base"], rel=0.05)
    assert found["prefill_token"] == pytest.approx(TRUE["prefill_token"], rel=0.05)
    assert found["decode_sequence"] == pytest.approx(TRUE["decode_sequence"], rel=0.05)
    assert found["context_token"] == pytest.approx(TRUE["context_token"], rel=0.10)
    assert set(recovered.values) == {"step_time", "num_gpu_blocks", "prefill_interval"}


def test_the_held_out_half_is_predicted_and_was_not_before(recovered: Calibration) -> None:
    assert recovered.before_held_out.requests == recovered.after_held_out.requests == 100
    assert recovered.before_held_out.ttft_p50_error < -0.5
    for part in (recovered.after_fitted, recovered.after_held_out):
        for error in (part.ttft_p50_error, part.ttft_p90_error, part.ttft_p99_error):
            assert abs(error) < 0.03
        assert part.ttft_median_error < 0.03
        assert part.decode_median_error < 0.03


def test_mixed_batching_without_scheduling_times() -> None:
    log = without_scheduled(log_of(MIXED + "num_gpu_blocks = 151\n" + STEP_TIME, gap_s=0.08))
    fitted = calibrate(log, config(MIXED), simulations=60)
    found = fitted.values["step_time"]
    assert fitted.values["num_gpu_blocks"] == pytest.approx(151, rel=0.05)
    assert step_s(found) == pytest.approx(step_s(TRUE), rel=0.05)
    assert abs(fitted.after_held_out.ttft_p90_error) < 0.05
    assert fitted.after_held_out.loss < fitted.before_held_out.loss / 10


def test_the_same_log_gives_the_same_values() -> None:
    log = log_of(MIXED + "num_gpu_blocks = 151\n" + STEP_TIME, requests=60)
    first, second = (calibrate(log, config(MIXED), simulations=25) for _ in range(2))
    assert first == second
    assert first.simulations <= 25 + 1


def test_the_loss_does_not_look_at_the_held_out_half() -> None:
    log = log_of(MIXED + "num_gpu_blocks = 151\n" + STEP_TIME, requests=60)
    is_held_out = pl.int_range(pl.len()) % 2 == 1
    later = pl.when(is_held_out).then("finished_at").otherwise("first_token_at").alias("first_token_at")
    plain, changed = (calibrate(frame, config(MIXED), simulations=10) for frame in (log, log.with_columns(later)))
    assert plain.before_fitted.ttft_median_error == changed.before_fitted.ttft_median_error
    assert plain.before_held_out.ttft_median_error != changed.before_held_out.ttft_median_error


def test_a_cap_on_running_requests_is_seen_and_memory_is_then_left_alone() -> None:
    log = log_of(MIXED + "max_num_seqs = 8\nnum_gpu_blocks = 5000\n" + STEP_TIME, requests=150)
    fitted = calibrate(log, config(MIXED), simulations=30)
    assert fitted.values["max_num_seqs"] == 8
    assert "num_gpu_blocks" not in fitted.values
    assert fitted.kept[0].startswith("num_gpu_blocks: the log shows no queue for memory")


def test_auto_finds_the_batching_that_made_the_log() -> None:
    log = log_of(PREFILL_FIRST + "prefill_interval = 8\nnum_gpu_blocks = 151\n" + STEP_TIME, requests=120)
    fitted = calibrate(log, config(MIXED), batching="auto", simulations=60)
    assert (fitted.values["batching"], fitted.values["admission"]) == ("prefill-first", "reserve")


def test_one_of_several_models_is_fitted_into_its_own_table() -> None:
    made = [log_of(MIXED + STEP_TIME, requests=40, model=name) for name in ("a", "b")]
    number = pl.int_range(80, eager=True)
    log = pl.concat(made).with_columns(request_id=number.cast(pl.String), seq=number.cast(pl.UInt64))
    with pytest.raises(UsageError, match=r"several models: name one with --model \(a, b\)"):
        calibrate(log, config(MIXED))
    with pytest.raises(UsageError, match="model 'c' is not in the log; known: a, b"):
        calibrate(log, config(MIXED), model="c")
    fitted = calibrate(log, config(MIXED), model="b", simulations=10)
    assert fitted.model == "b"
    changed = with_values(config(MIXED), fitted.model, fitted.values)
    assert resolve_cluster(changed, "a").engine == resolve_cluster(config(MIXED), "a").engine
    assert resolve_cluster(changed, "b").engine.step_time.base == fitted.values["step_time"]["base"]


def test_a_log_without_latencies_is_refused() -> None:
    log = canonical([{"arrived_at": number} for number in range(50)])
    with pytest.raises(BadInputError, match="only 0 requests of the log have both first_token_at and finished_at"):
        calibrate(log, config(MIXED))


def test_speed_is_part_of_the_config_and_not_fitted_twice() -> None:
    log = log_of(MIXED + STEP_TIME, requests=60)
    plain = calibrate(log, config(MIXED), simulations=10)
    fast = calibrate(log, config(MIXED + "speed = 2.0\n"), simulations=10)
    assert fast.values["step_time"]["base"] == pytest.approx(2 * plain.values["step_time"]["base"], rel=1e-3)


# The first guess.


def test_ramps_are_sums_over_requests() -> None:
    random = np.random.default_rng(1)
    since, weight, at = random.uniform(0, 10, 30), random.uniform(-1, 2, 30), random.uniform(-1, 12, 20)
    for power in (0, 1, 2):
        brute = [sum(w * (t - s) ** power for s, w in zip(since, weight, strict=True) if s <= t) for t in at]
        assert _ramp(since, weight, at, power) == pytest.approx(np.array(brute), abs=1e-9)


def test_a_lone_stream_is_read_off_exactly() -> None:
    # One request after the other, nothing beside it: prefill 0.01 + 1e-4 per token, 20 ms a token after that.
    count = 40
    prompt = np.arange(100.0, 100.0 + 10 * count, 10.0)
    arrival = np.arange(count) * 10.0
    first = arrival + 0.01 + 1e-4 * prompt
    observed = Observed(
        arrival=arrival,
        scheduled=np.full(count, np.nan),
        first_token=first,
        finished=first + 49 * 0.02,
        prompt=prompt,
        output=np.full(count, 50.0),
        fitted=np.arange(count) % 2 == 0,
    )
    guess = first_guess([observed], prefill_first=False, reserve=False, block_size=16)
    assert guess.prefill_token == pytest.approx(1e-4)
    decode = guess.base + guess.decode_sequence + guess.context_token * (300 + 25)
    assert decode == pytest.approx(0.02, rel=0.05)
    assert guess.kv_tokens is None
    assert guess.max_num_seqs is None


# The file.


def test_the_config_keeps_comments_and_everything_that_was_not_fitted() -> None:
    slo = "[defaults]\nslo_ttft_ms = { p50 = 1, p90 = 2, p99 = 3 }\n"
    given = '# ours\n[cluster]\npolicy = "vtc"  # since May\nnum_gpu_blocks = 1\n\n' + slo
    text = edited(given, None, {"step_time": dict(TRUE), "num_gpu_blocks": 151})
    assert text == (
        '# ours\n[cluster]\npolicy = "vtc"  # since May\nnum_gpu_blocks = 151\n\n'
        "[cluster.step_time]\nbase = 0.02\nprefill_token = 0.0002\ndecode_sequence = 0.0004\ncontext_token = 2e-06\n\n"
        + slo
    )
    assert edited(text, None, {"step_time": dict(TRUE), "num_gpu_blocks": 151}) == text


@pytest.mark.parametrize(
    "given",
    [
        "",
        "[cluster.step_time]\nbase = 1.0\n",
        "[cluster]\nstep_time = { base = 1.0 }\n",
        'cluster.policy = "vtc"\n',
        "[models.x]\nspeed = 1.0\n[[cluster.changes]]\nat = 2026-01-01T00:00:00Z\nspeed = 2.0\n",
        "[[models.x.changes]]\nat = 2026-01-01T00:00:00Z\nspeed = 2.0\n[defaults]\n",
    ],
)
@pytest.mark.parametrize("model", [None, "x", 'llama "70b" [v1.5]'])
def test_every_way_to_write_the_tables_can_be_edited(given: str, model: str | None) -> None:
    values = {"step_time": dict(TRUE), "num_gpu_blocks": 151}
    assert config(edited(given, model, values)) == with_values(config(given), model, values)


def test_a_file_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        write_atomically(tmp_path / "taken", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_fitted_step_times_take_the_place_of_a_preset() -> None:
    given = '[cluster.step_time]\npreset = "llama-3.1-8b/h100"  # by arithmetic\nbase = 0.1\n'
    text = edited(given, None, {"step_time": dict(TRUE)})
    assert "preset" not in text
    assert parse_config(text, "fr.toml").cluster.step_time == StepTime(**TRUE)
    dotted = 'cluster.step_time.preset = "llama-3.1-8b/h100"\n'
    assert parse_config(edited(dotted, None, {"step_time": dict(TRUE)}), "fr.toml").cluster.step_time == StepTime(
        **TRUE
    )
