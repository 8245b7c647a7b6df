"""What a cluster can deliver, in tokens: bounds and how tight targets are."""

from __future__ import annotations

from collections.abc import Mapping


def compute_bound(flops_per_s: float, utilisation: float, seconds: float, flops_per_token: float) -> float:
    """``B_total = F u dt / C`` tokens."""
    return flops_per_s * utilisation * seconds / flops_per_token


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, bytes_per_value: int) -> int:
    """``2 * layers * kv heads * head dim * bytes``: keys and values."""
    return 2 * layers * kv_heads * head_dim * bytes_per_value


def hbm_bound(
    bandwidth: float, seconds: float, weight_bytes: float, batch: float, context_tokens: float, kv_bytes: float
) -> float:
    """Decode tokens that the memory's bandwidth allows: each reads its part of the weights, and its context's KV."""
    return bandwidth * seconds / (weight_bytes / batch + context_tokens * kv_bytes)


def residence_bound(held_tokens: float, seconds: float, residence_s: float) -> float:
    """Tokens by Little's law: what KV (or the CPU's offload blocks) holds, over how long a token stays."""
    return held_tokens * seconds / residence_s


def network_bound(bandwidth: float, seconds: float, kv_bytes: float) -> float:
    """Tokens whose KV goes over the network between prefill and decode."""
    return bandwidth * seconds / kv_bytes


def allocatable(bounds: Mapping[str, float]) -> tuple[float, str]:
    """``B_alloc``: the least bound, in tokens of a window, and which it is (by name where equal)."""
    name = min(sorted(bounds), key=lambda key: bounds[key])
    return bounds[name], name


def tightness(slo: Mapping[str, float]) -> dict[str, float]:
    """``phi_q = (1/s_q) / sum(1/s)``: how tight each target is; shown, not used as a budget."""
    total = sum(1 / target for target in slo.values())
    return {name: 1 / target / total for name, target in slo.items()}
