"""All log formats: a file each, a module or a mapping file; what is known and cannot be replayed, in ``REFUSED``."""

from __future__ import annotations

from fairreplay.trace.fields import Format
from fairreplay.trace.formats.aiperf import AIPERF
from fairreplay.trace.formats.bailian import BAILIAN
from fairreplay.trace.formats.dynamo import DYNAMO
from fairreplay.trace.formats.inferencex import INFERENCEX
from fairreplay.trace.formats.native import NATIVE
from fairreplay.trace.formats.ragpulse import RAGPULSE
from fairreplay.trace.formats.sglang import SGLANG
from fairreplay.trace.formats.trtllm import TRTLLM
from fairreplay.trace.formats.vtc import VTC
from fairreplay.trace.mapping import packaged

FORMATS: dict[str, Format] = {
    "native": NATIVE,
    "sglang": SGLANG,
    "dynamo": DYNAMO,
    "trtllm": TRTLLM,
    "vllm-requests": packaged("vllm-requests"),
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

REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "llmperf": (("ttft_s", "end_to_end_latency_s"), "no arrival time; FairReplay cannot replay it"),
}
"""Name -> (what a record of it has, why it is refused)."""
