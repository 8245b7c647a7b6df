"""One file a log format, all listed in ``FORMATS``; what is known and cannot be replayed, in ``REFUSED``."""

from __future__ import annotations

from fairreplay.trace.fields import Format
from fairreplay.trace.formats.azure import AZURE
from fairreplay.trace.formats.envoy_ai_gateway import ENVOY_AI_GATEWAY
from fairreplay.trace.formats.guidellm import GUIDELLM
from fairreplay.trace.formats.langfuse import LANGFUSE
from fairreplay.trace.formats.litellm import LITELLM
from fairreplay.trace.formats.lmbench import LMBENCH
from fairreplay.trace.formats.mooncake import MOONCAKE
from fairreplay.trace.formats.native import NATIVE
from fairreplay.trace.formats.otlp import OTLP
from fairreplay.trace.formats.vidur import VIDUR
from fairreplay.trace.formats.vllm_bench import VLLM_BENCH
from fairreplay.trace.formats.vllm_requests import VLLM_REQUESTS
from fairreplay.trace.formats.vtc import VTC

FORMATS: dict[str, Format] = {
    "native": NATIVE,
    "vtc": VTC,
    "azure": AZURE,
    "mooncake": MOONCAKE,
    "vidur": VIDUR,
    "vllm-requests": VLLM_REQUESTS,
    "lmbench": LMBENCH,
    "litellm": LITELLM,
    "langfuse": LANGFUSE,
    "envoy-ai-gateway": ENVOY_AI_GATEWAY,
    "otlp": OTLP,
    "vllm-bench": VLLM_BENCH,
    "guidellm": GUIDELLM,
}

REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "llmperf": (("ttft_s", "end_to_end_latency_s"), "no arrival time; FairReplay cannot replay it"),
    "vllm-bench": (
        ("model_id", "num_prompts", "request_throughput"),
        "a summary, no arrival time; FairReplay cannot replay it (run with --save-detailed)",
    ),
    "OpenTelemetry logs": (("resourceLogs",), "no requests; export the traces (resourceSpans)"),
    "OpenTelemetry metrics": (("resourceMetrics",), "no requests; export the traces (resourceSpans)"),
}
"""Name -> (what a record of it has, why it is refused)."""
