"""Published figures of common models and GPUs, and what follows from them by arithmetic.

Models: the configuration and parameter count that their publishers give (Hugging Face model cards, ``config.json``).
GPUs: dense BF16 tensor throughput, memory bandwidth and memory of the vendors' data sheets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from fairreplay.errors import nearest

BYTES_PER_VALUE: Final = 2
"""Weights and KV cache in BF16 or FP16."""


@dataclass(frozen=True)
class Model:
    parameters: float
    layers: int
    kv_heads: int
    head_dim: int

    @property
    def weight_bytes(self) -> float:
        return self.parameters * BYTES_PER_VALUE

    @property
    def flops_per_token(self) -> float:
        """A multiplication and an addition a parameter; attention itself left out."""
        return 2 * self.parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_PER_VALUE


@dataclass(frozen=True)
class Gpu:
    flops_per_s: float
    """Dense BF16."""
    bytes_per_s: float
    memory_bytes: float


MODELS: Final = {
    "llama-2-7b": Model(6.738e9, 32, 32, 128),
    "llama-2-13b": Model(13.016e9, 40, 40, 128),
    "llama-2-70b": Model(68.977e9, 80, 8, 128),
    "llama-3.1-8b": Model(8.030e9, 32, 8, 128),
    "llama-3.1-70b": Model(70.554e9, 80, 8, 128),
    "mistral-7b": Model(7.242e9, 32, 8, 128),
    "qwen2.5-7b": Model(7.616e9, 28, 4, 128),
    "qwen2.5-32b": Model(32.764e9, 64, 8, 128),
    "qwen2.5-72b": Model(72.706e9, 80, 8, 128),
    "qwen3-8b": Model(8.191e9, 36, 8, 128),
    "qwen3-32b": Model(32.762e9, 64, 8, 128),
}
GPUS: Final = {
    "a10": Gpu(125e12, 600e9, 24e9),
    "a100-40gb": Gpu(312e12, 1555e9, 40e9),
    "a100-80gb": Gpu(312e12, 2039e9, 80e9),
    "h100": Gpu(989.4e12, 3350e9, 80e9),
    "h200": Gpu(989.4e12, 4800e9, 141e9),
    "b200": Gpu(2250e12, 8000e9, 180e9),
    "l4": Gpu(121e12, 300e9, 24e9),
    "l40s": Gpu(362e12, 864e9, 48e9),
    "mi300x": Gpu(1307.4e12, 5300e9, 192e9),
}
"""SXM parts where there are several."""

_PAIR: Final = re.compile(r"([^/]+)/(?:([1-9]\d?)x-?)?([^/]+)")


@dataclass(frozen=True)
class Pair:
    """A model on ``count`` GPUs of one kind, split evenly (tensor parallel)."""

    model: Model
    gpu: Gpu
    count: int


def pair(name: str) -> Pair:
    """``MODEL/GPU`` or ``MODEL/NxGPU``.

    Raises:
        ValueError: another spelling, an unknown model or GPU, or a model that the GPUs cannot hold.
    """
    found = _PAIR.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no MODEL/GPU or MODEL/NxGPU, such as llama-3.1-8b/h100 or llama-3.1-70b/4xh100")
    model, count, gpu = found[1], int(found[2] or 1), found[3]
    if model not in MODELS:
        raise ValueError(f"model {model!r} has no published figures here; {nearest(model, list(MODELS))}")
    if gpu not in GPUS:
        raise ValueError(f"GPU {gpu!r} has no published figures here; {nearest(gpu, list(GPUS))}")
    made = Pair(MODELS[model], GPUS[gpu], count)
    if made.model.weight_bytes >= count * made.gpu.memory_bytes:
        raise ValueError(
            f"{name!r}: weights of {made.model.weight_bytes / 1e9:.0f} GB do not fit "
            f"{count * made.gpu.memory_bytes / 1e9:.0f} GB of memory: name more GPUs, as in {model}/{count * 2}x{gpu}"
        )
    return made
