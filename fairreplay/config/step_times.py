"""Step times of common model and GPU pairs, each with where it comes from.

Measured ones are what ``calibrate`` fits to a published log. All others are arithmetic over published figures: the
weights cross the memory bus once a step, the KV cache of every context once a step, and every token costs two
operations a parameter. How much of a data sheet's figures an engine attains is an assumption, and is said to be one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fairreplay.config.hardware import pair

FLOPS_ATTAINED: Final = 0.5
BANDWIDTH_ATTAINED: Final = 0.8
DIGITS: Final = 4


@dataclass(frozen=True)
class StepTimePreset:
    """Seconds as in ``[cluster.step_time]``, and their source in one sentence."""

    values: dict[str, float]
    source: str


_LLMSERVINGSIM: Final = (
    "fitted by `calibrate` to the vLLM log of {} in github.com/casys-kaist/LLMServingSim (5daddb21), 300 requests, up "
    "to 128 at once, max_num_batched_tokens 2048; TTFT of the half that was not fitted: P50 {}, P99 {}"
)
_ARENA: Final = (
    "fitted by `calibrate` to the S-LoRA log of llama-2-7b on one A10G in github.com/Ying1123/VTC-artifact (192c2e20), "
    "prefill-first batching, KV reserved at admission"
)
MEASURED: Final = {
    "llama-2-7b/a10g": StepTimePreset(
        {"base": 0.03029, "prefill_token": 0.0001935, "decode_sequence": 0.0001014, "context_token": 1.019e-06}, _ARENA
    ),
    "llama-3.1-8b/rtx-pro-6000": StepTimePreset(
        {"base": 0.01031, "prefill_token": 3.575e-05, "decode_sequence": 7.369e-05, "context_token": 6.981e-08},
        _LLMSERVINGSIM.format("Llama-3.1-8B on one RTX PRO 6000", "-3.5 %", "+1.4 %"),
    ),
    "qwen3-32b/2xrtx-pro-6000": StepTimePreset(
        {"base": 0.01538, "prefill_token": 0.0001637, "decode_sequence": 0.000114, "context_token": 2.168e-07},
        _LLMSERVINGSIM.format("Qwen3-32B on two RTX PRO 6000", "+2.0 %", "+0.0 %"),
    ),
}


def hardware_preset(name: str) -> dict[str, float]:
    """The keys of ``[cluster.hardware]`` for ``MODEL/GPU`` or ``MODEL/NxGPU``, at the attained parts assumed here.

    Raises:
        ValueError: see ``hardware.pair``.
    """
    known = pair(name)
    return {
        "flops_per_s": known.count * known.gpu.flops_per_s,
        "utilization": FLOPS_ATTAINED,
        "flops_per_token": known.model.flops_per_token,
        "bytes_per_s": known.count * known.gpu.bytes_per_s * BANDWIDTH_ATTAINED,
        "weight_bytes": known.model.weight_bytes,
        "kv_bytes_per_token": float(known.model.kv_bytes_per_token),
    }


def preset(name: str) -> StepTimePreset:
    """The step times called ``name``: measured ones, else ``MODEL/GPU`` or ``MODEL/NxGPU`` by arithmetic.

    Raises:
        ValueError: see ``hardware.pair``.
    """
    if name in MEASURED:
        return MEASURED[name]
    try:
        known = pair(name)
    except ValueError as error:
        raise ValueError(f"{error} (measured: {', '.join(MEASURED)})") from None
    flops = known.count * known.gpu.flops_per_s * FLOPS_ATTAINED
    bandwidth = known.count * known.gpu.bytes_per_s * BANDWIDTH_ATTAINED
    token_s = known.model.flops_per_token / flops
    values = {
        "base": known.model.weight_bytes / bandwidth,
        "prefill_token": token_s,
        "decode_sequence": token_s,
        "context_token": known.model.kv_bytes_per_token / bandwidth,
    }
    return StepTimePreset(
        {key: float(f"{value:.{DIGITS}g}") for key, value in values.items()},
        f"arithmetic, not measured: weights and KV cache in BF16 cross the memory bus at {BANDWIDTH_ATTAINED:.0%} of "
        f"the data sheet's {known.gpu.bytes_per_s / 1e9:g} GB/s, tokens cost two operations a parameter at "
        f"{FLOPS_ATTAINED:.0%} of its {known.gpu.flops_per_s / 1e12:g} TFLOP/s"
        + (f", over {known.count} GPUs without loss" if known.count > 1 else "")
        + "; `calibrate` fits your own",
    )
