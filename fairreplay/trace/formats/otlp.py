"""OTLP traces as JSON lines: engine spans of vLLM and SGLang, GenAI spans, requests refused at the gateway.

A record is a span. Parents stand anywhere in the file, so all spans are read before the first becomes a row. Sources:
open-telemetry/opentelemetry-proto, vllm-project/vllm ``vllm/tracing``, sgl-project/sglang ``srt/observability``, the
GenAI semantic conventions of OpenTelemetry.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

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
        *SESSIONS, *PATHS, *STATUS_CODES, *PROMPT, *OUTPUT, *CACHED, QUEUE, TTFT, E2E, FIRST_CHUNK,
        "gen_ai.operation.name", "gen_ai.request.model", "gen_ai.response.model", "gen_ai.request.id",
        "gen_ai.response.id", "error.type",
    )
)  # fmt: skip
"""What is read of a span besides tenants; the rest, prompts and answers among it, is not kept."""
MODEL: Final = "gen_ai.request.model"
_NOTHING: Final[Record] = {}
"""Shared by all that say nothing, and never changed."""
_SERVER: Final = ("2", "SPAN_KIND_SERVER")
_ERROR: Final = ("2", "STATUS_CODE_ERROR")


class Names(NamedTuple):
    """The attributes that name a tenant, in this order; users are the fall-backs."""

    tenants: tuple[str, ...] = TENANTS
    users: tuple[str, ...] = USERS

    @property
    def shared(self) -> tuple[str, ...]:
        """What a span takes from its ancestors, or from all of its trace."""
        return (*self.tenants, *self.users, *SESSIONS)


# -- spans of a line --------------------------------------------------------------------------------------------------


def _explode(line: Record, names: Names) -> list[object] | None:
    """Every span of one export, in file order, with what is read of it."""
    if not isinstance(line.get("resourceSpans"), list):
        return None
    spans: list[object] = []
    of_spans = _ATTRIBUTES.union(names.shared)
    of_resources = frozenset((*names.tenants, *names.users, *REPLICAS))
    for group in _objects(line["resourceSpans"]):
        resource = _attributes(_object(group.get("resource")).get("attributes"), of_resources)
        for scope in _objects(first_known((group.get("scopeSpans"), group.get("instrumentationLibrarySpans")))):
            inside = scope.get("spans")
            for span in inside if isinstance(inside, list) else ():
                spans.append(_lean(span, resource, of_spans) if isinstance(span, dict) else span)
    return spans


def _objects(value: object) -> Iterator[Record]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def _object(value: object) -> Record:
    return value if isinstance(value, dict) else {}


def _attributes(pairs: object, wanted: frozenset[str]) -> Record:
    found: Record = {}
    for pair in _objects(pairs):
        key, value = pair.get("key"), pair.get("value")
        if isinstance(key, str) and key in wanted and isinstance(value, dict):
            scalar = next(iter(value.values()), None)  # {"stringValue": ...}, {"intValue": ...}: a value has one kind
            if known(scalar) and not isinstance(scalar, dict | list):
                found[key] = scalar
    return found


def _lean(span: Record, resource: Record, wanted: frozenset[str]) -> Record:
    name, pairs = span.get("name"), span.get("attributes")
    latencies = any(str(pair.get("key")).startswith(ENGINE_MARK) for pair in _objects(pairs))
    attributes = _attributes(pairs, wanted)
    return {
        "traceId": _hex(span.get("traceId")),
        "spanId": _hex(span.get("spanId")),
        "parentSpanId": _hex(span.get("parentSpanId")),
        "engine": name == ENGINE_NAME or latencies,
        "sglang": name != ENGINE_NAME and latencies,
        "server": str(span.get("kind")) in _SERVER,
        "error": str(_object(span.get("status")).get("code")) in _ERROR,
        "startTimeUnixNano": span.get("startTimeUnixNano"),
        "endTimeUnixNano": span.get("endTimeUnixNano"),
        "attributes": attributes or _NOTHING,
        "resource": resource or _NOTHING,
    }


def _hex(value: object) -> str | None:
    """An id, either case; none if it is empty or all zeros."""
    text = value.lower() if isinstance(value, str) else ""
    return sys.intern(text) if text.strip("0") else None


# -- the tree ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Span:
    """A span among the others of the file."""

    record: Record
    attributes: Record
    engine: bool
    genai: bool
    trace: Trace | None = None
    first: Span | None = None
    """The span of the same id that stands first: this one, unless it was exported twice."""
    parent: Span | None = None
    covered: bool = False
    """A span of an engine or a GenAI client is below it."""
    near: Record = field(default_factory=lambda: _NOTHING)
    """What it says itself or, nearest first, one of its ancestors does: shared attributes and ``MODEL``, ``TYPE`` of
    the operation, ``PATH`` type, an HTTP ``CODE`` of an error, whether the request is ``RECORDED`` there."""

    @property
    def above(self) -> Record:
        """``near`` of the parent."""
        return self.parent.near if self.parent is not None else _NOTHING


@dataclass(eq=False, slots=True)
class Trace:
    """What the spans of one trace say: every value of the shared attributes, the types of its servers' paths."""

    values: dict[str, set[str]] = field(default_factory=dict)
    server_types: set[str] = field(default_factory=set)

    def agreed(self, key: str) -> str | None:
        values = self.values.get(key, ())
        return next(iter(values)) if len(values) == 1 else None


TYPE, PATH, CODE, RECORDED = "type", "path", "code", "recorded"


def _spans(records: Sequence[Record], names: Names) -> list[Span | None]:
    """The spans in file order, knowing each other; None for a record that is no span."""
    places = [_span(record) if "resource" in record else None for record in records]
    spans = [span for span in places if span is not None]
    by_id: dict[tuple[object, object], Span] = {}
    traces: dict[object, Trace] = {}
    for span in spans:
        trace_id, span_id = span.record["traceId"], span.record["spanId"]
        if trace_id is not None:
            span.trace = traces.setdefault(trace_id, Trace())
            _tell(span, span.trace, names.shared)
            if span_id is not None:
                span.first = by_id.setdefault((trace_id, span_id), span)
    for span in spans:
        if span.record["parentSpanId"] is not None:
            span.parent = by_id.get((span.record["traceId"], span.record["parentSpanId"]))
    order = _parents_first(spans)
    _cover(spans)
    inherited = (*names.shared, MODEL)
    for span in order:
        facts = _facts(span, inherited)
        span.near = span.above | facts if facts else span.above
    return places


def _span(record: Record) -> Span:
    attributes, engine = _object(record["attributes"]), bool(record["engine"])
    return Span(record, attributes, engine, not engine and attributes.get("gen_ai.operation.name") in TYPES)


def _tell(span: Span, trace: Trace, shared: Iterable[str]) -> None:
    for key in shared:
        value = span.attributes.get(key)
        if known(value):
            trace.values.setdefault(key, set()).add(str(value))
    type_ = _own_path_type(span) if span.record["server"] else None
    if type_ is not None:
        trace.server_types.add(type_)


def _parents_first(spans: Iterable[Span]) -> list[Span]:
    """The spans, each after its parent. One that is its own ancestor has none from here on."""
    order: list[Span] = []
    settled: set[Span] = set()
    for start in spans:
        way: dict[Span, None] = {}
        span: Span | None = start
        while span is not None and span not in settled:
            way[span] = None
            if span.parent in way:
                span.parent = None
            span = span.parent
        settled.update(way)
        order += reversed(way)
    return order


def _cover(spans: Sequence[Span]) -> None:
    """Mark everything above an engine or GenAI span; what is above a marked span is marked already."""
    for span in spans:
        above = span.parent if span.engine or span.genai else None
        while above is not None and not above.covered:
            above.covered = True
            above = above.parent
    for span in spans:
        if span.first is not None:
            span.covered = span.first.covered


def _facts(span: Span, inherited: Iterable[str]) -> Record:
    facts = {key: span.attributes[key] for key in inherited if known(span.attributes.get(key))}
    operation, path, code = span.attributes.get("gen_ai.operation.name"), _own_path_type(span), _own_code(span)
    if operation in TYPES:
        facts[TYPE] = TYPES[str(operation)]
    if path is not None:
        facts[PATH] = path
    if code is not None and code >= 400:
        facts[CODE] = code
    if _is_refusal(span) or (span.genai and not span.covered):
        facts[RECORDED] = True
    return facts


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
    return _is_refusal(span) and not span.covered and RECORDED not in span.above


# -- rows -------------------------------------------------------------------------------------------------------------


def _whole(records: Sequence[Record], names: Names) -> Iterator[Record | Skipped]:
    name = _namer()
    for span in _spans(records, names):
        if span is None or not _is_row(span):
            yield Skipped("not_a_request")
        else:
            yield _row(span, names) | {"request_id": name(span)}


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


def _row(span: Span, names: Names) -> Record:
    own, record = span.attributes, span.record
    kind = 0 if span.engine else 1
    row: Record = {
        "attributes": own,  # a key of a join may stand there
        "tenant": _tenant(span, names),
        "type": _type(span),
        MODEL: span.near.get(MODEL),
        "gen_ai.response.model": own.get("gen_ai.response.model"),
        "startTimeUnixNano": record["startTimeUnixNano"],
        "session.id": first_known(_shared(span, key) for key in SESSIONS),
    }
    for both in (PROMPT, OUTPUT):
        # The engines' own name first for an engine, the conventions' for a client; each falls back on the other.
        name = next((name for name in (both[kind], both[1 - kind]) if known(own.get(name))), both[kind])
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
    near = span.near.get(key)
    return near if near is not None or span.trace is None else span.trace.agreed(key)


def _tenant(span: Span, names: Names) -> object:
    resource = _object(span.record["resource"])
    for key in (*names.tenants, *names.users):
        value = first_known((_shared(span, key), resource.get(key)))
        if value is not None:
            return prefixed("user", value) if key in names.users else value
    return None


def _type(span: Span) -> object:
    type_ = first_known((span.near.get(TYPE), span.near.get(PATH)))
    if type_ is not None:
        return type_
    if span.trace is not None and len(span.trace.server_types) == 1:
        return next(iter(span.trace.server_types))
    return "embed" if span.record["sglang"] and not any(known(span.attributes.get(name)) for name in OUTPUT) else None


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
    if CODE in span.above:
        return "cancelled" if span.above[CODE] == 499 else "failed"
    return "ok" if finished else "unfinished"


def _matches(sample: Sample) -> bool:
    return any("resourceSpans" in record for record in sample.records)


def _tenant_from(attribute: str) -> Format:
    """The format with this attribute as the tenant, wherever in a request's trace it stands."""
    names = Names((attribute,), ())
    return replace(OTLP, explode=partial(_explode, names=names), whole=partial(_whole, names=names))


OTLP = Format(
    name="otlp",
    containers=("jsonl", "document"),
    needs=("resourceSpans",),
    matches=_matches,
    explode=partial(_explode, names=Names()),
    whole=partial(_whole, names=Names()),
    tenant_from=_tenant_from,
    private=True,
    reads=(
        "traceId",
        "spanId",
        "parentSpanId",
        "engine",
        "sglang",
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
        "model": (Text(MODEL), Text("gen_ai.response.model")),
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
