"""One file a log format, all listed in ``FORMATS``; what is known and cannot be replayed, in ``REFUSED``."""

from __future__ import annotations

from fairreplay.trace.fields import Format
from fairreplay.trace.formats.aiperf import AIPERF
from fairreplay.trace.formats.azure import AZURE
from fairreplay.trace.formats.bailian import BAILIAN
from fairreplay.trace.formats.dynamo import DYNAMO
from fairreplay.trace.formats.inferencex import INFERENCEX
from fairreplay.trace.formats.lmbench import LMBENCH
from fairreplay.trace.formats.mooncake import MOONCAKE
from fairreplay.trace.formats.native import NATIVE
from fairreplay.trace.formats.ragpulse import RAGPULSE
from fairreplay.trace.formats.sglang import SGLANG
from fairreplay.trace.formats.trtllm import TRTLLM
from fairreplay.trace.formats.vidur import VIDUR
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
    "sglang": SGLANG,
    "dynamo": DYNAMO,
    "aiperf": AIPERF,
    "trtllm": TRTLLM,
    "inferencex": INFERENCEX,
    "ragpulse": RAGPULSE,
    "bailian": BAILIAN,
}

REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "llmperf": (("ttft_s", "end_to_end_latency_s"), "no arrival time; FairReplay cannot replay it"),
}
"""Name -> (what a record of it has, why it is refused)."""
