"""All log formats: a file each, a module or a mapping file; what is known and cannot be replayed, in ``REFUSED``."""

from __future__ import annotations

from collections.abc import Callable

from fairreplay.trace.fields import Format, Sample
from fairreplay.trace.formats.aiperf import AIPERF
from fairreplay.trace.formats.bailian import BAILIAN
from fairreplay.trace.formats.dynamo import DYNAMO
from fairreplay.trace.formats.envoy_ai_gateway import ENVOY_AI_GATEWAY
from fairreplay.trace.formats.guidellm import GUIDELLM
from fairreplay.trace.formats.inferencex import INFERENCEX
from fairreplay.trace.formats.langfuse import LANGFUSE
from fairreplay.trace.formats.litellm import LITELLM
from fairreplay.trace.formats.native import NATIVE
from fairreplay.trace.formats.otlp import OTLP
from fairreplay.trace.formats.ragpulse import RAGPULSE
from fairreplay.trace.formats.servegen import holds_rates
from fairreplay.trace.formats.sglang import SGLANG, logs_requests
from fairreplay.trace.formats.trtllm import TRTLLM
from fairreplay.trace.formats.vllm_bench import VLLM_BENCH
from fairreplay.trace.formats.vtc import VTC
from fairreplay.trace.mapping import packaged

FORMATS: dict[str, Format] = {
    "native": NATIVE,
    "litellm": LITELLM,
    "otlp": OTLP,
    "sglang": SGLANG,
    "dynamo": DYNAMO,
    "trtllm": TRTLLM,
    "envoy-ai-gateway": ENVOY_AI_GATEWAY,
    "langfuse": LANGFUSE,
    "vllm-bench": VLLM_BENCH,
    "vllm-requests": packaged("vllm-requests"),
    "guidellm": GUIDELLM,
    "aiperf": AIPERF,
    "vtc": VTC,
    "inferencex": INFERENCEX,
    "lmbench": packaged("lmbench"),
    "azure": packaged("azure"),
    "mooncake": packaged("mooncake"),
    "burstgpt": packaged("burstgpt"),
    "bailian": BAILIAN,
    "vidur": packaged("vidur"),
    "ragpulse": RAGPULSE,
}

REFUSED: dict[str, tuple[tuple[str, ...] | Callable[[Sample], bool], str]] = {
    "llmperf": (("ttft_s", "end_to_end_latency_s"), "no arrival time; FairReplay cannot replay it"),
    "vllm-bench": (
        ("model_id", "num_prompts", "request_throughput"),
        "a summary, no arrival time; FairReplay cannot replay it (run with --save-detailed)",
    ),
    "SGLang's request log": (
        logs_requests,
        "not the request metrics log; ingest the files sglang-request-metrics-*.log",
    ),
    "ServeGen": (holds_rates, "rates instead of requests; FairReplay cannot replay it"),
    "OpenTelemetry logs": (("resourceLogs",), "no requests; export the traces (resourceSpans)"),
    "OpenTelemetry metrics": (("resourceMetrics",), "no requests; export the traces (resourceSpans)"),
}
"""Name -> (what a record of it has, or the test for it; why it is refused)."""
