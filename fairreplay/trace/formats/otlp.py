"""OTLP traces as JSON lines: engine spans of vLLM and SGLang, GenAI spans, requests refused at the gateway.

A record is a span. Parents stand anywhere in the file, so all spans are read before the first becomes a row. Sources:
open-telemetry/opentelemetry-proto, vllm-project/vllm ``vllm/tracing``, sgl-project/sglang ``srt/observability``, the
GenAI semantic conventions of OpenTelemetry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairreplay.trace.fields import After, Epoch, Format, Record, Sample, Skipped, Text, Tokens
from fairreplay.trace.nested import first_known, http_code, http_status, number_of, path_type, prefixed, unless_zero
from fairreplay.trace.values import known

ENGINE_NAME: Final = "llm_request"
"""vLLM's span of a finished request."""
ENGINE_MARK: Final = "gen_ai.latency."
TYPES: Final = {
    "chat": "chat",
    "generate_content": "chat",
    "text_completion": "completion",
    "embeddings": "embed",
}
"""GenAI operations that are requests. Agents, tools and retrieval carry the sums of what they call and are none."""

TENANTS: Final = ("tenant.id", "tenant", "team.id")
USERS: Final = ("user.id", "enduser.id")
SESSIONS: Final = ("gen_ai.conversation.id", "session.id")
PATHS: Final = ("url.path", "http.target", "http.route", "url.full", "http.url")
STATUS_CODES: Final = ("http.response.status_code", "http.status_code")
REPLICAS: Final = ("service.instance.id", "k8s.pod.name", "host.name")
PROMPT: Final = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")
OUTPUT: Final = ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")
CACHED: Final = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens")
QUEUE: Final = "gen_ai.latency.time_in_queue"
TTFT: Final = "gen_ai.latency.time_to_first_token"
E2E: Final = "gen_ai.latency.e2e"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"

_ATTRIBUTES: Final = frozenset(
    (
        *TENANTS, *USERS, *SESSIONS, *PATHS, *STATUS_CODES, *PROMPT, *OUTPUT, *CACHED, QUEUE, TTFT, E2E, FIRST_CHUNK,
        "gen_ai.operation.name", "gen_ai.request.model", "gen_ai.response.model", "gen_ai.request.id",
        "gen_ai.response.id", "error.type",
    )
)  # fmt: skip
"""What is read of a span; the rest, prompts and answers among it, is not kept."""
_SHARED: Final = (*TENANTS, *USERS, *SESSIONS)
_RESOURCE: Final = frozenset((*TENANTS, *USERS, *REPLICAS))
_SCALARS: Final = ("stringValue", "intValue", "doubleValue", "boolValue")
_SERVER: Final = ("2", "SPAN_KIND_SERVER")
_ERROR: Final = ("2", "STATUS_CODE_ERROR")


# -- spans of a line --------------------------------------------------------------------------------------------------


def _explode(line: Record) -> list[object] | None:
    """Every span of one export, in file order, with what is read of it."""
    if not isinstance(line.get("resourceSpans"), list):
        return None
    spans: list[object] = []
    for group in _objects(line["resourceSpans"]):
        resource = _attributes(_object(group.get("resource")).get("attributes"), _RESOURCE)
        for scope in _objects(first_known((group.get("scopeSpans"), group.get("instrumentationLibrarySpans")))):
            inside = scope.get("spans")
            for span in inside if isinstance(inside, list) else ():
                spans.append(_lean(span, resource) if isinstance(span, dict) else span)
    return spans


def _objects(value: object) -> Iterator[Record]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def _object(value: object) -> Record:
    return value if isinstance(value, dict) else {}


def _attributes(pairs: object, wanted: frozenset[str]) -> Record:
    found: Record = {}
    for pair in _objects(pairs):
        key, value = pair.get("key"), _object(pair.get("value"))
        if isinstance(key, str) and (key in wanted or key.startswith(ENGINE_MARK)):
            found[key] = first_known(value.get(name) for name in _SCALARS)
    return found


def _lean(span: Record, resource: Record) -> Record:
    return {
        "traceId": _hex(span.get("traceId")),
        "spanId": _hex(span.get("spanId")),
        "parentSpanId": _hex(span.get("parentSpanId")),
        "name": span.get("name"),
        "server": str(span.get("kind")) in _SERVER,
        "error": str(_object(span.get("status")).get("code")) in _ERROR,
        "startTimeUnixNano": span.get("startTimeUnixNano"),
        "endTimeUnixNano": span.get("endTimeUnixNano"),
        "attributes": _attributes(span.get("attributes"), _ATTRIBUTES),
        "resource": resource,
    }


def _hex(value: object) -> str | None:
    """An id, either case; none if it is empty or all zeros."""
    text = value.lower() if isinstance(value, str) else ""
    return text if text.strip("0") else None


# -- the tree ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Span:
    """A span among the others of the file. ``covered``: a row of an engine or a GenAI client is below it."""

    record: Record
    attributes: Record
    parent: Span | None = None
    covered: bool = False
    engine: bool = False
    genai: bool = False
    trace: Trace | None = None
    first: Span | None = None
    """The span of the same id that stands first: this one, unless it was exported twice."""

    def up(self) -> Iterator[Span]:
        """Itself, then its ancestors, nearest first."""
        span: Span | None = self
        while span is not None:
            yield span
            span = span.parent

    def above(self) -> Iterator[Span]:
        return self.parent.up() if self.parent is not None else iter(())


@dataclass(eq=False)
class Trace:
    """What the spans of one trace say: every value of the shared attributes, the types of its servers' paths."""

    values: dict[str, set[object]] = field(default_factory=dict)
    server_types: set[str] = field(default_factory=set)

    def agreed(self, key: str) -> object:
        values = self.values.get(key, ())
        return next(iter(values)) if len(values) == 1 else None


def _spans(records: Sequence[Record]) -> list[Span | None]:
    """The spans with their parents and traces; None for a record that is no span."""
    spans: list[Span | None] = []
    by_id: dict[tuple[object, object], Span] = {}
    traces: dict[object, Trace] = {}
    for record in records:
        attributes = record.get("attributes")
        if "resource" not in record or not isinstance(attributes, dict):
            spans.append(None)
            continue
        span = Span(record, attributes)
        span.engine = record["name"] == ENGINE_NAME or any(key.startswith(ENGINE_MARK) for key in attributes)
        span.genai = not span.engine and attributes.get("gen_ai.operation.name") in TYPES
        trace_id, span_id = record["traceId"], record["spanId"]
        if trace_id is not None:
            span.trace = traces.setdefault(trace_id, Trace())
            _tell(span, span.trace)
            if span_id is not None:
                span.first = by_id.setdefault((trace_id, span_id), span)
        spans.append(span)
    for known_span in spans:
        if known_span is not None and known_span.record["parentSpanId"] is not None:
            known_span.parent = by_id.get((known_span.record["traceId"], known_span.record["parentSpanId"]))
    _cut_circles(spans)
    return spans


def _tell(span: Span, trace: Trace) -> None:
    for key in _SHARED:
        value = span.attributes.get(key)
        if known(value):
            trace.values.setdefault(key, set()).add(str(value))
    type_ = _own_path_type(span) if span.record["server"] else None
    if type_ is not None:
        trace.server_types.add(type_)


def _cut_circles(spans: Iterable[Span | None]) -> None:
    """A span that is its own ancestor has no parent: every walk upwards ends."""
    settled: set[Span] = set()
    for start in spans:
        way: list[Span] = []
        on_way: set[Span] = set()
        span = start
        while span is not None and span not in settled:
            way.append(span)
            on_way.add(span)
            if span.parent in on_way:
                span.parent = None
            span = span.parent
        settled.update(way)


def _cover(spans: Sequence[Span | None]) -> None:
    """Mark everything above an engine or GenAI span; a marked span's ancestors are marked already."""
    for span in spans:
        if span is not None and (span.engine or span.genai):
            for above in span.above():
                if above.covered:
                    break
                above.covered = True
    for span in spans:
        if span is not None and span.first is not None:
            span.covered = span.first.covered


def _own_path_type(span: Span) -> str | None:
    return next(filter(None, (path_type(span.attributes.get(key)) for key in PATHS)), None)


def _own_code(span: Span) -> int | None:
    return http_code(first_known(span.attributes.get(key) for key in STATUS_CODES))


def _is_refusal(span: Span) -> bool:
    """A server that answered an inference request with an error."""
    if not span.record["server"] or span.genai or span.engine or _own_path_type(span) is None:
        return False
    code = _own_code(span)
    return code >= 400 if code is not None else bool(span.record["error"])


def _is_row(span: Span) -> bool:
    """An engine's span, the deepest GenAI span, or the outermost refusal of a request that none of those recorded."""
    if span.engine:
        return True
    if span.genai:
        return not span.covered
    if span.covered or not _is_refusal(span):
        return False
    return not any(_is_refusal(above) or (above.genai and not above.covered) for above in span.above())


# -- rows -------------------------------------------------------------------------------------------------------------


def _whole(records: Sequence[Record]) -> list[Record | Skipped]:
    spans = _spans(records)
    _cover(spans)
    name = _namer()
    return [
        Skipped("not_a_request") if span is None or not _is_row(span) else _row(span) | {"request_id": name(span)}
        for span in spans
    ]


def _namer() -> Callable[[Span], str | None]:
    """Ids of rows. A span is one by its trace and span id: written twice it is the same row, and another span with its
    request id (sampling ``n`` > 1, a reused header) is ``id#2``."""
    given: dict[tuple[object, object], str] = {}
    times: dict[str, int] = {}

    def name(span: Span) -> str | None:
        key = "gen_ai.request.id" if span.engine else "gen_ai.response.id"
        value = first_known((span.attributes.get(key), span.record["spanId"]))
        if value is None:
            return None
        identity = (span.record["traceId"], span.record["spanId"])
        if None not in identity and identity in given:
            return given[identity]
        request_id = unique = str(value)
        while unique in times:
            times[request_id] += 1
            unique = f"{request_id}#{times[request_id]}"
        times[unique] = 1
        given[identity] = unique
        return unique

    return name


def _row(span: Span) -> Record:
    own, record = span.attributes, span.record
    kind = 0 if span.engine else 1
    row: Record = {
        "tenant": _tenant(span),
        "type": _type(span),
        "gen_ai.request.model": first_known(item.attributes.get("gen_ai.request.model") for item in span.up()),
        "gen_ai.response.model": own.get("gen_ai.response.model"),
        "startTimeUnixNano": record["startTimeUnixNano"],
        "session.id": first_known(_shared(span, key) for key in SESSIONS),
    }
    for names in (PROMPT, OUTPUT):
        # The engines' own name first for an engine, the conventions' for a client; each falls back on the other.
        name = next((name for name in (names[kind], names[1 - kind]) if known(own.get(name))), names[kind])
        row[name] = own.get(name)
    row["cached_tokens"] = first_known(own.get(name) for name in CACHED)
    end = unless_zero(record["endTimeUnixNano"])
    if span.engine:
        resource = _object(record["resource"])
        row["replica"] = first_known(resource.get(name) for name in REPLICAS)
        row[QUEUE], row[TTFT] = own.get(QUEUE), own.get(TTFT)
        if known(own.get(E2E)) and number_of(own.get(E2E)) != -1:
            row[E2E], end = own[E2E], None
    else:
        row[FIRST_CHUNK] = own.get(FIRST_CHUNK)
    row["endTimeUnixNano"] = end
    row["status"] = _status(span, finished=end is not None or E2E in row)
    return row


def _shared(span: Span, key: str) -> object:
    """An attribute of the span, of its nearest ancestor that has it, or of its trace if all spans agree."""
    near = first_known(item.attributes.get(key) for item in span.up())
    return near if near is not None or span.trace is None else span.trace.agreed(key)


def _tenant(span: Span) -> object:
    resource = _object(span.record["resource"])
    for key in (*TENANTS, *USERS):
        value = first_known((_shared(span, key), resource.get(key)))
        if value is not None:
            return prefixed("user", value) if key in USERS else value
    return None


def _type(span: Span) -> str | None:
    for item in span.up():
        operation = item.attributes.get("gen_ai.operation.name")
        if operation in TYPES:
            return TYPES[str(operation)]
    type_ = next(filter(None, map(_own_path_type, span.up())), None)
    if type_ is not None:
        return type_
    if span.trace is not None and len(span.trace.server_types) == 1:
        return next(iter(span.trace.server_types))
    sglang = span.engine and span.record["name"] != ENGINE_NAME
    return "embed" if sglang and not any(known(span.attributes.get(name)) for name in OUTPUT) else None


def _status(span: Span, *, finished: bool) -> str:
    code, error = _own_code(span), span.attributes.get("error.type")
    if span.engine:
        if span.record["error"]:
            return "failed"
    elif span.record["error"] or known(error) or (code is not None and code >= 400):
        if code is None:
            code = http_code(error)
        status = http_status(code) if code is not None else "failed"
        return "failed" if status == "ok" else status
    for above in span.above():
        answer = _own_code(above)
        if answer is not None and answer >= 400:
            return "cancelled" if answer == 499 else "failed"
    return "ok" if finished else "unfinished"


def _matches(sample: Sample) -> bool:
    return any("resourceSpans" in record for record in sample.records)


OTLP = Format(
    name="otlp",
    containers=("jsonl", "document"),
    needs=("resourceSpans",),
    matches=_matches,
    explode=_explode,
    whole=_whole,
    private=re.compile(r'"(?:gen_ai\.(?:input|output|prompt|completion|system_instructions)|llm\.|input\.|output\.)'),
    reads=(
        "traceId",
        "spanId",
        "parentSpanId",
        "name",
        "server",
        "error",
        "attributes",
        "resource",
        "resourceSpans",
    ),
    columns={
        "request_id": (Text("request_id"),),
        "tenant": (Text("tenant"),),
        "type": (Text("type"),),
        "model": (Text("gen_ai.request.model"), Text("gen_ai.response.model")),
        "replica": (Text("replica"),),
        "arrived_at": (Epoch("startTimeUnixNano", "ns"),),
        "scheduled_at": (After(QUEUE, "s"),),
        "first_token_at": (After(TTFT, "s"), After(FIRST_CHUNK, "s")),
        "finished_at": (After(E2E, "s"), Epoch("endTimeUnixNano", "ns")),
        "prompt_tokens": tuple(map(Tokens, PROMPT)),
        "output_tokens": tuple(map(Tokens, OUTPUT)),
        "cached_tokens": (Tokens("cached_tokens"),),
        "status": (Text("status"),),
        "session_id": (Text("session.id"),),
    },
)
