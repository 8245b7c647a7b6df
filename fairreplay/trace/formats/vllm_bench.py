"""``vllm bench serve --save-result --save-detailed`` (vllm-project/vllm 0.33): one object a run, parallel arrays.

Times are seconds of a monotonic clock. ``date`` is the local time of the run's end and no anchor; ``server_ttfts``
leave the queue out and ``queue_times`` are the client's: neither is read.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairreplay.trace.fields import After, Format, Record, Relative, Sample, Text, Tokens
from fairreplay.trace.nested import first_known, number_of, total, unless_zero
from fairreplay.trace.values import known

ARRAYS = ("start_times", "ttfts", "latencies", "itls", "server_queue_times", "input_lens", "output_lens", "errors")
ARRAYS_SHOWN = 10
REFUSED = ("Too Many Requests", "Service Unavailable")
CHAT = ("openai-chat", "openai-responses")


def _arrays(document: Record) -> dict[str, Sequence[object]]:
    found = {name: document.get(name) for name in ARRAYS}
    return {name: values for name, values in found.items() if isinstance(values, list)}


def _is_run(document: Record) -> bool:
    arrays = _arrays(document)
    if "input_lens" in arrays and "ttfts" in arrays:
        return True
    return "latencies" in arrays and all(name in document for name in ("model_id", "num_prompts", "request_throughput"))


def _matches(sample: Sample) -> bool:
    return any(_is_run(record) for record in sample.records)


def _refuse(sample: Sample) -> str | None:
    if any("start_times" in _arrays(record) for record in sample.records):
        return None
    arrays = sorted({name for record in sample.records for name, value in record.items() if isinstance(value, list)})
    found = f" (of each request only {', '.join(arrays[:ARRAYS_SHOWN])}; run with --save-detailed)"
    return "no arrival time; FairReplay cannot replay it" + found


def _explode(document: Record) -> list[object] | None:
    """One record for each entry of the arrays."""
    if not _is_run(document):
        return None
    arrays = _arrays(document)
    shared = {
        "model_id": document.get("model_id"),
        "endpoint_type": "chat"
        if first_known((document.get("endpoint_type"), document.get("backend"))) in CHAT
        else "completion",
    }
    count = max(len(values) for name, values in arrays.items() if name != "itls")
    return [
        {name: values[index] if index < len(values) else None for name, values in arrays.items()} | shared
        for index in range(count)
    ]


def _prepare(record: Record) -> Record:
    error = str(record.get("errors") or "").strip()
    status = "ok" if not error else "rejected" if error in REFUSED else "failed"
    ttft, latency = record.get("ttfts"), record.get("latencies")
    kept = {name: value for name, value in record.items() if name not in ("errors", "itls")}
    # 0 is "none", but nothing generated after 0 s on a success stays, to be refused as a contradiction.
    if status != "ok" or number_of(record.get("output_lens")) != 0:
        kept["ttfts"] = unless_zero(ttft)
    kept["latencies"] = unless_zero(latency)
    if "latencies" not in record and status == "ok" and known(unless_zero(ttft)):
        gaps = record.get("itls")
        kept["itls"] = total((ttft, *gaps)) if isinstance(gaps, list) else None
    return kept | {"errors": status}


VLLM_BENCH = Format(
    name="vllm-bench",
    containers=("jsonl", "document"),
    needs=("input_lens", "ttfts", "start_times"),
    matches=_matches,
    refuse=_refuse,
    explode=_explode,
    prepare=_prepare,
    private=True,
    columns={
        "type": (Text("endpoint_type"),),
        "model": (Text("model_id"),),
        "arrived_at": (Relative("start_times", "s", monotonic=True),),
        "scheduled_at": (After("server_queue_times", "s"),),
        "first_token_at": (After("ttfts", "s"),),
        "finished_at": (After("latencies", "s"), After("itls", "s")),
        "prompt_tokens": (Tokens("input_lens"),),
        "output_tokens": (Tokens("output_lens"),),
        "status": (Text("errors"),),
    },
)
